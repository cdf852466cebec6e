//! Groups and members, request by request. What OpenSM answers is in
//! `tests/it/golden_multicast.rs`; here is what its recordings don't show.

mod groups;
mod properties;
mod virtual_ports;

use std::sync::Arc;

use std::collections::BTreeSet;

use ib_mad::types::{Mtu, PKey, Sl};
use ib_mad::wire::attribute::NodeType;
use ib_mad::wire::record::McMemberRecord;
use ib_mad::wire::sa::{ComponentMask, attribute};
use sa_proto::snapshot::AliasGuid;

use super::super::testing::{GUIDS, NOW_S, end_ports, gid, ports, request, status, trusted, write};
use super::super::{Registry, RegistryEvent, Reply, Settings};
use super::parameters::{edit, view};
use super::*;

const OK: Option<Status> = Some(Status::OK);
const INVALID: Option<Status> = Some(Status::SA_REQ_INVALID);

const FULL: u8 = 1;
const NON: u8 = 2;
const SEND_ONLY: u8 = 4;
const SEND_ONLY_FULL: u8 = 8;

const MEMBER: ComponentMask =
    component::MGID.union(component::PORT_GID).union(component::JOIN_STATE);
const CREATE: ComponentMask = MEMBER
    .union(component::QKEY)
    .union(component::TCLASS)
    .union(component::PKEY)
    .union(component::FLOW_LABEL)
    .union(component::SL);

fn mgid(number: u8) -> Gid {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1], bytes[15]) = (0xFF, 0x12, number);
    Gid(bytes)
}

/// A request about the membership of the port with LID `of`, made by `by`.
struct About {
    by: u16,
    of: Gid,
    mgid: Gid,
    state: u8,
    mask: ComponentMask,
    record: Record,
}

fn about(by: u16, of: u16, mgid: Gid, state: u8) -> About {
    let mut record = [0; 52];
    edit(&mut record).set_pkey(PKey::DEFAULT_FULL);
    About { by, of: gid(of), mgid, state, mask: CREATE, record }
}

impl About {
    fn with(
        mut self,
        mask: ComponentMask,
        set: impl FnOnce(&mut McMemberRecord<&mut Record>),
    ) -> Self {
        self.mask |= mask;
        set(&mut edit(&mut self.record));
        self
    }

    fn request(mut self, method: Method) -> Request {
        edit(&mut self.record)
            .set_mgid(self.mgid)
            .set_port_gid(self.of)
            .set_join_state(JoinState(self.state));
        request(self.by, method, attribute::MC_MEMBER_RECORD, self.mask, &self.record)
    }

    fn set(self) -> Request {
        self.request(Method::SET)
    }

    fn delete(self) -> Request {
        self.request(Method::DELETE)
    }
}

/// A port asks for itself to join or create.
fn join(lid: u16, number: u8, state: u8) -> Request {
    about(lid, lid, mgid(number), state).set()
}

fn leave(lid: u16, number: u8, state: u8) -> Request {
    about(lid, lid, mgid(number), state).delete()
}

fn record(reply: &Reply) -> Record {
    assert_eq!(reply.status, Status::OK);
    *reply.data.as_ref().expect("granted with a record").data().first_chunk().unwrap()
}

fn joined(registry: &mut Registry, request: Request) -> u8 {
    view(&record(&write(registry, request))).join_state().0
}

fn members(registry: &Registry) -> Vec<(Gid, Guid, u8)> {
    let members = registry.core.members.rows().iter();
    members.map(|m| (m.rid.mgid, m.rid.port_gid.guid(), m.join_state)).collect()
}

fn mlid(registry: &Registry, mgid: Gid) -> Option<u16> {
    registry.group(mgid).map(|group| view(&group.record).mlid().0)
}

fn events(registry: &mut Registry) -> Vec<RegistryEvent> {
    std::iter::from_fn(|| registry.poll_event()).collect()
}

