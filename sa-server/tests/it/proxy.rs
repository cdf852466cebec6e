//! Requests to QP0 of a responder's port by clients that take it for the SM's port.

use std::sync::Arc;
use std::time::Instant;

use crate::common::{Chain, published};
use ib_mad::transport::Packet;
use ib_mad::types::{Guid, Lid, Qpn, Sl};
use ib_mad::wire::attribute::{SmInfo, SmInfoRepr, SmState};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{self, Smp};
use sa_proto::snapshot::SubnetManager;
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::sm::forward::Exchange;
use sa_server::stats::Stats;

const SM: Guid = Guid(0x5);

fn smp(method: Method, attribute_id: AttributeId) -> Packet {
    let mut packet = Packet::default();
    smp::Request { method, attribute_id, attribute_modifier: 0, tid: 0x77, m_key: 0xFEED }
        .write_lid_routed(&mut packet.mad);
    (packet.address.lid, packet.address.sl) = (Lid(4), Sl::from_low_bits(3));
    (packet.address.qpn, packet.address.local_qpn) = (Qpn::SMI, Qpn::SMI);
    packet
}

/// A responder whose snapshot has the master's SMInfo, and its exchange with the SM.
fn responder() -> (Responder, Arc<Exchange>) {
    let info =
        SmInfoRepr { guid: SM, sm_key: 0, act_count: 9, priority: 3, sm_state: SmState::Master };
    let mut plane = Chain { switches: 2, hosts_each: 2 }.plane(|_| {});
    plane.subnet.sm_port_guid = SM;
    let row = SubnetManager { port_guid: SM, lid: Lid(1), info: info.to_bytes() };
    plane.subnet_managers = vec![Arc::new(row)];
    let publisher = published(&plane);
    let exchange = Exchange::new(1).unwrap();
    let stats = Arc::new(Stats::default());
    let responder = Responder::new(publisher.reader(), ResponderConfig::default(), stats);
    (responder.with_exchange(exchange.worker(0)), exchange)
}

#[test]
fn sm_info_is_answered_in_the_masters_place_while_it_is_followed() {
    let (mut responder, exchange) = responder();
    let mut packet = smp(Method::GET, AttributeId::SM_INFO);
    assert_eq!(responder.handle(&mut packet, Instant::now()), Outcome::Nothing, "it may be dead");

    exchange.set_reachable(0, true);
    assert_eq!(responder.handle(&mut packet, Instant::now()), Outcome::Send);
    let answer = Smp::new(&packet.mad).unwrap();
    assert_eq!((answer.method(), answer.tid(), answer.m_key()), (Method::GET_RESP, 0x77, 0));
    let info = SmInfo::new(answer.data_bytes()).unwrap();
    assert_eq!((info.guid(), info.sm_key(), info.priority()), (SM, 0, 3));
    assert_eq!(info.sm_state(), SmState::Master.code());
    assert!(answer.data_bytes()[21..].iter().all(|&byte| byte == 0));
    assert_eq!((packet.address.lid, packet.address.qpn), (Lid(4), Qpn::SMI));
}

#[test]
fn traps_are_taken_and_not_answered_and_all_else_is_left_alone() {
    let (mut responder, _exchange) = responder();
    let now = Instant::now();
    let mut trap = smp(Method::TRAP, AttributeId::NOTICE);
    assert_eq!(responder.handle(&mut trap, now), Outcome::Nothing);
    let mut back = trap.clone();
    back.carrier.undelivered = 110;
    assert_eq!(responder.handle(&mut back, now), Outcome::Nothing);
    for (method, attribute) in [
        (Method::SET, AttributeId::SM_INFO),
        (Method::GET, AttributeId::PORT_INFO),
        (Method::GET_RESP, AttributeId::SM_INFO),
    ] {
        let mut packet = smp(method, attribute);
        assert_eq!(responder.handle(&mut packet, now), Outcome::Nothing);
    }
    let stats = responder.stats();
    assert_eq!((stats.traps.get(), stats.sm_infos.get(), stats.requests()), (1, 0, 0));
    assert!(stats.balances());
}

#[test]
fn traps_beyond_the_limit_are_counted() {
    let (mut responder, _exchange) = responder();
    for _ in 0..1030 {
        let mut trap = smp(Method::TRAP, AttributeId::NOTICE);
        responder.handle(&mut trap, Instant::now());
    }
    let stats = responder.stats();
    assert_eq!((stats.traps.get(), stats.traps_lost.get()), (1030, 6));
}
