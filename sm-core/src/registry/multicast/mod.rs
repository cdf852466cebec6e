//! Multicast groups and their members (MCMemberRecord, IBA 15.2.5.17, o15-0.1.x, o15-0.2.x).
//!
//! A group exists while it has a full member or a send-only full member
//! or while a configuration file predefines it. When the last of these members leaves, the
//! remaining members are removed with it. Decisions follow OpenSM, except for what
//! `docs/decisions/0013` lists.

mod mgid;
mod parameters;
mod predefined;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use foldhash::fast::RandomState;
use ib_mad::types::{Gid, Guid, Lid, Rate, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::field::part;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::mc_member::component;
use ib_mad::wire::record::{JoinState, Selector};
use ib_mad::wire::sa::DATA_LEN;
use sa_proto::snapshot::{MulticastGroup, MulticastMember, MulticastMemberRid, limited_rate};

use super::mlid::{Class, Mlids, solicited_node};
use super::quota::{NO_REQUESTER, Tally};
use super::{
    Answer, AnswerRecord, Core, EndPort, GroupParameters, Ports, Refusal, RegistryEvent, Request,
    lapsed,
};
use parameters::{Asked, Record, carries, edit, view};
pub use predefined::PredefinedGroup;
pub(super) use predefined::set_predefined;

/// Join states that keep a group alive.
const KEEPERS: u8 = JoinState::FULL_MEMBER.0 | JoinState::SEND_ONLY_FULL_MEMBER.0;

/// Maximum number of solicited-node groups searched for an MLID that can be shared.
const SOLICITED_NODE_TRIES_MAX: usize = 16;

/// The greatest RID.
const LAST_RID: MulticastMemberRid =
    MulticastMemberRid { mgid: Gid([0xFF; 16]), port_gid: Gid([0xFF; 16]) };

/// Indices of the multicast rows.
#[derive(Debug, Default)]
pub(super) struct Index {
    mlids: Mlids,
    /// Number of members that keep the group alive, by group.
    keepers: HashMap<Gid, u32, RandomState>,
    /// Memberships by the GUID in the member's GID (port GUID or alias), with the port
    /// that requested them.
    by_guid: BTreeMap<(Guid, MulticastMemberRid), Guid>,
    /// Memberships by requesting port.
    memberships: Tally,
    /// Client-created groups, with the port that created them.
    creators: HashMap<Gid, Guid, RandomState>,
    /// Groups by creating port.
    groups: Tally,
}

impl Index {
    /// Adds a membership that `port` requested, unless it exists.
    fn enroll(&mut self, rid: MulticastMemberRid, port: Guid) {
        self.by_guid.entry((rid.port_gid.guid(), rid)).or_insert_with(|| {
            self.memberships.add(port);
            port
        });
    }

    fn strike(&mut self, rid: MulticastMemberRid) {
        if let Some(port) = self.by_guid.remove(&(rid.port_gid.guid(), rid)) {
            self.memberships.remove(port);
        }
    }

    /// Records that `port` created a group.
    fn create(&mut self, mgid: Gid, port: Guid) {
        self.groups.add(port);
        if let Some(before) = self.creators.insert(mgid, port) {
            self.groups.remove(before);
        }
    }

    fn delete(&mut self, mgid: Gid) {
        if let Some(port) = self.creators.remove(&mgid) {
            self.groups.remove(port);
        }
    }
}

/// Builds the index of restored rows.
pub(super) fn restore(core: &mut Core) {
    let mut index = Index::default();
    for group in core.groups.rows() {
        index.mlids.hold(view(&group.record).mlid(), Class::of(&group.record));
    }
    for member in core.members.rows() {
        let (mgid, guid) = (member.rid.mgid, member.rid.port_gid.guid());
        let port = match core.alias_guids.get(guid) {
            _ if member.proxy_join => NO_REQUESTER,
            Some(alias) => alias.port_guid,
            None => guid,
        };
        index.enroll(member.rid, port);
        if member.join_state & KEEPERS != 0 {
            let keepers = index.keepers.entry(mgid).or_default();
            *keepers += 1;
            // Any of several members that keep a group alive may have created it.
            match (*keepers, core.groups.get(mgid)) {
                (1, Some(group)) if port != NO_REQUESTER && !group.predefined => {
                    index.create(mgid, port);
                }
                _ => index.delete(mgid),
            }
        }
    }
    core.multicast = index;
    // A file may hold groups without a member that keeps them alive.
    let groups = core.groups.rows().iter().filter(|group| !group.predefined);
    let kept = |mgid| core.multicast.keepers.contains_key(&mgid);
    for mgid in groups.map(|group| group.mgid).filter(|&mgid| !kept(mgid)).collect::<Vec<_>>() {
        empty(core, mgid);
    }
}

/// Handles a Set() or Delete() of MCMemberRecord.
pub(super) fn write(core: &mut Core, ports: &Ports, request: &Request) -> Answer {
    let asked = Asked::of(request);
    if !asked.names_a_member() {
        return Err(Status::SA_INSUFFICIENT_COMPONENTS.into());
    }
    if !asked.has_known_codes() {
        return Err(Status::SA_REQ_INVALID.into());
    }
    // A port may know only the default prefix; the answer repeats the GID of the request.
    let prefix = asked.view().port_gid().prefix();
    if prefix != SUBNET_PREFIX_DEFAULT && prefix != ports.prefix {
        return Err(Status::SA_REQ_INVALID_GID.into());
    }
    match request.method {
        Method::SET => join(core, ports, request, &asked),
        Method::DELETE => leave(core, ports, request, &asked),
        _ => Err(Refusal::Silent),
    }
}

/// Adds a port to a group, and creates the group if it does not exist.
fn join(core: &mut Core, ports: &Ports, request: &Request, asked: &Asked) -> Answer {
    let invalid = Status::SA_REQ_INVALID;
    let guid = asked.view().port_gid().guid();
    let requester = ports.by_lid(request.requester.slid).ok_or(Refusal::Silent)?;
    let port = core.owner(ports, guid).ok_or(invalid)?;
    if !port.shares_partition(requester) {
        return Err(invalid.into());
    }
    if asked.has(component::PKEY) && !asked.view().pkey().is_valid() {
        return Err(invalid.into());
    }
    let mgid = asked.view().mgid();
    let fabric = ports.group_parameters(mgid, port, asked.view().pkey());
    let within = fabric.map(|fabric| asked.within(fabric));
    let agrees = |group: &Record| {
        asked.agrees_with(group) || within.as_ref().is_some_and(|asked| asked.agrees_with(group))
    };
    let (mut group, is_new) = match core.groups.get(mgid) {
        Some(group) if ports.settings.mcgroup_join_validation && !agrees(&group.record) => {
            return Err(invalid.into());
        }
        Some(group) => (group.record, false),
        None => (describe(core, ports, port, within.as_ref().unwrap_or(asked), fabric)?, true),
    };
    let state = asked.join_state().0;
    // The port must be able to use the group's parameters (IBA o15-0.1.13).
    let fits = asked.selects(&group) && carries(port, &group) && state != 0;
    // So must one that asks for another port: it would create groups of partitions that it is not
    // in, and receive their events.
    let pkey = view(&group).pkey();
    let is_entitled = request.trusted || requester.has_pkey(pkey);
    if !fits || !port.has_pkey(pkey) || !is_entitled {
        return Err(invalid.into());
    }
    let mgid = view(&group).mgid();
    let rid = MulticastMemberRid { mgid, port_gid: Gid::new(ports.prefix, guid) };
    let held = core.members.get(rid).cloned();
    if held.as_ref().is_some_and(|held| !may_change(held, &group, port, requester)) {
        return Err(invalid.into());
    }
    if held.is_none() {
        let count = core.multicast.memberships.of(requester.guid);
        core.within_quota(request, count, ports.settings.memberships_per_port_max)?;
        core.room_for(ports, request, if is_new { 2 } else { 1 })?;
    }
    if is_new {
        let count = core.multicast.groups.of(requester.guid);
        core.within_quota(request, count, ports.settings.groups_per_port_max)?;
        let room = match request.trusted {
            true => Room::Own,
            false => room_of(core, ports, requester, Class::of(&group)),
        };
        let mlid = choose_mlid(core, ports, &group, asked.view().mlid(), room)?;
        edit(&mut group).set_mlid(mlid);
        core.groups.put(MulticastGroup { mgid, record: group, predefined: false });
        core.multicast.create(mgid, requester.guid);
    }
    let member = MulticastMember {
        rid,
        join_state: state | held.as_ref().map_or(0, |held| held.join_state),
        proxy_join: held.as_ref().map_or(port.guid != requester.guid, |held| held.proxy_join),
    };
    let was_keeper = held.is_some_and(|held| held.join_state & KEEPERS != 0);
    if !was_keeper && state & KEEPERS != 0 {
        let keepers = core.multicast.keepers.entry(mgid).or_default();
        *keepers += 1;
        if *keepers == 1 {
            core.report(RegistryEvent::GroupCreated(mgid));
        }
    }
    core.multicast.enroll(rid, requester.guid);
    let mut record = group;
    edit(&mut record)
        .set_port_gid(asked.view().port_gid())
        .set_join_state(JoinState(member.join_state))
        .set_proxy_join(member.proxy_join);
    core.members.put(member);
    Ok(AnswerRecord::new(&record))
}

/// The sequence number of the change that ended the effect of a granted request, or a later one;
/// `None` if it lasts: the port is, or is not, a member of the group described in `answer`.
pub(super) fn ended(
    core: &Core,
    ports: &Ports,
    request: &Request,
    answer: &[u8; DATA_LEN],
) -> Option<u64> {
    let asked = Asked::of(request);
    let answer: &Record = part::<0, _, _>(answer);
    // The SA may have chosen the MGID.
    let mgid = view(answer).mgid();
    let port_gid = Gid::new(ports.prefix, asked.view().port_gid().guid());
    let rid = MulticastMemberRid { mgid, port_gid };
    let state = asked.join_state().0;
    let held = core.members.get(rid).map_or(0, |member| member.join_state);
    let lasts = match request.method {
        Method::DELETE => held & state == 0,
        _ => {
            let answered = |group: &MulticastGroup| {
                let mut record = group.record;
                edit(&mut record)
                    .set_port_gid(view(answer).port_gid())
                    .set_join_state(view(answer).join_state())
                    .set_proxy_join(view(answer).proxy_join());
                record == *answer
            };
            held & state == state && core.groups.get(mgid).is_some_and(|group| answered(group))
        }
    };
    (!lasts).then(|| core.groups.changed_at(mgid).max(core.members.changed_at(rid)))
}

/// The record of a new group, without its MLID.
fn describe(
    core: &Core,
    ports: &Ports,
    port: &EndPort,
    asked: &Asked,
    fabric: Option<GroupParameters>,
) -> Result<Record, Refusal> {
    let invalid = Status::SA_REQ_INVALID;
    if asked.join_state().0 & KEEPERS == 0 {
        return Err(invalid.into());
    }
    if !asked.describes_a_group() {
        return Err(Status::SA_INSUFFICIENT_COMPONENTS.into());
    }
    let mut mgid = asked.view().mgid();
    if mgid == Gid::ZERO {
        let scope = asked.has(component::SCOPE).then(|| asked.view().scope());
        // The sequence number is never reused, so neither is an MGID, not even after a
        // restart.
        let made = mgid::make(scope, ports.prefix, core.sequence + 1, |mgid| {
            core.groups.get(mgid).is_some()
        });
        mgid = made.ok_or(Status::SA_NO_RESOURCES)?;
    } else if ports.settings.ipoib_mcgroup_creation_validation {
        let goes_with_broadcast = || {
            mgid::broadcast_of(mgid).is_none_or(|broadcast| {
                core.groups.get(broadcast).is_some_and(|group| asked.agrees_with(&group.record))
            })
        };
        if !mgid::may_be_asked_for(mgid) || !goes_with_broadcast() {
            return Err(invalid.into());
        }
    }
    let mut record = asked.realize(port, fabric).ok_or(invalid)?;
    if let Some(rate) = Rate::from_code(view(&record).rate()) {
        edit(&mut record).set_rate(limited_rate(ports.settings.max_rate, rate));
    }
    edit(&mut record).set_mgid(mgid);
    Ok(record)
}

/// Whether `requester` may change the membership `held` of `port` (IBA o15-0.2.1): the port itself,
/// and if another port added it, any port in the group's partition.
fn may_change(held: &MulticastMember, group: &Record, port: &EndPort, requester: &EndPort) -> bool {
    if held.proxy_join {
        requester.has_pkey(view(group).pkey())
    } else {
        port.guid == requester.guid
    }
}

/// Groups of a port that may have MLIDs of their own, however few are free.
const MODEST: usize = 16;

/// Of so many MLIDs one is the last that groups get which could share another one's: the rest is
/// for those of a partition, SL, MTU or rate that no group has yet.
const RESERVED_PER: usize = 8;

/// Where a new group of a port gets its MLID from. As many must be free as the port has groups, so
/// that others get some, too (Choudhury, Hahne 1998: dynamic thresholds): one port gets half of the
/// MLIDs, two a third each. All ports that one link brought count as one.
fn room_of(core: &Core, ports: &Ports, requester: &EndPort, class: Class) -> Room {
    let (mlids, last) = (&core.multicast.mlids, ports.mlid_last);
    let together = ports.brought_with(requester).iter();
    let groups: usize = together.map(|&port| core.multicast.groups.of(port)).sum();
    let reserved = mlids.count(last) / RESERVED_PER;
    if groups < MODEST && mlids.has_free(last, reserved) {
        return Room::Own;
    }
    let free = mlids.free_count(last);
    let is_last = free <= reserved;
    let is_greedy = groups >= free && (groups >= MODEST || is_last);
    let could_share = || ports.settings.share_mlids && mlids.least_shared(class, last).is_some();
    match is_greedy || is_last && could_share() {
        true => Room::Shared,
        false => Room::Own,
    }
}

/// Where a group gets its MLID from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// A free MLID, or that of another group if there is none.
    Own,
    /// The MLID of another group.
    Shared,
}

