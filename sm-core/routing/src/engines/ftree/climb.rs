//! Builds one tree of routes per LID: up from its egress switch to a root by the least used links,
//! and down from there to all other switches.
//!
//! A tree is built in a separate column, one byte per switch, which fits in the nearest cache;
//! the columns of a batch are then written to the tables together.

use super::branches::{Branches, Leftovers};
use crate::deal::Batch;
use crate::engines::updn::{Labels, phase};
use crate::hops::{First, list_sources};
use crate::tables::Tables;
use crate::{HopMatrix, NO_ROUTE, Topology};

/// Builds routes.
pub(super) struct Climber<'a> {
    topology: &'a Topology,
    labels: &'a Labels,
    pub(super) tables: Tables,
    pub(super) unreachable: u64,
    /// Downlinks.
    below: Branches,
    /// Uplinks.
    above: Branches,
    leftovers: Leftovers,
    /// By link: number of trees that descend over it to its sender.
    down: Vec<u32>,
    /// By downlink: number of trees in which its receiver sends upwards over it.
    up: Vec<u32>,
    /// By switch: number of trees that have come up to it from an egress switch.
    climbs: Vec<u32>,
    hosts: Vec<u32>,
    /// Switches of the current tree from its egress switch to its root.
    chain: Vec<u16>,
    /// Other switches of the tree, and by switch the link that leads down to them.
    spread: Vec<u16>,
    via: Vec<u32>,
    /// By switch: hops to the current egress switch on paths that start upwards.
    upwards: Vec<u8>,
    /// As `upwards`, for switches that the current tree has not reached.
    waiting: Vec<u8>,
    /// By LID of the batch and switch: egress ports.
    columns: Vec<u8>,
    /// Scratch space for leftovers.
    sources: Vec<u16>,
}

/// Marks a switch that the tree has reached.
const REACHED: u8 = HopMatrix::UNREACHABLE;

impl<'a> Climber<'a> {
    /// `hops` are those of the labels, one row per switch.
    pub(super) fn new(topology: &'a Topology, labels: &'a Labels, hops: &HopMatrix) -> Self {
        let switches = topology.switch_count();
        let above = Branches::new(topology, |number| !labels.is_downward(number));
        let leftovers = Leftovers::new(topology, labels, hops, &above);
        Self {
            topology,
            labels,
            tables: Tables::new(switches, topology.table_len()),
            unreachable: 0,
            below: Branches::new(topology, |number| labels.is_downward(number)),
            above,
            leftovers,
            down: vec![0; topology.link_count()],
            up: vec![0; topology.link_count()],
            climbs: vec![0; switches],
            hosts: topology.hosts_on(),
            chain: Vec::new(),
            spread: Vec::with_capacity(switches),
            via: vec![0; switches],
            upwards: Vec::with_capacity(switches),
            waiting: Vec::with_capacity(switches),
            columns: vec![NO_ROUTE; switches * Batch::LIDS_MAX],
            sources: Vec::with_capacity(switches),
        }
    }

    /// Routes a batch from all switches: a tree for each host's LID; the switch's own LID fills
    /// gaps.
    pub(super) fn route(&mut self, batch: &Batch) {
        let egress_switch = batch.egress_switch;
        let (hops, phases) =
            (self.labels.hops.row(egress_switch), self.labels.phases(egress_switch));
        self.upwards.clear();
        let upwards = hops.iter().zip(phases);
        let upwards = upwards.map(|(&hops, &way)| if way == phase::UP { hops } else { REACHED });
        self.upwards.extend(upwards);
        self.columns[..hops.len() * batch.host_lids].fill(NO_ROUTE);
        for place in 0..batch.host_lids {
            self.climb(egress_switch, Some(place));
            self.spread(place);
        }
        self.tables.begin(&batch.lids);
        self.tables.enter_columns(&self.columns[..hops.len() * batch.host_lids]);
        self.tables.entries(usize::from(egress_switch)).copy_from_slice(&batch.exits);
        self.fill(batch);
    }

    /// Advances the counters as if an egress switch had `missing` more hosts. All egress switches
    /// then start at the same link with their first host, and the routes of two leaves to different
    /// hosts of one leaf do not meet.
    pub(super) fn skip(&mut self, egress_switch: u16, missing: u32) {
        (0..missing).for_each(|_| self.climb(egress_switch, None));
    }

