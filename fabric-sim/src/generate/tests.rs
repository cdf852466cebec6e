//! Properties of every generated fabric, and the sizes of the shapes.

use proptest::prelude::*;

use super::*;
use ib_mad::netlist::{NodeKind, PortRef};

fn fat_tree(levels: u8, radix: u8, hosts: usize) -> FatTree {
    FatTree { levels, radix, hosts, oversubscription: (1, 1) }
}

fn make(shape: Shape) -> Net {
    generate(&shape, &Common::default()).unwrap_or_else(|error| panic!("{shape:?}: {error}"))
}

fn switches(net: &Net) -> impl Iterator<Item = usize> + '_ {
    (0..net.nodes().len()).filter(|&index| net.nodes()[index].kind == NodeKind::Switch)
}

/// Hops from `from` to each switch; `None` if unreachable.
fn hops_from(net: &Net, from: usize) -> Vec<Option<usize>> {
    let mut hops = vec![None; net.nodes().len()];
    hops[from] = Some(0);
    let mut queue = std::collections::VecDeque::from([from]);
    while let Some(index) = queue.pop_front() {
        for (_, port) in net.nodes()[index].ports() {
            let Some(peer) = port.peer.map(|peer| peer.node as usize) else { continue };
            if net.nodes()[peer].kind == NodeKind::Switch && hops[peer].is_none() {
                hops[peer] = hops[index].map(|hops| hops + 1);
                queue.push_back(peer);
            }
        }
    }
    hops
}

/// The most hops between two switches with hosts.
fn diameter(net: &Net) -> usize {
    let leaves: Vec<usize> =
        switches(net).filter(|&index| links_to(net, index, NodeKind::Ca) > 0).collect();
    let far = leaves.iter().map(|&leaf| {
        let hops = hops_from(net, leaf);
        leaves.iter().map(|&other| hops[other].expect("connected")).max().unwrap()
    });
    far.max().unwrap()
}

fn links_to(net: &Net, index: usize, kind: NodeKind) -> usize {
    let ports = net.nodes()[index].ports();
    ports
        .filter_map(|(_, port)| port.peer)
        .filter(|peer| net.nodes()[peer.node as usize].kind == kind)
        .count()
}

/// Checks the properties of every fabric; the net model itself ensures that no port has two cables.
fn check(net: &Net, radix_max: u8) -> Result<(), TestCaseError> {
    prop_assert!(net.switches_connected());
    let mut guids = std::collections::HashSet::new();
    let mut names = std::collections::HashSet::new();
    for (node, index) in net.nodes().iter().zip(0..) {
        prop_assert!(guids.insert(node.guid) && names.insert(&node.description));
        if node.kind == NodeKind::Switch {
            prop_assert!(node.port_count() <= radix_max);
            continue;
        }
        let peer = net.port(PortRef { node: index, port: 1 }).and_then(|port| port.peer);
        let peer = peer.ok_or_else(|| TestCaseError::fail("a host without a cable"))?;
        prop_assert_eq!(net.nodes()[peer.node as usize].kind, NodeKind::Switch);
    }
    Ok(())
}

#[test]
fn fat_trees_have_the_switches_that_their_hosts_need() {
    let cases = [
        (fat_tree(3, 36, 648), 36, 36 + 36 + 18),
        (fat_tree(3, 36, 11_664), 648, 648 + 648 + 324),
        (fat_tree(3, 40, 10_000), 500, 1_400),
        (fat_tree(3, 60, 45_000), 1_500, 3_900),
        (fat_tree(2, 36, 648), 36, 36 + 18),
        (fat_tree(2, 36, 324), 18, 18 + 9),
        (fat_tree(3, 36, 2), 2, 2 + 2 + 1),
    ];
    for (tree, leaves, all) in cases {
        let net = make(Shape::FatTree(tree.clone()));
        let with_hosts = switches(&net).filter(|&index| links_to(&net, index, NodeKind::Ca) > 0);
        assert_eq!(with_hosts.count(), leaves, "{tree:?}");
        assert_eq!((net.count(NodeKind::Switch), net.count(NodeKind::Ca)), (all, tree.hosts));
    }
}