/// Allocates an MLID for a group, the requested one if it is free, and counts the group
/// on it.
fn choose_mlid(
    core: &mut Core,
    ports: &Ports,
    group: &Record,
    asked: Lid,
    room: Room,
) -> Result<Lid, Refusal> {
    let (class, last) = (Class::of(group), ports.mlid_last);
    let mlids = &core.multicast.mlids;
    let shared = |of: &MulticastGroup| {
        let mlid = view(&of.record).mlid();
        (Class::of(&of.record) == class && mlid <= last).then_some(mlid)
    };
    let consolidated = || {
        let consolidate = ports.settings.consolidate_ipv6_snm_req;
        let (first, last) = solicited_node(view(group).mgid()).filter(|_| consolidate)?;
        let mut others = core.groups.range(first..=last).take(SOLICITED_NODE_TRIES_MAX);
        others.find_map(|other| shared(other))
    };
    let mlid = Some(asked)
        .filter(|&asked| room == Room::Own && mlids.is_free(asked, last))
        .or_else(consolidated)
        .or_else(|| mlids.lowest_free(last).filter(|_| room == Room::Own))
        .or_else(|| ports.settings.share_mlids.then(|| mlids.least_shared(class, last))?);
    let Some(mlid) = mlid else {
        core.counters.mlids_exhausted += 1;
        return Err(Status::SA_NO_RESOURCES.into());
    };
    core.multicast.mlids.hold(mlid, class);
    Ok(mlid)
}

