//! Ports and nodes that do not work correctly: the rest of the fabric comes up nevertheless.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::{NodeIndex, Refusal};
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{LinkWidths, PortInfo, PortState};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{DATA, Smp};
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::smp::Kind;
use sm_core::sweep::Phase;

const MINUTE: Duration = Duration::from_secs(60);
const FOREVER: u32 = u32::MAX;

fn bed() -> Bed {
    Bed::with_manager(&fat_tree(2, 8, 20), Settings::default())
}

fn refusal(method: Method, attribute: AttributeId, status: Option<Status>) -> Refusal {
    Refusal { method: Some(method), attribute, port: None, status, times: FOREVER }
}

fn refuse(bed: &mut Bed, node: NodeIndex, refusal: Refusal) {
    bed.fabric.refuse(node, refusal).unwrap();
}

/// Runs until the fabric is configured and no fault is reported.
fn mend(bed: &mut Bed) {
    bed.fabric.refuse_nothing();
    bed.run_until(MINUTE * 3, "no faults left", |bed| {
        let last = bed.reports().last();
        bed.sweeper().phase() == Phase::Idle && last.is_some_and(|report| report.errors == 0)
    });
    bed.assert_all_reachable();
}

/// Each client registers once; only the faulty port is retried, at growing intervals.
fn assert_quiet_with_one_fault(bed: &mut Bed) {
    let report = bed.bring_up();
    assert!(report.up && report.errors > 0 && !report.faults.is_empty(), "{report:?}");
    let (asked, full) = (bed.fabric.counters().reregistrations, |bed: &Bed| {
        bed.reports().iter().filter(|report| report.full).count()
    });
    let fulls = full(bed);
    assert!(asked >= bed.hosts().len() as u64 - 1, "{asked} were asked");
    let before = bed.reports().len();
    bed.run_for(MINUTE * 10);
    assert!(bed.sweeper().is_up());
    let again = bed.fabric.counters().reregistrations - asked;
    assert_eq!((again, full(bed) - fulls), (0, 0), "no client registers again");
    let tries = bed.reports().len() - before;
    assert!((8..24).contains(&tries), "{tries} tries in 10 minutes");
}

#[test]
fn a_refused_p_key_table_is_a_fault_of_one_port() {
    let mut bed = bed();
    let host = bed.hosts()[5];
    bed.fabric.set_delay(None, Duration::from_micros(1)).unwrap();
    let status = Some(Status::INVALID_FIELD);
    // Its table is right as it comes; what it reads is refused as well, so that it has to be set.
    refuse(&mut bed, host, refusal(Method::GET, AttributeId::PKEY_TABLE, status));
    refuse(&mut bed, host, refusal(Method::SET, AttributeId::PKEY_TABLE, status));
    assert_quiet_with_one_fault(&mut bed);
    bed.assert_all_reachable();
    mend(&mut bed);
}

#[test]
fn a_port_stuck_in_armed_is_a_fault_of_one_port() {
    let mut bed = bed();
    let leaf = bed.switches()[0];
    let port = (1..=8).find(|&port| {
        let link = bed.fabric.port(leaf, port).unwrap().link;
        link.is_some_and(|link| link.node == bed.hosts()[2])
    });
    let (leaf, port) = match port {
        Some(port) => (leaf, port),
        None => {
            let link = bed.fabric.port(bed.hosts()[2], 1).unwrap().link.unwrap();
            (link.node, link.port)
        }
    };
    let status = Some(Status::INVALID_FIELD);
    let rule = refusal(Method::SET, AttributeId::PORT_INFO, status);
    refuse(&mut bed, leaf, Refusal { port: Some(port), ..rule });
    assert_quiet_with_one_fault(&mut bed);
    assert_ne!(bed.fabric.port(leaf, port).unwrap().state, PortState::Active);
    mend(&mut bed);
}

#[test]
fn clients_are_asked_again_only_by_a_new_master() {
    let mut bed = bed();
    bed.bring_up();
    let asked = bed.fabric.counters().reregistrations;
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    assert_eq!(bed.fabric.counters().reregistrations, asked);
    let host = bed.hosts()[0];
    let lids = bed.crash_manager().sweeper.lids().clone();
    bed.manage(host, Settings::default(), lids);
    bed.bring_up();
    assert_eq!(bed.fabric.counters().reregistrations, asked * 2);
}

#[test]
fn a_busy_agent_is_asked_again() {
    let mut bed = bed();
    for node in bed.switches() {
        for attribute in [AttributeId::SWITCH_INFO, AttributeId::PORT_INFO] {
            let rule = refusal(Method::GET, attribute, Some(Status::BUSY));
            refuse(&mut bed, node, Refusal { times: 2, ..rule });
        }
        let attribute = AttributeId::LINEAR_FORWARDING_TABLE;
        let rule = refusal(Method::SET, attribute, Some(Status::BUSY));
        refuse(&mut bed, node, Refusal { times: 2, ..rule });
    }
    let report = bed.bring_up();
    assert_eq!((report.errors, report.anomalies, report.switches), (0, 0, bed.switches().len()));
    bed.assert_all_reachable();
}

