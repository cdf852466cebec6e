//! Multicast trees: computed when members come and go or the fabric changes, written to switches
//! between sweeps.
//!
//! Members change far more often than links, so none of this waits for a sweep, nor does a sweep
//! wait for it, except for outstanding requests. Only the trees of groups that changed are computed
//! again, by a [`MulticastJob`] that the caller runs on any thread, and only blocks that differ are
//! written.
//!
//! After the fabric was rerouted, trees that still deliver stay; the others are recomputed at once.
//! Whether those that stay close a cycle with the new unicast routes is checked later, together
//! with the credit-loop check of unicast.

pub(in crate::sweep) mod blocks;
pub(in crate::sweep) mod job;
mod room;
mod short;
mod task;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::MFT_BLOCK_LEN;
use tracing::{error, info, warn};

use crate::fabric::SwitchIndex;
use crate::sweep::subnet::report::LINES_MAX;
use crate::sweep::subnet::routing::active::ActiveRouting;
use crate::sweep::subnet::{Subnet, lanes};
use job::{ComputedTree, Group, inherited_tree};
use job::{MulticastJob, MulticastOutcome};
use short::Short;
use sm_routing::PortMask;
use sm_routing::multicast::{Audience, Fault, Membership, Orders, Place, Tree};

/// Delay before a block that was not accepted is sent again; doubles each time.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Longest such delay, in doublings.
const RETRY_DOUBLINGS: u32 = 6;
/// Blocks that hold all MLIDs.
pub(in crate::sweep) const BLOCKS_MAX: u16 = 512;
/// How long trees of another SM without known members stay, because clients are still registering.
/// Starts when all clients have been asked.
const INHERITED_STAY: Duration = Duration::from_secs(60);

/// Multicast groups and the state of their trees.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Multicast {
    membership: Membership,
    /// MLIDs whose trees may no longer match their members.
    dirty: BTreeSet<Lid>,
    /// Trees of another SM for MLIDs that have no tree of this SM yet.
    inherited: BTreeMap<Lid, Vec<(SwitchIndex, PortMask)>>,
    /// When the remaining ones are cleared.
    inherited_until: Option<Instant>,
    /// Switches reported because their table is too small.
    short: Short,
    /// By node GUID: first block that a switch does not accept. Trees avoid the switch from that
    /// block on, because its contents are unknown.
    closed: BTreeMap<Guid, u16>,
    /// The avoided switches for which the current trees were computed.
    around: BTreeMap<Guid, u16>,
    /// The current trees, and the members for which they were computed.
    pub(in crate::sweep) current: BTreeMap<Lid, (Audience, Arc<Tree>)>,
    /// Current trees that can deadlock because no other tree was found, with the reason.
    pub(in crate::sweep) faults: BTreeMap<Lid, String>,
    /// The routing for which they were computed.
    made: Option<Arc<ActiveRouting>>,
    /// The channel order they are checked with; `None` while the dependencies of the routing are
    /// unknown.
    orders: Option<Arc<Orders>>,
    /// Whether some trees were not checked since the last rerouting.
    unproved: bool,
    /// MLIDs of the outstanding job.
    at_work: Option<Vec<Lid>>,
    /// When failed groups are computed again, and the number of consecutive failures.
    recompute_due: Option<Instant>,
    failures: u32,
    /// Whether blocks wait for outstanding ones: added branches wait for removed ones.
    adds: bool,
    /// When blocks that were not accepted, or not sent yet, are sent.
    retry: Option<Instant>,
    /// Consecutive attempts in which some blocks failed.
    attempts: u32,
    /// Whether blocks were acknowledged since the last report to the caller.
    news: bool,
}

impl Multicast {
    /// Discards all knowledge of trees of another SM.
    pub(in crate::sweep) fn forget_inherited(&mut self) {
        self.inherited.clear();
        self.inherited_until = None;
    }

