//! A port with a GUID whose owner is away: a host that was moved, or an impostor.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::Bed;
use fabric_sim::NodeIndex;
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::PortState;
use sm_config::{Remarks, Settings, partitions};
use sm_core::manage::home::PROBATION;
use sm_core::manage::mkey::MKeyTable;

/// The victim's port has GUID 0x31.
const PARTITIONS: &str = "Default=0x7fff:ALL=full;A=1:0x31=full;";
const SOON: Duration = Duration::from_secs(15);

fn node(kind: NodeKind, guid: u64, ports: u8) -> Node {
    Node::new(kind, Guid(guid), ports, LinkRate::default())
}

/// Two switches. At the first are the manager, the victim and another host, at the second the
/// impostor, whose link is down.
fn bed() -> Bed {
    let mut net = Net::new();
    let switches = [(NodeKind::Switch, 0x20, 8), (NodeKind::Switch, 0x28, 8)];
    let hosts = [0x10, 0x30, 0x40, 0x30].map(|guid| (NodeKind::Ca, guid, 1));
    for (i, (kind, guid, ports)) in switches.into_iter().chain(hosts).enumerate() {
        let mut node = node(kind, guid, ports);
        node.id = format!("node{i}");
        if kind == NodeKind::Ca {
            node.port_mut(1).unwrap().guid = Guid(guid + 1);
        }
        net.add_node(node);
    }
    let end = |node, port| PortRef { node, port };
    net.connect(end(0, 8), end(1, 8)).unwrap();
    for (host, switch) in [(2, 0), (3, 0), (4, 0), (5, 1)] {
        net.connect(end(host, 1), end(switch, host as u8)).unwrap();
    }
    let mut bed = Bed::with_manager(&net, Settings::default());
    put_in_force(&mut bed);
    set_link(&mut bed, IMPOSTOR, false);
    assert_eq!(pkeys(&bed, VICTIM), [0xffff, 0x8001]);
    bed
}

fn put_in_force(bed: &mut Bed) {
    let file = partitions::parse(Path::new("p"), PARTITIONS, &mut Remarks::default()).unwrap();
    bed.managers[0].sweeper.set_partitions(Arc::new(file));
}

const VICTIM: usize = 1;
const OTHER: usize = 2;
const IMPOSTOR: usize = 3;

fn host(bed: &Bed, number: usize) -> NodeIndex {
    bed.hosts()[number]
}

fn change_link(bed: &mut Bed, number: usize, up: bool) {
    let (host, now) = (host(bed, number), bed.clock.now());
    match up {
        true => bed.fabric.link_up(now, host, 1).unwrap(),
        false => bed.fabric.link_down(now, host, 1).unwrap(),
    };
}

fn set_link(bed: &mut Bed, number: usize, up: bool) {
    change_link(bed, number, up);
    bed.run_for(SOON);
}

/// P_Keys of a host's port, which the switch port at the other end checks.
fn pkeys(bed: &Bed, number: usize) -> Vec<u16> {
    let host = host(bed, number);
    let far = bed.fabric.port(host, 1).unwrap().link.unwrap();
    let of = |node, num| -> Vec<u16> {
        bed.fabric.pkeys(node, num).unwrap().iter().map(|key| key.0).collect()
    };
    let keys = of(host, 1);
    assert_eq!(keys, of(far.node, far.port));
    keys
}

/// Whether the port has a LID and is active.
fn is_served(bed: &Bed, number: usize) -> bool {
    let port = bed.fabric.port(host(bed, number), 1).unwrap();
    port.state == PortState::Active && port.lid != Lid::NONE
}

/// Regression: a port with the GUID of a host that was away was in the partitions of that host at
/// once.
#[test]
fn an_impostor_of_a_host_that_restarts_is_in_no_partition_of_it() {
    let mut bed = bed();
    set_link(&mut bed, VICTIM, false);
    set_link(&mut bed, IMPOSTOR, true);
    assert!(is_served(&bed, IMPOSTOR), "it may be the host, with another cable");
    assert_eq!((pkeys(&bed, IMPOSTOR), bed.sweeper().newcomers()), (vec![0xffff], 1));
    bed.run_for(PROBATION / 2);
    // A flap of its own gains nothing.
    set_link(&mut bed, IMPOSTOR, false);
    set_link(&mut bed, IMPOSTOR, true);
    assert_eq!(pkeys(&bed, IMPOSTOR), [0xffff]);
    set_link(&mut bed, VICTIM, true);
    assert!(is_served(&bed, VICTIM) && !is_served(&bed, IMPOSTOR));
    assert_eq!((pkeys(&bed, VICTIM), bed.sweeper().newcomers()), (vec![0xffff, 0x8001], 0));
}

/// The impostor appears in the instant in which its victim goes: one discovery sees both.
#[test]
fn an_impostor_that_appears_within_one_sweep_is_in_no_partition() {
    let mut bed = bed();
    change_link(&mut bed, VICTIM, false);
    set_link(&mut bed, IMPOSTOR, true);
    assert!(is_served(&bed, IMPOSTOR));
    assert_eq!((pkeys(&bed, IMPOSTOR), bed.sweeper().newcomers()), (vec![0xffff], 1));
}

