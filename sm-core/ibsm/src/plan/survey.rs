//! Evaluates routes between hosts: their lengths, and which ones are missing.

use std::collections::VecDeque;

use rayon::prelude::*;

use sm_routing::{HopMatrix, Routing, Topology};

/// Routes from each host to each LID of each other host, as the tables forward. Hops are links
/// between switches; hosts on the same switch are 0 hops apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Number of routes that arrive.
    pub routes: u64,
    /// Sum of their hops.
    pub hops: u64,
    /// Hops of the longest route.
    pub hops_max: u32,
    /// Number of routes with more hops than the shortest path.
    pub longer: u64,
    /// Number of routes that end early or loop although links connect the two hosts.
    pub lost: u64,
    /// Number of pairs of a host and a LID that no links connect.
    pub parted: u64,
}

/// Marks a switch that has not been examined.
const UNKNOWN: u32 = u32::MAX;
/// Marks a switch from which packets do not arrive.
const LOST: u32 = u32::MAX - 1;

impl Survey {
    /// Follows all routes.
    pub fn of(topology: &Topology, routing: &Routing) -> Self {
        let hosts = topology.hosts_on();
        let parts = parts(topology);
        let shortest = HopMatrix::compute(topology);
        let sources: Vec<u16> =
            topology.switches().filter(|&switch| hosts[usize::from(switch)] > 0).collect();
        let portions = topology.destinations().par_chunks(16).map(|destinations| {
            let mut found = Self::default();
            let mut left = vec![UNKNOWN; topology.switch_count()];
            let mut path = Vec::new();
            for to in destinations.iter().filter(|to| to.is_host()) {
                for lid in to.lids() {
                    left.fill(UNKNOWN);
                    let arrives = routing.port(to.egress_switch, lid) == to.exit;
                    left[usize::from(to.egress_switch)] = if arrives { 0 } else { LOST };
                    for &source in &sources {
                        let port = |switch| routing.port(switch, lid);
                        let hops = follow(topology, port, source, &mut left, &mut path);
                        // A host does not send to itself.
                        let itself = u32::from(source == to.egress_switch);
                        let count = u64::from(hosts[usize::from(source)] - itself);
                        let joined =
                            parts[usize::from(source)] == parts[usize::from(to.egress_switch)];
                        let least = shortest.as_ref().map_or(u32::MAX, |all| {
                            all.row(source)[usize::from(to.egress_switch)].into()
                        });
                        match hops {
                            Some(hops) => found.arrive(count, hops, least),
                            None if joined => found.lost += count,
                            None => found.parted += count,
                        }
                    }
                }
            }
            found
        });
        portions.reduce(Self::default, Self::join)
    }

    /// Mean number of hops per route.
    pub fn mean(&self) -> f64 {
        self.hops as f64 / self.routes.max(1) as f64
    }

    /// Counts routes of so many hops, between switches that are `least` hops apart.
    fn arrive(&mut self, routes: u64, hops: u32, least: u32) {
        self.routes += routes;
        self.longer += if hops > least { routes } else { 0 };
        self.hops += routes * u64::from(hops);
        if routes > 0 {
            self.hops_max = self.hops_max.max(hops);
        }
    }

    fn join(self, other: Self) -> Self {
        Self {
            routes: self.routes + other.routes,
            hops: self.hops + other.hops,
            hops_max: self.hops_max.max(other.hops_max),
            longer: self.longer + other.longer,
            lost: self.lost + other.lost,
            parted: self.parted + other.parted,
        }
    }
}

/// Follows links from a switch to one where `left` is 0, and sets `left` of all switches on the
/// way.
fn follow(
    topology: &Topology,
    port: impl Fn(u16) -> u8,
    source: u16,
    left: &mut [u32],
    path: &mut Vec<u16>,
) -> Option<u32> {
    path.clear();
    let mut switch = source;
    let mut end = loop {
        let known = left[usize::from(switch)];
        if known != UNKNOWN {
            break known;
        }
        let Some(link) = topology.link_at(switch, port(switch)) else {
            left[usize::from(switch)] = LOST;
            break LOST;
        };
        // Passing a switch twice means a loop.
        left[usize::from(switch)] = LOST;
        path.push(switch);
        switch = topology.link(link).peer;
    };
    for &switch in path.iter().rev() {
        if end != LOST {
            end += 1;
        }
        left[usize::from(switch)] = end;
    }
    (end != LOST).then_some(end)
}

/// By switch: a number that is equal within a connected part.
pub(super) fn parts(topology: &Topology) -> Vec<u16> {
    let mut parts = vec![u16::MAX; topology.switch_count()];
    let mut queue = VecDeque::new();
    for root in topology.switches() {
        if parts[usize::from(root)] != u16::MAX {
            continue;
        }
        parts[usize::from(root)] = root;
        queue.push_back(root);
        while let Some(switch) = queue.pop_front() {
            for link in topology.links(switch) {
                if std::mem::replace(&mut parts[usize::from(link.peer)], root) == u16::MAX {
                    queue.push_back(link.peer);
                }
            }
        }
    }
    parts
}
