//! A node answers wrongly for some time: no sweep hangs, the other nodes are served, the operator
//! gets a report, and the fabric is configured once the node answers correctly.

use std::time::Duration;

use fabric_sim::{NodeIndex, Refusal};
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{NodeInfo, PortInfo, PortState, SwitchInfo};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{DATA, Smp};
use sm_core::sweep::Phase;

use super::{LIMIT, MINUTE, each, manage, of_priority, small};
use crate::common::{Bed, Lie};

/// Change to the attribute in its answers, or in its requests.
type Falsify = Box<dyn FnMut(Method, &mut [u8])>;

struct Case {
    name: String,
    attribute: AttributeId,
    falsify: Falsify,
    /// Whether it must be reported to the operator.
    is_reported: bool,
}

fn case(
    name: impl Into<String>,
    attribute: AttributeId,
    is_reported: bool,
    falsify: impl FnMut(Method, &mut [u8]) + 'static,
) -> Case {
    Case { name: name.into(), attribute, falsify: Box::new(falsify), is_reported }
}

fn is_answer(method: Method) -> bool {
    method == Method::GET_RESP
}

fn node_info(
    name: &str,
    is_reported: bool,
    change: impl Fn(&mut NodeInfo<&mut [u8]>) + 'static,
) -> Case {
    case(name, AttributeId::NODE_INFO, is_reported, move |method, data| {
        if is_answer(method) {
            change(&mut NodeInfo::new(&mut data[..]).unwrap());
        }
    })
}

fn switch_info(
    name: &str,
    is_reported: bool,
    change: impl Fn(&mut SwitchInfo<&mut [u8]>) + 'static,
) -> Case {
    case(name, AttributeId::SWITCH_INFO, is_reported, move |method, data| {
        if is_answer(method) {
            change(&mut SwitchInfo::new(&mut data[..]).unwrap());
        }
    })
}

fn port_info(
    name: &str,
    is_reported: bool,
    change: impl Fn(&mut PortInfo<&mut [u8]>) + 'static,
) -> Case {
    case(name, AttributeId::PORT_INFO, is_reported, move |method, data| {
        if is_answer(method) {
            change(&mut PortInfo::new(&mut data[..]).unwrap());
        }
    })
}

