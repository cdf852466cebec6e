//! Multicast trees: planted when members come and go or the fabric changes, written to switches
//! between sweeps.
//!
//! Members change far more often than links, so none of this waits for a sweep, nor does a sweep
//! wait for it, but for requests on the wire. Only the trees of groups that changed are planted
//! anew, by a [`MulticastJob`] that the caller runs wherever it likes, and only blocks that differ
//! are written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::MFT_BLOCK_LEN;
use tracing::{error, info, warn};

use super::router::Made;
use super::{Event, LINES_MAX, Phase, Sweeper};
use crate::fabric::SwitchIndex;
use crate::routing::Topology;
use crate::routing::multicast::{Membership, Place, Planter, PortMask, Tree, check};
use crate::smp::{Kind, Request};

/// How long to wait before a block that was not taken is sent again; doubled each time.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Longest such delay, in doublings.
const RETRY_DOUBLINGS: u32 = 6;
/// Bits of a request's block number that are the block of the table; those above are the position.
const BLOCK_BITS: u32 = 12;
/// Blocks that hold all MLIDs.
pub(super) const BLOCKS_MAX: u16 = 512;
/// How long trees that another subnet manager planted stay though we know of no members: clients are
/// registering again. It begins when all of them were asked.
const INHERITED_STAY: Duration = Duration::from_secs(60);

/// The groups of the subnet, and what is done for them.
#[derive(Debug, Default)]
pub(super) struct Multicast {
    membership: Membership,
    /// MLIDs whose trees may no longer be what their members ask for.
    dirty: BTreeSet<Lid>,
    /// Trees that another subnet manager left, of MLIDs for which none of ours stands yet.
    inherited: BTreeMap<Lid, Vec<(SwitchIndex, PortMask)>>,
    /// When those that are still among them are cleared.
    inherited_until: Option<Instant>,
    /// What trees stand, and for whom they were planted.
    planted: BTreeMap<Lid, (Arc<[Guid]>, Arc<Tree>)>,
    /// The routing that they were planted on.
    made: Option<Arc<Made>>,
    /// The MLIDs of the job that was handed out and has not come back.
    at_work: Option<Vec<Lid>>,
    /// When groups are planted again whose trees failed, and after how many failures in a row.
    replant: Option<Instant>,
    failures: u32,
    /// When blocks are sent that were not taken, or not sent yet.
    retry: Option<Instant>,
    /// Attempts in a row of which some failed.
    attempts: u32,
    /// Whether blocks were acknowledged since the caller was told.
    news: bool,
}

impl Multicast {
    /// Nothing is known of trees that another subnet manager planted.
    pub(super) fn forget_inherited(&mut self) {
        self.inherited.clear();
        self.inherited_until = None;
    }

    /// Whether a group needs a block of tables beyond this one.
    pub(super) fn needs_beyond(&self, block: u16) -> bool {
        let last = self.membership.last_key_value().map(|(mlid, _)| mlid.0);
        last.is_some_and(|last| {
            usize::from(last.saturating_sub(Lid::MULTICAST_FIRST.0)) / MFT_BLOCK_LEN
                > usize::from(block)
        })
    }
}

/// Trees to be planted.
#[derive(Debug)]
pub struct MulticastJob {
    made: Arc<Made>,
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    mlid: Lid,
    members: Arc<[Guid]>,
    places: Vec<Place>,
    root_before: Option<u16>,
    /// The tree that another subnet manager planted: kept if it is right.
    inherited: Option<Tree>,
}

/// What came of a [`MulticastJob`].
#[derive(Debug)]
pub struct MulticastOutcome {
    made: Arc<Made>,
    trees: Vec<(Lid, Arc<[Guid]>, Arc<Tree>)>,
    /// Trees that were found wrong and are not used: a fault of ours.
    defects: Vec<String>,
}

impl MulticastJob {
    /// Groups whose trees are planted.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there is nothing to plant.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Plants the trees. May take a second.
    pub fn run(self) -> MulticastOutcome {
        let (topology, hops) = (self.made.topology(), self.made.distances());
        let mut planter = Planter::new(topology, hops);
        let mut outcome =
            MulticastOutcome { made: self.made.clone(), trees: Vec::new(), defects: Vec::new() };
        for group in self.groups {
            let stands = |tree: &Tree| {
                is_one_piece(topology, tree) && check(topology, tree, &group.places).is_ok()
            };
            let tree = group.inherited.filter(stands);
            let tree =
                tree.unwrap_or_else(|| planter.tree(group.mlid, &group.places, group.root_before));
            match check(topology, &tree, &group.places) {
                Ok(()) => outcome.trees.push((group.mlid, group.members, Arc::new(tree))),
                Err(defect) => {
                    outcome.defects.push(format!("MLID {:#06x}: {defect}", group.mlid.0));
                }
            }
        }
        outcome
    }
}

