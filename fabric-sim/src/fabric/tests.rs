//! Packets, clients and time: what happens between nodes.

use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use ib_mad::types::{Lid, PortNum, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{
    CapabilityMask, MulticastForwardingTable, PortInfo, PortPhysState, PortState, SmNotice,
    TrapNumber, multicast_forwarding_modifier,
};
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, MgmtClass, Status};
use ib_mad::wire::smp::{self, Request, Smp};
use proptest::prelude::*;

use super::*;
use crate::fault::Probability;
use crate::subnet::NodeIndex;
use crate::virtual_time::VirtualClock;
use ib_mad::netlist::Net;

const NET: &str = "\
Switch 20 \"S1\"
[1] \"H1\"[1]
[2] \"S2\"[2]
[20] \"H3\"[1]

Switch 8 \"S2\"
[1] \"H2\"[1]
[2] \"S1\"[2]

Hca 1 \"H1\"
[1] \"S1\"[1]

Hca 1 \"H2\"
[1] \"S2\"[1]

Hca 1 \"H3\"
[1] \"S1\"[20]
";

/// LIDs that [`Bench::configure`] gives: S1, S2, H1, H2, H3.
const LIDS: [(&str, u16); 5] = [("S1", 1), ("S2", 2), ("H1", 3), ("H2", 4), ("H3", 5)];
/// Directed routes from H1 to the same.
const ROUTES: [&[u8]; 5] = [&[1], &[1, 2], &[], &[1, 2, 1], &[1, 20]];

struct Bench {
    fabric: Fabric,
    clock: VirtualClock,
    /// On H1.
    manager: Endpoint,
    tid: u64,
}

impl Bench {
    fn new(options: Options) -> Self {
        let mut fabric = Fabric::new(&Net::parse("test", NET).unwrap(), options);
        let h1 = fabric.find_node("H1").unwrap();
        let manager = fabric.attach(h1, 1).unwrap();
        Self { fabric, clock: VirtualClock::new(), manager, tid: 0 }
    }

    /// A bench whose fabric is configured as a subnet manager would.
    fn configured() -> Self {
        let mut bench = Self::new(Options::default());
        bench.configure();
        bench
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn node(&self, name: &str) -> NodeIndex {
        self.fabric.find_node(name).unwrap()
    }

    fn attach(&mut self, name: &str) -> Endpoint {
        let node = self.node(name);
        self.fabric.attach(node, 0).unwrap()
    }

    fn request(&mut self, method: Method, attribute: AttributeId, modifier: u32) -> Request {
        self.tid += 1;
        Request {
            method,
            attribute_id: attribute,
            attribute_modifier: modifier,
            tid: self.tid,
            m_key: 0,
        }
    }

    fn directed(
        &mut self,
        method: Method,
        attribute: AttributeId,
        modifier: u32,
        path: &[u8],
    ) -> Packet {
        let path: Vec<PortNum> = path.iter().copied().map(PortNum).collect();
        let mut packet = smp_packet(Lid::PERMISSIVE);
        let request = self.request(method, attribute, modifier);
        request.write_directed(&mut packet.mad, &path).unwrap();
        packet
    }

    fn by_lid(&mut self, attribute: AttributeId, lid: u16) -> Packet {
        let mut packet = smp_packet(Lid(lid));
        self.request(Method::GET, attribute, 0).write_lid_routed(&mut packet.mad);
        packet
    }

    fn send(&mut self, packet: &Packet) {
        let now = self.now();
        self.fabric.send(now, self.manager, packet);
    }

    fn poll(&mut self) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        let now = self.now();
        self.fabric.poll(now, &mut deliveries, usize::MAX);
        deliveries
    }

    /// Sends and yields the one answer.
    fn ask(&mut self, packet: &Packet) -> Packet {
        self.send(packet);
        let mut deliveries = self.poll();
        assert_eq!(deliveries.len(), 1);
        let delivery = deliveries.remove(0);
        assert_eq!(delivery.endpoint, self.manager);
        delivery.packet
    }

    fn ask_directed(&mut self, attribute: AttributeId, modifier: u32, path: &[u8]) -> [u8; 64] {
        let packet = self.directed(Method::GET, attribute, modifier, path);
        let answer = self.ask(&packet);
        let answer = Smp::new(&answer.mad[..]).unwrap();
        assert_eq!((answer.method(), answer.status()), (Method::GET_RESP, Status::OK));
        answer.data()
    }

