//! One tree of routes a LID: up from its home to a root by the least used links, and down from
//! there to all others.

use super::super::deal::{Batch, Candidates, Tables, sort_sources};
use super::super::updn::{Labels, phase};
use super::super::{NO_ROUTE, Topology};

/// Routes in the making.
pub(super) struct Climber<'a> {
    topology: &'a Topology,
    labels: &'a Labels,
    pub(super) tables: Tables,
    pub(super) unreachable: u64,
    /// By link: the number of the same link from its other end.
    back: Vec<u32>,
    /// By link: how many trees come down to its sender by it.
    down: Vec<u32>,
    /// By link: how many trees its sender goes up by it.
    up: Vec<u32>,
    /// By switch: how many trees have come up to it from a home.
    climbs: Vec<u32>,
    hosts: Vec<u32>,
    /// Switches that the tree at hand has, from its home to its root.
    chain: Vec<u16>,
    /// Others, and by switch the link by which they go up.
    spread: Vec<u16>,
    via: Vec<u32>,
    /// For leftovers.
    sources: Vec<u16>,
    candidates: Candidates,
}

impl<'a> Climber<'a> {
    pub(super) fn new(topology: &'a Topology, labels: &'a Labels) -> Self {
        let switches = topology.switch_count();
        let back = topology.switches().flat_map(|switch| topology.links(switch));
        let back = back.map(|link| topology.link_at(link.peer, link.peer_port).unwrap_or(0) as u32);
        Self {
            topology,
            labels,
            tables: Tables::new(switches, topology.table_len()),
            unreachable: 0,
            back: back.collect(),
            down: vec![0; topology.link_count()],
            up: vec![0; topology.link_count()],
            climbs: vec![0; switches],
            hosts: topology.hosts_on(),
            chain: Vec::new(),
            spread: Vec::with_capacity(switches),
            via: vec![0; switches],
            sources: Vec::with_capacity(switches),
            candidates: Candidates::default(),
        }
    }

    /// Routes a batch from all switches: hosts' LIDs by a tree each, while switches' own fill gaps.
    pub(super) fn route(&mut self, batch: &Batch) {
        self.tables.begin(&batch.lids);
        let home = batch.home;
        self.tables.entries(usize::from(home)).copy_from_slice(&batch.exits);
        for place in 0..batch.host_lids {
            self.climb(home, Some(place));
            self.spread(place);
        }
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
        let Self { topology, labels, down, climbs, chain, tables, .. } = self;
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
                tables.entries(usize::from(link.peer))[place] = link.peer_port;
            }
            switch = link.peer;
        }
    }

    /// Has all switches below the chain that have no better way go up to it.
    fn spread(&mut self, place: usize) {
        let Self { topology, labels, tables, chain, spread, via, back, up, .. } = self;
        let Some(&home) = chain.first() else { return };
        let (hops, phases) = (labels.hops.row(home), labels.phases(home));
        for &start in chain.iter() {
            spread.clear();
            spread.push(start);
            let mut next = 0;
            while let Some(&switch) = spread.get(next) {
                next += 1;
                let first = spread.len();
                let level = hops[usize::from(switch)] + 1;
                for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch))
                {
                    let peer = usize::from(link.peer);
                    if !labels.is_downward(number)
                        || hops[peer] != level
                        || phases[peer] != phase::UP
                    {
                        continue;
                    }
                    let entry = &mut tables.entries(peer)[place];
                    let number = back[number];
                    if *entry == NO_ROUTE {
                        spread.push(link.peer);
                    } else {
                        // A parallel link may be used less.
                        let is_here = spread[first..].contains(&link.peer);
                        if !is_here || up[number as usize] >= up[via[peer] as usize] {
                            continue;
                        }
                    }
                    *entry = link.peer_port;
                    via[peer] = number;
                }
                for &below in &spread[first..] {
                    up[via[usize::from(below)] as usize] += 1;
                }
            }
        }
    }

    /// Routes from what no tree has reached: hosts' switches by the link they use least, others by
    /// each in turn.
    fn fill(&mut self, batch: &Batch) {
        let Self { topology, labels, tables, up, hosts, sources, candidates, .. } = self;
        let hops = labels.hops.row(batch.home);
        sort_sources(sources, hops);
        candidates.find(topology, batch.home, hops, sources, up, &labels.ways(batch.home));
        for (place, &switch) in sources.iter().enumerate() {
            let candidates = candidates.of(place);
            let has_hosts = hosts[usize::from(switch)] > 0;
            let entries = tables.entries(usize::from(switch)).iter_mut().enumerate();
            let mut turn = usize::from(switch);
            for (place, entry) in entries.filter(|(_, entry)| **entry == NO_ROUTE) {
                turn += 1;
                let mut chosen = candidates[turn % candidates.len()];
                if has_hosts && place < batch.host_lids {
                    let least = candidates.iter().min_by_key(|to| up[to.link as usize]);
                    chosen = least.copied().unwrap_or(chosen);
                    up[chosen.link as usize] += 1;
                }
                *entry = chosen.port;
            }
        }
        self.unreachable += ((hops.len() - sources.len() - 1) * batch.lids.len()) as u64;
    }
}
