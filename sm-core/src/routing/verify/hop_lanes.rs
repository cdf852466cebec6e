//! Credit loops where a packet's lane changes from hop to hop, as on a torus.
//!
//! Nothing is shared with the engine's own proof but the rules for lanes: routes are followed by
//! the tables, and what waits for what is kept by pair of link and lane.

use rayon::prelude::*;

use super::super::torus::{AXES, TorusLanes};
use super::super::{Link, Topology};
use super::columns::{self, Column};
use super::cycle::{CreditLoops, Traffic, sources};

/// The most data VLs of a link.
pub(super) const LANES: usize = 16;
/// SLs that there are.
const SLS: usize = 16;

/// Looks for cycles among routes between hosts at the lower QoS level. The upper one has the same
/// routes, on the same lanes or on others that wait for each other as these do. Takes time in
/// proportion to switches times LIDs that are not sent like others of their home, times the few SLs
/// that go the same way, and to the entries of all tables.
pub(super) fn credit_loops(topology: &Topology, lfts: &[&[u8]], lanes: &TorusLanes) -> CreditLoops {
    waits(topology, lfts, lanes).find_loops(topology)
}

/// What waits for what at the lower QoS level.
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

/// What a link is to those who follow routes.
struct Hop {
    /// The switch at its far end.
    peer: u16,
    /// The axis along which it leads by the sender's port, and by the receiver's.
    axes: (u8, u8),
    onward: Onward,
}

/// Stands for no axis.
const NO_AXIS: usize = AXES;

/// By link.
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

/// The SL's lanes by the axis before, if any, and the one after.
type LanesBetween = [[u8; AXES + 1]; AXES + 1];

/// Follows routes and notes what waits for what.
struct Walk<'a> {
    lanes: &'a TorusLanes,
    /// By link.
    hops: &'a [Hop],
    /// By SL.
    between: Vec<LanesBetween>,
    /// Switches with hosts.
    sources: Vec<u16>,
    /// The same by SL to the home at hand; empty between homes.
    by_sl: [Vec<u16>; SLS],
    /// By switch: the SL to the home at hand.
    sls: Vec<u8>,
    /// By switch: the last column and SL that came by, and on which lanes it went on.
    seen: Vec<(u32, u16)>,
    /// Number of the column and SL at hand.
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

    /// Follows the routes of all hosts to a LID, those with the same SL up to where another of them
    /// has come by the same lane.
    fn follow_all(&mut self, column: &Column<'_>) {
        self.lanes.sls_to(column.to.home, &mut self.sls);
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

/// Which channels, a link with a lane each, wait for which.
pub(super) struct Waits {
    /// By lane, and the words of all links: a bit for each of the far end's links and lanes.
    next: Vec<u64>,
    /// By link.
    onward: Vec<Onward>,
    /// Lanes that are used, as bits.
    used: u16,
}

/// The bits for what packets of a link wait for.
#[derive(Clone, Copy)]
struct Onward {
    /// The number of the first link of its far end, which has the first [`LANES`] bits.
    first: u32,
    /// Where the words of these bits begin, and how many there are.
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

    /// Packets of a link and lane go on to a link of its far end on a lane.
    #[inline]
    fn add(&mut self, from: Onward, lane: u8, link: usize, next_lane: u8) {
        let bit = (link as u32 - from.first) * LANES as u32 + u32::from(next_lane);
        let words = self.next.len() / LANES;
        let word = usize::from(lane) * words + (from.begin + bit / 64) as usize;
        self.next[word] |= 1 << (bit % 64);
    }

    /// How many channels there are.
    pub(super) fn count(&self) -> usize {
        self.onward.len() * LANES
    }

    /// The channels that a channel, the number of a link times [`LANES`] plus a lane, waits for.
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

    /// Takes channels away on which nothing waits until none is left (Kahn's algorithm).
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

    /// A cycle among channels that something still waits on: each of them is waited on by another
    /// of them, so that going back from one comes round.
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