    fn set_directed(
        &mut self,
        attribute: AttributeId,
        modifier: u32,
        path: &[u8],
        data: &[u8; 64],
    ) -> Status {
        let mut packet = self.directed(Method::SET, attribute, modifier, path);
        packet.mad[smp::DATA].copy_from_slice(data);
        Smp::new(&self.ask(&packet).mad[..]).unwrap().status()
    }

    fn set_port(
        &mut self,
        path: &[u8],
        port: u8,
        change: impl Fn(&mut PortInfo<&mut [u8]>),
    ) -> Status {
        let mut data = self.ask_directed(AttributeId::PORT_INFO, port.into(), path);
        let mut info = PortInfo::new(&mut data[..]).unwrap();
        info.set_port_state(PortState::NoChange).set_port_physical_state(PortPhysState::NoChange);
        change(&mut info);
        self.set_directed(AttributeId::PORT_INFO, port.into(), path, &data)
    }

    fn set_lft(&mut self, path: &[u8], ports: &[(u16, u8)]) {
        let mut block = [0xFF; 64];
        for &(lid, port) in ports {
            block[usize::from(lid)] = port;
        }
        let attribute = AttributeId::LINEAR_FORWARDING_TABLE;
        assert_eq!(self.set_directed(attribute, 0, path, &block), Status::OK);
        let mut info = self.ask_directed(AttributeId::SWITCH_INFO, 0, path);
        ib_mad::wire::attribute::SwitchInfo::new(&mut info[..])
            .unwrap()
            .set_linear_fdb_top(Lid(63))
            .set_port_state_change(true);
        assert_eq!(self.set_directed(AttributeId::SWITCH_INFO, 0, path, &info), Status::OK);
    }

    fn configure(&mut self) {
        for ((_, lid), path) in LIDS.into_iter().zip(ROUTES) {
            let status = self.set_port(path, 0, |info| {
                info.set_base_lid(Lid(lid)).set_master_sm_lid(Lid(3));
            });
            assert_eq!(status, Status::OK);
        }
        self.set_lft(&[1], &[(1, 0), (2, 2), (3, 1), (4, 2), (5, 20)]);
        self.set_lft(&[1, 2], &[(1, 2), (2, 0), (3, 2), (4, 1), (5, 2)]);
        let ends: [(&[u8], u8); 8] = [
            (&[1], 1),
            (&[1], 2),
            (&[1], 20),
            (&[1, 2], 1),
            (&[1, 2], 2),
            (&[], 1),
            (&[1, 2, 1], 1),
            (&[1, 20], 1),
        ];
        for state in [PortState::Armed, PortState::Active] {
            for (path, port) in ends {
                let status = self.set_port(path, port, |info| {
                    info.set_port_state(state);
                });
                assert_eq!(status, Status::OK, "{path:?} {port}");
            }
        }
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.fabric.counters().dropped(reason)
    }
}

fn smp_packet(lid: Lid) -> Packet {
    let mut packet = Packet::default();
    packet.address.lid = lid;
    packet.address.qpn = Qpn::SMI;
    packet.address.local_qpn = Qpn::SMI;
    packet
}

/// A request to QP1 of a class that nodes leave to their host.
fn gmp(class: MgmtClass, lid: u16) -> Packet {
    let mut packet = Packet::default();
    packet.address.lid = Lid(lid);
    MadHeader::new(&mut packet.mad[..])
        .unwrap()
        .set_base_version(1)
        .set_mgmt_class(class)
        .set_class_version(2)
        .set_method(Method::GET)
        .set_tid(0x1_2345);
    packet
}

#[test]
fn every_node_is_found_by_walking_directed_routes() {
    let mut bench = Bench::new(Options::default());
    for ((name, _), path) in LIDS.into_iter().zip(ROUTES) {
        let description = bench.ask_directed(AttributeId::NODE_DESCRIPTION, 0, path);
        assert_eq!(&description[..2], name.as_bytes());
    }
    assert_eq!(bench.fabric.counters().dropped_in_all(), 0);
}

#[test]
fn directed_routes_that_lead_nowhere_are_lost() {
    let mut bench = Bench::new(Options::default());
    for (path, reason) in [
        (&[1, 3][..], DropReason::PortDown),
        (&[1, 21], DropReason::BadPath),
        (&[1, 0], DropReason::BadPath),
        (&[2], DropReason::BadPath),
        (&[1, 20, 1], DropReason::BadPath),
    ] {
        let before = bench.dropped(reason);
        let packet = bench.directed(Method::GET, AttributeId::NODE_INFO, 0, path);
        bench.send(&packet);
        assert!(bench.poll().is_empty());
        assert_eq!(bench.dropped(reason), before + 1, "{path:?}");
    }
}

