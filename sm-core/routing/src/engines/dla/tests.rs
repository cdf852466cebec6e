use proptest::prelude::*;

use super::*;
use crate::measure::{Effort, Figures, Pattern, Plane, by_lid};
use crate::multicast::{Chooser, Orders, Place, Wanted};
use crate::verify::{Unicast, credit_loops_on_lanes};
use crate::{HopMatrix, MinHop, testing};
use fabric_sim::generate::{Common, Dragonfly, DragonflyPlus, HyperX, Shape, generate};
use ib_mad::netlist::{Net, NodeKind};
use ib_mad::types::Lid;

fn dragonfly(groups: u16, routers: u16, hosts_per_router: u8, global_links: u8) -> Shape {
    Shape::Dragonfly(Dragonfly { groups, routers, hosts_per_router, global_links, radix: None })
}

fn plus(groups: u16, leaves: u16, spines: u16, hosts_per_leaf: u8, global_links: u8) -> Shape {
    Shape::DragonflyPlus(DragonflyPlus {
        groups,
        leaves,
        spines,
        hosts_per_leaf,
        global_links,
        radix: None,
    })
}

/// A net with some percent of cables and of switches missing.
fn damaged(shape: &Shape, seed: u64, missing_links: f64, missing_switches: f64) -> Net {
    let common = Common { seed, missing_links, missing_switches, ..Common::default() };
    generate(shape, &common).unwrap()
}

fn routed(topology: &Topology, lanes: u8) -> Result<Routing, RoutingError> {
    Dla.route(topology, &testing::on_lanes(lanes), None)
}

/// Routes all deliver, hosts reach each other, and nothing can deadlock on two lanes.
fn check(topology: &Topology, routing: &Routing) -> Result<(), TestCaseError> {
    testing::check(topology, routing)?;
    let loops = credit_loops_on_lanes(topology, routing);
    prop_assert!(loops.is_free(), "{}", loops);
    prop_assert!(loops.lanes <= 2, "{} lanes", loops.lanes);
    Ok(())
}

/// Links of the longest route between hosts.
fn longest(topology: &Topology, routing: &Routing) -> usize {
    let hosts = topology.hosts_on();
    let sources = || topology.switches().filter(|&switch| hosts[usize::from(switch)] > 0);
    let length = |mut switch: u16, lid: Lid| {
        let mut length = 0;
        while let Some(link) = topology.link_at(switch, routing.port(switch, lid)) {
            (switch, length) = (topology.link(link).peer, length + 1);
        }
        length
    };
    let lids = topology.destinations().iter().filter(|to| to.is_host()).flat_map(|to| to.lids());
    lids.flat_map(|lid| sources().map(move |switch| length(switch, lid))).max().unwrap_or(0)
}

/// The groups by the names of switches, such as `g012r003`.
fn groups_by_name(net: &Net) -> Vec<String> {
    let switches = net.nodes().iter().filter(|node| node.kind == NodeKind::Switch);
    switches
        .map(|node| node.description.trim_start_matches("sw-").chars().take(4).collect())
        .collect()
}

fn shapes() -> [Shape; 9] {
    [
        dragonfly(9, 4, 2, 2),
        dragonfly(5, 3, 2, 2),
        dragonfly(19, 6, 3, 3),
        dragonfly(7, 8, 2, 4),
        dragonfly(2, 6, 2, 2),
        dragonfly(3, 4, 2, 4),
        plus(5, 2, 2, 2, 2),
        plus(9, 4, 4, 4, 4),
        plus(6, 5, 3, 2, 2),
    ]
}

/// Whole networks: groups are those of the generator, routes have at most a link in each group and
/// one between them, and packets change lanes as documented.
#[test]
fn whole_networks_have_shortest_routes_on_two_lanes() {
    for shape in shapes() {
        let net = damaged(&shape, 0, 0.0, 0.0);
        let topology = testing::topology(&net, 0);
        let groups = Groups::find(&topology).unwrap();
        let names = groups_by_name(&net);
        for (a, b) in topology.switches().flat_map(|a| topology.switches().map(move |b| (a, b))) {
            let is_one = names[usize::from(a)] == names[usize::from(b)];
            assert_eq!(groups.are_one(a, b), is_one, "{shape:?}");
        }
        let routing = routed(&topology, 2).unwrap();
        check(&topology, &routing).unwrap();
        assert!(longest(&topology, &routing) <= 3, "{shape:?}");
        let Lanes::Dragonfly(lanes) = &routing.lanes else { panic!("no lanes") };
        for switch in topology.switches() {
            for (into, out) in topology
                .links(switch)
                .iter()
                .flat_map(|into| topology.links(switch).iter().map(move |out| (into, out)))
            {
                let changes =
                    !groups.are_one(switch, into.peer) && groups.are_one(switch, out.peer);
                let vl = crate::lanes::HopLanes::vl(&**lanes, switch, into.port, out.port, 0);
                assert_eq!(vl, u8::from(changes), "{shape:?}");
            }
        }
    }
}

