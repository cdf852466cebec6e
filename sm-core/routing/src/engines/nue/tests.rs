//! Tests the rules of Nue: everything is delivered without credit loops, on any fabric and however
//! few lanes there are. Also tests the quality of the routes.

use proptest::prelude::*;

use super::escape::Forest;
use super::fabric::NO_LINK;
use super::further::Further;
use super::lane::Lane;
use super::loads::Loads;
use super::search::Search;
use super::turns::Turns;
use super::*;
use crate::options::mixed;
use crate::testing::spread;
use crate::{HopMatrix, MinHop, TopologyBuilder, UpDown, testing, updn, verify};

fn steering(data_lanes: u8) -> Steering {
    testing::on_lanes(data_lanes)
}

fn including(includes_switches: bool, data_lanes: u8) -> Steering {
    let mut steering = steering(data_lanes);
    steering.settings.nue.includes_switches = includes_switches;
    steering
}

fn routed(topology: &Topology, steering: &Steering) -> Routing {
    Nue.route(topology, steering, None).unwrap()
}

fn layer_count(routing: &Routing) -> u8 {
    match &routing.lanes {
        Lanes::Layers(layers) => layers.count,
        _ => 1,
    }
}

/// Finds a lane with a cycle. Counts all traffic between switches with hosts, or all possible
/// traffic.
fn looping_lane(topology: &Topology, steering: &Steering, routing: &Routing) -> Option<u8> {
    let mut routing = routing.clone();
    if routing.lanes == Lanes::Free {
        let switches = topology.switch_count();
        routing.lanes = Lanes::Layers(Layers::new(switches, Columns::EgressSwitch, switches));
    }
    let hosts = topology.hosts_on();
    let is_end =
        |switch: u16| hosts[usize::from(switch)] > 0 || steering.settings.nue.includes_switches;
    testing::looping_layer(topology, &routing, |source, to| {
        is_end(source) && is_end(to.egress_switch)
    })
}

/// Whether replies on the SL of their requests close no cycle either.
fn replies_are_free(topology: &Topology, routing: &Routing) -> bool {
    let loops = verify::credit_loops_with_replies(topology, &routing.tables(), &routing.lanes);
    loops.is_none_or(|loops| loops.is_free())
}

/// Hops of all routes between different switches, with those of the shortest path.
fn hops(topology: &Topology, routing: &Routing) -> Vec<(u8, u8)> {
    let least = HopMatrix::compute(topology).unwrap();
    let mut found = Vec::new();
    for to in topology.destinations() {
        for from in topology.switches().filter(|&from| from != to.egress_switch) {
            let (mut switch, mut hops) = (from, 0);
            while let Some(link) = topology.link_at(switch, routing.port(switch, to.base_lid)) {
                (switch, hops) = (topology.link(link).peer, hops + 1);
            }
            found.push((hops, least.row(from)[usize::from(to.egress_switch)]));
        }
    }
    found
}

/// Whether no route is longer than the shortest.
fn all_are_shortest(topology: &Topology, routing: &Routing) -> bool {
    hops(topology, routing).iter().all(|(hops, least)| hops == least)
}

