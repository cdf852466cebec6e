//! Measures how evenly routes are spread over links.

use std::fmt;

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::{Entries, NO_ROUTE, Routing, Topology};

/// Largest load of kept tables as a ratio of that of tables computed from scratch. Above it the
/// latter are used, so that keeping routes never costs more than 2 % of balance.
pub(crate) const WORSE_MAX: f64 = 1.02;

/// Load of every link: the number of routes over it, one route per pair of a source host and a
/// destination LID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkLoads {
    /// Routes to hosts' LIDs, indexed by link number of the topology.
    pub to_hosts: Vec<u32>,
    /// Routes to LIDs of hosts and switches, indexed by link number.
    pub to_all: Vec<u32>,
}

/// Maximum and mean load over the links that carry any route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Number of routes on the most loaded link.
    pub max: u32,
    /// Mean number of routes over the links that carry any.
    pub mean: f64,
    /// Number of links that carry routes.
    pub links: usize,
}

impl LinkLoads {
    /// Follows all routes from switches with hosts. A route that ends early counts up to its last
    /// link; a route that loops counts up to the first switch it visits twice.
    pub fn count(topology: &Topology, routing: &Routing) -> Self {
        Self::of_tables(topology, &routing.lfts)
    }

    /// Counts the loads of forwarding tables, given per switch.
    pub fn of_tables(topology: &Topology, lfts: &[Entries]) -> Self {
        let lfts: Vec<&[u8]> = lfts.iter().map(|lft| &**lft).collect();
        let port = |switch: u16, lid: Lid| {
            let lft = lfts.get(usize::from(switch));
            lft.and_then(|lft| lft.get(lid.index())).copied().unwrap_or(NO_ROUTE)
        };
        let none = || Self {
            to_hosts: vec![0; topology.link_count()],
            to_all: vec![0; topology.link_count()],
        };
        let hosts = topology.hosts_on();
        topology
            .destinations()
            .par_chunks(64)
            .fold(none, |mut loads, destinations| {
                let mut tree = Tree::new(topology.switch_count());
                for destination in destinations {
                    for lid in destination.lids() {
                        tree.load(
                            topology,
                            &hosts,
                            |s| port(s, lid),
                            |link, flow| {
                                loads.to_all[link] += flow;
                                if destination.is_host() {
                                    loads.to_hosts[link] += flow;
                                }
                            },
                        );
                    }
                }
                loads
            })
            .reduce(none, |mut a, b| {
                a.to_hosts.iter_mut().zip(b.to_hosts).for_each(|(a, b)| *a += b);
                a.to_all.iter_mut().zip(b.to_all).for_each(|(a, b)| *a += b);
                a
            })
    }
}

/// Returns the number of routes to hosts' LIDs on the most loaded link.
pub fn most_to_hosts(topology: &Topology, lfts: &[Entries]) -> u32 {
    Spread::of(&LinkLoads::of_tables(topology, lfts).to_hosts).max
}

/// Reports whether `found` routes on the most loaded link are at most 2 % more than `fresh`, those
/// on the most loaded link of a routing computed without regard to earlier routes.
pub fn is_balanced(found: u32, fresh: u32) -> bool {
    f64::from(found) <= f64::from(fresh) * WORSE_MAX
}

impl Spread {
    /// Computes the spread of loads given per link.
    pub fn of(loads: &[u32]) -> Self {
        let used = loads.iter().copied().filter(|&load| load > 0);
        let (mut max, mut sum, mut links) = (0, 0u64, 0);
        for load in used {
            max = max.max(load);
            sum += u64::from(load);
            links += 1;
        }
        Self { max, mean: sum as f64 / links.max(1) as f64, links }
    }

    /// Ratio of the largest load to the mean. The optimum is 1, which is also the ratio without any
    /// load.
    pub fn ratio(&self) -> f64 {
        if self.links == 0 { 1.0 } else { f64::from(self.max) / self.mean }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max, mean, links } = self;
        write!(f, "{links} links with {mean:.0} routes on average, {max} at most")
    }
}

/// Routes of all switches to one LID, as a graph.
struct Tree {
    /// By switch: the link that it forwards by and the next switch.
    next: Vec<Option<(usize, u16)>>,
    /// By switch: the number of upstream neighbours whose routes have not been added yet.
    waiting: Vec<u32>,
    flow: Vec<u32>,
    ready: Vec<u16>,
}

impl Tree {
    fn new(switches: usize) -> Self {
        Self {
            next: vec![None; switches],
            waiting: vec![0; switches],
            flow: vec![0; switches],
            ready: Vec::with_capacity(switches),
        }
    }

    /// Reports the flow on each link, starting at switches without upstream switches.
    fn load(
        &mut self,
        topology: &Topology,
        hosts: &[u32],
        port: impl Fn(u16) -> u8,
        mut report: impl FnMut(usize, u32),
    ) {
        self.waiting.fill(0);
        self.flow.copy_from_slice(hosts);
        for switch in topology.switches() {
            let link = topology.link_at(switch, port(switch));
            let next = link.map(|link| (link, topology.link(link).peer));
            self.next[usize::from(switch)] = next;
            if let Some((_, peer)) = next {
                self.waiting[usize::from(peer)] += 1;
            }
        }
        let waiting = &self.waiting;
        self.ready.extend(topology.switches().filter(|&s| waiting[usize::from(s)] == 0));
        while let Some(switch) = self.ready.pop() {
            let Some((link, peer)) = self.next[usize::from(switch)] else { continue };
            let (flow, peer) = (self.flow[usize::from(switch)], usize::from(peer));
            if flow > 0 {
                report(link, flow);
            }
            self.flow[peer] += flow;
            self.waiting[peer] -= 1;
            if self.waiting[peer] == 0 {
                self.ready.push(peer as u16);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_routes_may_be_two_percent_worse_than_recomputed_ones() {
        assert!(is_balanced(99, 100) && is_balanced(102, 100) && !is_balanced(103, 100));
    }
}
