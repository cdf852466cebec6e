//! Tests that `lash` layers have no cycles, are symmetric, few, and evenly filled.

use proptest::prelude::*;

use super::*;
use crate::{Destination, HopMatrix, Layers, TopologyBuilder, testing};

fn steering(data_lanes: u8) -> Steering {
    testing::on_lanes(data_lanes)
}

fn from_lane(start_lane: u8, data_lanes: u8) -> Steering {
    let mut steering = steering(data_lanes);
    steering.settings.lash.start_lane = start_lane;
    steering
}

fn of_mesh(analyses_mesh: bool, data_lanes: u8) -> Steering {
    let mut steering = steering(data_lanes);
    steering.settings.lash.analyses_mesh = analyses_mesh;
    steering
}

fn routed(topology: &Topology, steering: &Steering) -> Routing {
    Lash.route(topology, steering, None).unwrap()
}

fn layers(routing: &Routing) -> &Layers {
    let Lanes::Layers(layers) = &routing.lanes else { panic!("lash makes layers") };
    layers
}

fn looping_layer(topology: &Topology, routing: &Routing) -> Option<u8> {
    let hosts = topology.hosts_on();
    // Switches with hosts count as sources for all their ports.
    testing::looping_layer(topology, routing, |source, destination| {
        hosts[usize::from(source)] > 0 || hosts[usize::from(destination.egress_switch)] > 0
    })
}

proptest! {
    #[test]
    fn no_layer_has_loops_and_paths_are_answered_in_the_same(
        topology in testing::any_topology(), lanes in 1u8..9, start in 0u8..2,
    ) {
        let steering = from_lane(start, lanes + start);
        let routed = Lash.route(&topology, &steering, None);
        let refused = Reason::TooFewLanes { lanes }.of("lash");
        let Some(routing) = testing::unless(routed, &refused)? else { return Ok(()) };
        testing::check_all(&topology, &routing)?;
        prop_assert_eq!(&routing.hops, &HopMatrix::compute(&topology).unwrap());
        if looping_layer(&topology, &routing).is_some() {
            // Lanes sufficed only for packets between hosts.
            let hosts = topology.hosts_on();
            let has_hosts = |switch: u16| hosts[usize::from(switch)] > 0;
            prop_assert!(hosts.contains(&0));
            let looping = testing::looping_layer(&topology, &routing, |source, destination| {
                has_hosts(source) && has_hosts(destination.egress_switch)
            });
            prop_assert_eq!(looping, None);
        }
        let layers = layers(&routing);
        prop_assert!(layers.count <= lanes + start);
        for source in topology.switches() {
            for (egress_switch, &layer) in topology.switches().zip(layers.row(source)) {
                prop_assert!((start..layers.count).contains(&layer));
                prop_assert_eq!(layer, layers.row(egress_switch)[usize::from(source)]);
            }
        }
        prop_assert_eq!(Lash.route(&topology, &steering, None), Ok(routing));
    }
}

#[test]
fn tori_and_others_fit_in_few_lanes() {
    let nets = [
        (testing::torus(&[6], 1), 2),
        (testing::torus(&[8, 8, 8], 1), 8),
        (testing::fat_tree(3, 12, 432), 1),
    ];
    for (net, lanes) in nets {
        let topology = testing::topology(&net, 0);
        let routing = routed(&topology, &steering(lanes));
        assert_eq!(looping_layer(&topology, &routing), None);
    }
}

#[test]
fn a_ring_needs_two_lanes_and_the_first_ones_may_be_left_out() {
    let ring = testing::topology(&testing::torus(&[6], 1), 0);
    let refused = Lash.route(&ring, &steering(1), None).unwrap_err();
    assert_eq!(refused, Reason::TooFewLanes { lanes: 1 }.of("lash"));
    let started = |data_lanes| from_lane(2, data_lanes);
    let refused = Lash.route(&ring, &started(2), None).unwrap_err();
    assert!(matches!(refused.reason, Reason::NoLaneFromStart { .. }), "{refused}");
    assert_eq!(layers(&routed(&ring, &started(8))).count, 4, "no more layers than necessary");
}

