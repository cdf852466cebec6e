//! Links flap and nodes reboot after so many SMPs of a sweep.

use std::time::Duration;

use fabric_sim::{NodeIndex, Probability};

use super::{LIMIT, each, host_lids, large, manage, of_priority, run_for_smps, small};
use crate::common::Bed;

/// A change that ends after a while.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A link between two switches flaps.
    Link,
    /// A host's link.
    HostLink,
    /// That of the manager's own host.
    OwnLink,
    /// A host reboots.
    Host,
    /// A switch at the edge.
    Leaf,
    /// The manager's own.
    OwnLeaf,
    /// A switch in the middle.
    Spine,
    /// All switches at once.
    AllSwitches,
    /// All nodes but the manager's own.
    All,
}

const CHANGES: [Change; 9] = [
    Change::Link,
    Change::HostLink,
    Change::OwnLink,
    Change::Host,
    Change::Leaf,
    Change::OwnLeaf,
    Change::Spine,
    Change::AllSwitches,
    Change::All,
];

/// The switch that a host is behind, and its port there.
fn leaf_of(bed: &Bed, host: NodeIndex) -> (NodeIndex, u8) {
    let link = bed.fabric.port(host, 1).unwrap().link.unwrap();
    (link.node, link.port)
}

/// A port of a switch that leads to another switch.
fn uplink(bed: &Bed, leaf: NodeIndex) -> u8 {
    let switches = bed.switches();
    let is_up = |port: &u8| {
        let link = bed.fabric.port(leaf, *port).unwrap().link;
        link.is_some_and(|link| switches.contains(&link.node))
    };
    (1..=bed.fabric.node(leaf).num_ports).find(is_up).unwrap()
}

/// Lets it happen, and be over after `time`.
fn change(bed: &mut Bed, what: Change, time: Duration) {
    let hosts = bed.hosts();
    let (own, other) = (hosts[0], *hosts.last().unwrap());
    let (own_leaf, leaf) = (leaf_of(bed, own).0, leaf_of(bed, other).0);
    let is_spine = |&node: &NodeIndex| hosts.iter().all(|&host| leaf_of(bed, host).0 != node);
    let spine = bed.switches().into_iter().find(is_spine).unwrap();
    let link = match what {
        Change::Link => Some((leaf, uplink(bed, leaf))),
        Change::HostLink => Some((other, 1)),
        Change::OwnLink => Some((own, 1)),
        _ => None,
    };
    let nodes = match what {
        Change::Link | Change::HostLink | Change::OwnLink => vec![],
        Change::Host => vec![other],
        Change::Leaf => vec![leaf],
        Change::OwnLeaf => vec![own_leaf],
        Change::Spine => vec![spine],
        Change::AllSwitches => bed.switches(),
        Change::All => bed.fabric.nodes().filter(|&node| node != own).collect(),
    };
    let now = bed.clock.now();
    if let Some((node, port)) = link {
        bed.fabric.link_down(now, node, port).unwrap();
    }
    for &node in &nodes {
        bed.fabric.node_down(now, node).unwrap();
    }
    bed.run_for(time);
    let now = bed.clock.now();
    for &node in &nodes {
        bed.fabric.node_up(now, node).unwrap();
    }
    if let Some((node, port)) = link {
        bed.fabric.link_up(now, node, port).unwrap();
    }
}

fn begun(mut bed: Bed) -> Bed {
    manage(&mut bed, 0, of_priority(3));
    bed
}

/// A fabric that is up and swept in whole again.
fn swept_again(bed: Bed) -> Bed {
    let mut bed = begun(bed);
    bed.settle(LIMIT, "up");
    bed.run_for(Duration::from_secs(1));
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed
}

fn smps(mut bed: Bed) -> u64 {
    let before = bed.managers[0].sweeper.counters().transmitted;
    bed.settle(LIMIT, "undisturbed");
    bed.managers[0].sweeper.counters().transmitted - before
}

/// Makes each change after every `step`th SMP of the sweep that `scene` starts.
fn change_at_each(step: usize, loss: f64, scene: impl Fn() -> Bed, keeps_lids: bool) {
    let all = smps(scene());
    let moments = (0..=all).step_by(step).enumerate();
    let numbered = || CHANGES.into_iter().enumerate();
    let cases = moments.flat_map(|moment| numbered().map(move |change| (moment, change)));
    each(cases, |((turn, after), (number, what))| {
        // Over before it is seen, while it is dealt with, or after.
        let time = [20, 700, 40_000, 3_000_000][(turn + number) % 4];
        let mut bed = scene();
        let before = host_lids(&bed);
        bed.fabric.set_loss(None, Probability::new(loss).unwrap()).unwrap();
        run_for_smps(&mut bed, 0, after);
        bed.managers[0].sends_left = None;
        change(&mut bed, what, Duration::from_micros(time));
        let case = format!("{what:?} for {time} us after {after} of {all} SMPs");
        bed.run_for(Duration::from_secs(1));
        bed.fabric.set_loss(None, Probability::NEVER).unwrap();
        bed.settle_for_good(LIMIT, &case);
        if keeps_lids {
            assert_eq!(host_lids(&bed), before, "{case}");
        }
    });
}

#[test]
fn during_the_first_sweep() {
    change_at_each(3, 0.0, || begun(small()), false);
}

#[test]
fn during_a_later_sweep() {
    change_at_each(3, 0.0, || swept_again(small()), true);
}

#[test]
fn while_much_is_lost() {
    change_at_each(11, 0.1, || begun(small()), false);
    change_at_each(11, 0.2, || swept_again(small()), true);
}

#[test]
fn of_a_larger_fabric() {
    change_at_each(1501, 0.02, || begun(large()), false);
    change_at_each(607, 0.02, || swept_again(large()), true);
}
