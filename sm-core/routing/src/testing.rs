//! Topologies for tests, most from the simulator's generators, and checks that every routing must
//! pass.

use std::collections::HashSet;

use fabric_sim::generate::{
    Common, Dragonfly, FatTree, Grid, Hypercube, RandomGraph, Shape, generate,
};
use ib_mad::netlist::{Net, NodeKind};
use ib_mad::types::Lid;
use proptest::prelude::*;

use super::balance::{LinkLoads, Spread};
use super::lanes::Columns;
use super::verify::{self, Deliveries};
use super::{
    CommonOptions, Destination, Engine, Lanes, Routing, RoutingError, Steering, Topology,
    TopologyBuilder,
};

/// The topology of a net. LIDs are assigned in the order of the nodes, 2^`lmc` to each host and one
/// to each switch.
pub(crate) fn topology(net: &Net, lmc: u8) -> Topology {
    topology_without(net, lmc, |_| false)
}

/// The topology of a net without some links, by number; hosts' links do not count.
pub(crate) fn topology_without(net: &Net, lmc: u8, cut: impl Fn(usize) -> bool) -> Topology {
    let mut builder = TopologyBuilder::new();
    let mut switch_of = vec![None; net.nodes().len()];
    for (node, index) in net.nodes().iter().zip(0..) {
        if node.kind == NodeKind::Switch {
            switch_of[index] = Some(builder.add_switch(node.port_count()).unwrap());
        }
    }
    let links = net.links().filter_map(|(a, b)| {
        let (x, y) = (switch_of[a.node as usize]?, switch_of[b.node as usize]?);
        Some(((x, a.port), (y, b.port)))
    });
    for (number, (a, b)) in links.enumerate() {
        if !cut(number) {
            builder.add_link(a, b).unwrap();
        }
    }
    let mut next = 1;
    for (node, index) in net.nodes().iter().zip(0..) {
        let (egress_switch, exit, lid_count) = match switch_of[index] {
            Some(switch) => (switch, 0, 1),
            None => {
                let Some(peer) = node.port(1).and_then(|port| port.peer) else { continue };
                let Some(egress_switch) = switch_of[peer.node as usize] else { continue };
                (egress_switch, peer.port, 1 << lmc)
            }
        };
        next = u16::next_multiple_of(next, lid_count);
        let destination = Destination { base_lid: Lid(next), lid_count, egress_switch, exit };
        builder.add_destination(destination).unwrap();
        next += lid_count;
    }
    builder.build().unwrap()
}

/// Generates a net of this shape, with default options.
pub(crate) fn net(shape: Shape) -> Net {
    generate(&shape, &Common::default()).unwrap()
}

/// A fat tree with this many levels, switch ports and hosts.
pub(crate) fn fat_tree(levels: u8, radix: u8, hosts: usize) -> Net {
    let oversubscription = (1, 1);
    net(Shape::FatTree(FatTree { levels, radix, hosts, oversubscription }))
}

/// A torus with these radices and hosts per switch.
pub(crate) fn torus(dims: &[u16], hosts_per_switch: u8) -> Net {
    let dims = dims.to_vec();
    net(Shape::Grid(Grid { dims, wraps: true, hosts_per_switch, radix: None }))
}

/// Switches in a row, without hosts.
pub(crate) fn line(switches: u16) -> Topology {
    let mut builder = TopologyBuilder::new();
    for _ in 0..switches {
        builder.add_switch(2).unwrap();
    }
    for switch in 1..switches {
        builder.add_link((switch - 1, 2), (switch, 1)).unwrap();
    }
    for egress_switch in 0..switches {
        let destination =
            Destination { base_lid: Lid(egress_switch + 1), lid_count: 1, egress_switch, exit: 0 };
        builder.add_destination(destination).unwrap();
    }
    builder.build().unwrap()
}

/// The exit to the first host of each switch in [`cabled`].
pub(crate) const FIRST_EXIT: u8 = 201;

/// Switches of 254 ports, joined by cables, with a host for each of `egress_switches`. Hosts have
/// `lid_count` LIDs each, in this order starting at `lid_count`.
pub(crate) fn cabled(
    switches: u16,
    cables: impl IntoIterator<Item = ((u16, u8), (u16, u8))>,
    egress_switches: impl IntoIterator<Item = u16>,
    lid_count: u16,
) -> Topology {
    let mut builder = TopologyBuilder::new();
    for _ in 0..switches {
        builder.add_switch(254).unwrap();
    }
    for (a, b) in cables {
        builder.add_link(a, b).unwrap();
    }
    let mut exits = vec![FIRST_EXIT; usize::from(switches)];
    for (egress_switch, number) in egress_switches.into_iter().zip(1..) {
        let exit = exits[usize::from(egress_switch)];
        exits[usize::from(egress_switch)] += 1;
        let base_lid = Lid(number * lid_count);
        builder.add_destination(Destination { base_lid, lid_count, egress_switch, exit }).unwrap();
    }
    builder.build().unwrap()
}