#[test]
fn fat_trees_are_two_hops_a_level_wide() {
    assert_eq!(diameter(&make(Shape::FatTree(fat_tree(2, 8, 30)))), 2);
    assert_eq!(diameter(&make(Shape::FatTree(fat_tree(3, 8, 128)))), 4);
    assert_eq!(diameter(&make(Shape::FatTree(fat_tree(3, 8, 20)))), 4);
}

#[test]
fn more_hosts_than_a_fat_tree_holds_are_refused_with_the_limit() {
    let error = generate(&Shape::FatTree(fat_tree(3, 36, 11_665)), &Common::default()).unwrap_err();
    let expected = GenerateError::TooManyHosts { levels: 3, radix: 36, max: 11_664, hosts: 11_665 };
    assert_eq!(error, expected);
    let big = Shape::FatTree(fat_tree(3, 64, 48_000));
    assert!(matches!(
        generate(&big, &Common::default()),
        Err(GenerateError::TooManyLids { hosts: 48_000, .. })
    ));
}

#[test]
fn oversubscription_is_hosts_to_uplinks_of_a_leaf() {
    let tree = FatTree { oversubscription: (2, 1), ..fat_tree(2, 36, 480) };
    let net = make(Shape::FatTree(tree));
    let leaf = switches(&net).next().unwrap();
    assert_eq!(links_to(&net, leaf, NodeKind::Ca), 24);
    assert_eq!(links_to(&net, leaf, NodeKind::Switch), 12);
}

#[test]
fn tori_meshes_and_hypercubes_are_as_wide_as_their_dimensions_say() {
    let grid = |wraps| Grid { dims: vec![5, 4, 2], wraps, hosts_per_switch: 1, radix: None };
    let torus = make(Shape::Grid(grid(true)));
    assert_eq!((diameter(&torus), torus.links().count()), (2 + 2 + 1, 40 + 40 + 40 + 20));
    assert_eq!(diameter(&make(Shape::Grid(grid(false)))), 4 + 3 + 1);
    let cube = Hypercube { dimensions: 6, hosts_per_switch: 2, radix: Some(8) };
    let cube = make(Shape::Hypercube(cube));
    assert_eq!((diameter(&cube), cube.count(NodeKind::Switch)), (6, 64));
}

#[test]
fn a_dragonflys_groups_are_one_link_apart() {
    // The balanced dragonfly of radix 7: a = 2p = 2h, with the maximum number of groups.
    let dragonfly =
        Dragonfly { groups: 9, routers: 4, hosts_per_router: 2, global_links: 2, radix: Some(7) };
    let net = make(Shape::Dragonfly(dragonfly.clone()));
    assert_eq!(diameter(&net), 3);
    assert_eq!(net.links().count(), 72 + 9 * 6 + 36);
    let error =
        generate(&Shape::Dragonfly(Dragonfly { groups: 10, ..dragonfly }), &Common::default());
    assert!(matches!(error, Err(GenerateError::GlobalLinks { others: 9, available: 8, .. })));
}

#[test]
fn a_hyperxs_rows_are_one_link_wide() {
    let shape = HyperX { dims: vec![5, 4, 3], hosts_per_switch: 2, radix: None };
    let net = make(Shape::HyperX(shape));
    assert_eq!((diameter(&net), net.count(NodeKind::Ca)), (3, 120));
    assert_eq!(net.links().count(), 120 + 60 * (4 + 3 + 2) / 2);
    assert!(switches(&net).all(|index| links_to(&net, index, NodeKind::Switch) == 9));
}

#[test]
fn a_dragonfly_plus_has_its_global_links_on_spines() {
    let shape = DragonflyPlus {
        groups: 5,
        leaves: 4,
        spines: 4,
        hosts_per_leaf: 3,
        global_links: 2,
        radix: Some(8),
    };
    let net = make(Shape::DragonflyPlus(shape.clone()));
    assert_eq!((diameter(&net), net.count(NodeKind::Ca)), (3, 60));
    // Two links for each pair of groups.
    assert_eq!(net.links().count(), 60 + 5 * 16 + 20);
    let error =
        generate(&Shape::DragonflyPlus(DragonflyPlus { groups: 10, ..shape }), &Common::default());
    assert!(matches!(error, Err(GenerateError::GlobalLinks { others: 9, available: 8, .. })));
}

