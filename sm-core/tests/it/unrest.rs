//! Continuous activity: endless traps, links without a node that answers, and subnet managers that
//! come and go.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::{Endpoint, NodeIndex, Probability};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::{SmControl, SmInfo, SmNotice, SmState, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{DATA, Request, Smp};
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::smp::Kind;
use sm_core::sweep::Phase;

const MINUTE: Duration = Duration::from_secs(60);

/// The far end of a node's port.
fn far_end(bed: &Bed, node: NodeIndex, port: u8) -> (NodeIndex, u8) {
    let link = bed.fabric.port(node, port).unwrap().link.unwrap();
    (link.node, link.port)
}

/// Sets something at the node with LID `lid`.
fn set(bed: &mut Bed, from: Endpoint, lid: Lid, attribute: (AttributeId, u32), data: [u8; 64]) {
    let mut packet = Packet::to(Address::smi(lid));
    Request {
        method: Method::SET,
        attribute_id: attribute.0,
        attribute_modifier: attribute.1,
        tid: 0x5e7,
        m_key: 0,
    }
    .write_lid_routed(&mut packet.mad);
    packet.mad[DATA].copy_from_slice(&data);
    let now = bed.clock.now();
    bed.fabric.send(now, from, &packet);
}

/// Sends Set(SMInfo) `control` to the subnet manager with LID `lid`.
fn command(bed: &mut Bed, from: Endpoint, guid: Guid, lid: Lid, control: SmControl) {
    let mut data = [0; 64];
    // Only a master has anything to command.
    let mut info = SmInfo::new(&mut data).unwrap();
    info.set_guid(guid).set_sm_key(Settings::default().sm_key).set_sm_state(SmState::Master);
    set(bed, from, lid, (AttributeId::SM_INFO, control as u32), data);
}

/// The ports by which a request of the manager `from` reaches the host `to`.
fn path_between(bed: &Bed, from: usize, to: NodeIndex) -> Vec<PortNum> {
    let guid = bed.fabric.port(to, 1).unwrap().guid;
    let fabric = bed.managers[from].sweeper.fabric();
    let port = fabric.end_ports().find(|&port| fabric.port(port).guid == guid).unwrap();
    fabric.route_to(port).unwrap().ports().to_vec()
}

/// The same along a directed route, as subnet managers send it.
fn command_along(bed: &mut Bed, from: Endpoint, guid: Guid, path: &[PortNum], control: SmControl) {
    let mut packet = Packet::to(Address::smi(Lid::PERMISSIVE));
    let (method, attribute_id) = (Method::SET, AttributeId::SM_INFO);
    Request { method, attribute_id, attribute_modifier: control as u32, tid: 0x5e8, m_key: 0 }
        .write_directed(&mut packet.mad, path)
        .unwrap();
    let mut info = SmInfo::new(&mut packet.mad[DATA]).unwrap();
    info.set_guid(guid).set_sm_key(Settings::default().sm_key).set_sm_state(SmState::Master);
    let now = bed.clock.now();
    bed.fabric.send(now, from, &packet);
}

/// With no light sweep to help, the trap alone must do.
#[test]
fn a_trap_is_acted_on_while_a_link_stays_unanswered() {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    let (first, mute) = (bed.hosts()[0], bed.hosts()[19]);
    let (leaf, port) = far_end(&bed, mute, 1);
    bed.fabric.set_loss(Some((leaf, port)), Probability::new(1.0).unwrap()).unwrap();
    let settings = Settings { sweep_interval: 0, ..Settings::default() };
    bed.manage(first, settings, LidTable::default());
    assert_eq!(bed.bring_up().unanswered, 1);
    let spine = *bed.switches().last().unwrap();
    let port = (1..8).find(|&port| far_end(&bed, spine, port).0 != leaf).unwrap();
    let now = bed.clock.now();
    bed.fabric.link_down(now, spine, port).unwrap();
    bed.run_for(Duration::from_millis(300));
    bed.assert_sound();
    assert_eq!(bed.sweeper().phase(), Phase::Idle);

    // Nor is the silent one forgotten for that.
    bed.fabric.set_loss(None, Probability::NEVER).unwrap();
    bed.fabric.set_loss(Some((mute, 1)), Probability::NEVER).unwrap();
    bed.run_until(MINUTE, "the last host", |bed| bed.sweeper().fabric().counts().0 == 20);
}

