//! Multicast trees that change, and switches that trees must avoid.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use crate::multicast::{heard, join, listeners, members as membership};
use fabric_sim::generate::{Common, Grid, Shape, generate};
use fabric_sim::{DropReason, Endpoint, NodeIndex, Probability, Refusal};
use ib_mad::transport::Packet;
use ib_mad::types::Lid;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::{ComponentMask, SaMad};
use ib_mad::wire::smp::Smp;
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::smp::Kind;

const MLID: Lid = Lid(0xC007);
const BEFORE: &[usize] = &[0, 1, 2, 3, 4, 5];
const AFTER: &[usize] = &[5, 6, 7, 8, 9, 0];

/// A ring of ten switches with a host each, and the switches in the order of the hosts.
fn ring() -> (Bed, Vec<NodeIndex>) {
    let shape = Shape::Grid(Grid { dims: vec![10], wraps: true, hosts_per_switch: 1, radix: None });
    let net = generate(&shape, &Common::default()).unwrap();
    let mut bed = Bed::with_manager(&net, Settings::default());
    bed.bring_up();
    let home = |&host: &NodeIndex| bed.fabric.port(host, 1).unwrap().link.unwrap().node;
    let switches = bed.hosts().iter().map(home).collect();
    (bed, switches)
}

fn refuse_tables(bed: &mut Bed, switches: &[NodeIndex]) {
    for &switch in switches {
        let refusal = Refusal {
            method: Some(Method::SET),
            attribute: AttributeId::MULTICAST_FORWARDING_TABLE,
            port: None,
            status: Some(Status(0x1C)),
            times: u32::MAX,
        };
        bed.fabric.refuse(switch, refusal).unwrap();
    }
}

/// Regression: the two halves of a ring form a loop, in which packets circulated until the last
/// switch had its table.
#[test]
fn a_tree_that_moves_is_no_loop_though_switches_do_not_take_their_tables() {
    let (mut bed, switches) = ring();
    let listeners = listeners(&mut bed);
    let sender = listeners[4].1;
    join(&mut bed, &[(MLID, BEFORE)]);
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [1, 2, 3, 4]);
    refuse_tables(&mut bed, &switches[..5]);
    // Another group of the same block does not wait.
    join(&mut bed, &[(MLID, AFTER), (Lid(0xC008), &[6, 7])]);
    for _ in 0..20 {
        let mut heard = heard(&mut bed, &listeners, sender, MLID);
        let count = heard.len();
        heard.dedup();
        assert_eq!(heard.len(), count, "packets come twice");
        bed.run_for(Duration::from_millis(500));
    }
    assert_eq!(heard(&mut bed, &listeners, listeners[5].1, Lid(0xC008)), [7]);
    bed.fabric.refuse_nothing();
    bed.run_for(Duration::from_secs(70));
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [6, 7, 8, 9]);
}

#[test]
fn a_block_is_written_twice_only_if_branches_of_it_go_and_others_come() {
    let (mut bed, _) = ring();
    let listeners = listeners(&mut bed);
    let sender = listeners[4].1;
    join(&mut bed, &[(MLID, BEFORE)]);
    assert_eq!(bed.sweeper().passed(Kind::SetMulticast).sent, 6);
    join(&mut bed, &[(MLID, AFTER)]);
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [6, 7, 8, 9]);
    // Four are cleared, four come, and those at both ends do both.
    assert_eq!(bed.sweeper().passed(Kind::SetMulticast).sent, 6 + 4 + 4 + 2 * 2);
}

/// Makes switches report that they forward no multicast.
fn without_room(bed: &mut Bed, switches: Vec<NodeIndex>) {
    bed.lie = Some(Box::new(move |node, packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        if switches.contains(&node)
            && smp.method() == Method::GET_RESP
            && smp.attribute_id() == AttributeId::SWITCH_INFO
        {
            packet.mad[64 + 4..64 + 6].copy_from_slice(&[0, 0]);
        }
    }));
}

