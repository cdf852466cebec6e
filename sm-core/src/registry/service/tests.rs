//! Services: who may write them, and how long they last.

use super::*;
use crate::registry::testing::{
    NOW_S, answered, end_ports, gid, port, ports, request, trusted, write,
};
use crate::registry::{Registry, testing};
use ib_mad::types::SUBNET_PREFIX_DEFAULT;
use ib_mad::wire::sa::{ComponentMask, attribute};

const ID: u64 = 0x1234;
const RID: ComponentMask = component::SERVICE_ID.union(component::SERVICE_GID);
const WITH_PKEY: ComponentMask = RID.union(component::SERVICE_PKEY);
const WITH_LEASE: ComponentMask = RID.union(component::SERVICE_LEASE);
const WITH_KEY: ComponentMask = RID.union(component::SERVICE_KEY);

/// The service of the port `owner`, of its GID and with this key.
fn record(owner: u16, key: u8) -> [u8; LEN] {
    let mut record = [0; LEN];
    let mut view = ServiceRecord::new(&mut record[..]).unwrap();
    view.set_service_id(ID).set_service_gid(gid(owner)).set_service_key([key; 16]);
    record
}

/// A service with this id at this GID.
fn numbered(id: u64, gid: Gid) -> [u8; LEN] {
    let mut record = record(1, 5);
    ServiceRecord::new(&mut record[..]).unwrap().set_service_id(id).set_service_gid(gid);
    record
}

fn leased(lease: u32) -> [u8; LEN] {
    let mut record = record(1, 0);
    ServiceRecord::new(&mut record[..]).unwrap().set_service_lease(lease);
    record
}

fn set(slid: u16, mask: ComponentMask, record: [u8; LEN]) -> Request {
    request(slid, Method::SET, attribute::SERVICE_RECORD, mask, &record)
}

fn delete(slid: u16, mask: ComponentMask, record: [u8; LEN]) -> Request {
    request(slid, Method::DELETE, attribute::SERVICE_RECORD, mask, &record)
}

fn status(registry: &mut Registry, request: Request) -> Status {
    testing::status(registry, request).expect("services are always answered")
}

fn services(registry: &Registry) -> Vec<Service> {
    registry.plane().services.iter().map(|row| (**row).clone()).collect()
}

#[test]
fn a_port_sets_changes_and_deletes_its_own_service() {
    let mut registry = Registry::default();
    assert_eq!(status(&mut registry, set(1, WITH_KEY, record(1, 1))), Status::OK);
    assert_eq!(status(&mut registry, set(1, RID, record(1, 0))), Status::OK);
    assert_eq!(services(&registry).len(), 1);
    assert_eq!(services(&registry)[0].record[Service::KEY], [0; 16]);
    assert_eq!(status(&mut registry, delete(1, RID, record(1, 0))), Status::OK);
    assert!(services(&registry).is_empty());
    assert_eq!(status(&mut registry, delete(1, RID, record(1, 0))), Status::SA_NO_RECORDS);
}

/// Regression: a repeat got the answer of the first request, although the service had been changed,
/// deleted, or had expired.
#[test]
fn a_request_for_a_service_that_has_changed_is_decided_again() {
    let mut registry = Registry::default();
    let first = set(1, RID, record(1, 1));
    let other = set(1, RID, numbered(ID, gid(1)));
    assert_eq!(status(&mut registry, first.clone()), Status::OK);
    assert_eq!(status(&mut registry, other.clone()), Status::OK);
    let late = Request { seen: registry.sequence() - 1, ..first.clone() };
    assert!(write(&mut registry, late).dropped);
    assert_eq!(services(&registry)[0].record[Service::KEY], [5; 16]);
    assert_eq!(status(&mut registry, first.clone()), Status::OK);
    assert_eq!(services(&registry)[0].record[Service::KEY], [1; 16]);
    assert_eq!(status(&mut registry, delete(1, RID, record(1, 1))), Status::OK);
    assert_eq!(status(&mut registry, first), Status::OK);
    assert_eq!(services(&registry).len(), 1);

    let short = set(1, WITH_LEASE, leased(3));
    assert_eq!(status(&mut registry, short.clone()), Status::OK);
    registry.expire(NOW_S + 4);
    assert!(services(&registry).is_empty());
    assert_eq!(registry.write(NOW_S + 4, &ports(), &short).status, Status::OK);
    assert_eq!(services(&registry)[0].expires_s, Some(NOW_S + 8));
}