#[test]
fn a_flapping_link_neither_keeps_the_fabric_busy_nor_hides_other_changes() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let spine = *bed.switches().last().unwrap();
    let ends = [spine, far_end(&bed, spine, 1).0];
    let issuers = ends.map(|node| bed.fabric.port(node, 0).unwrap().lid);
    let other = bed.hosts().into_iter().find(|&host| far_end(&bed, host, 1).0 != ends[1]);
    let other = other.filter(|&host| host != bed.hosts()[0]).unwrap_or(bed.hosts()[19]);
    // Only traps from the ends of that link get through.
    bed.tamper = Some(Box::new(move |packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        let is_trap = smp.method() == Method::TRAP;
        if is_trap && !issuers.contains(&SmNotice::new(smp.data_bytes()).unwrap().issuer_lid()) {
            packet.mad[..4].fill(0);
        }
    }));
    let before = bed.reports().len();
    let now = bed.clock.now();
    let (leaf, port) = far_end(&bed, other, 1);
    bed.fabric.link_down(now, leaf, port).unwrap();
    for _ in 0..400 {
        let now = bed.clock.now();
        bed.fabric.link_down(now, spine, 1).unwrap();
        bed.run_for(Duration::from_millis(15));
        let now = bed.clock.now();
        bed.fabric.link_up(now, spine, 1).unwrap();
        bed.run_for(Duration::from_millis(15));
    }
    let sweeps = bed.reports().len() - before;
    assert!((5..60).contains(&sweeps), "{sweeps} sweeps in 12 s");
    assert_eq!(bed.sweeper().fabric().counts().0, 19, "the light sweep was not put off");
    bed.run_for(Duration::from_secs(3));
    bed.assert_all_reachable();
}

#[test]
fn a_master_that_returns_writes_every_table_again() {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    let (first, second) = (bed.hosts()[3], bed.hosts()[14]);
    bed.manage(first, Settings::default(), LidTable::default());
    bed.bring_up();
    let lids = LidTable::parse(&bed.sweeper().lids().render()).0;
    let usurper = Settings { sm_priority: 15, ignore_other_sm: true, ..Settings::default() };
    bed.manage(second, usurper, lids);
    bed.run_until(MINUTE, "second master", |bed| bed.managers[1].sweeper.is_up());
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.run_until(MINUTE, "standby", |bed| bed.managers[0].standing_by.is_some());
    // The handed-over subnet is swept before it is disturbed.
    bed.run_for(Duration::from_secs(1));
    let spine = *bed.switches().last().unwrap();
    let lid = bed.fabric.port(spine, 0).unwrap().lid;
    let from = bed.managers[1].endpoint;
    set(&mut bed, from, lid, (AttributeId::LINEAR_FORWARDING_TABLE, 0), [255; 64]);
    bed.run_for(Duration::from_millis(10));
    assert_eq!(bed.fabric.node(spine).lft[..64], [255; 64], "the table was spoilt");
    bed.crash_manager();
    bed.run_until(MINUTE * 2, "take-over", |bed| bed.sweeper().is_up());
    assert_eq!(bed.sweeper().sm_state(), SmState::Master);
    bed.assert_all_reachable();
}

#[test]
fn a_disabled_manager_rests_until_it_is_to_stand_by_and_then_takes_over() {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    let (master, standby, stranger) = (bed.hosts()[14], bed.hosts()[3], bed.hosts()[7]);
    let guid_of = |bed: &Bed, host| bed.fabric.port(host, 1).unwrap().guid;
    bed.manage(standby, Settings { sm_priority: 1, ..Settings::default() }, LidTable::default());
    bed.manage(master, Settings { sm_priority: 2, ..Settings::default() }, LidTable::default());
    bed.run_until(MINUTE, "standby", |bed| {
        bed.managers[0].standing_by.is_some() && bed.managers[1].sweeper.is_up()
    });
    let lid = bed.fabric.local_lid(bed.managers[0].endpoint).unwrap();
    // From another port it has no effect, even with the GUID of the master.
    let (from, guid) = (bed.fabric.attach(stranger, 0).unwrap(), guid_of(&bed, stranger));
    for guid in [guid, guid_of(&bed, master)] {
        command(&mut bed, from, guid, lid, SmControl::Disable);
        bed.run_for(Duration::from_secs(1));
        assert_eq!(bed.sweeper().sm_state(), SmState::Standby);
    }
    let (from, guid) = (bed.managers[1].endpoint, guid_of(&bed, master));
    // The standby does not know the LIDs that the master assigned. The path says where it is.
    command(&mut bed, from, guid, lid, SmControl::Disable);
    bed.run_for(Duration::from_secs(1));
    assert_eq!(bed.sweeper().sm_state(), SmState::Standby);
    let path = path_between(&bed, 1, standby);
    command_along(&mut bed, from, guid, &path, SmControl::Disable);
    // The master sees it with its next light sweep.
    bed.run_for(Duration::from_secs(11));
    assert_eq!(bed.sweeper().sm_state(), SmState::NotActive);
    let peers = bed.managers[1].sweeper.peers(bed.clock.now());
    assert!(peers.iter().all(|peer| peer.state == SmState::NotActive) && peers.len() == 1);
    assert_eq!(bed.managers[1].sweeper.inactive_managers(), 1);
    bed.run_for(MINUTE);
    bed.fabric.set_takes_requests(bed.managers[1].endpoint, false);
    bed.managers[1].stopped = true;
    bed.run_for(MINUTE * 2);
    assert_eq!(bed.sweeper().sm_state(), SmState::NotActive, "it rests");
    command_along(&mut bed, from, guid, &path, SmControl::Standby);
    bed.run_until(MINUTE * 2, "take-over", |bed| bed.sweeper().is_up());
    assert_eq!(bed.sweeper().sm_state(), SmState::Master);
    bed.assert_all_reachable();
}

