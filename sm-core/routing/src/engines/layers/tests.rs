use proptest::prelude::*;

use super::*;
use crate::Destination;
use crate::measure::{Effort, Figures, Pattern, Plane, by_lid};
use crate::multicast::Order;
use crate::verify::{self, credit_loops_on_lanes, credit_loops_with_replies};
use crate::{Dfsssp, testing};
use fabric_sim::generate::{Dragonfly, HyperX, Shape, SlimFly};

/// Routes with this many lanes.
fn routed(topology: &Topology, lanes: u8) -> Result<Routing, RoutingError> {
    LayeredPaths.route(topology, &testing::on_lanes(lanes), None)
}

/// Hops of the route from a switch to the LID at a place among those of a destination.
fn hops_of(topology: &Topology, routing: &Routing, from: u16, to: &Destination, offset: u16) -> u8 {
    let column =
        column::Column::read(topology, &routing.lfts, to.lids().nth(offset.into()).unwrap());
    column.path(topology, from).count() as u8
}

/// Number of routes from switches to hosts' LIDs that are longer than the shortest, and of all.
fn detours(topology: &Topology, routing: &Routing) -> (usize, usize) {
    let (mut longer, mut all) = (0, 0);
    for to in topology.destinations().iter().filter(|to| to.is_host()) {
        for from in topology.switches() {
            for offset in 0..to.lid_count {
                let hops = hops_of(topology, routing, from, to, offset);
                all += 1;
                longer += usize::from(hops > routing.hops.row(from)[usize::from(to.egress_switch)]);
            }
        }
    }
    (longer, all)
}

/// Requests between hosts and replies on their SLs are free of credit loops.
fn check_loops(topology: &Topology, routing: &Routing) -> Result<(), TestCaseError> {
    let loops = match &routing.lanes {
        Lanes::Free => credit_loops_on_lanes(topology, &in_a_layer(topology, routing)),
        _ => credit_loops_on_lanes(topology, routing),
    };
    prop_assert!(loops.is_free(), "{}", loops);
    let replies = credit_loops_with_replies(topology, &routing.tables(), &routing.lanes);
    prop_assert!(replies.is_none_or(|loops| loops.is_free()));
    Ok(())
}

/// The routing with all routes in a single layer, such that traffic between hosts is examined.
fn in_a_layer(topology: &Topology, routing: &Routing) -> Routing {
    let switches = topology.switch_count();
    let layers = Layers::new(switches, crate::lanes::Columns::EgressSwitch, switches);
    Routing { lanes: Lanes::Layers(layers), ..routing.clone() }
}

proptest! {
    /// All LIDs are delivered, the first by shortest paths and others by at most so many hops more,
    /// without credit loops of requests or replies. An engine without enough lanes says so.
    #[test]
    fn routes_arrive_by_detours_of_limited_length_and_cannot_deadlock(
        topology in testing::any_topology(), lanes in 1u8..9, extra_hops in 0u8..3,
    ) {
        let mut steering = testing::on_lanes(lanes);
        steering.settings.layers.extra_hops = extra_hops;
        let routed = LayeredPaths.route(&topology, &steering, None);
        let refused = Reason::TooFewLanes { lanes }.of("layers");
        let Some(routing) = testing::unless(routed, &refused)? else { return Ok(()) };
        testing::check_all(&topology, &routing)?;
        check_loops(&topology, &routing)?;
        let all = HopMatrix::compute(&topology).unwrap();
        for to in topology.destinations() {
            let spots = |from: u16| (0..to.lid_count).map(move |offset| (from, offset));
            for (from, offset) in topology.switches().flat_map(spots) {
                let least = all.row(from)[usize::from(to.egress_switch)];
                if least == HopMatrix::UNREACHABLE {
                    continue;
                }
                let hops = hops_of(&topology, &routing, from, to, offset);
                let most = if offset == 0 || !to.is_host() { least } else { least + extra_hops };
                prop_assert!((least..=most).contains(&hops), "{} {} {}", least, hops, most);
            }
        }
    }

    /// With one LID a host, all routes are shortest.
    #[test]
    fn without_an_lmc_routes_are_shortest(net in testing::any_net(), lanes in 1u8..9) {
        let topology = testing::topology(&net, 0);
        if let Ok(routing) = routed(&topology, lanes) {
            prop_assert_eq!(&routing.hops, &HopMatrix::compute(&topology).unwrap());
            testing::check_all(&topology, &routing)?;
        }
    }
}

/// Equal inputs give equal tables, also after a failure in between.
#[test]
fn tables_depend_on_the_fabric_only() {
    let net = hyperx(&[4, 4], 2);
    let (whole, cut) = (testing::topology(&net, 2), testing::topology_without(&net, 2, |n| n == 7));
    let first = routed(&whole, 4).unwrap();
    let without = routed(&cut, 4).unwrap();
    let previous = Previous::same_switches(&cut, &without);
    let back = LayeredPaths.route(&whole, &testing::on_lanes(4), Some(&previous)).unwrap();
    assert_eq!(back, first);
    assert_ne!(without.lfts, first.lfts);
}