impl Sweeper {
    /// Says who belongs to some MLIDs from now on; to one with an empty list nobody does. The
    /// others stay as they are.
    pub fn put_members(&mut self, changed: Membership) {
        for (mlid, members) in changed {
            self.multicast.dirty.insert(mlid);
            if members.is_empty() {
                self.multicast.membership.remove(&mlid);
            } else {
                self.multicast.membership.insert(mlid, members);
            }
        }
    }

    /// Trees that are to be planted, if there are any and none are being planted. The outcome goes
    /// to [`handle_multicast`](Self::handle_multicast). Takes time that goes with the groups that
    /// changed; with all of them if the fabric was routed anew.
    pub fn poll_multicast(&mut self, now: Instant) -> Option<MulticastJob> {
        if self.settings.disable_multicast {
            return None;
        }
        let held = self.multicast.replant.is_some_and(|due| now < due);
        let idle = self.phase == Phase::Idle && self.up && self.multicast.at_work.is_none();
        let made = self.router.made().filter(|_| idle && !held)?;
        let before = self.multicast.made.as_ref();
        let moved = before.is_none_or(|before| !Arc::ptr_eq(before, made));
        if !moved && self.multicast.dirty.is_empty() {
            return None;
        }
        let made = made.clone();
        let mut dirty = std::mem::take(&mut self.multicast.dirty);
        if moved {
            dirty.extend(self.multicast.membership.keys());
            dirty.extend(self.multicast.planted.keys());
        }
        let groups: Vec<Group> =
            dirty.into_iter().filter_map(|mlid| self.group(&made, mlid, moved)).collect();
        if groups.is_empty() {
            self.multicast.made = Some(made);
            return None;
        }
        self.multicast.at_work = Some(groups.iter().map(|group| group.mlid).collect());
        Some(MulticastJob { made, groups })
    }

    /// What is to be planted for an MLID; `None` if what stands is right.
    fn group(&self, made: &Made, mlid: Lid, moved: bool) -> Option<Group> {
        let planted = self.multicast.planted.get(&mlid);
        let members = self.multicast.membership.get(&mlid).cloned().unwrap_or_default();
        let stands = match planted {
            Some((then, _)) => *then == members,
            None => members.is_empty(),
        };
        if stands && !moved {
            return None;
        }
        let places = members.iter().filter_map(|&guid| self.place_of(made, guid)).collect();
        // A root is a number in the routing that it was found on.
        let root_before = planted.and_then(|(_, tree)| tree.root).filter(|_| !moved);
        let inherited = self.multicast.inherited.get(&mlid).filter(|_| planted.is_none());
        let inherited = inherited.and_then(|masks| inherited_tree(made, masks));
        Some(Group { mlid, members, places, root_before, inherited })
    }

    /// Takes note of the trees that were found in switches, which stay for now.
    pub(super) fn keep_inherited_trees(&mut self, now: Instant) {
        let mut inherited: BTreeMap<Lid, Vec<(SwitchIndex, PortMask)>> = BTreeMap::new();
        for (index, switch) in self.fabric.switches() {
            for (mlid, mask) in switch.mft.masks() {
                inherited.entry(mlid).or_default().push((index, mask));
            }
        }
        self.multicast.inherited_until = (!inherited.is_empty()).then_some(now + INHERITED_STAY);
        self.multicast.inherited = inherited;
    }

    /// Clears what nobody has claimed of the trees that another subnet manager left, if it is time.
    fn clear_inherited_trees(&mut self, now: Instant) {
        if self.phase != Phase::Idle || self.multicast.inherited_until.is_none_or(|due| now < due) {
            return;
        }
        if self.clients_to_ask() > 0 {
            self.multicast.inherited_until = Some(now + INHERITED_STAY);
            return;
        }
        self.multicast.inherited_until = None;
        let stale: Vec<Lid> = self.multicast.inherited.keys().copied().collect();
        stale.iter().for_each(|&mlid| self.clear_inherited_tree(mlid));
        if !stale.is_empty() {
            info!("{} MLIDs of the master before us have no members: cleared", stale.len());
            self.write_multicast(now);
        }
    }

