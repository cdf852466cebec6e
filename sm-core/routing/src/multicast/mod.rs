//! Multicast: a spanning tree for each MLID, over the switches that its members need.
//!
//! The root is the switch with the smallest sum of hops to all members, where OpenSM considers only
//! the farthest member; among equals the MLID decides, so that groups spread over the spines of a
//! fat tree. From each member's switch the tree climbs towards the root, at each switch by the same
//! link for all members, selected by switch and MLID among those one hop nearer. So a member that
//! joins adds a branch and moves no other member as long as the root stays, and the root stays as
//! long as it is at most [`SLACK`] hops per member worse than the best. After a failure the remains
//! of the previous tree are extended.
//!
//! A tree's packets wait for buffers like those of unicast, and together with them: a tree can
//! close a cycle of channels that each wait for the next. [`order`] decides which trees cannot; a
//! tree that might is replaced by another one ([`choice`]), built by [`grow`].
//!
//! A switch whose multicast table is too small for an MLID (SwitchInfo.MulticastFDBCap, or less if
//! it does not accept its table) is not part of its tree: trees avoid it, and members behind it are
//! not reached.
//!
//! Cost per group: switches × distinct switches of members for the root, shared by groups with
//! members on the same switches, and members × hops for the tree.

mod check;
mod choice;
mod grow;
mod order;
mod room;
mod stand;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};

use super::PortMask;
use super::hops::HopMatrix;
use super::lanes::MasterTree;
use super::topology::Topology;

pub use check::{Defect, check};
pub use choice::{Chooser, ChosenTree, Fault, Orders, Wanted};
pub use order::Order;
pub(crate) use order::turns_for_groups;
pub use room::{Room, hops_around};
pub use stand::Standing;

/// How much worse than the best root the current root may be, in hops per member, before it is
/// replaced.
const SLACK: u64 = 1;

/// Sum of hops of a switch that cannot be a root.
const BARRED: u64 = u64::MAX;

/// The members of an MLID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// Port GUIDs, ascending.
    pub ports: Arc<[Guid]>,
    /// SLs on which members send, one bit each: those of the groups that share the MLID.
    pub sls: u16,
}

impl Audience {
    /// Members of a group with this SL; `ports` must be ascending.
    pub fn new(ports: impl Into<Arc<[Guid]>>, sl: u8) -> Self {
        Self { ports: ports.into(), sls: 1 << (sl & 0xF) }
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
}

/// The members of each MLID.
pub type Membership = BTreeMap<Lid, Audience>;

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
    /// The switch where branches meet; `None` without members, or if no switch has room.
    pub root: Option<u16>,
    /// Ports by which each switch of the tree forwards, ascending by switch.
    pub masks: Vec<(u16, PortMask)>,
    /// Members that no path connects to the root, ascending.
    pub unreached: Vec<Place>,
}

impl Tree {
    /// The ports of a switch.
    pub fn mask(&self, switch: u16) -> Option<PortMask> {
        let at = self.masks.binary_search_by_key(&switch, |(switch, _)| *switch).ok()?;
        Some(self.masks[at].1)
    }

    /// Returns the tree of a group on a torus or dragonfly: the part of `master` that joins its
    /// members to the root.
    pub fn part_of(master: &MasterTree, members: &[Place]) -> Self {
        if members.is_empty() {
            return Self::default();
        }
        let mut masks: BTreeMap<u16, PortMask> = BTreeMap::new();
        for place in members {
            let mut at = place.switch;
            let mut known = masks.contains_key(&at);
            masks.entry(at).or_default().insert(place.exit);
            while let Some(link) = master.up(at).filter(|_| !known) {
                known = masks.contains_key(&link.peer);
                masks.entry(at).or_default().insert(link.port);
                masks.entry(link.peer).or_default().insert(link.peer_port);
                at = link.peer;
            }
        }
        Self {
            root: Some(master.root()),
            masks: masks.into_iter().collect(),
            unreached: Vec::new(),
        }
    }
}

/// Builds trees over one topology.
#[derive(Debug)]
pub struct TreeBuilder<'a> {
    topology: &'a Topology,
    hops: &'a HopMatrix,
    /// By switch: whether it is excluded from trees. Switches beyond the end are not.
    barred: Arc<[bool]>,
    /// By the switches of members, with their numbers of members: sums of hops to all members, by
    /// switch.
    sums: HashMap<Vec<(u16, u32)>, Arc<[u64]>>,
}

impl<'a> TreeBuilder<'a> {
    /// Builds trees over `topology`, whose hops are `hops`.
    pub fn new(topology: &'a Topology, hops: &'a HopMatrix) -> Self {
        Self::around(topology, hops, Arc::default())
    }

    /// Builds trees that avoid the `barred` switches, indexed by number; `hops` comes from
    /// [`hops_around`] with the same switches.
    pub fn around(topology: &'a Topology, hops: &'a HopMatrix, barred: Arc<[bool]>) -> Self {
        Self { topology, hops, barred, sums: HashMap::new() }
    }