/// Regression: a repeat had waited at a responder while the master died. Its successor set the
/// service again, although its client had got an answer and had deleted it since.
#[test]
fn what_was_read_before_a_takeover_is_dropped() {
    let mut first = Registry::default();
    assert_eq!(status(&mut first, set(1, RID, record(1, 1))), Status::OK);
    let seen = first.sequence();
    assert_eq!(status(&mut first, delete(1, RID, record(1, 1))), Status::OK);
    let mut plane = first.plane();
    plane.sequence += 1 << 20;
    let mut next = Registry::take_over(&plane, []);
    let late = Request { seen, ..set(1, RID, record(1, 1)) };
    assert!(write(&mut next, late.clone()).dropped);
    assert!(services(&next).is_empty());
    assert_eq!(next.counters().overtaken, 1);
    for seen in [0, next.sequence()] {
        assert_eq!(status(&mut next, Request { seen, ..late.clone() }), Status::OK);
    }
    // After a restart outcomes are known.
    let mut again = Registry::restore(&plane, []);
    assert_eq!(status(&mut again, late), Status::OK);
}

/// OpenSM lets any port do all of this.
#[test]
fn the_service_of_another_port_cannot_be_written() {
    let mut registry = Registry::default();
    assert_eq!(status(&mut registry, set(2, RID, record(1, 0))), Status::SA_REQ_INVALID);
    assert_eq!(status(&mut registry, set(1, RID, record(1, 0))), Status::OK);
    let before = services(&registry);
    assert_eq!(status(&mut registry, set(2, WITH_KEY, record(1, 0))), Status::SA_REQ_INVALID);
    assert_eq!(status(&mut registry, delete(2, WITH_KEY, record(1, 0))), Status::SA_NO_RECORDS);
    assert_eq!(services(&registry), before);
    assert_eq!(status(&mut registry, trusted(set(2, WITH_KEY, record(1, 5)))), Status::OK);
    assert_eq!(status(&mut registry, trusted(delete(2, RID, record(1, 0)))), Status::OK);
}

/// Proves IBA C15-0.1.14.
#[test]
fn the_key_of_a_service_allows_to_write_it() {
    let mut registry = Registry::default();
    assert_eq!(status(&mut registry, set(1, WITH_KEY, record(1, 7))), Status::OK);
    assert_eq!(status(&mut registry, set(2, WITH_KEY, record(1, 8))), Status::SA_REQ_INVALID);
    // A key that the mask does not name is none.
    assert_eq!(status(&mut registry, set(2, RID, record(1, 7))), Status::SA_REQ_INVALID);
    assert_eq!(status(&mut registry, set(2, WITH_KEY, record(1, 7))), Status::OK);
    assert_eq!(status(&mut registry, delete(2, RID, record(1, 7))), Status::SA_NO_RECORDS);
    assert_eq!(status(&mut registry, delete(2, WITH_KEY, record(1, 7))), Status::OK);
}

#[test]
fn keys_are_shown_to_trusted_requesters_only() {
    let mut registry = Registry::default();
    let answered =
        |registry: &mut Registry, request| answered(registry, &request)[Service::KEY].to_vec();
    assert_eq!(answered(&mut registry, set(1, WITH_KEY, record(1, 7))), [0; 16]);
    assert_eq!(answered(&mut registry, trusted(set(1, WITH_KEY, record(1, 7)))), [7; 16]);
    assert_eq!(answered(&mut registry, delete(1, RID, record(1, 0))), [0; 16]);
    assert!(!format!("{:?}", services(&registry)).contains('7'));
}

/// Proves IBA C15-0.1.13.
#[test]
fn a_service_needs_its_id_and_gid_and_a_partition_of_both_ends() {
    let mut registry = Registry::default();
    let with = |owner, pkey| {
        let mut record = record(owner, 0);
        ServiceRecord::new(&mut record[..]).unwrap().set_service_pkey(PKey(pkey));
        record
    };
    let mut refused = |request| status(&mut registry, request) == Status::SA_REQ_INVALID;
    assert!(refused(set(1, component::SERVICE_ID, record(1, 0))));
    assert!(refused(set(1, component::SERVICE_GID, record(1, 0))));
    assert!(refused(set(1, WITH_PKEY, with(1, 0x8001))), "not its partition");
    assert!(refused(trusted(set(2, WITH_PKEY, with(1, 0x8001)))), "not the service's");
    assert!(refused(trusted(set(4, WITH_PKEY, with(2, 0xFFFF)))), "not the requester's");
    assert!(!refused(set(2, WITH_PKEY, with(2, 0x0001))), "limited or full is all one");
    assert!(!refused(set(2, WITH_PKEY, with(2, 0))), "no partition of its own");
}

