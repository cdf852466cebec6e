//! Dragonflies (Kim, Dally, Scott, Abts 2008): groups of routers, fully connected within a group,
//! with links between all groups.
//!
//! Each group has routers × global-links global ports. All pairs of groups have equally many links;
//! ports left over stay unused. The links of a pair of groups are spread over their routers.

use super::GenerateError;
use super::plan::{Plan, SwitchPort, radix_for, within};

/// Parameters of a dragonfly. Routers are switches in InfiniBand's terms. On each, the first ports
/// are for hosts, the next for the group, the last are global.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dragonfly {
    /// Number of groups.
    pub groups: u16,
    /// Routers in each group.
    pub routers: u16,
    /// Hosts per router.
    pub hosts_per_router: u8,
    /// Links to other groups per router.
    pub global_links: u8,
    /// Ports per switch; the smallest common number that suffices if `None`.
    pub radix: Option<u8>,
}

impl Dragonfly {
    pub(super) fn plan(&self) -> Result<Plan, GenerateError> {
        let groups = usize::from(self.groups);
        let routers = usize::from(self.routers);
        let hosts = usize::from(self.hosts_per_router);
        let global_links = usize::from(self.global_links);
        within("--groups", groups, 1, 0xBFFF)?;
        within("--routers", routers, 1, 0xBFFF)?;
        within("the number of switches", groups * routers, 1, 0xBFFF)?;
        let radix = radix_for(hosts + routers - 1 + global_links, self.radix)?;
        check_globals(groups, routers, global_links)?;
        let names = (0..groups * routers)
            .map(|index| format!("g{:03}r{:03}", index / routers + 1, index % routers + 1));
        let mut plan = Plan::new(names.collect(), radix);
        for group in 0..groups {
            for router in 0..routers {
                for host in 1..=hosts {
                    plan.add_host((group * routers + router, host as u8));
                }
                for peer in router + 1..routers {
                    // Port k of a router leads to the k-th of the other routers.
                    let ends = [(router, peer - 1), (peer, router)];
                    let [a, b] = ends.map(|(router, place)| {
                        (group * routers + router, (hosts + 1 + place) as u8)
                    });
                    plan.links.push((a, b));
                }
            }
        }
        let globals = Globals { groups, routers, global_links };
        globals.link(&mut plan, |group, router, place| {
            (group * routers + router, (hosts + routers + place) as u8)
        });
        Ok(plan)
    }
}

/// Refuses groups that have too few global ports to reach all others.
pub(super) fn check_globals(
    groups: usize,
    routers: usize,
    global_links: usize,
) -> Result<(), GenerateError> {
    let (others, available) = (groups - 1, routers * global_links);
    if others > available {
        return Err(GenerateError::GlobalLinks { others, routers, global_links, available });
    }
    Ok(())
}

/// Links between groups.
pub(super) struct Globals {
    pub(super) groups: usize,
    /// Switches with global ports in each group.
    pub(super) routers: usize,
    /// Global ports of each of these.
    pub(super) global_links: usize,
}

impl Globals {
    /// Links all pairs of groups equally often, spread over their routers. `port` returns a global
    /// port by group, router, and place among the router's global ports, from 0.
    pub(super) fn link(&self, plan: &mut Plan, port: impl Fn(usize, usize, usize) -> SwitchPort) {
        let Self { groups, routers, global_links } = *self;
        let others = groups - 1;
        let per_pair = (routers * global_links).checked_div(others).unwrap_or(0);
        let port = |group: usize, c: usize| port(group, c % routers, c / routers);
        for a in 0..groups {
            for b in a + 1..groups {
                for round in 0..per_pair {
                    // A group numbers the others by their distance ahead of it.
                    let ahead = |distance: usize| round * others + distance - 1;
                    plan.links.push((port(a, ahead(b - a)), port(b, ahead(groups + a - b))));
                }
            }
        }
    }
}
