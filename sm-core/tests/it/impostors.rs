//! A port that reports the GUIDs of another one: whose place the SM knows keeps its identity, also
//! over a flap of its link.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::Bed;
use fabric_sim::NodeIndex;
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::PortState;
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::Smp;
use sm_config::Settings;
use sm_core::manage::mkey::MKeyTable;

/// Port GUID of the victim, and of the impostor.
const GUID: Guid = Guid(0x31);

/// Whose GUIDs the impostor has: the victim's port GUID, or its node GUID too.
const NODE_GUIDS: [u64; 2] = [0x50, 0x30];

fn node(kind: NodeKind, guid: u64, ports: u8) -> Node {
    Node::new(kind, Guid(guid), ports, LinkRate::default())
}

/// A switch with the manager's host, the victim, the impostor and another host.
fn bed(impostor: u64) -> Bed {
    bed_of([0x10, 0x30, impostor, 0x40], &[])
}

/// The same with these node GUIDs of the hosts; `further` are impostors besides the third.
fn bed_of(guids: [u64; 4], further: &[usize]) -> Bed {
    let mut net = Net::new();
    let hosts = guids.map(|guid| {
        let mut host = node(NodeKind::Ca, guid, 1);
        host.port_mut(1).unwrap().guid = Guid(guid + 1);
        host
    });
    for (i, mut node) in [node(NodeKind::Switch, 0x20, 8)].into_iter().chain(hosts).enumerate() {
        node.id = format!("node{i}");
        if i == 3 || further.contains(&i) {
            node.port_mut(1).unwrap().guid = GUID;
        }
        net.add_node(node);
    }
    for host in 1..=4 {
        let (a, b) = (PortRef { node: host, port: 1 }, PortRef { node: 0, port: host as u8 });
        net.connect(a, b).unwrap();
    }
    let mut bed = Bed::with_manager(&net, Settings::default());
    if !further.is_empty() {
        let (other, now) = (other_of(&bed), bed.clock.now());
        bed.fabric.link_down(now, other, 1).unwrap();
    }
    set_link(&mut bed, impostor_of, false);
    assert!(is_served(&bed, victim_of));
    bed
}

fn victim_of(bed: &Bed) -> NodeIndex {
    bed.hosts()[1]
}

fn impostor_of(bed: &Bed) -> NodeIndex {
    bed.hosts()[2]
}

fn other_of(bed: &Bed) -> NodeIndex {
    bed.hosts()[3]
}

fn set_link(bed: &mut Bed, whose: fn(&Bed) -> NodeIndex, up: bool) {
    let (host, now) = (whose(bed), bed.clock.now());
    match up {
        true => bed.fabric.link_up(now, host, 1).unwrap(),
        false => bed.fabric.link_down(now, host, 1).unwrap(),
    };
    bed.run_for(Duration::from_secs(15));
}

/// Restarts the manager, which knows LIDs and neighbours. Meanwhile, `change` happens.
fn restart(bed: &mut Bed, change: impl FnOnce(&mut Bed)) {
    let host = bed.hosts()[0];
    let mut before = bed.crash(0);
    let neighbours = before.sweeper.neighbours().clone();
    change(bed);
    bed.manage(host, Settings::default(), before.sweeper.lids().clone());
    bed.managers[0].sweeper.set_m_keys(MKeyTable::default(), neighbours);
    bed.run_for(Duration::from_secs(15));
}

/// Whether the host's port is Active, and its LID leads to it.
fn is_served(bed: &Bed, whose: fn(&Bed) -> NodeIndex) -> bool {
    let host = whose(bed);
    let port = bed.fabric.port(host, 1).unwrap();
    let far = port.link.unwrap();
    let fabric = bed.sweeper().fabric();
    let at_switch =
        fabric.port_of(fabric.find(bed.fabric.node(far.node).guid).unwrap(), far_num(far.port));
    let peer = at_switch.and_then(|at| fabric.port(at).peer());
    port.state == PortState::Active
        && port.lid != Lid::NONE
        && peer.is_some_and(|peer| fabric.is_end_port(peer) && fabric.port(peer).guid == GUID)
}

fn far_num(num: u8) -> ib_mad::types::PortNum {
    ib_mad::types::PortNum(num)
}

/// Regression: a port with the GUID of a manager that was named, and whose host was off, was sent
/// the M_Key.
#[test]
fn an_impostor_of_a_named_manager_is_not_sent_the_m_key() {
    for node in NODE_GUIDS {
        let mut bed = bed(node);
        let settings = Settings { m_key: 0xFEED, m_key_protection_level: 2, ..Settings::default() };
        bed.managers[0].sweeper.follow_settings(&settings);
        bed.managers[0].sweeper.allow_managers([GUID].into());
        set_link(&mut bed, victim_of, false);
        let (requests, leaks) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (counted, leaked) = (requests.clone(), leaks.clone());
        bed.lie = Some(Box::new(move |_, packet| {
            let Ok(smp) = Smp::new(&packet.mad) else { return };
            if (smp.method(), smp.attribute_id()) == (Method::GET, AttributeId::SM_INFO) {
                counted.set(counted.get() + 1);
                leaked.set(leaked.get() + u32::from(smp.m_key() == 0xFEED));
            }
        }));
        let (host, now) = (impostor_of(&bed), bed.clock.now());
        let endpoint = bed.fabric.attach(host, 0).unwrap();
        bed.fabric.set_is_sm(now, endpoint, true);
        set_link(&mut bed, impostor_of, true);
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_for(Duration::from_secs(15));
        assert!(requests.get() > 0, "{node:#x}: it is asked");
        assert_eq!(leaks.get(), 0, "{node:#x}");
    }
}