    /// Applies new switch indices: `moved` maps the old ones; `before` and `after` are the routing
    /// in force. `false` if a tree refers to a switch that is gone.
    pub(in crate::sweep) fn renumber(
        &mut self,
        before: Option<&Arc<ActiveRouting>>,
        after: Option<&Arc<ActiveRouting>>,
        moved: impl Fn(SwitchIndex) -> Option<SwitchIndex>,
    ) -> bool {
        for masks in self.inherited.values_mut() {
            *masks = masks.iter().filter_map(|&(old, mask)| Some((moved(old)?, mask))).collect();
        }
        let Some(made) = self.made.take() else { return true };
        self.made = match before.is_some_and(|before| Arc::ptr_eq(before, &made)) {
            true => after.cloned(),
            false => made.renumbered(&moved).map(Arc::new),
        };
        self.made.is_some()
    }

    /// Cancels pending writes, and forgets the trees of another SM.
    pub(in crate::sweep) fn rest(&mut self) {
        self.forget_inherited();
        self.adds = false;
        self.retry = None;
    }

    /// Whether a group needs a block of tables beyond this one.
    pub(in crate::sweep) fn needs_beyond(&self, block: u16) -> bool {
        let last = self.membership.last_key_value().map(|(mlid, _)| mlid.0);
        last.is_some_and(|last| {
            usize::from(last.saturating_sub(Lid::MULTICAST_FIRST.0)) / MFT_BLOCK_LEN
                > usize::from(block)
        })
    }
}

impl Multicast {
    /// Sets the members of some MLIDs; an empty list leaves an MLID without members. Other MLIDs
    /// stay as they are.
    pub(in crate::sweep) fn put_members(&mut self, changed: Membership) {
        for (mlid, members) in changed {
            self.dirty.insert(mlid);
            if members.is_empty() {
                self.membership.remove(&mlid);
            } else {
                self.membership.insert(mlid, members);
            }
        }
    }