proptest! {
    #[test]
    fn all_is_delivered_and_nothing_waits_in_circles(
        topology in testing::any_topology(), lanes in 1u8..=8, includes_switches in any::<bool>(),
    ) {
        let steering = including(includes_switches, lanes);
        let routing = routed(&topology, &steering);
        let walk = verify::walk::deliveries(&topology, &routing);
        prop_assert!(walk.is_sound(), "{:?}", walk.defects);
        prop_assert_eq!((walk.unreachable, walk.unrouted), (routing.unreachable, 0));
        prop_assert_eq!(&verify::deliveries(&topology, &routing), &walk);
        prop_assert_eq!(looping_lane(&topology, &steering, &routing), None);
        prop_assert!(verify::credit_loops_on_lanes(&topology, &routing).is_free());
        prop_assert!(replies_are_free(&topology, &routing));
        prop_assert!((1..=lanes).contains(&layer_count(&routing)));
        prop_assert_eq!(routed(&topology, &steering), routing);
    }

    /// However many turns others have claimed before, all ends get paths by allowed turns.
    #[test]
    fn a_path_remains_whatever_was_claimed(
        topology in testing::any_topology(), claims in prop::collection::vec(any::<u16>(), 0..600),
        includes_switches in any::<bool>(), place in 0usize..9,
    ) {
        let steering = including(includes_switches, 1);
        let fabric = Fabric::new(&topology, &steering.settings.nue);
        let distances = HopMatrix::compute(&topology).unwrap();
        let egress_switches = egress_switches(&topology);
        let forest = Forest::new(&fabric, &distances, &egress_switches, place);
        let mut turns = Turns::new(&topology);
        forest.mark(&fabric, &egress_switches, &mut turns);
        prop_assert!(!turns.is_refused, "escape paths close a cycle");
        for pair in claims.chunks_exact(2).filter(|_| topology.link_count() > 0) {
            let from = u32::from(pair[0]) % topology.link_count() as u32;
            let nexts = fabric.links(fabric.receiver(from));
            turns.allow(from, nexts.start + u32::from(pair[1]) % nexts.len() as u32);
        }
        turns.keep(|_, _| true);
        let mut loads = Loads::new(&fabric);
        let mut lane = Lane { fabric: &fabric, loads: &mut loads, turns: &mut turns };
        let (mut search, mut further) = (Search::new(&fabric), Further::new(&fabric));
        for egress_switch in &egress_switches {
            let distances = distances.row(egress_switch.switch);
            search.run(&mut lane, &forest, distances, egress_switch.switch);
            further.begin(&fabric, &search);
            for _ in 0..3 {
                check_ways(&mut lane, distances, egress_switch.switch, &further.tree.choices)?;
                lane.loads.add(&fabric, &search.order, &further.tree.choices);
                further.route(&mut lane, &search);
                let falls = search.order.iter().all(|&switch| {
                    let next = fabric.receiver(further.tree.choices[usize::from(switch)]);
                    search.levels[usize::from(next)] < search.levels[usize::from(switch)]
                });
                prop_assert!(falls);
            }
        }
    }

    /// However often egress switches are routed, the loads that decide are those of the tables.
    #[test]
    fn loads_are_those_of_the_routes(topology in testing::any_topology(), lanes in 1u8..=3) {
        let steering = steering(lanes);
        let fabric = Fabric::new(&topology, &steering.settings.nue);
        let distances = HopMatrix::compute(&topology).unwrap();
        let layers = partition::layers(&distances, egress_switches(&topology), lanes);
        for times in 0..3 {
            let mut made = Made::new(&fabric, &distances, &layers, Variant::FIRST);
            (0..times).for_each(|_| made.route_again());
            let most = made.loads.most();
            let (lfts, hops, unreachable) = made.finish();
            let (lanes, loads) = (Lanes::Free, Vec::new());
            let engine = "nue";
            let routing = Routing { engine, lfts, hops, lanes, unreachable, loads, tree: None };
            prop_assert_eq!(u64::from(most), u64::from(spread(&topology, &routing).max));
        }
    }

    #[test]
    fn lanes_get_their_shares(topology in testing::any_topology(), lanes in 1u8..=8) {
        let distances = HopMatrix::compute(&topology).unwrap();
        let lids = |egress_switch: &EgressSwitch| egress_switch.lids().count();
        let most = egress_switches(&topology).iter().map(lids).max().unwrap_or(0);
        let total: usize = egress_switches(&topology).iter().map(lids).sum();
        let layers = partition::layers(&distances, egress_switches(&topology), lanes);
        let count = egress_switches(&topology).len();
        prop_assert_eq!(layers.len(), usize::from(lanes).min(count).max(1));
        let mut switches: Vec<u16> = layers.iter().flatten().map(|egress| egress.switch).collect();
        switches.sort_unstable();
        let all = egress_switches(&topology);
        prop_assert_eq!(switches, all.iter().map(|egress| egress.switch).collect::<Vec<_>>());
        for layer in &layers {
            let sum: usize = layer.iter().map(lids).sum();
            // Each of up to three cuts misses its share by half an egress switch at most.
            prop_assert!(sum <= total / layers.len() + 2 * most, "{} of {}", sum, total);
        }
    }
}

/// Checks that paths from all ends lead to the egress switch by turns that are in the graph
/// already.
fn check_ways(
    lane: &mut Lane<'_>,
    distances: &[u8],
    egress_switch: u16,
    choices: &[u32],
) -> Result<(), TestCaseError> {
    let fabric = lane.fabric;
    for from in fabric.topology.switches() {
        if distances[usize::from(from)] == HopMatrix::UNREACHABLE {
            continue;
        }
        let (mut switch, mut before, mut hops) = (from, NO_LINK, 0);
        while switch != egress_switch {
            let link = choices[usize::from(switch)];
            prop_assert!(link != NO_LINK && hops < fabric.switch_count(), "no path from {}", from);
            let must_not_wait = fabric.is_end(from) && fabric.is_end(egress_switch);
            if before != NO_LINK && must_not_wait {
                prop_assert!(lane.turns.allow(before, link));
            }
            (switch, before, hops) = (fabric.receiver(link), link, hops + 1);
        }
    }
    let mut added = 0;
    lane.turns.keep(|_, _| {
        added += 1;
        true
    });
    prop_assert_eq!(added, 0, "paths use turns that were not claimed");
    Ok(())
}