#[test]
fn a_routing_that_fails_is_an_error_and_tried_again_ever_less_often() {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    bed.failing_routings = 3;
    let host = bed.hosts()[0];
    let begun = bed.clock.now();
    bed.manage(host, Settings::default(), LidTable::default());
    bed.bring_up();
    assert_eq!(bed.failing_routings, 0);
    let failed = bed.reports().iter().filter(|report| report.errors > 0).count();
    assert_eq!(failed, 3);
    assert!(bed.clock.now() - begun >= Duration::from_secs(1 + 2 + 4));
    bed.assert_all_reachable();
}

#[test]
fn a_fabric_replaced_while_unreachable_is_reconfigured() {
    let settings = Settings { sweep_interval: 0, sweep_on_trap: false, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    let before = bed.end_ports();
    for node in bed.fabric.nodes() {
        let now = bed.clock.now();
        bed.fabric.reboot(now, node).unwrap();
    }
    let now = bed.clock.now();
    bed.managers[0].sweeper.restart(now);
    assert!(!bed.sweeper().is_up());
    let report = bed.bring_up();
    assert!(report.first && report.full, "{report:?}");
    assert_eq!(bed.end_ports(), before);
    bed.assert_all_reachable();
}

/// Regression: each change was delayed by an SM whose host had died while its port stayed up with
/// IsSM set.
#[test]
fn a_standby_that_has_fallen_silent_holds_no_change_up_and_is_a_rival_once_it_speaks() {
    let of_priority = |sm_priority| Settings { sm_priority, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), of_priority(3));
    bed.bring_up();
    let host = bed.hosts()[14];
    bed.manage(host, of_priority(2), LidTable::default());
    bed.run_until(MINUTE, "a standby", |bed| bed.managers[1].standing_by.is_some());
    bed.managers[1].stopped = true;
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    assert!(bed.clock.now() - now > Duration::from_millis(500), "a sweep of all asks it");
    let spine = *bed.switches().last().unwrap();
    for port in 1..=3 {
        let (now, before) = (bed.clock.now(), bed.reports().len());
        bed.fabric.link_down(now, spine, port).unwrap();
        bed.run_until(MINUTE, "the cut is mended", |bed| bed.reports().len() > before);
        let took = bed.clock.now() - now;
        assert!(took < Duration::from_millis(200), "it took {took:?}");
    }
    let now = bed.clock.now();
    bed.managers[1].stopped = false;
    bed.managers[1].sweeper.set_priority(9);
    let end = now + Duration::from_secs(15);
    bed.run_until(MINUTE, "the other rules", |bed| {
        bed.managers[1].sweeper.sm_state() == SmState::Master && bed.managers[1].sweeper.is_up()
    });
    assert!(bed.clock.now() < end, "its next poll asks for the subnet");
    assert_eq!(bed.managers[0].sweeper.sm_state(), SmState::Standby);
}

