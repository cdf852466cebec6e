//! Tests the rules of up*/down* routing, and its balance.

use proptest::prelude::*;

use super::*;
use crate::testing::spread;
use crate::{CommonOptions, MinHop, testing, verify};

const BOTH: [UpDown; 2] = [UpDown::FromRoots, UpDown::FromHosts];

/// Roots with which `updn` routes any fabric.
fn rooted(roots: &[u16]) -> Steering {
    connected(roots, false)
}

fn connected(roots: &[u16], connect_roots: bool) -> Steering {
    let updn = Options { roots: roots.to_vec() };
    let mut steering = Steering { updn, ..Steering::default() };
    steering.settings.updn.connect_roots = connect_roots;
    steering
}

/// Checks that all routes deliver, and that without `connect_roots` there are no credit loops,
/// whichever switches send.
fn check(topology: &Topology, steering: &Steering, routing: &Routing) -> Result<(), TestCaseError> {
    let walk = testing::check(topology, routing)?;
    if steering.settings.updn.connect_roots {
        prop_assert_eq!(walk.unrouted, 0);
    } else {
        let loops = verify::credit_loops(topology, &routing.tables());
        prop_assert_eq!((loops.traffic, loops.looping), (verify::Traffic::All, 0));
    }
    Ok(())
}

/// Hops from all switches to `egress_switch` of the shortest routes that go up and then down, by a
/// search over pairs of a switch and whether the route may still go up.
fn shortest(topology: &Topology, order: &Order, egress_switch: u16) -> Vec<Option<(u8, bool)>> {
    let switches = topology.switch_count();
    // Searched from the egress switch: the last part of a route, which goes down, comes first.
    let mut hops = [vec![None; switches], vec![None; switches]];
    hops[0][usize::from(egress_switch)] = Some(0u8);
    let mut queue = std::collections::VecDeque::from([(egress_switch, 0)]);
    while let Some((switch, phase)) = queue.pop_front() {
        let so_far = hops[phase][usize::from(switch)].unwrap();
        for link in topology.links(switch) {
            let came_down = order.is_above(link.peer, switch);
            if phase == 1 && came_down {
                continue;
            }
            let phase = if came_down { 0 } else { 1 };
            let slot = &mut hops[phase][usize::from(link.peer)];
            if slot.is_none() {
                *slot = Some(so_far + 1);
                queue.push_back((link.peer, phase));
            }
        }
    }
    let [down, up] = hops;
    let ways = down.into_iter().zip(up);
    // Switches that can go down do, wherever packets come from, and only others go up.
    ways.map(|(down, up)| down.map(|hops| (hops, true)).or(up.map(|hops| (hops, false)))).collect()
}