    /// Climbs from an egress switch to a root, at each step by the least used link (of equally used
    /// links, the one to the least used switch), and makes all switches on the way send down by the
    /// same links.
    fn climb(&mut self, egress_switch: u16, place: Option<usize>) {
        let Self { topology, labels, down, climbs, chain, columns, .. } = self;
        let (hops, phases) = (labels.hops.row(egress_switch), labels.phases(egress_switch));
        chain.clear();
        let mut switch = egress_switch;
        loop {
            chain.push(switch);
            let level = hops[usize::from(switch)] + 1;
            let links = topology.links(switch).iter().zip(topology.link_range(switch));
            let above = links.filter(|(link, _)| {
                let peer = usize::from(link.peer);
                hops[peer] == level && phases[peer] == phase::DOWN
            });
            let use_of = |(link, number): &(&_, usize)| {
                let link: &crate::Link = link;
                (down[*number], climbs[usize::from(link.peer)])
            };
            let Some((link, number)) = above.min_by_key(use_of) else { break };
            down[number] += 1;
            climbs[usize::from(link.peer)] += 1;
            if let Some(place) = place {
                columns[place * hops.len() + usize::from(link.peer)] = link.peer_port;
            }
            switch = link.peer;
        }
    }

    /// Makes all switches below the chain that have no better path send up to it.
    fn spread(&mut self, place: usize) {
        let Self { below, chain, spread, via, up, upwards, waiting, columns, .. } = self;
        let Some(&egress_switch) = chain.first() else { return };
        let hops = self.labels.hops.row(egress_switch);
        let column = &mut columns[place * hops.len()..][..hops.len()];
        waiting.clone_from(upwards);
        for &start in chain.iter() {
            spread.clear();
            spread.push(start);
            let mut next = 0;
            while let Some(&switch) = spread.get(next) {
                next += 1;
                let first = spread.len();
                let level = hops[usize::from(switch)] + 1;
                let mut joins = false;
                for branch in below.of(switch) {
                    let peer = usize::from(branch.peer);
                    if waiting[peer] == level {
                        waiting[peer] = REACHED;
                        column[peer] = branch.peer_port;
                        spread.push(branch.peer);
                        if branch.is_parallel {
                            // Counted when the least used of its links is known.
                            via[peer] = branch.link;
                            joins = true;
                        } else {
                            up[branch.link as usize] += 1;
                        }
                    } else if branch.is_parallel
                        && upwards[peer] == level
                        && spread[first..].contains(&branch.peer)
                        && up[branch.link as usize] < up[via[peer] as usize]
                    {
                        column[peer] = branch.peer_port;
                        via[peer] = branch.link;
                    }
                }
                if joins {
                    for branch in below.of(switch).iter().filter(|branch| branch.is_parallel) {
                        if via[usize::from(branch.peer)] == branch.link
                            && spread[first..].contains(&branch.peer)
                        {
                            up[branch.link as usize] += 1;
                        }
                    }
                }
            }
        }
    }

    /// Routes from the switches that no tree has reached: LIDs of hosts by the least used link,
    /// others by each link in turn.
    fn fill(&mut self, batch: &Batch) {
        let Self { topology, labels, tables, up, hosts, sources, above, leftovers, .. } = self;
        let hops = labels.hops.row(batch.egress_switch);
        list_sources(sources, hops, First::Farthest);
        leftovers.begin(labels, batch.egress_switch, above);
        for &switch in sources.iter() {
            let entries = tables.entries(usize::from(switch));
            if !entries.contains(&NO_ROUTE) {
                continue;
            }
            let candidates = leftovers.candidates(topology, labels, switch, above);
            let count = candidates.len();
            let has_hosts = hosts[usize::from(switch)] > 0;
            let mut turn = usize::from(switch) % count;
            for (place, entry) in entries.iter_mut().enumerate() {
                if *entry != NO_ROUTE {
                    continue;
                }
                turn = if turn + 1 == count { 0 } else { turn + 1 };
                let mut chosen = &candidates[turn];
                if has_hosts && place < batch.host_lids {
                    let least = candidates.iter().min_by_key(|branch| up[branch.back as usize]);
                    chosen = least.unwrap_or(chosen);
                    up[chosen.back as usize] += 1;
                }
                *entry = chosen.port;
            }
        }
        self.unreachable += ((hops.len() - sources.len() - 1) * batch.lids.len()) as u64;
    }
}