    /// A tree of ours takes the place of one that another subnet manager left.
    fn clear_inherited_tree(&mut self, mlid: Lid) {
        for (index, _) in self.multicast.inherited.remove(&mlid).unwrap_or_default() {
            let ports = self.fabric.node(self.fabric.switch(index).node).port_count;
            self.fabric.mft_mut(index).set(mlid, PortMask::default(), ports);
        }
    }

    /// Takes the outcome of the [`MulticastJob`] yielded last, and writes what it changes.
    pub fn handle_multicast(&mut self, now: Instant, outcome: MulticastOutcome) {
        let asked = self.multicast.at_work.take().unwrap_or_default();
        for defect in outcome.defects.iter().take(LINES_MAX) {
            error!("a multicast tree is wrong and not used: {defect}");
        }
        self.note_planting(now, !outcome.defects.is_empty());
        let current = self.router.made().is_some_and(|made| Arc::ptr_eq(made, &outcome.made));
        if !current {
            // The fabric was routed anew meanwhile: the same trees are asked for again.
            return;
        }
        let moved =
            self.multicast.made.as_ref().is_none_or(|made| !Arc::ptr_eq(made, &outcome.made));
        if moved {
            // Numbers of switches are others now; all groups are among the outcome.
            let planted = std::mem::take(&mut self.multicast.planted);
            let before = self.multicast.made.take();
            for (mlid, (_, tree)) in planted {
                if let Some(made) = &before {
                    self.clear_masks(made, mlid, &tree);
                }
            }
            self.multicast.made = Some(outcome.made.clone());
        }
        let mut unreached = 0;
        for (mlid, members, tree) in outcome.trees {
            unreached += tree.unreached.len();
            if let Some((_, before)) = self.multicast.planted.remove(&mlid) {
                self.clear_masks(&outcome.made, mlid, &before);
            }
            self.clear_inherited_tree(mlid);
            for &(number, mask) in &tree.masks {
                self.set_mask(&outcome.made, mlid, number, mask);
            }
            if self.multicast.membership.contains_key(&mlid) {
                self.multicast.planted.insert(mlid, (members, tree));
            }
        }
        // Trees that were found wrong are planted again.
        for mlid in asked {
            let members = self.multicast.membership.get(&mlid);
            let planted = self.multicast.planted.get(&mlid).map(|(members, _)| members);
            if members != planted {
                self.multicast.dirty.insert(mlid);
            }
        }
        if unreached > 0 {
            warn!("{unreached} members of multicast groups are not reached by any path");
        }
        self.multicast.attempts = 0;
        self.write_multicast(now);
    }

    /// Takes that the [`MulticastJob`] yielded last came to no outcome.
    pub fn handle_multicast_failure(&mut self, now: Instant, reason: &str) {
        error!("multicast trees were not planted: {reason}");
        let asked = self.multicast.at_work.take().unwrap_or_default();
        self.multicast.dirty.extend(asked);
        self.note_planting(now, true);
    }

    /// Lets groups whose trees failed wait, ever longer, before they are planted again.
    fn note_planting(&mut self, now: Instant, failed: bool) {
        let multicast = &mut self.multicast;
        if failed {
            let delay = RETRY_DELAY * (1 << multicast.failures.min(RETRY_DOUBLINGS));
            multicast.failures += 1;
            multicast.replant = Some(now + delay);
        } else {
            (multicast.failures, multicast.replant) = (0, None);
        }
    }

    fn clear_masks(&mut self, made: &Made, mlid: Lid, tree: &Tree) {
        for &(number, _) in &tree.masks {
            self.set_mask(made, mlid, number, PortMask::default());
        }
    }

    fn set_mask(&mut self, made: &Made, mlid: Lid, number: u16, mask: PortMask) {
        let Some(index) = made.switch(number) else { return };
        let node = self.fabric.switch(index).node;
        let ports = self.fabric.node(node).port_count;
        self.fabric.mft_mut(index).set(mlid, mask, ports);
    }