/// Faults of a switch; some also of a host.
fn cases(other: Guid) -> Vec<Case> {
    let mut changing = 0x7000_0000_u64;
    let mut random = 0x9E37_79B9_u64;
    let mut cases = vec![
        node_info("no ports", true, |info| _ = info.set_num_ports(0)),
        node_info("one port", false, |info| _ = info.set_num_ports(1)),
        node_info("254 ports", true, |info| _ = info.set_num_ports(254)),
        node_info("255 ports", true, |info| _ = info.set_num_ports(255)),
        node_info("no GUID", true, |info| _ = info.set_node_guid(Guid(0))),
        node_info("no port GUID", true, |info| _ = info.set_port_guid(Guid(0))),
        node_info("the GUID of another", true, move |info| _ = info.set_node_guid(other)),
        node_info("the port GUID of another", true, move |info| _ = info.set_port_guid(other)),
        node_info("no P_Keys", false, |info| _ = info.set_partition_cap(0)),
        node_info("65535 P_Keys", true, |info| _ = info.set_partition_cap(u16::MAX)),
        case("a GUID that changes", AttributeId::NODE_INFO, true, move |method, data| {
            if is_answer(method) {
                changing += 1;
                NodeInfo::new(&mut data[..]).unwrap().set_node_guid(Guid(changing));
            }
        }),
        switch_info("room for no LIDs", true, |info| _ = info.set_linear_fdb_cap(0)),
        switch_info("room for one MLID", false, |info| _ = info.set_multicast_fdb_cap(1)),
        switch_info("a top that stays 0", true, |info| _ = info.set_linear_fdb_top(Lid(0))),
        switch_info("a top beyond all", true, |info| _ = info.set_linear_fdb_top(Lid(0xFFFF))),
        switch_info("checks no P_Keys", false, |info| {
            _ = info.set_partition_enforcement_cap(0);
        }),
        switch_info("always a change", false, |info| _ = info.set_port_state_change(true)),
        port_info("LID 0xFFFF", true, |info| _ = info.set_base_lid(Lid(0xFFFF))),
        port_info("a multicast LID", true, |info| _ = info.set_base_lid(Lid(0xC123))),
        port_info("the LID of others", false, |info| _ = info.set_base_lid(Lid(1))),
        port_info("always Initialize", true, |info| _ = info.set_port_state(PortState::Initialize)),
        port_info("always Armed", true, |info| _ = info.set_port_state(PortState::Armed)),
        port_info("always Down", false, |info| _ = info.set_port_state(PortState::Down)),
        port_info("LMC 7", false, |info| _ = info.set_lmc(7)),
        case("a block of others", AttributeId::LINEAR_FORWARDING_TABLE, true, |method, data| {
            if is_answer(method) {
                data.fill(3);
            }
        }),
        case("does not take its table", AttributeId::LINEAR_FORWARDING_TABLE, false, {
            move |method, data| {
                if method == Method::SET {
                    data.fill(255);
                }
            }
        }),
        case("does not take its state", AttributeId::PORT_INFO, true, |method, data| {
            if method == Method::SET {
                // PortState 0: as it is.
                data[32] &= 0xF0;
            }
        }),
    ];
    for attribute in ATTRIBUTES {
        cases.push(case(
            format!("{attribute} at random"),
            attribute,
            false,
            move |method, data| {
                if is_answer(method) {
                    for byte in data {
                        random = random
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        *byte = (random >> 56) as u8;
                    }
                }
            },
        ));
        for byte in [0, 255] {
            let name = format!("{attribute} all {byte}");
            cases.push(case(name, attribute, false, move |method, data| {
                if is_answer(method) {
                    data.fill(byte);
                }
            }));
        }
    }
    cases
}

const ATTRIBUTES: [AttributeId; 9] = [
    AttributeId::NODE_INFO,
    AttributeId::NODE_DESCRIPTION,
    AttributeId::SWITCH_INFO,
    AttributeId::PORT_INFO,
    AttributeId::PKEY_TABLE,
    AttributeId::SL_TO_VL_MAPPING_TABLE,
    AttributeId::VL_ARBITRATION_TABLE,
    AttributeId::LINEAR_FORWARDING_TABLE,
    AttributeId::MULTICAST_FORWARDING_TABLE,
];

fn lie_of(liar: NodeIndex, mut case: Case) -> Lie {
    Box::new(move |node, packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        if node == liar && smp.attribute_id() == case.attribute {
            let method = smp.method();
            (case.falsify)(method, &mut packet.mad[DATA]);
        }
    })
}

/// A node that is not at the manager's leaf: a host, its leaf, and a spine.
fn liars(bed: &Bed) -> [NodeIndex; 3] {
    let host = *bed.hosts().last().unwrap();
    let leaf = bed.fabric.port(host, 1).unwrap().link.unwrap().node;
    let is_spine = |&node: &NodeIndex| {
        let hosts = bed.hosts();
        hosts.iter().all(|&host| bed.fabric.port(host, 1).unwrap().link.unwrap().node != node)
    };
    [host, leaf, bed.switches().into_iter().find(is_spine).unwrap()]
}

/// Ports of hosts that are not the liar, nor behind it.
fn others(bed: &Bed, liar: NodeIndex) -> Vec<(NodeIndex, u8, Lid, u8)> {
    let hosts = bed.hosts();
    let is_other = |node: NodeIndex| {
        let link = bed.fabric.port(node, 1).and_then(|port| port.link);
        node != liar && hosts.contains(&node) && link.is_some_and(|link| link.node != liar)
    };
    bed.end_ports().into_iter().filter(|&(node, ..)| is_other(node)).collect()
}

