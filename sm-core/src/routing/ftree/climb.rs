//! One tree of routes a LID: up from its home to a root by the least used links, and down from
//! there to all others.
//!
//! A tree is grown in a column of its own, one byte a switch, which stays in the nearest cache;
//! a batch's columns are then entered into the tables together.

use super::super::deal::Batch;
use super::super::hops::{First, list_sources};
use super::super::tables::Tables;
use super::super::updn::{Labels, phase};
use super::super::{HopMatrix, NO_ROUTE, Topology};
use super::branches::{Branches, Leftovers};

/// Routes in the making.
pub(super) struct Climber<'a> {
    topology: &'a Topology,
    labels: &'a Labels,
    pub(super) tables: Tables,
    pub(super) unreachable: u64,
    /// Links that lead down.
    below: Branches,
    /// Links that lead up.
    above: Branches,
    leftovers: Leftovers,
    /// By link: how many trees come down to its sender by it.
    down: Vec<u32>,
    /// By link that leads down: how many trees its receiver goes up by it.
    up: Vec<u32>,
    /// By switch: how many trees have come up to it from a home.
    climbs: Vec<u32>,
    hosts: Vec<u32>,
    /// Switches that the tree at hand has, from its home to its root.
    chain: Vec<u16>,
    /// Others, and by switch the link that leads down to them.
    spread: Vec<u16>,
    via: Vec<u32>,
    /// By switch: hops to the home at hand, where the way there begins upwards.
    upwards: Vec<u8>,
    /// The same for those that the tree at hand has not reached.
    waiting: Vec<u8>,
    /// By LID of the batch and switch: ports.
    columns: Vec<u8>,
    /// For leftovers.
    sources: Vec<u16>,
}

/// No switch waits for a tree at this level.
const REACHED: u8 = HopMatrix::UNREACHABLE;

impl<'a> Climber<'a> {
    /// `hops` are those of the labels, row a switch.
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

    /// Routes a batch from all switches: hosts' LIDs by a tree each, while switches' own fill gaps.
    pub(super) fn route(&mut self, batch: &Batch) {
        let home = batch.home;
        let (hops, phases) = (self.labels.hops.row(home), self.labels.phases(home));
        self.upwards.clear();
        let upwards = hops.iter().zip(phases);
        let upwards = upwards.map(|(&hops, &way)| if way == phase::UP { hops } else { REACHED });
        self.upwards.extend(upwards);
        self.columns[..hops.len() * batch.host_lids].fill(NO_ROUTE);
        for place in 0..batch.host_lids {
            self.climb(home, Some(place));
            self.spread(place);
        }
        self.tables.begin(&batch.lids);
        self.tables.enter_columns(&self.columns[..hops.len() * batch.host_lids]);
        self.tables.entries(usize::from(home)).copy_from_slice(&batch.exits);
        self.fill(batch);
    }

    /// Counts as if there were `missing` more hosts at a home. So all homes begin at the same link
    /// with their first host, and what two leaves send to different hosts of one leaf does not meet.
    pub(super) fn skip(&mut self, home: u16, missing: u32) {
        (0..missing).for_each(|_| self.climb(home, None));
    }

    /// Goes up from a home to a root by the link that is used least, to the switch that is used
    /// least, and has all on the way send down the same way.
    fn climb(&mut self, home: u16, place: Option<usize>) {
        let Self { topology, labels, down, climbs, chain, columns, .. } = self;
        let (hops, phases) = (labels.hops.row(home), labels.phases(home));
        chain.clear();
        let mut switch = home;
        loop {
            chain.push(switch);
            let level = hops[usize::from(switch)] + 1;
            let links = topology.links(switch).iter().zip(topology.link_range(switch));
            let above = links.filter(|(link, _)| {
                let peer = usize::from(link.peer);
                hops[peer] == level && phases[peer] == phase::DOWN
            });
            let use_of = |(link, number): &(&_, usize)| {
                let link: &super::super::Link = link;
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

    /// Has all switches below the chain that have no better way go up to it.
    fn spread(&mut self, place: usize) {
        let Self { below, chain, spread, via, up, upwards, waiting, columns, .. } = self;
        let Some(&home) = chain.first() else { return };
        let hops = self.labels.hops.row(home);
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

    /// Routes from what no tree has reached: hosts' switches by the link they use least, others by
    /// each in turn.
    fn fill(&mut self, batch: &Batch) {
        let Self { topology, labels, tables, up, hosts, sources, above, leftovers, .. } = self;
        let hops = labels.hops.row(batch.home);
        list_sources(sources, hops, First::Farthest);
        leftovers.begin(labels, batch.home, above);
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
