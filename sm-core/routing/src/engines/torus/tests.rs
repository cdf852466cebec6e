//! Tests tori and meshes, whole and with parts missing: detection, routes, delivery, freedom from
//! credit loops.

mod faults;
mod fixture;
mod loops;
mod multicast;

use proptest::prelude::*;

use self::fixture::{Fabric, routed};
use super::*;
use crate::balance::{LinkLoads, Spread};
use crate::{HopMatrix, MinHop, testing, verify};

/// Checks all rules for a routing of `fabric`.
fn check(fabric: &Fabric, routing: &Routing) {
    let topology = &fabric.topology;
    let proof = verify::deliveries(topology, routing);
    assert!(proof.is_sound(), "{fabric:?}: {:?}", proof.defects);
    assert_eq!(proof.unreachable, 0, "{fabric:?}");
    let lanes = lanes(routing);
    for switch in topology.switches() {
        assert_eq!(lanes.coordinates(switch), fabric.place(switch), "{fabric:?}");
    }
    let looping = loops::looping(topology, routing);
    assert_eq!(looping, 0, "{fabric:?}: channels in credit loops");
}

fn lanes(routing: &Routing) -> &TorusLanes {
    let Lanes::Torus(lanes) = &routing.lanes else { panic!("{:?}", routing.lanes) };
    lanes
}

/// Shapes of two and three dimensions with up to `max` switches along each.
fn shapes(max: u8) -> impl Iterator<Item = ([u8; 3], bool)> {
    let radices = move || 2..=max;
    let flat = radices().flat_map(move |x| radices().map(move |y| [x, y, 1]));
    let deep =
        radices().flat_map(move |x| radices().flat_map(move |y| radices().map(move |z| [x, y, z])));
    flat.chain(deep).flat_map(|radix| [(radix, true), (radix, false)])
}

#[test]
fn whole_tori_and_meshes_are_routed_by_shortest_paths() {
    for (radix, wraps) in shapes(6) {
        let fabric = Fabric::new(radix, [wraps; 3]);
        let routing = routed(&fabric).unwrap();
        check(&fabric, &routing);
        assert_eq!(Some(&routing.hops), HopMatrix::compute(&fabric.topology).as_ref(), "{radix:?}");
    }
}

#[test]
fn single_dimensions_and_mixed_ones_are_routed() {
    for radix in [[7, 1, 1], [1, 4, 1], [1, 1, 3], [1, 4, 5], [4, 1, 4], [2, 1, 1]] {
        for wraps in [[true; 3], [false; 3], [true, false, true], [false, true, false]] {
            let fabric = Fabric::new(radix, wraps);
            check(&fabric, &routed(&fabric).unwrap());
        }
    }
    for wraps in [[true, false, true], [false, true, false], [false, false, true]] {
        let fabric = Fabric::new([4, 5, 3], wraps);
        check(&fabric, &routed(&fabric).unwrap());
    }
}

/// Datelines, and so SLs, do not depend on the seed.
#[test]
fn seeds_anywhere_give_the_same_coordinates_and_levels() {
    let whole = Fabric::new([5, 4, 3], [true; 3]);
    let expected = routed(&whole).unwrap();
    for seed in 0..60 {
        let fabric = Fabric::new([5, 4, 3], [true; 3]).seeded_at(&[seed]);
        let routing = routed(&fabric).unwrap();
        assert_eq!((&routing.lfts, &routing.lanes), (&expected.lfts, &expected.lanes), "{seed}");
    }
}

#[test]
fn sls_encode_the_datelines_crossed() {
    let fabric = Fabric::new([5, 4, 6], [true, false, true]);
    let routing = routed(&fabric).unwrap();
    let lanes = lanes(&routing);
    let topology = &fabric.topology;
    for source in topology.switches() {
        for to in topology.destinations() {
            let mut crossed = 0;
            let mut at = source;
            while at != to.egress_switch {
                let port = routing.port(at, to.base_lid);
                let next = topology.link(topology.link_at(at, port).unwrap()).peer;
                let (a, b) = (fabric.place(at), fabric.place(next));
                for axis in (0..AXES).filter(|&axis| a[axis].abs_diff(b[axis]) > 1) {
                    crossed |= 1 << axis;
                }
                at = next;
            }
            assert_eq!(lanes.sl(source, to.egress_switch), crossed);
        }
    }
}

