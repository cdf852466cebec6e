//! Ports with the M_Key of another subnet manager: known keys are used, readable ones are learned,
//! and unknown ones are reported.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use ib_mad::types::Sl;
use ib_mad::wire::attribute::{PortState, SmNotice, SmState, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{self, Smp};
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::{MKeyTable, Neighbours};
use sm_core::sweep::Phase;

const MINUTE: Duration = Duration::from_secs(60);
const FIRST: u64 = 0x5eaf;
const SECOND: u64 = 0xbead;
const THIRD: u64 = 0xdeed;

fn keyed(m_key: u64, level: u8, lease: u16) -> Settings {
    let (m_key_protection_level, m_key_lease_period) = (level, lease);
    Settings { m_key, m_key_protection_level, m_key_lease_period, ..Settings::default() }
}

/// A fabric whose ports have the M_Key FIRST and whose manager died, and the keys that the manager
/// had stored.
fn left_behind(level: u8, lease: u16) -> (Bed, MKeyTable, Arc<Neighbours>) {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), keyed(FIRST, level, lease));
    bed.bring_up();
    let mut manager = bed.crash_manager();
    let keys = MKeyTable::parse(&manager.sweeper.m_keys().render()).0;
    let neighbours = Neighbours::parse(&manager.sweeper.neighbours().render()).0;
    (bed, keys, Arc::new(neighbours))
}

/// A manager with the M_Key SECOND on the same host.
fn succeed(bed: &mut Bed, lease: u16) {
    let host = bed.hosts()[0];
    bed.manage(host, keyed(SECOND, 2, lease), LidTable::default());
}

/// With SIGHUP the site's M_Key is replaced, at every protection level, and back again.
#[test]
fn a_new_m_key_reaches_all_ports() {
    for level in [0, 1, 2, 3] {
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), keyed(FIRST, level, 0));
        bed.bring_up();
        for m_key in [SECOND, FIRST, 0, SECOND] {
            let now = bed.clock.now();
            let waiting = bed.managers[0].sweeper.follow_settings(&keyed(m_key, level, 0));
            assert_eq!(waiting, [""; 0]);
            bed.managers[0].sweeper.request_heavy_sweep(now);
            let report = bed.bring_up();
            assert_eq!(report.errors, 0, "level {level}: {:?}", report.faults);
            let fabric = bed.sweeper().fabric();
            for port in fabric.end_ports() {
                // As the port showed it in its answer.
                assert_eq!(fabric.port(port).port_info().m_key(), m_key, "level {level}");
            }
            assert!(bed.reports().len() < 20, "level {level}");
        }
    }
}

/// Regression: `ibsm -o` left out ports that the master's M_Key protects, became master of the
/// rest, and ended with status 0.
#[test]
fn one_that_yields_does_not_rule_where_it_lacks_the_m_key() {
    for level in [1, 2, 3] {
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), keyed(FIRST, level, 0));
        bed.bring_up();
        let host = bed.hosts()[14];
        bed.manage(host, keyed(SECOND, 2, 0), LidTable::default());
        bed.managers[1].sweeper.yield_to_masters();
        bed.run_for(MINUTE);
        assert_ne!(bed.managers[1].sweeper.sm_state(), SmState::Master, "level {level}");
        let reason = bed.managers[1].rivals.first().map(String::as_str).unwrap_or_default();
        // From level 2 on not even its own port can be read, and the log names the M_Key.
        let is_blind = bed.managers[1].sweeper.sweeps_given_up() > 0;
        assert!(reason.contains("m_key") || level > 1 && is_blind, "level {level}: {reason}");
    }
}

/// Regression: the problem of a manager whose own port has another M_Key was in the log only.
#[test]
fn one_that_lacks_the_key_of_its_own_port_is_cut_off() {
    for level in [1, 2, 3] {
        let (mut bed, keys, neighbours) = left_behind(level, 0);
        succeed(&mut bed, 0);
        bed.run_for(MINUTE);
        let reason = bed.sweeper().cut_off().unwrap_or_default();
        assert!(reason.contains("M_Key"), "level {level}: {reason}");
        assert!(bed.sweeper().lacks_own_m_key());
        bed.managers[0].sweeper.set_m_keys(keys, neighbours);
        await_all(&mut bed, 3 * MINUTE);
        assert_eq!(bed.sweeper().cut_off(), None, "level {level}");
    }
}

