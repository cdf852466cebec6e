use std::collections::HashSet;

use super::{ENGINES, Tree, tree_ranks};
use crate::engines::{self, Engine};
use crate::measure::{Effort, Figures, Pattern, Plane, by_lid};
use crate::testing::{self, fat_tree, on_lanes};
use crate::{CommonOptions, Previous, Routing, Steering, Topology, verify};

fn steering() -> Steering {
    let mut steering = on_lanes(8);
    steering.settings.nue.lanes_max = 1;
    steering
}

fn engine(name: &str) -> Box<dyn Engine> {
    engines::find(name).unwrap()
}

fn routed(name: &str, topology: &Topology, previous: Option<&Previous<'_>>) -> Routing {
    let routing = engine(name).route(topology, &steering(), previous).unwrap();
    assert!(verify::deliveries(topology, &routing).is_sound());
    routing
}

/// The routing of a topology after another one with the same switches.
fn next(name: &str, now: &Topology, then: &Topology, routing: &Routing) -> Routing {
    routed(name, now, Some(&Previous::same_switches(then, routing)))
}

fn figures(topology: &Topology, routing: &Routing, plane: Plane, pattern: Pattern) -> Figures {
    let groups = by_lid(topology);
    let effort = Effort::default();
    Figures::measure(topology, &routing.tables(), &groups, plane, effort, pattern)
}

fn shifts(topology: &Topology, routing: &Routing) -> Figures {
    figures(topology, routing, Plane::Base, Pattern::Shift)
}

fn ebb(topology: &Topology, routing: &Routing) -> f64 {
    figures(topology, routing, Plane::Base, Pattern::Matching).bandwidth
}

/// A tree in which one of so many cables is missing, each time others.
fn damaged(levels: u8, radix: u8, hosts: usize, one_of: usize, seed: usize) -> Topology {
    let net = fat_tree(levels, radix, hosts);
    testing::topology_without(&net, 0, |number| is_drawn(number, one_of, seed))
}

/// Draws one of `one_of` numbers.
fn is_drawn(number: usize, one_of: usize, seed: usize) -> bool {
    crate::options::mixed((number + seed * 100_000) as u64).is_multiple_of(one_of as u64)
}

/// Number of entries that differ.
fn changed(a: &Routing, b: &Routing) -> usize {
    let tables = a.lfts.iter().zip(&b.lfts);
    tables.map(|(a, b)| a.iter().zip(b.iter()).filter(|(a, b)| a != b).count()).sum()
}

#[test]
fn shifts_do_not_meet_in_intact_trees() {
    for (levels, radix, hosts) in [(2, 16, 128), (2, 36, 648), (3, 8, 128), (3, 12, 432)] {
        let topology = testing::topology(&fat_tree(levels, radix, hosts), 0);
        for name in ENGINES {
            let shifts = shifts(&topology, &routed(name, &topology, None));
            let found = (shifts.bandwidth, shifts.congestion_max);
            assert_eq!(found, (1.0, 1), "{name}, {levels} levels, {hosts} hosts");
        }
    }
}

/// Bandwidth is compared with what the links allow with any splitting of flows. Where a source's
/// and a destination's missing links are at different places, single paths lose both, so on three
/// levels less remains.
#[test]
fn damaged_trees_lose_little_more_than_their_links() {
    for (levels, radix, hosts, one_of, least) in [
        (2, 16, 128, 100, 0.98),
        (2, 36, 648, 100, 0.98),
        (3, 12, 432, 100, 0.97),
        (2, 36, 648, 33, 0.96),
        (3, 12, 432, 33, 0.90),
    ] {
        for seed in 0..2 {
            let topology = damaged(levels, radix, hosts, one_of, seed);
            let best = ebb(&topology, &routed("ftree", &topology, None));
            for name in ENGINES {
                let routing = routed(name, &topology, None);
                let shifts = shifts(&topology, &routing);
                let share = shifts.bandwidth / shifts.bound;
                assert!(share >= least, "{name}, {hosts} hosts, 1 of {one_of}: {share:.3}");
                let ebb = ebb(&topology, &routing);
                assert!(ebb >= best * 0.99, "{name}: eBB {ebb:.3} instead of {best:.3}");
            }
        }
    }
}