#[test]
fn lanes_are_those_of_opensms_tables() {
    let fabric = Fabric::new([5, 5, 5], [true; 3]);
    let routing = routed(&fabric).unwrap();
    let lanes = lanes(&routing);
    let switch = 62;
    let port = |axis: usize| {
        let links = fabric.topology.links(switch).iter();
        let along = |peer: u16| fabric.place(peer)[axis] != fabric.place(switch)[axis];
        links.clone().find(|link| along(link.peer)).unwrap().port
    };
    let host = fabric.host_port();
    for sl in 0..16u8 {
        let qos = sl >> 3;
        for axis in 0..AXES {
            let bit = sl >> axis & 1;
            for before in 0..AXES {
                let turn = u8::from(before > axis);
                let vl = lanes.vl(switch, port(before), port(axis), sl);
                assert_eq!(vl, qos << 2 | turn << 1 | bit, "{before} {axis} {sl}");
            }
            for source in [0, host] {
                assert_eq!(lanes.vl(switch, source, port(axis), sl), qos << 2 | bit);
            }
            for end in [0, host] {
                assert_eq!(lanes.vl(switch, port(axis), end, sl), qos);
            }
        }
        assert_eq!((TorusLanes::host_vl(sl, 2), TorusLanes::host_vl(sl, 1)), (qos, 0));
    }
}

#[test]
fn fewer_lanes_suffice_for_less() {
    let with = |mut fabric: Fabric, lanes| {
        fabric.data_lanes = lanes;
        routed(&fabric)
    };
    let torus = || Fabric::new([5, 5, 1], [true; 3]);
    let few = |lanes| Err(Reason::TooFewLanes { lanes }.of("torus-2QoS"));
    assert_eq!(with(torus(), 1).map(|_| ()), few(1));
    assert_eq!(with(torus(), 0).map(|_| ()), few(1));
    check(&torus(), &with(torus(), 2).unwrap());
    check(&torus(), &with(Fabric::new([5, 5, 1], [false; 3]), 1).unwrap());
    assert_eq!(with(torus().without_switch(12), 2).map(|_| ()), few(2));
    assert!(with(torus().without_switch(12), 4).is_ok());
}

#[test]
fn parallel_links_share_routes_in_the_order_of_ports() {
    for (cables, hosts, lmc) in [(2, 4, 0), (3, 6, 0), (2, 1, 1), (3, 2, 2)] {
        let fabric = Fabric::built([4, 3, 3], [true; 3], cables, hosts, lmc);
        let routing = routed(&fabric).unwrap();
        check(&fabric, &routing);
        let loads = LinkLoads::count(&fabric.topology, &routing).to_hosts;
        for switch in fabric.topology.switches() {
            let range = fabric.topology.link_range(switch);
            let links = fabric.topology.links(switch).iter().zip(&loads[range]);
            let mut by_peer: std::collections::BTreeMap<u16, Vec<u32>> = Default::default();
            links.for_each(|(link, &load)| by_peer.entry(link.peer).or_default().push(load));
            for (peer, loads) in by_peer {
                // The number of hosts per switch is a multiple of the number of links, that of LIDs
                // nearly so.
                let (min, max) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
                let even = (u32::from(hosts) << lmc) % u32::from(cables) == 0;
                assert!(
                    if even { min == max } else { max * 2 <= min * 3 },
                    "{switch} {peer} {loads:?}"
                );
            }
        }
    }
    // The order of ports decides which host uses which link.
    let fabric = Fabric::built([3, 3, 1], [true; 3], 2, 2, 0);
    let (first, second) = (fabric.host_port(), fabric.host_port() + 1);
    let ordered = |order: &[u8]| {
        let mut fabric = Fabric::built([3, 3, 1], [true; 3], 2, 2, 0);
        fabric.config.port_order = order.to_vec();
        routed(&fabric).unwrap()
    };
    assert_eq!(routed(&fabric).unwrap(), ordered(&[first, second]));
    assert_ne!(routed(&fabric).unwrap().lfts, ordered(&[second, first]).lfts);
}

/// Routes depend on places alone: an unrelated change does not move them.
#[test]
fn a_cut_moves_only_routes_along_its_ring() {
    let whole = Fabric::new([5, 5, 3], [true; 3]);
    let before = routed(&whole).unwrap();
    let cut = Fabric::new([5, 5, 3], [true; 3]).without_link([1, 2, 0], 0);
    let after = routed(&cut).unwrap();
    check(&cut, &after);
    for switch in whole.topology.switches() {
        let [_, y, z] = whole.place(switch);
        let is_same = before.lfts[usize::from(switch)] == after.lfts[usize::from(switch)];
        assert!(is_same || (y, z) == (2, 0), "{:?}", whole.place(switch));
    }
}

