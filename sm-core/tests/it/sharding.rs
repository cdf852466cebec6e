//! The SA port of each end port, on a simulated fabric in virtual time: MasterSMLID by port, and
//! the LID of a failed responder, which another takes over without ever having two owners.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::{NodeIndex, Refusal};
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{NodeType, PortInfo, PortPhysState, PortState, SmNotice, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{self, Smp};
use sm_config::Settings;
use sm_core::manage::shard::{SaLid, TakeOver};
use sm_core::sweep::{Sharding, TakeOverStart};

const SECOND: Duration = Duration::from_secs(1);

/// A subnet of 16 hosts, the SM on the first; responders on the next three.
fn bed() -> Bed {
    let settings = Settings { sweep_interval: 0, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 16), settings);
    let responders = [1, 2, 3].map(|number| guid(&bed, number));
    let sweeper = &mut bed.managers[0].sweeper;
    sweeper.set_sharding(Some(Sharding { share: 100, virtualized: true }));
    sweeper.set_responder_ports(responders);
    bed.bring_up();
    bed
}

fn guid(bed: &Bed, host: usize) -> Guid {
    bed.fabric.port(bed.hosts()[host], 1).unwrap().guid
}

fn lid(bed: &Bed, host: usize) -> Lid {
    bed.fabric.port(bed.hosts()[host], 1).unwrap().lid
}

/// SA LIDs named for hosts, and held by them.
fn sa_lids(bed: &Bed, hosts: &[usize]) -> Vec<SaLid> {
    hosts.iter().map(|&host| SaLid { id: guid(bed, host), port: guid(bed, host) }).collect()
}

fn spread(bed: &mut Bed, sa_lids: &[SaLid]) -> usize {
    let now = bed.clock.now();
    let moved = bed.managers[0].sweeper.spread_clients(now, sa_lids);
    bed.run_for(SECOND);
    moved
}

/// MasterSMLIDs of the ports of hosts 4 and on.
fn asked(bed: &Bed) -> Vec<Lid> {
    (4..16).map(|host| bed.fabric.port(bed.hosts()[host], 1).unwrap().master_sm_lid).collect()
}

#[test]
fn clients_ask_responders_and_everything_else_the_sm() {
    let mut bed = bed();
    let sm = lid(&bed, 0);
    assert!(asked(&bed).iter().all(|&asked| asked == sm), "no responder is there yet");
    let both = sa_lids(&bed, &[1, 2]);
    assert_eq!(spread(&mut bed, &both), 12);
    let responders: BTreeSet<Lid> = asked(&bed).into_iter().collect();
    assert_eq!(responders, BTreeSet::from([lid(&bed, 1), lid(&bed, 2)]));
    for host in 0..4 {
        let port = bed.fabric.port(bed.hosts()[host], 1).unwrap();
        assert_eq!(port.master_sm_lid, sm, "host {host} is the SM's or a responder's");
    }
    for switch in bed.switches() {
        assert_eq!(bed.fabric.port(switch, 0).unwrap().master_sm_lid, sm, "link traps arrive");
    }
}

#[test]
fn sweeps_leave_clients_where_they_are() {
    let mut bed = bed();
    let both = sa_lids(&bed, &[1, 2]);
    spread(&mut bed, &both);
    let before = asked(&bed);
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    assert_eq!(bed.bring_up().port_infos_set, 0);
    assert_eq!(asked(&bed), before);
    assert_eq!(spread(&mut bed, &both), 0);
}

#[test]
fn only_clients_of_a_lost_responder_are_asked_again() {
    let mut bed = bed();
    let (both, one) = (sa_lids(&bed, &[1, 2]), sa_lids(&bed, &[1]));
    spread(&mut bed, &both);
    let before = asked(&bed);
    let orphans = before.iter().filter(|&&asked| asked == lid(&bed, 2)).count();
    assert_eq!(spread(&mut bed, &one), orphans);
    let staying = lid(&bed, 1);
    assert!(asked(&bed).iter().all(|&asked| asked == staying));
    assert_eq!(spread(&mut bed, &[]), 12, "only the SM is left");
    let sm = lid(&bed, 0);
    assert!(asked(&bed).iter().all(|&asked| asked == sm));
}

