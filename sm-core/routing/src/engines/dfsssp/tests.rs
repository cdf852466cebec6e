//! Tests that `dfsssp` layers have no cycles, are few enough, and contain the routes they should.

use fabric_sim::generate::{RandomGraph, Shape};
use proptest::prelude::*;

use super::share::Shares;
use super::*;
use crate::{Destination, Lash, MinHop, Sssp, testing, verify};

fn steering(data_lanes: u8) -> Steering {
    testing::on_lanes(data_lanes)
}

fn layers(routing: &Routing) -> &crate::Layers {
    let Lanes::Layers(layers) = &routing.lanes else { panic!("dfsssp makes layers") };
    layers
}

/// Whether packets travel from a switch's ports to a LID: one of the two must be a host's.
fn has_traffic(topology: &Topology) -> impl Fn(u16, &Destination) -> bool {
    let hosts = topology.hosts_on();
    move |source, destination| destination.is_host() || hosts[usize::from(source)] > 0
}

fn looping_layer(topology: &Topology, routing: &Routing) -> Option<u8> {
    testing::looping_layer(topology, routing, has_traffic(topology))
}

/// Finds a lane with a cycle of packets between hosts.
fn looping_between_hosts(topology: &Topology, routing: &Routing) -> Option<u8> {
    let hosts = topology.hosts_on();
    testing::looping_layer(topology, routing, |source, destination| {
        destination.is_host() && hosts[usize::from(source)] > 0
    })
}

proptest! {
    #[test]
    fn no_layer_has_loops(topology in testing::any_topology(), lanes in 1u8..9) {
        let routed = Dfsssp.route(&topology, &steering(lanes), None);
        let refused = Reason::TooFewLanes { lanes }.of("dfsssp");
        let Some(routing) = testing::unless(routed, &refused)? else { return Ok(()) };
        testing::check_all(&topology, &routing)?;
        prop_assert_eq!(looping_between_hosts(&topology, &routing), None);
        if looping_layer(&topology, &routing).is_some() {
            // Lanes suffice here, so the refusal is wrong.
            let steering = steering(lanes);
            let mut distances = Distances::new("dfsssp", &topology, &steering.common).unwrap();
            let lfts = &routing.lfts;
            let common = &steering.common;
            let all = super::layers(&topology, common, &mut distances, lfts, Pairs::WithHosts);
            prop_assert_eq!(all, None);
        }
        let count = layers(&routing).count;
        prop_assert!(count <= lanes, "{} layers", count);
        let highest = topology.switches().flat_map(|s| layers(&routing).row(s)).max();
        prop_assert!(highest.is_none_or(|&layer| layer < count));
        prop_assert_eq!(Dfsssp.route(&topology, &steering(lanes), None), Ok(routing));
    }
}

/// The test's own checker finds the credit loop that minimum hop creates on a ring.
#[test]
fn loops_of_one_layer_are_found() {
    let ring = testing::topology(&testing::torus(&[6], 1), 0);
    let mut routing = MinHop.route(&ring, &Steering::default(), None).unwrap();
    routing.lanes = Dfsssp.route(&testing::line(6), &steering(1), None).unwrap().lanes;
    let Lanes::Layers(layers) = &mut routing.lanes else { panic!("dfsssp makes layers") };
    *layers = crate::Layers::new(6, crate::lanes::Columns::Lid, ring.table_len());
    assert_eq!(looping_layer(&ring, &routing), Some(0));
}

#[test]
fn tori_and_others_fit_in_few_lanes() {
    let nets = [
        (testing::torus(&[6], 1), 2),
        (testing::torus(&[4, 4], 2), 4),
        (testing::torus(&[8, 8, 8], 1), 8),
        (testing::fat_tree(3, 12, 432), 1),
    ];
    for (net, lanes) in nets {
        let topology = testing::topology(&net, 0);
        let routing = Dfsssp.route(&topology, &steering(lanes), None).unwrap();
        assert_eq!(looping_layer(&topology, &routing), None);
    }
}

#[test]
fn a_ring_needs_two_lanes() {
    let ring = testing::topology(&testing::torus(&[6], 1), 0);
    for lanes in [0, 1] {
        let refused = Dfsssp.route(&ring, &steering(lanes), None).unwrap_err();
        assert_eq!(refused, Reason::TooFewLanes { lanes: 1 }.of("dfsssp"));
    }
}

/// Hosts reach some core switches only through another pod, which needs more than one lane.
#[test]
fn damaged_trees_are_routed_on_one_lane_between_hosts() {
    let net = testing::fat_tree(3, 8, 128);
    let topology = testing::topology_without(&net, 0, |cable| cable % 20 == 19);
    for engine in [&Dfsssp as &dyn Engine, &Lash] {
        let of_lanes = |lanes| engine.route(&topology, &steering(lanes), None).unwrap();
        assert_eq!(looping_layer(&topology, &of_lanes(8)), None);
        let routing = of_lanes(1);
        assert!(looping_layer(&topology, &routing).is_some(), "the case is one");
        assert_eq!(looping_between_hosts(&topology, &routing), None);
    }
}

