//! Failures at any moment of a sweep: in the end there is one master, and the fabric is configured
//! correctly. Tables and states are checked in the simulator, not by the reports of a manager.
//!
//! A moment is the time after a number of SMPs of the manager: on a small fabric every number is
//! tried, on a larger one some.

mod changes;
mod deaths;
mod lies;
mod meetings;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use sm_config::Settings;
use sm_core::manage::lid::LidTable;

/// A standby detects after 40 s that its master is gone, and a last retry may follow a minute
/// later.
const LIMIT: Duration = Duration::from_secs(180);
const MINUTE: Duration = Duration::from_secs(60);

/// Goes through all cases, and then fails if any failed.
fn each<T>(cases: impl IntoIterator<Item = T>, run: impl Fn(T)) {
    let (mut all, mut failures) = (0, Vec::new());
    for case in cases {
        all += 1;
        if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(|| run(case))) {
            failures.push(panic.downcast_ref::<String>().cloned().unwrap_or_default());
        }
    }
    assert!(failures.is_empty(), "{} of {all} cases: {failures:#?}", failures.len());
}

fn of_priority(sm_priority: u8) -> Settings {
    Settings { sm_priority, ..Settings::default() }
}

/// 2 spines, 4 leaves and 8 hosts.
fn small() -> Bed {
    Bed::new(&fat_tree(2, 4, 8))
}

/// 100 hosts.
fn large() -> Bed {
    Bed::new(&fat_tree(3, 8, 100))
}

fn manage(bed: &mut Bed, host: usize, settings: Settings) {
    let host = bed.hosts()[host];
    bed.manage(host, settings, LidTable::default());
}

/// Lets the manager `at` send `smps` SMPs and no more; returns whether it had that many to send
/// within a minute.
fn run_for_smps(bed: &mut Bed, at: usize, smps: u64) -> bool {
    bed.managers[at].sends_left = Some(smps);
    let end = bed.clock.now() + MINUTE;
    while bed.managers[at].sends_left != Some(0) && bed.clock.now() < end {
        bed.run_for(Duration::from_nanos(1));
    }
    bed.managers[at].sends_left == Some(0)
}

/// LIDs of adapters' ports.
fn host_lids(bed: &Bed) -> Vec<(NodeIndex, ib_mad::types::Lid)> {
    let hosts = bed.hosts();
    let ends = bed.end_ports().into_iter();
    ends.filter(|(node, ..)| hosts.contains(node)).map(|(node, _, lid, _)| (node, lid)).collect()
}
