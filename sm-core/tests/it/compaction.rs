//! Most nodes are powered down, and their slots are used for others.

use std::time::Duration;

use crate::common::Bed;
use crate::multicast::{heard, join, listeners};
use fabric_sim::generate::{Common, RandomGraph, Shape, generate};
use ib_mad::types::Lid;
use sm_config::Settings;
use sm_core::smp::Kind;

const MLID: Lid = Lid(0xC007);

/// Regression: all routes and trees were computed from scratch.
#[test]
fn routes_and_trees_stay_when_room_is_used_again() {
    let graph = RandomGraph { switches: 9, degree: 4, hosts: 1200, radix: None };
    let net = generate(&Shape::Random(graph), &Common::default()).unwrap();
    let mut bed = Bed::with_manager(&net, Settings::default());
    bed.bring_up();
    join(&mut bed, &[(MLID, &[1, 2, 20, 21])]);
    let hosts = bed.hosts();
    let now = bed.clock.now();
    for &host in &hosts[30..] {
        bed.fabric.node_down(now, host).unwrap();
    }
    bed.bring_up();
    bed.run_for(Duration::from_secs(3));
    assert!(bed.sweeper().fabric().wants_compaction());
    let written = |bed: &Bed| {
        [Kind::SetForwarding, Kind::SetMulticast].map(|kind| bed.sweeper().passed(kind).sent)
    };
    let before = written(&bed);
    bed.failing_routings = 1;
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    bed.run_for(Duration::from_secs(3));
    assert!(!bed.sweeper().fabric().wants_compaction());
    assert_eq!(bed.failing_routings, 1, "nothing was routed");
    assert_eq!((written(&bed), bed.sweeper().multicast_trees()), (before, 1));
    bed.failing_routings = 0;
    // The current trees have the new switch numbers.
    join(&mut bed, &[(MLID, &[1, 2, 20, 22])]);
    let listeners: Vec<_> =
        listeners(&mut bed).into_iter().filter(|(host, _)| *host < 30).collect();
    let sender = listeners[0].1;
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [2, 20, 22]);
    let spare = bed.hosts()[25];
    let now = bed.clock.now();
    bed.fabric.node_down(now, spare).unwrap();
    bed.bring_up();
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [2, 20, 22]);
}