/// Routes whose layers cover only traffic between hosts are kept over changes like any others.
#[test]
fn routes_that_fit_between_hosts_only_are_kept() {
    let net = testing::fat_tree(3, 8, 128);
    let cut = |other: usize| {
        testing::topology_without(&net, 0, |cable| cable % 20 == 19 || cable == other)
    };
    let (before, after) = (cut(19), cut(100));
    let old = Dfsssp.route(&before, &steering(1), None).unwrap();
    assert!(looping_layer(&before, &old).is_some(), "the case is one");
    let previous = Previous::same_switches(&before, &old);
    let new = Dfsssp.route(&after, &steering(1), Some(&previous)).unwrap();
    assert_eq!(looping_between_hosts(&after, &new), None);
    let entries = new.lfts.iter().flatten().zip(old.lfts.iter().flatten());
    let (moved, all) = (entries.clone().filter(|(new, old)| new != old).count(), entries.count());
    assert!(moved < all / 20, "{moved} of {all}");
}

/// As long as there are enough lanes, routes are those of `sssp`.
#[test]
fn lanes_do_not_change_routes_that_fit() {
    let topology = testing::topology(&testing::torus(&[4, 4], 2), 1);
    let hop_weights = (0..topology.link_count()).map(|link| 1 + (link % 3) as u16).collect();
    let steering = CommonOptions { hop_weights, ..steering(16).common }.into();
    let dfsssp = Dfsssp.route(&topology, &steering, None).unwrap();
    let sssp = Sssp.route(&topology, &steering, None).unwrap();
    assert_eq!((dfsssp.lfts, dfsssp.hops), (sssp.lfts, sssp.hops));
}

/// Regression: the routes of most pairs were in different layers, so that replies, which take the
/// SL of the request, could close cycles although the routes themselves could not.
#[test]
fn replies_take_the_lane_of_their_requests() {
    let nets = [
        testing::torus(&[6], 2),
        testing::torus(&[4, 4], 2),
        testing::fat_tree(3, 8, 128),
        testing::net(Shape::Random(RandomGraph {
            switches: 20,
            degree: 4,
            hosts: 40,
            radix: None,
        })),
    ];
    for net in nets {
        for lmc in [0, 1] {
            let topology = testing::topology(&net, lmc);
            let routing = Dfsssp.route(&topology, &steering(15), None).unwrap();
            let layers = layers(&routing);
            let name = (topology.switch_count(), lmc);
            assert_eq!(layers.columns(), crate::lanes::Columns::EgressSwitch, "{name:?}");
            for (a, b) in topology.switches().flat_map(|a| (0..a).map(move |b| (a, b))) {
                let layer = |from: u16, to: u16| layers.row(from)[usize::from(to)];
                assert_eq!(layer(a, b), layer(b, a));
            }
            let tables = routing.tables();
            let replies = verify::credit_loops_with_replies(&topology, &tables, &routing.lanes);
            assert!(replies.is_none_or(|loops| loops.is_free()));
            assert!(verify::credit_loops_on_lanes(&topology, &routing).is_free());
        }
    }
}

/// Where lanes are scarce, layers are by LID, as few as without regard to replies.
#[test]
fn replies_need_no_lanes_that_are_not_there() {
    let topology = testing::topology(&testing::torus(&[4, 4], 2), 0);
    let least = |lanes: u8| Dfsssp.route(&topology, &steering(lanes), None).is_ok();
    let needed = (1..=8).find(|&lanes| least(lanes)).unwrap();
    assert!(needed <= 3, "{needed}");
}

#[test]
fn lanes_that_are_left_share_the_fullest_layers() {
    let shares = Shares::new(&[100, 45, 1], 6);
    let columns = crate::lanes::Columns::Lid;
    let mut layers = crate::Layers::new(2, columns, 6);
    layers.row_mut(1).copy_from_slice(&[0, 0, 0, 0, 1, 2]);
    shares.apply(&mut layers, 2);
    assert_eq!(layers.count, 6);
    // Three lanes for the first layer, two for the second.
    assert_eq!(layers.row(0), [0, 1, 2, 0, 1, 2]);
    assert_eq!(layers.row(1), [0, 1, 2, 0, 3, 5]);
}

#[test]
fn all_lanes_are_used() {
    let topology = testing::topology(&testing::fat_tree(2, 8, 32), 0);
    let routing = Dfsssp.route(&topology, &steering(4), None).unwrap();
    let mut used = [0; 4];
    for (source, destination) in
        topology.switches().flat_map(|s| topology.destinations().iter().map(move |d| (s, d)))
    {
        let layers = layers(&routing);
        let layer = layers.layer(source, destination.egress_switch, destination.base_lid);
        used[usize::from(layer)] += 1;
    }
    let all: usize = used.iter().sum();
    assert!(used.iter().all(|&routes| routes > all / 6), "{used:?}");
}