#[test]
fn clients_asked_register_again_and_silent_ones_are_asked_later() {
    let mut bed = bed();
    let before = bed.fabric.counters().reregistrations;
    let deaf = bed.hosts()[9];
    let refusal = Refusal {
        method: Some(Method::SET),
        attribute: AttributeId::PORT_INFO,
        port: None,
        status: None,
        times: 4,
    };
    bed.fabric.refuse(deaf, refusal).unwrap();
    let both = sa_lids(&bed, &[1, 2]);
    spread(&mut bed, &both);
    assert_eq!(bed.fabric.counters().reregistrations - before, 11);
    let sm = lid(&bed, 0);
    assert_eq!(asked(&bed).iter().filter(|&&asked| asked == sm).count(), 1);
    bed.run_for(SECOND);
    assert_eq!(spread(&mut bed, &both), 1);
    let reregistrations = bed.fabric.counters().reregistrations - before;
    assert_eq!((reregistrations, asked(&bed).contains(&sm)), (12, false));
}

#[test]
fn a_trap_that_reached_a_responder_is_repressed_by_the_sm_itself() {
    let mut bed = bed();
    let client = lid(&bed, 9);
    let mut mad = [0; 256];
    smp::Request {
        method: Method::TRAP,
        attribute_id: AttributeId::NOTICE,
        attribute_modifier: 0,
        tid: 0x77,
        m_key: 0,
    }
    .write_lid_routed(&mut mad);
    SmNotice::new(&mut mad[smp::DATA])
        .unwrap()
        .set_is_generic(true)
        .set_trap_number(TrapNumber::LOCAL_CHANGES)
        .set_issuer_lid(client);
    let now = bed.clock.now();
    let sweeper = &mut bed.managers[0].sweeper;
    let repress = sweeper.handle_relayed_trap(now, &mad, client, Default::default()).unwrap();
    let smp = Smp::new(&repress.mad).unwrap();
    assert_eq!((smp.method(), smp.tid()), (Method::TRAP_REPRESS, 0x77));
    assert_eq!(repress.address.lid, client);
    bed.run_for(SECOND);
    assert_eq!(bed.managers[0].traps.len(), 1);
}

/// Fate of the old responder.
enum Death {
    /// Only its process dies: the port goes on.
    Process,
    /// Its agent answers nothing any more, but its link is up.
    Silence,
    /// It is switched off, and that has been noticed.
    Power,
}

/// Ports that are up and have the LID.
fn owners(bed: &Bed, lid: Lid) -> Vec<NodeIndex> {
    let hosts = bed.fabric.nodes().filter(|&node| {
        let view = bed.fabric.node(node);
        let port = bed.fabric.port(node, 1).unwrap();
        view.node_type == NodeType::Ca
            && view.up
            && port.lid == lid
            && port.state == PortState::Active
    });
    hosts.collect()
}

