//! The bandwidth that a topology allows, with any routing.
//!
//! Traffic that leaves a part of the fabric shares the links that leave it. The parts are the
//! switches with hosts, each by itself, and in fabrics with more levels the pods: what stays
//! connected without the switches that are so many links or more away from hosts.
//!
//! This bounds any routing on any topology, but is tight on trees only: on tori and dragonflies the
//! cuts that matter are others.

use std::collections::VecDeque;

use super::super::{Destination, Topology};
use super::Groups;

/// Most passes over the chosen borders of a pattern. Each improves the bound, or is the last.
const PASSES_MAX: u32 = 8;

/// Divisions of a fabric into parts, one per level; only those whose parts can have more flows than
/// links.
#[derive(Clone, Debug)]
pub(super) struct Cuts {
    levels: Vec<Cut>,
}

#[derive(Clone, Debug)]
struct Cut {
    /// By switch: its part, or `NONE`.
    part: Vec<u32>,
    /// By part: links to switches outside.
    links: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// The borders that the flows of a pattern cross; scratch space of a meter. A border is a part and
/// a direction, of one level after the other: those that flows leave, then those that they enter.
#[derive(Clone, Debug, Default)]
pub(super) struct Crossings {
    /// By border: number of flows across it; then the place of its next one in `flows`.
    counts: Vec<u32>,
    /// Borders with more flows than links: number of links, and the end of their flows in `flows`.
    tight: Vec<(u32, u32)>,
    flows: Vec<u32>,
    /// By tight border: whether its flows are counted by its links.
    is_chosen: Vec<bool>,
    /// By flow: the number of chosen borders that it crosses.
    chosen_of: Vec<u16>,
}

impl Cuts {
    /// The divisions of a fabric with traffic of these hosts, each of which sends and receives at
    /// most one flow.
    pub(super) fn of(topology: &Topology, groups: &Groups) -> Self {
        let ranks = ranks(topology, &topology.hosts_on());
        let highest = ranks.iter().copied().filter(|&rank| rank != NONE).max().unwrap_or(0);
        let mut leaf = 0;
        let leaves = ranks.iter().map(|&rank| {
            if rank != 0 {
                return NONE;
            }
            leaf += 1;
            leaf - 1
        });
        let mut levels = vec![Cut::new(topology, leaves.collect())];
        levels.extend((2..=highest).map(|rank| Cut::new(topology, parts(topology, &ranks, rank))));
        levels.retain(|cut| cut.can_be_tight(topology, groups));
        Self { levels }
    }

    /// Sum over flows of the bandwidth that they can have at most.
    ///
    /// The flows across a border have at most as much as it has links, and each flow at most 1. So
    /// for any choice of borders, their links and the flows that cross none of them are a bound
    /// together. The choice is improved border by border until none makes the bound lower; the
    /// bound holds whether or not it is the lowest one.
    pub(super) fn bound(
        &self,
        flows: &[(u32, u32)],
        hosts: &[Destination],
        crossings: &mut Crossings,
    ) -> f64 {
        crossings.find(self, flows, hosts);
        crossings.choose();
        let chosen = crossings.tight.iter().zip(&crossings.is_chosen);
        let links: u32 =
            chosen.filter(|(_, is_chosen)| **is_chosen).map(|(&(links, _), _)| links).sum();
        let others = flows.len() - crossings.chosen_of.iter().filter(|&&of| of > 0).count();
        f64::from(links) + others as f64
    }

    /// Calls back with the borders that a flow crosses.
    fn crossed(&self, (from, to): (u32, u32), hosts: &[Destination], mut at: impl FnMut(usize)) {
        let at_switch = |host: u32| usize::from(hosts[host as usize].egress_switch);
        let (from, to) = (at_switch(from), at_switch(to));
        let mut begin = 0;
        for cut in &self.levels {
            if let Some((from, to)) = cut.crossed(from, to) {
                at(begin + from);
                at(begin + cut.links.len() + to);
            }
            begin += 2 * cut.links.len();
        }
    }
}

impl Crossings {
    /// Finds the borders with more flows than links, and their flows.
    fn find(&mut self, cuts: &Cuts, flows: &[(u32, u32)], hosts: &[Destination]) {
        let Self { counts, tight, flows: listed, is_chosen, chosen_of } = self;
        let borders: usize = cuts.levels.iter().map(|cut| 2 * cut.links.len()).sum();
        counts.clear();
        counts.resize(borders, 0);
        for &flow in flows {
            cuts.crossed(flow, hosts, |border| counts[border] += 1);
        }
        tight.clear();
        let links = cuts.levels.iter().flat_map(|cut| cut.links.iter().chain(&cut.links));
        let mut end = 0;
        for (count, &links) in counts.iter_mut().zip(links) {
            if *count > links {
                let begin = end;
                end += *count;
                tight.push((links, end));
                *count = begin;
            } else {
                *count = NONE;
            }
        }
        listed.clear();
        listed.resize(end as usize, 0);
        for (&flow, number) in flows.iter().zip(0..).filter(|_| end > 0) {
            cuts.crossed(flow, hosts, |border| {
                let next = &mut counts[border];
                if *next != NONE {
                    listed[*next as usize] = number;
                    *next += 1;
                }
            });
        }
        is_chosen.clear();
        is_chosen.resize(tight.len(), false);
        chosen_of.clear();
        chosen_of.resize(flows.len(), 0);
    }