/// Without the change of lanes a dragonfly has credit loops: the check finds them.
#[test]
fn one_lane_does_not_suffice() {
    for shape in [dragonfly(9, 4, 2, 2), dragonfly(19, 6, 3, 3)] {
        let topology = testing::topology(&damaged(&shape, 0, 0.0, 0.0), 0);
        assert_eq!(routed(&topology, 1), Err(Reason::TooFewLanes { lanes: 1 }.of("dla")));
        let mut routing = routed(&topology, 2).unwrap();
        let Lanes::Dragonfly(lanes) = &routing.lanes else { panic!("no lanes") };
        routing.lanes = Lanes::Dragonfly(Arc::new(lanes.on_one_lane()));
        assert!(!credit_loops_on_lanes(&topology, &routing).is_free());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Networks of any size, with any damage: routes are right and cannot deadlock, or the engine
    /// says what is missing. Equal inputs give equal tables.
    #[test]
    fn damaged_networks_are_routed_or_refused(
        at in 0usize..9, seed in any::<u64>(), links in 0.0f64..8.0, switches in 0.0f64..6.0,
        lmc in 0u8..2,
    ) {
        let topology = testing::topology(&damaged(&shapes()[at], seed, links, switches), lmc);
        match routed(&topology, 2) {
            Ok(routing) => {
                check(&topology, &routing)?;
                prop_assert_eq!(routed(&topology, 2).unwrap(), routing);
            }
            Err(RoutingError { reason, .. }) => {
                let is_expected = matches!(
                    reason,
                    Reason::Dragonfly(
                        DragonflyRefusal::NoGroups { .. }
                            | DragonflyRefusal::NoTransit { .. }
                            | DragonflyRefusal::NoRoute { .. }
                    )
                );
                prop_assert!(is_expected, "{}", reason);
            }
        }
    }

    /// On fabrics of other shapes, and in parts, the result is right where there is one.
    #[test]
    fn other_fabrics_are_routed_right_or_refused(topology in testing::any_topology()) {
        if let Ok(routing) = routed(&topology, 2) {
            check(&topology, &routing)?;
        }
    }
}

/// Where groups are large enough, a few percent of missing cables and switches are routed around.
#[test]
fn usual_damage_is_routed_around() {
    for (shape, links, switches) in [
        (dragonfly(19, 6, 3, 3), 3.0, 0.0),
        (dragonfly(19, 6, 3, 3), 2.0, 3.0),
        (dragonfly(7, 8, 2, 4), 6.0, 0.0),
        (plus(9, 4, 4, 4, 2), 3.0, 0.0),
        (plus(9, 4, 4, 4, 4), 3.0, 3.0),
    ] {
        for seed in 0..6 {
            let topology = testing::topology(&damaged(&shape, seed, links, switches), 0);
            let routing = routed(&topology, 2).unwrap();
            check(&topology, &routing).unwrap();
        }
    }
}

/// Any one cable may be missing, also the only one between two groups.
#[test]
fn any_cable_may_be_missing() {
    for shape in [dragonfly(9, 4, 2, 2), plus(5, 3, 2, 2, 2)] {
        let net = damaged(&shape, 0, 0.0, 0.0);
        let cables = testing::topology(&net, 0).link_count() / 2;
        for cable in 0..cables {
            let topology = testing::topology_without(&net, 0, |number| number == cable);
            let routing = routed(&topology, 2).unwrap_or_else(|error| panic!("{cable}: {error}"));
            check(&topology, &routing).unwrap();
            assert!(longest(&topology, &routing) <= 6);
        }
    }
}

#[test]
fn other_networks_are_refused_with_a_reason() {
    let hyperx = HyperX { dims: vec![4, 4], hosts_per_switch: 2, radix: None };
    for net in [
        testing::fat_tree(2, 8, 32),
        testing::fat_tree(3, 6, 54),
        testing::torus(&[5, 5], 1),
        testing::net(Shape::HyperX(hyperx)),
    ] {
        let topology = testing::topology(&net, 0);
        let reason = routed(&topology, 2).unwrap_err().reason;
        let switches = topology.switch_count();
        assert_eq!(reason, Reason::Dragonfly(DragonflyRefusal::NoGroups { switches }));
    }
    // Each group lacks the link to another one.
    let net = damaged(&dragonfly(8, 7, 2, 1), 0, 0.0, 0.0);
    let names = groups_by_name(&net);
    let whole = testing::topology(&net, 0);
    let is_cut = |a: u16, b: u16| {
        let [a, b] = [a, b].map(|switch| names[usize::from(switch)].as_str());
        ["g001g002", "g003g004", "g005g006", "g007g008"].contains(&[a, b].concat().as_str())
    };
    let has_link = |link: usize| {
        let far = whole.link(link);
        let near = whole.link(whole.link_at(far.peer, far.peer_port).unwrap()).peer;
        !is_cut(near, far.peer) && !is_cut(far.peer, near)
    };
    let (cut, _) = testing::part(&whole, |_| true, has_link, |_| true);
    let error = routed(&cut, 2).unwrap_err();
    assert!(matches!(error.reason, Reason::Dragonfly(DragonflyRefusal::NoTransit { .. })));
    assert!(error.to_string().contains("between the groups of switch "), "{error}");
}

/// The LIDs of a host take different links between two groups.
#[test]
fn lids_of_a_host_are_spread() {
    let topology = testing::topology(&damaged(&dragonfly(3, 6, 3, 2), 0, 0.0, 0.0), 2);
    let routing = routed(&topology, 2).unwrap();
    check(&topology, &routing).unwrap();
    let spread = testing::spread(&topology, &routing);
    assert!(spread.ratio() < 1.7, "{spread}");
    let groups = Groups::find(&topology).unwrap();
    let mut several = 0;
    let hosts: Vec<_> = topology.destinations().iter().filter(|to| to.is_host()).collect();
    for to in &hosts {
        for switch in topology.switches().filter(|&s| !groups.are_one(s, to.egress_switch)) {
            let mut ports: Vec<u8> = to.lids().map(|lid| routing.port(switch, lid)).collect();
            ports.sort_unstable();
            ports.dedup();
            several += usize::from(ports.len() > 1);
        }
    }
    assert!(several > hosts.len() * 12 / 3, "{several}");
}

/// QoS levels have lanes of their own, with the same routes.
#[test]
fn levels_share_no_lanes() {
    let topology = testing::topology(&damaged(&dragonfly(9, 4, 2, 2), 0, 0.0, 0.0), 0);
    let routing = routed(&topology, 8).unwrap();
    let lanes = routing.lanes.by_hop().unwrap();
    let Lanes::Dragonfly(dragonfly) = &routing.lanes else { panic!("no lanes") };
    assert_eq!(dragonfly.levels(), 4);
    for link in topology.links(0) {
        let vls = [0, 1, 2, 3, 4].map(|sl| lanes.vls(0, link.port, sl));
        assert_eq!(vls[4], vls[0], "SLs take the levels in turn");
        let all = vls[..4].iter().fold(0u16, |all, vls| {
            assert_eq!(all & vls, 0);
            all | vls
        });
        assert!(all < 1 << 8);
        for in_port in 0..=topology.port_count(0) {
            let at = |sl| lanes.lane(lanes.vl(0, in_port, link.port, sl));
            assert!((1..4).all(|sl| at(sl) == at(0)));
        }
    }
    assert_eq!([0, 1, 3, 7].map(|sl| lanes.host_vl(sl, 8)), [0, 2, 6, 6]);
    assert_eq!((routing.lanes.engine_sls(), routing.lanes.sl(0, 1, Lid(1))), (0, 0));
    assert_eq!(routed(&topology, 2).unwrap().lfts, routing.lfts);
}

/// Groups of hosts have trees that close no cycle with unicast or with each other.
#[test]
fn trees_close_no_cycle() {
    for (shape, links) in [
        (dragonfly(9, 4, 2, 2), 0.0),
        (dragonfly(19, 6, 3, 3), 0.0),
        (dragonfly(7, 8, 2, 4), 1.0),
        (plus(9, 4, 4, 4, 4), 0.0),
        (plus(5, 2, 2, 2, 2), 0.0),
    ] {
        let topology = testing::topology(&damaged(&shape, 3, links, 0.0), 0);
        let routing = routed(&topology, 4).unwrap();
        let hops = HopMatrix::compute(&topology).unwrap();
        let unicast = Unicast::find(&topology, &routing.tables(), &routing.lanes);
        assert!(unicast.loops.is_free());
        let orders = Orders::find(&topology, &hops, &unicast, &routing.lanes, &[0; 16]);
        assert!(orders.are_right(&topology));
        let mut chooser = Chooser::new(&topology, &hops, &orders);
        let hosts: Vec<Place> = topology
            .destinations()
            .iter()
            .filter(|to| to.is_host())
            .map(|to| Place { switch: to.egress_switch, exit: to.exit })
            .collect();
        for step in 1..6 {
            let members: Vec<Place> = hosts.iter().copied().step_by(step).collect();
            let mlid = Lid(0xC000 + step as u16);
            // Two SLs of two QoS levels.
            let wanted = Wanted { mlid, members: &members, sls: 0b11, before: None };
            let chosen = chooser.choose(&wanted);
            assert_eq!(chosen.fault, None, "{shape:?}");
            assert!(chosen.tree.unreached.is_empty());
        }
    }
}

/// Mean bandwidth of random matchings and of shifts.
fn bandwidths(topology: &Topology, engine: &dyn Engine, lanes: u8) -> [f64; 2] {
    let routing = engine.route(topology, &testing::on_lanes(lanes), None).unwrap();
    let (tables, hosts) = (routing.tables(), by_lid(topology));
    let effort = Effort { patterns: 60, seed: 1 };
    [Pattern::Matching, Pattern::Shift].map(|pattern| {
        Figures::measure(topology, &tables, &hosts, Plane::Base, effort, pattern).bandwidth
    })
}

/// Random pairs have the bandwidth of `minhop`, which can deadlock. Where a group has a link to
/// each other one, each link carries the same number of routes but for those within groups.
#[test]
fn routes_are_balanced() {
    for (shape, least, busiest) in [
        (dragonfly(19, 6, 3, 3), 1.0, 1.02),
        (dragonfly(19, 6, 3, 6), 0.95, 1.4),
        (dragonfly(9, 8, 4, 4), 0.99, 1.05),
        (dragonfly(33, 8, 4, 4), 1.0, 1.02),
        (plus(9, 4, 4, 4, 4), 0.99, 1.2),
    ] {
        let topology = testing::topology(&damaged(&shape, 1, 0.0, 0.0), 0);
        let [own, minhop] =
            [&Dla as &dyn Engine, &MinHop].map(|engine| bandwidths(&topology, engine, 2)[0]);
        assert!(own >= minhop * least, "{shape:?}: {own:.3}, minhop {minhop:.3}");
        let spread = testing::spread(&topology, &routed(&topology, 2).unwrap());
        assert!(spread.ratio() <= busiest, "{shape:?}: {spread}");
    }
}

/// The figures of docs/benchmarks.md, "Dragonflies on two lanes".
#[test]
#[ignore = "prints a table"]
#[allow(clippy::print_stdout, reason = "the table is its purpose")]
fn figures() {
    let shapes = [
        ("dragonfly 19x6, 3 links", dragonfly(19, 6, 3, 3)),
        ("dragonfly 19x6, 6 links", dragonfly(19, 6, 3, 6)),
        ("dragonfly 9x8, 4 links", dragonfly(9, 8, 4, 4)),
        ("dragonfly 33x8, 4 links", dragonfly(33, 8, 4, 4)),
        ("dragonfly+ 9x(4+4), 4 links", plus(9, 4, 4, 4, 4)),
        ("dragonfly+ 17x(8+8), 8 links", plus(17, 8, 8, 4, 8)),
    ];
    let engines: [(&dyn Engine, u8); 4] =
        [(&MinHop, 8), (&crate::Dfsssp, 8), (&crate::LayeredPaths, 8), (&Dla, 2)];
    for ((name, shape), missing) in shapes.iter().flat_map(|shape| [(shape, 0.0), (shape, 3.0)]) {
        let topology = testing::topology(&damaged(shape, 1, missing, 0.0), 0);
        for (engine, lanes) in engines {
            let [matchings, shifts] = bandwidths(&topology, engine, lanes);
            let routing = engine.route(&topology, &testing::on_lanes(lanes), None).unwrap();
            let loops = credit_loops_on_lanes(&topology, &routing);
            let tables = routing.tables();
            let replies =
                crate::verify::credit_loops_with_replies(&topology, &tables, &routing.lanes);
            let spread = testing::spread(&topology, &routing);
            println!(
                "{name}, {missing} %, {}: eBB {matchings:.3}, shifts {shifts:.3}, routes {} {:.2}, \
                 lanes {}, loops {}, of replies {}",
                engine.name(),
                spread.max,
                spread.ratio(),
                loops.lanes,
                !loops.is_free(),
                replies.is_some_and(|loops| !loops.is_free()),
            );
        }
    }
}