/// Regression: a manager that was started while its port had no link knew the port, and became
/// master of its own node alone once that had another manager's M_Key. It stayed so.
#[test]
fn one_whose_own_port_gets_another_key_does_not_become_master() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), keyed(FIRST, 2, 0));
    bed.bring_up();
    let host = bed.hosts()[14];
    let lids = LidTable::parse(&bed.sweeper().lids().render()).0;
    bed.fabric.link_down(bed.clock.now(), host, 1).unwrap();
    bed.bring_up();
    bed.manage(host, keyed(SECOND, 2, 0), lids);
    bed.run_for(MINUTE);
    assert_eq!(bed.managers[1].sweeper.sm_state(), SmState::Discovering, "without a link");
    bed.fabric.link_up(bed.clock.now(), host, 1).unwrap();
    bed.run_for(MINUTE);
    assert_eq!(bed.managers[1].sweeper.sm_state(), SmState::Discovering);
    let reason = bed.managers[1].sweeper.cut_off().unwrap_or_default();
    assert!(reason.contains("M_Key"), "{reason}");

    let keys = MKeyTable::parse(&bed.sweeper().m_keys().render()).0;
    let neighbours = Neighbours::parse(&bed.managers[0].sweeper.neighbours().render()).0;
    bed.managers[1].sweeper.set_m_keys(keys, Arc::new(neighbours));
    bed.run_until(MINUTE, "standby", |bed| bed.managers[1].standing_by.is_some());
}

/// A key was set but its answer lost: the port rejects the previous key.
#[test]
fn a_lost_answer_to_setting_a_key_locks_no_port() {
    for level in [2, 3] {
        let mut bed = Bed::new(&fat_tree(2, 8, 20));
        let (mut sets, mut lost) = (HashSet::new(), 0);
        bed.lie = Some(Box::new(move |_, packet| {
            let Ok(smp) = Smp::new(&packet.mad) else { return };
            let tid = smp.tid();
            if (smp.method(), smp.attribute_id()) == (Method::SET, AttributeId::PORT_INFO) {
                sets.insert(tid);
            } else if smp.method().is_response() && sets.remove(&tid) && lost < 20 {
                // No reader accepts it.
                packet.mad = [0; 256];
                lost += 1;
            }
        }));
        let host = bed.hosts()[0];
        bed.manage(host, keyed(SECOND, level, 0), LidTable::default());
        bed.bring_up();
        let report = bed.reports().last().unwrap();
        assert_eq!((bed.reports().len(), report.errors), (1, 0), "{:?}", report.faults);
        await_all(&mut bed, MINUTE);
    }
}

/// Another master set another M_Key while this SM was standby: the configured key is right, the
/// stored one is not.
#[test]
fn a_key_remembered_of_yesterday_gives_way_to_the_one_that_is_set() {
    for level in [1, 2, 3] {
        let (mut bed, keys, neighbours) = left_behind(level, 0);
        let mut stale = keys;
        for host in bed.hosts() {
            stale.set(bed.fabric.port(host, 1).unwrap().guid, SECOND);
        }
        for switch in bed.switches() {
            stale.set(bed.fabric.port(switch, 0).unwrap().guid, SECOND);
        }
        let host = bed.hosts()[0];
        bed.manage(host, keyed(FIRST, level, 0), LidTable::default());
        bed.managers[0].sweeper.set_m_keys(stale, neighbours);
        let report = bed.bring_up();
        let all = (bed.hosts().len(), bed.switches().len());
        assert_eq!((bed.sweeper().fabric().counts(), report.errors), (all, 0));
        bed.assert_all_reachable();
    }
}