fn predefined(mgid: Gid, sl: u16) -> PredefinedGroup {
    let mut record = [0; 52];
    edit(&mut record)
        .set_mgid(mgid)
        .set_qkey(0xB1B)
        .set_pkey(PKey::DEFAULT_FULL)
        .set_mtu_selector(Selector::Exactly)
        .set_mtu(Mtu::B2048)
        .set_rate_selector(Selector::Exactly)
        .set_rate(Rate::Gbps10)
        .set_sl(Sl::from_low_bits(sl));
    PredefinedGroup { record }
}

#[test]
fn a_group_goes_with_the_last_member_that_keeps_it() {
    let mut registry = Registry::default();
    assert_eq!(joined(&mut registry, join(1, 1, FULL)), FULL);
    assert_eq!(joined(&mut registry, join(2, 1, SEND_ONLY_FULL)), SEND_ONLY_FULL);
    assert_eq!(joined(&mut registry, join(3, 1, NON | SEND_ONLY)), NON | SEND_ONLY);
    assert_eq!(events(&mut registry), [RegistryEvent::GroupCreated(mgid(1))]);
    assert_eq!(joined(&mut registry, leave(1, 1, FULL)), 0);
    assert!(events(&mut registry).is_empty() && registry.group(mgid(1)).is_some());
    assert_eq!(joined(&mut registry, leave(2, 1, SEND_ONLY_FULL)), 0);
    assert_eq!(events(&mut registry), [RegistryEvent::GroupDeleted(mgid(1))]);
    assert!(registry.plane().groups.is_empty() && members(&registry).is_empty());
    assert_eq!(status(&mut registry, leave(3, 1, NON)), INVALID, "it went with the group");
}

/// OpenSM takes such a member out and counts it on, so that the group stays for ever.
/// IBA o15-0.1.14.
#[test]
fn a_member_that_keeps_its_group_in_two_ways_may_give_up_one() {
    let mut registry = Registry::default();
    write(&mut registry, join(1, 1, FULL | SEND_ONLY_FULL));
    assert_eq!(joined(&mut registry, leave(1, 1, FULL)), SEND_ONLY_FULL);
    assert_eq!(members(&registry), [(mgid(1), GUIDS[0], SEND_ONLY_FULL)]);
    assert_eq!(joined(&mut registry, leave(1, 1, SEND_ONLY_FULL)), 0);
    assert!(registry.plane().groups.is_empty());
    assert_eq!(events(&mut registry).len(), 2);
}

#[test]
fn what_a_member_gives_up_as_the_last_takes_all_of_it_along() {
    let mut registry = Registry::default();
    write(&mut registry, join(1, 1, FULL | NON));
    assert_eq!(joined(&mut registry, leave(1, 1, FULL)), 0);
    assert!(members(&registry).is_empty());
}

/// IBA o15-0.2.1, 15.2.5.17.
#[test]
fn whom_another_port_made_a_member_anyone_of_the_partition_takes_out() {
    let mut registry = Registry::default();
    let by_proxy = || about(1, 3, mgid(1), FULL);
    let reply = write(&mut registry, by_proxy().set());
    assert!(view(&record(&reply)).proxy_join(), "set with or without the bit in the request");
    assert_eq!(status(&mut registry, about(4, 3, mgid(1), FULL).delete()), INVALID);
    assert_eq!(status(&mut registry, about(2, 3, mgid(1), FULL).delete()), OK);
    // A port that joined on its own leaves on its own, even if another shows the SM_Key.
    assert_eq!(status(&mut registry, join(3, 1, FULL)), OK);
    assert_eq!(status(&mut registry, by_proxy().delete()), INVALID);
    assert_eq!(status(&mut registry, trusted(by_proxy().delete())), INVALID);
    assert_eq!(status(&mut registry, by_proxy().set()), INVALID);
    assert_eq!(status(&mut registry, leave(3, 1, FULL)), OK);
}

