//! How long does it take to route a fabric, how well are the routes balanced, and what does it take
//! to verify them and to order their blocks for writing?
//!
//! CPU time of all cores and wall time in milliseconds, from the topology of a fabric to the tables
//! of all switches: from scratch, and after a cable between two switches was cut, with the previous
//! tables available. The figures of quality beside them: routes from hosts to hosts' LIDs on the
//! most loaded link, and their mean per link.

use std::hint::black_box;
use std::time::Instant;

use benches::cpu::ProcessClock;
use benches::fabrics::{FAT_TREE_10000, FAT_TREE_45000, Stated, middle_cable, topology};
use benches::figures::{Runs, is_benchmark_run, is_wanted, report_figure, report_load};
use sm_routing::balance::{LinkLoads, Spread};
use sm_routing::program::{Change, Program};
use sm_routing::{
    Dor, Engine, FTree, HopMatrix, MinHop, Previous, Routing, Sssp, Steering, Topology, UpDown,
    verify,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RUNS: usize = 7;

fn main() {
    if !is_benchmark_run() {
        return;
    }
    for fabric in [FAT_TREE_10000, FAT_TREE_45000] {
        if is_wanted(fabric.name) {
            measure(fabric);
        }
    }
}

fn measure(fabric: Stated) {
    let mut managed = fabric.managed();
    let whole = topology(&managed.plane());
    managed.cut(middle_cable(&fabric.net()));
    let cut = topology(&managed.plane());
    drop(managed);

    let steering = Steering::default();
    let route = |topology: &Topology, previous: Option<&Previous<'_>>| {
        MinHop.route(topology, &steering, previous).expect("few enough switches")
    };
    let before = route(&whole, None);
    let previous = Previous::same_switches(&whole, &before);
    let after = route(&cut, Some(&previous));

    let name = |what: &str| format!("routing/minhop/{what}/{}", fabric.name);
    time(&name("hops"), || drop(black_box(HopMatrix::compute(&whole))));
    time(&name("from_nothing"), || drop(black_box(route(&whole, None))));
    time(&name("link_cut_kept"), || drop(black_box(route(&cut, Some(&previous)))));
    time(&name("link_cut_from_nothing"), || drop(black_box(route(&cut, None))));
    balance(&name("balance"), &whole, &before);
    balance(&name("balance_link_cut_kept"), &cut, &after);
    balance(&name("balance_link_cut_from_nothing"), &cut, &route(&cut, None));

    let engines: [&dyn Engine; 5] = [&UpDown::FromRoots, &UpDown::FromHosts, &FTree, &Dor, &Sssp];
    for engine in engines {
        let name = |what: &str| format!("routing/{}/{what}/{}", engine.name(), fabric.name);
        let route = || engine.route(&whole, &steering, None).expect("a tree suits every engine");
        time(&name("from_nothing"), || drop(black_box(route())));
        balance(&name("balance"), &whole, &route());
    }

    let name = |what: &str| format!("routing/verify/{what}/{}", fabric.name);
    assert!(verify::deliveries(&whole, &before).is_sound(), "tables deliver");
    time(&name("deliveries"), || drop(black_box(verify::deliveries(&whole, &before))));
    let since = || verify::deliveries_since(&cut, &after, &previous);
    assert!(since().is_whole(), "and after a cut");
    time(&name("deliveries_link_cut"), || drop(black_box(since())));
    time(&name("credit_loops"), || drop(black_box(verify::credit_loops(&whole, &before.tables()))));

    let name = |what: &str| format!("routing/program/{what}/{}", fabric.name);
    for (what, topology, old, new) in
        [("from_nothing", &whole, None, &before), ("link_cut", &cut, Some(&before), &after)]
    {
        let plan = || Program::plan(topology, changes(topology, old, new));
        time(&name(what), || drop(black_box(plan())));
        report_figure(&name(&format!("{what}_blocks")), plan().len(), "blocks to write");
    }
    report_load();
}

fn changes<'a>(topology: &Topology, old: Option<&'a Routing>, new: &'a Routing) -> Vec<Change<'a>> {
    let lft = |routing: &'a Routing, switch: u16| &*routing.lfts[usize::from(switch)];
    topology
        .switches()
        .map(|switch| Change {
            switch,
            old: old.map_or(&[][..], |old| lft(old, switch)),
            new: lft(new, switch),
        })
        .collect()
}

/// Prints how long `work` takes.
fn time(name: &str, mut work: impl FnMut()) {
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (start, mut clock) = (Instant::now(), ProcessClock::start());
        work();
        cpu.push(clock.lap().as_secs_f64() * 1e3);
        wall.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let wall = format!("ms CPU, {:.1} ms wall", Runs::new(wall));
    report_figure(name, format_args!("{:.1}", Runs::new(cpu)), &wall);
}

fn balance(name: &str, topology: &Topology, routing: &Routing) {
    let spread = Spread::of(&LinkLoads::count(topology, routing).to_hosts);
    let unit = format!("worst/mean routes per link, {spread}");
    report_figure(name, format_args!("{:.2}", spread.ratio()), &unit);
}
