//! Measures how evenly routes are spread over links.

use std::fmt;

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::inflow::Inflow;
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

/// Maximum and mean load over all links between switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Number of routes on the most loaded link.
    pub max: u32,
    /// Mean number of routes over all links, also those that carry none: links that an engine
    /// leaves idle must not make it look balanced.
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
                let mut inflow = Inflow::new(topology.switch_count());
                let mut flows = hosts.clone();
                for destination in destinations {
                    for lid in destination.lids() {
                        flows.copy_from_slice(&hosts);
                        let add = |switch: usize, link: usize, next: usize| {
                            let flow = flows[switch];
                            flows[next] += flow;
                            loads.to_all[link] += flow;
                            if destination.is_host() {
                                loads.to_hosts[link] += flow;
                            }
                        };
                        inflow.walk(topology, |switch| port(switch, lid), add);
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
        let max = loads.iter().copied().max().unwrap_or(0);
        let sum: u64 = loads.iter().copied().map(u64::from).sum();
        let links = loads.iter().filter(|&&load| load > 0).count();
        Self { max, mean: sum as f64 / loads.len().max(1) as f64, links }
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
        write!(f, "{links} links used, {mean:.0} routes on average of all, {max} at most")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the mean was that of the links in use, so that `updn` on a ring, which leaves
    /// links idle, had a lower ratio than an engine that uses all of them.
    #[test]
    fn idle_links_count() {
        let spread = Spread::of(&[4, 0, 0, 4]);
        assert_eq!((spread.max, spread.links, spread.mean, spread.ratio()), (4, 2, 2.0, 2.0));
        assert_eq!((Spread::of(&[0, 0]).ratio(), Spread::of(&[]).ratio()), (1.0, 1.0));
    }

    #[test]
    fn kept_routes_may_be_two_percent_worse_than_recomputed_ones() {
        assert!(is_balanced(99, 100) && is_balanced(102, 100) && !is_balanced(103, 100));
    }
}