#[test]
fn smps_pass_trained_links_and_data_only_active_ones() {
    let mut bench = Bench::new(Options::default());
    for path in [&[1][..], &[1, 2]] {
        let lid = path.len() as u16;
        assert_eq!(
            bench.set_port(path, 0, |info| {
                info.set_base_lid(Lid(lid));
            }),
            Status::OK
        );
    }
    assert_eq!(
        bench.set_port(&[], 1, |info| {
            info.set_base_lid(Lid(3));
        }),
        Status::OK
    );
    bench.set_lft(&[1], &[(1, 0), (2, 2), (3, 1)]);
    bench.set_lft(&[1, 2], &[(1, 2), (2, 0), (3, 2)]);
    let packet = bench.by_lid(AttributeId::NODE_INFO, 2);
    let answer = bench.ask(&packet);
    assert_eq!((answer.address.lid, answer.address.qpn), (Lid(2), Qpn::SMI));
    bench.send(&gmp(MgmtClass::PERF, 2));
    assert_eq!(bench.dropped(DropReason::PortDown), 1, "links are not active");
}

#[test]
fn packets_go_where_the_tables_say_and_nowhere_else() {
    let mut bench = Bench::configured();
    for (name, lid) in LIDS {
        let packet = bench.by_lid(AttributeId::NODE_DESCRIPTION, lid);
        let answer = bench.ask(&packet);
        assert_eq!(&answer.mad[64..66], name.as_bytes());
        assert_eq!(answer.address.lid, Lid(lid));
    }
    for (ports, lid, reason) in [
        (&[(1, 0), (3, 1), (9, 20)][..], 9, DropReason::WrongLid),
        (&[(1, 0), (3, 1), (9, 0)], 9, DropReason::WrongLid),
        (&[(1, 0), (3, 1)], 9, DropReason::NoRoute),
        (&[(1, 0), (3, 1), (9, 7)], 9, DropReason::PortDown),
        (&[(1, 0), (3, 1), (9, 21)], 9, DropReason::NoRoute),
        (&[(1, 0), (3, 1)], 64, DropReason::NoRoute),
    ] {
        bench.set_lft(&[1], ports);
        let before = bench.dropped(reason);
        let packet = bench.by_lid(AttributeId::NODE_INFO, lid);
        bench.send(&packet);
        assert!(bench.poll().is_empty());
        assert_eq!(bench.dropped(reason), before + 1, "{ports:?}");
    }
}

#[test]
fn tables_that_loop_lose_packets_by_the_hop_limit() {
    let mut bench = Bench::configured();
    bench.set_lft(&[1], &[(1, 0), (3, 1), (9, 2)]);
    bench.set_lft(&[1, 2], &[(2, 0), (3, 2), (9, 2)]);
    let packet = bench.by_lid(AttributeId::NODE_INFO, 9);
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::HopLimit), 1);
}

#[test]
fn the_route_check_agrees_with_what_packets_meet() {
    let report = Bench::new(Options::default()).fabric.check_routes();
    assert!(!report.is_whole() && report.unconfigured == 5, "{report:?}");
    let mut bench = Bench::configured();
    let report = bench.fabric.check_routes();
    assert!(report.is_whole(), "{report:?}");
    assert_eq!((report.sources, report.lids, report.delivered), (5, 5, 25));
    assert_eq!(report.hops_max, 3, "H1 to H2");
    bench.set_lft(&[1, 2], &[(1, 2), (2, 0), (3, 2), (4, 2), (5, 2)]);
    let report = bench.fabric.check_routes();
    assert_eq!(report.lost, [(DropReason::HopLimit, 4)], "all but H2 itself");
    assert!(report.examples.iter().all(|route| route.lid == Lid(4)));
    bench.set_lft(&[1, 2], &[(1, 2), (2, 0), (3, 2), (5, 2)]);
    assert_eq!(bench.fabric.check_routes().lost, [(DropReason::NoRoute, 4)]);
}