/// Regression: shortest paths that fit in one lane were reported as
/// layered, so that SLs of the QoS policy were replaced by 0.
#[test]
fn paths_on_one_lane_leave_sls_alone() {
    let tree = testing::topology(&testing::fat_tree(2, 8, 20), 0);
    let routing = routed(&tree, &steering(1));
    assert_eq!((&routing.lanes, routing.lanes.engine_sls()), (&Lanes::Free, 0));
}

/// In each direction one turn has to be left out, and routes that would use it go the other way
/// round.
#[test]
fn a_ring_with_one_lane_has_detours() {
    let ring = testing::topology(&testing::torus(&[5], 1), 0);
    let routing = routed(&ring, &steering(1));
    assert_eq!(routing.lanes, Lanes::Free);
    let detours = hops(&ring, &routing).into_iter().filter(|(hops, least)| hops > least);
    // To the host and to the switch.
    assert_eq!(detours.collect::<Vec<_>>(), [(3, 2); 4]);
    let two = routed(&ring, &steering(2));
    assert!(all_are_shortest(&ring, &two) && layer_count(&two) == 2);
}

/// Pseudo-random orders are not rotations of each other.
#[test]
fn scattered_orders_differ() {
    let order = |seed: u64| {
        let mut places: Vec<u64> = (0..36).collect();
        places.sort_by_key(|&place| mixed(seed << 32 | place));
        places
    };
    let followed_by = |order: &[u64]| -> std::collections::BTreeSet<_> {
        order.windows(2).map(|pair| (pair[0], pair[1])).collect()
    };
    let (first, second) = (followed_by(&order(0)), followed_by(&order(1)));
    assert!(first.intersection(&second).count() < 6);
}

/// An egress switch keeps its routes if its longest path would get longer.
#[test]
fn routed_again_no_egress_switchs_longest_path_gets_longer() {
    for dims in [&[6, 6][..], &[8, 7], &[4, 5, 3]] {
        let torus = testing::topology(&testing::torus(dims, 1), 0);
        let fabric = Fabric::new(&torus, &Settings::default());
        let distances = HopMatrix::compute(&torus).unwrap();
        let layers = partition::layers(&distances, egress_switches(&torus), 1);
        for variant in Variant::others(&torus) {
            let longest = |times| {
                let mut made = Made::new(&fabric, &distances, &layers, variant);
                (0..times).for_each(|_| made.route_again());
                let hops = made.finish().1;
                let longest =
                    |egress_switch| hops.row(egress_switch).iter().copied().max().unwrap();
                torus.switches().map(longest).collect::<Vec<u8>>()
            };
            let (before, after) = (longest(0), longest(1));
            assert!(after.iter().zip(&before).all(|(after, before)| after <= before));
        }
    }
}

/// Of several orders and roots the best are chosen. The first two orders had 768 routes on a link,
/// and a path of 9 hops; the best had 507 before egress switches were routed a second time.
#[test]
fn other_orders_and_roots_make_paths_short_and_links_even() {
    let torus = testing::topology(&testing::torus(&[6, 6], 3), 0);
    let routing = routed(&torus, &steering(1));
    let longest = hops(&torus, &routing).into_iter().map(|(hops, _)| hops).max();
    assert!(spread(&torus, &routing).max < 500 && longest <= Some(8), "{longest:?}");
}

#[test]
fn long_rings_are_delivered_all_the_same() {
    let ring = testing::topology(&testing::torus(&[250], 1), 0);
    let routing = routed(&ring, &steering(1));
    let walk = verify::deliveries(&ring, &routing);
    assert_eq!((walk.delivered, routing.unreachable), (250 * 500, 0));
    assert_eq!(looping_lane(&ring, &steering(1), &routing), None);
}