    /// Sends blocks that switches are not known to hold as they should, unless a sweep is under way
    /// or requests are on the wire: then it is done when these are.
    pub(super) fn write_multicast(&mut self, now: Instant) {
        if self.multicast.made.is_none() && !self.multicast.membership.is_empty() {
            // Trees are about to be planted; until then none of what stands is taken away.
            return;
        }
        if self.phase != Phase::Idle || !self.exchange.is_idle() {
            self.multicast.retry = Some(now + RETRY_DELAY);
            return;
        }
        self.multicast.retry = None;
        let mut short = BTreeSet::new();
        let switches: Vec<SwitchIndex> = self.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            let switch = self.fabric.switch(index);
            let Some(port) = self.fabric.ports_of(switch.node).next() else { continue };
            let blocks = switch.switch_info().multicast_fdb_cap().div_ceil(MFT_BLOCK_LEN as u16);
            for (block, position) in switch.mft.stale_blocks() {
                if block >= blocks {
                    short.insert(port);
                    continue;
                }
                let number = block_number((block, position));
                self.exchange.push(Request::block(Kind::SetMulticast, port, number));
            }
        }
        for port in short.into_iter().take(LINES_MAX) {
            warn!("{} has no room for all MLIDs in use", self.fabric.describe(port));
        }
    }

    pub(super) fn multicast_set(&mut self, request: Request, data: &[u8; 64]) {
        let Some(index) = self.fabric.node_of(request.port()).switch else { return };
        self.fabric.mft_mut(index).acknowledge(block_key(request), data);
        self.multicast.attempts = 0;
        self.multicast.news = true;
    }

    /// A block was not taken: it is sent again later.
    pub(super) fn multicast_lost(
        &mut self,
        now: Instant,
        request: Request,
        why: impl std::fmt::Display,
    ) {
        let delay = RETRY_DELAY * (1 << self.multicast.attempts.min(RETRY_DOUBLINGS));
        if self.multicast.retry.is_none() {
            warn!("{} of {}: {why}", request.kind.name(), self.place(request.port()));
            self.multicast.retry = Some(now + delay);
        }
    }

    /// Tells the caller what was written, once nothing is on the wire.
    pub(super) fn tell_multicast(&mut self) {
        if std::mem::take(&mut self.multicast.news) {
            self.emit(Event::MulticastWritten);
        }
    }

    /// Sends again what was not taken, if it is time.
    pub(super) fn retry_multicast(&mut self, now: Instant) {
        // What is due again is handed out when the caller next asks for it.
        self.multicast.replant.take_if(|due| now >= *due);
        self.clear_inherited_trees(now);
        if self.phase == Phase::Idle && self.multicast.retry.is_some_and(|due| now >= due) {
            self.multicast.attempts += 1;
            self.write_multicast(now);
        }
    }

    pub(super) fn multicast_due(&self) -> Option<Instant> {
        let replant = self.multicast.replant.filter(|_| self.multicast.at_work.is_none());
        [self.multicast.retry, replant, self.multicast.inherited_until].into_iter().flatten().min()
    }

    /// Forgets the routing and the trees upon it: nothing is known any more of what was made of
    /// which switches.
    pub(super) fn forget_routing(&mut self) {
        self.router.forget();
        self.multicast.planted.clear();
        self.multicast.made = None;
        self.multicast.forget_inherited();
        let switches: Vec<SwitchIndex> = self.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            self.fabric.mft_mut(index).clear();
        }
    }

    fn place_of(&self, made: &Made, guid: Guid) -> Option<Place> {
        made.place_of(self.lids.get(guid)?.first)
    }

    /// Trees that stand.
    pub fn multicast_trees(&self) -> usize {
        self.multicast.planted.len()
    }
}

/// What was found in switches, as a tree; `None` if some of them are not routed.
fn inherited_tree(made: &Made, masks: &[(SwitchIndex, PortMask)]) -> Option<Tree> {
    let number = |&(index, mask): &(SwitchIndex, PortMask)| Some((made.number(index)?, mask));
    let mut masks: Vec<(u16, PortMask)> = masks.iter().map(number).collect::<Option<_>>()?;
    masks.sort_unstable_by_key(|(number, _)| *number);
    Some(Tree { root: None, masks, unreached: Vec::new() })
}

/// Whether a tree's switches hang together: as many links as it takes, each from both ends.
fn is_one_piece(topology: &Topology, tree: &Tree) -> bool {
    let ends = tree.masks.iter().map(|(switch, mask)| {
        mask.ports().filter(|&port| topology.link_at(*switch, port).is_some()).count()
    });
    ends.sum::<usize>() == 2 * tree.masks.len().saturating_sub(1)
}

/// The number that stands for a block and position in a request.
pub(super) fn block_number((block, position): (u16, u8)) -> u16 {
    block | u16::from(position) << BLOCK_BITS
}

/// Block and position that a request is about.
pub(super) fn block_key(request: Request) -> (u16, u8) {
    (request.block & ((1 << BLOCK_BITS) - 1), (request.block >> BLOCK_BITS) as u8)
}
