//! Searches for credit loops where a packet's lane changes from hop to hop, as on a torus or in a
//! dragonfly.
//!
//! Only the lane rules, which are those of the SL-to-VL tables, are shared with the engines: here
//! routes are followed by the forwarding tables, and dependencies are stored per pair of link and
//! lane.

use rayon::prelude::*;

use super::super::lanes::HopLanes;
use super::super::lanes::dragonfly::DragonflyLanes;
use super::super::lanes::torus::{AXES, TorusLanes};
use super::super::{Link, Topology};
use super::columns::{self, Column, sources};
use super::loops::{CreditLoops, Traffic};

/// Largest number of data VLs of a link.
pub(super) const LANES: usize = 16;
/// Number of SLs.
const SLS: usize = 16;

/// The SL-to-VL tables of a fabric, by classes of ports.
pub(super) trait Rule: Sync {
    /// The class of ports to hosts and of port 0, if such ports have one.
    const HOST: u8;

    /// The class of a port.
    fn class(&self, switch: u16, port: u8) -> u8;

    /// The VL on which a packet of an SL leaves a switch, by the classes of both ports.
    fn vl(&self, switch: u16, before: u8, after: u8, sl: usize) -> u8;

    /// The SLs of paths from all switches, by source.
    fn sls_to(&self, egress_switch: u16, sls: &mut Vec<u8>);
}

/// The SL's lanes by the axis before, if any, and the axis after.
type LanesBetween = [[u8; AXES + 1]; AXES + 1];

/// The tables of a torus. The class of a port is its axis.
pub(super) struct Torus<'a> {
    lanes: &'a TorusLanes,
    /// By SL.
    between: Vec<LanesBetween>,
}

impl<'a> Torus<'a> {
    pub(super) fn new(lanes: &'a TorusLanes) -> Self {
        let axis = |number: usize| (number != AXES).then_some(number);
        let between = |sl: usize| -> LanesBetween {
            std::array::from_fn(|before| {
                let vl = |after| lanes.vl_by_axes(axis(before), axis(after), sl as u8);
                std::array::from_fn(|after| vl(after) % LANES as u8)
            })
        };
        Self { lanes, between: (0..SLS).map(between).collect() }
    }
}

impl Rule for Torus<'_> {
    const HOST: u8 = AXES as u8;

    fn class(&self, switch: u16, port: u8) -> u8 {
        self.lanes.axis(switch, port).unwrap_or(AXES) as u8
    }

    #[inline]
    fn vl(&self, _switch: u16, before: u8, after: u8, sl: usize) -> u8 {
        self.between[sl][usize::from(before)][usize::from(after)]
    }

    fn sls_to(&self, egress_switch: u16, sls: &mut Vec<u8>) {
        self.lanes.sls_to(egress_switch, sls);
    }
}

/// Each port is a class of its own. All levels have the routes of SL 0.
impl Rule for DragonflyLanes {
    const HOST: u8 = 0;

    fn class(&self, _switch: u16, port: u8) -> u8 {
        port
    }

    #[inline]
    fn vl(&self, switch: u16, before: u8, after: u8, sl: usize) -> u8 {
        HopLanes::vl(self, switch, before, after, sl as u8) % LANES as u8
    }

    fn sls_to(&self, _egress_switch: u16, sls: &mut Vec<u8>) {
        sls.fill(0);
    }
}

/// Searches for cycles among routes between hosts at the lowest QoS level. Other levels have the
/// same routes, on the same lanes or on others with the same dependencies. Takes time proportional
/// to switches times LIDs that are not sent like others of their egress switch, times the few SLs
/// that use the same paths, plus the entries of all tables.
pub(super) fn credit_loops(topology: &Topology, lfts: &[&[u8]], rule: &impl Rule) -> CreditLoops {
    waits(topology, lfts, rule).find_loops(topology)
}