#[test]
fn a_request_may_go_on_by_lid_before_and_after_its_directed_part() {
    let mut bench = Bench::configured();
    // By LID to S1, from there by its port 2 to S2, from there by LID to H2.
    let mut packet = bench.directed(Method::GET, AttributeId::NODE_DESCRIPTION, 0, &[2]);
    packet.address.lid = Lid(1);
    Smp::new(&mut packet.mad[..]).unwrap().set_dr_slid(Lid(3)).set_dr_dlid(Lid(4));
    let answer = bench.ask(&packet);
    assert_eq!(&answer.mad[64..66], b"H2");
    assert_eq!(answer.address.lid, Lid(1), "the last part of the way back began there");
}

#[test]
fn answers_find_their_asker_among_several_clients_of_a_port() {
    let mut bench = Bench::configured();
    let other = bench.attach("H1");
    assert_eq!((bench.manager.id(), other.id()), (0, 1));
    let mut packet = bench.by_lid(AttributeId::NODE_INFO, 2);
    Smp::new(&mut packet.mad[..]).unwrap().set_tid(0xFFFF_0000_0000_0077);
    let now = bench.now();
    bench.fabric.send(now, other, &packet);
    let delivery = bench.poll().remove(0);
    assert_eq!(delivery.endpoint, other);
    assert_eq!(Smp::new(&delivery.packet.mad[..]).unwrap().tid(), 0x0001_0000_0000_0077);
}

#[test]
fn requests_go_to_the_client_that_declared_their_class_before_others() {
    let mut bench = Bench::configured();
    let (all, sa, qp) = (bench.attach("H2"), bench.attach("H2"), bench.attach("H2"));
    bench.send(&gmp(MgmtClass::SUBN_ADM, 4));
    assert_eq!(bench.dropped(DropReason::NoClient), 1);
    bench.fabric.set_takes_requests(all, true);
    bench.fabric.declare(sa, &[MgmtClass::SUBN_ADM]).unwrap();
    bench.fabric.set_qpn(qp, Qpn(77));
    let receiver = |bench: &mut Bench, packet: &Packet| {
        bench.send(packet);
        bench.poll().remove(0).endpoint
    };
    assert_eq!(receiver(&mut bench, &gmp(MgmtClass::SUBN_ADM, 4)), sa);
    assert_eq!(receiver(&mut bench, &gmp(MgmtClass::COM_MGT, 4)), all);
    let mut packet = gmp(MgmtClass::SUBN_ADM, 4);
    packet.address.qpn = Qpn(77);
    assert_eq!(receiver(&mut bench, &packet), qp);
    let taken = bench.fabric.declare(all, &[MgmtClass::SUBN_ADM]).unwrap_err();
    assert_eq!(taken.owner, sa.id());
    let now = bench.now();
    bench.fabric.detach(now, sa);
    bench.fabric.declare(all, &[MgmtClass::SUBN_ADM]).unwrap();
}

#[test]
fn clients_of_a_port_share_a_class_by_method() {
    const fn bit(method: Method) -> u128 {
        1 << method.0
    }
    let mut bench = Bench::configured();
    let (whole, asker, other) = (bench.attach("H2"), bench.attach("H2"), bench.attach("H2"));
    let sa = MgmtClass::SUBN_ADM;
    bench.fabric.declare(whole, &[sa]).unwrap();
    bench.fabric.declare_methods(asker, sa, bit(Method::REPORT)).unwrap();
    let mut report = gmp(sa, 4);
    MadHeader::new(&mut report.mad).unwrap().set_method(Method::REPORT);
    let receiver = |bench: &mut Bench, packet: &Packet| {
        bench.send(packet);
        bench.poll().remove(0).endpoint
    };
    assert_eq!(receiver(&mut bench, &report), asker);
    assert_eq!(receiver(&mut bench, &gmp(sa, 4)), whole);
    for methods in [bit(Method::REPORT), bit(Method::GET)] {
        assert!(bench.fabric.declare_methods(other, sa, methods).is_err(), "{methods:#x}");
    }
    bench.fabric.declare_methods(asker, sa, 0).unwrap();
    assert_eq!(receiver(&mut bench, &report), whole);
}

#[test]
fn a_declined_declaration_declares_nothing() {
    let mut bench = Bench::configured();
    let (first, second) = (bench.attach("H2"), bench.attach("H2"));
    bench.fabric.declare(first, &[MgmtClass::PERF]).unwrap();
    assert!(bench.fabric.declare(second, &[MgmtClass::SUBN_ADM, MgmtClass::PERF]).is_err());
    bench.send(&gmp(MgmtClass::SUBN_ADM, 4));
    assert!(bench.poll().is_empty());
}