/// Hops are counted up to 253; a longer path is left out, not
/// replaced by one that loops.
#[test]
fn paths_that_are_too_long_are_left_out() {
    let ring = testing::topology(&testing::torus(&[300], 1), 0);
    let routing = routed(&ring, &steering(1));
    let walk = verify::walk::deliveries(&ring, &routing);
    assert_eq!(walk.delivered + routing.unreachable, 300 * 600);
    assert_eq!(walk.defective + walk.unrouted, routing.unreachable);
    assert!(walk.defects.iter().all(|defect| defect.kind == verify::DefectKind::Missing));
    assert!((1..300 * 50).contains(&routing.unreachable), "{}", routing.unreachable);
    assert_eq!(looping_lane(&ring, &steering(1), &routing), None);
}

#[test]
fn fat_trees_are_balanced_perfectly_with_one_lane() {
    for (levels, radix, hosts) in [(2, 8, 32), (2, 36, 648), (3, 8, 128), (3, 12, 432)] {
        let topology = testing::topology(&testing::fat_tree(levels, radix, hosts), 0);
        let routing = routed(&topology, &steering(1));
        let perfect = hosts as u32 - u32::from(radix / 2);
        assert_eq!(spread(&topology, &routing).max, perfect, "{levels} levels, radix {radix}");
        assert!(all_are_shortest(&topology, &routing));
    }
}

/// Core switches come last, so that paths between them take no turns from hosts.
#[test]
fn two_levels_stay_perfect_if_switches_count() {
    let topology = testing::topology(&testing::fat_tree(2, 8, 32), 0);
    let steering = including(true, 1);
    let routing = routed(&topology, &steering);
    assert_eq!(spread(&topology, &routing).max, 28);
    assert_eq!(looping_lane(&topology, &steering, &routing), None);
}

/// Paths to and from core switches may have to go down and up again; that must not cost hosts more
/// balance than the lack of relief costs.
#[test]
fn trees_with_holes_are_routed_about_as_well_as_by_minhop() {
    let net = testing::fat_tree(3, 12, 432);
    let topology = testing::topology_without(&net, 0, |number| number % 13 == 0);
    let routing = routed(&topology, &steering(1));
    let minhop = MinHop.route(&topology, &Steering::default(), None).unwrap();
    assert!(all_are_shortest(&topology, &routing));
    assert!(spread(&topology, &routing).max <= spread(&topology, &minhop).max * 2);
}

/// Shorter and better balanced than the other engine that needs only one lane.
#[test]
fn tori_are_routed_better_than_by_updn() {
    let topology = testing::topology(&testing::torus(&[6, 6, 6], 1), 0);
    let nue = routed(&topology, &steering(1));
    let updn = updn::Options { roots: vec![0] };
    let rooted = Steering { updn, ..Steering::default() };
    let updn = UpDown::FromRoots.route(&topology, &rooted, None).unwrap();
    let sum = |routing| hops(&topology, routing).iter().map(|&(hops, _)| u32::from(hops)).sum();
    let (nue_hops, updn_hops): (u32, u32) = (sum(&nue), sum(&updn));
    assert!(nue_hops < updn_hops, "{nue_hops} < {updn_hops}");
    let (nue, updn) = (spread(&topology, &nue), spread(&topology, &updn));
    assert!(nue.max < updn.max, "{nue}; updn: {updn}");
}

#[test]
fn more_lanes_make_paths_shorter_and_links_more_even() {
    let topology = testing::topology(&testing::torus(&[6, 6, 6], 1), 0);
    let cost = |lanes| {
        let routing = routed(&topology, &steering(lanes));
        let sum: u32 = hops(&topology, &routing).iter().map(|&(hops, _)| u32::from(hops)).sum();
        (sum, spread(&topology, &routing).max)
    };
    let (one, two, eight) = (cost(1), cost(2), cost(8));
    // Two lanes hold only the routes of one, with the replies.
    assert!(one.0 >= two.0 && two.0 > eight.0, "{one:?} {two:?} {eight:?}");
    assert!(one.1 >= two.1 && two.1 > eight.1, "{one:?} {two:?} {eight:?}");
}

/// Cubes numbered by dimension are routed by dimension, if egress switches are in numeric order.
#[test]
fn cubes_are_routed_perfectly_with_one_lane() {
    use fabric_sim::generate::{Hypercube, Shape};
    let cube = Hypercube { dimensions: 6, hosts_per_switch: 1, radix: None };
    let topology = testing::topology(&testing::net(Shape::Hypercube(cube)), 0);
    let routing = routed(&topology, &steering(1));
    assert_eq!(spread(&topology, &routing).max, 32);
    assert!(all_are_shortest(&topology, &routing));
}