#[test]
fn without_a_configuration_or_a_seed_nothing_is_routed() {
    let fabric = Fabric::new([3, 3, 3], [true; 3]);
    let reason = |result: Result<Routing, RoutingError>| result.map(|_| ()).unwrap_err().reason;
    let bare = Steering { torus: Options::default(), ..fabric.steering() };
    assert_eq!(
        reason(Torus2Qos.route(&fabric.topology, &bare, None)),
        Reason::Torus(Refusal::NoConfig)
    );
    let mut lost = Fabric::new([3, 3, 3], [true; 3]);
    lost.config.seeds.truncate(1);
    lost.config.seeds[0].from = Guid(7);
    assert_eq!(reason(routed(&lost)), Reason::Torus(Refusal::NoSeed { missing: Guid(7) }));
    let mut wrong = Fabric::new([5, 6, 1], [true; 3]);
    wrong.config.shape = Shape::new([5, 5, 1], [true; 3]);
    let reason = reason(routed(&wrong));
    assert!(matches!(reason, Reason::Torus(Refusal::Misfit { switches: 30, .. })), "{reason}");
}

/// The worst link of a torus carries hardly more routes than with `minhop`, which is free to turn
/// anywhere. In a ring of four, ties load one link twice and one not at all.
#[test]
fn links_carry_about_as_few_routes_as_by_minimum_hop() {
    for radix in [[6, 6, 1], [4, 4, 4], [6, 5, 4], [5, 5, 5], [8, 8, 1]] {
        let fabric = Fabric::built(radix, [true; 3], 1, 2, 0);
        let spread =
            |routing: &Routing| Spread::of(&LinkLoads::count(&fabric.topology, routing).to_hosts);
        let ours = spread(&routed(&fabric).unwrap());
        let minhop = MinHop.route(&fabric.topology, &Steering::default(), None).unwrap();
        let theirs = spread(&minhop);
        let percent = if radix.contains(&4) { 140 } else { 111 };
        assert!(ours.max * 100 <= theirs.max * percent, "{radix:?}: {ours}; minhop: {theirs}");
    }
}

proptest! {
    /// No fabric causes a panic, and every routing returned is right.
    #[test]
    fn any_fabric_is_routed_rightly_or_refused(
        topology in testing::any_topology(), radix in [1u8..5, 1u8..5, 1u8..4], wraps: [bool; 3],
        picks in prop::collection::vec(any::<u16>(), 7), lanes in 0u8..16,
    ) {
        let count = topology.switch_count() as u16;
        let peer = |from: u16, pick: u16| {
            let links = topology.links(from);
            links.get(usize::from(pick) % links.len().max(1)).map(|link| Guid(link.peer.into()))
        };
        let from = picks[0] % count.max(1);
        let to = std::array::from_fn(|direction| peer(from, picks[1 + direction]));
        let seed = Seed { from: Guid(from.into()), to, datelines: [0; 3] };
        let config = Config {
            shape: Shape::new(radix, wraps),
            seeds: vec![seed],
            port_order: vec![3, 1],
            portgroup_max_ports: 16,
            max_changes: 32,
        };
        let torus = Options { config: Some(Arc::new(config)), ..Options::default() };
        let steering = Steering { torus, ..testing::on_lanes(lanes) };
        if let Ok(routing) = Torus2Qos.route(&topology, &steering, None) {
            let walk = verify::walk::deliveries(&topology, &routing);
            prop_assert!(walk.is_sound(), "{:?}", walk.defects);
            prop_assert_eq!(&verify::deliveries(&topology, &routing), &walk);
            prop_assert_eq!(loops::looping(&topology, &routing), 0);
            let again = Torus2Qos.route(&topology, &steering, None);
            prop_assert_eq!(again, Ok(routing));
        }
    }
}

