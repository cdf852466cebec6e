//! Tests the rules of single-source shortest paths, and their balance.

use ib_mad::types::Lid;
use proptest::prelude::*;

use super::*;
use crate::testing::{pair, spread};
use crate::{HopMatrix, MinHop, Reason, testing};

fn routed(topology: &Topology, steering: &Steering) -> Routing {
    Sssp.route(topology, steering, None).unwrap()
}

/// Smallest sums of weights to an egress switch, by relaxing all links until nothing changes.
fn costs_to(topology: &Topology, weights: &[u16], egress_switch: u16) -> Vec<u64> {
    let mut costs = vec![u64::MAX; topology.switch_count()];
    costs[usize::from(egress_switch)] = 0;
    loop {
        let before = costs.clone();
        for switch in topology.switches() {
            for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch)) {
                let way = costs[usize::from(link.peer)].saturating_add(weights[number].into());
                let cost = &mut costs[usize::from(switch)];
                *cost = way.min(*cost);
            }
        }
        if costs == before {
            return costs;
        }
    }
}

proptest! {
    #[test]
    fn every_entry_is_one_hop_closer(topology in testing::any_topology()) {
        let routing = routed(&topology, &Steering::default());
        testing::check_all(&topology, &routing)?;
        prop_assert_eq!(&routing.hops, &HopMatrix::compute(&topology).unwrap());
        prop_assert_eq!(&routed(&topology, &Steering::default()), &routing);
    }

    /// Weights may differ between the directions of a cable.
    #[test]
    fn every_route_has_the_least_sum_of_weights(
        topology in testing::any_topology(), seed in prop::collection::vec(1u16..5, 1..40),
    ) {
        let weights = (0..topology.link_count()).map(|link| seed[link % seed.len()]);
        let weights: Vec<u16> = weights.collect();
        let common = CommonOptions { hop_weights: weights.clone(), ..CommonOptions::default() };
        let steering = Steering::from(common);
        let routing = routed(&topology, &steering);
        testing::check_all(&topology, &routing)?;
        for destination in topology.destinations() {
            let costs = costs_to(&topology, &weights, destination.egress_switch);
            let lids = |s| destination.lids().map(move |lid| (s, lid));
            for (switch, lid) in topology.switches().flat_map(lids) {
                let port = routing.port(switch, lid);
                let Some(link) = topology.link_at(switch, port) else { continue };
                let next = costs[usize::from(topology.link(link).peer)];
                prop_assert_eq!(next + u64::from(weights[link]), costs[usize::from(switch)]);
            }
        }
    }
}

#[test]
fn full_fat_trees_are_balanced_perfectly() {
    for (levels, radix, hosts) in [(2, 8, 32), (2, 36, 648), (3, 8, 128), (3, 12, 432)] {
        let topology = testing::topology(&testing::fat_tree(levels, radix, hosts), 0);
        let spread = spread(&topology, &routed(&topology, &Steering::default()));
        let leaf = u32::from(radix / 2);
        assert_eq!(spread.max, hosts as u32 - leaf, "{levels} levels, radix {radix}: {spread}");
    }
}

#[test]
fn tori_are_balanced_better_than_by_minhop() {
    let topology = testing::topology(&testing::torus(&[8, 8, 8], 1), 0);
    let sssp = spread(&topology, &routed(&topology, &Steering::default()));
    let minhop = MinHop.route(&topology, &Steering::default(), None).unwrap();
    let minhop = spread(&topology, &minhop);
    assert!(sssp.max < minhop.max && sssp.ratio() < 1.3, "{sssp}; minhop: {minhop}");
}

#[test]
fn a_hosts_lids_take_different_paths() {
    testing::check_ways_of_lids(&Sssp);
}

#[test]
fn a_link_is_used_in_its_cheap_direction_only() {
    let topology = pair(2, 4, 1);
    let mut hop_weights = vec![1; topology.link_count()];
    hop_weights[topology.link_at(0, 2).unwrap()] = 9;
    let routing = routed(
        &topology,
        &Steering::from(CommonOptions { hop_weights, ..CommonOptions::default() }),
    );
    let ports = |switch, lids: std::ops::Range<u16>| -> Vec<u8> {
        lids.map(|lid| routing.port(switch, Lid(lid))).collect()
    };
    assert_eq!(ports(0, 5..9), [1; 4]);
    assert_eq!(ports(1, 1..5), [1, 2, 1, 2]);
}

#[test]
fn weights_of_another_fabric_are_refused() {
    let steering =
        Steering::from(CommonOptions { hop_weights: vec![2; 3], ..CommonOptions::default() });
    let refused = Sssp.route(&pair(2, 1, 1), &steering, None).unwrap_err();
    assert!(matches!(refused.reason, Reason::HopWeights { .. }), "{refused}");
}

/// Each of two kinds of nodes that share a switch is spread over both cables.
#[test]
fn compute_and_io_nodes_are_balanced_each_by_themselves() {
    let topology = pair(2, 4, 1);
    let (compute, io) = ([Lid(5), Lid(7)], [Lid(6), Lid(8)]);
    let steering = Steering::from(CommonOptions {
        compute_nodes: Some(compute.to_vec()),
        io_nodes: io.to_vec(),
        ..CommonOptions::default()
    });
    let routing = routed(&topology, &steering);
    for lids in [compute, io] {
        assert_ne!(routing.port(0, lids[0]), routing.port(0, lids[1]));
    }
    let routing = routed(&topology, &Steering::default());
    assert_eq!(routing.port(0, compute[0]), routing.port(0, compute[1]), "else by number");
}

#[test]
fn a_switch_of_200_ports_uses_them_all() {
    testing::check_200_cables(&Sssp);
}
