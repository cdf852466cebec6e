//! Determines which of two switches is the upper one.
//!
//! All switches are placed in one order from top to bottom, so that going up never returns to the
//! same switch; that alone keeps up*/down* routes free of credit loops. Ranks, which count hops
//! from the top, decide first. OpenSM leaves links between roots without direction, which defeats
//! the proof. Here, linked switches of equal rank are ordered by hops from the first of them: each
//! except that one then has another above it, so that all of them reach each other.

use std::collections::VecDeque;

use crate::regions::Regions;
use crate::{CommonOptions, Topology};

/// All switches from top to bottom.
pub(crate) struct Order {
    /// Switches, topmost first.
    pub(crate) switches: Vec<u16>,
    /// By switch: its index in `switches`.
    pub(crate) places: Vec<u16>,
    /// By switch: hops from the top.
    pub(crate) ranks: Vec<u16>,
    /// By switch: a number that is equal for all switches of a connected part of the fabric.
    pub(crate) parts: Vec<u16>,
}

/// Marks a switch without a rank.
const UNRANKED: u16 = u16::MAX;

impl Order {
    /// Ranks switches by hops below `roots`. In parts of the fabric without a root, the first
    /// switch serves as one.
    pub(crate) fn below(topology: &Topology, common: &CommonOptions, roots: &[u16]) -> Self {
        let ids = Ids::new(topology, common);
        let (ranks, parts) = spread(topology, &ids, roots);
        let depths = depths(topology, &ids, &ranks, |rank| rank == 0);
        Self::sorted(&ids, ranks, parts, &depths)
    }

    /// Ranks switches by hops from `leaves`: the farther from all of them, the higher.
    pub(crate) fn above(topology: &Topology, common: &CommonOptions, leaves: &[u16]) -> Self {
        let ids = Ids::new(topology, common);
        let (mut ranks, parts) = spread(topology, &ids, leaves);
        let highest = ranks.iter().copied().max().unwrap_or(0);
        ranks.iter_mut().for_each(|rank| *rank = highest - *rank);
        let depths = depths(topology, &ids, &ranks, |_| true);
        Self::sorted(&ids, ranks, parts, &depths)
    }

    /// Whether `a` is above `b`.
    #[inline]
    pub(crate) fn is_above(&self, a: u16, b: u16) -> bool {
        self.places[usize::from(a)] < self.places[usize::from(b)]
    }

    fn sorted(ids: &Ids, ranks: Vec<u16>, parts: Vec<u16>, depths: &[u16]) -> Self {
        let mut switches: Vec<u16> = (0..ranks.len() as u16).collect();
        let key = |&switch: &u16| {
            let index = usize::from(switch);
            (ranks[index], depths[index], ids.of(switch), switch)
        };
        switches.sort_unstable_by_key(key);
        let mut places = vec![0; switches.len()];
        for (&switch, place) in switches.iter().zip(0..) {
            places[usize::from(switch)] = place;
        }
        Self { switches, places, ranks, parts }
    }
}

/// A sort key of switches that does not depend on the order of discovery.
struct Ids<'a> {
    ids: &'a [u64],
    /// Switches in the order of their keys.
    sorted: Vec<u16>,
}

impl<'a> Ids<'a> {
    fn new(topology: &Topology, common: &'a CommonOptions) -> Self {
        let mut ids = Self { ids: &common.switch_ids, sorted: topology.switches().collect() };
        let mut sorted = std::mem::take(&mut ids.sorted);
        sorted.sort_by_key(|&switch| ids.of(switch));
        Self { sorted, ..ids }
    }

    fn of(&self, switch: u16) -> u64 {
        self.ids.get(usize::from(switch)).copied().unwrap_or(u64::from(switch))
    }
}

/// By switch: hops from the nearest of `starts`, and its part of the fabric. In parts without any,
/// hops from the first switch.
fn spread(topology: &Topology, ids: &Ids<'_>, starts: &[u16]) -> (Vec<u16>, Vec<u16>) {
    let mut ranks = vec![UNRANKED; topology.switch_count()];
    let mut queue = VecDeque::new();
    for &start in starts {
        if ranks.get(usize::from(start)) == Some(&UNRANKED) {
            ranks[usize::from(start)] = 0;
            queue.push_back(start);
        }
    }
    let mut rest = ids.sorted.iter();
    loop {
        while let Some(switch) = queue.pop_front() {
            for link in topology.links(switch) {
                if ranks[usize::from(link.peer)] == UNRANKED {
                    ranks[usize::from(link.peer)] = ranks[usize::from(switch)] + 1;
                    queue.push_back(link.peer);
                }
            }
        }
        let Some(&next) = rest.find(|&&switch| ranks[usize::from(switch)] == UNRANKED) else {
            break;
        };
        ranks[usize::from(next)] = 0;
        queue.push_back(next);
    }
    let parts = Regions::find(topology, ids.sorted.iter().copied(), |_, _| true);
    (ranks, parts.starts)
}

/// By switch: hops from the first of the linked switches of the same rank, if `counts` is true for
/// the rank, else 0.
fn depths(
    topology: &Topology,
    ids: &Ids<'_>,
    ranks: &[u16],
    counts: impl Fn(u16) -> bool,
) -> Vec<u16> {
    let rank = |switch: u16| ranks[usize::from(switch)];
    let joins = |a, b| rank(a) == rank(b) && counts(rank(a));
    Regions::find(topology, ids.sorted.iter().copied(), joins).depths
}
