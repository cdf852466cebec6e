//! Credit loops where a packet's lane changes from hop to hop, as on a torus.
//!
//! Nothing is shared with the engine's own proof but the rules for lanes: routes are followed by
//! the tables, and what waits for what is kept by pair of link and lane.

use rayon::prelude::*;

use super::super::Topology;
use super::super::torus::TorusLanes;
use super::cycle::{CreditLoops, Traffic, port};

/// The most data VLs of a link.
pub(super) const LANES: usize = 16;

/// Looks for cycles among routes between hosts at the lower QoS level. The upper one has the same
/// routes, on the same lanes or on others that wait for each other as these do. Takes time in
/// proportion to switches times LIDs, times the few SLs that go the same way.
pub(super) fn credit_loops(topology: &Topology, lfts: &[&[u8]], lanes: &TorusLanes) -> CreditLoops {
    waits(topology, lfts, lanes).find_loops(topology)
}

/// What waits for what at the lower QoS level.
pub(super) fn waits(topology: &Topology, lfts: &[&[u8]], lanes: &TorusLanes) -> Waits {
    let hosts = topology.hosts_on();
    let sources: Vec<u16> =
        topology.switches().filter(|&switch| hosts[usize::from(switch)] > 0).collect();
    let channels = topology.link_count() * LANES;
    let none = || Waits { next: vec![Vec::new(); channels], used: 0 };
    let portions = topology.destinations().par_chunks(64);
    let waits = portions.fold(none, |mut waits, destinations| {
        // By channel and SL: the last LID whose routes came by.
        let mut seen = vec![0u16; channels * LANES];
        for to in destinations.iter().filter(|to| to.is_host()) {
            for lid in to.lids() {
                for &source in &sources {
                    let sl = lanes.sl(source, to.home);
                    let (mut switch, mut came_by, mut before) = (source, 0, None);
                    while let Some(link) = topology.link_at(switch, port(lfts, switch, lid)) {
                        let far = topology.link(link);
                        let lane = lanes.vl(switch, came_by, far.port, sl);
                        let channel = link * LANES + usize::from(lane);
                        waits.add(before, channel, lane);
                        let state = channel * LANES + usize::from(sl);
                        if std::mem::replace(&mut seen[state], lid.0) == lid.0 {
                            break;
                        }
                        (switch, came_by, before) = (far.peer, far.peer_port, Some(channel));
                    }
                }
            }
        }
        waits
    });
    waits.reduce(none, Waits::join)
}

/// By channel, a link with a lane: the channels that its packets go on to.
pub(super) struct Waits {
    pub(super) next: Vec<Vec<u32>>,
    /// Lanes that are used, as bits.
    used: u16,
}

impl Waits {
    fn add(&mut self, before: Option<usize>, channel: usize, lane: u8) {
        self.used |= 1 << lane;
        if let Some(before) = before {
            let next = &mut self.next[before];
            let channel = channel as u32;
            // A link leads to few others, so that looking through them is quick.
            if !next.contains(&channel) {
                next.push(channel);
            }
        }
    }

    fn join(mut self, other: Self) -> Self {
        for (mine, theirs) in self.next.iter_mut().zip(other.next) {
            mine.extend(theirs);
            mine.sort_unstable();
            mine.dedup();
        }
        self.used |= other.used;
        self
    }

    /// Takes channels away on which nothing waits until none is left (Kahn's algorithm).
    pub(super) fn find_loops(&self, topology: &Topology) -> CreditLoops {
        let mut waiting = vec![0u32; self.next.len()];
        self.next.iter().flatten().for_each(|&next| waiting[next as usize] += 1);
        let dependencies = self.next.iter().map(|next| next.len() as u64).sum();
        let mut ready: Vec<usize> = (0..waiting.len()).filter(|&c| waiting[c] == 0).collect();
        let mut looping = waiting.len();
        while let Some(channel) = ready.pop() {
            looping -= 1;
            for &next in &self.next[channel] {
                waiting[next as usize] -= 1;
                if waiting[next as usize] == 0 {
                    ready.push(next as usize);
                }
            }
        }
        let cycle = self.cycle(&waiting);
        let hop = |&channel: &usize| {
            let far = topology.link(channel / LANES);
            let back = topology.link_at(far.peer, far.peer_port);
            back.map(|back| (topology.link(back).peer, far.port))
        };
        CreditLoops {
            traffic: Traffic::Hosts,
            links: topology.link_count(),
            dependencies,
            looping,
            lane: cycle.first().map(|channel| (channel % LANES) as u8),
            lanes: self.used.count_ones() as u8,
            example: cycle.iter().filter_map(hop).collect(),
        }
    }

    /// A cycle among channels that something still waits on: each of them is waited on by another
    /// of them, so that going back from one comes round.
    fn cycle(&self, waiting: &[u32]) -> Vec<usize> {
        let mut before = vec![usize::MAX; waiting.len()];
        let left = || (0..waiting.len()).filter(|&channel| waiting[channel] > 0);
        for channel in left() {
            self.next[channel].iter().for_each(|&next| before[next as usize] = channel);
        }
        let Some(mut channel) = left().next() else { return Vec::new() };
        let mut place = vec![usize::MAX; waiting.len()];
        let mut path = Vec::new();
        while channel != usize::MAX && place[channel] == usize::MAX {
            place[channel] = path.len();
            path.push(channel);
            channel = before[channel];
        }
        let start = if channel == usize::MAX { 0 } else { place[channel] };
        path[start..].iter().rev().copied().collect()
    }
}