#[test]
fn a_host_that_was_moved_has_everything_after_a_while_and_registers_again() {
    let mut bed = bed();
    set_link(&mut bed, VICTIM, false);
    set_link(&mut bed, IMPOSTOR, true);
    let reregisters = |bed: &Bed| bed.fabric.counters().reregistrations;
    let before = reregisters(&bed);
    bed.run_for(PROBATION - SOON * 2);
    assert_eq!((pkeys(&bed, IMPOSTOR), reregisters(&bed)), (vec![0xffff], before));
    bed.run_for(SOON * 3);
    assert_eq!((pkeys(&bed, IMPOSTOR), bed.sweeper().newcomers()), (vec![0xffff, 0x8001], 0));
    assert_eq!(reregisters(&bed), before + 1);
    // It keeps that over a restart, as `neighbors` has its place now.
    let manager = host(&bed, 0);
    let mut before = bed.crash(0);
    let neighbours = before.sweeper.neighbours().clone();
    bed.manage(manager, Settings::default(), before.sweeper.lids().clone());
    bed.managers[0].sweeper.set_m_keys(MKeyTable::default(), neighbours);
    put_in_force(&mut bed);
    bed.run_for(SOON);
    assert_eq!((pkeys(&bed, IMPOSTOR), bed.sweeper().newcomers()), (vec![0xffff, 0x8001], 0));
}

/// After a restart, only `neighbors` knows that the owner is elsewhere.
#[test]
fn an_impostor_that_is_there_after_a_restart_is_in_no_partition() {
    let mut bed = bed();
    let manager = host(&bed, 0);
    let mut before = bed.crash(0);
    let neighbours = before.sweeper.neighbours().clone();
    change_link(&mut bed, VICTIM, false);
    change_link(&mut bed, IMPOSTOR, true);
    bed.manage(manager, Settings::default(), before.sweeper.lids().clone());
    bed.managers[0].sweeper.set_m_keys(MKeyTable::default(), neighbours);
    put_in_force(&mut bed);
    bed.run_for(SOON);
    assert!(is_served(&bed, IMPOSTOR));
    assert_eq!((pkeys(&bed, IMPOSTOR), bed.sweeper().newcomers()), (vec![0xffff], 1));
}

/// Another host is connected in place of the one that was moved.
#[test]
fn a_host_whose_place_another_one_has_waits_for_nothing() {
    let mut bed = bed();
    set_link(&mut bed, VICTIM, false);
    let (victim, other, now) = (host(&bed, VICTIM), host(&bed, OTHER), bed.clock.now());
    let place = bed.fabric.port(victim, 1).unwrap().link.unwrap();
    bed.fabric.disconnect(now, victim, 1).unwrap();
    bed.fabric.disconnect(now, other, 1).unwrap();
    bed.fabric.connect(now, (other, 1), (place.node, place.port)).unwrap();
    set_link(&mut bed, IMPOSTOR, true);
    assert_eq!(pkeys(&bed, IMPOSTOR), [0xffff, 0x8001]);
    assert_eq!(bed.sweeper().newcomers(), 1, "the other one, whose place is empty");
}

/// A switch was replaced. Its hosts, at other ones by now, are asked to wait no longer than it has
/// been gone.
#[test]
fn hosts_of_a_switch_that_has_been_gone_for_long_wait_for_nothing() {
    let mut bed = bed();
    // The host moves to the second switch, is at home there, and that loses its power.
    set_link(&mut bed, VICTIM, false);
    set_link(&mut bed, IMPOSTOR, true);
    bed.run_for(Duration::from_secs(3700));
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.run_for(SOON);
    for (wait, expected) in [(PROBATION / 2, vec![0xffff]), (PROBATION, vec![0xffff, 0x8001])] {
        let now = bed.clock.now();
        let cable = bed.fabric.port(bed.switches()[1], 8).unwrap().link.unwrap();
        bed.fabric.link_down(now, cable.node, cable.port).unwrap();
        bed.run_for(wait);
        set_link(&mut bed, VICTIM, true);
        assert_eq!(pkeys(&bed, VICTIM), expected, "after {wait:?}");
        set_link(&mut bed, VICTIM, false);
        let now = bed.clock.now();
        bed.fabric.link_up(now, cable.node, cable.port).unwrap();
        bed.run_for(SOON);
        assert_eq!(pkeys(&bed, IMPOSTOR), [0xffff, 0x8001]);
    }
}

/// The operator moved the host, and says so.
#[test]
fn a_host_that_the_operator_admits_has_everything_at_once() {
    let mut bed = bed();
    set_link(&mut bed, VICTIM, false);
    set_link(&mut bed, IMPOSTOR, true);
    let listed: Vec<_> =
        bed.sweeper().listed_newcomers().map(|(_, guid, home)| (guid, home)).collect();
    assert_eq!(listed, [(Guid(0x31), (Guid(0x20), PortNum(3)))]);
    let before = bed.fabric.counters().reregistrations;
    let now = bed.clock.now();
    let mut admit = |guid| bed.managers[0].sweeper.admit(now, Guid(guid));
    assert!(!admit(0x41), "that host is at its place");
    assert!(admit(0x31));
    bed.run_for(SOON);
    assert_eq!((pkeys(&bed, IMPOSTOR), bed.sweeper().newcomers()), (vec![0xffff, 0x8001], 0));
    assert_eq!(bed.fabric.counters().reregistrations, before + 1);
    assert!(bed.sweeper().listed_newcomers().next().is_none());
    // What returns to its own place has it back.
    set_link(&mut bed, VICTIM, true);
    assert!(is_served(&bed, VICTIM) && !is_served(&bed, IMPOSTOR));
    assert_eq!(pkeys(&bed, VICTIM), [0xffff, 0x8001]);
}
