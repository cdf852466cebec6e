//! Set(SMInfo) of subnet managers that are not known, or not as masters.

use std::time::Duration;

use crate::common::Bed;
use crate::handover::{MINUTE, join, of_priority, ruled};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{SmControl, SmInfo, SmState};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{self, Smp};
use sm_config::Settings;
use sm_core::sweep::Cause;

/// Set(SMInfo) with HANDOVER, as the master at the port with this GUID and LID sends it.
fn handover_from(guid: Guid, lid: Lid) -> Packet {
    let mut packet = Packet::to(Address::smi(lid));
    let (method, attribute_id) = (Method::SET, AttributeId::SM_INFO);
    let attribute_modifier = SmControl::Handover as u32;
    smp::Request { method, attribute_id, attribute_modifier, tid: 99, m_key: 0 }
        .write_lid_routed(&mut packet.mad);
    SmInfo::new(&mut packet.mad[smp::DATA])
        .unwrap()
        .set_guid(guid)
        .set_sm_key(Settings::default().sm_key)
        .set_sm_state(SmState::Master);
    packet
}

/// A port at which a standby is known; its GUID and LID.
fn standby(bed: &mut Bed, host: usize) -> (Guid, Lid) {
    join(bed, host, of_priority(0));
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.run_for(MINUTE);
    let port = bed.fabric.port(bed.hosts()[host], 1).unwrap();
    (port.guid, port.lid)
}

/// Lets the manager at the port with this GUID answer as master from now on.
fn answers_as_master(bed: &mut Bed, guid: Guid) {
    bed.tamper = Some(Box::new(move |packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        if (smp.method(), smp.attribute_id()) == (Method::GET_RESP, AttributeId::SM_INFO) {
            let mut info = SmInfo::new(&mut packet.mad[smp::DATA]).unwrap();
            if info.guid() == guid {
                info.set_sm_state(SmState::Master);
            }
        }
    }));
}

/// A port at which a second master is known; its GUID and LID.
fn rival(bed: &mut Bed, host: usize) -> (Guid, Lid) {
    let (guid, lid) = standby(bed, host);
    answers_as_master(bed, guid);
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.run_for(MINUTE);
    (guid, lid)
}

/// Regression: a HANDOVER of a manager that was known as a standby cost a full sweep and the
/// registrations of all clients.
#[test]
fn a_known_manager_hands_over_only_if_it_answers_as_master() {
    let mut bed = ruled();
    let (guid, lid) = standby(&mut bed, 9);
    let before = bed.reports().len();
    let hand_over = |bed: &mut Bed| {
        let (now, mut packet) = (bed.clock.now(), handover_from(guid, lid));
        let is_answered = bed.managers[0].sweeper.handle_packet(now, &mut packet);
        bed.run_for(Duration::from_secs(2));
        is_answered
    };
    assert!((0..20).all(|_| !hand_over(&mut bed)), "it answers as standby");
    assert!(bed.reports()[before..].iter().all(|report| report.cause != Some(Cause::TakeOver)));
    answers_as_master(&mut bed, guid);
    assert!(!hand_over(&mut bed), "it is asked first");
    assert!(hand_over(&mut bed));
    bed.bring_up();
    assert!(bed.reports()[before..].iter().any(|report| report.cause == Some(Cause::TakeOver)));
}

/// Regression: IsSM was enough to hand over, and as such a port was not found by the sweep that
/// followed, it could do so again and again: all clients were asked to register again each time.
#[test]
fn a_port_that_has_issm_set_and_answers_nothing_is_no_manager() {
    let mut bed = ruled();
    let host = bed.hosts()[9];
    let (endpoint, now) = (bed.fabric.attach(host, 0).unwrap(), bed.clock.now());
    bed.fabric.set_is_sm(now, endpoint, true);
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.run_for(MINUTE);
    let port = bed.fabric.port(host, 1).unwrap();
    let before = bed.reports().len();
    for _ in 0..20 {
        let now = bed.clock.now();
        let mut packet = handover_from(port.guid, port.lid);
        assert!(!bed.managers[0].sweeper.handle_packet(now, &mut packet), "it is not answered");
        bed.run_for(Duration::from_secs(5));
    }
    assert!(bed.reports()[before..].iter().all(|report| report.cause != Some(Cause::TakeOver)));
}

/// Regression: with HANDOVERs from any port, in the name of ever other GUIDs, the master was never
/// up, swept nothing, and wrote 10,000 log lines a second.
#[test]
fn handovers_of_unknown_managers_change_nothing() {
    let mut bed = ruled();
    let before = bed.reports().len();
    let place = bed.fabric.port(bed.hosts()[9], 1).unwrap();
    for number in 0..500 {
        let now = bed.clock.now();
        let guid = if number % 2 == 0 { place.guid } else { Guid(0x1000 + number) };
        let mut packet = handover_from(guid, place.lid);
        assert!(!bed.managers[0].sweeper.handle_packet(now, &mut packet), "it is not answered");
        bed.run_for(Duration::from_millis(50));
        assert!(bed.sweeper().is_up());
    }
    assert_eq!(bed.sweeper().unanswered_demands(), 500);
    assert!(bed.reports()[before..].iter().all(|report| report.cause != Some(Cause::TakeOver)));
    // A manager that is known there costs a sweep, and no more.
    let (guid, lid) = rival(&mut bed, 9);
    let before = bed.reports().len();
    let now = bed.clock.now();
    let hand_over = |bed: &mut Bed| {
        let mut packet = handover_from(guid, lid);
        bed.managers[0].sweeper.handle_packet(now, &mut packet)
    };
    assert!((0..500).all(|_| hand_over(&mut bed)), "those without effect are answered, too");
    bed.bring_up();
    assert_eq!(bed.reports()[before..].len(), 1);
}

/// Regression: the sweep in progress continued with its plan discarded, and its result was
/// published; the sweep that followed did not read the tables of the other manager's switches.
#[test]
fn a_handover_in_the_middle_of_a_sweep_ends_it_and_begins_one_of_all() {
    let mut smps = 0;
    loop {
        let mut bed = ruled();
        let (guid, lid) = rival(&mut bed, 9);
        let now = bed.clock.now();
        let before = bed.reports().len();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        let begin = bed.sweeper().counters().transmitted;
        bed.run_until(MINUTE, "the middle of a sweep", |bed| {
            bed.sweeper().counters().transmitted - begin >= smps || bed.reports().len() > before
        });
        if bed.reports().len() > before {
            break;
        }
        let now = bed.clock.now();
        for _ in 0..2 {
            // Not heard, it is said again.
            let mut packet = handover_from(guid, lid);
            assert!(bed.managers[0].sweeper.handle_packet(now, &mut packet));
            assert_eq!(Smp::new(&packet.mad).unwrap().status(), Status::OK);
            assert_eq!(bed.sweeper().outstanding(), 1, "nothing but the acknowledgement");
        }
        let tables: Vec<_> =
            bed.switches().iter().map(|&n| bed.fabric.node(n).lft.to_vec()).collect();
        let report = bed.bring_up();
        assert!(report.first && report.full, "after {smps} SMPs: {report}");
        assert_eq!(report.cause, Some(Cause::TakeOver));
        assert_eq!(bed.reports().len(), before + 1, "after {smps} SMPs");
        let after: Vec<_> =
            bed.switches().iter().map(|&n| bed.fabric.node(n).lft.to_vec()).collect();
        assert_eq!(after, tables, "what was right stays");
        bed.assert_all_reachable();
        smps += 9;
    }
    assert!(smps > 100);
}