/// Computes the dependencies at the lowest QoS level.
pub(super) fn waits<R: Rule>(topology: &Topology, lfts: &[&[u8]], rule: &R) -> Waits {
    let targets = columns::targets(topology, lfts, None);
    let hops = hops(topology, rule);
    let walk = || Walk::new(topology, rule, &hops);
    let portions = targets.par_chunks(columns::PORTION);
    let walks = portions.fold(walk, |mut walk, targets| {
        columns::each(topology, lfts, targets, |column| walk.follow_all(&column));
        walk
    });
    walks.map(|walk| walk.waits).reduce(|| Waits::none(topology), Waits::join)
}

/// The properties of a link that matter when routes are followed.
struct Hop {
    /// The switch at its far end.
    peer: u16,
    /// The class of the sender's port, and of the receiver's.
    classes: (u8, u8),
    onward: Onward,
}

/// Returns the properties of all links.
fn hops(topology: &Topology, rule: &impl Rule) -> Vec<Hop> {
    let waits = Waits::none(topology);
    let hops = topology.switches().flat_map(|switch| {
        let links = topology.links(switch).iter().zip(topology.link_range(switch));
        links.map(move |(link, number)| (switch, link, number))
    });
    let hop = |(switch, link, number): (u16, &Link, usize)| Hop {
        peer: link.peer,
        classes: (rule.class(switch, link.port), rule.class(link.peer, link.peer_port)),
        onward: waits.onward[number],
    };
    hops.map(hop).collect()
}

/// Follows routes and records dependencies.
struct Walk<'a, R> {
    rule: &'a R,
    /// By link.
    hops: &'a [Hop],
    /// Switches with hosts.
    sources: Vec<u16>,
    /// Switches with hosts by SL to the current egress switch; empty between egress switches.
    by_sl: [Vec<u16>; SLS],
    /// By switch: the SL to the current egress switch.
    sls: Vec<u8>,
    /// By switch: the last column and SL that passed, and on which lanes they continued.
    seen: Vec<(u32, u16)>,
    /// Number of the current column and SL.
    number: u32,
    waits: Waits,
}

impl<'a, R: Rule> Walk<'a, R> {
    fn new(topology: &'a Topology, rule: &'a R, hops: &'a [Hop]) -> Self {
        Self {
            rule,
            hops,
            sources: sources(topology),
            by_sl: Default::default(),
            sls: vec![0; topology.switch_count()],
            seen: vec![(0, 0); topology.switch_count()],
            number: 0,
            waits: Waits::none(topology),
        }
    }

    /// Follows the routes of all hosts to a LID. Of those with the same SL, each is followed up to
    /// where another has passed on the same lane.
    fn follow_all(&mut self, column: &Column<'_>) {
        self.rule.sls_to(column.to.egress_switch, &mut self.sls);
        let mut by_sl = std::mem::take(&mut self.by_sl);
        for &source in &self.sources {
            by_sl[usize::from(self.sls[usize::from(source)]) % SLS].push(source);
        }
        for (sources, sl) in by_sl.iter_mut().zip(0..).filter(|(sources, _)| !sources.is_empty()) {
            self.number += 1;
            sources.drain(..).for_each(|source| self.follow(column, source, sl));
        }
        self.by_sl = by_sl;
    }

    fn follow(&mut self, column: &Column<'_>, source: u16, sl: usize) {
        let (mut switch, mut before, mut held) = (source, R::HOST, None);
        while let Some(link) = column.link(switch) {
            let hop = &self.hops[link];
            let lane = self.rule.vl(switch, before, hop.classes.0, sl);
            self.waits.used |= 1 << lane;
            if let Some((onward, held)) = held {
                self.waits.add(onward, held, link, lane);
            }
            let (last, lanes) = &mut self.seen[usize::from(switch)];
            if std::mem::replace(last, self.number) != self.number {
                *lanes = 0;
            }
            let passed = std::mem::replace(lanes, *lanes | 1 << lane);
            if passed >> lane & 1 == 1 {
                return;
            }
            held = Some((hop.onward, lane));
            (switch, before) = (hop.peer, hop.classes.1);
        }
    }
}

