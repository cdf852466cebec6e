//! A subnet manager that does not belong to the subnet programs it, without notice: that is found
//! and reported, and the settings are restored, at limited rate while it lives.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use ib_mad::types::Lid;
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::sweep::Cause;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn ours() -> Settings {
    Settings { sm_key: 1, ..Settings::default() }
}

/// One whose LIDs are other ones, as of a manager that was master of another fabric.
fn foreign() -> Settings {
    Settings { sm_key: 0x77, reassign_lids: true, ..Settings::default() }
}

fn up() -> Bed {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), ours());
    bed.bring_up();
    bed
}

fn master_of(bed: &Bed, node: NodeIndex) -> Lid {
    bed.fabric.port(node, 1).unwrap().master_sm_lid
}

fn restorations(bed: &Bed) -> usize {
    let is_one = |report: &&sm_core::sweep::Report| report.cause == Some(Cause::Overwritten);
    bed.reports().iter().filter(is_one).count()
}

fn problem(bed: &Bed) -> Option<String> {
    bed.sweeper().overwritten(bed.clock.now())
}

/// Runs a foreign manager on a host until it has programmed the fabric, and removes it.
fn intrude(bed: &mut Bed, host: NodeIndex) {
    bed.manage(host, foreign(), LidTable::default());
    bed.run_until(MINUTE, "the foreign one has the subnet up", |bed| {
        !bed.managers[1].reports.is_empty()
    });
    bed.crash_manager();
}

/// Regression: a foreign manager set MasterSMLID and LIDs of all ports and died: no switch reported
/// a change, and clients had no SA until an operator asked for a sweep.
#[test]
fn what_a_foreign_manager_wrote_and_left_is_restored_within_a_minute() {
    let mut bed = up();
    let host = bed.hosts()[7];
    // What it left: our manager hears nothing of its coming and going.
    bed.managers[0].stopped = true;
    intrude(&mut bed, host);
    let other = bed.hosts()[12];
    assert_ne!(Some(master_of(&bed, other)), bed.fabric.local_lid(bed.managers[0].endpoint));
    bed.managers[0].stopped = false;
    bed.run_until(MINUTE, "it is reported", |bed| problem(bed).is_some());
    let text = problem(&bed).unwrap();
    assert!(text.starts_with("ports were programmed by another manager"), "{text}");
    bed.settle_for_good(MINUTE, "restored");
    bed.assert_all_reachable();
    assert_eq!(problem(&bed), None, "it is over");
    assert_eq!(restorations(&bed), 1);
}

/// Neither is it silent while ours runs, nor with ports as the only sign.
#[test]
fn a_foreign_manager_that_comes_and_goes_is_reported_and_its_settings_are_replaced() {
    let mut bed = up();
    let host = bed.hosts()[7];
    intrude(&mut bed, host);
    bed.run_until(MINUTE, "it is reported", |bed| problem(bed).is_some());
    bed.settle_for_good(2 * MINUTE, "restored");
    bed.run_for(MINUTE);
    bed.settle_for_good(MINUTE, "restored for good");
    bed.assert_all_reachable();
    assert_eq!((problem(&bed), bed.sweeper().foreign_sms().count()), (None, 0));
}

/// A rival that lives, and restores its settings in the same way, does not cause endless sweeps,
/// and the subnet is ours once it is gone.
#[test]
fn a_rival_that_lives_is_overwritten_at_limited_rate() {
    let mut bed = up();
    let host = bed.hosts()[7];
    bed.manage(host, foreign(), LidTable::default());
    bed.run_for(10 * MINUTE);
    assert!(problem(&bed).is_some());
    assert_eq!(bed.sweeper().foreign_sms().count(), 1);
    assert!((2..=8).contains(&restorations(&bed)), "{}", restorations(&bed));
    bed.crash_manager();
    bed.run_for(MINUTE);
    bed.settle_for_good(SECOND, "ours again");
    bed.assert_all_reachable();
    bed.run_for(MINUTE / 4);
    assert_eq!((problem(&bed), bed.sweeper().foreign_sms().count()), (None, 0));
}

/// A second one beside a known one is found, and each of them ends by itself.
#[test]
fn foreign_managers_are_reported_one_by_one() {
    let mut bed = up();
    for host in [7, 12] {
        let host = bed.hosts()[host];
        bed.manage(host, foreign(), LidTable::default());
        bed.run_for(MINUTE);
    }
    assert_eq!(bed.sweeper().foreign_sms().count(), 2);
    bed.crash_manager();
    bed.run_for(MINUTE);
    assert_eq!(bed.sweeper().foreign_sms().count(), 1);
    // Its host hangs: it is gone although its port still names it.
    bed.managers[1].stopped = true;
    bed.run_for(MINUTE);
    assert_eq!(bed.sweeper().foreign_sms().count(), 0);
}

/// Reading end ports costs little: a quiet fabric is not swept as a whole.
#[test]
fn a_quiet_fabric_is_not_restored() {
    let mut bed = up();
    let before = bed.reports().len();
    bed.run_for(10 * MINUTE);
    assert_eq!((bed.reports().len(), problem(&bed)), (before, None));
}

/// Regression: switches whose tables or LIDs a rival replaced counted as reset, and all their links
/// as returned: each counted as flapping.
#[test]
fn links_that_another_manager_wrote_to_have_not_returned() {
    let mut bed = up();
    let host = bed.hosts()[7];
    bed.manage(host, foreign(), LidTable::default());
    bed.run_for(3 * MINUTE);
    assert!(restorations(&bed) > 1);
    let returned: usize = bed.reports().iter().map(|report| report.returned.len()).sum();
    assert_eq!(returned, 0);
}
