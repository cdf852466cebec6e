//! A host that answers as a switch of the fabric, at each kind of that switch's ports, through
//! restarts of the manager and while the switch is away: its place and those of its hosts stay.

use std::time::Duration;

use crate::common::Bed;
use fabric_sim::NodeIndex;
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::PortState;
use sm_config::Settings;
use sm_core::manage::home::RESERVED;
use sm_core::manage::mkey::{MKeyTable, Neighbours};

const LEAF: u64 = 0x20;
const FAR_LEAF: u64 = 0x21;
const SPINE: u64 = 0x60;
const OTHER_SPINE: u64 = 0x61;

/// Places of nodes in the net.
const LEAF_AT: usize = 0;
const MANAGER_AT: usize = 1;

/// Port of the impostor's link at the leaf, which is read before all others.
const IMPOSTOR_PORT: u8 = 2;

/// Links of the fabric: two leaves with two hosts each, and two spines.
const LINKS: [((u64, u8), (u64, u8)); 8] = [
    ((LEAF, 1), (0x10, 1)),
    ((LEAF, 3), (0x30, 1)),
    ((LEAF, 5), (SPINE, 2)),
    ((LEAF, 6), (OTHER_SPINE, 2)),
    ((FAR_LEAF, 1), (0x40, 1)),
    ((FAR_LEAF, 2), (0x41, 1)),
    ((FAR_LEAF, 5), (SPINE, 4)),
    ((FAR_LEAF, 6), (OTHER_SPINE, 4)),
];

/// The impostor has the GUID of `victim`, and its link at this port. It is down at first.
fn bed(victim: u64, at: u8) -> Bed {
    let switch = |guid| (NodeKind::Switch, guid, 8);
    let host = |guid| (NodeKind::Ca, guid, 1);
    let mut nodes = vec![switch(LEAF), host(0x10), switch(victim)];
    nodes.extend([0x30, 0x40, 0x41].map(host));
    nodes.extend([FAR_LEAF, SPINE, OTHER_SPINE].map(switch));
    let mut net = Net::new();
    for (i, &(kind, guid, ports)) in nodes.iter().enumerate() {
        let mut node = Node::new(kind, Guid(guid), ports, LinkRate::default());
        node.id = format!("node{i}");
        if kind == NodeKind::Ca {
            node.port_mut(1).unwrap().guid = Guid(guid + 0x1000);
        }
        net.add_node(node);
    }
    let place = |guid| nodes.iter().rposition(|(_, node, _)| *node == guid).unwrap() as u32;
    for ((a, at), (b, to)) in LINKS {
        let (a, b) = (PortRef { node: place(a), port: at }, PortRef { node: place(b), port: to });
        net.connect(a, b).unwrap();
    }
    let leaf = PortRef { node: LEAF_AT as u32, port: IMPOSTOR_PORT };
    net.connect(leaf, PortRef { node: 2, port: at }).unwrap();
    let mut bed = Bed::with_manager(&net, Settings::default());
    set_impostor(&mut bed, false);
    sweep(&mut bed);
    assert_whole(&bed, "before");
    bed
}

fn node_at(bed: &Bed, place: usize) -> NodeIndex {
    bed.fabric.nodes().nth(place).unwrap()
}

fn switch(bed: &Bed, guid: u64) -> NodeIndex {
    let is_it = |node: &NodeIndex| bed.fabric.node(*node).guid == Guid(guid);
    bed.fabric.nodes().filter(is_it).last().unwrap()
}

fn set_impostor(bed: &mut Bed, up: bool) {
    let leaf = node_at(bed, LEAF_AT);
    set_links(bed, leaf, IMPOSTOR_PORT..=IMPOSTOR_PORT, up);
    pass(bed);
}

/// Sets the links of these ports of a switch.
fn set_links(bed: &mut Bed, node: NodeIndex, ports: std::ops::RangeInclusive<u8>, up: bool) {
    let now = bed.clock.now();
    let is_linked = |port: &u8| bed.fabric.port(node, *port).unwrap().link.is_some();
    for port in ports.filter(is_linked).collect::<Vec<_>>() {
        match up {
            true => bed.fabric.link_up(now, node, port).unwrap(),
            false => bed.fabric.link_down(now, node, port).unwrap(),
        };
    }
}

