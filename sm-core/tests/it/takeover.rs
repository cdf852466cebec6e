//! Takeovers of a subnet that another subnet manager has brought up: correct settings stay.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::{NodeIndex, Refusal};
use ib_mad::netlist::Net;
use ib_mad::types::Guid;
use ib_mad::wire::mad::{AttributeId, Method};
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::sweep::{ImportedRegistry, TableFingerprint};

/// The forwarding tables of all switches.
fn tables(bed: &Bed) -> Vec<(NodeIndex, Vec<u8>)> {
    let table = |node| (node, bed.fabric.node(node).lft.to_vec());
    bed.switches().into_iter().map(table).collect()
}

/// A fabric that `before` brought up and left without a word.
fn left_by(before: Settings) -> Bed {
    let mut bed = Bed::with_manager(&fat_tree(3, 8, 100), before);
    bed.bring_up();
    // Cut and mended, so that routes are not those that a routing from scratch would give.
    let spine = *bed.switches().last().unwrap();
    for up in [false, true] {
        let now = bed.clock.now();
        if up {
            bed.fabric.link_up(now, spine, 1).unwrap();
        } else {
            bed.fabric.link_down(now, spine, 1).unwrap();
        }
        bed.bring_up();
    }
    bed.crash_manager();
    bed
}

#[test]
fn a_restarted_manager_rewrites_nothing() {
    let mut bed = left_by(Settings::default());
    let before = tables(&bed);
    let host = bed.hosts()[0];
    bed.manage(host, Settings::default(), LidTable::default());
    let report = bed.bring_up();
    assert_eq!((report.errors, report.first), (0, true));
    assert_eq!(report.lft_blocks_set, 0, "{report}");
    assert_eq!(tables(&bed), before);
    bed.assert_all_reachable();
}

#[test]
fn routes_of_another_engine_stay_where_they_are_right() {
    let mut settings = Settings::default();
    settings.set("routing_engine", "sssp").unwrap();
    let mut bed = left_by(settings);
    let before = tables(&bed);
    let host = bed.hosts()[0];
    bed.manage(host, Settings::default(), LidTable::default());
    let report = bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "minhop");
    assert_eq!(report.lft_blocks_set, 0, "{report}");
    assert_eq!(tables(&bed), before);
}

#[test]
fn routes_that_do_not_deliver_are_mended_and_the_others_stay() {
    let mut bed = left_by(Settings::default());
    // What a spine forwards to a host that moved meanwhile is wrong; all else is not.
    let before = tables(&bed);
    let leaf = bed.switches()[0];
    let now = bed.clock.now();
    let uplink = (1..=8)
        .find(|&port| {
            let link = bed.fabric.port(leaf, port).unwrap().link;
            link.is_some_and(|link| bed.switches().contains(&link.node))
        })
        .unwrap();
    bed.fabric.link_down(now, leaf, uplink).unwrap();
    let host = bed.hosts()[1];
    bed.manage(host, Settings::default(), LidTable::default());
    let report = bed.bring_up();
    assert!(report.lft_blocks_set > 0);
    bed.assert_all_reachable();
    let (mut same, mut all) = (0, 0);
    for ((_, before), (_, now)) in before.iter().zip(tables(&bed)) {
        same += before.iter().zip(&now).filter(|(before, now)| before == now).count();
        all += before.len();
    }
    assert!(same * 100 > all * 98, "{same} of {all} entries stayed");
}

#[test]
fn reassign_lfts_recomputes_routes() {
    let mut bed = left_by(Settings::default());
    let mut settings = Settings::default();
    settings.set("reassign_lfts", "TRUE").unwrap();
    let host = bed.hosts()[0];
    bed.manage(host, settings.clone(), LidTable::default());
    assert!(bed.bring_up().lft_blocks_set > 0);
    let rerouted = tables(&bed);
    bed.run_for(Duration::from_secs(1));
    // They are those of an untouched fabric.
    let mut untouched = Bed::with_manager(&fat_tree(3, 8, 100), settings);
    untouched.bring_up();
    assert_eq!(tables(&untouched), rerouted);
}

/// A bed whose previous master is gone, and whose new master has asked the first clients to
/// register again; the number of clients, and the earlier count of requests.
fn asked_first(rate: u32, mute: bool) -> (Bed, u64, u64) {
    let mut bed = left_by(Settings::default());
    let before = bed.fabric.counters().reregistrations;
    let all = bed.end_ports().len() as u64;
    if mute {
        let rule = Refusal {
            method: Some(Method::SET),
            attribute: AttributeId::PORT_INFO,
            port: None,
            status: None,
            times: u32::MAX,
        };
        let host = *bed.hosts().last().unwrap();
        bed.fabric.refuse(host, rule).unwrap();
    }
    let host = bed.hosts()[0];
    let settings = Settings { client_rereg_rate: rate, ..Settings::default() };
    bed.manage(host, settings, LidTable::default());
    bed.bring_up();
    (bed, all, before)
}

