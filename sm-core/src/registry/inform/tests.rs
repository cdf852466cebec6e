//! Subscriptions: which are one and which are not, and who may have them.

use super::*;
use crate::registry::Registry;
use crate::registry::testing::{
    GUIDS, NOW_S, answered, end_ports, gid, port, ports, request, status, trusted, write,
};
use ib_mad::types::{Guid, PKey, Qpn, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::ProducerType;
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::sa::ComponentMask;

const OK: Option<Status> = Some(Status::OK);
const INVALID: Option<Status> = Some(Status::SA_REQ_INVALID);

/// For trap `trap` of every source, Subscribe set.
fn info(trap: u16) -> [u8; LEN] {
    let mut info = [0; LEN];
    InformInfo::new(&mut info[..])
        .unwrap()
        .set_lid_range_begin(Lid::PERMISSIVE)
        .set_is_generic(1)
        .set_subscribe(1)
        .set_inform_type(0xFFFF)
        .set_trap_number(TrapNumber(trap))
        .set_qpn(Qpn::GSI)
        .set_resp_time_value(19)
        .set_producer_type(ProducerType(0x00FF_FFFF));
    info
}

fn from(gid: Gid) -> [u8; LEN] {
    let mut info = info(64);
    InformInfo::new(&mut info[..]).unwrap().set_gid(gid);
    info
}

fn from_lids(begin: u16, end: u16) -> [u8; LEN] {
    let mut info = info(64);
    let mut view = InformInfo::new(&mut info[..]).unwrap();
    view.set_lid_range_begin(Lid(begin)).set_lid_range_end(Lid(end));
    info
}

fn on(slid: u16, info: [u8; LEN]) -> Request {
    request(slid, Method::SET, AttributeId::INFORM_INFO, ComponentMask::NONE, &info)
}

fn off(slid: u16, mut info: [u8; LEN]) -> Request {
    info[SUBSCRIBE] = 0;
    on(slid, info)
}

fn rows(registry: &Registry) -> Vec<Subscription> {
    registry.plane().subscriptions.iter().map(|row| (**row).clone()).collect()
}

/// Proves IBA o13-12.1.1.
#[test]
fn subscribing_twice_to_one_thing_makes_one_subscription() {
    let mut registry = Registry::default();
    assert_eq!(status(&mut registry, on(1, info(64))), OK);
    // Another way for the reports, and more time for them.
    let mut again = on(1, info(64));
    again.requester.sl = Sl::from_low_bits(3);
    again.requester.pkey = PKey(0x7FFF);
    again.requester.sgid = Some(gid(1));
    InformInfo::new(&mut again.data[..]).unwrap().set_resp_time_value(10);
    assert_eq!(status(&mut registry, again), OK);
    let [row] = &rows(&registry)[..] else { panic!("one subscription") };
    assert_eq!((row.sl.get(), row.pkey, row.grh), (3, PKey(0x7FFF), true));
    assert_eq!(InformInfo::new(&row.inform_info).unwrap().resp_time_value(), 10);
    assert_eq!((row.rid.subscriber_gid, row.lid), (gid(1), Lid(1)));
    // OpenSM wants the very same address for this.
    let mut gone = off(1, info(64));
    gone.requester.sl = Sl::from_low_bits(5);
    assert_eq!(status(&mut registry, gone), OK);
    assert!(rows(&registry).is_empty());
}

#[test]
fn subscriptions_differ_by_what_they_ask_for() {
    let mut registry = Registry::default();
    let mut vendor = info(64);
    InformInfo::new(&mut vendor[..]).unwrap().set_is_generic(0);
    let mut producer = info(64);
    InformInfo::new(&mut producer[..]).unwrap().set_producer_type(ProducerType(4));
    let mut kind = info(64);
    InformInfo::new(&mut kind[..]).unwrap().set_inform_type(3);
    let different = [
        info(64),
        info(65),
        from(gid(2)),
        from_lids(2, 3),
        from_lids(2, 0),
        vendor,
        producer,
        kind,
    ];
    for info in different {
        assert_eq!(status(&mut registry, on(1, info)), OK);
    }
    let mut other_qp = on(1, info(64));
    other_qp.requester.qpn = Qpn(7);
    assert_eq!(status(&mut registry, other_qp), OK);
    assert_eq!(status(&mut registry, on(3, info(64))), OK);
    let numbers: Vec<_> =
        rows(&registry).iter().map(|row| (row.rid.subscriber_gid, row.rid.enumeration)).collect();
    let expected: Vec<_> = (0..9).map(|n| (gid(1), n)).chain([(gid(3), 0)]).collect();
    assert_eq!(numbers, expected);
    // Each goes by itself; its number is free again.
    assert_eq!(status(&mut registry, off(1, from_lids(2, 3))), OK);
    assert_eq!(rows(&registry).len(), 9);
    assert_eq!(status(&mut registry, on(1, info(66))), OK);
    assert!(rows(&registry).iter().any(|row| row.rid.enumeration == 3
        && InformInfo::new(&row.inform_info).unwrap().trap_number() == TrapNumber(66)));
}

#[test]
fn a_gid_leaves_lids_without_meaning() {
    let mut registry = Registry::default();
    assert_eq!(status(&mut registry, on(1, from(gid(2)))), OK);
    let mut other_lids = from(gid(2));
    InformInfo::new(&mut other_lids[..]).unwrap().set_lid_range_begin(Lid(0));
    assert_eq!(status(&mut registry, on(1, other_lids)), OK);
    assert_eq!(rows(&registry).len(), 1);
    assert_eq!(status(&mut registry, off(1, info(64))), INVALID, "not the one of every source");
}

/// Proves IBA o13-2.1.1.
#[test]
fn a_subscription_is_for_the_qp_that_asks() {
    let mut registry = Registry::default();
    let mut names_another = info(64);
    InformInfo::new(&mut names_another[..]).unwrap().set_qpn(Qpn(5));
    let answered = answered(&mut registry, &on(1, names_another));
    assert_eq!(answered[..LEN], names_another, "the answer is a copy");
    assert_eq!(rows(&registry)[0].qpn, Qpn::GSI);
    assert_eq!(InformInfo::new(&rows(&registry)[0].inform_info).unwrap().qpn(), Qpn::GSI);
    assert_eq!(status(&mut registry, off(1, names_another)), INVALID);
    assert_eq!(status(&mut registry, off(1, info(64))), OK);
}

/// IBA 13.4.8.3, o13-13.1.1.
#[test]
fn a_refusal_says_that_there_is_no_subscription() {
    let mut registry = Registry::default();
    let reply = write(&mut registry, on(1, from(Gid::new(0, Guid(0xDEAD)))));
    assert_eq!(reply.status, Status::SA_REQ_INVALID);
    assert_eq!(reply.data.unwrap().data()[SUBSCRIBE], 0);
    let mut neither = info(64);
    neither[SUBSCRIBE] = 2;
    assert_eq!(status(&mut registry, on(1, neither)), INVALID);
    assert_eq!(status(&mut registry, off(1, info(64))), INVALID);
    assert!(rows(&registry).is_empty());
}

/// IBA o13-14.1.1.
#[test]
fn ports_without_a_common_partition_are_not_reported() {
    let mut registry = Registry::default();
    assert_eq!(status(&mut registry, on(1, from(gid(4)))), INVALID);
    assert_eq!(status(&mut registry, on(1, from_lids(2, 4))), INVALID);
    assert_eq!(status(&mut registry, on(1, from_lids(4, 0))), INVALID);
    assert_eq!(status(&mut registry, on(1, from_lids(5, 6))), INVALID, "beyond all LIDs");
    assert_eq!(status(&mut registry, on(1, from_lids(2, 3))), OK);
    assert_eq!(status(&mut registry, on(2, from_lids(2, 0xFFFF))), OK);
    assert_eq!(status(&mut registry, on(1, from_lids(3, 2))), OK, "an empty range");
    assert_eq!(status(&mut registry, on(2, from(Gid::new(7, GUIDS[3])))), OK);
}

/// IBA C15-0.2-1.16.
#[test]
fn security_traps_are_for_the_trusted() {
    for trap in 256..=259 {
        let mut registry = Registry::default();
        assert_eq!(status(&mut registry, on(1, info(trap))), INVALID);
        assert_eq!(status(&mut registry, trusted(on(1, info(trap)))), OK);
        assert!(rows(&registry)[0].trusted);
        assert_eq!(status(&mut registry, off(1, info(trap))), INVALID);
    }
    for trap in [255, 260, 0xFFFF] {
        let mut registry = Registry::default();
        assert_eq!(status(&mut registry, on(1, info(trap))), OK);
        assert!(!rows(&registry)[0].trusted);
    }
    // A vendor's 257 is not that trap.
    let mut vendor = info(257);
    InformInfo::new(&mut vendor[..]).unwrap().set_is_generic(0);
    assert_eq!(status(&mut Registry::default(), on(1, vendor)), OK);
}

#[test]
fn a_subscription_is_trusted_as_its_last_request_was() {
    let mut registry = Registry::default();
    write(&mut registry, trusted(on(1, info(0xFFFF))));
    assert!(rows(&registry)[0].trusted);
    write(&mut registry, on(1, info(0xFFFF)));
    assert!(!rows(&registry)[0].trusted);
}

#[test]
fn a_port_has_so_many_subscriptions_and_no_more() {
    let mut registry = Registry::default();
    for qpn in 0..SUBSCRIPTIONS_PER_PORT_MAX as u32 {
        let mut request = on(1, info(64));
        request.requester.qpn = Qpn(qpn);
        assert_eq!(status(&mut registry, request), OK);
    }
    let mut one_more = on(1, info(64));
    one_more.requester.qpn = Qpn(0xFFFF);
    assert_eq!(status(&mut registry, one_more), Some(Status::SA_NO_RESOURCES));
    assert_eq!(registry.counters().quota_refused, 1);
    assert_eq!(status(&mut registry, on(1, info(64))), OK, "what is there can be changed");
    assert_eq!(status(&mut registry, on(3, info(64))), OK);
}

#[test]
fn subscriptions_outlive_a_flap_and_follow_their_ports_lid() {
    let mut registry = Registry::default();
    for slid in [1, 2, 3] {
        write(&mut registry, on(slid, info(64)));
    }
    let mut all = end_ports();
    all.remove(2);
    all[1].lid = Lid(9);
    let sequence = registry.sequence();
    registry.fabric_changed(&ports());
    assert_eq!(registry.sequence(), sequence, "nothing changed");
    let mut fewer = Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], all);
    registry.fabric_changed(&fewer);
    let lids = |registry: &Registry| -> Vec<_> {
        rows(registry).iter().map(|row| (row.rid.subscriber_gid, row.lid)).collect()
    };
    // Another port may get its LID meanwhile.
    let absent = [(gid(1), Lid(1)), (gid(2), Lid(9)), (gid(3), Lid::NONE)];
    assert_eq!(lids(&registry), absent);
    let sequence = registry.sequence();
    registry.fabric_changed(&fewer);
    assert_eq!(registry.sequence(), sequence, "nothing changed");
    registry.fabric_changed(&ports());
    assert_eq!(lids(&registry), [1, 2, 3].map(|lid| (gid(lid), Lid(lid))));
    fewer.settings.drop_event_subscriptions = true;
    registry.fabric_changed(&fewer);
    assert_eq!(lids(&registry), absent[..2]);
}