/// The generic search for credit loops follows lane changes through SL2VL as switches do. It finds
/// no loop in the engine's tables, and finds one in tables for which the lanes were not computed.
#[test]
fn the_verifier_follows_lanes_from_hop_to_hop() {
    for fabric in [Fabric::new([5, 4, 3], [true; 3]), Fabric::new([6, 5, 1], [true, true, false])] {
        let topology = &fabric.topology;
        let mut routing = routed(&fabric).unwrap();
        let found = verify::credit_loops_on_lanes(topology, &routing);
        assert!(found.is_free() && found.example.is_empty(), "{fabric:?}: {found}");
        assert_eq!(found.lanes, 2, "{fabric:?}");
        let rings = verify::credit_loops(topology, &routing.tables());
        assert!(!rings.is_free(), "{fabric:?}: on one lane rings close");

        routing.lfts = MinHop.route(topology, &Steering::default(), None).unwrap().lfts;
        let found = verify::credit_loops_on_lanes(topology, &routing);
        assert!(!found.is_free() && found.lane.is_some(), "{fabric:?}: {found}");
        for (hop, next) in found.example.iter().zip(found.example.iter().cycle().skip(1)) {
            let link = topology.link_at(hop.0, hop.1).unwrap();
            assert_eq!(topology.link(link).peer, next.0, "{found}");
        }
        // The same result as following each route separately to its end.
        assert_eq!(loops::looping(topology, &routing) > 0, !found.is_free());
    }
}

/// Regression: in rings of even length the way back had another SL. Linux replies on the SL of the
/// request.
#[test]
fn replies_have_the_sl_of_their_requests() {
    for radix in [[4, 4, 1], [6, 5, 4], [12, 12, 1], [3, 8, 2]] {
        let fabric = Fabric::new(radix, [true; 3]);
        check_replies(&fabric, &routed(&fabric).unwrap());
    }
}

fn check_replies(fabric: &Fabric, routing: &Routing) {
    let lanes = lanes(routing);
    for source in fabric.topology.switches() {
        for to in fabric.topology.switches() {
            assert_eq!(lanes.sl(source, to), lanes.sl(to, source), "{fabric:?}");
        }
    }
}

/// The SL names the datelines of the whole torus, so that it stays the same there and back also
/// where a route turns differently because of what is missing.
#[test]
fn replies_have_the_sl_of_their_requests_where_something_is_missing() {
    for radix in [[4, 4, 1], [6, 5, 4], [4, 4, 4]] {
        let count: usize = radix.iter().copied().map(usize::from).product();
        let mut routed_count = 0;
        for number in 0..count {
            let fabrics = [
                Fabric::new(radix, [true; 3]).without_switch(number),
                Fabric::new(radix, [true; 3]).without_switch(number).without_link([1, 2, 0], 0),
                Fabric::new(radix, [true; 3]).without_link([1, 2, 0], 0).without_link([2, 0, 0], 1),
            ];
            for fabric in fabrics {
                if let Ok(routing) = routed(&fabric) {
                    check_replies(&fabric, &routing);
                    routed_count += 1;
                }
            }
        }
        assert!(routed_count > count, "{radix:?}: {routed_count}");
    }
}

/// Tables in which some entries come from another engine and are as short, so that LIDs of a switch
/// differ.
#[test]
fn the_verifier_finds_all_that_waits_whatever_the_tables() {
    let fabric = Fabric::new([5, 4, 3], [true; 3]);
    let topology = &fabric.topology;
    let whole = routed(&fabric).unwrap();
    let other = MinHop.route(topology, &Steering::default(), None).unwrap();
    for step in [1, 3, 7, 50, 1_000, 100_000] {
        let mut routing = whole.clone();
        let mut places = 0usize;
        for (lft, other) in routing.lfts.iter_mut().zip(&other.lfts) {
            for (entry, &other) in lft.iter_mut().zip(other) {
                places += 1;
                if places.is_multiple_of(step) {
                    *entry = other;
                }
            }
        }
        let found = verify::credit_loops_on_lanes(topology, &routing);
        let (dependencies, looping) = loops::lower_level(topology, &routing);
        assert_eq!(found.dependencies, dependencies as u64);
        assert_eq!(found.is_free(), looping == 0, "{found}");
    }
}

/// Around a missing switch and broken links, lanes also change against the order of axes.
#[test]
fn the_verifier_agrees_with_the_engine_where_something_is_missing() {
    let fabric = Fabric::new([5, 5, 4], [true; 3]).without_switch(37).without_link([1, 2, 1], 0);
    let routing = routed(&fabric).unwrap();
    let found = verify::credit_loops_on_lanes(&fabric.topology, &routing);
    assert!(found.is_free(), "{found}");
    // Both sides of datelines, and turns.
    assert_eq!(found.lanes, 3);
}
