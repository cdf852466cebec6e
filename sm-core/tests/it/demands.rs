//! Set(SMInfo) of subnet managers that are not known, or not as masters.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use crate::handover::{Log, MINUTE, join, of_priority, ruled};
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::{NoticeType, SmControl, SmInfo, SmNotice, SmState, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{self, Smp};
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::sweep::Cause;

fn request(control: SmControl) -> smp::Request {
    let (method, attribute_id) = (Method::SET, AttributeId::SM_INFO);
    smp::Request { method, attribute_id, attribute_modifier: control as u32, tid: 99, m_key: 0 }
}

/// Fills in the SMInfo of the master at the port with this GUID.
fn show(packet: &mut Packet, guid: Guid, state: SmState) {
    SmInfo::new(&mut packet.mad[smp::DATA])
        .unwrap()
        .set_guid(guid)
        .set_sm_key(Settings::default().sm_key)
        .set_sm_state(state);
}

/// Set(SMInfo) as a manager at a host sends it along a directed route, on arrival at the first
/// manager; it shows this GUID.
fn demand_from(bed: &Bed, host: usize, control: SmControl, guid: Guid) -> Packet {
    let fabric = bed.sweeper().fabric();
    let at = bed.fabric.port(bed.hosts()[host], 1).unwrap().guid;
    let port = fabric.end_ports().find(|&port| fabric.port(port).guid == at).unwrap();
    // The way back leaves by the ports by which the request arrives.
    let mut arrivals = fabric.route_to(port).unwrap().ports().to_vec();
    arrivals.reverse();
    let mut packet = Packet::to(Address::smi(Lid::PERMISSIVE));
    request(control).write_directed(&mut packet.mad, &arrivals).unwrap();
    let mut smp = Smp::of_mut(&mut packet.mad);
    smp.set_hop_pointer(arrivals.len() as u8 + 1);
    let mut path = [0; 64];
    for (at, num) in arrivals.iter().enumerate() {
        path[at + 1] = num.0;
    }
    smp.set_return_path(path);
    let state = if control == SmControl::Acknowledge { SmState::Standby } else { SmState::Master };
    show(&mut packet, guid, state);
    packet
}

/// HANDOVER by the manager at a host.
fn handover_from(bed: &Bed, host: usize, guid: Guid) -> Packet {
    demand_from(bed, host, SmControl::Handover, guid)
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
    let (guid, _) = standby(&mut bed, 9);
    let before = bed.reports().len();
    let hand_over = |bed: &mut Bed| {
        let (now, mut packet) = (bed.clock.now(), handover_from(bed, 9, guid));
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
        let mut packet = handover_from(&bed, 9, port.guid);
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
        let mut packet = handover_from(&bed, 9, guid);
        assert!(!bed.managers[0].sweeper.handle_packet(now, &mut packet), "it is not answered");
        bed.run_for(Duration::from_millis(50));
        assert!(bed.sweeper().is_up());
    }
    assert_eq!(bed.sweeper().unanswered_demands(), 500);
    assert!(bed.reports()[before..].iter().all(|report| report.cause != Some(Cause::TakeOver)));
    // A manager that is known there costs a sweep, and no more.
    let (guid, _) = rival(&mut bed, 9);
    let before = bed.reports().len();
    let now = bed.clock.now();
    let hand_over = |bed: &mut Bed| {
        let mut packet = handover_from(bed, 9, guid);
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
        let (guid, _) = rival(&mut bed, 9);
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
            let mut packet = handover_from(&bed, 9, guid);
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

/// Regression: a host that set the LID of its port to that of the master disabled a standby that
/// knew LIDs, or made it master beside the living one, with one packet.
#[test]
fn a_demand_by_lid_has_no_effect() {
    let mut bed = ruled();
    let (guid, lid) = rival(&mut bed, 9);
    let before = bed.reports().len();
    for control in [SmControl::Handover, SmControl::Acknowledge, SmControl::Disable] {
        let mut packet = Packet::to(Address::smi(lid));
        request(control).write_lid_routed(&mut packet.mad);
        show(&mut packet, guid, SmState::Master);
        let now = bed.clock.now();
        assert!(!bed.managers[0].sweeper.handle_packet(now, &mut packet), "{control:?}");
        bed.run_for(Duration::from_secs(2));
    }
    assert!(bed.reports()[before..].iter().all(|report| report.cause != Some(Cause::TakeOver)));
}

/// Regression: a host that answers as a master of lower rank had all clients register again, once
/// every 10 s.
#[test]
fn a_master_that_hands_over_again_and_again_is_accepted_a_few_times() {
    let mut bed = ruled();
    let (guid, _) = rival(&mut bed, 9);
    let before = bed.sweeper().tenure();
    for _ in 0..120 {
        let (now, mut packet) = (bed.clock.now(), handover_from(&bed, 9, guid));
        bed.managers[0].sweeper.handle_packet(now, &mut packet);
        bed.run_for(Duration::from_secs(10));
    }
    let terms = bed.sweeper().tenure() - before;
    assert!((1..=6).contains(&terms), "{terms} new terms in 20 minutes");
}

/// Regression: HANDOVER by any port during a discovery, in the name of any GUID, had it begin
/// again, and all clients register again after it.
#[test]
fn a_handover_during_a_discovery_counts_if_a_manager_is_found_there() {
    for is_manager in [false, true] {
        let mut bed = ruled();
        let (guid, _) = standby(&mut bed, 9);
        let (claimed, packet): (Guid, Packet) = match is_manager {
            true => (guid, handover_from(&bed, 9, guid)),
            false => {
                let other = bed.fabric.port(bed.hosts()[7], 1).unwrap().guid;
                (other, handover_from(&bed, 7, other))
            }
        };
        let lids = LidTable::parse(&bed.crash(0).sweeper.lids().render()).0;
        let host = bed.hosts()[3];
        bed.manage(host, of_priority(9), lids);
        let last = bed.managers.len() - 1;
        let now = bed.clock.now();
        let log = Log::default();
        log.keep(|| {
            for _ in 0..20 {
                let sweeper = &mut bed.managers[last].sweeper;
                let is_answered = sweeper.handle_packet(now, &mut packet.clone());
                assert!(is_answered, "the sender may be one that steps down now: {claimed}");
            }
            bed.run_for(MINUTE);
        });
        assert!(bed.managers[last].sweeper.is_up());
        let text = log.text();
        assert_eq!(text.contains("handed over to this one during the"), is_manager, "{text}");
        assert_eq!(text.contains("asking all clients to register again"), is_manager, "{text}");
    }
}

/// Regression: a host that answers as a standby of higher rank and does not acknowledge a handover
/// delayed the repair of each link by the time of an unanswered request.
#[test]
fn a_manager_that_acknowledges_no_handover_is_offered_it_rarely() {
    let mut bed = ruled();
    join(&mut bed, 9, of_priority(15));
    let offered = Rc::new(Cell::new(0));
    let count = offered.clone();
    bed.tamper = Some(Box::new(move |packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        let is_offer = smp.method() == Method::SET
            && smp.attribute_id() == AttributeId::SM_INFO
            && smp.attribute_modifier() == SmControl::Handover as u32;
        if is_offer {
            count.set(count.get() + 1);
            // It is lost.
            packet.mad[..4].fill(0);
        }
    }));
    for _ in 0..360 {
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_for(Duration::from_secs(10));
    }
    assert!(bed.sweeper().is_up());
    let retries = 4;
    let offers = offered.get() / retries;
    assert!((3..=12).contains(&offers), "{offers} offers in an hour of 360 sweeps");
}

/// Regression: a host that set IsSM was shown the M_Key of the subnet in the header of Get(SMInfo).
#[test]
fn what_managers_are_sent_shows_neither_the_m_key_nor_the_sm_key() {
    for is_named in [false, true] {
        let mut bed = Bed::new(&fat_tree(2, 8, 20));
        let settings = || Settings { m_key: 0xFEED, m_key_protection_level: 2, ..of_priority(3) };
        let (first, second) = (bed.hosts()[3], bed.hosts()[9]);
        bed.manage(first, settings(), LidTable::default());
        bed.bring_up();
        let guid = bed.fabric.port(second, 1).unwrap().guid;
        if is_named {
            bed.managers[0].sweeper.allow_managers([guid].into());
        }
        let shown = Rc::new(Cell::new((0, 0)));
        let seen = shown.clone();
        bed.tamper = Some(Box::new(move |packet| {
            let Ok(smp) = Smp::new(&packet.mad) else { return };
            let is_request = matches!(smp.method(), Method::GET | Method::SET);
            if is_request && smp.attribute_id() == AttributeId::SM_INFO {
                let (m_keys, sm_keys) = seen.get();
                let info = SmInfo::new(smp.data_bytes()).unwrap();
                let has_m_key = u32::from(smp.m_key() == 0xFEED);
                let has_sm_key = u32::from(info.sm_key() == Settings::default().sm_key);
                seen.set((m_keys + has_m_key, sm_keys + has_sm_key));
            }
        }));
        // Managers with the same keys know each other all the same, and those with others do not.
        bed.manage(second, settings(), LidTable::default());
        bed.run_for(MINUTE);
        let states: Vec<_> =
            bed.managers.iter().map(|manager| manager.sweeper.sm_state()).collect();
        assert_eq!(states.iter().filter(|state| **state == SmState::Master).count(), 1);
        assert_eq!(bed.managers[0].sweeper.foreign_sms().count(), 0);
        assert_eq!(shown.get().1, 0);
        assert_eq!(shown.get().0 > 0, is_named, "OpenSM shows its key only for the M_Key");
    }
}

/// Regression: TrapRepress showed the M_Key to the program that had sent the trap.
#[test]
fn a_trap_of_a_host_is_not_answered_with_the_m_key() {
    for m_key in [0, 0xFEED] {
        let settings = Settings { m_key, m_key_protection_level: 2, ..of_priority(3) };
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
        bed.bring_up();
        let (host, switch) = (bed.hosts()[9], bed.switches()[0]);
        for (node, num) in [(host, 1), (switch, 0)] {
            let lid = bed.fabric.port(node, num).unwrap().lid;
            let mut packet = Packet::to(Address::smi(lid));
            let (method, attribute_id) = (Method::TRAP, AttributeId::NOTICE);
            smp::Request { method, attribute_id, attribute_modifier: 0, tid: 7, m_key: 0 }
                .write_lid_routed(&mut packet.mad);
            SmNotice::new(&mut packet.mad[smp::DATA])
                .unwrap()
                .set_is_generic(true)
                .set_notice_type(NoticeType::INFORMATIONAL)
                .set_trap_number(TrapNumber::LOCAL_CHANGES)
                .set_issuer_lid(lid);
            let now = bed.clock.now();
            let is_answered = bed.managers[0].sweeper.handle_packet(now, &mut packet);
            assert_eq!(is_answered, m_key == 0 || node == switch);
            let shown = Smp::new(&packet.mad).unwrap().m_key();
            assert_eq!(shown, if node == switch { m_key } else { 0 });
        }
    }
}

/// Two switches with a host each, and one with a port at both.
fn with_dual_port_host() -> Net {
    let mut net = Net::new();
    let kinds =
        [(NodeKind::Switch, 4), (NodeKind::Switch, 4), (NodeKind::Ca, 1), (NodeKind::Ca, 1)];
    for (guid, (kind, ports)) in
        (0x10..).step_by(0x10).zip(kinds.into_iter().chain([(NodeKind::Ca, 2)]))
    {
        let mut node = Node::new(kind, Guid(guid), ports, LinkRate::default());
        node.id = format!("node{guid:x}");
        for num in (1..=ports).filter(|_| kind == NodeKind::Ca) {
            node.port_mut(num).unwrap().guid = Guid(guid + u64::from(num));
        }
        net.add_node(node);
    }
    let links =
        [((0, 1), (1, 1)), ((2, 1), (0, 2)), ((3, 1), (1, 2)), ((4, 1), (0, 3)), ((4, 2), (1, 3))];
    let end = |(node, port)| PortRef { node, port };
    links.into_iter().for_each(|(a, b)| net.connect(end(a), end(b)).unwrap());
    net
}

/// Regression: the path that a request recorded was followed through adapters: a host with two
/// ports could begin the path of its own request at any other port, and speak for the master.
#[test]
fn a_path_through_an_adapter_is_not_that_of_the_manager_at_its_end() {
    let mut bed = Bed::new(&with_dual_port_host());
    let [standby, master] = [0, 1].map(|host| bed.hosts()[host]);
    bed.manage(standby, of_priority(1), LidTable::default());
    bed.manage(master, of_priority(5), LidTable::default());
    bed.run_until(MINUTE, "a standby", |bed| {
        bed.sweeper().sm_state() == SmState::Standby && bed.managers[1].sweeper.is_up()
    });
    let guid = bed.fabric.port(master, 1).unwrap().guid;
    // Port 2 of the second switch leads to the master, port 2 of the host to that switch.
    for (arrivals, is_believed) in [([2, 2, 3, 1].as_slice(), false), (&[2, 1, 1], true)] {
        let mut packet = Packet::to(Address::smi(Lid::PERMISSIVE));
        let ports: Vec<PortNum> = arrivals.iter().copied().map(PortNum).collect();
        request(SmControl::Disable).write_directed(&mut packet.mad, &ports).unwrap();
        let mut smp = Smp::of_mut(&mut packet.mad);
        smp.set_hop_pointer(ports.len() as u8 + 1);
        let mut path = [0; 64];
        path[1..=arrivals.len()].copy_from_slice(arrivals);
        smp.set_return_path(path);
        show(&mut packet, guid, SmState::Master);
        let now = bed.clock.now();
        assert_eq!(bed.managers[0].sweeper.handle_packet(now, &mut packet), is_believed);
        let is_inactive = bed.sweeper().sm_state() == SmState::NotActive;
        assert_eq!(is_inactive, is_believed, "{arrivals:?}");
    }
}