/// Regression: at level 1 every requester is answered: one lost request made a wrong key look
/// right, and two more made the manager forget the right one.
#[test]
fn a_right_key_is_not_forgotten_for_packets_that_are_lost() {
    let (mut bed, keys, neighbours) = left_behind(1, 0);
    let host = bed.hosts()[7];
    let guid = bed.fabric.port(host, 1).unwrap().guid;
    let (mut gets, mut sets) = (0, 0);
    bed.lie = Some(Box::new(move |node, packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        if node != host || smp.m_key() != FIRST {
            return;
        }
        let is_lost = match (smp.method(), smp.attribute_id()) {
            (Method::GET, _) => std::mem::replace(&mut gets, 1) == 0,
            (Method::SET, AttributeId::PORT_INFO) => {
                sets += 1;
                sets <= 2
            }
            _ => false,
        };
        if is_lost {
            packet.mad = [0; 256];
        }
    }));
    succeed(&mut bed, 0);
    bed.managers[0].sweeper.set_m_keys(keys, neighbours);
    let report = bed.bring_up();
    assert!(report.errors > 0, "the test is to lose all that shows the right key");
    assert!(!report.faults.join("\n").contains("is not known"), "{:?}", report.faults);
    assert!(bed.sweeper().m_keys().get(guid).is_some());
    await_all(&mut bed, MINUTE);
}

fn await_all(bed: &mut Bed, limit: Duration) {
    let all = (bed.hosts().len(), bed.switches().len());
    bed.run_until(limit, "all under the new key", |bed| {
        let sweeper = bed.sweeper();
        let last = bed.reports().last();
        sweeper.is_up()
            && sweeper.phase() == Phase::Idle
            && sweeper.fabric().counts() == all
            && last.is_some_and(|report| report.errors == 0)
    });
    bed.assert_all_reachable();
    let keys = bed.sweeper().m_keys();
    for port in bed.sweeper().fabric().end_ports() {
        assert_eq!(keys.get(bed.sweeper().fabric().port(port).guid), Some(SECOND));
    }
}

/// At level 0 every requester sees the key.
#[test]
fn a_key_that_ports_show_is_learnt() {
    let (mut bed, ..) = left_behind(0, 0);
    succeed(&mut bed, 0);
    await_all(&mut bed, MINUTE);
}

/// At levels 2 and 3 requests without the key are not answered, not even NodeInfo.
#[test]
fn remembered_keys_open_protected_ports() {
    for level in [1, 2, 3] {
        let (mut bed, keys, neighbours) = left_behind(level, 0);
        succeed(&mut bed, 0);
        bed.managers[0].sweeper.set_m_keys(keys, neighbours);
        await_all(&mut bed, MINUTE);
    }
}

/// Regression: a master that was replaced while it had no link set its M_Key again at ports that it
/// reached before it found its successor, which could no longer read them, nor find the other one
/// behind them.
#[test]
fn a_key_that_was_replaced_opens_ports_that_have_it_again() {
    for level in [1, 2, 3] {
        let (mut bed, keys, neighbours) = left_behind(level, 0);
        let mut replaced = keys.clone();
        keys.iter().for_each(|(guid, _)| replaced.set(guid, SECOND));
        succeed(&mut bed, 0);
        bed.managers[0].sweeper.set_m_keys(keys, neighbours.clone());
        bed.managers[0].sweeper.follow_m_keys(&replaced, &neighbours);
        await_all(&mut bed, MINUTE);
    }
}

/// Regression: a port that had got the M_Key of a master just before that died or handed over, so
/// that no file had it, was unreachable for its successor.
#[test]
fn the_key_at_the_own_port_opens_ports_whose_key_is_not_known() {
    for level in [1, 2, 3] {
        let (mut bed, mut keys, neighbours) = left_behind(level, 0);
        let [outdated, unknown] = [7, 8].map(|at| bed.hosts()[at]);
        keys.set(bed.fabric.port(outdated, 1).unwrap().guid, SECOND);
        keys.forget(bed.fabric.port(unknown, 1).unwrap().guid);
        succeed(&mut bed, 0);
        bed.managers[0].sweeper.set_m_keys(keys, neighbours);
        await_all(&mut bed, MINUTE);
    }
}