/// Regression: a switch that refused its table was the root or part of a tree: members behind it
/// received nothing.
#[test]
fn a_tree_leads_around_switches_without_multicast_tables() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    let spines: Vec<NodeIndex> = bed.switches().into_iter().rev().take(3).collect();
    let last = bed.fabric.port(bed.hosts()[19], 1).unwrap().link.unwrap().node;
    without_room(&mut bed, spines.into_iter().chain([last]).collect());
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    for number in 0..8 {
        let mlid = Lid(0xC000 + number);
        join(&mut bed, &[(mlid, &[1, 2, 7, 12, 19])]);
        assert_eq!(heard(&mut bed, &listeners, sender, mlid), [2, 7, 12], "{mlid}");
    }
    assert_eq!(bed.sweeper().multicast_trees(), 1);
}

/// Groups of the first block of tables: so many that each spine is in some of their trees.
fn groups(hosts: &'static [usize]) -> Vec<(Lid, &'static [usize])> {
    (0..16).map(|number| (Lid(0xC000 + number), hosts)).collect()
}

/// A fabric with groups whose master is gone. From now on one switch neither returns nor accepts
/// multicast tables, but keeps its earlier ones.
fn left_with_mute(mute: impl Fn(&Bed) -> NodeIndex) -> Bed {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    join(&mut bed, &groups(&[1, 2, 7, 12]));
    bed.crash_manager();
    let mute = mute(&bed);
    let attribute = AttributeId::MULTICAST_FORWARDING_TABLE;
    let status = Some(Status(0x1C));
    let refusal = Refusal { method: None, attribute, port: None, status, times: u32::MAX };
    bed.fabric.refuse(mute, refusal).unwrap();
    let host = bed.hosts()[0];
    bed.manage(host, Settings::default(), LidTable::default());
    bed
}

/// Regression: the content of a block was unknown, so that no switch got a new port in an entry of
/// that block.
#[test]
fn a_switch_that_ignores_tables_delays_a_sweep_briefly() {
    for after in [0, 70] {
        let mut bed = left_with_mute(|bed| *bed.switches().last().unwrap());
        if after == 0 {
            let known = membership(&bed, &groups(&[1, 2, 7, 12]));
            bed.managers[0].sweeper.put_members(known);
        }
        bed.bring_up();
        let listeners = listeners(&mut bed);
        let sender = listeners[0].1;
        bed.run_for(Duration::from_secs(after));
        join(&mut bed, &groups(&[1, 2, 7, 12, 17, 19]));
        let late = |bed: &mut Bed| {
            let mut late = 0;
            for (mlid, _) in groups(&[]) {
                let heard = heard(bed, &listeners, sender, mlid);
                assert!(heard.is_sorted_by(|a, b| a < b), "{mlid}: {heard:?}: packets come twice");
                late += usize::from(heard != [2, 7, 12, 17, 19]);
            }
            late
        };
        for _ in 0..20 {
            late(&mut bed);
            bed.run_for(Duration::from_millis(500));
        }
        assert_eq!(late(&mut bed), 0, "{after} s after the takeover");
        assert_eq!(bed.sweeper().multicast_warnings().len(), 1);
        bed.fabric.refuse_nothing();
        bed.run_for(Duration::from_secs(130));
        assert_eq!(late(&mut bed), 0);
        assert!(bed.sweeper().multicast_warnings().is_empty(), "it takes its tables again");
    }
}

/// Members behind the switch are not reached until it accepts its tables.
#[test]
fn trees_lead_over_a_switch_again_that_takes_its_tables_at_last() {
    let leaf = |bed: &Bed| bed.fabric.port(bed.hosts()[17], 1).unwrap().link.unwrap().node;
    let mut bed = left_with_mute(leaf);
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    join(&mut bed, &groups(&[1, 2, 7, 12, 17, 19]));
    bed.run_for(Duration::from_secs(20));
    for (mlid, _) in groups(&[]) {
        assert_eq!(heard(&mut bed, &listeners, sender, mlid), [2, 7, 12], "{mlid}");
    }
    bed.fabric.refuse_nothing();
    bed.run_for(Duration::from_secs(40));
    for (mlid, _) in groups(&[]) {
        assert_eq!(heard(&mut bed, &listeners, sender, mlid), [2, 7, 12, 17, 19], "{mlid}");
    }
}