/// The leaf of the SM refuses, or does not answer, requests for one of its ports to a spine: the
/// spine is reached by other links, and that link is not used.
#[test]
fn a_port_that_cannot_be_read_costs_its_link_and_no_node() {
    for status in [Some(Status::INVALID_FIELD), Some(Status::BUSY), None] {
        let mut bed = bed();
        let leaf = bed.fabric.port(bed.hosts()[0], 1).unwrap().link.unwrap().node;
        let up = (1..=8).find(|&port| {
            let link = bed.fabric.port(leaf, port).unwrap().link;
            link.is_some_and(|link| bed.switches().contains(&link.node))
        });
        let up = up.expect("a leaf has links to spines");
        let rule = refusal(Method::GET, AttributeId::PORT_INFO, status);
        refuse(&mut bed, leaf, Refusal { port: Some(up), ..rule });
        let report = bed.bring_up();
        assert_eq!((report.switches, report.hosts), (bed.switches().len(), bed.hosts().len()));
        assert!(report.up && report.errors > 0);
        assert_ne!(bed.fabric.port(leaf, up).unwrap().state, PortState::Active);
        bed.assert_all_reachable();
        mend(&mut bed);
        assert_eq!(bed.fabric.port(leaf, up).unwrap().state, PortState::Active);
    }
}

/// Blocks that a switch is not known to hold are not published, and the rest of the plan is not
/// sent to it.
#[test]
fn a_refused_forwarding_block_is_published_as_leading_nowhere() {
    let mut bed = bed();
    let spine = *bed.switches().last().unwrap();
    let rule =
        refusal(Method::SET, AttributeId::LINEAR_FORWARDING_TABLE, Some(Status::INVALID_FIELD));
    refuse(&mut bed, spine, rule);
    let report = bed.bring_up();
    assert!(report.up && report.errors > 0);
    let guid = bed.fabric.node(spine).guid;
    let plane = bed.plane();
    let lft = plane.lfts.iter().find(|lft| lft.switch == guid).unwrap();
    assert!(!lft.ports.is_empty() && lft.ports.iter().all(|&port| port == 255));
    let row = plane.nodes.iter().find(|node| node.guid == guid).unwrap();
    let info = row.switch_info.unwrap();
    let top = ib_mad::wire::attribute::SwitchInfo::new(&info[..]).unwrap().linear_fdb_top();
    assert_eq!(top, Lid(0), "the top stays below what was not written");
    mend(&mut bed);
}

fn node(kind: NodeKind, guid: u64, ports: u8) -> Node {
    Node::new(kind, Guid(guid), ports, LinkRate::default())
}

/// Three hosts on a switch, of which the last has the port GUID `guid`.
fn with_port_guid(guid: u64) -> Net {
    let mut net = Net::new();
    let mut nodes = [
        node(NodeKind::Ca, 0x10, 1),
        node(NodeKind::Switch, 0x20, 8),
        node(NodeKind::Ca, 0x30, 1),
        node(NodeKind::Ca, 0x40, 1),
    ];
    nodes[3].port_mut(1).unwrap().guid = Guid(guid);
    for (i, mut node) in nodes.into_iter().enumerate() {
        node.id = format!("node{i}");
        net.add_node(node);
    }
    for (host, port) in [(0, 1), (2, 2), (3, 3)] {
        let (host, port) = (PortRef { node: host, port: 1 }, PortRef { node: 1, port });
        net.connect(host, port).unwrap();
    }
    net
}

/// The port GUID of another host, of the switch, and of the SM's own port.
#[test]
fn a_duplicate_port_guid_leaves_one_port_out_and_the_rest_comes_up() {
    for guid in [0x31, 0x20, 0x11] {
        let mut bed = Bed::with_manager(&with_port_guid(guid), Settings::default());
        let report = bed.bring_up();
        assert_eq!((report.duplicate_guids, report.errors, report.up), (1, 0, true), "{guid:#x}");
        let left_out: Vec<_> =
            bed.end_ports().into_iter().filter(|(_, _, lid, _)| *lid == Lid::NONE).collect();
        assert_eq!(left_out.len(), 1, "{guid:#x}");
        let (node, num, ..) = left_out[0];
        assert_eq!(bed.fabric.port(node, num).unwrap().guid, Guid(guid));
        assert_eq!(bed.fabric.port(node, num).unwrap().state, PortState::Initialize);
        assert!(bed.hosts()[0] != node, "the SM's own port comes first");
        let plane = bed.plane();
        let end_ports = plane.nodes.iter().flat_map(|node| {
            let is_switch = node.switch_info.is_some();
            node.ports.iter().filter(move |port| !is_switch || port.num.0 == 0)
        });
        let with_guid = end_ports.filter(|port| port.guid == Guid(guid)).count();
        assert_eq!(with_guid, 1, "{guid:#x}");
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        let report = bed.bring_up();
        assert!(!report.changed(), "who had it keeps it: {report:?}");
    }
}