/// Regression: in trees without a spine, hosts that shared an uplink were different ones at the
/// switch that sends and at the one that receives, and 10 % of the bandwidth was lost twice.
#[test]
fn a_dead_spine_costs_its_share_only() {
    let net = fat_tree(2, 16, 128);
    let whole = testing::topology(&net, 0);
    let spine = whole.switches().last().unwrap();
    let (topology, _) = testing::part(&whole, |switch| switch != spine, |_| true, |_| true);
    let shifts = shifts(&topology, &routed("minhop", &topology, None));
    assert!(shifts.bandwidth >= shifts.bound * 0.98, "{shifts:?}");
}

#[test]
fn tables_return_with_the_cables() {
    let net = fat_tree(3, 12, 432);
    let whole = testing::topology(&net, 0);
    for name in ENGINES {
        let first = routed(name, &whole, None);
        let (mut then, mut routing) = (whole.clone(), first.clone());
        let mut gone = HashSet::new();
        for step in 0..30 {
            gone.insert(step * 27 + 5);
            let now = testing::topology_without(&net, 0, |number| gone.contains(&number));
            routing = next(name, &now, &then, &routing);
            then = now;
        }
        assert!(changed(&first, &routing) > 0);
        for step in 0..30 {
            gone.remove(&(step * 27 + 5));
            let now = testing::topology_without(&net, 0, |number| gone.contains(&number));
            routing = next(name, &now, &then, &routing);
            then = now;
        }
        assert_eq!(changed(&first, &routing), 0, "{name}");
    }
}

/// A spine has a share of all routes, and only these move when it fails and when it is back.
#[test]
fn a_spine_that_returns_gets_its_routes_back() {
    let net = fat_tree(2, 16, 128);
    let whole = testing::topology(&net, 0);
    let spine = whole.switches().last().unwrap();
    let cut = |number: usize| {
        // The order of links is that of the net.
        let is_link = |&(a, b): &(_, _)| is_switch(&net, a) && is_switch(&net, b);
        let (a, b) = net.links().filter(is_link).nth(number).unwrap();
        [a, b].iter().any(|end| end.node as usize == switch_node(&net, spine))
    };
    let without = testing::topology_without(&net, 0, cut);
    for name in ENGINES {
        let first = routed(name, &whole, None);
        let during = next(name, &without, &whole, &first);
        let entries = without.switch_count() * without.destinations().len();
        let moved = changed(&first, &during);
        assert!(moved * 5 < entries, "{name}: {moved} of {entries}");
        let again = next(name, &without, &without, &during);
        assert_eq!(changed(&during, &again), 0, "{name}");
        let after = next(name, &whole, &without, &again);
        assert_eq!(changed(&first, &after), 0, "{name}");
    }
}

fn is_switch(net: &ib_mad::netlist::Net, end: ib_mad::netlist::PortRef) -> bool {
    net.nodes()[end.node as usize].kind == ib_mad::netlist::NodeKind::Switch
}

/// The index of a switch's node in a net.
fn switch_node(net: &ib_mad::netlist::Net, switch: u16) -> usize {
    let nodes = net.nodes().iter().enumerate();
    let mut switches = nodes.filter(|(_, node)| node.kind == ib_mad::netlist::NodeKind::Switch);
    switches.nth(switch.into()).unwrap().0
}

