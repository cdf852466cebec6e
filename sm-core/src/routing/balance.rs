//! How evenly routes are spread over links.

use std::fmt;

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::{Entries, NO_ROUTE, Routing, Topology};

/// Routes that pass a link, counted for one host as the source and one LID as the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkLoads {
    /// By link as the topology numbers them: routes to hosts' LIDs.
    pub to_hosts: Vec<u32>,
    /// By link: routes to LIDs of hosts and switches.
    pub to_all: Vec<u32>,
}

/// The largest and the mean load of links that have any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Routes on the link with the most.
    pub max: u32,
    /// Mean over links that have routes.
    pub mean: f64,
    /// How many links have routes.
    pub links: usize,
}

impl LinkLoads {
    /// Follows all routes from switches with hosts. Routes that end nowhere count up to where
    /// they end, those that go round in circles up to the first switch they meet again.
    pub fn count(topology: &Topology, routing: &Routing) -> Self {
        Self::of_tables(topology, &routing.lfts)
    }

    /// The same of tables by switch.
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

/// Routes to hosts on the link that has most of them.
pub fn most_to_hosts(topology: &Topology, lfts: &[Entries]) -> u32 {
    Spread::of(&LinkLoads::of_tables(topology, lfts).to_hosts).max
}

impl Spread {
    /// Of loads by link.
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

    /// Largest load by mean; 1 is as good as can be, and what nothing at all has.
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
    /// By switch: the link it forwards by and the switch behind it.
    next: Vec<Option<(usize, u16)>>,
    /// By switch: neighbours that forward to it and whose routes have not been added yet.
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

    /// Reports the flow on each link, beginning at switches that nobody forwards to.
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