/// Clears join states of a membership; deletes it when none is left (IBA o15-0.1.14).
fn leave(core: &mut Core, ports: &Ports, request: &Request, asked: &Asked) -> Answer {
    let invalid = Status::SA_REQ_INVALID;
    let requester = ports.by_lid(request.requester.slid).ok_or(Refusal::Silent)?;
    let mgid = asked.view().mgid();
    let guid = asked.view().port_gid().guid();
    let group = core.groups.get(mgid).ok_or(invalid)?.record;
    let rid = MulticastMemberRid { mgid, port_gid: Gid::new(ports.prefix, guid) };
    let held = core.members.get(rid).ok_or(invalid)?;
    let state = asked.join_state().0;
    if state == 0 || state & !held.join_state != 0 {
        return Err(invalid.into());
    }
    let port = core.owner(ports, guid).ok_or(invalid)?;
    if !may_change(held, &group, port, requester) {
        return Err(invalid.into());
    }
    let left = take_away(core, rid, state);
    let mut record = asked.record;
    edit(&mut record)
        .set_mtu_selector(Selector::Exactly)
        .set_rate_selector(Selector::Exactly)
        .set_packet_life_time_selector(Selector::Exactly)
        .set_scope(view(&group).scope())
        .set_join_state(JoinState(left));
    Ok(AnswerRecord::new(&record))
}

