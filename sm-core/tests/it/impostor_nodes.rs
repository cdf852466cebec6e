//! A node that reports the GUID of another one and is of another kind, or has another number of
//! ports, and a host that answers as a switch of the fabric.

use std::time::Duration;

use crate::common::Bed;
use fabric_sim::NodeIndex;
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::PortState;
use sm_config::Settings;
use sm_core::manage::mkey::MKeyTable;

const LEAF: u64 = 0x20;
const FAR_LEAF: u64 = 0x21;
const SPINE: u64 = 0x60;
const VICTIM: u64 = 0x30;

/// Ports of the leaf: of the impostor, found before the others, and of the victim.
const IMPOSTOR_AT: u8 = 2;
const VICTIM_AT: u8 = 3;

/// Two leaves and a spine; the manager, the impostor and the victim at the first leaf, and a host
/// at the other. The impostor's link is down.
fn bed(impostor: (NodeKind, u64, u8)) -> Bed {
    bed_with(impostor, 1, None)
}

/// The same, with the link of the impostor at this port, and with this port GUID.
fn bed_with(impostor: (NodeKind, u64, u8), at: u8, port_guid: Option<u64>) -> Bed {
    let mut net = Net::new();
    let nodes = [
        (NodeKind::Switch, LEAF, 8),
        (NodeKind::Ca, 0x10, 1),
        impostor,
        (NodeKind::Ca, VICTIM, 1),
        (NodeKind::Switch, SPINE, 8),
        (NodeKind::Switch, FAR_LEAF, 8),
        (NodeKind::Ca, 0x40, 1),
    ];
    for (i, (kind, guid, ports)) in nodes.into_iter().enumerate() {
        let mut node = Node::new(kind, Guid(guid), ports, LinkRate::default());
        node.id = format!("node{i}");
        if kind == NodeKind::Ca {
            node.port_mut(1).unwrap().guid = Guid(guid + 1);
        }
        if let Some(port_guid) = port_guid.filter(|_| i == 2) {
            node.port_mut(at).unwrap().guid = Guid(port_guid);
        }
        net.add_node(node);
    }
    let links = [((0, 1), (1, 1)), ((0, 2), (2, at)), ((0, 3), (3, 1))];
    let trunks = [((0, 5), (4, 2)), ((0, 6), (4, 3)), ((5, 5), (4, 4)), ((5, 1), (6, 1))];
    for ((a, at), (b, to)) in links.into_iter().chain(trunks) {
        net.connect(PortRef { node: a, port: at }, PortRef { node: b, port: to }).unwrap();
    }
    let mut bed = Bed::with_manager(&net, Settings::default());
    set_link(&mut bed, 2, false);
    sweep(&mut bed);
    bed
}

/// The node with this place in the net.
fn node_of(bed: &Bed, place: usize) -> NodeIndex {
    bed.fabric.nodes().nth(place).unwrap()
}

/// Sets the link of a host or of the impostor, by the leaf's port.
fn set_link(bed: &mut Bed, place: usize, up: bool) {
    let (node, now) = (node_of(bed, 0), bed.clock.now());
    match up {
        true => bed.fabric.link_up(now, node, place as u8).unwrap(),
        false => bed.fabric.link_down(now, node, place as u8).unwrap(),
    };
    bed.run_for(Duration::from_secs(15));
}

/// Two heavy sweeps.
fn sweep(bed: &mut Bed) {
    for _ in 0..2 {
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_for(Duration::from_secs(15));
        // The program stores them after each sweep.
        assert!(!bed.managers[0].sweeper.neighbours().is_empty());
    }
}

/// Restarts the manager: it knows LIDs and neighbours.
fn restart(bed: &mut Bed) {
    let host = node_of(bed, 1);
    let mut before = bed.crash(0);
    let neighbours = before.sweeper.neighbours().clone();
    bed.manage(host, Settings::default(), before.sweeper.lids().clone());
    bed.managers[0].sweeper.set_m_keys(MKeyTable::default(), neighbours);
    bed.run_for(Duration::from_secs(15));
}

/// GUID and port at the other end of a switch's link, as the manager knows it.
fn behind(bed: &Bed, switch: u64, num: u8) -> Option<(Guid, PortNum)> {
    let fabric = bed.sweeper().fabric();
    let port = fabric.port_of(fabric.find(Guid(switch))?, PortNum(num))?;
    let peer = fabric.port(port).peer()?;
    Some((fabric.node_of(peer).guid, fabric.port(peer).num))
}

/// Whether the victim has its port Active and its GUID, and the impostor has neither.
fn has_identity(bed: &Bed) -> bool {
    let fabric = bed.sweeper().fabric();
    let owner = fabric.end_ports().find(|&port| fabric.port(port).guid == Guid(VICTIM + 1));
    let at = owner.and_then(|port| fabric.port(port).peer());
    let victim = bed.fabric.port(node_of(bed, 3), 1).unwrap();
    at.is_some_and(|at| fabric.node_of(at).guid == Guid(LEAF) && fabric.port(at).num.0 == VICTIM_AT)
        && victim.state == PortState::Active
        && victim.lid.is_unicast()
        && behind(bed, LEAF, IMPOSTOR_AT).is_none()
}