#[test]
fn sm_info_is_answered_by_an_attached_manager_or_refused() {
    let mut bench = Bench::configured();
    let packet = bench.directed(Method::GET, AttributeId::SM_INFO, 0, &[1, 2, 1]);
    let refused = bench.ask(&packet);
    let refused = Smp::new(&refused.mad[..]).unwrap();
    assert_eq!(refused.status(), Status::UNSUPPORTED_METHOD_ATTRIBUTE);

    let standby = bench.attach("H2");
    bench.fabric.declare(standby, &[MgmtClass::SUBN_DIRECTED_ROUTE]).unwrap();
    // A client of ibsim leaves the hop pointer at 0; others leave it as it came.
    for hop_pointer in [None, Some(0)] {
        bench.send(&packet);
        let mut asked = bench.poll().remove(0);
        assert_eq!(asked.endpoint, standby);
        smp::answer(&mut asked.packet.mad, Status::OK);
        if let Some(pointer) = hop_pointer {
            Smp::new(&mut asked.packet.mad[..]).unwrap().set_hop_pointer(pointer);
        }
        let now = bench.now();
        bench.fabric.send(now, standby, &asked.packet);
        let answer = bench.poll().remove(0);
        assert_eq!(answer.endpoint, bench.manager);
        assert_eq!(Smp::new(&answer.packet.mad[..]).unwrap().status(), Status::OK);
    }
}

#[test]
fn a_cut_link_is_told_until_it_is_repressed() {
    let mut bench = Bench::configured();
    let (manager, s1, now) = (bench.manager, bench.node("S1"), bench.now());
    bench.fabric.declare(manager, &[MgmtClass::SUBN_LID_ROUTED]).unwrap();
    bench.fabric.link_down(now, s1, 20).unwrap();
    let first = bench.poll();
    assert_eq!(first.len(), 1);
    let trap = &first[0].packet;
    let header = Smp::new(&trap.mad[..]).unwrap();
    assert_eq!((header.method(), trap.address.lid), (Method::TRAP, Lid(1)));
    let notice = SmNotice::new(&trap.mad[smp::DATA]).unwrap();
    assert_eq!(notice.trap_number(), TrapNumber::LINK_STATE_CHANGE);
    assert_eq!(notice.data_details()[..2], [0, 1], "LID of the switch");

    // SubnetTimeOut 18 is 1.07 s.
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.poll().is_empty());
    bench.clock.advance(Duration::from_millis(80));
    let again = bench.poll();
    assert_eq!(again[0].packet.mad, trap.mad, "the same trap again");

    let mut repress = trap.clone();
    let mut smp = Smp::new(&mut repress.mad[..]).unwrap();
    let mangled = smp.tid() | 0xABCD << 32;
    smp.set_method(Method::TRAP_REPRESS).set_tid(mangled);
    bench.send(&repress);
    bench.clock.advance(Duration::from_secs(60));
    assert!(bench.poll().is_empty());
    assert_eq!(bench.fabric.counters().traps_repressed, 1);
    let view = bench.fabric.port(s1, 20).unwrap();
    assert_eq!(view.state, PortState::Down);

    let now = bench.now();
    bench.fabric.link_up(now, s1, 20).unwrap();
    assert_eq!(bench.poll().len(), 1);
    assert_eq!(bench.fabric.port(s1, 20).unwrap().state, PortState::Initialize);
}

/// A change that comes after its trap was sent must not be silenced by the TrapRepress() of that.
#[test]
fn a_second_change_is_told_after_the_first_was_repressed() {
    let mut bench = Bench::configured();
    let (manager, s1, now) = (bench.manager, bench.node("S1"), bench.now());
    bench.fabric.declare(manager, &[MgmtClass::SUBN_LID_ROUTED]).unwrap();
    bench.fabric.link_down(now, s1, 20).unwrap();
    let first = bench.poll().remove(0).packet;
    bench.fabric.link_up(now, s1, 20).unwrap();
    let mut repress = first.clone();
    Smp::new(&mut repress.mad[..]).unwrap().set_method(Method::TRAP_REPRESS);
    bench.send(&repress);
    assert!(bench.poll().is_empty(), "not before SubnetTimeOut is over");
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.poll().len(), 1);
}