#[test]
fn a_slim_flys_switches_are_two_links_apart() {
    for (q, degree) in [(3, 5), (5, 7), (7, 11), (11, 17), (13, 19)] {
        let net = make(Shape::SlimFly(SlimFly { q, hosts_per_switch: 1, radix: None }));
        let count = 2 * usize::from(q) * usize::from(q);
        assert_eq!((diameter(&net), net.count(NodeKind::Switch)), (2, count), "{q}");
        let degrees = switches(&net).map(|index| links_to(&net, index, NodeKind::Switch));
        assert!(degrees.into_iter().all(|links| links == degree), "{q}");
    }
    for q in [9, 15] {
        let error = generate(
            &Shape::SlimFly(SlimFly { q, hosts_per_switch: 1, radix: None }),
            &Common::default(),
        );
        assert_eq!(error, Err(GenerateError::NoPrime { value: q.into() }));
    }
}

#[test]
fn equal_adapters_of_a_rail_trees_group_share_a_leaf() {
    for (levels, hosts, rails) in [(2, 40, 8), (3, 200, 8), (3, 37, 3)] {
        let shape = RailTree { levels, radix: 32, hosts, rails, oversubscription: (1, 1) };
        let net = make(Shape::RailTree(shape));
        assert_eq!(net.count(NodeKind::Ca), hosts * usize::from(rails));
        let mut rail_of = std::collections::HashMap::new();
        for (node, index) in net.nodes().iter().zip(0..) {
            if node.kind != NodeKind::Ca {
                continue;
            }
            let rail = node.description.split_once(" HCA-").unwrap().1;
            let leaf = net.port(PortRef { node: index, port: 1 }).unwrap().peer.unwrap().node;
            assert_eq!(*rail_of.entry(leaf).or_insert(rail), rail, "a leaf has one rail");
        }
        assert_eq!(diameter(&net), usize::from(levels - 1) * 2);
        for leaf in switches(&net).filter(|&index| links_to(&net, index, NodeKind::Ca) > 0) {
            let adapters = links_to(&net, leaf, NodeKind::Ca);
            assert!(adapters <= links_to(&net, leaf, NodeKind::Switch), "full bandwidth");
        }
    }
    let shape = RailTree { levels: 2, radix: 32, hosts: 65, rails: 8, oversubscription: (1, 1) };
    let error = generate(&Shape::RailTree(shape), &Common::default());
    assert!(
        matches!(error, Err(GenerateError::TooManyHosts { max: 64, hosts: 65, .. })),
        "{error:?}"
    );
}

#[test]
fn random_graphs_nearly_fill_their_degree() {
    let graph = RandomGraph { switches: 100, degree: 6, hosts: 250, radix: None };
    let net = make(Shape::Random(graph));
    let links = net.links().count() - 250;
    assert!((295..=300).contains(&links), "{links}");
    let path = RandomGraph { switches: 3, degree: 1, hosts: 3, radix: None };
    let error = generate(&Shape::Random(path), &Common::default());
    assert_eq!(error, Err(GenerateError::Degree { switches: 3, degree: 1, min: 2 }));
}

#[test]
fn links_that_switches_need_are_not_taken_away() {
    let shape =
        Shape::Grid(Grid { dims: vec![4, 4], wraps: true, hosts_per_switch: 2, radix: None });
    // 32 links, of which a spanning tree needs 15.
    let common = Common { missing_links: 53.0, missing_hosts: 50.0, ..Common::default() };
    let net = generate(&shape, &common).unwrap();
    assert_eq!((net.links().count(), net.count(NodeKind::Ca)), (15 + 16, 16));
    assert!(net.switches_connected());
    let error = generate(&shape, &Common { missing_links: 60.0, ..common }).unwrap_err();
    assert!(
        matches!(error, GenerateError::MissingLinks { needed: 15, missing: 19, .. }),
        "{error}"
    );
    assert!(error.to_string().ends_with("use at most 53.1"), "{error}");
}

