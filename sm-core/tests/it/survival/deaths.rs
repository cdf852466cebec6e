//! The master dies after a number of SMPs of a sweep, and a standby exists or starts soon.

use std::time::Duration;

use super::{LIMIT, each, host_lids, large, manage, of_priority, run_for_smps, small};
use crate::common::Bed;

/// How many SMPs the manager `at` sends until all is well.
fn smps_until_settled(bed: &mut Bed, at: usize) -> u64 {
    let before = bed.managers[at].sweeper.counters().transmitted;
    bed.settle(LIMIT, "undisturbed");
    bed.managers[at].sweeper.counters().transmitted - before
}

/// Both there from the beginning, the one to die first of them.
fn beginning(mut bed: Bed) -> Bed {
    manage(&mut bed, 5, of_priority(9));
    manage(&mut bed, 2, of_priority(3));
    bed
}

/// The fabric is up, and then half of its switches are reset.
fn after_resets(bed: Bed) -> Bed {
    let mut bed = beginning(bed);
    bed.settle(LIMIT, "up");
    bed.run_for(Duration::from_secs(1));
    let now = bed.clock.now();
    for switch in bed.switches().into_iter().step_by(2) {
        bed.fabric.reboot(now, switch).unwrap();
    }
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed
}

/// The master dies after every `step`th SMP of the sweep that `scene` starts; the other manager
/// then has the fabric.
fn kill_at_each(step: usize, scene: impl Fn() -> Bed, keeps_lids: bool) {
    let all = smps_until_settled(&mut scene(), 0);
    assert!(all > 60, "only {all} SMPs");
    each((0..=all).step_by(step), |smps| {
        let mut bed = scene();
        let before = host_lids(&bed);
        run_for_smps(&mut bed, 0, smps);
        bed.crash(0);
        let what = format!("killed after {smps} of {all} SMPs");
        bed.settle(LIMIT, &what);
        if keeps_lids {
            assert_eq!(host_lids(&bed), before, "{what}");
        }
    });
}

#[test]
fn the_first_sweep() {
    kill_at_each(1, || beginning(small()), false);
}

#[test]
fn the_first_sweep_of_a_larger_fabric() {
    kill_at_each(331, || beginning(large()), false);
}

#[test]
fn a_sweep_after_switches_were_reset() {
    kill_at_each(1, || after_resets(small()), true);
}

#[test]
fn a_sweep_after_switches_were_reset_in_a_larger_fabric() {
    kill_at_each(331, || after_resets(large()), true);
}