/// A mesh or torus whose switches are numbered and ports cabled at random.
fn scrambled(dims: &[u16], wraps: bool, seed: u64) -> (Topology, Topology) {
    use fabric_sim::generate::{Grid, Shape};
    let grid = Grid { dims: dims.to_vec(), wraps, hosts_per_switch: 1, radix: None };
    let plain = testing::topology(&testing::net(Shape::Grid(grid)), 0);
    let mut state = seed;
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut shuffled = |first: u16, count: u16| {
        let mut all: Vec<u16> = (first..first + count).collect();
        (1..all.len()).rev().for_each(|at| all.swap(at, next() as usize % (at + 1)));
        all
    };
    let switches = shuffled(0, plain.switch_count() as u16);
    let ports: Vec<Vec<u16>> = plain
        .switches()
        .map(|switch| [vec![0], shuffled(1, plain.port_count(switch).into())].concat())
        .collect();
    let place = |switch: u16, port: u8| {
        let port = ports[usize::from(switch)][usize::from(port)] as u8;
        (switches[usize::from(switch)], port)
    };
    let mut builder = TopologyBuilder::new();
    for number in plain.switches() {
        let old = switches.iter().position(|&new| new == number).unwrap();
        builder.add_switch(plain.port_count(old as u16)).unwrap();
    }
    for switch in plain.switches() {
        for link in plain.links(switch) {
            let (a, b) = (place(switch, link.port), place(link.peer, link.peer_port));
            builder.add_link(a, b).unwrap();
        }
    }
    for to in plain.destinations() {
        let (egress_switch, exit) = place(to.egress_switch, to.exit);
        builder.add_destination(Destination { egress_switch, exit, ..*to }).unwrap();
    }
    (plain, builder.build().unwrap())
}

/// Regression: the option assumed that ports are numbered by dimension,
/// regardless of the cables.
#[test]
fn meshes_and_tori_are_found_however_they_are_cabled() {
    // With the number of layers that OpenSM 3.3.23 needed for similar fabrics.
    let cases: [(&[u16], bool, u8); 7] = [
        (&[4, 4, 4], false, 1),
        (&[7, 3], false, 1),
        (&[5, 5], true, 3),
        (&[4, 6], true, 2),
        (&[3, 5, 2], true, 2),
        (&[4, 4, 4], true, 1),
        (&[9], true, 2),
    ];
    for ((dims, wraps, theirs), seed) in cases.into_iter().zip(1..) {
        let (by_dimensions, topology) = scrambled(dims, wraps, seed);
        let count = |topology: &Topology, analyses_mesh| {
            let routing = routed(topology, &of_mesh(analyses_mesh, 15));
            testing::check_all(topology, &routing).unwrap();
            assert_eq!(looping_layer(topology, &routing), None, "{dims:?}");
            layers(&routing).count
        };
        let found = count(&topology, true);
        let plain = count(&topology, false);
        assert!(found <= plain, "{dims:?}: {found} layers, {plain} without");
        assert!(found <= count(&by_dimensions, true), "{dims:?}: fewer if cabled by dimensions");
        assert!(found <= theirs, "{dims:?}: {found} layers, {theirs} with OpenSM");
    }
    // A fabric that is not a mesh is routed as without the option.
    let tree = testing::topology(&testing::fat_tree(2, 8, 20), 0);
    let looked = routed(&tree, &of_mesh(true, 4));
    assert_eq!(looked, routed(&tree, &steering(4)));
}

#[test]
fn layers_are_filled_evenly() {
    let topology = testing::topology(&testing::torus(&[5, 5], 1), 0);
    let routing = routed(&topology, &steering(8));
    let count = usize::from(layers(&routing).count);
    let mut filled = vec![0; count];
    for source in topology.switches() {
        for (egress_switch, &layer) in topology.switches().zip(layers(&routing).row(source)) {
            filled[usize::from(layer)] += u32::from(egress_switch != source);
        }
    }
    assert!(count > 1 && filled.iter().max().unwrap() * 2 < 25 * 24, "{filled:?}");
}

/// Paths to different leaves take different spines.
#[test]
fn fat_trees_are_balanced() {
    let topology = testing::topology(&testing::fat_tree(3, 12, 432), 0);
    let spread = testing::spread(&topology, &routed(&topology, &steering(1)));
    assert!(spread.ratio() < 2.0, "{spread}");
}

#[test]
fn cables_between_the_same_switches_are_used_in_turn() {
    testing::check_200_cables(&Lash);
}