/// Regression: routes still used a switch that refuses its table, although its old table could lose
/// packets, and each sweep reported a fault.
#[test]
fn a_spine_that_refuses_its_tables_is_avoided_until_it_takes_them() {
    for status in [Some(Status::INVALID_FIELD), None] {
        let mut bed = bed();
        let spine = *bed.switches().last().unwrap();
        let rule = refusal(Method::SET, AttributeId::LINEAR_FORWARDING_TABLE, status);
        refuse(&mut bed, spine, rule);
        bed.run_until(MINUTE * 3, "the spine is avoided", |bed| {
            let idle = bed.sweeper().phase() == Phase::Idle;
            idle && bed.sweeper().avoided_switches() == 1 && bed.reports().last().unwrap().up
        });
        bed.run_for(MINUTE);
        assert_eq!(bed.sweeper().avoided_switches(), 1, "and stays so");
        assert!(!bed.sweeper().faults().is_empty(), "it is reported");
        let hosts: Vec<_> =
            bed.end_ports().into_iter().filter(|end| bed.hosts().contains(&end.0)).collect();
        for &(source, num, ..) in &hosts {
            for &(node, to, lid, _) in &hosts {
                bed.assert_reachable((source, num), lid, (node, to));
            }
        }
        // One block is tried now and then, not all.
        let before = bed.sweeper().passed(Kind::SetForwarding).answered;
        let tries = bed.reports().len();
        bed.run_for(MINUTE * 10);
        let sent = bed.sweeper().passed(Kind::SetForwarding).answered - before;
        let sweeps = bed.reports().len() - tries;
        assert!(sent <= sweeps as u64, "{sent} blocks in {sweeps} sweeps");
        // After the sweep in which it accepts that block, the next one routes over it.
        bed.fabric.refuse_nothing();
        bed.run_for(MINUTE);
        assert_eq!(bed.sweeper().avoided_switches(), 0);
        bed.assert_all_reachable();
    }
}

/// The switch has hosts: avoiding it would disconnect them.
#[test]
fn a_leaf_that_refuses_its_tables_is_not_avoided() {
    let mut bed = bed();
    let leaf = bed.fabric.port(bed.hosts()[5], 1).unwrap().link.unwrap().node;
    let status = Some(Status::INVALID_FIELD);
    let rule = refusal(Method::SET, AttributeId::LINEAR_FORWARDING_TABLE, status);
    refuse(&mut bed, leaf, rule);
    bed.run_for(MINUTE * 5);
    assert_eq!(bed.sweeper().avoided_switches(), 0);
    assert!(bed.sweeper().is_up() && !bed.sweeper().faults().is_empty());
    mend(&mut bed);
}

/// All ports report support of 12x.
fn widen(bed: &mut Bed) {
    bed.lie = Some(Box::new(|_, packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        if (smp.method(), smp.attribute_id()) == (Method::GET_RESP, AttributeId::PORT_INFO) {
            let mut info = PortInfo::new(&mut packet.mad[DATA]).unwrap();
            let widths = info.link_width_supported() | LinkWidths::X12;
            info.set_link_width_supported(widths);
        }
    }));
}

/// Two hosts with the same GUIDs, back to back.
fn seeing_itself() -> Net {
    let mut net = Net::new();
    for id in ["a", "b"] {
        let mut node = Node::new(NodeKind::Ca, Guid(0x10), 1, LinkRate::default());
        node.id = id.into();
        net.add_node(node);
    }
    net.connect(PortRef { node: 0, port: 1 }, PortRef { node: 1, port: 1 }).unwrap();
    net
}

/// As OpenSM ends, unless -y makes it stay.
#[test]
#[should_panic(expected = "(or a 12x link with lane reversal is badly configured). With -y")]
fn a_port_that_sees_only_itself_is_fatal() {
    let mut bed = Bed::new(&seeing_itself());
    widen(&mut bed);
    let host = bed.hosts()[0];
    bed.manage(host, Settings::default(), LidTable::default());
    bed.run_for(Duration::from_secs(10));
}

#[test]
fn a_port_that_sees_itself_is_reported_if_not_fatal() {
    let settings = Settings { exit_on_fatal: false, ..Settings::default() };
    let mut bed = Bed::with_manager(&seeing_itself(), settings);
    bed.run_until(Duration::from_secs(60), "a report", |bed| !bed.reports().is_empty());
    assert!(bed.reports()[0].anomalies > 0, "{:?}", bed.reports()[0]);
}