/// Two switches joined by `cables` cables at equal ports from 1 on, with `hosts` hosts on each;
/// those of switch 0 come first.
pub(crate) fn pair(cables: u8, hosts: usize, lid_count: u16) -> Topology {
    let egress_switches =
        (0..2).flat_map(|egress_switch| std::iter::repeat_n(egress_switch, hosts));
    cabled(2, (1..=cables).map(|port| ((0, port), (1, port))), egress_switches, lid_count)
}

/// Spread of routes from hosts to hosts' LIDs.
pub(crate) fn spread(topology: &Topology, routing: &Routing) -> Spread {
    Spread::of(&LinkLoads::count(topology, routing).to_hosts)
}

/// Follows all routes and checks that every reachable LID is delivered, by the engine's count and
/// by the proof.
pub(crate) fn check(topology: &Topology, routing: &Routing) -> Result<Deliveries, TestCaseError> {
    let walk = verify::walk::deliveries(topology, routing);
    prop_assert!(walk.is_sound(), "{:?}", walk.defects);
    prop_assert_eq!(walk.unreachable + walk.unrouted, routing.unreachable);
    prop_assert_eq!(&verify::deliveries(topology, routing), &walk);
    Ok(walk)
}

/// Checks a routing in which all pairs that links join must be routed.
pub(crate) fn check_all(topology: &Topology, routing: &Routing) -> Result<(), TestCaseError> {
    prop_assert_eq!(check(topology, routing)?.unrouted, 0);
    Ok(())
}

/// Returns the routing; `None` if the engine failed with `refused`, which is then correct.
pub(crate) fn unless(
    routed: Result<Routing, RoutingError>,
    refused: &RoutingError,
) -> Result<Option<Routing>, TestCaseError> {
    if let Err(error) = &routed {
        prop_assert_eq!(error, refused);
    }
    Ok(routed.ok())
}

/// The default options for links with this many data VLs, all of which engines may use.
pub(crate) fn on_lanes(data_lanes: u8) -> Steering {
    let mut steering = Steering::from(CommonOptions { data_lanes, ..CommonOptions::default() });
    steering.settings.nue.lanes_max = 0;
    steering
}

/// Checks that all of 200 cables between two switches are used, with 200 LIDs on each.
pub(crate) fn check_200_cables(engine: &dyn Engine) {
    let topology = pair(200, 50, 4);
    let steering = on_lanes(1);
    let spread = spread(&topology, &engine.route(&topology, &steering, None).unwrap());
    assert_eq!((spread.links, spread.max), (400, 50));
}

/// Checks on a tree with choices that each LID of a host takes a different path from switches with
/// hosts.
pub(crate) fn check_ways_of_lids(engine: &dyn Engine) {
    let topology = topology(&fat_tree(2, 16, 64), 2);
    let steering = on_lanes(1);
    let routing = engine.route(&topology, &steering, None).unwrap();
    for destination in topology.destinations().iter().filter(|d| d.is_host()) {
        for (switch, hosts) in topology.switches().zip(topology.hosts_on()) {
            if hosts == 0 || switch == destination.egress_switch {
                continue;
            }
            let mut ports: Vec<u8> =
                destination.lids().map(|lid| routing.port(switch, lid)).collect();
            ports.sort_unstable();
            ports.dedup();
            assert!(ports.len() >= 2, "{destination:?} from {switch}: {ports:?}");
        }
    }
}