/// The spare (host 3) takes over from the responder on host 1.
fn take_over(death: &Death) -> (Bed, Lid) {
    let mut bed = bed();
    let both = sa_lids(&bed, &[1, 2]);
    spread(&mut bed, &both);
    let (clients, taken) = (asked(&bed), lid(&bed, 1));
    let old = bed.hosts()[1];
    match death {
        Death::Process => {}
        Death::Silence => {
            for attribute in [AttributeId::PORT_INFO, AttributeId::NODE_INFO] {
                let refusal =
                    Refusal { method: None, attribute, port: None, status: None, times: u32::MAX };
                bed.fabric.refuse(old, refusal).unwrap();
            }
        }
        Death::Power => {
            let now = bed.clock.now();
            bed.fabric.node_down(now, old).unwrap();
            bed.run_for(SECOND * 5);
        }
    }
    let written = Rc::new(Cell::new(0));
    let seen = Rc::clone(&written);
    bed.tamper = Some(Box::new(move |packet| {
        let smp = Smp::new(&packet.mad).unwrap();
        let is_block = smp.attribute_id() == AttributeId::LINEAR_FORWARDING_TABLE;
        seen.set(seen.get() + u32::from(is_block && smp.method().is_response()));
    }));
    let what = TakeOver { old: guid(&bed, 1), spare: guid(&bed, 3) };
    let now = bed.clock.now();
    assert_eq!(bed.managers[0].sweeper.take_over(now, what), TakeOverStart::Begun);
    bed.run_until(SECOND * 30, "taken over", |bed| {
        let owners = owners(bed, taken);
        assert!(owners.len() <= 1, "LID {taken} belongs to {owners:?}");
        !bed.managers[0].taken_over.is_empty()
    });
    assert_eq!(bed.managers[0].taken_over, [(what, true)]);
    assert_eq!(owners(&bed, taken), [bed.hosts()[3]]);
    assert!(written.get() <= bed.switches().len() as u32, "one block a switch");
    assert_eq!(asked(&bed), clients, "no client moves");

    // The sweep that follows finds all in order, and keeps it so.
    bed.run_until(SECOND * 60, "swept", |bed| {
        assert!(owners(bed, taken).len() <= 1);
        bed.sweeper().phase() == sm_core::sweep::Phase::Idle && bed.clock.now() > now + SECOND * 20
    });
    assert_eq!(owners(&bed, taken), [bed.hosts()[3]]);
    assert_eq!(asked(&bed), clients);
    (bed, taken)
}

#[test]
fn a_spare_takes_over_from_a_port_whose_process_died() {
    let (bed, taken) = take_over(&Death::Process);
    assert_ne!(lid(&bed, 1), taken);
    bed.assert_all_reachable();
}

#[test]
fn a_port_that_does_not_answer_is_cut_off_before_another_gets_its_lid() {
    let (mut bed, taken) = take_over(&Death::Silence);
    bed.fabric.refuse_nothing();
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.run_until(SECOND * 60, "the old one is back with another LID", |bed| {
        assert!(owners(bed, taken).len() <= 1);
        let port = bed.fabric.port(bed.hosts()[1], 1).unwrap();
        port.state == PortState::Active && port.lid != taken
    });
    bed.run_for(SECOND * 5);
    bed.assert_all_reachable();
}

#[test]
fn a_port_that_left_comes_back_with_another_lid() {
    let (mut bed, taken) = take_over(&Death::Power);
    let (now, old) = (bed.clock.now(), bed.hosts()[1]);
    bed.fabric.node_up(now, old).unwrap();
    bed.run_until(SECOND * 60, "the old one is back with another LID", |bed| {
        assert!(owners(bed, taken).len() <= 1);
        let port = bed.fabric.port(old, 1).unwrap();
        port.state == PortState::Active && port.lid != taken
    });
    bed.run_for(SECOND * 5);
    bed.assert_all_reachable();
}

#[test]
fn a_port_that_cannot_be_fenced_keeps_its_lid() {
    let mut bed = bed();
    let (taken, old) = (lid(&bed, 1), bed.hosts()[1]);
    let switch = bed.fabric.port(old, 1).unwrap().link.unwrap().node;
    for node in [old, switch] {
        let refusal = Refusal {
            method: Some(Method::SET),
            attribute: AttributeId::PORT_INFO,
            port: None,
            status: if node == switch { Some(Status::INVALID_FIELD) } else { None },
            times: u32::MAX,
        };
        bed.fabric.refuse(node, refusal).unwrap();
    }
    let what = TakeOver { old: guid(&bed, 1), spare: guid(&bed, 3) };
    let now = bed.clock.now();
    assert_eq!(bed.managers[0].sweeper.take_over(now, what), TakeOverStart::Begun);
    let before = lid(&bed, 3);
    bed.run_until(SECOND * 30, "given up", |bed| !bed.managers[0].taken_over.is_empty());
    assert_eq!(bed.managers[0].taken_over, [(what, false)]);
    assert_eq!((owners(&bed, taken), lid(&bed, 3)), (vec![old], before));
    bed.fabric.refuse_nothing();
    bed.run_for(SECOND * 20);
    assert_eq!((owners(&bed, taken), lid(&bed, 3)), (vec![old], before));
    bed.assert_all_reachable();
}

