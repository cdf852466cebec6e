//! Routing of packets, directed and by tables.

use super::*;

/// IBA 14.2.2.
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

/// IBA 14.2.2.
#[test]
fn a_request_may_go_on_by_lid_before_and_after_its_directed_part() {
    let mut bench = Bench::configured();
    // By LID to S1, from there by its port 2 to S2, from there by LID to H2.
    let mut packet = bench.directed(Method::GET, AttributeId::NODE_DESCRIPTION, 0, &[2]);
    packet.address.lid = Lid(1);
    Smp::of_mut(&mut packet.mad).set_dr_slid(Lid(3)).set_dr_dlid(Lid(4));
    let answer = bench.ask(&packet);
    assert_eq!(&answer.mad[64..66], b"H2");
    assert_eq!(answer.address.lid, Lid(1), "the last part of the way back began there");
}