/// A small net of any shape.
pub(crate) fn any_net() -> impl Strategy<Value = Net> {
    let tree = (2u8..=3, 4u8..10, 2usize..60).prop_map(|(levels, radix, hosts)| {
        let max = usize::from(radix / 2) * if levels == 2 { 4 } else { 8 };
        let oversubscription = (1, 1);
        Shape::FatTree(FatTree { levels, radix, hosts: hosts.min(max).max(2), oversubscription })
    });
    let grid = (prop::collection::vec(2u16..5, 1..4), any::<bool>(), 0u8..4).prop_map(
        |(dims, wraps, hosts_per_switch)| {
            Shape::Grid(Grid { dims, wraps, hosts_per_switch, radix: None })
        },
    );
    let cube = (1u8..6, 1u8..3).prop_map(|(dimensions, hosts_per_switch)| {
        Shape::Hypercube(Hypercube { dimensions, hosts_per_switch, radix: None })
    });
    let dragonfly = (1u16..8, 2u16..5, 0u8..3).prop_map(|(groups, routers, hosts_per_router)| {
        Shape::Dragonfly(Dragonfly {
            groups,
            routers,
            hosts_per_router,
            global_links: 4,
            radix: None,
        })
    });
    let random = (1usize..80, 2u8..7, 0usize..120).prop_map(|(switches, degree, hosts)| {
        // Some have more than 64 ports, all of them in use on the smallest nets.
        let radix = if hosts % 2 == 0 { Some(200) } else { None };
        Shape::Random(RandomGraph { switches, degree, hosts, radix })
    });
    (prop_oneof![tree, grid, cube, dragonfly, random], any::<u64>())
        .prop_map(|(shape, seed)| generate(&shape, &Common { seed, ..Common::default() }).unwrap())
}

/// A small topology of any shape and LMC, which need not be connected.
pub(crate) fn any_topology() -> impl Strategy<Value = Topology> {
    (any_net(), 0u8..3, 0usize..4).prop_map(|(net, lmc, cut)| {
        // No link, or every fourth, third or second link is cut.
        topology_without(&net, lmc, |number| cut != 0 && number % (5 - cut) == 0)
    })
}

/// Finds a lane of a layered routing in which links depend on each other in a cycle. Follows each
/// route separately, from every switch to every LID for which `counts` is true, and removes links
/// without predecessors until none is left (Kahn's algorithm).
pub(crate) fn looping_layer(
    topology: &Topology,
    routing: &Routing,
    counts: impl Fn(u16, &Destination) -> bool,
) -> Option<u8> {
    let Lanes::Layers(layers) = &routing.lanes else { panic!("no layers") };
    let mut graphs = vec![HashSet::new(); usize::from(layers.count)];
    for destination in topology.destinations() {
        for source in topology.switches().filter(|&source| counts(source, destination)) {
            for lid in destination.lids() {
                let column = match layers.columns() {
                    Columns::Lid => lid.index(),
                    Columns::EgressSwitch => destination.egress_switch.into(),
                };
                let graph = &mut graphs[usize::from(layers.row(source)[column])];
                let (mut switch, mut before) = (source, None);
                while let Some(link) = topology.link_at(switch, routing.port(switch, lid)) {
                    graph.extend(before.map(|before: usize| (before, link)));
                    (switch, before) = (topology.link(link).peer, Some(link));
                }
            }
        }
    }
    let loops = |graph: &HashSet<(usize, usize)>| {
        let mut waiting = vec![0; topology.link_count()];
        let mut after = vec![Vec::new(); topology.link_count()];
        for &(from, to) in graph {
            waiting[to] += 1;
            after[from].push(to);
        }
        let mut ready: Vec<usize> = (0..waiting.len()).filter(|&link| waiting[link] == 0).collect();
        let mut taken = 0;
        while let Some(link) = ready.pop() {
            taken += 1;
            for &next in &after[link] {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    ready.push(next);
                }
            }
        }
        taken < waiting.len()
    };
    graphs.iter().position(loops).map(|layer| layer as u8)
}

/// Returns part of a topology, and by switch its number in the whole.
pub(crate) fn part(
    whole: &Topology,
    has_switch: impl Fn(u16) -> bool,
    has_link: impl Fn(usize) -> bool,
    has_host: impl Fn(&Destination) -> bool,
) -> (Topology, Vec<u16>) {
    let mut builder = TopologyBuilder::new();
    let origins: Vec<u16> = whole.switches().filter(|&switch| has_switch(switch)).collect();
    let number = |switch: u16| origins.binary_search(&switch).ok().map(|number| number as u16);
    for &switch in &origins {
        builder.add_switch(whole.port_count(switch)).unwrap();
    }
    for switch in whole.switches() {
        for (link, index) in whole.links(switch).iter().zip(whole.link_range(switch)) {
            let ends = number(switch).zip(number(link.peer)).filter(|_| switch < link.peer);
            if let Some((a, b)) = ends.filter(|_| has_link(index)) {
                builder.add_link((a, link.port), (b, link.peer_port)).unwrap();
            }
        }
    }
    for &destination in whole.destinations() {
        let Some(egress_switch) = number(destination.egress_switch) else { continue };
        if !destination.is_host() || has_host(&destination) {
            builder.add_destination(Destination { egress_switch, ..destination }).unwrap();
        }
    }
    (builder.build().unwrap(), origins)
}