#[test]
fn becoming_a_manager_shows_in_the_port_and_is_told() {
    let mut bench = Bench::configured();
    let (manager, now) = (bench.manager, bench.now());
    bench.fabric.declare(manager, &[MgmtClass::SUBN_LID_ROUTED]).unwrap();
    let standby = bench.attach("H2");
    let is_sm = |bench: &mut Bench| {
        let data = bench.ask_directed(AttributeId::PORT_INFO, 1, &[1, 2, 1]);
        PortInfo::new(&data).unwrap().capability_mask().contains(CapabilityMask::IS_SM)
    };
    assert!(!is_sm(&mut bench));
    bench.fabric.set_is_sm(now, standby, true);
    let trap = bench.poll().remove(0).packet;
    let notice = SmNotice::new(&trap.mad[smp::DATA]).unwrap();
    assert_eq!(notice.trap_number(), TrapNumber::LOCAL_CHANGES);
    let mut repress = trap.clone();
    Smp::new(&mut repress.mad[..]).unwrap().set_method(Method::TRAP_REPRESS);
    bench.send(&repress);
    assert!(is_sm(&mut bench));
    bench.fabric.detach(now, standby);
    assert_eq!(bench.poll().len(), 1, "it is told that the manager went");
    assert!(!is_sm(&mut bench));
}

#[test]
fn a_protected_key_is_given_up_when_its_lease_is_over() {
    let mut bench = Bench::configured();
    let protect = |info: &mut PortInfo<&mut [u8]>| {
        info.set_m_key(9).set_m_key_protect_bits(2).set_m_key_lease_period(30);
    };
    assert_eq!(bench.set_port(&[1, 20], 1, protect), Status::OK);
    let packet = bench.directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 20]);
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::BadMKey), 1);
    bench.clock.advance(Duration::from_secs(29));
    bench.poll();
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::BadMKey), 2);
    bench.clock.advance(Duration::from_secs(1));
    bench.poll();
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::BadMKey), 2);
    assert!(bench.poll().iter().any(|delivery| delivery.endpoint == bench.manager));
}

#[test]
fn packets_take_their_time_when_links_are_slow() {
    let mut bench = Bench::configured();
    bench.fabric.set_delay(None, Duration::from_micros(10)).unwrap();
    let packet = bench.by_lid(AttributeId::NODE_INFO, 4);
    bench.send(&packet);
    // Three links there and three back.
    bench.clock.advance(Duration::from_micros(59));
    assert!(bench.poll().is_empty());
    bench.clock.advance(Duration::from_micros(1));
    assert_eq!(bench.poll().len(), 1);
}

#[test]
fn equal_seeds_lose_equal_packets_and_the_sender_may_get_them_back() {
    let lost = |seed| {
        let mut bench =
            Bench::new(Options { seed, return_undelivered: true, ..Options::default() });
        bench.fabric.set_loss(None, Probability::new(0.2).unwrap()).unwrap();
        let packet = bench.directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 2, 1]);
        let outcomes: Vec<bool> = (0..100)
            .map(|_| {
                bench.send(&packet);
                let deliveries = bench.poll();
                assert_eq!(deliveries.len(), 1, "an answer, or the request back");
                let address = &deliveries[0].packet.address;
                assert_eq!((address.lid, address.qpn), (Lid::PERMISSIVE, Qpn::SMI));
                address.undelivered == UNDELIVERED
            })
            .collect();
        let count = outcomes.iter().filter(|&&lost| lost).count() as u64;
        assert_eq!(bench.dropped(DropReason::Lost), count);
        assert_eq!(bench.fabric.counters().returned, count);
        outcomes
    };
    assert_eq!(lost(1), lost(1));
    assert_ne!(lost(1), lost(2));
}

#[test]
fn one_link_may_be_worse_than_the_others() {
    let mut bench = Bench::configured();
    let s2 = bench.node("S2");
    bench.fabric.set_loss(Some((s2, 1)), Probability::new(1.0).unwrap()).unwrap();
    let (to_h2, to_h3) =
        (bench.by_lid(AttributeId::NODE_INFO, 4), bench.by_lid(AttributeId::NODE_INFO, 5));
    bench.send(&to_h2);
    assert_eq!(bench.dropped(DropReason::Lost), 1);
    bench.ask(&to_h3);
}

