//! Fat trees (folded Clos networks) of two and three levels.
//!
//! Two levels: leaves and spines. Three: pods of leaves and spines, and groups of cores, with spine
//! number *a* of every pod cabled to group *a*. Only the switches needed are generated: a partly
//! filled tree has fewer pods, and where an upper switch could have several cables from each switch
//! below, there are fewer upper switches. Every switch has at least as many cables up as down,
//! except leaves with the requested oversubscription. Rail-optimized trees differ in which leaf an
//! adapter is on.

use super::plan::{Plan, names, within};
use super::{GenerateError, UNICAST_LIDS};
use ib_mad::netlist::PORTS_MAX;

/// Parameters of a fat tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// Levels of switches, 2 or 3.
    pub levels: u8,
    /// Ports per switch.
    pub radix: u8,
    /// Number of hosts.
    pub hosts: usize,
    /// Ratio of hosts to uplinks of a leaf: (1, 1) is full bisection bandwidth.
    pub oversubscription: (u8, u8),
}

impl FatTree {
    pub(super) fn plan(&self) -> Result<Plan, GenerateError> {
        let Self { levels, radix, hosts, .. } = *self;
        let leaf_hosts_max = self.check()?;
        let (pod_leaves_max, pods_max) = self.limits()?;
        let max = leaf_hosts_max * pod_leaves_max * pods_max;
        if hosts > max {
            return Err(GenerateError::TooManyHosts { levels, radix, max, hosts });
        }
        if hosts < 2 {
            return Err(GenerateError::TooFewHosts { levels, min: 2, hosts });
        }
        // At least two leaves, in two pods if there are pods, or the tree would lack a level.
        let pods =
            if levels == 2 { 1 } else { hosts.div_ceil(leaf_hosts_max * pod_leaves_max).max(2) };
        let leaves = hosts.div_ceil(leaf_hosts_max).max(2);
        let uplinks = self.uplinks_for(hosts.div_ceil(leaves));
        let layout = Layout { radix: radix.into(), leaves, pods, uplinks };
        let mut plan = if levels == 2 { layout.two_levels() } else { layout.three_levels() };
        for leaf in 0..leaves {
            for port in 1..=part(hosts, leaves, leaf) {
                plan.add_host((leaf, port as u8));
            }
        }
        Ok(plan)
    }

    /// Checks radix and oversubscription; returns the most hosts of a leaf.
    fn check(&self) -> Result<usize, GenerateError> {
        let (down, up) = self.oversubscription;
        within("--radix", self.radix.into(), 4, PORTS_MAX.into())?;
        within("each side of --oversubscription", down.min(up).into(), 1, u8::MAX.into())?;
        let leaf_hosts_max = self.leaf_hosts_max();
        within("hosts a leaf", leaf_hosts_max, 1, self.radix.into())?;
        Ok(leaf_hosts_max)
    }

    /// The most leaves of a pod, and the most pods.
    fn limits(&self) -> Result<(usize, usize), GenerateError> {
        match self.levels {
            2 => Ok((self.radix.into(), 1)),
            3 => Ok((usize::from(self.radix / 2), usize::from(self.radix))),
            levels => Err(GenerateError::Levels { levels }),
        }
    }

    /// The most hosts on a leaf that leave enough ports for its uplinks.
    fn leaf_hosts_max(&self) -> usize {
        let radix = usize::from(self.radix);
        (0..radix).rev().find(|&hosts| hosts + self.uplinks_for(hosts) <= radix).unwrap_or(0)
    }

    fn uplinks_for(&self, hosts: usize) -> usize {
        let (down, up) = self.oversubscription;
        (hosts * usize::from(up)).div_ceil(down.into())
    }
}

/// Parameters of a rail-optimized fat tree: hosts have an adapter for each rail, and the adapters
/// of a group of hosts that belong to one rail share a leaf. Traffic between equal adapters within
/// a group passes one switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailTree {
    /// Levels of switches, 2 or 3.
    pub levels: u8,
    /// Ports per switch.
    pub radix: u8,
    /// Number of hosts.
    pub hosts: usize,
    /// Adapters of each host.
    pub rails: u8,
    /// Ratio of adapters to uplinks of a leaf: (1, 1) is full bisection bandwidth.
    pub oversubscription: (u8, u8),
}