#[test]
fn an_expired_lease_opens_ports_with_unknown_keys() {
    for level in [1, 2, 3] {
        let (mut bed, ..) = left_behind(level, 20);
        succeed(&mut bed, 20);
        bed.run_for(Duration::from_secs(10));
        let sweeper = bed.sweeper();
        assert!(!sweeper.is_up() || !sweeper.faults().is_empty(), "the lease has not run out");
        await_all(&mut bed, MINUTE * 10);
    }
}

/// Level 1, without a lease: readable ports are read, ports that cannot be set are reported by node
/// (IBA C14-44).
#[test]
fn a_port_that_cannot_be_opened_is_reported_by_guid() {
    let (mut bed, keys, neighbours) = left_behind(1, 0);
    let [home, closed] = [0, 7].map(|at| bed.hosts()[at]);
    let guid = bed.fabric.port(closed, 1).unwrap().guid;
    // All others have the M_Key of another manager since.
    bed.fabric.link_down(bed.clock.now(), closed, 1).unwrap();
    bed.manage(home, keyed(THIRD, 1, 0), LidTable::default());
    bed.managers[0].sweeper.set_m_keys(keys, neighbours.clone());
    bed.bring_up();
    let mut known = MKeyTable::parse(&bed.crash_manager().sweeper.m_keys().render()).0;
    known.forget(guid);
    bed.fabric.link_up(bed.clock.now(), closed, 1).unwrap();
    bed.manage(home, keyed(SECOND, 2, 0), LidTable::default());
    bed.managers[0].sweeper.set_m_keys(known, neighbours);
    let report = bed.bring_up();
    let faults = report.faults.join("\n");
    assert!(faults.contains(&guid.to_string()) && faults.contains("never expires"), "{faults}");
    let open = bed.hosts()[8];
    assert_eq!(bed.fabric.port(open, 1).unwrap().state, PortState::Active);
}

/// An agent repeats a trap until the repression shows the agent's M_Key.
#[test]
fn traps_are_repressed_with_the_key_of_the_port_that_sent_them() {
    let (mut bed, ..) = left_behind(0, 0);
    let [stays, other] = [0, 1].map(|at| bed.switches()[at]);
    bed.lie = Some(Box::new(move |node, packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        let sets = (smp.method(), smp.attribute_id()) == (Method::SET, AttributeId::PORT_INFO);
        if sets && node == stays {
            packet.mad[..4].fill(0);
        }
    }));
    succeed(&mut bed, 0);
    bed.run_for(Duration::from_secs(10));
    let host = bed.hosts()[8];
    let mut shown = |issuer: NodeIndex, sender: NodeIndex| {
        let mut mad = [0; 256];
        smp::Request {
            method: Method::TRAP,
            attribute_id: AttributeId::NOTICE,
            attribute_modifier: 0,
            tid: 0x77,
            m_key: 0,
        }
        .write_lid_routed(&mut mad);
        let [issuer, lid] = [issuer, sender].map(|node| {
            let num = u8::from(node == host);
            bed.fabric.port(node, num).unwrap().lid
        });
        SmNotice::new(&mut mad[smp::DATA])
            .unwrap()
            .set_is_generic(true)
            .set_trap_number(TrapNumber::BAD_PKEY)
            .set_issuer_lid(issuer);
        let (now, sl) = (bed.clock.now(), Sl::default());
        let repress = bed.managers[0].sweeper.handle_relayed_trap(now, &mad, lid, sl)?;
        Some(Smp::new(&repress.mad).unwrap().m_key())
    };
    assert_eq!([shown(stays, stays), shown(other, other)], [Some(FIRST), Some(SECOND)]);
    assert_eq!(shown(stays, other), Some(SECOND), "that of the sender, not of whom it names");
    assert_eq!(shown(host, host), None, "programs of hosts send traps");
    bed.lie = None;
    await_all(&mut bed, MINUTE);
}
