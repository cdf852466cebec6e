//! Searches for credit loops where a packet's lane changes from hop to hop, as on a torus.
//!
//! Only the lane rules are shared with the engine's own proof: here routes are followed by the
//! tables, and dependencies are stored per pair of link and lane.

use rayon::prelude::*;

use super::super::lanes::torus::{AXES, TorusLanes};
use super::super::{Link, Topology};
use super::columns::{self, Column, sources};
use super::loops::{CreditLoops, Traffic};

/// Largest number of data VLs of a link.
pub(super) const LANES: usize = 16;
/// Number of SLs.
const SLS: usize = 16;

/// Searches for cycles among routes between hosts at the lower QoS level. The upper level has the
/// same routes, on the same lanes or on others with the same dependencies. Takes time proportional
/// to switches times LIDs that are not sent like others of their egress switch, times the few SLs
/// that use the same paths, plus the entries of all tables.
pub(super) fn credit_loops(topology: &Topology, lfts: &[&[u8]], lanes: &TorusLanes) -> CreditLoops {
    waits(topology, lfts, lanes).find_loops(topology)
}

/// Computes the dependencies at the lower QoS level.
pub(super) fn waits(topology: &Topology, lfts: &[&[u8]], lanes: &TorusLanes) -> Waits {
    let targets = columns::targets(topology, lfts, None);
    let hops = hops(topology, lanes);
    let walk = || Walk::new(topology, lanes, &hops);
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
    /// The axis of the link by the sender's port, and by the receiver's.
    axes: (u8, u8),
    onward: Onward,
}

/// Represents no axis.
const NO_AXIS: usize = AXES;

/// Returns the properties of all links.
fn hops(topology: &Topology, lanes: &TorusLanes) -> Vec<Hop> {
    let axis = |switch, port| lanes.axis(switch, port).unwrap_or(NO_AXIS) as u8;
    let waits = Waits::none(topology);
    let hops = topology.switches().flat_map(|switch| {
        let links = topology.links(switch).iter().zip(topology.link_range(switch));
        links.map(move |(link, number)| (switch, link, number))
    });
    let hop = |(switch, link, number): (u16, &Link, usize)| Hop {
        peer: link.peer,
        axes: (axis(switch, link.port), axis(link.peer, link.peer_port)),
        onward: waits.onward[number],
    };
    hops.map(hop).collect()
}

/// The SL's lanes by the axis before, if any, and the axis after.
type LanesBetween = [[u8; AXES + 1]; AXES + 1];

/// Follows routes and records dependencies.
struct Walk<'a> {
    lanes: &'a TorusLanes,
    /// By link.
    hops: &'a [Hop],
    /// By SL.
    between: Vec<LanesBetween>,
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

impl<'a> Walk<'a> {
    fn new(topology: &'a Topology, lanes: &'a TorusLanes, hops: &'a [Hop]) -> Self {
        let axis = |number: usize| (number != NO_AXIS).then_some(number);
        let between = |sl: usize| -> LanesBetween {
            std::array::from_fn(|before| {
                let vl = |after| lanes.vl_by_axes(axis(before), axis(after), sl as u8);
                std::array::from_fn(|after| vl(after) % LANES as u8)
            })
        };
        Self {
            lanes,
            hops,
            between: (0..SLS).map(between).collect(),
            sources: sources(topology),
            by_sl: Default::default(),
            sls: Vec::new(),
            seen: vec![(0, 0); topology.switch_count()],
            number: 0,
            waits: Waits::none(topology),
        }
    }

    /// Follows the routes of all hosts to a LID. Of those with the same SL, each is followed up to
    /// where another has passed on the same lane.
    fn follow_all(&mut self, column: &Column<'_>) {
        self.lanes.sls_to(column.to.egress_switch, &mut self.sls);
        let mut by_sl = std::mem::take(&mut self.by_sl);
        for &source in &self.sources {
            by_sl[usize::from(self.sls[usize::from(source)]) % SLS].push(source);
        }
        for (sources, sl) in by_sl.iter_mut().zip(0..).filter(|(sources, _)| !sources.is_empty()) {
            self.number += 1;
            let between: LanesBetween = self.between[sl];
            sources.drain(..).for_each(|source| self.follow(column, source, &between));
        }
        self.by_sl = by_sl;
    }

    fn follow(&mut self, column: &Column<'_>, source: u16, between: &LanesBetween) {
        let (mut switch, mut came_along, mut held) = (source, NO_AXIS, None);
        while let Some(link) = column.link(switch) {
            let hop = &self.hops[link];
            let lane = between[came_along][usize::from(hop.axes.0)];
            self.waits.used |= 1 << lane;
            if let Some((onward, held)) = held {
                self.waits.add(onward, held, link, lane);
            }
            let (last, lanes) = &mut self.seen[usize::from(switch)];
            if std::mem::replace(last, self.number) != self.number {
                *lanes = 0;
            }
            let before = std::mem::replace(lanes, *lanes | 1 << lane);
            if before >> lane & 1 == 1 {
                return;
            }
            held = Some((hop.onward, lane));
            (switch, came_along) = (hop.peer, hop.axes.1.into());
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