/// Few lanes limit detours, never routes.
#[test]
fn few_lanes_cost_no_routes() {
    let topology = testing::topology(&hyperx(&[6, 6], 2), 3);
    for lanes in [1, 2, 8] {
        let routing = routed(&topology, lanes).unwrap();
        assert!(verify::deliveries(&topology, &routing).is_whole());
        let (longer, all) = detours(&topology, &routing);
        assert!(longer > all / 3 && longer < all * 3 / 4, "{lanes} lanes: {longer} of {all}");
    }
    // Shortest paths round a ring of five need two lanes.
    let ring = testing::topology(&testing::torus(&[5], 1), 2);
    assert_eq!(routed(&ring, 1), Err(Reason::TooFewLanes { lanes: 1 }.of("layers")));
    assert!(verify::deliveries(&ring, &routed(&ring, 2).unwrap()).is_whole());
    // Nothing is longer if the operator does not want it.
    let mut steering = testing::on_lanes(8);
    steering.settings.layers.extra_hops = 0;
    let routing = LayeredPaths.route(&topology, &steering, None).unwrap();
    assert_eq!(detours(&topology, &routing).0, 0);
}

/// Detours leave groups on every lane a tree that joins all switches and closes no cycle. (Before
/// such trees were kept free, no lane had one, and the search for it took seconds.)
#[test]
fn groups_find_a_tree_beside_detours() {
    let topology = testing::topology(&hyperx(&[6, 6], 2), 3);
    let routing = routed(&topology, 4).unwrap();
    let unicast = verify::Unicast::find(&topology, &routing.tables(), &routing.lanes);
    assert_eq!(unicast.layers.len(), 4);
    let hops = HopMatrix::compute(&topology).unwrap();
    for layer in unicast.layers {
        let order = Order::find(&topology, &hops, layer);
        assert_eq!(order.spanning().map(|tree| tree.joined()), Some(topology.switch_count()));
    }
}

/// On a fat tree every LID of a host has other spines by shortest paths.
#[test]
fn trees_have_no_detours() {
    let topology = testing::topology(&testing::fat_tree(2, 8, 32), 2);
    let routing = routed(&topology, 8).unwrap();
    assert_eq!(detours(&topology, &routing).0, 0);
    assert_eq!(routing.lfts, Dfsssp.route(&topology, &testing::on_lanes(8), None).unwrap().lfts);
}

fn hyperx(dims: &[u16], hosts_per_switch: u8) -> ib_mad::netlist::Net {
    testing::net(Shape::HyperX(HyperX { dims: dims.to_vec(), hosts_per_switch, radix: None }))
}

/// Bandwidth of random matchings and of shifts, if each flow is divided among the LIDs of its
/// destination.
fn bandwidths(topology: &Topology, routing: &Routing) -> [f64; 2] {
    let (tables, hosts) = (routing.tables(), by_lid(topology));
    let effort = Effort { patterns: 40, seed: 1 };
    [Pattern::Matching, Pattern::Shift].map(|pattern| {
        Figures::measure(topology, &tables, &hosts, Plane::Divided, effort, pattern).bandwidth
    })
}

/// Flows divided among 8 LIDs, with 8 lanes, beside the shortest paths of `dfsssp`: HyperX .94 and
/// .54 instead of .78 and .33, dragonfly .69 and .47 instead of .62 and .34, Slim Fly .55 and .46
/// instead of .53 and .35.
#[test]
fn divided_traffic_gains_from_detours() {
    let radix = None;
    let dragonfly =
        Dragonfly { groups: 19, routers: 6, hosts_per_router: 3, global_links: 6, radix };
    let slim_fly = SlimFly { q: 5, hosts_per_switch: 4, radix };
    let floors = [
        (hyperx(&[8, 12], 4), [0.92, 0.53], [1.18, 1.6]),
        (testing::net(Shape::Dragonfly(dragonfly)), [0.67, 0.44], [1.08, 1.35]),
        (testing::net(Shape::SlimFly(slim_fly)), [0.53, 0.43], [1.02, 1.28]),
    ];
    for (net, least, gain) in floors {
        let topology = testing::topology(&net, 3);
        let made = bandwidths(&topology, &routed(&topology, 8).unwrap());
        let shortest = Dfsssp.route(&topology, &testing::on_lanes(8), None).unwrap();
        let shortest = bandwidths(&topology, &shortest);
        for pattern in 0..2 {
            let (made, shortest) = (made[pattern], shortest[pattern]);
            assert!(made >= least[pattern], "{made:.3}, {}", least[pattern]);
            assert!(made >= shortest * gain[pattern], "{made:.3} instead of {shortest:.3}");
        }
    }
}
