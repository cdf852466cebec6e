//! Laws of Nue: everything is delivered and nothing waits in circles, whatever the fabric and
//! however few lanes there are. And what that costs.

use proptest::prelude::*;

use super::super::steering::mixed;
use super::super::testing::spread;
use super::super::{MinHop, TopologyBuilder, UpDown, testing, verify};
use super::escape::Forest;
use super::fabric::NO_LINK;
use super::further::Further;
use super::lane::Lane;
use super::loads::Loads;
use super::search::Search;
use super::turns::Turns;
use super::*;

fn steering(data_lanes: u8) -> Steering {
    Steering { data_lanes, ..Steering::default() }
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

/// A lane with a cycle, if there is one. All traffic between switches with hosts counts, or all
/// there can be.
fn looping_lane(topology: &Topology, steering: &Steering, routing: &Routing) -> Option<u8> {
    let mut routing = routing.clone();
    if routing.lanes == Lanes::Free {
        let switches = topology.switch_count();
        routing.lanes = Lanes::Layers(Layers::new(switches, Columns::HomeSwitch, switches));
    }
    let hosts = topology.hosts_on();
    let is_end = |switch: u16| hosts[usize::from(switch)] > 0 || steering.nue_includes_switches;
    testing::looping_layer(topology, &routing, |source, to| is_end(source) && is_end(to.home))
}

/// Hops of all routes between different switches, with those of the shortest way.
fn hops(topology: &Topology, routing: &Routing) -> Vec<(u8, u8)> {
    let least = HopMatrix::compute(topology).unwrap();
    let mut found = Vec::new();
    for to in topology.destinations() {
        for from in topology.switches().filter(|&from| from != to.home) {
            let (mut switch, mut hops) = (from, 0);
            while let Some(link) = topology.link_at(switch, routing.port(switch, to.base_lid)) {
                (switch, hops) = (topology.link(link).peer, hops + 1);
            }
            found.push((hops, least.row(from)[usize::from(to.home)]));
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
        topology in testing::any_topology(), lanes in 1u8..=8, nue_includes_switches in any::<bool>(),
    ) {
        let steering = Steering { nue_includes_switches, ..steering(lanes) };
        let routing = routed(&topology, &steering);
        let walk = verify::walk::deliveries(&topology, &routing);
        prop_assert!(walk.is_sound(), "{:?}", walk.defects);
        prop_assert_eq!((walk.unreachable, walk.unrouted), (routing.unreachable, 0));
        prop_assert_eq!(&verify::deliveries(&topology, &routing), &walk);
        prop_assert_eq!(looping_lane(&topology, &steering, &routing), None);
        prop_assert!(verify::credit_loops_on_lanes(&topology, &routing).is_free());
        prop_assert!((1..=lanes).contains(&layer_count(&routing)));
        prop_assert_eq!(routed(&topology, &steering), routing);
    }

    /// However many turns others have claimed before: ways are found from all ends, and take turns
    /// that are allowed.
    #[test]
    fn a_way_is_left_whatever_was_claimed(
        topology in testing::any_topology(), claims in prop::collection::vec(any::<u16>(), 0..600),
        nue_includes_switches in any::<bool>(), place in 0usize..9,
    ) {
        let steering = Steering { nue_includes_switches, ..steering(1) };
        let fabric = Fabric::new(&topology, &steering);
        let distances = HopMatrix::compute(&topology).unwrap();
        let homes = homes(&topology);
        let forest = Forest::new(&fabric, &distances, &homes, place);
        let mut turns = Turns::new(&topology);
        forest.mark(&fabric, &homes, &mut turns);
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
        for home in &homes {
            let distances = distances.row(home.switch);
            search.run(&mut lane, &forest, distances, home.switch);
            further.begin(&fabric, &search);
            for _ in 0..3 {
                check_ways(&mut lane, distances, home.switch, &further.tree.choices)?;
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

    /// However often homes are routed: the loads that decide are those of the tables, and ways get
    /// no longer.
    #[test]
    fn loads_are_those_of_the_routes(topology in testing::any_topology(), lanes in 1u8..=3) {
        let steering = steering(lanes);
        let fabric = Fabric::new(&topology, &steering);
        let distances = HopMatrix::compute(&topology).unwrap();
        let layers = partition::layers(&distances, homes(&topology), lanes);
        let mut before = (u64::MAX, u8::MAX);
        for times in 0..3 {
            let mut made = Made::new(&fabric, &distances, &layers, Variant::FIRST);
            (0..times).for_each(|_| made.route_again());
            let most = made.loads.most();
            let (lfts, hops, unreachable) = made.finish();
            let ways = fabric.ends().flat_map(|home| fabric.ends().map(move |from| (home, from)));
            let ways = ways.map(|(home, from)| hops.row(home)[usize::from(from)]);
            let longest = ways.filter(|&hops| hops != HopMatrix::UNREACHABLE).max();
            prop_assert!((unreachable, longest.unwrap_or(0)) <= before);
            before = (unreachable, longest.unwrap_or(0));
            let (lanes, loads) = (Lanes::Free, Vec::new());
            let routing = Routing { engine: "nue", lfts, hops, lanes, unreachable, loads };
            prop_assert_eq!(u64::from(most), u64::from(spread(&topology, &routing).max));
        }
    }

    #[test]
    fn lanes_get_their_shares(topology in testing::any_topology(), lanes in 1u8..=8) {
        let distances = HopMatrix::compute(&topology).unwrap();
        let lids = |home: &Home| home.lids().count();
        let most = homes(&topology).iter().map(lids).max().unwrap_or(0);
        let total: usize = homes(&topology).iter().map(lids).sum();
        let layers = partition::layers(&distances, homes(&topology), lanes);
        prop_assert_eq!(layers.len(), usize::from(lanes).min(homes(&topology).len()).max(1));
        let mut switches: Vec<u16> = layers.iter().flatten().map(|home| home.switch).collect();
        switches.sort_unstable();
        let all = homes(&topology);
        prop_assert_eq!(switches, all.iter().map(|home| home.switch).collect::<Vec<_>>());
        for layer in &layers {
            let sum: usize = layer.iter().map(lids).sum();
            // Each of up to three cuts misses by half a home at most.
            prop_assert!(sum <= total / layers.len() + 2 * most, "{} of {}", sum, total);
        }
    }
}

/// Ways from all ends lead to the home by turns that are in the graph already.
fn check_ways(
    lane: &mut Lane<'_>,
    distances: &[u8],
    home: u16,
    choices: &[u32],
) -> Result<(), TestCaseError> {
    let fabric = lane.fabric;
    for from in fabric.topology.switches() {
        if distances[usize::from(from)] == HopMatrix::UNREACHABLE {
            continue;
        }
        let (mut switch, mut before, mut hops) = (from, NO_LINK, 0);
        while switch != home {
            let link = choices[usize::from(switch)];
            prop_assert!(link != NO_LINK && hops < fabric.switch_count(), "no way from {}", from);
            let must_not_wait = fabric.is_end(from) && fabric.is_end(home);
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
    prop_assert_eq!(added, 0, "turns were taken that nobody had claimed");
    Ok(())
}

/// Shortest ways that do with one lane were said to keep to it: policy's SLs gave way to 0.
#[test]
fn ways_on_one_lane_leave_sls_alone() {
    let tree = testing::topology(&testing::fat_tree(2, 8, 20), 0);
    let routing = routed(&tree, &steering(1));
    assert_eq!((&routing.lanes, routing.lanes.engine_sls()), (&Lanes::Free, 0));
}

/// In each direction one turn has to be left out, and who would take it goes the other way round.
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

/// Orders by no rule are no turned ones of each other.
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

/// Of several orders and roots the best are taken. The first two orders had 768 routes on a link,
/// and a way of 9 hops; the best had 507 before homes were routed a second time.
#[test]
fn other_orders_and_roots_make_ways_short_and_links_even() {
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

/// Hops are told up to 253; what would need more has no route rather than one that loops.
#[test]
fn ways_that_are_too_long_are_left_out() {
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

/// Core switches come last, so that ways between them take no turns from hosts.
#[test]
fn two_levels_stay_perfect_if_switches_count() {
    let topology = testing::topology(&testing::fat_tree(2, 8, 32), 0);
    let steering = Steering { nue_includes_switches: true, ..steering(1) };
    let routing = routed(&topology, &steering);
    assert_eq!(spread(&topology, &routing).max, 28);
    assert_eq!(looping_lane(&topology, &steering, &routing), None);
}

/// Ways to and from core switches may have to go down and up again; hosts must not pay for that by
/// more than not having routes moved afterwards costs.
#[test]
fn trees_with_holes_are_routed_about_as_well_as_by_minhop() {
    let net = testing::fat_tree(3, 12, 432);
    let topology = testing::topology_without(&net, 0, |number| number % 13 == 0);
    let routing = routed(&topology, &steering(1));
    let minhop = MinHop.route(&topology, &Steering::default(), None).unwrap();
    assert!(all_are_shortest(&topology, &routing));
    assert!(spread(&topology, &routing).max <= spread(&topology, &minhop).max * 2);
}

/// Shorter and more even than what else does with one lane.
#[test]
fn tori_are_routed_better_than_by_updn() {
    let topology = testing::topology(&testing::torus(&[6, 6, 6], 1), 0);
    let nue = routed(&topology, &steering(1));
    let rooted = Steering { roots: vec![0], ..Steering::default() };
    let updn = UpDown::FromRoots.route(&topology, &rooted, None).unwrap();
    let sum = |routing| hops(&topology, routing).iter().map(|&(hops, _)| u32::from(hops)).sum();
    let (nue_hops, updn_hops): (u32, u32) = (sum(&nue), sum(&updn));
    assert!(nue_hops < updn_hops, "{nue_hops} < {updn_hops}");
    let (nue, updn) = (spread(&topology, &nue), spread(&topology, &updn));
    assert!(nue.max < updn.max, "{nue}; updn: {updn}");
}

#[test]
fn more_lanes_make_ways_shorter_and_more_even() {
    let topology = testing::topology(&testing::torus(&[6, 6, 6], 1), 0);
    let cost = |lanes| {
        let routing = routed(&topology, &steering(lanes));
        let sum: u32 = hops(&topology, &routing).iter().map(|&(hops, _)| u32::from(hops)).sum();
        (sum, spread(&topology, &routing).max)
    };
    let (one, two, eight) = (cost(1), cost(2), cost(8));
    assert!(one.0 > two.0 && two.0 > eight.0, "{one:?} {two:?} {eight:?}");
    assert!(one.1 > two.1 && two.1 > eight.1, "{one:?} {two:?} {eight:?}");
}

/// Cubes numbered by dimension are routed by dimension, if homes come by number.
#[test]
fn cubes_are_routed_perfectly_with_one_lane() {
    use fabric_sim::generate::{Hypercube, Shape};
    let cube = Hypercube { dimensions: 6, hosts_per_switch: 1, radix: None };
    let topology = testing::topology(&testing::net(Shape::Hypercube(cube)), 0);
    let routing = routed(&topology, &steering(1));
    assert_eq!(spread(&topology, &routing).max, 32);
    assert!(all_are_shortest(&topology, &routing));
}

/// Here it is better to begin at the roots.
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
    for (data_lanes, nue_lanes_max, used) in [(8, 0, 8), (8, 3, 3), (2, 3, 2), (8, 1, 1), (0, 0, 1)]
    {
        let steering = Steering { nue_lanes_max, ..steering(data_lanes) };
        assert_eq!(layer_count(&routed(&topology, &steering)), used);
    }
}

#[test]
fn a_hosts_lids_take_different_ways() {
    testing::check_ways_of_lids(&Nue);
}

#[test]
fn cables_between_the_same_switches_are_used_evenly() {
    testing::check_200_cables(&Nue);
}

#[test]
fn homes_near_each_other_share_a_lane() {
    let mut builder = TopologyBuilder::new();
    for _ in 0..16 {
        builder.add_switch(2).unwrap();
    }
    // Switches in a row, numbered with gaps.
    let number = |place: u16| place * 5 % 16;
    for place in 1..16 {
        builder.add_link((number(place - 1), 2), (number(place), 1)).unwrap();
    }
    for home in 0..16 {
        let base_lid = Lid(home + 1);
        builder.add_destination(Destination { base_lid, lid_count: 1, home, exit: 0 }).unwrap();
    }
    let topology = builder.build().unwrap();
    let distances = HopMatrix::compute(&topology).unwrap();
    let mut layers: Vec<Vec<u16>> = partition::layers(&distances, homes(&topology), 4)
        .iter()
        .map(|homes| homes.iter().map(|home| home.switch).collect())
        .collect();
    layers.iter_mut().for_each(|homes| homes.sort_unstable());
    layers.sort_unstable();
    let stretch = |first: u16| {
        let mut homes: Vec<u16> = (first..first + 4).map(number).collect();
        homes.sort_unstable();
        homes
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
    // What is taken back does not close the ring.
    let mut others = Turns::new(&ring);
    assert!(others.allow_all([turn(0), turn(1)]));
    others.keep(|from, to| (from, to) != turn(1));
    assert!(others.allow(turn(2).0, turn(2).1));
}

/// Without hosts nothing is sent that could wait in circles, unless switches count.
#[test]
fn switches_alone_are_cared_for_if_asked_to() {
    let net = testing::torus(&[4, 4], 0);
    let topology = testing::topology(&net, 0);
    let plain = routed(&topology, &steering(1));
    assert!(all_are_shortest(&topology, &plain));
    let steering = Steering { nue_includes_switches: true, ..steering(1) };
    assert!(looping_lane(&topology, &steering, &plain).is_some());
    assert_eq!(looping_lane(&topology, &steering, &routed(&topology, &steering)), None);
}
