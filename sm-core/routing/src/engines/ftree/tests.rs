//! Tests the rules of fat-tree routing, its balance, and that shift patterns do not collide.

use ib_mad::types::Lid;
use proptest::prelude::*;

use super::*;
use crate::testing::{check, spread};
use crate::{Destination, MinHop, TopologyBuilder, UpDown, testing, verify};

fn rooted(roots: Vec<u16>) -> Steering {
    Steering { updn: updn::Options { roots }, ..Steering::default() }
}

fn route(topology: &Topology, steering: &Steering) -> Result<Routing, RoutingError> {
    FTree.route(topology, steering, None)
}

fn check_loops(topology: &Topology, routing: &Routing) -> Result<(), TestCaseError> {
    let loops = verify::credit_loops(topology, &routing.tables());
    prop_assert_eq!((loops.traffic, loops.looping), (verify::Traffic::All, 0));
    Ok(())
}

/// By link: routes of each host to the host `shift` places on, in the order of LIDs.
fn shift_loads(topology: &Topology, routing: &Routing, shift: usize) -> Vec<u32> {
    let hosts: Vec<&Destination> =
        topology.destinations().iter().filter(|destination| destination.is_host()).collect();
    let mut loads = vec![0; topology.link_count()];
    for (index, from) in hosts.iter().enumerate() {
        let lid = hosts[(index + shift) % hosts.len()].base_lid;
        let mut switch = from.egress_switch;
        while let Some(link) = topology.link_at(switch, routing.port(switch, lid)) {
            loads[link] += 1;
            switch = topology.link(link).peer;
        }
    }
    loads
}

proptest! {
    #[test]
    fn trees_are_routed_and_other_fabrics_refused(
        topology in testing::any_topology(), roots in prop::collection::vec(any::<u16>(), 0..3),
        connect_roots in any::<bool>(),
    ) {
        let roots = roots.iter().map(|root| root % topology.switch_count() as u16).collect();
        let mut steering = rooted(roots);
        steering.settings.updn.connect_roots = connect_roots;
        match route(&topology, &steering) {
            Ok(routing) => {
                check(&topology, &routing)?;
                if !connect_roots {
                    check_loops(&topology, &routing)?;
                }
            }
            Err(RoutingError { reason: Reason::TooManySwitches { .. }, .. }) => {
                prop_assert!(false, "an unexpected limit was reported");
            }
            Err(_) => {}
        }
    }

    /// With links cut, a fabric is still a tree as long as all hosts reach each other.
    #[test]
    fn damaged_trees_are_routed(
        levels in 2u8..=3, half in 2u8..6, lmc in 0u8..3, cut in any::<prop::sample::Index>(),
    ) {
        let net = testing::fat_tree(levels, 2 * half, usize::from(half).pow(u32::from(levels)));
        let links = testing::topology(&net, lmc).link_count() / 2;
        let cut = cut.index(links);
        let topology = testing::topology_without(&net, lmc, |number| number == cut);
        let routing = route(&topology, &Steering::default()).unwrap();
        check(&topology, &routing)?;
        check_loops(&topology, &routing)?;
        prop_assert_eq!(&route(&topology, &Steering::default()).unwrap(), &routing);
    }

    #[test]
    fn some_hosts_compute_and_others_do_not(
        every in 2usize..5, reverse in 0u16..4, radix in 2u8..6, cut in 0usize..40,
    ) {
        let net = testing::fat_tree(3, 2 * radix, usize::from(radix).pow(3));
        let topology = testing::topology_without(&net, 1, |number| number == cut);
        let lids = |part: usize| {
            let hosts = topology.destinations().iter().filter(|to| to.is_host()).enumerate();
            let hosts = hosts.filter(|(index, _)| (index % every == 0) == (part == 0));
            hosts.map(|(_, to)| to.base_lid).collect::<Vec<Lid>>()
        };
        let common = CommonOptions {
            compute_nodes: Some(lids(1)), io_nodes: lids(0), ..CommonOptions::default()
        };
        let mut steering = Steering::from(common);
        steering.settings.ftree.max_reverse_hops = reverse;
        check(&topology, &route(&topology, &steering).unwrap())?;
    }
}

#[test]
fn full_trees_are_balanced_perfectly_and_shifts_do_not_meet() {
    for (levels, radix, hosts) in [(2, 8, 32), (2, 36, 648), (3, 8, 128), (3, 12, 432)] {
        let topology = testing::topology(&testing::fat_tree(levels, radix, hosts), 0);
        let routing = route(&topology, &Steering::default()).unwrap();
        let spread = spread(&topology, &routing);
        assert_eq!(spread.max, hosts as u32 - u32::from(radix / 2), "{spread}");
        for shift in 1..hosts {
            let most = shift_loads(&topology, &routing, shift).into_iter().max();
            assert_eq!(most, Some(1), "{levels} levels, radix {radix}, shift by {shift}");
        }
    }
}

#[test]
fn trees_with_missing_hosts_and_links_are_balanced_about_as_well_as_by_minhop() {
    use fabric_sim::generate::{Common, FatTree, Shape, generate};
    let tree = FatTree { levels: 3, radix: 16, hosts: 900, oversubscription: (1, 1) };
    for (missing_links, missing_hosts) in [(0.0, 10.0), (2.0, 0.0), (3.0, 7.0)] {
        let common = Common { missing_links, missing_hosts, seed: 5, ..Common::default() };
        let topology =
            testing::topology(&generate(&Shape::FatTree(tree.clone()), &common).unwrap(), 0);
        let routing = route(&topology, &Steering::default()).unwrap();
        let by_minhop = MinHop.route(&topology, &Steering::default(), None).unwrap();
        let (ours, minhop) = (spread(&topology, &routing), spread(&topology, &by_minhop));
        assert!(ours.ratio() <= minhop.ratio() * 1.25, "{ours} / {minhop}");
    }
}