    /// Chooses borders one by one, or takes a choice back, where that makes the bound lower.
    fn choose(&mut self) {
        let Self { tight, flows, is_chosen, chosen_of, .. } = self;
        for _ in 0..PASSES_MAX {
            let (mut begin, mut is_better) = (0, false);
            for (&(links, end), is_chosen) in tight.iter().zip(is_chosen.iter_mut()) {
                let of = &flows[begin as usize..end as usize];
                begin = end;
                // Flows for which this border decides: it is chosen alone, or none is.
                let own = u16::from(*is_chosen);
                let alone = of.iter().filter(|&&flow| chosen_of[flow as usize] == own).count();
                let alone = alone as u32;
                if (!*is_chosen && alone > links) || (*is_chosen && alone < links) {
                    *is_chosen = !*is_chosen;
                    is_better = true;
                    for &flow in of {
                        let count = &mut chosen_of[flow as usize];
                        *count = if *is_chosen { *count + 1 } else { *count - 1 };
                    }
                }
            }
            if !is_better {
                break;
            }
        }
    }
}

impl Cut {
    fn new(topology: &Topology, part: Vec<u32>) -> Self {
        let count = part.iter().filter(|&&part| part != NONE).max().map_or(0, |last| last + 1);
        let mut links = vec![0; count as usize];
        for switch in topology.switches() {
            let own = part[usize::from(switch)];
            for link in topology.links(switch) {
                if own != NONE && part[usize::from(link.peer)] != own {
                    links[own as usize] += 1;
                }
            }
        }
        Self { part, links }
    }

    /// Whether traffic of these hosts can have more flows across a border than links.
    fn can_be_tight(&self, topology: &Topology, groups: &Groups) -> bool {
        let mut hosts = vec![0; self.links.len()];
        for &host in groups.iter().flatten() {
            let switch = topology.destinations()[host as usize].egress_switch;
            if let Some(count) = hosts.get_mut(self.part[usize::from(switch)] as usize) {
                *count += 1;
            }
        }
        hosts.iter().zip(&self.links).any(|(hosts, links)| hosts > links)
    }

    /// The parts that a flow leaves and enters; `None` if it stays in one.
    fn crossed(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let (from, to) = (self.part[from], self.part[to]);
        (from != to && from != NONE && to != NONE).then_some((from as usize, to as usize))
    }
}

/// By switch: links to the nearest switch with hosts; `NONE` if there is none.
fn ranks(topology: &Topology, hosts: &[u32]) -> Vec<u32> {
    let mut ranks = vec![NONE; topology.switch_count()];
    let mut queue = VecDeque::new();
    for switch in topology.switches().filter(|&switch| hosts[usize::from(switch)] > 0) {
        ranks[usize::from(switch)] = 0;
        queue.push_back(switch);
    }
    while let Some(switch) = queue.pop_front() {
        for link in topology.links(switch) {
            let rank = ranks[usize::from(switch)] + 1;
            let there = &mut ranks[usize::from(link.peer)];
            if *there == NONE {
                *there = rank;
                queue.push_back(link.peer);
            }
        }
    }
    ranks
}

/// By switch of a rank below `rank`: the part that is connected without higher ones.
fn parts(topology: &Topology, ranks: &[u32], rank: u32) -> Vec<u32> {
    let mut parts = vec![NONE; topology.switch_count()];
    let mut next = 0;
    let mut left = Vec::new();
    for root in topology.switches() {
        if ranks[usize::from(root)] >= rank || parts[usize::from(root)] != NONE {
            continue;
        }
        parts[usize::from(root)] = next;
        left.push(root);
        while let Some(switch) = left.pop() {
            for link in topology.links(switch) {
                let peer = usize::from(link.peer);
                if ranks[peer] < rank && parts[peer] == NONE {
                    parts[peer] = next;
                    left.push(link.peer);
                }
            }
        }
        next += 1;
    }
    parts
}