const KINDS: [(NodeKind, u64, u8); 3] =
    [(NodeKind::Ca, VICTIM, 2), (NodeKind::Switch, VICTIM, 4), (NodeKind::Router, VICTIM, 1)];

/// Regression: of two nodes with one GUID that differed in NumPorts or NodeType, the one found
/// first in each full sweep got LID, P_Keys and paths.
#[test]
fn an_impostor_of_another_kind_gets_nothing() {
    for kind in KINDS {
        let mut bed = bed(kind);
        assert!(has_identity(&bed), "{kind:?}");
        set_link(&mut bed, 2, true);
        assert!(has_identity(&bed), "{kind:?}: it comes");
        sweep(&mut bed);
        assert!(has_identity(&bed), "{kind:?}: full sweeps");
        restart(&mut bed);
        assert!(has_identity(&bed), "{kind:?}: a restart");
        sweep(&mut bed);
        assert!(has_identity(&bed), "{kind:?}: full sweeps after a restart");
    }
}

/// Once it was seen beside its victim, it inherits nothing from it.
#[test]
fn an_impostor_of_another_kind_does_not_inherit_by_a_flap() {
    for kind in KINDS {
        let mut bed = bed(kind);
        set_link(&mut bed, 2, true);
        sweep(&mut bed);
        set_link(&mut bed, 3, false);
        sweep(&mut bed);
        let fabric = bed.sweeper().fabric();
        let is_owned = fabric.end_ports().any(|port| fabric.port(port).guid == Guid(VICTIM + 1));
        assert!(!is_owned, "{kind:?}");
        set_link(&mut bed, 3, true);
        assert!(has_identity(&bed), "{kind:?}");
    }
}

/// What comes while its victim is away may be the victim with another firmware at another place. If
/// the victim is back at its place, it was not.
#[test]
fn a_victim_that_returns_to_its_place_replaces_an_impostor_of_another_kind() {
    for kind in KINDS {
        let mut bed = bed(kind);
        set_link(&mut bed, 3, false);
        set_link(&mut bed, 2, true);
        sweep(&mut bed);
        set_link(&mut bed, 3, true);
        sweep(&mut bed);
        assert!(has_identity(&bed), "{kind:?}");
    }
}

/// Regression: with another port than its victim's, and a port GUID of its own whose place the
/// manager knew, an impostor kept the node GUID when its victim was back.
#[test]
fn an_impostor_with_a_port_guid_of_its_own_keeps_nothing() {
    for (guid, at) in [(VICTIM, 2), (VICTIM, 1), (SPINE, 1), (SPINE, 2)] {
        for before in [true, false] {
            let mut bed = bed_with((NodeKind::Ca, guid, 2), at, Some(0x7777));
            let is_whole = |bed: &Bed| {
                let spine = [(LEAF, 5, 2), (LEAF, 6, 3), (FAR_LEAF, 5, 4)];
                spine.iter().all(|&(switch, num, far)| {
                    behind(bed, switch, num) == Some((Guid(SPINE), PortNum(far)))
                }) && has_identity(bed)
            };
            if before {
                set_link(&mut bed, 2, true);
                sweep(&mut bed);
                assert!(is_whole(&bed), "{guid:#x} {at}: beside it");
            }
            let down = |bed: &mut Bed, up| match guid {
                SPINE => set_spine(bed, up),
                _ => set_link(bed, 3, up),
            };
            down(&mut bed, false);
            if !before {
                set_link(&mut bed, 2, true);
            }
            sweep(&mut bed);
            down(&mut bed, true);
            sweep(&mut bed);
            assert!(is_whole(&bed), "{guid:#x} {at} {before}: its victim is back");
            restart(&mut bed);
            sweep(&mut bed);
            assert!(is_whole(&bed), "{guid:#x} {at} {before}: a restart");
        }
    }
}

/// Regression: when the cables of a switch had been moved while the manager was down, an adapter
/// with its node GUID kept that.
#[test]
fn an_adapter_never_gets_the_guid_of_a_switch() {
    let mut bed = bed_with((NodeKind::Ca, SPINE, 1), 1, Some(0x7777));
    let host = node_of(&bed, 1);
    let mut before = bed.crash(0);
    // As after a move of all cables: the ports of the spine are elsewhere in the file.
    let text = before.sweeper.neighbours().render();
    let ports = [("60:2", "60:7"), ("60:3", "60:8"), ("60:4", "60:6")];
    let moved = ports.iter().fold(text.clone(), |text, (old, new)| text.replace(old, new));
    assert_ne!(moved, text);
    let (neighbours, _) = sm_core::manage::mkey::Neighbours::parse(&moved);
    let now = bed.clock.now();
    let leaf = node_of(&bed, 0);
    bed.fabric.link_up(now, leaf, IMPOSTOR_AT).unwrap();
    bed.manage(host, Settings::default(), before.sweeper.lids().clone());
    bed.managers[0].sweeper.set_m_keys(MKeyTable::default(), neighbours.into());
    bed.run_for(Duration::from_secs(15));
    sweep(&mut bed);
    assert_eq!(behind(&bed, LEAF, 5), Some((Guid(SPINE), PortNum(2))));
    assert_eq!(behind(&bed, LEAF, IMPOSTOR_AT), None);
}