proptest! {
    #[test]
    fn routes_deliver_and_never_loop(
        topology in testing::any_topology(), root in any::<u16>(), connect_roots in any::<bool>(),
    ) {
        let root = root % topology.switch_count() as u16;
        let steering = connected(&[root], connect_roots);
        let routing = UpDown::FromRoots.route(&topology, &steering, None).unwrap();
        check(&topology, &steering, &routing)?;
        // One root reaches all, so that nothing is left out.
        prop_assert_eq!(verify::deliveries(&topology, &routing).unrouted, 0);
    }

    #[test]
    fn fabrics_with_many_roots_or_none_are_routed_or_refused(
        topology in testing::any_topology(), roots in prop::collection::vec(any::<u16>(), 0..5),
        connect_roots in any::<bool>(),
    ) {
        let roots: Vec<u16> =
            roots.iter().map(|root| root % topology.switch_count() as u16).collect();
        let steering = connected(&roots, connect_roots);
        for engine in BOTH {
            match engine.route(&topology, &steering, None) {
                Ok(routing) => check(&topology, &steering, &routing)?,
                Err(RoutingError { reason: Reason::TooManySwitches { .. }, .. }) => {
                prop_assert!(false, "an unexpected limit was reported");
            }
            Err(_) => {}
            }
        }
    }

    /// Paths go down where possible, else are the shortest of all that go up and then down.
    #[test]
    fn labels_are_those_of_a_search(topology in testing::any_topology(), root in any::<u16>()) {
        let root = root % topology.switch_count() as u16;
        let order = Order::below(&topology, &CommonOptions::default(), &[root]);
        let labels = Labels::compute(&topology, &order);
        for egress_switch in topology.switches() {
            let shortest = shortest(&topology, &order, egress_switch);
            for switch in topology.switches() {
                let label = labels.hops.row(egress_switch)[usize::from(switch)];
                match shortest[usize::from(switch)] {
                    None => prop_assert_eq!(label, HopMatrix::UNREACHABLE),
                    Some((hops, true)) => prop_assert_eq!(label, hops),
                    // A path over a switch that has to go down may be longer than the shortest.
                    Some((hops, false)) => {
                        prop_assert!(label >= hops && label != HopMatrix::UNREACHABLE);
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_moves_while_nothing_changes(
        topology in testing::any_topology(), root in any::<u16>(),
    ) {
        let steering = rooted(&[root % topology.switch_count() as u16]);
        let routing = UpDown::FromRoots.route(&topology, &steering, None).unwrap();
        let previous = Previous::same_switches(&topology, &routing);
        let again = UpDown::FromRoots.route(&topology, &steering, Some(&previous)).unwrap();
        prop_assert_eq!(&again, &routing);
    }
}

#[test]
fn full_fat_trees_are_balanced_perfectly_by_both() {
    for (levels, radix, hosts) in [(2, 8, 32), (2, 36, 648), (3, 8, 128), (3, 12, 432)] {
        let topology = testing::topology(&testing::fat_tree(levels, radix, hosts), 0);
        for engine in BOTH {
            let routing = engine.route(&topology, &Steering::default(), None).unwrap();
            let spread = spread(&topology, &routing);
            assert_eq!(spread.max, hosts as u32 - u32::from(radix / 2), "{engine:?}: {spread}");
        }
    }
}

#[test]
fn roots_are_found_even_if_a_pod_is_a_small_part() {
    // 24 pods of 12 leaves: all switches have more than 95 % of hosts at one distance.
    let topology = testing::topology(&testing::fat_tree(3, 24, 24 * 12 * 12), 0);
    let hops = HopMatrix::compute(&topology).unwrap();
    let found = roots::find(&topology, &hops);
    let hosts = topology.hosts_on();
    assert_eq!(found.len(), 144);
    for root in found {
        assert!(topology.links(root).iter().all(|link| hosts[usize::from(link.peer)] == 0));
    }
}

#[test]
fn a_torus_has_no_roots_of_its_own() {
    let topology = testing::topology(&testing::torus(&[4, 4], 1), 0);
    let error = UpDown::FromRoots.route(&topology, &Steering::default(), None).unwrap_err();
    assert!(matches!(error.reason, Reason::NoRoots), "{error}");
    // All switches have hosts, so all have one rank; they are ordered all the same.
    let routing = UpDown::FromHosts.route(&topology, &Steering::default(), None).unwrap();
    check(&topology, &Steering::default(), &routing).unwrap();
    assert_eq!(routing.unreachable, 0);
}

#[test]
fn spines_reach_each_other_only_if_roots_are_connected() {
    let topology = testing::topology(&testing::fat_tree(2, 8, 32), 0);
    let hosts = topology.hosts_on();
    let spines: Vec<u16> = topology.switches().filter(|&s| hosts[usize::from(s)] == 0).collect();
    let among_spines = (spines.len() * (spines.len() - 1)) as u64;
    let mut steering = rooted(&spines);
    let apart = UpDown::FromRoots.route(&topology, &steering, None).unwrap();
    assert_eq!(verify::deliveries(&topology, &apart).unrouted, among_spines);
    steering.settings.updn.connect_roots = true;
    let joined = UpDown::FromRoots.route(&topology, &steering, None).unwrap();
    assert_eq!(verify::deliveries(&topology, &joined).unrouted, 0);
    // Pairs that had a route keep it.
    for switch in topology.switches() {
        for destination in topology.destinations().iter().filter(|d| d.is_host()) {
            let lid = destination.base_lid;
            assert_eq!(joined.port(switch, lid), apart.port(switch, lid));
        }
    }
}

#[test]
fn roots_that_are_linked_in_a_row_reach_each_other() {
    let topology = testing::line(6);
    // The lowest in the middle; two parts of the row would have to go down and up if ids alone
    // decided.
    let mut steering = rooted(&[0, 1, 2, 3, 4, 5]);
    steering.common.switch_ids = vec![0, 1, 9, 8, 2, 3];
    let routing = UpDown::FromRoots.route(&topology, &steering, None).unwrap();
    assert_eq!(verify::deliveries(&topology, &routing).delivered, 36);
}

#[test]
fn hosts_that_only_a_valley_joins_are_declined() {
    let mut builder = crate::TopologyBuilder::new();
    for _ in 0..5 {
        builder.add_switch(4).unwrap();
    }
    for switch in 0..4u16 {
        builder.add_link((switch, 2), (switch + 1, 1)).unwrap();
    }
    for (egress_switch, lid) in [(0, 1), (2, 2), (4, 3)] {
        let base_lid = ib_mad::types::Lid(lid);
        let destination = crate::Destination { base_lid, lid_count: 1, egress_switch, exit: 3 };
        builder.add_destination(destination).unwrap();
    }
    let topology = builder.build().unwrap();
    let mut steering = Steering::default();
    let error = UpDown::FromHosts.route(&topology, &steering, None).unwrap_err();
    let expected = Reason::NoUpDownRoute { from: 4, to: 0, takes_io_nodes: false };
    assert_eq!(error.reason, expected);
    steering.settings.updn.connect_roots = true;
    let routing = UpDown::FromHosts.route(&topology, &steering, None).unwrap();
    check(&topology, &steering, &routing).unwrap();
}

#[test]
fn a_cut_link_moves_few_routes_and_is_used_again() {
    let net = testing::fat_tree(3, 12, 432);
    let whole = testing::topology(&net, 0);
    let engine = UpDown::FromRoots;
    let steering = Steering::default();
    let first = engine.route(&whole, &steering, None).unwrap();
    for cut in [0, 100, 500] {
        let without = testing::topology_without(&net, 0, |number| number == cut);
        let previous = Previous::same_switches(&whole, &first);
        let during = engine.route(&without, &steering, Some(&previous)).unwrap();
        let pairs = first.lfts.iter().flatten().zip(during.lfts.iter().flatten());
        let changed = pairs.filter(|(before, after)| before != after).count();
        let all = first.lfts.len() * first.lfts[0].len();
        assert!(changed * 10 < all, "{changed} of {all}");
        let previous = Previous::same_switches(&without, &during);
        let after = engine.route(&whole, &steering, Some(&previous)).unwrap();
        assert_eq!(spread(&whole, &after).links, spread(&whole, &first).links);
    }
}

#[test]
fn damaged_trees_are_balanced_about_as_well_as_by_minhop() {
    let net = testing::fat_tree(3, 16, 1000);
    let topology = testing::topology_without(&net, 1, |number| number % 29 == 0);
    let by_minhop = MinHop.route(&topology, &Steering::default(), None).unwrap();
    let by_minhop = spread(&topology, &by_minhop);
    for engine in BOTH {
        let routing = engine.route(&topology, &Steering::default(), None).unwrap();
        let spread = spread(&topology, &routing);
        assert!(spread.ratio() <= by_minhop.ratio() * 1.2, "{engine:?}: {spread} / {by_minhop}");
    }
}