impl RailTree {
    pub(super) fn plan(&self) -> Result<Plan, GenerateError> {
        let Self { levels, radix, hosts, rails, oversubscription } = *self;
        let rails = usize::from(rails);
        within("--rails", rails, 1, 32)?;
        within("--hosts", hosts, 2, UNICAST_LIDS)?;
        let tree = FatTree { levels, radix, hosts: hosts * rails, oversubscription };
        let leaf_hosts_max = tree.check()?;
        // The hosts of a group fill a leaf of each rail. All leaves are alike in the two-level part
        // of the tree.
        let groups = hosts.div_ceil(leaf_hosts_max);
        let leaves = (groups * rails).max(2);
        let (pod_leaves_max, pods_max) = tree.limits()?;
        if leaves > pod_leaves_max * pods_max {
            let max = pod_leaves_max * pods_max / rails * leaf_hosts_max;
            return Err(GenerateError::TooManyHosts { levels, radix, max, hosts });
        }
        let pods = if levels == 2 { 1 } else { leaves.div_ceil(pod_leaves_max).max(2) };
        let uplinks = tree.uplinks_for(hosts.div_ceil(groups));
        let layout = Layout { radix: radix.into(), leaves, pods, uplinks };
        let mut plan = if levels == 2 { layout.two_levels() } else { layout.three_levels() };
        let mut number = 0;
        for group in 0..groups {
            for place in 1..=part(hosts, groups, group) {
                number += 1;
                for rail in 0..rails {
                    let at = (group * rails + rail, place as u8);
                    plan.hosts.push(((number, rail as u8 + 1), at));
                }
            }
        }
        Ok(plan)
    }
}

struct Layout {
    radix: usize,
    leaves: usize,
    pods: usize,
    /// Uplinks per leaf.
    uplinks: usize,
}

impl Layout {
    fn two_levels(&self) -> Plan {
        let spines = self.uplinks.div_ceil(self.radix / self.leaves);
        let mut plan = Plan::new(
            names("leaf", self.leaves).chain(names("spine", spines)).collect(),
            self.radix as u8,
        );
        let mut used = vec![0; spines];
        for leaf in 0..self.leaves {
            for uplink in 0..self.uplinks {
                let spine = uplink % spines;
                used[spine] += 1;
                let upper = (self.leaves + spine, used[spine]);
                plan.links.push(((leaf, self.leaf_port(uplink)), upper));
            }
        }
        plan
    }

    fn three_levels(&self) -> Plan {
        let (half, leaves, pods) = (self.radix / 2, self.leaves, self.pods);
        // Cables between a leaf and a spine, spines per pod, and the most down-cables of a spine.
        let parallel = half / leaves.div_ceil(pods);
        let pod_spines = self.uplinks.div_ceil(parallel);
        let spine_links = leaves.div_ceil(pods) * self.uplinks.div_ceil(pod_spines);
        // As many cables go up, to the cores of the spine's group.
        let group_cores = spine_links.div_ceil(self.radix / pods);
        let (spines, cores) = (pods * pod_spines, pod_spines * group_cores);
        let all = names("leaf", leaves).chain(names("spine", spines)).chain(names("core", cores));
        let mut plan = Plan::new(all.collect(), self.radix as u8);
        let mut used = vec![0; plan.switches.len()];
        let mut next_port = |switch: usize| {
            used[switch] += 1;
            used[switch]
        };
        let mut first_leaf = 0;
        for pod in 0..pods {
            let first_spine = leaves + pod * pod_spines;
            let pod_leaves = part(leaves, pods, pod);
            for leaf in first_leaf..first_leaf + pod_leaves {
                for uplink in 0..self.uplinks {
                    let spine = first_spine + uplink % pod_spines;
                    let upper = (spine, next_port(spine));
                    plan.links.push(((leaf, self.leaf_port(uplink)), upper));
                }
            }
            for place in 0..pod_spines {
                for uplink in 0..spine_links {
                    let core = leaves + spines + place * group_cores + uplink % group_cores;
                    let lower = (first_spine + place, (half + 1 + uplink) as u8);
                    plan.links.push((lower, (core, next_port(core))));
                }
            }
            first_leaf += pod_leaves;
        }
        plan
    }

    /// Port number of a leaf's uplink: uplinks use the highest port numbers, hosts the lowest.
    fn leaf_port(&self, uplink: usize) -> u8 {
        (self.radix - self.uplinks + 1 + uplink) as u8
    }
}

/// Size of part `index` when `total` is split into `parts` as evenly as possible.
fn part(total: usize, parts: usize, index: usize) -> usize {
    total / parts + usize::from(index < total % parts)
}