#[test]
fn a_service_may_be_at_an_alias_of_its_port() {
    let mut registry = Registry::default();
    registry.core.alias_guids.put(sa_proto::snapshot::AliasGuid {
        alias: Guid(0xBB),
        port_guid: testing::GUIDS[1],
        index: 1,
    });
    let mut record = record(1, 0);
    let at = Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0xBB));
    ServiceRecord::new(&mut record[..]).unwrap().set_service_gid(at);
    assert_eq!(status(&mut registry, set(1, RID, record)), Status::SA_REQ_INVALID);
    assert_eq!(status(&mut registry, set(2, RID, record)), Status::OK);
}

#[test]
fn a_service_at_a_multicast_gid_belongs_to_its_key() {
    let mut registry = Registry::default();
    let record = |key| {
        let mut record = record(1, key);
        ServiceRecord::new(&mut record[..]).unwrap().set_service_gid(Gid([0xFF; 16]));
        record
    };
    assert_eq!(status(&mut registry, set(1, WITH_KEY, record(0))), Status::SA_REQ_INVALID);
    assert_eq!(status(&mut registry, set(1, WITH_KEY, record(3))), Status::OK);
    assert_eq!(status(&mut registry, set(2, WITH_KEY, record(4))), Status::SA_REQ_INVALID);
    assert_eq!(status(&mut registry, delete(2, WITH_KEY, record(3))), Status::OK);
}

#[test]
fn leases_run_out_to_the_second() {
    let mut registry = Registry::default();
    let mut other = leased(30);
    ServiceRecord::new(&mut other[..]).unwrap().set_service_id(ID + 1);
    assert_eq!(status(&mut registry, set(1, WITH_LEASE, leased(4))), Status::OK);
    assert_eq!(status(&mut registry, set(1, WITH_LEASE, other)), Status::OK);
    // Registered in any part of its second, a lease lasts at least as long as requested.
    assert_eq!(next_expiry(&registry.core), Some(NOW_S + 5));
    registry.expire(NOW_S + 4);
    assert_eq!(services(&registry).len(), 2);
    registry.expire(NOW_S + 5);
    assert_eq!(services(&registry).len(), 1);
    assert_eq!(next_expiry(&registry.core), Some(NOW_S + 31));
    registry.expire(NOW_S + 31);
    assert!(services(&registry).is_empty() && next_expiry(&registry.core).is_none());
}

#[test]
fn setting_a_service_again_renews_its_lease() {
    let mut registry = Registry::default();
    write(&mut registry, set(1, WITH_LEASE, leased(4)));
    registry.write(NOW_S + 3, &ports(), &set(1, WITH_LEASE, leased(4)));
    registry.expire(NOW_S + 6);
    assert_eq!(services(&registry)[0].expires_s, Some(NOW_S + 8));
    // Without the component, and with the greatest value, it never ends.
    for request in [set(1, RID, leased(4)), set(1, WITH_LEASE, leased(u32::MAX))] {
        write(&mut registry, set(1, WITH_LEASE, leased(4)));
        let answered = answered(&mut registry, &request);
        assert_eq!(ServiceRecord::new(&answered[..]).unwrap().service_lease(), u32::MAX);
        assert_eq!(next_expiry(&registry.core), None);
    }
}

#[test]
fn a_service_whose_lease_is_over_is_not_found() {
    let mut registry = Registry::default();
    assert_eq!(status(&mut registry, set(1, WITH_LEASE, leased(0))), Status::OK);
    let over = registry.write(NOW_S + 1, &ports(), &delete(1, RID, leased(0)));
    assert_eq!(over.status, Status::SA_NO_RECORDS);
}

#[test]
fn a_service_and_its_lease_outlive_port_and_restart() {
    let mut registry = Registry::default();
    write(&mut registry, set(1, WITH_LEASE, leased(4)));
    registry.fabric_changed(&Ports::new(SUBNET_PREFIX_DEFAULT, Guid(1), Vec::new()));
    let mut registry = Registry::restore(&registry.plane(), []);
    assert_eq!(next_expiry(&registry.core), Some(NOW_S + 5));
    registry.expire(NOW_S + 5);
    assert!(services(&registry).is_empty());
}

