//! Represents dependencies between channels, of unicast and multicast together.
//!
//! A channel is one direction of a link on one virtual lane. The dependencies of unicast tables are
//! stored in a form to which those of multicast trees can be added. The module checks whether an
//! order of channels rises along each dependency, which proves in one pass that there is no cycle,
//! and finds the channels that lie on cycles.

use std::collections::HashMap;

use super::super::lanes::LEVEL_LANES as LANES;
use super::super::{Lanes, PortMask, Topology};
use super::cycle::{self, Dependencies};
use super::hop_lanes::{self, Torus, Waits};
use super::loops::CreditLoops;
use super::onward::Ports;
use super::turns::Hops;

/// Lanes per QoS level. The lanes of the other levels have the same routes.
const LEVEL_LANES: usize = LANES as usize;

/// Dependencies among the channels of one lane, or of several lanes between which packets change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Lanes per link. A channel's number is its link's number times this, plus its lane.
    lanes: usize,
    /// By channel and lane of the next channel: ports by which packets continue from the link's far
    /// end.
    after: Vec<Ports>,
}

/// The dependencies of unicast traffic.
#[derive(Clone, Debug)]
pub struct Unicast {
    /// The result of [`credit_loops_on_lanes`](super::credit_loops_on_lanes).
    pub loops: CreditLoops,
    /// By layer; a single element if the routing has no layers.
    pub layers: Vec<Channels>,
}

impl Unicast {
    /// Computes the dependencies of `lfts`, which is by switch: of all traffic if that has no
    /// cycles; otherwise, or where routes keep to lanes, of traffic between hosts.
    pub fn find(topology: &Topology, lfts: &[&[u8]], lanes: &Lanes) -> Self {
        let of_one_lane = |dependencies: Dependencies| Channels::of_links(dependencies.next);
        match lanes {
            Lanes::Free => {
                let (dependencies, loops) = cycle::dependencies(topology, lfts);
                Self { loops, layers: vec![of_one_lane(dependencies)] }
            }
            Lanes::Layers(layers) => {
                let by_layer = Dependencies::of_layers(topology, lfts, layers, None);
                let loops = cycle::loops_by_lane(topology, &by_layer);
                Self { loops, layers: by_layer.into_iter().map(of_one_lane).collect() }
            }
            Lanes::Torus(torus) => {
                Self::of_waits(topology, &hop_lanes::waits(topology, lfts, &Torus::new(torus)))
            }
            Lanes::Dragonfly(lanes) => {
                Self::of_waits(topology, &hop_lanes::waits(topology, lfts, &**lanes))
            }
        }
    }

    /// Takes the dependencies of the first QoS level.
    fn of_waits(topology: &Topology, waits: &Waits) -> Self {
        let mut channels = Channels::none(topology, LEVEL_LANES);
        for channel in 0..waits.count() {
            let (link, lane) = (channel / hop_lanes::LANES, channel % hop_lanes::LANES);
            for next in waits.after(channel) {
                let (on, lane_on) = (next / hop_lanes::LANES, next % hop_lanes::LANES);
                let lanes = (lane % LEVEL_LANES, lane_on % LEVEL_LANES);
                let port = Channels::sender(topology, on).1;
                channels.insert(link * LEVEL_LANES + lanes.0, port, lanes.1);
            }
        }
        Self { loops: waits.find_loops(topology), layers: vec![channels] }
    }
}

impl Channels {
    /// Creates a graph without dependencies.
    pub fn none(topology: &Topology, lanes: usize) -> Self {
        Self { lanes, after: vec![Ports::default(); topology.link_count() * lanes * lanes] }
    }

    fn of_links(after: Vec<Ports>) -> Self {
        Self { lanes: 1, after }
    }

