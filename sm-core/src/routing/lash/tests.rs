//! Layers of `lash` have no loops, are symmetric, few, and evenly filled.

use proptest::prelude::*;

use super::super::{HopMatrix, Layers, testing};
use super::*;

fn steering(data_lanes: u8) -> Steering {
    Steering { data_lanes, ..Steering::default() }
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
    // Switches with hosts answer for all their ports.
    testing::looping_layer(topology, routing, |source, destination| {
        hosts[usize::from(source)] > 0 || hosts[usize::from(destination.home)] > 0
    })
}

proptest! {
    #[test]
    fn no_layer_has_loops_and_paths_are_answered_in_the_same(
        topology in testing::any_topology(), lanes in 1u8..9, start in 0u8..2,
    ) {
        let steering = Steering { lash_start_lane: start, ..steering(lanes + start) };
        let routed = Lash.route(&topology, &steering, None);
        let refused = RoutingError::TooFewLanes { engine: "lash", lanes };
        let Some(routing) = testing::unless(routed, &refused)? else { return Ok(()) };
        testing::check_all(&topology, &routing)?;
        prop_assert_eq!(&routing.hops, &HopMatrix::compute(&topology).unwrap());
        prop_assert_eq!(looping_layer(&topology, &routing), None);
        let layers = layers(&routing);
        prop_assert!(layers.count <= lanes + start);
        for source in topology.switches() {
            for (home, &layer) in topology.switches().zip(layers.row(source)) {
                prop_assert!((start..layers.count).contains(&layer));
                prop_assert_eq!(layer, layers.row(home)[usize::from(source)]);
            }
        }
        prop_assert_eq!(Lash.route(&topology, &steering, None), Ok(routing));
    }
}

#[test]
fn tori_and_others_fit_in_the_lanes_there_are() {
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
    assert_eq!(refused, RoutingError::TooFewLanes { engine: "lash", lanes: 1 });
    let started = |data_lanes| Steering { lash_start_lane: 2, ..steering(data_lanes) };
    let refused = Lash.route(&ring, &started(2), None).unwrap_err();
    assert!(matches!(refused, RoutingError::Unsuitable { engine: "lash", .. }), "{refused}");
    assert_eq!(layers(&routed(&ring, &started(8))).count, 4, "no more than it takes");
}

/// On a mesh cabled by dimensions, paths by low ports need one lane.
#[test]
fn meshes_are_routed_by_dimensions() {
    use fabric_sim::generate::{Grid, Shape};
    let grid = Grid { dims: vec![4, 4, 4], wraps: false, hosts_per_switch: 1, radix: None };
    let mesh = testing::topology(&testing::net(Shape::Grid(grid)), 0);
    let steering = Steering { analyses_mesh: true, ..steering(1) };
    assert_eq!(looping_layer(&mesh, &routed(&mesh, &steering)), None);
}

#[test]
fn layers_are_filled_evenly() {
    let topology = testing::topology(&testing::torus(&[5, 5], 1), 0);
    let routing = routed(&topology, &steering(8));
    let count = usize::from(layers(&routing).count);
    let mut filled = vec![0; count];
    for source in topology.switches() {
        for (home, &layer) in topology.switches().zip(layers(&routing).row(source)) {
            filled[usize::from(layer)] += u32::from(home != source);
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