    /// A job for trees of groups that changed; for all groups if the fabric was routed again.
    /// `None` while a job is under way.
    pub(in crate::sweep) fn poll_job(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
    ) -> Option<MulticastJob> {
        let held = self.recompute_due.is_some_and(|due| now < due);
        if subnet.settings.disable_multicast || held || !self.may_compute(subnet) {
            return None;
        }
        let made = subnet.routing.made()?.clone();
        self.reopen_switches(subnet);
        let before = self.made.as_ref();
        let moved = before.is_none_or(|before| !Arc::ptr_eq(before, &made));
        let all = moved || self.closed != self.around;
        if !all && self.dirty.is_empty() {
            return None;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        if all {
            dirty.extend(self.membership.keys());
            dirty.extend(self.current.keys());
        }
        let groups: Vec<Group> =
            dirty.into_iter().filter_map(|mlid| self.group(subnet, &made, mlid, all)).collect();
        if groups.is_empty() {
            if moved {
                self.orders = None;
            }
            self.made = Some(made);
            self.around = self.closed.clone();
            return None;
        }
        Some(self.job(subnet, &made, groups, false))
    }

    /// GUIDs of virtual ports came to other ports: members may be elsewhere.
    pub(in crate::sweep) fn virtual_ports_moved(&mut self) {
        self.dirty.extend(self.membership.keys());
    }

    /// The members of an MLID by the GUIDs of physical ports.
    fn audience(&self, subnet: &Subnet, mlid: Lid) -> Audience {
        let audience = self.membership.get(&mlid).cloned().unwrap_or_default();
        let fabric = &subnet.fabric;
        if fabric.virtual_port_count() == 0 {
            return audience;
        }
        let physical = |&guid: &Guid| {
            let host = fabric.virtual_port_by_guid(guid);
            host.map_or(guid, |(host, _)| fabric.port(host).guid)
        };
        let mut ports: Vec<Guid> = audience.ports.iter().map(physical).collect();
        ports.sort_unstable();
        ports.dedup();
        Audience { ports: ports.into(), sls: audience.sls }
    }

    fn may_compute(&self, subnet: &Subnet) -> bool {
        subnet.state.up && self.at_work.is_none()
    }

    /// A job that checks all trees for credit loops with the routing in force, and replaces those
    /// that close one; due some time after a rerouting.
    pub(in crate::sweep) fn poll_proof(&mut self, subnet: &mut Subnet) -> Option<MulticastJob> {
        if !self.may_compute(subnet) || !self.unproved {
            return None;
        }
        let made = subnet.routing.made()?.clone();
        if !self.made.as_ref().is_some_and(|here| Arc::ptr_eq(here, &made)) {
            return None;
        }
        let all: Vec<Lid> = self.current.keys().copied().collect();
        let groups =
            all.into_iter().filter_map(|mlid| self.group(subnet, &made, mlid, true)).collect();
        Some(self.job(subnet, &made, groups, true))
    }

    fn job(
        &mut self,
        subnet: &mut Subnet,
        made: &Arc<ActiveRouting>,
        groups: Vec<Group>,
        proves: bool,
    ) -> MulticastJob {
        let vls = subnet.vls_between_switches(made);
        let room = self.multicast_room(subnet, made, &groups);
        self.at_work = Some(groups.iter().map(|group| group.mlid).collect());
        let before = self.made.as_ref();
        let is_new = before.is_none_or(|before| !Arc::ptr_eq(before, made));
        MulticastJob {
            renumbered: before.filter(|before| before.switches() != made.switches()).cloned(),
            orders: self.orders.clone().filter(|_| !is_new),
            lfts: made.lfts(&subnet.fabric),
            made: made.clone(),
            vls,
            proves,
            is_whole: proves || is_new || self.closed != self.around,
            room,
            closed: self.closed.clone(),
            groups,
        }
    }

    /// SLs may have other lanes than before.
    pub(in crate::sweep) fn lanes_changed(&mut self, subnet: &mut Subnet) {
        subnet.routing.lanes_changed();
        self.orders = None;
        self.unproved = true;
    }

    /// The input for computing the tree of an MLID; `None` if the current tree is right, unless all
    /// are requested.
    fn group(&self, subnet: &Subnet, made: &ActiveRouting, mlid: Lid, all: bool) -> Option<Group> {
        let current = self.current.get(&mlid);
        let audience = self.audience(subnet, mlid);
        let stands = match current {
            Some((then, _)) => *then == audience,
            None => audience.is_empty(),
        };
        if stands && !all {
            return None;
        }
        let ports = audience.ports.iter();
        let places = ports.flat_map(|&guid| subnet.places_of(made, guid)).collect();
        let before = current.map(|(_, tree)| tree.clone());
        let inherited = self.inherited.get(&mlid).filter(|_| current.is_none());
        let inherited = inherited.and_then(|masks| inherited_tree(made, masks));
        Some(Group { mlid, audience, places, before, inherited })
    }

    /// Records the trees that were read from switches. They stay until replaced or cleared.
    pub(in crate::sweep) fn keep_inherited_trees(&mut self, subnet: &mut Subnet, now: Instant) {
        let mut inherited: BTreeMap<Lid, Vec<(SwitchIndex, PortMask)>> = BTreeMap::new();
        for (index, switch) in subnet.fabric.switches() {
            for (mlid, mask) in switch.mft.masks() {
                inherited.entry(mlid).or_default().push((index, mask));
            }
        }
        let has_any = !inherited.is_empty()
            || subnet.fabric.switches().any(|(_, switch)| switch.mft.has_unknown());
        self.inherited_until = has_any.then_some(now + INHERITED_STAY);
        self.inherited = inherited;
    }

    /// Clears trees that another subnet manager left and no group has claimed, if it is time.
    fn clear_inherited_trees(&mut self, subnet: &mut Subnet, now: Instant) {
        if self.inherited_until.is_none_or(|due| now < due) {
            return;
        }
        if subnet.pending_clients.count() > 0 {
            self.inherited_until = Some(now + INHERITED_STAY);
            return;
        }
        self.inherited_until = None;
        let stale: Vec<Lid> = self.inherited.keys().copied().collect();
        stale.iter().for_each(|&mlid| self.clear_inherited_tree(subnet, mlid));
        if !stale.is_empty() {
            info!("cleared {} MLIDs of the previous master that have no members", stale.len());
        }
        self.write_blocks(subnet, now, true);
    }

    /// Clears the tree that another SM left, which a tree of this SM replaces.
    fn clear_inherited_tree(&mut self, subnet: &mut Subnet, mlid: Lid) {
        for (index, _) in self.inherited.remove(&mlid).unwrap_or_default() {
            let ports = subnet.fabric.node(subnet.fabric.switch(index).node).port_count;
            subnet.fabric.mft_mut(index).set(mlid, PortMask::default(), ports);
        }
    }

    /// Handles the result of the last [`MulticastJob`]; `false` if it belongs to an outdated
    /// routing.
    pub(in crate::sweep) fn take_outcome(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        outcome: MulticastOutcome,
    ) -> bool {
        let asked = self.at_work.take().unwrap_or_default();
        for defect in outcome.defects.iter().take(LINES_MAX) {
            error!("multicast tree failed verification and is not used: {defect}");
        }
        self.note_computation(now, !outcome.defects.is_empty());
        if !subnet.routing.is_in_force(&outcome.made) {
            // The fabric was rerouted meanwhile: request the same trees again.
            self.dirty.extend(asked);
            return false;
        }
        // Switch numbers may have changed; then the outcome contains all groups.
        let before = self.made.replace(outcome.made.clone());
        let before = before.unwrap_or_else(|| outcome.made.clone());
        let moved = !Arc::ptr_eq(&before, &outcome.made);
        let is_proved = outcome.orders.is_some();
        if outcome.is_whole {
            self.unproved = !is_proved;
        }
        if outcome.is_whole && outcome.defects.is_empty() {
            self.around = outcome.closed;
        }
        if moved || is_proved {
            self.orders = outcome.orders;
        }
        let mut unreached = 0;
        let mut news = Vec::new();
        for computed in outcome.trees {
            unreached += computed.tree.unreached.len();
            if is_proved {
                let line = computed
                    .fault
                    .as_ref()
                    .map(|fault| self.fault_line(subnet, computed.mlid, fault));
                let before = self.faults.remove(&computed.mlid);
                news.extend(line.clone().filter(|line| before.as_ref() != Some(line)));
                self.faults.extend(line.map(|line| (computed.mlid, line)));
            }
            self.take_tree(subnet, &before, &outcome.made, computed);
        }
        for line in news.iter().take(LINES_MAX) {
            warn!("{line}; using it because no other tree was found");
        }
        if let Some(more @ 1..) = news.len().checked_sub(LINES_MAX) {
            warn!("{more} more multicast trees can deadlock");
        }
        // Trees that were found wrong are computed again.
        for mlid in asked {
            let members = self.membership.get(&mlid);
            let current = self.current.get(&mlid).map(|(audience, _)| audience);
            if members != current {
                self.dirty.insert(mlid);
            }
        }
        if unreached > 0 {
            warn!("no path reaches {unreached} members of multicast groups");
        }
        self.attempts = 0;
        true
    }

    /// The last [`MulticastJob`] failed.
    pub(in crate::sweep) fn job_failed(&mut self, now: Instant, reason: &str) {
        error!("multicast trees were not computed: {reason}");
        let asked = self.at_work.take().unwrap_or_default();
        self.dirty.extend(asked);
        self.note_computation(now, true);
    }

    /// Delays groups whose trees failed, for increasing times.
    fn note_computation(&mut self, now: Instant, failed: bool) {
        if failed {
            let delay = RETRY_DELAY * (1 << self.failures.min(RETRY_DOUBLINGS));
            self.failures += 1;
            self.recompute_due = Some(now + delay);
        } else {
            (self.failures, self.recompute_due) = (0, None);
        }
    }

    /// Installs a new tree; `before` numbers the switches of the old one.
    fn take_tree(
        &mut self,
        subnet: &mut Subnet,
        before: &ActiveRouting,
        made: &ActiveRouting,
        computed: ComputedTree,
    ) {
        let ComputedTree { mlid, audience, tree, is_kept, .. } = computed;
        let current = self.current.remove(&mlid);
        self.clear_inherited_tree(subnet, mlid);
        if !is_kept {
            let old = current.iter().flat_map(|(_, tree)| &tree.masks);
            for &(number, _) in old.filter(|&&(number, _)| {
                let now = before.switch(number).and_then(|index| made.number(index));
                now.is_none_or(|now| tree.mask(now).is_none())
            }) {
                subnet.set_mask(before, mlid, number, PortMask::default());
            }
            for &(number, mask) in &tree.masks {
                subnet.set_mask(made, mlid, number, mask);
            }
        }
        if self.membership.contains_key(&mlid) {
            self.current.insert(mlid, (audience, tree));
        } else {
            self.faults.remove(&mlid);
        }
    }

    fn fault_line(&self, subnet: &Subnet, mlid: Lid, fault: &Fault) -> String {
        let switches = self.made.as_ref().map_or(&[][..], |made| made.switches());
        let (mlid, sl) = (mlid.0, fault.sl);
        if fault.cycle.is_empty() {
            return format!(
                "the tree of MLID {mlid:#06x} can deadlock on SL {sl} with trees of other groups"
            );
        }
        let cycle = subnet.hops_in_words(switches, &fault.cycle);
        format!(
            "the tree of MLID {mlid:#06x} can deadlock with unicast traffic on SL {sl}: \
             {cycle}"
        )
    }

    /// Problems of multicast trees, as text: the first ones that can deadlock, and switches that
    /// accept no table.
    pub(in crate::sweep) fn warnings(&self) -> Vec<String> {
        let faults = self.faults.values();
        let mut lines: Vec<_> = faults.take(LINES_MAX).cloned().collect();
        let more = self.faults.len().saturating_sub(LINES_MAX);
        if more > 0 {
            lines.push(format!("{more} more multicast trees can deadlock"));
        }
        lines.extend(self.closed_warning());
        lines
    }

    /// Discards the routing and all trees.
    pub(in crate::sweep) fn forget_routing(&mut self, subnet: &mut Subnet) {
        subnet.routing.forget();
        self.current.clear();
        self.faults.clear();
        self.made = None;
        self.orders = None;
        self.unproved = false;
        self.closed.clear();
        self.around.clear();
        self.forget_inherited();
        let switches: Vec<SwitchIndex> = subnet.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            subnet.fabric.mft_mut(index).clear();
        }
    }
}

impl Subnet {
    /// The VL by SL of links between switches; all the same if no SL-to-VL maps were set.
    fn vls_between_switches(&self, made: &ActiveRouting) -> [u8; 16] {
        if !self.needs_port_tables() {
            return [0; 16];
        }
        let (topology, switches) = (made.topology(), made.switches());
        lanes::vls(&self.fabric, &self.settings, &self.qos_tables, topology, switches)
    }

    fn set_mask(&mut self, made: &ActiveRouting, mlid: Lid, number: u16, mask: PortMask) {
        let Some(index) = made.switch(number) else { return };
        let node = self.fabric.switch(index).node;
        let ports = self.fabric.node(node).port_count;
        self.fabric.mft_mut(index).set(mlid, mask, ports);
    }

    /// Where a port is, in each plane.
    fn places_of(&self, made: &ActiveRouting, guid: Guid) -> impl Iterator<Item = Place> {
        let lid = self.lids.get(guid).map(|range| range.first);
        lid.into_iter().flat_map(move |lid| made.places_of(lid))
    }
}