#[test]
fn switches_that_others_need_are_not_taken_away() {
    let row =
        |dims: Vec<u16>, wraps| Shape::Grid(Grid { dims, wraps, hosts_per_switch: 2, radix: None });
    let missing = |missing_switches| Common { missing_switches, ..Common::default() };
    let net = generate(&row(vec![4, 4], true), &missing(25.0)).unwrap();
    assert_eq!((net.count(NodeKind::Switch), net.count(NodeKind::Ca)), (12, 24));
    assert!(net.switches_connected());
    // Of a row only an end can be removed, and then the next.
    for seed in 0..20 {
        let net = generate(&row(vec![8], false), &Common { seed, ..missing(12.5) }).unwrap();
        assert!(net.switches_connected());
        assert_eq!(net.count(NodeKind::Switch), 7);
    }
    let error = generate(&row(vec![4], false), &missing(100.0)).unwrap_err();
    assert!(matches!(error, GenerateError::MissingSwitches { missing: 4, .. }), "{error}");
}

fn shape() -> impl Strategy<Value = (Shape, u8)> {
    let tree = (2u8..=3, 4u8..20, 2usize..300, 1u8..4).prop_map(|(levels, radix, hosts, down)| {
        let tree = FatTree { oversubscription: (down, 1), ..fat_tree(levels, radix, hosts) };
        (Shape::FatTree(tree), radix)
    });
    let grid = (prop::collection::vec(2u16..5, 1..4), any::<bool>(), 0u8..4).prop_map(
        |(dims, wraps, hosts_per_switch)| {
            (Shape::Grid(Grid { dims, wraps, hosts_per_switch, radix: None }), 36)
        },
    );
    let cube = (1u8..7, 0u8..4).prop_map(|(dimensions, hosts_per_switch)| {
        (Shape::Hypercube(Hypercube { dimensions, hosts_per_switch, radix: Some(12) }), 12)
    });
    let dragonfly = (1u16..10, 1u16..6, 0u8..4, 1u8..5).prop_map(
        |(groups, routers, hosts_per_router, global_links)| {
            let shape = Dragonfly { groups, routers, hosts_per_router, global_links, radix: None };
            (Shape::Dragonfly(shape), 36)
        },
    );
    let random = (1usize..60, 2u8..8, 0usize..100).prop_map(|(switches, degree, hosts)| {
        (Shape::Random(RandomGraph { switches, degree, hosts, radix: None }), 128)
    });
    let rails = (2u8..=3, 4u8..20, 2usize..60, 1u8..5).prop_map(|(levels, radix, hosts, rails)| {
        let oversubscription = (1, 1);
        (Shape::RailTree(RailTree { levels, radix, hosts, rails, oversubscription }), radix)
    });
    let hyperx =
        (prop::collection::vec(2u16..5, 1..4), 0u8..4).prop_map(|(dims, hosts_per_switch)| {
            (Shape::HyperX(HyperX { dims, hosts_per_switch, radix: None }), 36)
        });
    let plus = (1u16..10, 1u16..6, 1u16..5, 1u8..4, 1u8..5).prop_map(
        |(groups, leaves, spines, hosts_per_leaf, global_links)| {
            let radix = None;
            let shape =
                DragonflyPlus { groups, leaves, spines, hosts_per_leaf, global_links, radix };
            (Shape::DragonflyPlus(shape), 36)
        },
    );
    let fly = (prop::sample::select(&[3u8, 5, 7][..]), 0u8..4).prop_map(|(q, hosts_per_switch)| {
        (Shape::SlimFly(SlimFly { q, hosts_per_switch, radix: None }), 36)
    });
    prop_oneof![tree, rails, grid, cube, hyperx, dragonfly, plus, fly, random]
}