/// Dependencies of channels, that is, of pairs of a link and a lane.
pub(super) struct Waits {
    /// By lane and word: one bit for each link of the far end and each lane.
    next: Vec<u64>,
    /// By link.
    onward: Vec<Onward>,
    /// Lanes in use, as bits.
    used: u16,
}

/// Locates the bits of the channels that packets of a link wait for.
#[derive(Clone, Copy)]
struct Onward {
    /// Number of the first link that leaves its far end; the first [`LANES`] bits are for this.
    first: u32,
    /// Index and number of the words of these bits.
    begin: u32,
    words: u32,
}

impl Waits {
    fn none(topology: &Topology) -> Self {
        let mut begin = 0;
        let onward = (0..topology.link_count()).map(|link| {
            let next = topology.link_range(topology.link(link).peer);
            let words = (next.len() * LANES).div_ceil(64) as u32;
            begin += words;
            Onward { first: next.start as u32, begin: begin - words, words }
        });
        let onward = onward.collect();
        Self { next: vec![0; begin as usize * LANES], onward, used: 0 }
    }

    /// Adds a dependency from a link and lane to a link of its far end and a lane.
    #[inline]
    fn add(&mut self, from: Onward, lane: u8, link: usize, next_lane: u8) {
        let bit = (link as u32 - from.first) * LANES as u32 + u32::from(next_lane);
        let words = self.next.len() / LANES;
        let word = usize::from(lane) * words + (from.begin + bit / 64) as usize;
        self.next[word] |= 1 << (bit % 64);
    }

    /// Number of channels.
    pub(super) fn count(&self) -> usize {
        self.onward.len() * LANES
    }

    /// The channels that a channel waits for. A channel is a link's number times [`LANES`] plus a
    /// lane.
    pub(super) fn after(&self, channel: usize) -> impl Iterator<Item = usize> {
        let Onward { first, begin, words } = self.onward[channel / LANES];
        let begin = channel % LANES * (self.next.len() / LANES) + begin as usize;
        let first = first as usize * LANES;
        let words = self.next[begin..][..words as usize].iter().zip((first..).step_by(64));
        words.flat_map(|(&word, first)| {
            let mut word = word;
            std::iter::from_fn(move || {
                let next = (word != 0).then(|| first + word.trailing_zeros() as usize);
                word &= word.wrapping_sub(1);
                next
            })
        })
    }

    fn join(mut self, other: Self) -> Self {
        self.next.iter_mut().zip(other.next).for_each(|(mine, theirs)| *mine |= theirs);
        self.used |= other.used;
        self
    }

    /// Removes channels without predecessors until none is left (Kahn's algorithm).
    pub(super) fn find_loops(&self, topology: &Topology) -> CreditLoops {
        let mut waiting = vec![0u32; self.count()];
        let mut dependencies = 0;
        for channel in 0..self.count() {
            for next in self.after(channel) {
                waiting[next] += 1;
                dependencies += 1;
            }
        }
        let mut ready: Vec<usize> = (0..waiting.len()).filter(|&c| waiting[c] == 0).collect();
        let mut looping = waiting.len();
        while let Some(channel) = ready.pop() {
            looping -= 1;
            for next in self.after(channel) {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    ready.push(next);
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

    /// Finds a cycle among channels that still have predecessors. As each has a predecessor among
    /// them, going back from one leads into a cycle.
    fn cycle(&self, waiting: &[u32]) -> Vec<usize> {
        let left = || (0..waiting.len()).filter(|&channel| waiting[channel] > 0);
        let Some(mut channel) = left().next() else { return Vec::new() };
        let mut before = vec![usize::MAX; waiting.len()];
        for channel in left() {
            self.after(channel).for_each(|next| before[next] = channel);
        }
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
