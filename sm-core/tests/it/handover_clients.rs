//! Which clients a new master asks to register again: those of which it does not know what they
//! registered.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use crate::handover::{MINUTE, await_master, join, of_priority, ruled};
use sm_core::manage::lid::LidTable;
use sm_core::sweep::RegistryCopy;

/// With a complete copy clients need not register again, however this manager became master. If it
/// is not yet known whether the copy is complete, clients wait.
#[test]
fn a_new_master_asks_clients_to_register_again_unless_it_knows_what_they_registered() {
    use RegistryCopy::{Complete, Incomplete, Pending};
    let kinds = [Incomplete, Complete, Pending].map(|kind| [(kind, false), (kind, true)]);
    for (kind, hands_over) in kinds.into_iter().flatten() {
        let mut bed = Bed::new(&fat_tree(2, 8, 20));
        let (first, second) = (bed.hosts()[3], bed.hosts()[14]);
        bed.manage(first, of_priority(3), LidTable::default());
        bed.bring_up();
        let priority = if hands_over { 1 } else { 2 };
        bed.manage(second, of_priority(priority), LidTable::default());
        bed.run_until(MINUTE, "standby", |bed| bed.managers[1].standing_by.is_some());
        let now = bed.clock.now();
        bed.managers[1].sweeper.set_registry_copy(now, kind);
        bed.run_for(Duration::from_secs(18));
        let before = bed.fabric.counters().reregistrations;
        if hands_over {
            let now = bed.clock.now();
            bed.managers[1].sweeper.set_priority(9);
            bed.managers[1].sweeper.request_heavy_sweep(now);
            await_master(&mut bed, 1);
        } else {
            bed.managers.swap(0, 1);
            bed.crash_manager();
            bed.run_until(MINUTE * 2, "take-over", |bed| bed.sweeper().is_up());
        }
        let asked = bed.fabric.counters().reregistrations - before;
        let expected = if kind == Incomplete { bed.end_ports().len() as u64 } else { 0 };
        assert_eq!(asked, expected, "{kind:?}, hands over: {hands_over}");
        bed.assert_all_reachable();
    }
}

#[test]
fn clients_wait_until_it_is_known_whether_the_copy_is_complete() {
    for known in [RegistryCopy::Complete, RegistryCopy::Incomplete] {
        let mut bed = ruled();
        join(&mut bed, 14, of_priority(2));
        bed.run_until(MINUTE, "standby", |bed| bed.managers[1].standing_by.is_some());
        let now = bed.clock.now();
        bed.managers[1].sweeper.set_registry_copy(now, RegistryCopy::Pending);
        bed.crash(0);
        let before = bed.fabric.counters().reregistrations;
        bed.run_until(MINUTE * 2, "take-over", |bed| bed.sweeper().is_up());
        bed.run_for(Duration::from_secs(2));
        let all = bed.end_ports().len() as u64;
        assert_eq!(bed.fabric.counters().reregistrations, before);
        let now = bed.clock.now();
        bed.managers[0].sweeper.set_registry_copy(now, known);
        bed.run_for(MINUTE);
        let asked = bed.fabric.counters().reregistrations - before;
        let expected = if known == RegistryCopy::Incomplete { all } else { 0 };
        assert_eq!(asked, expected, "{known:?}");
        bed.assert_all_reachable();
    }
}

/// A bed whose master has just died, and whose standby has all that it had registered.
fn died_with_a_copy() -> Bed {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    let (first, second) = (bed.hosts()[3], bed.hosts()[14]);
    bed.manage(first, of_priority(3), LidTable::default());
    bed.bring_up();
    bed.manage(second, of_priority(2), LidTable::default());
    bed.run_until(MINUTE, "standby", |bed| bed.managers[1].standing_by.is_some());
    let now = bed.clock.now();
    bed.managers[1].sweeper.set_registry_copy(now, RegistryCopy::Complete);
    bed.managers.swap(0, 1);
    bed.crash_manager();
    bed
}