proptest! {
    #[test]
    fn fabrics_are_connected_within_their_radix_and_decided_by_their_seed(
        (shape, radix) in shape(),
        seed in any::<u64>(),
        missing_links in prop::sample::select(&[0.0, 5.0, 30.0][..]),
        missing_switches in prop::sample::select(&[0.0, 10.0, 100.0][..]),
        missing_hosts in prop::sample::select(&[0.0, 10.0, 100.0][..]),
    ) {
        let common =
            Common { seed, missing_links, missing_switches, missing_hosts, ..Common::default() };
        match generate(&shape, &common) {
            Ok(net) => {
                check(&net, radix)?;
                let text = net.to_string();
                prop_assert_eq!(&text, &generate(&shape, &common).unwrap().to_string());
                let other = Common { seed: seed ^ 1, ..common };
                if let (Ok(other), false) = (generate(&shape, &other), net.nodes().is_empty()) {
                    prop_assert_ne!(&text, &other.to_string());
                }
                prop_assert_eq!(Net::parse("net", &text).unwrap(), net);
            }
            Err(
                GenerateError::TooManyHosts { .. }
                | GenerateError::GlobalLinks { .. }
                | GenerateError::MissingLinks { .. }
                | GenerateError::MissingSwitches { .. },
            ) => {}
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }

    /// Cables up are at least as many as hosts or cables down, so no level is a bottleneck.
    #[test]
    fn fat_trees_without_oversubscription_keep_full_bisection(
        levels in 2u8..=3, radix in 4u8..20, hosts in 2usize..400,
    ) {
        let Ok(net) = generate(&Shape::FatTree(fat_tree(levels, radix, hosts)), &Common::default())
        else { return Ok(()) };
        let rank = |index: usize| match &net.nodes()[index].description {
            name if name.starts_with("node") => 0,
            name if name.starts_with("leaf") => 1,
            name if name.starts_with("spine") => 2,
            _ => 3,
        };
        for switch in switches(&net).filter(|&switch| rank(switch) < usize::from(levels)) {
            let peers = net.nodes()[switch].ports().filter_map(|(_, port)| port.peer);
            let ranks: Vec<usize> = peers.map(|peer| rank(peer.node as usize)).collect();
            let up = ranks.iter().filter(|&&other| other > rank(switch)).count();
            prop_assert!(up >= ranks.len() - up, "{}", net.nodes()[switch].description);
        }
    }
}

/// The maximum number of nodes: the unicast LIDs of a subnet.
#[test]
fn the_largest_fat_tree_reads_back_the_same() {
    let net = make(Shape::FatTree(fat_tree(3, 60, 45_000)));
    assert_eq!(Net::parse("net", &net.to_string()).unwrap(), net);
}

/// Each plane is a copy of the shape, and all ports of a host have one GUID.
#[test]
fn planes_are_copies_that_only_hosts_join() {
    let shape = Shape::FatTree(fat_tree(2, 8, 20));
    let one = make(shape.clone());
    let net = generate(&shape, &Common { planes: 4, ..Common::default() }).unwrap();
    let count = |net: &Net| (net.count(NodeKind::Ca), net.count(NodeKind::Switch));
    assert_eq!(count(&net), (count(&one).0, 4 * count(&one).1));
    assert_eq!(net.links().count(), 4 * one.links().count());
    let mut guids = std::collections::HashSet::new();
    for node in net.nodes().iter().filter(|node| node.kind == NodeKind::Ca) {
        let of_ports: Vec<_> = node.ports().map(|(_, port)| port.guid).collect();
        assert!(of_ports.len() == 4 && of_ports.iter().all(|guid| *guid == of_ports[0]));
        assert!(guids.insert(of_ports[0]));
    }
    // The planes of the first host's four leaves do not meet.
    let leaf = |port| net.port(PortRef { node: 0, port }).unwrap().peer.unwrap().node as usize;
    let reached = hops_from(&net, leaf(1));
    assert!((2..=4).all(|plane| reached[leaf(plane)].is_none()));
    assert_eq!(reached.iter().flatten().count(), count(&one).1);
    assert_eq!(Net::parse("again.net", &net.to_string()).unwrap(), net);
    assert!(generate(&shape, &Common { planes: 9, ..Common::default() }).is_err());
}
