//! Multicast: a spanning tree for each MLID, over the switches that its members need.
//!
//! The root is the switch with the fewest hops to all members, as OpenSM has it; among equals the
//! MLID chooses, so that groups spread over the spines of a fat tree. From each member's switch the
//! tree climbs towards the root, at each switch by the same link for all members, chosen by switch
//! and MLID among those one hop nearer. So a member that joins adds a branch and moves nobody,
//! as long as the root stays; and it stays as long as it is no more than [`SLACK`] hops a member
//! worse than the best.
//!
//! Cost: per group, switches × distinct switches of members for the root, which groups with members
//! on the same switches share, and members × hops for the tree.

mod check;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};

use super::hops::HopMatrix;
use super::topology::Topology;

pub use check::{Defect, check};

/// What a root may be worse than the best, in hops a member, before another takes its place.
const SLACK: u64 = 1;

/// Who is a member of what: port GUIDs by MLID, each list ascending.
pub type Membership = BTreeMap<Lid, Arc<[Guid]>>;

/// Ports of a switch, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMask([u64; 4]);

impl PortMask {
    /// Adds a port.
    pub fn insert(&mut self, port: u8) {
        self.0[usize::from(port) / 64] |= 1 << (port % 64);
    }

    /// Whether a port is in the mask.
    pub fn contains(&self, port: u8) -> bool {
        self.0[usize::from(port) / 64] >> (port % 64) & 1 == 1
    }

    /// The ports, ascending.
    pub fn ports(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|&port| self.contains(port))
    }

    /// Ports 16 × `position` to 16 × `position` + 15, as a forwarding table has them.
    pub fn position(&self, position: u8) -> u16 {
        let bit = usize::from(position) * 16;
        (self.0[bit / 64] >> (bit % 64)) as u16
    }
}

/// A member's place: its switch, and the port of that switch that leads to it, 0 for the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The switch's number.
    pub switch: u16,
    /// Its port.
    pub exit: u8,
}

/// The tree of an MLID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The switch that branches meet at; `None` without members.
    pub root: Option<u16>,
    /// Ports by which each switch of the tree forwards, ascending by switch.
    pub masks: Vec<(u16, PortMask)>,
    /// Members that no path joins to the root, ascending.
    pub unreached: Vec<Place>,
}

/// Trees over one topology.
#[derive(Debug)]
pub struct Planter<'a> {
    topology: &'a Topology,
    hops: &'a HopMatrix,
    /// Sums of hops to all members by switch, for sets of members' switches met so far.
    sums: HashMap<Vec<(u16, u32)>, Arc<[u64]>>,
}

impl<'a> Planter<'a> {
    /// Plants trees over `topology`, of which `hops` is the matrix.
    pub fn new(topology: &'a Topology, hops: &'a HopMatrix) -> Self {
        Self { topology, hops, sums: HashMap::new() }
    }

    /// The tree of `mlid` that joins `members`; `root_before` stays the root if it is good enough.
    pub fn tree(&mut self, mlid: Lid, members: &[Place], root_before: Option<u16>) -> Tree {
        let members = unique(members);
        let Some(root) = self.root(mlid, &members, root_before) else { return Tree::default() };
        let mut masks: BTreeMap<u16, PortMask> = BTreeMap::new();
        let mut unreached = Vec::new();
        for place in members {
            if self.hops.row(root)[usize::from(place.switch)] == HopMatrix::UNREACHABLE {
                unreached.push(place);
                continue;
            }
            let known = masks.contains_key(&place.switch);
            masks.entry(place.switch).or_default().insert(place.exit);
            if !known {
                self.climb(mlid, root, place.switch, &mut masks);
            }
        }
        Tree { root: Some(root), masks: masks.into_iter().collect(), unreached }
    }

    /// Joins `switch` to the tree: to the root, or to the first switch on the way that is in it.
    fn climb(&self, mlid: Lid, root: u16, switch: u16, masks: &mut BTreeMap<u16, PortMask>) {
        let distance = self.hops.row(root);
        let mut at = switch;
        while at != root {
            let nearer = |peer: u16| {
                distance[usize::from(peer)] != HopMatrix::UNREACHABLE
                    && distance[usize::from(peer)] < distance[usize::from(at)]
            };
            let links = self.topology.links(at);
            let count = links.iter().filter(|link| nearer(link.peer)).count();
            // Switches that a path joins to the root have a neighbour one hop nearer.
            let Some(choice) = spread(mlid, at).checked_rem(count as u64) else { return };
            let link = links.iter().filter(|link| nearer(link.peer)).nth(choice as usize);
            let Some(link) = link else { return };
            let known = masks.contains_key(&link.peer);
            masks.entry(at).or_default().insert(link.port);
            masks.entry(link.peer).or_default().insert(link.peer_port);
            if known {
                return;
            }
            at = link.peer;
        }
    }

    fn root(&mut self, mlid: Lid, members: &[Place], before: Option<u16>) -> Option<u16> {
        let sums = self.sums(members)?;
        let best = sums.iter().copied().min()?;
        let slack = SLACK * members.len() as u64;
        let kept = before.filter(|&root| {
            sums.get(usize::from(root)).is_some_and(|&sum| sum <= best.saturating_add(slack))
        });
        kept.or_else(|| {
            let equals = || (0u16..).zip(sums.iter()).filter(|&(_, &sum)| sum == best);
            let choice = spread(mlid, 0) % equals().count() as u64;
            equals().nth(choice as usize).map(|(switch, _)| switch)
        })
    }

    /// Hops to all members, by switch. One that cannot be reached counts as very far, so that of a
    /// fabric in parts the part with most members has the root.
    fn sums(&mut self, members: &[Place]) -> Option<Arc<[u64]>> {
        const FAR: u64 = 1 << 20;
        let mut homes: BTreeMap<u16, u32> = BTreeMap::new();
        for place in members {
            *homes.entry(place.switch).or_default() += 1;
        }
        if homes.is_empty() {
            return None;
        }
        let key: Vec<(u16, u32)> = homes.into_iter().collect();
        if let Some(sums) = self.sums.get(&key) {
            return Some(sums.clone());
        }
        let mut sums = vec![0u64; self.topology.switch_count()];
        for &(home, weight) in &key {
            for (sum, &hops) in sums.iter_mut().zip(self.hops.row(home)) {
                let hops = if hops == HopMatrix::UNREACHABLE { FAR } else { hops.into() };
                *sum += hops * u64::from(weight);
            }
        }
        let sums: Arc<[u64]> = sums.into();
        self.sums.insert(key, sums.clone());
        Some(sums)
    }
}

fn unique(members: &[Place]) -> Vec<Place> {
    let mut members = members.to_vec();
    members.sort_unstable();
    members.dedup();
    members
}

/// A number that differs for every MLID and switch, and is the same everywhere.
fn spread(mlid: Lid, switch: u16) -> u64 {
    let mixed = (u64::from(mlid.0) << 16 | u64::from(switch)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32
}

#[cfg(test)]
mod tests;