/// Regression: the first sweep asked all clients at once, and all of them sent their registrations
/// at once.
#[test]
fn clients_are_asked_to_register_again_a_few_at_a_time_and_once() {
    let (mut bed, all, before) = asked_first(20, false);
    let asked = |bed: &Bed| bed.fabric.counters().reregistrations - before;
    // The manager's own port is among those that are asked at once.
    assert!((20..=21).contains(&asked(&bed)), "{} of {all}", asked(&bed));
    assert_eq!(bed.sweeper().clients_to_ask() as u64, all - asked(&bed));
    let first = asked(&bed);
    bed.run_for(Duration::from_secs(2));
    assert!((first + 18..=first + 44).contains(&asked(&bed)), "{} after 2 s", asked(&bed));
    // A sweep in between neither forgets those that wait nor asks them all.
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    assert!(asked(&bed) < first + 50, "{} after another sweep", asked(&bed));
    bed.run_for(Duration::from_secs(20));
    assert_eq!((asked(&bed), bed.sweeper().clients_to_ask()), (all, 0));
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.run_for(Duration::from_secs(20));
    assert_eq!(asked(&bed), all, "no client is asked twice");
}

#[test]
fn all_are_asked_at_once_if_the_site_wants_it() {
    let (bed, all, before) = asked_first(0, false);
    assert_eq!(bed.fabric.counters().reregistrations - before, all);
}

#[test]
fn a_silent_client_is_asked_again_and_delays_no_other() {
    let (mut bed, all, before) = asked_first(20, true);
    bed.run_for(Duration::from_secs(20));
    assert_eq!(bed.fabric.counters().reregistrations - before, all - 1);
    bed.fabric.refuse_nothing();
    bed.run_for(Duration::from_secs(90));
    assert_eq!(bed.fabric.counters().reregistrations - before, all);
    assert_eq!(bed.sweeper().clients_to_ask(), 0);
}

/// Regression: all clients were asked although `-S` was read, and ten thousand sent registrations
/// that were known.
#[test]
fn clients_in_an_imported_sa_database_are_not_asked() {
    let mut bed = left_by(Settings::default());
    let before = bed.fabric.counters().reregistrations;
    let host = bed.hosts()[0];
    // Some have registered something with the manager before.
    let guid = |&host: &NodeIndex| bed.fabric.port(host, 1).unwrap().guid;
    let known: BTreeSet<Guid> = bed.hosts()[1..].iter().map(guid).step_by(3).collect();
    let unknown = (bed.end_ports().len() - known.len()) as u64;
    bed.manage(host, Settings::default(), LidTable::default());
    let now = bed.clock.now();
    bed.managers[0].sweeper.set_imported_registry(now, ImportedRegistry::Expected);
    bed.bring_up();
    bed.run_for(Duration::from_secs(5));
    let asked = |bed: &Bed| bed.fabric.counters().reregistrations - before;
    assert!(asked(&bed) <= 1, "all but our own port wait for the database: {}", asked(&bed));

    let imported = ImportedRegistry::Read(Arc::new(known));
    let now = bed.clock.now();
    bed.managers[0].sweeper.set_imported_registry(now, imported.clone());
    bed.run_for(Duration::from_secs(20));
    assert_eq!((asked(&bed), bed.sweeper().clients_to_ask()), (unknown, 0));
    let now = bed.clock.now();
    bed.managers[0].sweeper.set_imported_registry(now, imported);
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.run_for(Duration::from_secs(20));
    assert_eq!(asked(&bed), unknown, "nor later");
}

#[test]
fn an_sa_database_that_cannot_be_used_has_all_clients_asked_once() {
    let mut bed = left_by(Settings::default());
    let before = bed.fabric.counters().reregistrations;
    let (host, all) = (bed.hosts()[0], bed.end_ports().len() as u64);
    bed.manage(
        host,
        Settings { client_rereg_rate: 20, ..Settings::default() },
        LidTable::default(),
    );
    let now = bed.clock.now();
    bed.managers[0].sweeper.set_imported_registry(now, ImportedRegistry::Expected);
    bed.bring_up();
    let now = bed.clock.now();
    bed.managers[0].sweeper.set_imported_registry(now, ImportedRegistry::None);
    bed.run_for(Duration::from_secs(1));
    let asked = |bed: &Bed| bed.fabric.counters().reregistrations - before;
    assert!(asked(&bed) < 30, "a few at a time, not {} of {all}", asked(&bed));
    bed.run_for(Duration::from_secs(30));
    assert_eq!((asked(&bed), bed.sweeper().clients_to_ask()), (all, 0));
}

/// State after a run that is restarted on the same port: the fabric, its LIDs, the saved tables,
/// and the number of requests to register again so far.
fn stopped(settings: Settings) -> (Bed, LidTable, TableFingerprint, u64) {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    bed.run_for(Duration::from_secs(5));
    assert!(bed.sweeper().is_settled());
    let left = TableFingerprint::of(bed.sweeper().fabric(), 0);
    let left = TableFingerprint::parse(&left.render()).unwrap();
    let lids = bed.crash_manager().sweeper.lids().clone();
    let before = bed.fabric.counters().reregistrations;
    (bed, lids, left, before)
}

