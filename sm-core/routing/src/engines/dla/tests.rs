use proptest::prelude::*;

use super::*;
use crate::measure::{Effort, Figures, Pattern, Plane, by_lid};
use crate::testing;
use crate::verify::{self, credit_loops_on_lanes};
use crate::{HopMatrix, MinHop};
use fabric_sim::generate::{Common, Dragonfly, DragonflyPlus, Shape, generate};
use ib_mad::netlist::{Net, NodeKind};

fn dragonfly(groups: u16, routers: u16, hosts_per_router: u8, global_links: u8) -> Shape {
    Shape::Dragonfly(Dragonfly { groups, routers, hosts_per_router, global_links, radix: None })
}

fn plus(groups: u16, leaves: u16, spines: u16, hosts_per_leaf: u8, global_links: u8) -> Shape {
    let radix = None;
    Shape::DragonflyPlus(DragonflyPlus {
        groups,
        leaves,
        spines,
        hosts_per_leaf,
        global_links,
        radix,
    })
}

fn damaged(shape: &Shape, seed: u64, links: f64, switches: f64) -> Net {
    let common =
        Common { seed, missing_links: links, missing_switches: switches, ..Common::default() };
    generate(shape, &common).unwrap()
}

fn routed(topology: &Topology, lanes: u8) -> Result<Routing, RoutingError> {
    Dla.route(topology, &testing::on_lanes(lanes), None)
}

#[test]
fn explore() {
    let shapes = [
        ("df 9x4 h2", dragonfly(9, 4, 2, 2)),
        ("df 9x4 h4", dragonfly(9, 4, 2, 4)),
        ("df 5x3 h2", dragonfly(5, 3, 2, 2)),
        ("df 19x6 h3", dragonfly(19, 6, 3, 3)),
        ("df 19x6 h6", dragonfly(19, 6, 3, 6)),
        ("df 4x8 h2", dragonfly(4, 8, 2, 2)),
        ("df 33x8 h4", dragonfly(33, 8, 4, 4)),
        ("df 3x4 h4", dragonfly(3, 4, 2, 4)),
        ("df 2x6 h2", dragonfly(2, 6, 2, 2)),
        ("df+ 5x2x2 h2", plus(5, 2, 2, 2, 2)),
        ("df+ 9x4x4 h2", plus(9, 4, 4, 4, 2)),
        ("df+ 9x4x4 h4", plus(9, 4, 4, 4, 4)),
        ("df+ 17x8x8 h2", plus(17, 8, 8, 4, 2)),
    ];
    for (name, shape) in shapes {
        for (links, switches) in
            [(0.0, 0.0), (1.0, 0.0), (3.0, 0.0), (6.0, 0.0), (0.0, 3.0), (3.0, 3.0)]
        {
            let mut ok = 0;
            let mut reasons = Vec::new();
            let count = if links + switches == 0.0 { 1 } else { 10 };
            for seed in 0..count {
                let topology = testing::topology(&damaged(&shape, seed, links, switches), 0);
                match routed(&topology, 2) {
                    Ok(routing) => {
                        testing::check(&topology, &routing).unwrap();
                        let loops = credit_loops_on_lanes(&topology, &routing);
                        assert!(loops.is_free(), "{loops}");
                        ok += 1;
                    }
                    Err(error) => reasons.push(error.reason.to_string()),
                }
            }
            println!("{name} {links} {switches}: {ok}/{count} {:?}", reasons.first());
        }
    }
}
#[test]
fn ebb() {
    let shapes = [
        ("df 19x6x3 h3", dragonfly(19, 6, 3, 3)),
        ("df 19x6x3 h6", dragonfly(19, 6, 3, 6)),
        ("df 9x8x4 h4", dragonfly(9, 8, 4, 4)),
        ("df 33x8x4 h4", dragonfly(33, 8, 4, 4)),
        ("df+ 9x4x4 h4", plus(9, 4, 4, 4, 4)),
        ("df+ 17x8x8 h8", plus(17, 8, 8, 4, 8)),
    ];
    for (name, shape) in shapes {
        for links in [0.0, 3.0] {
            let topology = testing::topology(&damaged(&shape, 1, links, 0.0), 0);
            for engine in [&Dla as &dyn Engine, &MinHop, &crate::Sssp, &crate::Dfsssp, &crate::LayeredPaths] {
                let Ok(routing) = engine.route(&topology, &testing::on_lanes(if engine.name() == "dla" {2} else {8}), None) else { println!("{name} {links} {} refused", engine.name()); continue };
                let tables = routing.tables();
                let hosts = by_lid(&topology);
                let effort = Effort { patterns: 60, seed: 1 };
                let b = [Pattern::Matching, Pattern::Shift].map(|pattern| {
                    Figures::measure(&topology, &tables, &hosts, Plane::Base, effort, pattern).bandwidth
                });
                let spread = testing::spread(&topology, &routing);
                println!("{name} {links} {}: {:.3} {:.3} {}", engine.name(), b[0], b[1], spread);
            }
        }
    }
}