/// Here it is better to start at the roots.
#[test]
fn meshes_are_routed_evenly_with_one_lane() {
    use fabric_sim::generate::{Grid, Shape};
    let grid = Grid { dims: vec![8, 8], wraps: false, hosts_per_switch: 2, radix: None };
    let topology = testing::topology(&testing::net(Shape::Grid(grid)), 0);
    let routing = routed(&topology, &steering(1));
    let spread = spread(&topology, &routing);
    assert!(spread.ratio() < 2.0 && all_are_shortest(&topology, &routing), "{spread}");
}

#[test]
fn no_more_lanes_are_used_than_asked_for() {
    let topology = testing::topology(&testing::torus(&[4, 4], 2), 0);
    let used = [(8, 0), (8, 3), (2, 3), (8, 1), (0, 0)].map(|(data_lanes, lanes_max)| {
        let mut steering = steering(data_lanes);
        steering.settings.nue.lanes_max = lanes_max;
        layer_count(&routed(&topology, &steering))
    });
    assert_eq!(used, [8, 3, 1, 1, 1]);
}

#[test]
fn a_hosts_lids_take_different_paths() {
    testing::check_ways_of_lids(&Nue);
}

#[test]
fn cables_between_the_same_switches_are_used_evenly() {
    testing::check_200_cables(&Nue);
}

#[test]
fn egress_switches_near_each_other_share_a_lane() {
    let mut builder = TopologyBuilder::new();
    for _ in 0..16 {
        builder.add_switch(2).unwrap();
    }
    // Switches in a row, numbered with gaps.
    let number = |place: u16| place * 5 % 16;
    for place in 1..16 {
        builder.add_link((number(place - 1), 2), (number(place), 1)).unwrap();
    }
    for egress_switch in 0..16 {
        let base_lid = Lid(egress_switch + 1);
        builder
            .add_destination(Destination { base_lid, lid_count: 1, egress_switch, exit: 0 })
            .unwrap();
    }
    let topology = builder.build().unwrap();
    let distances = HopMatrix::compute(&topology).unwrap();
    let mut layers: Vec<Vec<u16>> = partition::layers(&distances, egress_switches(&topology), 4)
        .iter()
        .map(|egress_switches| {
            egress_switches.iter().map(|egress_switch| egress_switch.switch).collect()
        })
        .collect();
    layers.iter_mut().for_each(|egress_switches| egress_switches.sort_unstable());
    layers.sort_unstable();
    let stretch = |first: u16| {
        let mut egress_switches: Vec<u16> = (first..first + 4).map(number).collect();
        egress_switches.sort_unstable();
        egress_switches
    };
    let mut expected: Vec<Vec<u16>> = [0, 4, 8, 12].map(stretch).into();
    expected.sort_unstable();
    assert_eq!(layers, expected);
}

#[test]
fn turns_that_are_refused_together_leave_nothing_behind() {
    let ring = testing::topology(&testing::torus(&[3], 1), 0);
    let link = |switch: u16| ring.link_at(switch, 1).unwrap() as u32;
    let turn = |switch: u16| (link(switch % 3), link((switch + 1) % 3));
    let mut turns = Turns::new(&ring);
    assert!(turns.allow(turn(0).0, turn(0).1));
    assert!(!turns.allow_all([turn(1), turn(2)]) && turns.is_refused);
    let mut kept = Vec::new();
    turns.keep(|from, to| {
        kept.push((from, to));
        true
    });
    assert_eq!(kept, [turn(0)]);
    // The first of them is new again.
    assert!(turns.allow(turn(1).0, turn(1).1));
    turns.keep(|from, to| {
        kept.push((from, to));
        true
    });
    assert_eq!(kept, [turn(0), turn(1)]);
    // A turn that was taken back does not close the ring.
    let mut others = Turns::new(&ring);
    assert!(others.allow_all([turn(0), turn(1)]));
    others.keep(|from, to| (from, to) != turn(1));
    assert!(others.allow(turn(2).0, turn(2).1));
}

/// Without hosts no traffic needs to be free of credit loops, unless switches count.
#[test]
fn switches_alone_are_cared_for_if_asked_to() {
    let net = testing::torus(&[4, 4], 0);
    let topology = testing::topology(&net, 0);
    let plain = routed(&topology, &steering(1));
    assert!(all_are_shortest(&topology, &plain));
    let steering = including(true, 1);
    assert!(looping_lane(&topology, &steering, &plain).is_some());
    assert_eq!(looping_lane(&topology, &steering, &routed(&topology, &steering)), None);
}