#[test]
fn a_proxy_shares_a_partition_with_whom_it_stands_for() {
    let mut registry = Registry::default();
    assert_eq!(status(&mut registry, about(4, 1, mgid(1), FULL).set()), INVALID);
    let pkey = |pkey| {
        move |r: &mut McMemberRecord<&mut Record>| {
            r.set_pkey(PKey(pkey));
        }
    };
    // Port 2 and 4 share partition 1, in which the group is; with another it is the member's
    // partition that counts.
    let none = ComponentMask::NONE;
    let in_other = about(2, 4, mgid(1), FULL).with(none, pkey(0xFFFF));
    assert_eq!(status(&mut registry, in_other.set()), INVALID);
    let in_first = about(2, 4, mgid(1), FULL).with(none, pkey(0x8001));
    assert_eq!(status(&mut registry, in_first.set()), OK);
    // Regression: port 1 shares the default partition with port 2, and is not in partition 1.
    let by_outsider = about(1, 2, mgid(1), FULL).with(none, pkey(0x8001));
    assert_eq!(status(&mut registry, by_outsider.set()), INVALID);
    let by_outsider = || about(1, 2, mgid(2), FULL).with(none, pkey(0x8001)).set();
    assert_eq!(status(&mut registry, by_outsider()), INVALID);
    assert_eq!(status(&mut registry, trusted(by_outsider())), OK);
}

#[test]
fn an_alias_is_a_member_of_its_own() {
    let mut plane = Registry::default().plane();
    let alias = AliasGuid { alias: Guid(0xB1), port_guid: GUIDS[0], index: 1 };
    plane.alias_guids.insert(Arc::new(alias));
    let mut registry = Registry::restore(&plane, []);
    let by_alias = |state| About {
        of: Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0xB1)),
        ..about(1, 1, mgid(1), state)
    };
    let reply = write(&mut registry, by_alias(FULL).set());
    assert!(!view(&record(&reply)).proxy_join());
    write(&mut registry, join(1, 1, NON));
    assert_eq!(members(&registry), [(mgid(1), GUIDS[0], NON), (mgid(1), Guid(0xB1), FULL)]);
    assert!(is_member(&registry.core, Guid(0xB1)) && !is_member(&registry.core, Guid(0xB2)));
    guid_gone(&mut registry.core, Guid(0xB1));
    assert!(members(&registry).is_empty(), "the alias kept the group");
}

#[test]
fn members_go_with_their_port() {
    let mut registry = Registry::default();
    for request in [join(1, 1, FULL), join(2, 1, NON), join(2, 2, FULL), join(3, 2, FULL)] {
        write(&mut registry, request);
    }
    events(&mut registry);
    let mut left = end_ports();
    left.retain(|port| port.guid != GUIDS[1]);
    let before = registry.sequence();
    registry.fabric_changed(&Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], left.clone()));
    assert_eq!(registry.sequence(), before + 1);
    assert_eq!(members(&registry), [(mgid(1), GUIDS[0], FULL), (mgid(2), GUIDS[2], FULL)]);
    assert!(events(&mut registry).is_empty());
    left.retain(|port| port.guid != GUIDS[0]);
    registry.fabric_changed(&Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], left.clone()));
    assert_eq!(events(&mut registry), [RegistryEvent::GroupDeleted(mgid(1))]);
    let before = registry.sequence();
    registry.fabric_changed(&Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], left));
    assert_eq!(registry.sequence(), before, "nothing changed");
}