#[test]
fn an_impostor_beside_its_victim_gets_nothing() {
    for node in NODE_GUIDS {
        let mut bed = bed(node);
        set_link(&mut bed, impostor_of, true);
        assert!(is_served(&bed, victim_of), "{node:#x}");
        assert!(!is_served(&bed, impostor_of), "{node:#x}");
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_for(Duration::from_secs(15));
        assert!(is_served(&bed, victim_of) && !is_served(&bed, impostor_of), "{node:#x}");
    }
}

/// Regression: The impostor got LID, paths and partitions of a victim whose link flapped, and kept
/// them.
#[test]
fn a_known_impostor_inherits_nothing_while_its_victim_is_away() {
    for node in NODE_GUIDS {
        let mut bed = bed(node);
        set_link(&mut bed, impostor_of, true);
        set_link(&mut bed, victim_of, false);
        assert!(!is_served(&bed, impostor_of), "{node:#x}");
        // Its own flap changes nothing.
        set_link(&mut bed, impostor_of, false);
        set_link(&mut bed, impostor_of, true);
        assert!(!is_served(&bed, impostor_of), "{node:#x}");
        set_link(&mut bed, victim_of, true);
        assert!(is_served(&bed, victim_of) && !is_served(&bed, impostor_of), "{node:#x}");
        // For good, it is no impostor, but a host that was moved.
        set_link(&mut bed, victim_of, false);
        bed.run_for(Duration::from_secs(3700));
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_for(Duration::from_secs(15));
        assert!(is_served(&bed, impostor_of), "{node:#x}");
    }
}

/// Who appears with the GUID of a host that is away may be that host at another place. If the host
/// comes back to its place, it was not.
#[test]
fn a_host_that_returns_to_its_place_gets_its_identity_back() {
    for node in NODE_GUIDS {
        let mut bed = bed(node);
        set_link(&mut bed, victim_of, false);
        set_link(&mut bed, impostor_of, true);
        assert!(is_served(&bed, impostor_of), "a moved cable: {node:#x}");
        set_link(&mut bed, victim_of, true);
        assert!(is_served(&bed, victim_of), "{node:#x}");
        assert!(!is_served(&bed, impostor_of), "{node:#x}");
        let impostor = impostor_of(&bed);
        let state = bed.fabric.port(impostor, 1).unwrap().state;
        assert_eq!(state, PortState::Initialize, "{node:#x}: its link carries no more traffic");
    }
}

/// Regression: what `neighbors` says of a port counted only while another one was present, too: an
/// impostor found alone after a restart was at home, and its victim got nothing when it returned.
#[test]
fn a_home_outlives_a_restart() {
    for node in NODE_GUIDS {
        let mut bed = bed(node);
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_for(Duration::from_secs(15));
        restart(&mut bed, |bed| {
            let (victim, impostor) = (victim_of(bed), impostor_of(bed));
            bed.fabric.link_down(now, victim, 1).unwrap();
            bed.fabric.link_up(now, impostor, 1).unwrap();
        });
        assert!(is_served(&bed, impostor_of), "a moved cable: {node:#x}");
        set_link(&mut bed, victim_of, true);
        assert!(is_served(&bed, victim_of), "{node:#x}");
        assert!(!is_served(&bed, impostor_of), "{node:#x}");
    }
}

/// Regression: an impostor that was served while its victim was away was in `neighbors`: one restart
/// or takeover made its place the home.
#[test]
fn a_home_outlives_restarts_while_another_port_is_served() {
    for node in NODE_GUIDS {
        let mut bed = bed(node);
        bed.managers[0].sweeper.neighbours();
        set_link(&mut bed, victim_of, false);
        set_link(&mut bed, impostor_of, true);
        for _ in 0..2 {
            restart(&mut bed, |_| {});
        }
        assert!(is_served(&bed, impostor_of), "a moved cable: {node:#x}");
        set_link(&mut bed, victim_of, true);
        assert!(is_served(&bed, victim_of), "{node:#x}");
        assert!(!is_served(&bed, impostor_of), "{node:#x}");
    }
}

/// Regression: `neighbors` had no link that failed before the file was brought up to date, some
/// seconds after a sweep.
#[test]
fn a_link_that_fails_soon_is_remembered() {
    let mut bed = bed(NODE_GUIDS[1]);
    let known = |bed: &mut Bed| bed.managers[0].sweeper.neighbours().place_of(GUID);
    let now = bed.clock.now();
    let victim = victim_of(&bed);
    bed.fabric.link_down(now, victim, 1).unwrap();
    bed.run_for(Duration::from_secs(15));
    assert!(known(&mut bed).is_some());
}

/// Regression: While the owner was away, the home of its GUID became the place of the first of two
/// impostors as soon as the second one was seen, and the owner got nothing when it returned.
#[test]
fn of_two_impostors_neither_gets_what_belongs_to_a_third_place() {
    for guids in [[0x10, 0x30, 0x50, 0x60], [0x10, 0x30, 0x30, 0x30]] {
        let mut bed = bed_of(guids, &[4]);
        set_link(&mut bed, victim_of, false);
        set_link(&mut bed, impostor_of, true);
        assert!(is_served(&bed, impostor_of), "a moved cable: {guids:x?}");
        set_link(&mut bed, other_of, true);
        let neither = |bed: &Bed| !is_served(bed, impostor_of) && !is_served(bed, other_of);
        assert!(neither(&bed), "{guids:x?}");
        for whose in [impostor_of, other_of, impostor_of] {
            set_link(&mut bed, whose, false);
            assert!(neither(&bed), "{guids:x?}");
            set_link(&mut bed, whose, true);
            assert!(neither(&bed), "{guids:x?}");
        }
        set_link(&mut bed, victim_of, true);
        assert!(is_served(&bed, victim_of) && neither(&bed), "{guids:x?}");
    }
}
