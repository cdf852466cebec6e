//! Origin of the routes in force: another engine recomputes them; those of another subnet manager
//! are kept for a while, and recomputed if they are worse.

use std::time::Duration;

use crate::common::Bed;
use fabric_sim::NodeIndex;
use fabric_sim::generate::{Common, FatTree, Grid, Shape, generate};
use ib_mad::netlist::Net;
use ib_mad::types::Lid;
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::sweep::{CORRECTION_DELAY, Origin, Phase};

fn net() -> Net {
    let shape = FatTree { levels: 2, radix: 16, hosts: 64, oversubscription: (1, 1) };
    generate(&Shape::FatTree(shape), &Common::default()).unwrap()
}

fn settings(engine: &str) -> Settings {
    let mut settings = Settings::default();
    settings.set("routing_engine", engine).unwrap();
    settings
}

/// Entries of switches for hosts' LIDs. LIDs of switches are left out: ftree has no routes from one
/// root to another.
fn tables(bed: &Bed) -> Vec<Vec<u8>> {
    let lid = |&host: &NodeIndex| bed.fabric.port(host, 1).unwrap().lid;
    let lids: Vec<Lid> = bed.hosts().iter().map(lid).collect();
    let row = |switch: NodeIndex| {
        let lft = bed.fabric.node(switch).lft;
        lids.iter().map(|lid| lft[lid.index()]).collect()
    };
    bed.switches().into_iter().map(row).collect()
}

/// An engine's routing without regard to earlier routes.
fn fresh(engine: &str) -> Vec<Vec<u8>> {
    let mut bed = Bed::with_manager(&net(), settings(engine));
    bed.bring_up();
    tables(&bed)
}

/// A fabric that was brought up with `dor`, and taken over by a manager with other settings, which
/// does or does not know the engine.
fn taken_over(settings: Settings, is_reported: bool) -> Bed {
    let mut bed = Bed::with_manager(&net(), self::settings("dor"));
    bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "dor");
    let origin = bed.sweeper().origin().unwrap();
    let origin = Origin::parse(&origin.render()).unwrap();
    let lids = LidTable::parse(&bed.crash_manager().sweeper.lids().render()).0;
    let host = bed.hosts()[0];
    bed.manage(host, settings, lids);
    bed.managers[0].sweeper.set_origin(is_reported.then_some(origin));
    bed.bring_up();
    bed
}

fn run_past_the_correction(bed: &mut Bed) {
    bed.run_for(CORRECTION_DELAY + Duration::from_secs(5));
    assert_eq!(bed.sweeper().phase(), Phase::Idle);
}

/// Regression: the tables of the previous engine were kept under the name of the new one, with four
/// times the load on the busiest link.
#[test]
fn another_engine_reroutes_at_the_next_start() {
    let bed = taken_over(settings("ftree"), true);
    assert_eq!(bed.sweeper().routing_engine(), "ftree");
    assert_eq!(tables(&bed), fresh("ftree"));
}

#[test]
fn the_same_engine_writes_nothing_at_the_next_start_and_later() {
    let mut bed = taken_over(settings("dor"), true);
    assert_eq!(bed.reports()[0].lft_blocks_set, 0);
    run_past_the_correction(&mut bed);
    assert_eq!(tables(&bed), fresh("dor"));
    let all: u64 = bed.reports().iter().map(|report| report.lft_blocks_set).sum();
    assert_eq!(all, 0);
}

/// As after opensm, whose engine is unknown.
#[test]
fn unknown_routes_are_kept_and_recomputed_later_if_worse() {
    let mut bed = taken_over(settings("ftree"), false);
    assert_eq!(tables(&bed), fresh("dor"), "a takeover changes nothing");
    bed.run_for(CORRECTION_DELAY - Duration::from_secs(5));
    assert_eq!(tables(&bed), fresh("dor"), "not before it is due");
    run_past_the_correction(&mut bed);
    assert_ne!(fresh("dor"), fresh("ftree"));
    assert_eq!(tables(&bed), fresh("ftree"));
}

#[test]
fn found_routes_are_kept_until_a_reroute_if_configured() {
    let kept = Settings { keep_found_routes: true, ..settings("ftree") };
    let mut bed = taken_over(kept, false);
    run_past_the_correction(&mut bed);
    assert_eq!(tables(&bed), fresh("dor"));
    let now = bed.clock.now();
    bed.managers[0].sweeper.reroute(now);
    bed.run_for(Duration::from_secs(2));
    assert_eq!(tables(&bed), fresh("ftree"));
}

#[test]
fn an_engine_that_is_changed_while_we_run_is_in_force_with_the_next_heavy_sweep() {
    let mut bed = Bed::with_manager(&net(), settings("dor"));
    bed.bring_up();
    let now = bed.clock.now();
    let sweeper = &mut bed.managers[0].sweeper;
    assert_eq!(sweeper.follow_settings(&settings("ftree")), Vec::<&str>::new());
    sweeper.request_heavy_sweep(now);
    bed.run_for(Duration::from_secs(2));
    assert_eq!(bed.sweeper().routing_engine(), "ftree");
    assert_eq!(tables(&bed), fresh("ftree"));
    assert!(bed.reports().last().unwrap().to_string().contains(", routed by ftree;"));
}