/// Switches a switch off, or on again.
fn set_power(bed: &mut Bed, victim: u64, up: bool) {
    let node = switch(bed, victim);
    set_links(bed, node, 1..=8, up);
    pass(bed);
    sweep(bed);
}

fn pass(bed: &mut Bed) {
    bed.run_for(Duration::from_secs(15));
    // The program stores them after each sweep.
    bed.managers[0].sweeper.neighbours();
}

fn sweep(bed: &mut Bed) {
    for _ in 0..2 {
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        pass(bed);
    }
}

/// Another manager takes over, or this one starts again: it knows what is stored. Meanwhile,
/// `change` happens.
fn restart(bed: &mut Bed, change: impl FnOnce(&mut Bed)) {
    let host = node_at(bed, MANAGER_AT);
    let mut before = bed.crash(0);
    let neighbours = before.sweeper.neighbours().clone();
    change(bed);
    bed.manage(host, Settings::default(), before.sweeper.lids().clone());
    bed.managers[0].sweeper.set_m_keys(MKeyTable::default(), neighbours);
    pass(bed);
}

/// Each link leads where it should, each host is served, and nothing of the impostor's is used.
#[track_caller]
fn assert_whole(bed: &Bed, when: &str) {
    let fabric = bed.sweeper().fabric();
    let behind = |switch: u64, num: u8| {
        let port = fabric.port_of(fabric.find(Guid(switch))?, PortNum(num))?;
        let peer = fabric.port(port).peer()?;
        Some((fabric.node_of(peer).guid.0, fabric.port(peer).num.0))
    };
    for ((a, at), (b, to)) in LINKS {
        assert_eq!(behind(a, at), Some((b, to)), "{when}: {a:#x} port {at}");
    }
    assert_eq!(behind(LEAF, IMPOSTOR_PORT), None, "{when}");
    for host in [3, 4, 5] {
        let port = bed.fabric.port(node_at(bed, host), 1).unwrap();
        assert!(port.state == PortState::Active && port.lid.is_unicast(), "{when}: {host}");
    }
}

/// Victims, and ports at which the impostor's link is: with a host or an uplink at the victim, or
/// free.
const CASES: [(u64, u8); 6] =
    [(FAR_LEAF, 1), (FAR_LEAF, 5), (FAR_LEAF, 8), (SPINE, 2), (SPINE, 4), (SPINE, 8)];

/// Regression: a full discovery believed a host that answered as a port of a leaf at which another
/// host was, and left the leaf out.
#[test]
fn a_switch_that_stays_keeps_its_place_through_restarts() {
    for case @ (victim, at) in CASES {
        let mut bed = bed(victim, at);
        set_impostor(&mut bed, true);
        assert_whole(&bed, &format!("{case:x?}: it comes"));
        sweep(&mut bed);
        assert_whole(&bed, &format!("{case:x?}: sweeps"));
        for _ in 0..2 {
            restart(&mut bed, |_| {});
            assert_whole(&bed, &format!("{case:x?}: a restart"));
            sweep(&mut bed);
            assert_whole(&bed, &format!("{case:x?}: sweeps after a restart"));
        }
    }
}

/// Regression: the same, first read by a full discovery.
#[test]
fn an_impostor_that_comes_during_a_restart_gets_nothing() {
    for case @ (victim, at) in CASES {
        let mut bed = bed(victim, at);
        let leaf = node_at(&bed, LEAF_AT);
        restart(&mut bed, |bed| set_links(bed, leaf, IMPOSTOR_PORT..=IMPOSTOR_PORT, true));
        assert_whole(&bed, &format!("{case:x?}: a restart"));
        sweep(&mut bed);
        assert_whole(&bed, &format!("{case:x?}: sweeps"));
    }
}