/// Cables fail one after the other.
#[test]
fn fifty_failures_cost_no_more_than_routing_from_scratch() {
    let net = fat_tree(3, 12, 432);
    let whole = testing::topology(&net, 0);
    for name in ["minhop", "ftree", "nue"] {
        let (mut then, mut routing) = (whole.clone(), routed(name, &whole, None));
        let mut gone = HashSet::new();
        for number in (0..whole.link_count() / 2).filter(|&number| is_drawn(number, 17, 3)).take(50)
        {
            gone.insert(number);
            let now = testing::topology_without(&net, 0, |number| gone.contains(&number));
            let kept = next(name, &now, &then, &routing);
            // Entries that lead no closer now.
            let is_lost = |switch: u16, to: &crate::Destination| {
                let hops = |switch: u16| kept.hops.row(switch)[usize::from(to.egress_switch)];
                let link = now.link_at(switch, routing.port(switch, to.base_lid));
                let there = link.map(|link| hops(now.link(link).peer));
                switch != to.egress_switch && there.is_none_or(|there| there >= hops(switch))
            };
            let all = now.switches().flat_map(|s| now.destinations().iter().map(move |to| (s, to)));
            let lost = all.filter(|&(switch, to)| is_lost(switch, to)).count();
            let moved = changed(&routing, &kept);
            assert!(moved <= lost * 2, "{name}: {moved} moved, {lost} lost");
            (then, routing) = (now, kept);
        }
        assert_eq!(gone.len(), 50);
        let scratch = routed(name, &then, None);
        let [kept, new] = [&routing, &scratch].map(|routing| {
            let of = |pattern| figures(&then, routing, Plane::Base, pattern).bandwidth;
            [Pattern::Shift, Pattern::Matching, Pattern::Permutation].map(of)
        });
        let is_near = kept.iter().zip(&new).all(|(kept, new)| *kept >= new * 0.98);
        assert!(is_near, "{name}: {kept:?}, from scratch {new:?}");
    }
}

/// What is computed only where hops and links differ is what is computed everywhere.
#[test]
fn tables_made_from_previous_ones_are_those_made_without() {
    let mut shared = 0;
    for (levels, radix, hosts, lmc) in [(3, 12, 432, 0), (2, 16, 128, 1), (2, 16, 128, 0)] {
        let net = fat_tree(levels, radix, hosts);
        let whole = testing::topology(&net, lmc);
        for name in ENGINES {
            let (mut then, mut routing) = (whole.clone(), routed(name, &whole, None));
            let mut gone = HashSet::new();
            let numbers = (0..whole.link_count() / 2).filter(|&number| is_drawn(number, 5, 7));
            for (step, number) in numbers.take(16).enumerate() {
                // Cables fail, up to three at a time, and others return.
                gone.insert(number);
                if step % 3 == 2 {
                    gone.extend([number + 1, number + 2]);
                }
                if step % 4 == 3 {
                    gone.retain(|&number| is_drawn(number, 4, step));
                }
                let now = testing::topology_without(&net, lmc, |number| gone.contains(&number));
                let previous = Previous::same_switches(&then, &routing);
                let without =
                    routed(name, &now, Some(&Previous { tree: None, ..previous.clone() }));
                let with = routed(name, &now, Some(&previous));
                assert_eq!(with, without, "{name}, step {step}");
                shared += usize::from(with.tree.is_some() && previous.tree.is_some());
                (then, routing) = (now, with);
            }
        }
    }
    assert!(shared > 200, "{shared} steps had tables to start from");
}

/// Hosts are numbered one after the other, so all numbers after one that leaves change.
#[test]
fn a_host_that_leaves_moves_no_others() {
    let net = fat_tree(3, 12, 432);
    let whole = testing::topology(&net, 0);
    let first = routed("minhop", &whole, None);
    let gone = whole.destinations().iter().find(|to| to.is_host()).unwrap().base_lid;
    let (less, _) = testing::part(&whole, |_| true, |_| true, |to| to.base_lid != gone);
    assert!(changed(&first, &routed("minhop", &less, None)) > 10_000);
    let after = next("minhop", &less, &whole, &first);
    assert_eq!(changed(&first, &after), less.switch_count());
}

/// Regression: a takeover from another SM moved all routes at once.
#[test]
fn found_routes_stay() {
    let topology = testing::topology(&fat_tree(2, 16, 128), 0);
    let others = routed("dor", &topology, None);
    for name in ["minhop", "sssp", "dfsssp"] {
        let previous = Previous { hops: None, ..Previous::same_switches(&topology, &others) };
        assert_eq!(changed(&others, &routed(name, &topology, Some(&previous))), 0, "{name}");
    }
}