/// Regression: a host that answered as the port of a switch at which a host was took the place of
/// that host, without a report.
#[test]
fn a_host_that_answers_as_a_port_of_its_switch_cuts_off_no_other() {
    let mut bed = bed_with((NodeKind::Switch, FAR_LEAF, 8), 1, None);
    let is_whole = |bed: &Bed| {
        behind(bed, FAR_LEAF, 1) == Some((Guid(0x40), PortNum(1)))
            && behind(bed, FAR_LEAF, 5) == Some((Guid(SPINE), PortNum(4)))
            && behind(bed, LEAF, IMPOSTOR_AT).is_none()
    };
    assert!(is_whole(&bed));
    set_link(&mut bed, 2, true);
    assert!(is_whole(&bed), "it comes");
    sweep(&mut bed);
    assert!(is_whole(&bed), "full sweeps");
}

/// Regression: a host that answered as a switch of the fabric took its place in the next full
/// sweep, if it was found first, and the links of the switch were left out.
#[test]
fn a_host_that_answers_as_a_switch_of_the_fabric_does_not_take_its_place() {
    let mut bed = bed((NodeKind::Switch, SPINE, 8));
    let check = |bed: &Bed, when: &str| {
        let links = [(LEAF, 5), (LEAF, 6), (FAR_LEAF, 5), (LEAF, IMPOSTOR_AT)];
        let found = links.map(|(switch, num)| behind(bed, switch, num));
        let of_spine = |num| Some((Guid(SPINE), PortNum(num)));
        assert_eq!(found, [of_spine(2), of_spine(3), of_spine(4), None], "{when}");
        assert!(bed.sweeper().fabric().find(Guid(0x40)).is_some(), "{when}");
    };
    check(&bed, "before");
    set_link(&mut bed, 2, true);
    check(&bed, "it comes");
    sweep(&mut bed);
    check(&bed, "full sweeps");
    restart(&mut bed);
    check(&bed, "a restart");
    sweep(&mut bed);
    check(&bed, "full sweeps after a restart");
}

/// A cable that is moved, and a switch all of whose cables are moved, are found where they are.
#[test]
fn a_node_that_was_moved_is_found_at_its_new_place() {
    let mut bed = bed((NodeKind::Ca, 0x50, 1));
    set_link(&mut bed, 2, true);
    assert_eq!(behind(&bed, LEAF, IMPOSTOR_AT), Some((Guid(0x50), PortNum(1))));
}

/// Sets all links of the spine.
fn set_spine(bed: &mut Bed, up: bool) {
    let (spine, now) = (node_of(bed, 4), bed.clock.now());
    for port in 2..=4 {
        match up {
            true => bed.fabric.link_up(now, spine, port).unwrap(),
            false => bed.fabric.link_down(now, spine, port).unwrap(),
        };
    }
    bed.run_for(Duration::from_secs(15));
    sweep(bed);
}

/// Regression: a host that was known to answer as a switch of the fabric took its place while that
/// was down, and again and again when it was back.
#[test]
fn a_host_that_answers_as_a_switch_does_not_inherit_by_a_flap() {
    let mut bed = bed((NodeKind::Switch, SPINE, 8));
    set_link(&mut bed, 2, true);
    sweep(&mut bed);
    for _ in 0..2 {
        set_spine(&mut bed, false);
        assert_eq!(behind(&bed, LEAF, IMPOSTOR_AT), None);
        set_spine(&mut bed, true);
        check_spine(&bed);
    }
}

#[test]
fn a_switch_that_returns_to_its_place_replaces_a_host_that_answered_as_it() {
    let mut bed = bed((NodeKind::Switch, SPINE, 8));
    set_spine(&mut bed, false);
    set_link(&mut bed, 2, true);
    set_spine(&mut bed, true);
    check_spine(&bed);
    set_spine(&mut bed, false);
    set_spine(&mut bed, true);
    check_spine(&bed);
}

fn check_spine(bed: &Bed) {
    let links = [(LEAF, 5), (LEAF, 6), (FAR_LEAF, 5), (LEAF, IMPOSTOR_AT)];
    let found = links.map(|(switch, num)| behind(bed, switch, num));
    let of_spine = |num| Some((Guid(SPINE), PortNum(num)));
    assert_eq!(found, [of_spine(2), of_spine(3), of_spine(4), None]);
}