/// Regression: the previous master had removed the registrations of a host whose link was down. The
/// link was up again when the next one took over with a complete copy, so the host was not asked.
#[test]
fn who_is_spared_has_an_active_port() {
    let mut bed = died_with_a_copy();
    let before = bed.fabric.counters().reregistrations;
    let (now, host) = (bed.clock.now(), bed.hosts()[7]);
    bed.fabric.link_down(now, host, 1).unwrap();
    bed.fabric.link_up(now, host, 1).unwrap();
    bed.run_until(MINUTE * 2, "take-over", |bed| bed.sweeper().is_up());
    bed.run_for(MINUTE);
    assert_eq!(bed.fabric.counters().reregistrations, before + 1);
}

/// Regression: the previous master had removed the registrations of a host that it could not reach.
/// It could be reached again at the takeover, and its link had been active all the time.
#[test]
fn who_is_spared_was_in_the_fabric_of_the_previous_master() {
    let mut bed = died_with_a_copy();
    let before = bed.fabric.counters().reregistrations;
    let absent = bed.fabric.port(bed.hosts()[7], 1).unwrap().guid;
    let ports = bed
        .fabric
        .nodes()
        .flat_map(|node| (0..=bed.fabric.node(node).num_ports).map(move |num| (node, num)));
    let ports = ports.filter_map(|(node, num)| bed.fabric.port(node, num));
    let known = ports.map(|port| port.guid).filter(|guid| *guid != absent).collect();
    bed.managers[0].sweeper.set_ports_of_master(Some(known));
    bed.run_until(MINUTE * 2, "take-over", |bed| bed.sweeper().is_up());
    bed.run_for(MINUTE);
    assert_eq!(bed.fabric.counters().reregistrations, before + 1);
}

/// Regression: with a registry that managers share, ports were not asked whose registrations the
/// previous master had removed.
#[test]
fn who_has_lost_registrations_is_asked_also_if_that_is_read_after_the_takeover() {
    for is_late in [false, true] {
        let mut bed = died_with_a_copy();
        let before = bed.fabric.counters().reregistrations;
        let lapsed = Arc::new(BTreeSet::from([bed.fabric.port(bed.hosts()[7], 1).unwrap().guid]));
        let report = |bed: &mut Bed| {
            let now = bed.clock.now();
            bed.managers[0].sweeper.set_lapsed_ports(now, &lapsed, true);
        };
        if !is_late {
            report(&mut bed);
        }
        bed.run_until(MINUTE * 2, "take-over", |bed| bed.sweeper().is_up());
        bed.run_for(MINUTE);
        report(&mut bed);
        bed.run_for(MINUTE);
        assert_eq!(bed.fabric.counters().reregistrations, before + 1, "{is_late}");
    }
}

/// Regression: hosts that lost their uplinks after a takeover with a complete copy were not asked
/// to register again when they returned, and their registrations were lost.
#[test]
fn who_was_spared_and_lost_its_uplinks_is_asked_when_it_is_back() {
    let mut bed = died_with_a_copy();
    let before = bed.fabric.counters().reregistrations;
    bed.run_until(MINUTE * 2, "take-over", |bed| bed.sweeper().is_up());
    bed.run_for(MINUTE);
    assert_eq!(bed.fabric.counters().reregistrations, before, "all is known of them");

    // The leaf of the first host, and with it four hosts whose own links stay up.
    let host = bed.hosts()[0];
    let leaf = bed.fabric.port(host, 1).unwrap().link.unwrap().node;
    for is_up in [false, true] {
        for port in 5..=8 {
            let now = bed.clock.now();
            match is_up {
                true => bed.fabric.link_up(now, leaf, port).unwrap(),
                false => bed.fabric.link_down(now, leaf, port).unwrap(),
            };
        }
        bed.run_for(MINUTE);
    }
    bed.assert_all_reachable();
    // Its four hosts, and its own port 0.
    assert_eq!(bed.fabric.counters().reregistrations - before, 5);
}