/// A bed in which host 1 does not answer, and host 3 is to take over its LID.
fn with_silent_responder() -> (Bed, TakeOver) {
    let mut bed = bed();
    let both = sa_lids(&bed, &[1, 2]);
    spread(&mut bed, &both);
    let old = bed.hosts()[1];
    for attribute in [AttributeId::PORT_INFO, AttributeId::NODE_INFO] {
        let refusal =
            Refusal { method: None, attribute, port: None, status: None, times: u32::MAX };
        bed.fabric.refuse(old, refusal).unwrap();
    }
    let what = TakeOver { old: guid(&bed, 1), spare: guid(&bed, 3) };
    (bed, what)
}

fn begin(bed: &mut Bed, what: TakeOver) {
    let now = bed.clock.now();
    assert_eq!(bed.managers[0].sweeper.take_over(now, what), TakeOverStart::Begun);
}

/// Runs until the host that was disconnected is back, and no port remains disabled.
fn await_return(bed: &mut Bed) {
    bed.fabric.refuse_nothing();
    bed.run_until(SECOND * 120, "the old one is back", |bed| {
        let port = bed.fabric.port(bed.hosts()[1], 1).unwrap();
        port.state == PortState::Active && bed.sweeper().disabled_ports().is_empty()
    });
    bed.run_for(SECOND * 5);
    bed.assert_all_reachable();
}

/// Regression: only a successful takeover enabled the link that it had disabled: after a failed one
/// the host stayed disconnected until an operator enabled the port.
#[test]
fn a_port_that_was_cut_off_comes_back_though_the_spare_took_nothing() {
    let (mut bed, what) = with_silent_responder();
    let spare = bed.hosts()[3];
    let (method, attribute) = (Some(Method::SET), AttributeId::PORT_INFO);
    let refusal = Refusal { method, attribute, port: None, status: None, times: 20 };
    bed.fabric.refuse(spare, refusal).unwrap();
    begin(&mut bed, what);
    bed.run_until(SECOND * 30, "given up", |bed| !bed.managers[0].taken_over.is_empty());
    assert_eq!(bed.managers[0].taken_over, [(what, false)]);
    assert_eq!(bed.sweeper().disabled_ports().len(), 1);
    await_return(&mut bed);
}

/// The switch executes the requests and its answers are lost.
#[test]
fn a_port_cut_off_unnoticed_comes_back() {
    let (mut bed, what) = with_silent_responder();
    let lossy = Rc::new(Cell::new(true));
    let is_lossy = Rc::clone(&lossy);
    bed.tamper = Some(Box::new(move |packet| {
        let smp = Smp::new(&packet.mad).unwrap();
        let disabled = smp.attribute_id() == AttributeId::PORT_INFO
            && PortInfo::new(smp.data_bytes()).unwrap().port_physical_state()
                == PortPhysState::Disabled.code();
        if disabled && is_lossy.get() {
            packet.mad[..4].fill(0);
        }
    }));
    begin(&mut bed, what);
    bed.run_until(SECOND * 30, "given up", |bed| !bed.managers[0].taken_over.is_empty());
    assert_eq!(bed.managers[0].taken_over, [(what, false)]);
    lossy.set(false);
    await_return(&mut bed);
}

/// The SM dies while the port is disabled: the next run reads the port's number from the state
/// directory.
#[test]
fn a_port_that_was_cut_off_comes_back_after_a_restart() {
    let (mut bed, what) = with_silent_responder();
    begin(&mut bed, what);
    bed.run_until(SECOND * 30, "cut", |bed| !bed.sweeper().disabled_ports().is_empty());
    bed.run_for(Duration::from_millis(1));
    let before = bed.crash_manager();
    let host = bed.hosts()[0];
    bed.manage(host, Settings::default(), before.sweeper.lids().clone());
    bed.managers[0].sweeper.set_disabled_ports(before.sweeper.disabled_ports().clone());
    await_return(&mut bed);
}