#[test]
fn path_bits_are_not_a_move() {
    let wide = EndPort { lid: Lid(8), lmc: 2, ..port(1, &[0xFFFF]) };
    let ports = Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], vec![wide]);
    let mut registry = Registry::default();
    registry.write(NOW_S, &ports, &on(10, info(64)));
    registry.fabric_changed(&ports);
    assert_eq!(rows(&registry)[0].lid, Lid(10));
}

/// Regression: a port that appeared with the GUID of a host that was away got the reports that this
/// had subscribed to, those for trusted ports, too.
#[test]
fn a_newcomer_hears_what_it_subscribes_to_only() {
    let mut registry = Registry::default();
    write(&mut registry, trusted(on(1, info(0xFFFF))));
    let mut with_newcomer = ports();
    with_newcomer.set_newcomers([GUIDS[0]]);
    let heard =
        |registry: &Registry| -> Vec<u16> { rows(registry).iter().map(|row| row.lid.0).collect() };
    registry.fabric_changed(&with_newcomer);
    assert_eq!(heard(&registry), [0]);
    assert_eq!(registry.write(NOW_S, &with_newcomer, &on(1, info(64))).status, Status::OK);
    registry.fabric_changed(&with_newcomer);
    assert_eq!(heard(&registry), [0, 1]);
    registry.fabric_changed(&ports());
    assert_eq!(heard(&registry), [1, 1]);
    assert!(rows(&registry)[0].trusted);
}