    fn is_barred(&self, switch: u16) -> bool {
        self.barred.get(usize::from(switch)).is_some_and(|&barred| barred)
    }

    /// Returns the tree of `mlid` that joins `members` by the fewest hops. The root of `before`
    /// stays if it is good enough, and so do its branches as far as they lead to it.
    pub fn tree(&mut self, mlid: Lid, members: &[Place], before: Option<&Tree>) -> Tree {
        let members = unique(members);
        let root_before = before.and_then(|before| before.root);
        let Some(root) = self.root(mlid, &members, root_before) else {
            return Tree { unreached: members, ..Tree::default() };
        };
        let before = before.filter(|_| root_before == Some(root));
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
                self.climb(mlid, root, place.switch, before, &mut masks);
            }
        }
        Tree { root: Some(root), masks: masks.into_iter().collect(), unreached }
    }

    /// Joins `switch` to the tree: to the root, or to the first switch on the path that is in it.
    fn climb(
        &self,
        mlid: Lid,
        root: u16,
        switch: u16,
        before: Option<&Tree>,
        masks: &mut BTreeMap<u16, PortMask>,
    ) {
        let distance = self.hops.row(root);
        let mut at = switch;
        while at != root {
            let nearer = |peer: u16| {
                distance[usize::from(peer)] != HopMatrix::UNREACHABLE
                    && distance[usize::from(peer)] < distance[usize::from(at)]
            };
            let links = || self.topology.links(at).iter().filter(|link| nearer(link.peer));
            let mask = before.and_then(|before| before.mask(at));
            let stood = links().find(|link| mask.is_some_and(|mask| mask.contains(link.port)));
            let choose = || {
                // Switches that a path connects to the root have a neighbour one hop nearer.
                let choice = spread(mlid, at).checked_rem(links().count() as u64)?;
                links().nth(choice as usize)
            };
            let Some(link) = stood.or_else(choose) else { return };
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
        let best = sums.iter().copied().min().filter(|&best| best != BARRED)?;
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

    /// Whether paths from a tree's root to members are no longer than [`SLACK`] allows.
    fn is_short(&mut self, tree: &Tree, members: &[Place]) -> bool {
        let (Some(root), Some(sums)) = (tree.root, self.sums(members)) else { return true };
        let best = sums.iter().copied().min().unwrap_or(0);
        let mut total = 0u64;
        let mut waiting = vec![(root, None, 0u64)];
        while let Some((switch, came_by, far)) = waiting.pop() {
            let mask = tree.mask(switch).unwrap_or_default();
            for port in mask.ports().filter(|&port| Some(port) != came_by) {
                match self.topology.link_at(switch, port).map(|link| self.topology.link(link)) {
                    Some(link) => waiting.push((link.peer, Some(link.peer_port), far + 1)),
                    None => total += far,
                }
            }
        }
        total <= best + SLACK * members.len() as u64
    }

    /// The switches with the smallest sum of hops to all members, best first.
    fn best_roots(&mut self, members: &[Place], count: usize) -> Vec<u16> {
        let Some(sums) = self.sums(members) else { return Vec::new() };
        let mut roots: Vec<u16> =
            self.topology.switches().filter(|&switch| !self.is_barred(switch)).collect();
        roots.sort_by_key(|&root| (sums[usize::from(root)], root));
        roots.truncate(count);
        roots
    }

    /// Sums of hops to all members, by switch. An unreachable member counts as very far, so that in
    /// a fabric in parts the root is in the part with most members.
    fn sums(&mut self, members: &[Place]) -> Option<Arc<[u64]>> {
        const FAR: u64 = 1 << 20;
        let mut egress_switches: BTreeMap<u16, u32> = BTreeMap::new();
        for place in members {
            *egress_switches.entry(place.switch).or_default() += 1;
        }
        if egress_switches.is_empty() {
            return None;
        }
        let key: Vec<(u16, u32)> = egress_switches.into_iter().collect();
        if let Some(sums) = self.sums.get(&key) {
            return Some(sums.clone());
        }
        let mut sums = vec![0u64; self.topology.switch_count()];
        for &(egress_switch, weight) in &key {
            for (sum, &hops) in sums.iter_mut().zip(self.hops.row(egress_switch)) {
                let hops = if hops == HopMatrix::UNREACHABLE { FAR } else { hops.into() };
                *sum += hops * u64::from(weight);
            }
        }
        let switches = sums.iter_mut().zip(self.barred.iter());
        switches.filter(|(_, barred)| **barred).for_each(|(sum, _)| *sum = BARRED);
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

/// A number that depends only on MLID and switch, and spreads evenly.
fn spread(mlid: Lid, switch: u16) -> u64 {
    let mixed = (u64::from(mlid.0) << 16 | u64::from(switch)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32
}

#[cfg(test)]
mod tests;