#[test]
fn planes_of_lids_are_as_good_as_one() {
    for (lmc, hosts, radix, levels) in [(1, 432, 12, 3), (2, 128, 16, 2)] {
        let net = fat_tree(levels, radix, hosts);
        let plain = testing::topology(&net, 0);
        let topology = testing::topology(&net, lmc);
        for name in ENGINES {
            let [one, all] = [&plain, &topology].map(|topology| {
                let routing = routed(name, topology, None);
                (ebb(topology, &routing), shifts(topology, &routing).bandwidth)
            });
            assert_eq!(one, all, "{name}, LMC {lmc}");
            // Each plane by itself: hosts are sent to by another of their LIDs.
            let routing = routed(name, &topology, None);
            for offset in 1..1u16 << lmc {
                let shifted = |to: &crate::Destination| {
                    let lid = ib_mad::types::Lid(to.base_lid.0 + offset);
                    crate::Destination { base_lid: lid, lid_count: 1, ..*to }
                };
                let mut builder = crate::TopologyBuilder::new();
                for switch in topology.switches() {
                    builder.add_switch(topology.port_count(switch)).unwrap();
                }
                for switch in topology.switches() {
                    for link in topology.links(switch) {
                        let peer = (link.peer, link.peer_port);
                        builder.add_link((switch, link.port), peer).unwrap();
                    }
                }
                for to in topology.destinations().iter().filter(|to| to.is_host()) {
                    builder.add_destination(shifted(to)).unwrap();
                }
                let plane = builder.build().unwrap();
                assert_eq!(shifts(&plane, &routing).bandwidth, 1.0, "{name}, plane {offset}");
            }
        }
    }
}

#[test]
fn a_leaf_without_hosts_changes_no_numbers() {
    let net = fat_tree(3, 8, 128);
    let whole = testing::topology(&net, 0);
    let leaf = whole.destinations().iter().rfind(|to| to.is_host()).unwrap();
    let leaf = leaf.egress_switch;
    let (less, _) = testing::part(&whole, |_| true, |_| true, |to| to.egress_switch != leaf);
    let [whole, less] =
        [&whole, &less].map(|topology| Tree::find(topology, &CommonOptions::default()).unwrap());
    assert_eq!(&whole.widths[..2], &less.widths[..2]);
    assert_eq!(whole.leaves[..whole.leaves.len() - 1], less.leaves[..]);
}

#[test]
fn ranks_are_counted_without_leaves_that_have_no_hosts() {
    let whole = testing::topology(&fat_tree(2, 8, 32), 0);
    let leaf = whole.destinations().iter().find(|to| to.is_host()).unwrap().egress_switch;
    let (less, _) = testing::part(&whole, |_| true, |_| true, |to| to.egress_switch != leaf);
    for topology in [&whole, &less] {
        let ranks = |engine| tree_ranks(engine, topology, &CommonOptions::default());
        assert_eq!((ranks("minhop"), ranks("lash")), (Some(2), None));
    }
}

#[test]
fn other_fabrics_are_no_trees() {
    use fabric_sim::generate::{Common, RandomGraph, Shape, generate};
    let random = RandomGraph { switches: 60, degree: 6, hosts: 100, radix: None };
    let nets = [
        testing::torus(&[4, 4], 1),
        testing::torus(&[6, 6, 6], 2),
        generate(&Shape::Random(random), &Common::default()).unwrap(),
    ];
    for net in nets {
        assert!(Tree::find(&testing::topology(&net, 0), &CommonOptions::default()).is_none());
    }
    // The operator's choice of ports decides.
    let topology = testing::topology(&fat_tree(2, 8, 32), 0);
    let ignored_links = vec![false; topology.link_count()];
    let common = CommonOptions { ignored_links, ..CommonOptions::default() };
    assert!(Tree::find(&topology, &common).is_none());
}