#[test]
fn a_repeat_gets_the_answer_of_the_first() {
    let mut registry = Registry::default();
    let creation = About { mgid: Gid::ZERO, ..about(1, 1, mgid(1), FULL) }.set();
    let first = write(&mut registry, creation.clone());
    assert_eq!(write(&mut registry, creation.clone()), first);
    assert_eq!(registry.plane().groups.len(), 1);
    // Also after a restart, and not for ever.
    let mut changes = registry.take_changes();
    let mut restarted = Registry::restore(&registry.plane(), changes.outcomes_put.clone());
    assert_eq!(write(&mut restarted, creation.clone()).data, first.data);
    assert_eq!(restarted.counters().repeated, 1);
    let made = view(&record(&first)).mgid();
    let gone = About { mgid: made, ..about(1, 1, mgid(1), FULL) }.delete();
    let left = write(&mut restarted, gone.clone());
    assert_eq!((left.status, write(&mut restarted, gone.clone())), (Status::OK, left));
    assert!(restarted.plane().groups.is_empty());
    changes.outcomes_put.extend(restarted.take_changes().outcomes_put);
    let later = NOW_S + Settings::default().retry_window_s + 1;
    assert_eq!(restarted.next_expiry(), Some(later));
    restarted.expire(later);
    let since_s = restarted.take_changes().outcomes_since_s;
    assert!(changes.outcomes_put.iter().all(|(_, outcome)| outcome.at_s < since_s));
    let again = restarted.write(later, &ports(), &creation);
    assert_ne!(view(&record(&again)).mgid(), made, "an MGID never comes back");
}

/// Regression: a client that joined, left, and joined again with the TransactionID of its first
/// request got the stored answer, OK, and was no member.
#[test]
fn a_request_whose_effect_was_undone_is_decided_again() {
    let mut registry = Registry::default();
    let first = join(1, 1, FULL);
    for _ in 0..3 {
        let joined = write(&mut registry, first.clone());
        assert_eq!((joined.status, members(&registry).len()), (Status::OK, 1));
        assert_eq!(status(&mut registry, leave(1, 1, FULL)), OK);
    }
    assert_eq!(registry.counters().repeated, 0);
}

/// A repeat that a responder sends again on its next stream can arrive after the client has left.
#[test]
fn a_late_repeat_does_not_undo_what_its_client_did_since() {
    let mut registry = Registry::default();
    let creation = About { mgid: Gid::ZERO, ..about(1, 1, mgid(1), FULL) }.set();
    let first = Request { seen: registry.sequence(), ..creation };
    let made = view(&record(&write(&mut registry, first.clone()))).mgid();
    let repeat = write(&mut registry, first.clone());
    assert!(repeat.status == Status::OK && !repeat.dropped, "nothing has overtaken it");
    let left = About { mgid: made, ..about(1, 1, mgid(1), FULL) }.delete();
    assert_eq!(status(&mut registry, left), OK);
    assert!(write(&mut registry, first.clone()).dropped);
    assert!(members(&registry).is_empty() && registry.plane().groups.is_empty());
    assert_eq!((registry.counters().repeated, registry.counters().overtaken), (1, 1));
    // Its client did send it after that: it counts its requests from 1 again.
    let seen = registry.sequence();
    let again = write(&mut registry, Request { seen, ..first });
    assert_ne!(view(&record(&again)).mgid(), made);
    assert_eq!(members(&registry).len(), 1);
}

#[test]
fn the_port_is_named_by_either_prefix_and_no_other() {
    let prefix = 0xFEC0 << 48;
    let ports = Ports::new(prefix, GUIDS[0], end_ports());
    let mut registry = Registry::default();
    let of = |prefix| About { of: Gid::new(prefix, GUIDS[0]), ..about(1, 1, mgid(1), FULL) };
    let reply = registry.write(NOW_S, &ports, &of(SUBNET_PREFIX_DEFAULT).set());
    assert_eq!(view(&record(&reply)).port_gid(), gid(1), "answered as asked");
    assert_eq!(registry.plane().members.get(0).unwrap().rid.port_gid.prefix(), prefix);
    assert_eq!(registry.write(NOW_S, &ports, &of(prefix).delete()).status, Status::OK);
    let reply = registry.write(NOW_S, &ports, &of(1).set());
    assert_eq!(reply.status, Status::SA_REQ_INVALID_GID);
}

#[test]
fn unknown_ports_join_nothing() {
    let mut registry = Registry::default();
    let unknown = About { of: Gid::new(SUBNET_PREFIX_DEFAULT, Guid(7)), ..about(1, 1, mgid(1), 1) };
    assert_eq!(status(&mut registry, unknown.set()), INVALID);
}