/// Regression: two masters that each missed the other's answer coexisted until a trap arrived.
#[test]
fn without_light_sweeps_a_subnet_manager_that_is_unresponsive_is_asked_again_too() {
    let settings = Settings { sm_priority: 3, sweep_interval: 0, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    let host = bed.hosts()[14];
    bed.manage(host, Settings { sm_priority: 2, ..Settings::default() }, LidTable::default());
    bed.run_until(MINUTE, "a standby", |bed| bed.managers[1].standing_by.is_some());
    bed.managers[1].stopped = true;
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    let given_up = bed.sweeper().passed(Kind::SmInfo).given_up;
    let light = bed.sweeper().passed(Kind::PortChange);
    bed.run_for(MINUTE * 3);
    assert!(bed.sweeper().passed(Kind::SmInfo).given_up >= given_up + 2);
    bed.managers[1].stopped = false;
    bed.run_until(MINUTE * 2, "it is known again", |bed| {
        bed.sweeper().peers(bed.clock.now()).len() == 1
    });
    assert_eq!(bed.sweeper().passed(Kind::PortChange), light, "no switch is asked");
}

/// A trap does not wait for it either, as it is asked again.
#[test]
fn a_subnet_manager_that_is_unresponsive_is_asked_again_and_holds_no_trap_up() {
    let settings = Settings { sm_priority: 3, sweep_interval: 10, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    let host = bed.hosts()[14];
    bed.manage(host, Settings { sm_priority: 2, ..Settings::default() }, LidTable::default());
    bed.run_until(MINUTE, "a standby", |bed| bed.managers[1].standing_by.is_some());
    bed.managers[1].stopped = true;
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    assert_eq!(bed.sweeper().peers(now).len(), 0);
    let asked = |bed: &Bed| bed.sweeper().passed(Kind::SmInfo).sent;
    let before = asked(&bed);
    bed.run_until(MINUTE * 2, "it is asked again", |bed| asked(bed) > before);
    // All switches have reported by then that nothing changed.
    bed.run_for(Duration::from_millis(50));
    assert_eq!(bed.sweeper().phase(), Phase::Light);
    let (now, before) = (bed.clock.now(), bed.reports().len());
    let spine = *bed.switches().last().unwrap();
    bed.fabric.link_down(now, spine, 1).unwrap();
    bed.run_until(MINUTE, "the cut is mended", |bed| bed.reports().len() > before);
    let took = bed.clock.now() - now;
    assert!(took < Duration::from_millis(300), "it took {took:?}");
    bed.managers[1].stopped = false;
    bed.run_until(MINUTE * 2, "it is known again", |bed| {
        bed.sweeper().peers(bed.clock.now()).len() == 1
    });
}

/// NodeInfo of known nodes is read only by full sweeps.
#[test]
fn a_new_system_image_guid_is_known_by_its_trap() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    for (node, image) in [(bed.hosts()[5], 0x501), (bed.switches()[2], 0x502)] {
        let (now, before) = (bed.clock.now(), bed.reports().len());
        bed.fabric.set_system_image_guid(now, node, Guid(image)).unwrap();
        bed.run_until(MINUTE, "a sweep for its trap", |bed| bed.reports().len() > before);
        let fabric = bed.sweeper().fabric();
        let known = fabric.find(bed.fabric.node(node).guid).unwrap();
        assert_eq!(fabric.node(known).node_info().system_image_guid(), Guid(image));
        assert!(!bed.reports().last().unwrap().full);
    }
}

/// Regression: traps with invented LIDs filled the table of issuers, and the repair of a link
/// waited for 8 s.
#[test]
fn traps_of_invented_ports_do_not_hide_those_of_switches() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let invent = |bed: &mut Bed| {
        for lid in 20_000..23_000 {
            let lid = Lid(lid);
            let mut packet = Packet::to(Address::smi(lid));
            let (method, attribute_id) = (Method::TRAP, AttributeId::NOTICE);
            Request { method, attribute_id, attribute_modifier: 0, tid: 7, m_key: 0 }
                .write_lid_routed(&mut packet.mad);
            SmNotice::new(&mut packet.mad[DATA])
                .unwrap()
                .set_is_generic(true)
                .set_trap_number(TrapNumber::LINK_STATE_CHANGE)
                .set_issuer_lid(lid);
            let now = bed.clock.now();
            bed.managers[0].sweeper.handle_packet(now, &mut packet);
        }
    };
    for _ in 0..5 {
        invent(&mut bed);
        bed.run_for(Duration::from_millis(200));
    }
    let spine = *bed.switches().last().unwrap();
    let now = bed.clock.now();
    bed.fabric.link_down(now, spine, 1).unwrap();
    for _ in 0..5 {
        invent(&mut bed);
        bed.run_for(Duration::from_millis(100));
    }
    bed.assert_sound();
}