    /// The dependencies of fabrics that follow one another without a link between them: those of
    /// one lane per link.
    pub fn joined<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        Self::of_links(all.flat_map(|channels| channels.after.iter().copied()).collect())
    }

    /// Number of lanes per link.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Number of channels.
    pub fn count(&self) -> usize {
        self.after.len() / self.lanes
    }

    /// Adds the dependencies of another part of the traffic.
    pub fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.after.iter_mut().zip(&other.after) {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine |= theirs);
        }
    }

    /// Adds a dependency: packets of a channel continue by a port of its far end, on a lane.
    pub fn insert(&mut self, channel: usize, port: u8, lane: usize) {
        self.after[channel * self.lanes + lane][usize::from(port / 64)] |= 1 << (port % 64);
    }

    /// Removes a port: packets of a channel of one lane no longer continue by it.
    pub fn remove(&mut self, channel: usize, port: u8) {
        self.after[channel * self.lanes][usize::from(port / 64)] &= !(1 << (port % 64));
    }

    /// Adds the dependencies of a multicast tree; `hops` has the lanes of its packets.
    pub fn join_tree(&mut self, topology: &Topology, masks: &[(u16, PortMask)], hops: &Hops) {
        hops.turns(topology, masks, |turn| {
            let (_, port) = Self::sender(topology, turn.to / self.lanes);
            self.insert(turn.from, port, turn.to % self.lanes);
            true
        });
    }

    /// The channels on which packets of a channel continue.
    pub fn after<'a>(
        &'a self,
        topology: &'a Topology,
        channel: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let far = topology.link(channel / self.lanes).peer;
        let rows = &self.after[channel * self.lanes..][..self.lanes];
        rows.iter().enumerate().flat_map(move |(lane, ports)| {
            let ports = PortMask::of_words(*ports).ports();
            let links = ports.filter_map(move |port| topology.link_at(far, port));
            links.map(move |link| link * self.lanes + lane)
        })
    }

    /// The switch that sends over a link, and its port.
    pub fn sender(topology: &Topology, link: usize) -> (u16, u8) {
        let far = topology.link(link);
        let back = topology.link_at(far.peer, far.peer_port).map(|back| topology.link(back));
        (back.map_or(u16::MAX, |back| back.peer), far.port)
    }

    /// Whether `order`, a number by channel, never falls from a channel to one on which its packets
    /// continue, and is equal only for channels that all lie on cycles with each other. Then
    /// further dependencies along which the order rises bring no other channel into a cycle.
    pub fn is_order(&self, topology: &Topology, order: &[u32]) -> bool {
        let never_falls = (0..self.count())
            .all(|channel| self.after(topology, channel).all(|next| order[channel] <= order[next]));
        let mut by_number: Vec<usize> = (0..self.count()).collect();
        by_number.sort_by_key(|&channel| order[channel]);
        let mut equals = by_number.chunk_by(|&a, &b| order[a] == order[b]);
        never_falls && equals.all(|equals| equals.len() == 1 || self.is_knot(topology, equals))
    }

    /// Whether each of some channels leads to each other one through these channels alone.
    fn is_knot(&self, topology: &Topology, channels: &[usize]) -> bool {
        let mut of_knot: HashMap<usize, usize> = HashMap::new();
        for (&channel, number) in channels.iter().zip(0..) {
            of_knot.insert(channel, number);
        }
        let mut ways = [vec![Vec::new(); channels.len()], vec![Vec::new(); channels.len()]];
        for (&channel, &from) in &of_knot {
            for to in self.after(topology, channel).filter_map(|next| of_knot.get(&next)) {
                ways[0][from].push(*to);
                ways[1][*to].push(from);
            }
        }
        ways.iter().all(|next| {
            let (mut seen, mut stack) = (vec![false; channels.len()], vec![0]);
            while let Some(at) = stack.pop() {
                if !std::mem::replace(&mut seen[at], true) {
                    stack.extend(&next[at]);
                }
            }
            seen.iter().all(|&seen| seen)
        })
    }

    /// By channel: whether it lies on a cycle, or behind one. Channels without predecessors are
    /// removed until none is left (Kahn's algorithm).
    pub fn looping(&self, topology: &Topology) -> Vec<bool> {
        let mut waiting = vec![0u32; self.count()];
        for channel in 0..self.count() {
            self.after(topology, channel).for_each(|next| waiting[next] += 1);
        }
        let mut ready: Vec<usize> = (0..waiting.len()).filter(|&c| waiting[c] == 0).collect();
        while let Some(channel) = ready.pop() {
            for next in self.after(topology, channel) {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    ready.push(next);
                }
            }
        }
        waiting.into_iter().map(|waiting| waiting > 0).collect()
    }
}
