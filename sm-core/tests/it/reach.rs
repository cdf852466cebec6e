//! Switches and links fail at any moment of a sweep: nodes that can be reached stay published.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::common::Bed;
use fabric_sim::NodeIndex;
use fabric_sim::generate::{Common, FatTree, RandomGraph, Shape, generate};
use ib_mad::netlist::Net;
use ib_mad::wire::attribute::NodeType;
use sm_config::Settings;
use sm_core::sweep::Phase;

/// Numbers without much order, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// The nodes that can be reached from the manager's host.
fn reachable(bed: &Bed) -> HashSet<NodeIndex> {
    let home = bed.hosts()[0];
    let (mut reached, mut queue) = (HashSet::from([home]), VecDeque::from([home]));
    while let Some(node) = queue.pop_front() {
        let view = bed.fabric.node(node);
        if node != home && view.node_type != NodeType::Switch {
            continue;
        }
        for num in 1..=view.num_ports {
            let link = bed.fabric.port(node, num).unwrap().link.filter(|link| !link.cut);
            if let Some(far) = link.map(|link| link.node)
                && bed.fabric.node(far).up
                && reached.insert(far)
            {
                queue.push_back(far);
            }
        }
    }
    reached
}

/// Fails if the manager has just published a fabric without a node that can be reached.
fn assert_none_is_missing(bed: &Bed, what: &str) {
    let fabric = bed.sweeper().fabric();
    for node in reachable(bed) {
        let view = bed.fabric.node(node);
        let found = fabric.find(view.guid).filter(|&index| fabric.node(index).present);
        let is_there = found
            .is_some_and(|index| fabric.end_ports().any(|port| fabric.port(port).node == index));
        assert!(is_there, "{} is missing, {what}", view.name);
    }
}

/// Runs for so long, and looks at each plane that is published.
fn watch(bed: &mut Bed, time: Duration, what: &str) {
    let end = bed.clock.now() + time;
    let mut published = bed.reports().len();
    bed.run_until(time + Duration::from_secs(3600), what, |bed| {
        if std::mem::replace(&mut published, bed.reports().len()) != bed.reports().len() {
            assert_none_is_missing(bed, what);
        }
        bed.clock.now() >= end
    });
}

/// A switch or link fails, other than the manager's own.
fn strike(bed: &mut Bed, dice: &mut Dice) -> String {
    let now = bed.clock.now();
    let home = bed.fabric.port(bed.hosts()[0], 1).unwrap().link.unwrap().node;
    let switches: Vec<NodeIndex> =
        bed.switches().into_iter().filter(|&switch| switch != home).collect();
    let switch = switches[dice.below(switches.len())];
    let name = bed.fabric.node(switch).name.to_owned();
    if dice.below(3) > 0 {
        bed.fabric.node_down(now, switch).unwrap();
        return name;
    }
    let num = 1 + dice.below(bed.fabric.node(switch).num_ports.into()) as u8;
    if bed.fabric.port(switch, num).unwrap().link.is_some_and(|link| link.node != bed.hosts()[0]) {
        bed.fabric.link_down(now, switch, num).unwrap();
    }
    format!("{name} port {num}")
}

fn settings(window: u32, dice: &mut Dice) -> Settings {
    // With few retries a test takes less time, not less care.
    let sweep_on_trap = dice.below(4) > 0;
    Settings { max_wire_smps: window, transaction_retries: 1, sweep_on_trap, ..Settings::default() }
}

fn strike_at_random(net: &Net, seeds: std::ops::Range<u64>) {
    for (seed, window) in seeds.flat_map(|seed| [1, 8, 64].map(|window| (seed, window))) {
        let mut dice = Dice(seed);
        let mut bed = Bed::with_manager(net, settings(window, &mut dice));
        let mut what = format!("seed {seed}, window {window}");
        if dice.below(3) > 0 {
            bed.bring_up();
        }
        for _ in 0..1 + dice.below(5) {
            // From within a discovery of some milliseconds to well after it.
            let scale = [1, 30, 1000, 30_000][dice.below(4)];
            let pause = Duration::from_micros((scale * dice.below(100)) as u64);
            watch(&mut bed, pause, &what);
            what = format!("{what}, {}", strike(&mut bed, &mut dice));
            if dice.below(3) == 0 {
                let now = bed.clock.now();
                bed.managers[0].sweeper.request_heavy_sweep(now);
            }
        }
        watch(&mut bed, Duration::from_secs(60), &what);
        bed.run_until(Duration::from_secs(120), &what, |bed| {
            bed.sweeper().phase() == Phase::Idle && bed.sweeper().is_up()
        });
        assert_none_is_missing(&bed, &what);
        let there = reachable(&bed).len();
        let (hosts, switches) = bed.sweeper().fabric().counts();
        assert_eq!(hosts + switches, there, "what is gone is gone, {what}");
    }
}

/// Regression: with few outstanding SMPs, the requests to switches behind a dead spine ran out of
/// retries before a neighbour of the spine was queried: the switches counted as gone, although
/// other spines reached them.
#[test]
fn in_fat_trees() {
    strike_at_random(&crate::common::fat_tree(2, 8, 20), 0..25);
    let tree = FatTree { levels: 2, radix: 16, hosts: 64, oversubscription: (1, 1) };
    strike_at_random(&generate(&Shape::FatTree(tree), &Common::default()).unwrap(), 100..110);
}

#[test]
fn in_random_graphs() {
    for seed in 0..12 {
        let graph = RandomGraph { switches: 12, degree: 4, hosts: 14, radix: None };
        let common = Common { seed, ..Common::default() };
        let net = generate(&Shape::Random(graph), &common).unwrap();
        strike_at_random(&net, 200 + seed * 3..203 + seed * 3);
    }
}

/// Reported by an operator: several leaves report a spine's failure, and each was last reached
/// through that spine.
#[test]
fn one_spine_of_four_dies_and_nothing_else() {
    for window in [1, 8, 64] {
        let tree = FatTree { levels: 2, radix: 16, hosts: 64, oversubscription: (1, 1) };
        let net = generate(&Shape::FatTree(tree), &Common::default()).unwrap();
        let settings = Settings { max_wire_smps: window, ..Settings::default() };
        let mut bed = Bed::with_manager(&net, settings);
        bed.bring_up();
        bed.run_for(Duration::from_secs(1));
        let has_host = |&switch: &NodeIndex| {
            (1..=bed.fabric.node(switch).num_ports).any(|num| {
                let link = bed.fabric.port(switch, num).unwrap().link;
                link.is_some_and(|link| bed.fabric.node(link.node).node_type != NodeType::Switch)
            })
        };
        let mut spines = bed.switches();
        spines.retain(|switch| !has_host(switch));
        assert_eq!(spines.len(), 4);
        for &spine in &spines[..3] {
            let before = bed.reports().len();
            let now = bed.clock.now();
            bed.fabric.node_down(now, spine).unwrap();
            watch(&mut bed, Duration::from_secs(15), &format!("window {window}"));
            let gone: usize = bed.reports()[before..].iter().map(|report| report.vanished).sum();
            assert_eq!(gone, 1, "window {window}");
        }
    }
}
