//! Packets in flight: time, loss, nodes powered off, multicast, queues.

use super::*;

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
                deliveries[0].packet.carrier.undelivered == UNDELIVERED
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
        MulticastForwardingTable::of_mut(&mut block).set_port_mask(0, mask);
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
    // The response comes from the LID that was addressed.
    let mut answer = delivery.packet;
    MadHeader::of_mut(&mut answer.mad).set_method(Method::GET_RESP);
    let now = bench.now();
    bench.fabric.send(now, listener, &answer);
    assert_eq!(bench.poll().remove(0).packet.address.lid, Lid(10));
    bench.send(&gmp(MgmtClass::SUBN_ADM, 12));
    assert_eq!(bench.dropped(DropReason::WrongLid), 1);
}

/// IBA 7.2.7.
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

/// IBA 16.1.3.5.
#[test]
fn ports_count_what_passes_them() {
    let mut bench = Bench::configured();
    let mut packet = gmp(MgmtClass::PERF, 1);
    MadHeader::of_mut(&mut packet.mad)
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

/// Bytes of the counters that a request returns, after its header.
fn counters(bench: &mut Bench, attribute: AttributeId, port: u8, set: &[(usize, u8)]) -> Vec<u8> {
    let mut packet = gmp(MgmtClass::PERF, 1);
    let method = if set.is_empty() { Method::GET } else { Method::SET };
    MadHeader::of_mut(&mut packet.mad)
        .set_class_version(1)
        .set_method(method)
        .set_attribute_id(attribute);
    packet.mad[65] = port;
    set.iter().for_each(|&(at, value)| packet.mad[64 + at] = value);
    let answer = bench.ask(&packet);
    assert_eq!(MadHeader::of(&answer.mad).status(), Status::OK);
    answer.mad[64..].to_vec()
}

/// IBA 16.1.3.5, 16.1.4.11.
#[test]
fn errors_are_counted_at_once_and_over_time_until_they_are_cleared() {
    use ib_mad::wire::perf::{self, PortCounters, PortCountersExtended};
    let mut bench = Bench::configured();
    let (s1, now) = (bench.node("S1"), bench.now());
    let fabric = &mut bench.fabric;
    fabric.count(s1, 20, PortCounter::SymbolErrorCounter, 70_000).unwrap();
    fabric.set_count_rate(now, s1, 20, PortCounter::PortXmitWait, 2.5).unwrap();
    bench.clock.advance(Duration::from_secs(3));
    let short = counters(&mut bench, perf::PORT_COUNTERS, 20, &[]);
    let short = PortCounters::new(&short[..]).unwrap();
    assert_eq!((short.symbol_error_counter(), short.port_xmit_wait()), (0xFFFF, 7));
    let long = counters(&mut bench, perf::PORT_COUNTERS_EXTENDED, 20, &[]);
    let long = PortCountersExtended::new(&long[..]).unwrap();
    assert_eq!((long.symbol_error_counter(), long.port_xmit_wait()), (70_000, 7));

    // All ports, then clear SymbolErrorCounter only.
    let all = counters(&mut bench, perf::PORT_COUNTERS_EXTENDED, 0xFF, &[]);
    let all = PortCountersExtended::new(&all[..]).unwrap();
    assert_eq!(all.symbol_error_counter(), 70_000);
    let sent = short.port_xmit_pkts();
    let cleared = counters(&mut bench, perf::PORT_COUNTERS, 20, &[(3, 1)]);
    let cleared = PortCounters::new(&cleared[..]).unwrap();
    assert_eq!((cleared.symbol_error_counter(), cleared.port_xmit_pkts()), (0, sent));
    let now = bench.now();
    let waited = bench.fabric.port_counter(now, s1, 20, PortCounter::PortXmitWait).unwrap();
    assert_eq!(waited, 7);
}

/// IBA 7.2.7.
#[test]
fn a_degraded_link_trains_at_a_lower_rate_until_it_is_repaired() {
    let mut bench = Bench::configured();
    let (s1, now) = (bench.node("S1"), bench.now());
    let width = |bench: &mut Bench| {
        let (h3, port) = (bench.node("H3"), PortCounter::LinkDownedCounter);
        let now = bench.now();
        let downs = bench.fabric.port_counter(now, h3, 1, port).unwrap();
        let packet = bench.directed(Method::GET, AttributeId::PORT_INFO, 20, &[1]);
        let answer = bench.ask(&packet);
        (PortInfo::new(&answer.mad[64..128]).unwrap().link_width_active().0, downs)
    };
    assert_eq!(width(&mut bench), (2, 0));
    bench.fabric.degrade(now, s1, 20, Some("1xSDR".parse().unwrap())).unwrap();
    assert_eq!(width(&mut bench), (1, 1));
    bench.fabric.degrade(now, s1, 20, None).unwrap();
    assert_eq!(width(&mut bench), (2, 2));
}

#[test]
fn a_cable_is_moved_to_another_port_and_its_far_end_stays() {
    let mut bench = Bench::configured();
    let (s1, s2, h3, now) = (bench.node("S1"), bench.node("S2"), bench.node("H3"), bench.now());
    let link = |bench: &Bench, node, port| {
        let link = bench.fabric.port(node, port).unwrap().link;
        link.map(|link| (link.node, link.port))
    };
    bench.fabric.set_loss(Some((h3, 1)), Probability::new(1.0).unwrap()).unwrap();
    bench.fabric.link_down(now, h3, 1).unwrap();
    bench.fabric.move_cable(now, (s1, 20), (s2, 5)).unwrap();
    assert_eq!((link(&bench, s1, 20), link(&bench, s2, 5)), (None, Some((h3, 1))));
    assert_eq!(link(&bench, h3, 1), Some((s2, 5)));
    // Its faults went with the old cable.
    let packet = bench.directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 2, 5]);
    assert_eq!(MadHeader::of(&bench.ask(&packet).mad).method(), Method::GET_RESP);
    let port = bench.fabric.port(s1, 20).unwrap();
    assert_eq!(port.state, PortState::Down);
    for (from, to, expected) in [
        ((s1, 20), (s2, 6), "port 20 of node 'S1' has no cable"),
        ((s2, 5), (s1, 1), "port 1 of node 'S1' has a cable; unplug it first"),
        ((s2, 5), (s1, 0), "no cable fits into port 0 of node 'S1'"),
        ((s2, 5), (s1, 21), "node 'S1' has no port 21"),
    ] {
        let failure = bench.fabric.move_cable(now, from, to).unwrap_err();
        assert_eq!(failure.to_string(), expected);
    }
    assert_eq!(link(&bench, s2, 5), Some((h3, 1)), "one that fails changes nothing");
    bench.fabric.disconnect(now, h3, 1).unwrap();
    let itself = bench.fabric.connect(now, (s2, 5), (s2, 5)).unwrap_err();
    assert_eq!(itself.to_string(), "no cable fits into port 5 of node 'S2'");
    bench.fabric.connect(now, (h3, 1), (s1, 20)).unwrap();
    assert_eq!(link(&bench, s1, 20), Some((h3, 1)));
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
    /// Any bytes, sent anywhere: no panic, and every packet is counted.
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