#[test]
fn a_port_has_so_many_services_and_no_more() {
    let mut ports = ports();
    ports.settings.services_per_port_max = 2;
    let mut registry = Registry::default();
    let mut status = |request| registry.write(NOW_S, &ports, &request).status;
    for id in [1, 2] {
        assert_eq!(status(set(1, RID, numbered(id, gid(1)))), Status::OK);
    }
    assert_eq!(status(set(1, RID, numbered(3, gid(1)))), Status::SA_NO_RESOURCES);
    assert_eq!(status(set(1, RID, numbered(2, gid(1)))), Status::OK, "what is there can change");
    assert_eq!(status(set(2, RID, numbered(3, gid(2)))), Status::OK, "another's room is its own");
    assert_eq!(status(trusted(set(2, RID, numbered(3, gid(1))))), Status::OK);
    for id in [1, 2] {
        assert_eq!(status(delete(1, RID, numbered(id, gid(1)))), Status::OK);
    }
    assert_eq!(status(set(1, RID, numbered(1, gid(1)))), Status::OK, "there is room again");
    assert_eq!((registry.counters().quota_refused, registry.counters().records_refused), (1, 0));
}

#[test]
fn services_at_multicast_gids_are_charged_to_the_port_that_asks() {
    let mut ports = ports();
    ports.settings.services_per_port_max = 2;
    let mut registry = Registry::default();
    // Their lower halves are other ports' GUIDs, or of none.
    let at = |guid| Gid::new(0xFF12_0000_0000_0000, guid);
    let keyed = |slid, guid| set(slid, RID | component::SERVICE_KEY, numbered(1, at(guid)));
    let mut status = |request| registry.write(NOW_S, &ports, &request).status;
    assert_eq!(status(keyed(1, testing::GUIDS[1])), Status::OK);
    assert_eq!(status(keyed(1, Guid(7))), Status::OK);
    assert_eq!(status(keyed(1, Guid(7))), Status::OK, "the same again");
    assert_eq!(status(keyed(1, Guid(8))), Status::SA_NO_RESOURCES);
    for id in [1, 2] {
        assert_eq!(status(set(2, RID, numbered(id, gid(2)))), Status::OK, "none of them is its");
    }
    let mut restored = Registry::restore(&registry.plane(), []);
    assert_eq!(restored.write(NOW_S, &ports, &keyed(3, Guid(9))).status, Status::OK);
    let more = set(2, RID, numbered(3, gid(2)));
    assert_eq!(restored.write(NOW_S, &ports, &more).status, Status::SA_NO_RESOURCES);
}

#[test]
fn a_port_is_known_by_each_of_its_lids() {
    let mut all = end_ports();
    all.truncate(0);
    all.push(crate::registry::EndPort { lid: ib_mad::types::Lid(8), lmc: 2, ..port(1, &[0xFFFF]) });
    let ports = Ports::new(SUBNET_PREFIX_DEFAULT, testing::GUIDS[0], all);
    let mut registry = Registry::default();
    let reply = registry.write(NOW_S, &ports, &set(11, RID, record(1, 0)));
    assert_eq!(reply.status, Status::OK);
}

/// Regression: a port that appeared with the GUID of a host that was away changed the services of
/// that, with keys or without, as if it were the host.
#[test]
fn a_newcomer_does_not_change_what_was_registered_for_its_gid() {
    let mut registry = Registry::default();
    let (keyed, plain) = (numbered(1, gid(1)), leased(30));
    assert_eq!(status(&mut registry, set(1, WITH_KEY, keyed)), Status::OK);
    assert_eq!(status(&mut registry, set(1, WITH_LEASE, plain)), Status::OK);
    let before = services(&registry);
    let mut with_newcomer = ports();
    with_newcomer.set_newcomers([end_ports()[0].guid]);
    registry.fabric_changed(&with_newcomer);
    let mut ask = |request: Request| registry.write(NOW_S, &with_newcomer, &request).status;
    let mut other_key = keyed;
    ServiceRecord::new(&mut other_key[..]).unwrap().set_service_key([9; 16]);
    assert_eq!(ask(set(1, WITH_KEY, other_key)), Status::SA_REQ_INVALID);
    assert_eq!(ask(set(1, WITH_LEASE, leased(60))), Status::SA_REQ_INVALID);
    assert_eq!(ask(delete(1, RID, plain)), Status::SA_NO_RECORDS);
    assert_eq!(ask(delete(1, RID, keyed)), Status::SA_NO_RECORDS);
    assert_eq!(ask(set(1, WITH_LEASE, plain)), Status::OK, "it is renewed as it is");
    assert_eq!(ask(set(1, RID, numbered(7, gid(1)))), Status::OK, "a new one");
    assert_eq!(ask(delete(1, WITH_KEY, keyed)), Status::OK, "it has the key");
    assert_eq!(services(&registry).len(), before.len());
    // It is the host after all.
    registry.fabric_changed(&ports());
    assert_eq!(status(&mut registry, set(1, WITH_LEASE, leased(60))), Status::OK);
}