#[test]
fn a_node_that_is_off_answers_nothing_and_forgets_everything() {
    let mut bench = Bench::configured();
    let (s2, h2, now) = (bench.node("S2"), bench.node("H2"), bench.now());
    let packet = bench.by_lid(AttributeId::NODE_INFO, 4);
    bench.ask(&packet);
    bench.fabric.node_down(now, s2).unwrap();
    bench.send(&packet);
    assert!(bench.poll().is_empty());
    assert_eq!(bench.fabric.port(h2, 1).unwrap().state, PortState::Down);
    bench.fabric.node_up(now, s2).unwrap();
    assert_eq!(bench.fabric.port(h2, 1).unwrap().state, PortState::Initialize);
    assert_eq!(bench.fabric.port(h2, 1).unwrap().lid, Lid(4), "H2 was not rebooted");
    assert_eq!(bench.fabric.port(s2, 0).unwrap().lid, Lid::NONE);
    assert_eq!(bench.fabric.node(s2).lft, &[0u8; 0]);
}

#[test]
fn a_packet_that_is_under_way_when_its_node_goes_off_is_lost() {
    let mut bench = Bench::configured();
    bench.fabric.set_delay(None, Duration::from_micros(10)).unwrap();
    let (s2, now) = (bench.node("S2"), bench.now());
    let packet = bench.directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 2]);
    bench.send(&packet);
    bench.fabric.node_down(now, s2).unwrap();
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.poll().is_empty());
    assert_eq!(bench.dropped(DropReason::NodeDown), 1);
}

#[test]
fn multicast_packets_reach_every_port_of_their_tree_once() {
    let mut bench = Bench::configured();
    let mut set_mft = |path: &[u8], position: u8, mask: u16| {
        let mut block = [0; 64];
        MulticastForwardingTable::new(&mut block[..]).unwrap().set_port_mask(0, mask);
        let modifier = multicast_forwarding_modifier(0, position);
        let attribute = AttributeId::MULTICAST_FORWARDING_TABLE;
        assert_eq!(bench.set_directed(attribute, modifier, path, &block), Status::OK);
    };
    set_mft(&[1], 0, 1 << 1 | 1 << 2);
    set_mft(&[1], 1, 1 << (20 - 16));
    set_mft(&[1, 2], 0, 1 << 0 | 1 << 1 | 1 << 2);
    let mut members = ["H2", "H3", "S2"].map(|name| bench.attach(name));
    for member in members {
        bench.fabric.set_takes_requests(member, true);
    }
    bench.fabric.set_takes_requests(bench.manager, true);
    bench.send(&gmp(MgmtClass::COM_MGT, 0xC000));
    let mut reached: Vec<Endpoint> = bench.poll().iter().map(|at| at.endpoint).collect();
    reached.sort();
    members.sort();
    assert_eq!(reached, members, "all but the sender");
    bench.send(&gmp(MgmtClass::COM_MGT, 0xC001));
    assert!(bench.poll().is_empty());
}

#[test]
fn a_port_with_several_lids_is_reached_by_each() {
    let mut bench = Bench::configured();
    let status = bench.set_port(&[1, 20], 1, |info| {
        info.set_base_lid(Lid(8)).set_lmc(2);
    });
    assert_eq!(status, Status::OK);
    bench.set_lft(&[1], &[(1, 0), (3, 1), (8, 20), (10, 20), (12, 20)]);
    let listener = bench.attach("H3");
    bench.fabric.set_takes_requests(listener, true);
    bench.send(&gmp(MgmtClass::SUBN_ADM, 10));
    let delivery = bench.poll().remove(0);
    assert_eq!((delivery.endpoint, delivery.packet.address.path_bits), (listener, 2));
    // The answer comes from the LID that was asked.
    let mut answer = delivery.packet;
    MadHeader::new(&mut answer.mad[..]).unwrap().set_method(Method::GET_RESP);
    let now = bench.now();
    bench.fabric.send(now, listener, &answer);
    assert_eq!(bench.poll().remove(0).packet.address.lid, Lid(10));
    bench.send(&gmp(MgmtClass::SUBN_ADM, 12));
    assert_eq!(bench.dropped(DropReason::WrongLid), 1);
}

#[test]
fn data_that_arrives_makes_an_armed_port_active() {
    let mut bench = Bench::configured();
    let (s1, now) = (bench.node("S1"), bench.now());
    bench.fabric.link_down(now, s1, 20).unwrap();
    bench.fabric.link_up(now, s1, 20).unwrap();
    bench.poll();
    let mut state = |path: &[u8], port, state| {
        let status = bench.set_port(path, port, |info| {
            info.set_port_state(state);
        });
        assert_eq!(status, Status::OK);
    };
    state(&[1, 20], 1, PortState::Armed);
    state(&[1], 20, PortState::Armed);
    state(&[1], 20, PortState::Active);
    let h3 = bench.node("H3");
    assert_eq!(bench.fabric.port(h3, 1).unwrap().state, PortState::Armed);
    bench.send(&gmp(MgmtClass::PERF, 5));
    assert_eq!(bench.fabric.port(h3, 1).unwrap().state, PortState::Active);
}