/// Virtual functions address the SA by a GID: a port takes such packets if it has that.
#[test]
fn a_port_takes_packets_to_the_gids_that_it_has() {
    let mut bench = Bench::configured();
    let (client, h2, now) = (bench.attach("H2"), bench.node("H2"), bench.now());
    bench.fabric.declare(client, &[MgmtClass::SUBN_ADM]).unwrap();
    bench.fabric.add_virtual_ports(h2, 1).unwrap();
    bench.fabric.virtual_port_up(now, h2, 1, 1, None).unwrap();
    let of = |guid| Gid::new(SUBNET_PREFIX_DEFAULT, guid);
    let (port, virtual_port) =
        (bench.fabric.port(h2, 1).unwrap().guid, bench.fabric.virtual_ports(h2, 1)[1].guid);
    let arrives = |bench: &mut Bench, remote_gid: Gid| {
        let mut packet = gmp(MgmtClass::SUBN_ADM, 4);
        packet.address.grh = Some(Grh { remote_gid, ..Grh::default() });
        bench.send(&packet);
        bench.poll().pop().map(|delivery| delivery.packet.address.grh.unwrap())
    };
    let h1 = bench.node("H1");
    let h1 = bench.fabric.port(h1, 1).unwrap().guid;
    let expected = Grh { remote_gid: of(h1), local_gid: of(port), ..Grh::default() };
    assert_eq!(arrives(&mut bench, of(port)), Some(expected));
    assert!(arrives(&mut bench, of(virtual_port)).is_some());
    assert!(arrives(&mut bench, Gid::new(7, port)).is_none(), "of another subnet");
    let sa = of(Guid::WELL_KNOWN_SA);
    assert!(arrives(&mut bench, sa).is_none());
    assert_eq!(bench.dropped(DropReason::WrongGid), 2);
    bench.fabric.set_is_sm(now, client, true);
    assert!(arrives(&mut bench, sa).is_some(), "the port of a manager");
    bench.fabric.set_is_sm(now, client, false);
    let set = |bench: &mut Bench| {
        let mut packet = bench.directed(Method::SET, AttributeId::GUID_INFO, 3, ROUTES[3]);
        GuidInfo::new(&mut packet.mad[smp::DATA]).unwrap().set_guid(7, Guid::WELL_KNOWN_SA);
        bench.ask(&packet);
    };
    bench.fabric.set_guid_table(h2, 1, 32, true).unwrap();
    set(&mut bench);
    assert!(arrives(&mut bench, sa).is_none(), "its table cannot be set");
    bench.fabric.set_guid_table(h2, 1, 32, false).unwrap();
    set(&mut bench);
    assert_eq!(arrives(&mut bench, sa).map(|grh| grh.local_gid), Some(sa));
    assert_eq!(bench.fabric.guid_table(h2, 1).unwrap()[31], Guid::WELL_KNOWN_SA);
}
