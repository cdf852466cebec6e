//! What does it cost the subnet manager to bring a fabric up, and to handle a failed link?
//!
//! In one process, against a simulated subnet in virtual time: no sockets and no waiting, so that
//! only CPU time remains, separately for each side. `manager` is our subnet manager, routing
//! included; `simulator` is the work that switches do on a real fabric.

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::time::Duration;

use benches::cpu::{ProcessClock, load_average};
use benches::fabrics::{Cost, FAT_TREE_10000, FAT_TREE_45000, Managed, Stated, middle_cable};
use benches::figures::{Runs, is_benchmark_run, is_wanted, report_figure, report_load};
use sm_config::Settings;
use sm_core::sweep::Report;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    if !is_benchmark_run() {
        return;
    }
    for (fabric, runs) in [(FAT_TREE_10000, 5), (FAT_TREE_45000, 1)] {
        if is_wanted(fabric.name) {
            measure(fabric, runs);
        }
    }
}

/// The result of one stage, and its cost.
struct Stage {
    report: Report,
    cost: Cost,
    smps: u64,
}

fn measure(fabric: Stated, runs: usize) {
    eprintln!("{}: {runs} runs, load average before {}", fabric.name, load_average());
    let net = fabric.net();
    let (mut up, mut cut) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let mut managed = Managed::new(&net, Settings::default());
        up.push(stage(&mut managed, Managed::bring_up));
        cut.push(stage(&mut managed, |managed| managed.cut(middle_cable(&net))));
    }
    for (name, stages) in [("bring_up", up), ("link_cut", cut)] {
        let name = |figure: &str| format!("sweep/{name}/{figure}/{}", fabric.name);
        let runs = |figure: &dyn Fn(&Stage) -> f64| Runs::new(stages.iter().map(figure).collect());
        let report = &stages[0].report;
        report_figure(&name("smps"), format_args!("{:.0}", runs(&|s| s.smps as f64)), "SMPs");
        report_figure(&name("manager_cpu"), runs(&|s| s.cost.manager.as_secs_f64()), "s");
        let routing =
            format_args!("s CPU, {:.3} s wall", runs(&|s| s.cost.routing_wall.as_secs_f64()));
        report_figure(
            &name("routing"),
            format_args!("{:.3}", runs(&|s| s.cost.routing.as_secs_f64())),
            &routing.to_string(),
        );
        report_figure(&name("manager_cpu_a_smp"), runs(&|s| a_smp(s.cost.manager, s.smps)), "µs");
        report_figure(
            &name("simulator_cpu_a_smp"),
            runs(&|s| a_smp(s.cost.simulator, s.smps)),
            "µs",
        );
        println!(
            "    {} LFT blocks, {} PortInfos set, {} routing(s)",
            report.lft_blocks_set, report.port_infos_set, stages[0].cost.routings
        );
    }
    report_load();
}

fn a_smp(time: Duration, smps: u64) -> f64 {
    time.as_secs_f64() * 1e6 / smps.max(1) as f64
}

/// Runs a stage and returns its cost, less that of reading the clock.
fn stage(managed: &mut Managed, run: impl FnOnce(&mut Managed) -> Report) -> Stage {
    let reading = ProcessClock::overhead();
    let (cost, smps) = (managed.cost(), managed.smps().transmitted);
    let report = run(managed);
    let now = managed.cost();
    let batches = now.batches - cost.batches;
    let readings = reading.mul_f64(batches as f64);
    let cost = Cost {
        manager: (now.manager - cost.manager).saturating_sub(readings),
        routings: now.routings - cost.routings,
        routing: now.routing - cost.routing,
        routing_wall: now.routing_wall - cost.routing_wall,
        simulator: (now.simulator - cost.simulator).saturating_sub(readings),
        batches,
    };
    Stage { report, cost, smps: managed.smps().transmitted - smps }
}