/// Runs for some minutes with the fault there from the beginning, or later; then without it.
fn suffer(name: &str, which: usize, later: bool, begin: impl FnOnce(&mut Bed, NodeIndex)) -> u64 {
    let mut bed = small();
    let liar = liars(&bed)[which];
    manage(&mut bed, 0, of_priority(3));
    let what = format!("{name} of {}, later: {later}", bed.fabric.node(liar).name);
    if later {
        bed.settle(LIMIT, "up");
        bed.run_for(Duration::from_secs(1));
        let now = bed.clock.now();
        begin(&mut bed, liar);
        bed.fabric.reboot(now, liar).unwrap();
        bed.managers[0].sweeper.request_heavy_sweep(now);
    } else {
        begin(&mut bed, liar);
    }
    let ended = bed.reports().len();
    let sent = bed.sweeper().counters().transmitted;
    bed.run_for(MINUTE * 2);
    let sent = bed.sweeper().counters().transmitted - sent;
    // Faults that change each time are retried each second, which costs this fabric up to 500 SMPs.
    assert!(sent < 150_000, "{what}: {sent} SMPs");
    bed.run_until(MINUTE, &what, |bed| bed.sweeper().phase() == Phase::Idle);
    let reports = &bed.reports()[ended..];
    assert!(!reports.is_empty(), "{what}: no sweep ends");
    let reported = |report: &sm_core::sweep::Report| {
        report.errors + report.anomalies + report.duplicate_guids + report.unanswered as u64
    };
    let reported = reports.iter().map(reported).sum();
    // Paths through a spine that does not do what it reports cannot work.
    if which < 2 {
        let lost = bed.cut_off_among(&others(&bed, liar));
        assert!(lost.is_empty(), "{what}: {} pairs, such as {}", lost.len(), lost[0]);
    }
    bed.lie = None;
    bed.fabric.refuse_nothing();
    let now = bed.clock.now();
    // Reboot it: the manager does not know which of its state is wrong.
    bed.fabric.reboot(now, liar).unwrap();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.settle_for_good(LIMIT, &what);
    reported
}

fn suffer_each(which: usize) {
    let count = cases(Guid(1)).len();
    each((0..count).flat_map(|at| [(at, false), (at, true)]), |(at, later)| {
        let (mut name, mut is_reported) = (String::new(), false);
        let other = {
            let bed = small();
            bed.fabric.node(bed.switches()[1]).guid
        };
        let case = cases(other).swap_remove(at);
        name.clone_from(&case.name);
        is_reported |= case.is_reported;
        let reported = suffer(&name, which, later, |bed, liar| bed.lie = Some(lie_of(liar, case)));
        assert!(!is_reported || which == 0 || reported > 0, "not reported: {name}, later: {later}");
    });
}

#[test]
fn a_host_lies() {
    suffer_each(0);
}

#[test]
fn a_leaf_lies() {
    suffer_each(1);
}

#[test]
fn a_spine_lies() {
    suffer_each(2);
}

#[test]
fn an_attribute_is_refused_or_never_answered() {
    let statuses = [None, Some(Status::INVALID_FIELD), Some(Status::BUSY)];
    let rules = || [Method::GET, Method::SET].into_iter().flat_map(|m| statuses.map(|s| (m, s)));
    let places = || (0..3).flat_map(|which| [(which, false), (which, true)]);
    let cases = ATTRIBUTES.into_iter().flat_map(|attribute| {
        rules().flat_map(move |rule| places().map(move |place| (attribute, rule, place)))
    });
    each(cases, |(attribute, (method, status), (which, later))| {
        let name = format!("{method:?} of {attribute} gets {status:?}");
        suffer(&name, which, later, |bed, liar| {
            let method = Some(method);
            let rule = Refusal { method, attribute, port: None, status, times: u32::MAX };
            bed.fabric.refuse(liar, rule).unwrap();
        });
    });
}