#[test]
fn a_join_that_is_refused_leaves_nothing_behind() {
    let mut registry = Registry::default();
    // Realizable, but the port is not in the partition.
    let foreign = about(1, 1, mgid(1), FULL).with(ComponentMask::NONE, |record| {
        record.set_pkey(PKey(0x8001));
    });
    assert_eq!(status(&mut registry, foreign.set()), INVALID);
    let changes = registry.take_changes();
    assert!(changes.is_empty() && events(&mut registry).is_empty());
    write(&mut registry, join(1, 2, FULL));
    assert_eq!(mlid(&registry, mgid(2)), Some(0xC000), "no MLID was used up");
}

#[test]
fn there_is_an_end_to_what_can_be_registered() {
    let mut ports = ports();
    (ports.settings.records_max, ports.settings.records_reserved) = (2, 0);
    let mut registry = Registry::default();
    assert_eq!(registry.write(NOW_S, &ports, &join(1, 1, FULL)).status, Status::OK);
    let reply = registry.write(NOW_S, &ports, &join(2, 1, FULL));
    assert_eq!(reply.status, Status::SA_NO_RESOURCES);
    assert_eq!(registry.counters().records_refused, 1);
    assert_eq!(registry.write(NOW_S, &ports, &join(1, 1, NON)).status, Status::OK, "no new record");
}

#[test]
fn the_last_room_is_for_trusted_requesters() {
    let mut ports = ports();
    (ports.settings.records_max, ports.settings.records_reserved) = (3, 1);
    let mut registry = Registry::default();
    assert_eq!(registry.write(NOW_S, &ports, &join(1, 1, FULL)).status, Status::OK);
    let reply = registry.write(NOW_S, &ports, &join(2, 1, FULL));
    assert_eq!(reply.status, Status::SA_NO_RESOURCES);
    let reply = registry.write(NOW_S, &ports, &trusted(join(2, 1, FULL)));
    assert_eq!(reply.status, Status::OK);
    // A group and its member are two.
    (ports.settings.records_max, ports.settings.records_reserved) = (4, 0);
    let reply = registry.write(NOW_S, &ports, &join(1, 2, FULL));
    assert_eq!(reply.status, Status::SA_NO_RESOURCES);
    assert!(registry.group(mgid(2)).is_none());
}

#[test]
fn a_port_creates_so_many_groups_and_no_more() {
    let mut ports = ports();
    ports.settings.groups_per_port_max = 2;
    let mut registry = Registry::default();
    let refused = Status::SA_NO_RESOURCES;
    let write = |registry: &mut Registry, request| registry.write(NOW_S, &ports, &request).status;
    for group in [1, 2] {
        assert_eq!(write(&mut registry, join(1, group, FULL)), Status::OK);
    }
    assert_eq!(write(&mut registry, join(1, 3, FULL)), refused);
    // Nor in the name of another, whose own room that leaves alone.
    assert_eq!(write(&mut registry, about(1, 2, mgid(3), FULL).set()), refused);
    assert!(registry.group(mgid(3)).is_none());
    assert_eq!(registry.counters().quota_refused, 2);
    assert_eq!(write(&mut registry, join(2, 3, FULL)), Status::OK);
    assert_eq!(write(&mut registry, join(1, 3, FULL)), Status::OK, "it is another's group");
    let mut restored = Registry::restore(&registry.plane(), []);
    for registry in [&mut registry, &mut restored] {
        assert_eq!(write(registry, join(1, 4, FULL)), refused);
        assert_eq!(write(registry, trusted(join(1, 4, FULL))), Status::OK);
        assert_eq!(write(registry, about(1, 1, mgid(4), FULL).delete()), Status::OK);
        assert_eq!(write(registry, about(1, 1, mgid(1), FULL).delete()), Status::OK);
        assert_eq!(write(registry, join(1, 5, FULL)), Status::OK, "there is room again");
    }
}