/// Clears join states of a membership; deletes the group with the last member that keeps it alive.
/// Returns the remaining membership.
fn take_away(core: &mut Core, rid: MulticastMemberRid, state: u8) -> u8 {
    let Some(held) = core.members.get(rid).map(|held| MulticastMember::clone(held)) else {
        return 0;
    };
    let left = held.join_state & !state;
    if left == 0 {
        core.members.remove(rid);
        core.multicast.strike(rid);
    } else {
        core.members.put(MulticastMember { join_state: left, ..held });
    }
    if held.join_state & KEEPERS == 0 || left & KEEPERS != 0 {
        return left;
    }
    let keepers = core.multicast.keepers.get_mut(&rid.mgid);
    let keepers = keepers.expect("a group with such members has a count");
    *keepers -= 1;
    if *keepers > 0 {
        return left;
    }
    core.multicast.keepers.remove(&rid.mgid);
    core.report(RegistryEvent::GroupDeleted(rid.mgid));
    empty(core, rid.mgid);
    0
}

/// Cleans up a group that no member keeps alive: removes its other members, and the group
/// unless it is predefined.
fn empty(core: &mut Core, mgid: Gid) {
    for rid in members_of(core, mgid).collect::<Vec<_>>() {
        core.members.remove(rid);
        core.multicast.strike(rid);
    }
    let Some(group) = core.groups.get(mgid).filter(|group| !group.predefined).cloned() else {
        return;
    };
    core.groups.remove(mgid);
    core.multicast.delete(mgid);
    core.multicast.mlids.release(view(&group.record).mlid());
}