/// A switch is away, an impostor comes, and `meanwhile` happens. The switch has its place when it
/// returns, and after a further restart.
fn assert_returns(what: &str, meanwhile: impl Fn(&mut Bed)) {
    for case @ (victim, at) in CASES {
        let mut bed = bed(victim, at);
        set_power(&mut bed, victim, false);
        set_impostor(&mut bed, true);
        sweep(&mut bed);
        meanwhile(&mut bed);
        set_power(&mut bed, victim, true);
        assert_whole(&bed, &format!("{case:x?} {what}: it returns"));
        restart(&mut bed, |_| {});
        sweep(&mut bed);
        assert_whole(&bed, &format!("{case:x?} {what}: a restart"));
    }
}

/// Regression: what answered as a switch that was away was written to `neighbors`, and was at home
/// there after a restart.
#[test]
fn a_switch_that_returns_gets_its_place_back_after_a_restart() {
    assert_returns("restarted", |bed| restart(bed, |_| {}));
}

/// Regression: the same by a restart when all was well again.
#[test]
fn a_switch_that_returned_keeps_its_place_through_later_restarts() {
    assert_returns("no restart", |_| {});
}

/// A repair may take longer than homes of hosts are kept.
#[test]
fn a_switch_that_returns_after_hours_gets_its_place_back() {
    let pass_hours = |bed: &mut Bed| {
        bed.run_for(RESERVED * 2);
        sweep(bed);
    };
    assert_returns("hours", pass_hours);
    assert_returns("hours, restarted", |bed| {
        pass_hours(bed);
        restart(bed, |_| {});
    });
}

/// Regression: all that was behind the manager's first switch was left out when that switch, the
/// adapter of the manager's host or its place had been changed while the manager was off.
#[test]
fn a_manager_whose_leaf_adapter_or_place_was_changed_finds_all() {
    // As the file was before the change: another leaf, another adapter, at another leaf's port.
    let changes = [("0x0000000000000020:", "0x000000000000002f:"), ("1010:", "1f10:")];
    let moved = [("0x0000000000000020:1 ", "0x0000000000000021:3 "), ("20:1\n", "21:3\n")];
    for replaced in [&changes[..1], &changes[1..], &moved[..]] {
        let mut bed = bed(SPINE, 8);
        let host = node_at(&bed, MANAGER_AT);
        let mut before = bed.crash(0);
        let text = before.sweeper.neighbours().render();
        let other = replaced.iter().fold(text.clone(), |text, (new, old)| text.replace(new, old));
        assert_ne!(other, text);
        let (neighbours, left_out) = Neighbours::parse(&other);
        assert_eq!(left_out, 0, "{other}");
        bed.manage(host, Settings::default(), before.sweeper.lids().clone());
        bed.managers[0].sweeper.set_m_keys(MKeyTable::default(), neighbours.into());
        pass(&mut bed);
        assert_whole(&bed, &format!("{replaced:?}"));
        sweep(&mut bed);
        assert_whole(&bed, &format!("{replaced:?}: sweeps"));
        restart(&mut bed, |_| {});
        assert_whole(&bed, &format!("{replaced:?}: a restart"));
    }
}

/// All cables of a switch are moved: it is used at once, and through restarts.
#[test]
fn a_switch_whose_cables_were_moved_is_used() {
    let mut bed = bed(SPINE, 8);
    // The "impostor" is the switch itself, at another port of the leaf.
    set_power(&mut bed, SPINE, false);
    set_impostor(&mut bed, true);
    let is_used = |bed: &Bed| {
        let fabric = bed.sweeper().fabric();
        let port = fabric.port_of(fabric.find(Guid(LEAF)).unwrap(), PortNum(IMPOSTOR_PORT));
        port.is_some_and(|port| fabric.port(port).peer().is_some())
    };
    assert!(is_used(&bed));
    for _ in 0..2 {
        restart(&mut bed, |_| {});
        assert!(is_used(&bed), "a restart");
        sweep(&mut bed);
        assert!(is_used(&bed), "sweeps");
    }
}