/// Regression: one port created so many groups that no other could create any.
#[test]
fn one_port_leaves_mlids_to_others() {
    let mut ports = ports();
    // As many as common switches have.
    ports.mlid_last = Lid(0xC000 + 1023);
    let mut registry = Registry::default();
    let join = |lid: u16, group: u16| {
        let mut wide = mgid(group as u8);
        wide.0[14] = (group >> 8) as u8;
        about(lid, lid, wide, FULL).set()
    };
    for group in 0..1040 {
        let status = registry.write(NOW_S, &ports, &join(1, group)).status;
        assert_eq!(status, Status::OK, "{group}");
    }
    let mlids = |registry: &Registry| {
        let plane = registry.plane();
        let mlid = |row: &MulticastGroup| view(&row.record).mlid();
        plane.groups.iter().map(|row| mlid(row)).collect::<BTreeSet<Lid>>()
    };
    assert_eq!(mlids(&registry).len(), 512);
    // Another one gets its own, half of the rest, also after a restart.
    let mut registry = Registry::restore(&registry.plane(), []);
    let before = mlids(&registry).len();
    for group in 2000..2300 {
        let status = registry.write(NOW_S, &ports, &join(2, group)).status;
        assert_eq!(status, Status::OK, "{group}");
    }
    assert_eq!(mlids(&registry).len() - before, 256);
}

#[test]
fn memberships_are_charged_to_the_port_that_asks() {
    let mut ports = ports();
    ports.settings.memberships_per_port_max = 2;
    let mut registry = Registry::default();
    let refused = Status::SA_NO_RESOURCES;
    let write = |registry: &mut Registry, request| registry.write(NOW_S, &ports, &request).status;
    assert_eq!(write(&mut registry, join(1, 1, FULL)), Status::OK);
    assert_eq!(write(&mut registry, about(1, 2, mgid(1), FULL).set()), Status::OK, "by proxy");
    assert_eq!(write(&mut registry, join(1, 2, FULL)), refused);
    assert_eq!(write(&mut registry, about(1, 3, mgid(1), FULL).set()), refused);
    assert_eq!(write(&mut registry, join(1, 1, NON)), Status::OK, "no new one");
    assert_eq!(registry.counters().quota_refused, 2);
    for group in [2, 3] {
        assert_eq!(write(&mut registry, join(2, group, FULL)), Status::OK, "all of its own");
    }
    assert_eq!(write(&mut registry, join(2, 4, FULL)), refused);
    // After a restart, groups joined by proxy count for no port, not even the member.
    let mut restored = Registry::restore(&registry.plane(), []);
    assert_eq!(write(&mut restored, join(2, 4, FULL)), refused);
    assert_eq!(write(&mut restored, about(2, 2, mgid(3), FULL).delete()), Status::OK);
    assert_eq!(write(&mut restored, join(2, 4, FULL)), Status::OK);
    // Ports that are gone have none.
    let mut others = end_ports();
    others.remove(1);
    registry.fabric_changed(&Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], others));
    assert_eq!(write(&mut registry, join(2, 5, FULL)), Status::OK);
    assert_eq!(write(&mut registry, join(1, 5, FULL)), Status::OK, "its proxy join is gone");
}

#[test]
fn switches_have_members_too() {
    let mut all = end_ports();
    all[2].node_type = NodeType::Switch;
    all[2].mtu = Mtu::B256;
    let ports = Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], all);
    let mut registry = Registry::default();
    let reply = registry.write(NOW_S, &ports, &join(3, 1, FULL));
    assert_eq!(view(&record(&reply)).mtu(), Mtu::B256.code(), "the most that it takes");
    registry.write(NOW_S, &ports, &join(1, 2, FULL));
    let reply = registry.write(NOW_S, &ports, &join(3, 2, FULL));
    assert_eq!(reply.status, Status::SA_REQ_INVALID, "its packets would not pass");
}