#[test]
fn ports_count_what_passes_them() {
    let mut bench = Bench::configured();
    let mut packet = gmp(MgmtClass::PERF, 1);
    MadHeader::new(&mut packet.mad[..])
        .unwrap()
        .set_class_version(1)
        .set_attribute_id(ib_mad::wire::perf::PORT_COUNTERS);
    packet.mad[65] = 20;
    let read = |bench: &mut Bench| {
        let answer = bench.ask(&packet);
        let counters = ib_mad::wire::perf::PortCounters::new(&answer.mad[64..]).unwrap();
        (counters.port_xmit_pkts(), counters.port_rcv_pkts(), counters.port_xmit_discards())
    };
    let before = read(&mut bench);
    let to_h3 = bench.by_lid(AttributeId::NODE_INFO, 5);
    bench.ask(&to_h3);
    let (s1, now) = (bench.node("S1"), bench.now());
    bench.fabric.link_down(now, s1, 20).unwrap();
    bench.poll();
    bench.send(&to_h3);
    let after = read(&mut bench);
    assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (1, 1, 1));
}

#[test]
fn full_queues_are_bounded_and_counted() {
    let options = Options { deliveries_max: 2, in_flight_max: 1, ..Options::default() };
    let mut bench = Bench::new(options);
    let packet = bench.directed(Method::GET, AttributeId::NODE_INFO, 0, &[1]);
    for _ in 0..3 {
        bench.send(&packet);
    }
    assert_eq!(bench.dropped(DropReason::QueueFull), 1);
    assert_eq!(bench.poll().len(), 2);
    bench.fabric.set_delay(None, Duration::from_micros(1)).unwrap();
    bench.send(&packet);
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::InFlightLimit), 1);
}

#[test]
fn lids_of_the_file_are_there_from_the_start() {
    let text = "\
Switch 4 \"S\" # \"leaf\" base port 0 lid 7 lmc 0
[1] \"H\"[1] # \"host\" lid 9 4xQDR

Ca 1 \"H\" # \"host\"
[1] \"S\"[1] # lid 9 lmc 0 \"leaf\" lid 7 4xQDR
";
    let fabric = Fabric::new(&Net::parse("test", text).unwrap(), Options::default());
    let lid = |name, port| {
        let node = fabric.find_node(name).unwrap();
        fabric.port(node, port).unwrap().lid
    };
    assert_eq!((lid("S", 0), lid("leaf", 0), lid("H", 1)), (Lid(7), Lid(7), Lid(9)));
}

proptest! {
    /// Any bytes, sent anywhere: nothing panics, and every packet is accounted for.
    #[test]
    fn every_packet_is_answered_delivered_or_counted_as_dropped(
        packets in prop::collection::vec(
            (
                prop::collection::vec(any::<u8>(), MAD_LEN),
                prop::sample::select(vec![0u16, 1, 2, 3, 4, 5, 6, 0xC000, 0xFFFF]),
                prop::sample::select(vec![0x01u8, 0x81, 0x03, 0x04, 0x0A]),
                any::<u8>(),
                0u32..3,
            ),
            1..20,
        ),
    ) {
        let mut bench = Bench::configured();
        bench.fabric.set_takes_requests(bench.manager, true);
        bench.fabric.options.return_undelivered = true;
        for (bytes, lid, class, method, qpn) in packets {
            let mut packet = Packet { mad: bytes.try_into().unwrap(), ..Packet::default() };
            packet.mad[0] = 1;
            packet.mad[1] = class;
            packet.mad[2] &= 3;
            packet.mad[3] = method & 0x87;
            packet.mad[6] &= 7;
            packet.mad[7] &= 7;
            packet.address.lid = Lid(lid);
            packet.address.qpn = Qpn(qpn);
            let before = bench.fabric.counters().clone();
            bench.send(&packet);
            bench.poll();
            let after = bench.fabric.counters();
            let repressed = packet.mad[3] == Method::TRAP_REPRESS.0;
            let moved = after.delivered - before.delivered
                + after.dropped_in_all() - before.dropped_in_all();
            prop_assert!(moved > 0 || repressed || lid == 0xC000);
        }
    }
}