fn start_again(
    bed: &mut Bed,
    settings: Settings,
    lids: LidTable,
    left: Option<TableFingerprint>,
) -> u64 {
    let before = bed.fabric.counters().reregistrations;
    let host = bed.hosts()[0];
    bed.manage(host, settings, lids);
    bed.managers[0].sweeper.set_fingerprint(left);
    bed.bring_up();
    bed.run_for(Duration::from_secs(20));
    assert_eq!(bed.sweeper().clients_to_ask(), 0);
    bed.fabric.counters().reregistrations - before
}

/// Regression: each restart asked all clients to register again, although all registrations were on
/// disk.
#[test]
fn a_plain_restart_asks_no_client_to_register_again() {
    for rate in [1000, 5, 0] {
        let settings = Settings { client_rereg_rate: rate, ..Settings::default() };
        let (mut bed, lids, left, _) = stopped(settings.clone());
        let asked = start_again(&mut bed, settings.clone(), lids.clone(), Some(left));
        assert_eq!(asked, 0, "{rate} a second");
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_for(Duration::from_secs(20));
        bed.crash_manager();
        let all = bed.end_ports().len() as u64;
        assert_eq!(start_again(&mut bed, settings, lids, None), all, "what was left is not known");
    }
}

#[test]
fn who_was_reset_between_two_runs_is_asked() {
    let (mut bed, lids, left, _) = stopped(Settings::default());
    // A host, and a leaf with the four hosts beneath it, of which the first is not.
    let host = bed.hosts()[3];
    let leaf = bed.fabric.port(bed.hosts()[9], 1).unwrap().link.unwrap().node;
    assert_ne!(bed.fabric.port(host, 1).unwrap().link.unwrap().node, leaf);
    for node in [host, leaf] {
        let now = bed.clock.now();
        bed.fabric.reboot(now, node).unwrap();
    }
    bed.run_for(Duration::from_secs(1));
    let asked = start_again(&mut bed, Settings::default(), lids, Some(left));
    assert_eq!(asked, 1 + 4 + 1, "the host, those of the leaf, and its port 0");
    bed.assert_all_reachable();
}

/// Regression: a leaf lost its uplinks, so that the registrations of its hosts were removed, and
/// was back when the manager started again. The links of the hosts had been active all the time.
#[test]
fn who_lost_registrations_before_a_restart_is_asked() {
    let (mut bed, lids, left, before) = stopped(Settings::default());
    let host = bed.hosts()[0];
    let lapsed = bed.fabric.port(bed.hosts()[7], 1).unwrap().guid;
    bed.manage(host, Settings::default(), lids);
    let now = bed.clock.now();
    let sweeper = &mut bed.managers[0].sweeper;
    sweeper.set_fingerprint(Some(left));
    sweeper.set_lapsed_ports(now, &Arc::new(BTreeSet::from([lapsed])), false);
    bed.bring_up();
    bed.run_for(Duration::from_secs(20));
    assert_eq!(bed.sweeper().clients_to_ask(), 0);
    assert_eq!(bed.fabric.counters().reregistrations, before + 1);
    assert_eq!(bed.managers[0].sweeper.take_asked(), [lapsed]);
    assert_eq!(bed.managers[0].sweeper.take_asked(), []);
}

/// Another manager at the same port has the same LID, so that ports do not show it.
#[test]
fn all_are_asked_if_another_manager_ran_on_the_same_port_meanwhile() {
    let (mut bed, lids, left, _) = stopped(Settings::default());
    let mut other = Settings::default();
    other.set("routing_engine", "dor").unwrap();
    other.set("reassign_lfts", "TRUE").unwrap();
    let all = bed.end_ports().len() as u64;
    assert_eq!(start_again(&mut bed, other, lids.clone(), None), all);
    bed.crash_manager();
    assert_eq!(start_again(&mut bed, Settings::default(), lids, Some(left)), all);
}

/// If another SM computes the same routes, its tables cannot be distinguished from ours.
#[test]
fn all_are_asked_where_routes_have_no_choice() {
    let tree = include_str!("../../src/dump/golden/tree.net");
    let mut bed = Bed::with_manager(&Net::parse("tree", tree).unwrap(), Settings::default());
    bed.bring_up();
    let left = TableFingerprint::of(bed.sweeper().fabric(), 0);
    let lids = bed.crash_manager().sweeper.lids().clone();
    let all = bed.end_ports().len() as u64;
    assert_eq!(start_again(&mut bed, Settings::default(), lids, Some(left)), all);
}

#[test]
fn all_are_asked_if_a_manager_elsewhere_ruled_between_two_runs() {
    let (mut bed, lids, left, _) = stopped(Settings::default());
    let elsewhere = bed.hosts()[7];
    bed.manage(elsewhere, Settings::default(), LidTable::default());
    bed.bring_up();
    bed.run_for(Duration::from_secs(5));
    bed.crash_manager();
    let all = bed.end_ports().len() as u64;
    assert_eq!(start_again(&mut bed, Settings::default(), lids, Some(left)), all);
}