fn members_of(core: &Core, mgid: Gid) -> impl Iterator<Item = MulticastMemberRid> + '_ {
    let of_group =
        MulticastMemberRid { mgid, port_gid: Gid::ZERO }..=MulticastMemberRid { mgid, ..LAST_RID };
    core.members.range(of_group).map(|member| member.rid)
}

/// Removes memberships of ports that left the fabric.
pub(super) fn fabric_changed(core: &mut Core, ports: &Ports) {
    let mut after = Bound::Unbounded;
    while let Some((&(guid, _), _)) = core.multicast.by_guid.range((after, Bound::Unbounded)).next()
    {
        if core.is_gone(ports, guid) {
            lapsed::lapse(core, guid);
            guid_gone(core, guid);
        }
        after = Bound::Excluded((guid, LAST_RID));
    }
}

/// Removes memberships of a GUID that no port has any more.
pub(super) fn guid_gone(core: &mut Core, guid: Guid) {
    for rid in memberships(core, guid).collect::<Vec<_>>() {
        take_away(core, rid, u8::MAX);
    }
}

/// Whether a port has joined a group by this GUID.
pub(super) fn is_member(core: &Core, guid: Guid) -> bool {
    memberships(core, guid).next().is_some()
}

fn memberships(core: &Core, guid: Guid) -> impl Iterator<Item = MulticastMemberRid> + '_ {
    let of_guid = (guid, MulticastMemberRid::default())..=(guid, LAST_RID);
    core.multicast.by_guid.range(of_guid).map(|(&(_, rid), _)| rid)
}