#[test]
fn a_hosts_lids_take_different_roots() {
    let topology = testing::topology(&testing::fat_tree(3, 8, 128), 2);
    let routing = route(&topology, &Steering::default()).unwrap();
    for destination in topology.destinations().iter().filter(|to| to.is_host()) {
        for switch in topology.switches() {
            let candidates = topology.links(switch).iter().filter(|link| {
                let row = |from| routing.hops.row(from)[usize::from(destination.egress_switch)];
                row(link.peer) + 1 == row(switch)
            });
            if topology.hosts_on()[usize::from(switch)] > 0 && switch != destination.egress_switch {
                let mut ports: Vec<u8> =
                    destination.lids().map(|lid| routing.port(switch, lid)).collect();
                ports.sort_unstable();
                ports.dedup();
                assert_eq!(ports.len(), candidates.count().min(4));
            }
        }
    }
}

#[test]
fn parallel_links_share_the_load() {
    // Two leaves with six hosts each and one spine, with three links to each: ports 1 to 3, 4 to 6.
    let cables = (0..2u16)
        .flat_map(|leaf| (1..=3).map(move |port| ((leaf, port), (2, port + 3 * leaf as u8))));
    let topology = testing::cabled(3, cables, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], 1);
    let routing = route(&topology, &Steering::default()).unwrap();
    let spread = spread(&topology, &routing);
    assert_eq!((spread.links, spread.max), (12, 12));
}

#[test]
fn fabrics_that_are_not_trees_are_refused_with_a_reason() {
    let torus = testing::topology(&testing::torus(&[4, 4], 1), 0);
    let error = route(&torus, &Steering::default()).unwrap_err();
    assert!(matches!(error.reason, Reason::LinkWithinRank { .. }), "{error}");

    let line = testing::line(3);
    let error = route(&line, &Steering::default()).unwrap_err();
    assert!(matches!(error.reason, Reason::TooSmallForTree { .. }), "{error}");

    let tree = testing::topology(&testing::fat_tree(2, 8, 32), 0);
    let leaf = tree.destinations().iter().find(|to| to.is_host()).unwrap().egress_switch;
    let error = route(&tree, &rooted(vec![leaf])).unwrap_err();
    assert!(matches!(error.reason, Reason::UnequalLeaves { .. }), "{error}");

    let compute_nodes = Some(vec![Lid(0xBFFF)]);
    let error = route(&tree, &CommonOptions { compute_nodes, ..CommonOptions::default() }.into())
        .unwrap_err();
    assert_eq!(error.reason, Reason::NoComputeNodes);
}

/// Two spines with an I/O node each above two leaves: routes between these nodes go down one rank
/// and up again.
#[test]
fn io_nodes_reach_each_other_by_reverse_hops() {
    let cables = [((0, 1), (2, 1)), ((0, 2), (3, 1)), ((1, 1), (2, 2)), ((1, 2), (3, 2))];
    let topology = testing::cabled(4, cables, [0, 0, 1, 1, 2, 3], 1);
    let mut steering = Steering::from(CommonOptions {
        compute_nodes: Some((1..=4).map(Lid).collect()),
        io_nodes: vec![Lid(5), Lid(6)],
        ..CommonOptions::default()
    });
    let error = route(&topology, &steering).unwrap_err();
    assert!(matches!(error.reason, Reason::NoUpDownRoute { takes_io_nodes: true, .. }), "{error}");
    steering.settings.ftree.max_reverse_hops = 1;
    let routing = route(&topology, &steering).unwrap();
    check(&topology, &routing).unwrap();
    assert_eq!(routing.unreachable, 0);
    steering.common.io_nodes.pop();
    assert!(route(&topology, &steering).is_err(), "LID 6 is no I/O node");
}

#[test]
fn roots_allow_links_within_a_rank() {
    let net = testing::fat_tree(2, 8, 24);
    let tree = testing::topology(&net, 0);
    let hosts = tree.hosts_on();
    let mut builder = TopologyBuilder::new();
    let mut leaves = Vec::new();
    for switch in tree.switches() {
        builder.add_switch(100).unwrap();
        if hosts[usize::from(switch)] > 0 {
            leaves.push(switch);
        }
    }
    for switch in tree.switches() {
        for link in tree.links(switch) {
            builder.add_link((switch, link.port), (link.peer, link.peer_port)).unwrap();
        }
    }
    for &destination in tree.destinations() {
        builder.add_destination(destination).unwrap();
    }
    builder.add_link((leaves[0], 99), (leaves[1], 99)).unwrap();
    let topology = builder.build().unwrap();
    assert!(route(&topology, &Steering::default()).is_err());
    let roots = topology.switches().filter(|&switch| hosts[usize::from(switch)] == 0).collect();
    let steering = rooted(roots);
    let routing = route(&topology, &steering).unwrap();
    check(&topology, &routing).unwrap();
    check_loops(&topology, &routing).unwrap();
    // Only the two leaves that the link joins use the short path.
    let to = topology
        .destinations()
        .iter()
        .find(|to| to.is_host() && to.egress_switch == leaves[1])
        .unwrap();
    assert_eq!(routing.port(leaves[0], to.base_lid), 99);
    let updn = UpDown::FromRoots.route(&topology, &steering, None).unwrap();
    assert_eq!(routing.hops, updn.hops);
}