#[test]
fn a_switch_that_takes_other_tables_than_it_was_sent_is_asked_ever_more_rarely() {
    let (mut bed, switches) = ring();
    join(&mut bed, &[(MLID, BEFORE)]);
    let stubborn = switches[0];
    bed.lie = Some(Box::new(move |node, packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        if node == stubborn
            && smp.method() == Method::GET_RESP
            && smp.attribute_id() == AttributeId::MULTICAST_FORWARDING_TABLE
        {
            // As if it kept all that it ever had.
            packet.mad[64 + 14..64 + 16].copy_from_slice(&[0, 0xFF]);
        }
    }));
    join(&mut bed, &[(MLID, AFTER)]);
    let sent = bed.sweeper().passed(Kind::SetMulticast).sent;
    bed.run_for(Duration::from_secs(600));
    let more = bed.sweeper().passed(Kind::SetMulticast).sent - sent;
    assert!(more < 40, "{more} in ten minutes");
}

/// Sends packets to each of these MLIDs from all hosts, and returns whether one of them circulated.
fn is_round(bed: &mut Bed, senders: &[(usize, Endpoint)], mlids: &[Lid]) -> bool {
    let now = bed.clock.now();
    for mlid in mlids {
        let mut packet = Packet::default();
        packet.address.lid = *mlid;
        let (method, attribute) = (Method::SEND, AttributeId::NOTICE);
        SaMad::new(&mut packet.mad).write_request(method, attribute, 1, ComponentMask::NONE);
        senders.iter().for_each(|(_, sender)| bed.fabric.send(now, *sender, &packet));
    }
    let mut deliveries = Vec::new();
    for microseconds in 0..200 {
        bed.fabric.poll(now + Duration::from_micros(microseconds), &mut deliveries, usize::MAX);
    }
    bed.clock.advance_to(now + Duration::from_micros(200));
    bed.fabric.counters().dropped(DropReason::MulticastLimit) > 0
}

/// Trees that change at random on a torus, whose switches sometimes refuse a write, do not answer
/// it, or lose the answer; and new masters without knowledge of their predecessors.
#[test]
fn whatever_switches_take_no_packet_goes_round() {
    let shape =
        Shape::Grid(Grid { dims: vec![4, 4], wraps: true, hosts_per_switch: 1, radix: None });
    let net = generate(&shape, &Common::default()).unwrap();
    let mut bed = Bed::with_manager(&net, Settings::default());
    bed.bring_up();
    let senders = listeners(&mut bed);
    let mlids: Vec<Lid> = (0..6).map(|number| Lid(0xC000 + number)).collect();
    let mut seed = 1_u64;
    let mut chance = |of: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % of
    };
    for round in 0..80 {
        bed.fabric.refuse_nothing();
        for switch in bed.switches() {
            let (method, status) = match chance(8) {
                0 => (Some(Method::SET), Some(Status(0x1C))),
                1 => (Some(Method::SET), None),
                2 => (None, Some(Status(0x1C))),
                _ => continue,
            };
            let attribute = AttributeId::MULTICAST_FORWARDING_TABLE;
            let refusal = Refusal { method, attribute, port: None, status, times: u32::MAX };
            bed.fabric.refuse(switch, refusal).unwrap();
        }
        let mut picks: Vec<(Lid, Vec<usize>)> = Vec::new();
        for &mlid in &mlids {
            picks.push((mlid, (1..16).filter(|_| chance(3) == 0).collect()));
        }
        let groups: Vec<(Lid, &[usize])> =
            picks.iter().map(|(mlid, hosts)| (*mlid, hosts.as_slice())).collect();
        if chance(8) == 0 {
            bed.crash_manager();
            let host = bed.hosts()[0];
            bed.manage(host, Settings::default(), LidTable::default());
            bed.bring_up();
        }
        bed.fabric.set_loss(None, Probability::new(0.02).unwrap()).unwrap();
        join(&mut bed, &groups);
        bed.fabric.set_loss(None, Probability::NEVER).unwrap();
        for _ in 0..1 + chance(40) {
            assert!(!is_round(&mut bed, &senders, &mlids), "in round {round}");
            bed.run_for(Duration::from_millis(250));
        }
    }
    bed.fabric.refuse_nothing();
    bed.run_for(Duration::from_secs(130));
    let groups = mlids.iter().map(|&mlid| (mlid, AFTER));
    join(&mut bed, &groups.collect::<Vec<_>>());
    for &mlid in &mlids {
        assert_eq!(heard(&mut bed, &senders, senders[4].1, mlid), [6, 7, 8, 9], "{mlid}");
    }
}