/// Regression: with over a million table entries, routes are kept after a change without a
/// comparison. Their balance was never checked.
#[test]
fn what_is_kept_over_changes_of_a_large_fabric_is_held_against_a_routing_from_nothing() {
    for (lmc, looks) in [(0, 0), (7, 1)] {
        let shape = FatTree { levels: 2, radix: 24, hosts: 280, oversubscription: (1, 1) };
        let net = generate(&Shape::FatTree(shape), &Common::default()).unwrap();
        // Without this option, trees are routed by the numbers of hosts, and nothing is compared.
        let settings = Settings { lmc, port_shifting: true, ..Settings::default() };
        let mut bed = Bed::with_manager(&net, settings);
        bed.bring_up();
        assert_eq!(bed.balance_checks, 0, "nothing was kept");
        let written = |bed: &Bed| bed.reports().iter().map(|report| report.lft_blocks_set).sum();
        let (now, leaf, before): (_, _, u64) = (bed.clock.now(), bed.switches()[0], written(&bed));
        bed.fabric.link_down(now, leaf, 24).unwrap();
        bed.run_for(Duration::from_secs(5));
        assert!(written(&bed) > before);
        assert_eq!(bed.balance_checks, looks, "LMC {lmc}");
    }
}

/// Settings that let `nue` use so many lanes; 0 is all.
fn on_lanes(lanes_max: u8, engine: &str) -> Settings {
    let mut settings = settings(engine);
    settings.engines.nue.lanes_max = lanes_max;
    settings
}

/// The input of `lash` and `nue` changes with each host that reboots: tables and lanes of all other
/// hosts were recomputed, while their connections kept the previous SLs.
#[test]
fn a_rebooting_host_moves_only_its_own_routes() {
    for engine in ["lash", "nue", "dfsssp"] {
        let dims = vec![4, 4];
        let grid = Grid { dims, wraps: true, hosts_per_switch: 3, radix: None };
        let net = generate(&Shape::Grid(grid), &Common::default()).unwrap();
        let mut bed = Bed::with_manager(&net, on_lanes(0, engine));
        bed.bring_up();
        assert_eq!(bed.sweeper().routing_engine(), engine);
        let host = bed.hosts()[7];
        let others = |bed: &Bed| -> Vec<Vec<u8>> {
            let mut rows = tables(bed);
            for row in &mut rows {
                row.remove(7);
            }
            rows
        };
        let before = others(&bed);
        for is_up in [false, true] {
            let now = bed.clock.now();
            match is_up {
                false => bed.fabric.node_down(now, host).unwrap(),
                true => bed.fabric.node_up(now, host).unwrap(),
            }
            bed.run_for(Duration::from_secs(5));
            assert_eq!(others(&bed), before, "{engine}");
        }
        let lid = bed.fabric.port(host, 1).unwrap().lid;
        assert!(lid.is_unicast());
    }
}

/// Regression: hosts that come up one after the other permanently took the routes of the first one
/// at their switch.
#[test]
fn hosts_that_are_powered_on_leave_routes_as_balanced_as_from_nothing() {
    for engine in ["dfsssp", "nue"] {
        let mut bed = Bed::with_manager(&net(), settings(engine));
        let (hosts, now) = (bed.hosts(), bed.clock.now());
        let late: Vec<_> = hosts.into_iter().enumerate().filter(|(at, _)| at % 8 != 0).collect();
        for &(_, host) in &late {
            bed.fabric.node_down(now, host).unwrap();
        }
        bed.bring_up();
        for portion in late.chunks(14) {
            let now = bed.clock.now();
            for &(_, host) in portion {
                bed.fabric.node_up(now, host).unwrap();
            }
            bed.run_for(Duration::from_secs(5));
        }
        let (found, fresh) = (most_on_a_port(&tables(&bed)), most_on_a_port(&fresh(engine)));
        assert!(found <= fresh, "{engine}: {found} instead of {fresh}");
    }
}

/// Number of hosts' LIDs on the port of a switch that leads to most of them.
fn most_on_a_port(tables: &[Vec<u8>]) -> usize {
    let most = |row: &Vec<u8>| {
        let on = |port: &u8| row.iter().filter(|other| *other == port).count();
        row.iter().map(on).max().unwrap_or(0)
    };
    tables.iter().map(most).max().unwrap()
}

/// Regression: the changed setting was logged, but the routes were not recomputed.
#[test]
fn options_of_rerouting_engines_apply_with_the_next_heavy_sweep() {
    let grid = Grid { dims: vec![4, 4], wraps: true, hosts_per_switch: 3, radix: None };
    let net = generate(&Shape::Grid(grid), &Common::default()).unwrap();
    let mut bed = Bed::with_manager(&net, on_lanes(1, "nue"));
    bed.bring_up();
    let before = tables(&bed);
    let now = bed.clock.now();
    let sweeper = &mut bed.managers[0].sweeper;
    let asked = on_lanes(4, "nue");
    assert_eq!(sweeper.follow_settings(&asked), Vec::<&str>::new());
    sweeper.request_heavy_sweep(now);
    bed.run_for(Duration::from_secs(2));
    let mut fresh = Bed::with_manager(&net, asked);
    fresh.bring_up();
    assert_eq!(tables(&bed), tables(&fresh));
    assert_ne!(tables(&bed), before);
}
