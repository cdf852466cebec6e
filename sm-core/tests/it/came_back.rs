//! Log lines and reports about links and nodes that came back, and causes of sweeps.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use sm_config::Settings;

/// Only the SUBNET UP line and the lines about returned links and nodes show why a sweep ran.
#[test]
fn returned_nodes_are_logged_with_the_trap_that_reported_them() {
    // Time goes on to the next light sweep where nothing else is due, and that would come first.
    let settings = Settings { sweep_interval: 0, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    let first = bed.bring_up();
    assert_eq!((first.came_back.len(), first.reason().as_str()), (0, "first sweep as master"));
    let spine = *bed.switches().last().unwrap();
    let guid = bed.fabric.node(spine).guid.to_string();
    let now = bed.clock.now();
    bed.fabric.link_down(now, spine, 1).unwrap();
    let report = bed.bring_up();
    assert!(report.came_back.is_empty());
    let reason = report.reason();
    assert!(reason.starts_with("trap 128 of '") && reason.contains("' LID "), "{reason}");
    assert!(report.to_string().ends_with(&format!("; after {reason}")), "{report}");
    let before = bed.reports().len();
    let now = bed.clock.now();
    bed.fabric.link_up(now, spine, 1).unwrap();
    bed.bring_up();
    let report = &bed.reports()[before];
    assert!(report.came_back[0].starts_with("link up: switch "), "{:?}", report.came_back);
    assert!(report.came_back[0].contains(&guid), "{:?}", report.came_back);
    assert_eq!(report.came_back.len(), 1);
    assert!(report.reason().starts_with("trap 128 of '"), "{report}");
}

/// Regression: a reboot between two sweeps left no trace.
#[test]
fn a_reset_switch_or_host_is_reported_in_one_line() {
    let settings = Settings { sweep_on_trap: false, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    let (spine, host) = (*bed.switches().last().unwrap(), *bed.hosts().last().unwrap());
    for node in [spine, host] {
        let guid = bed.fabric.node(node).guid.to_string();
        let now = bed.clock.now();
        bed.fabric.reboot(now, node).unwrap();
        let report = bed.bring_up();
        assert_eq!(report.came_back.len(), 1, "{:?}", report.came_back);
        let line = &report.came_back[0];
        assert!(line.starts_with("was reset: ") && line.contains(&guid), "{line}");
        let reason = report.reason();
        assert!(reason.starts_with("change seen by light sweep at '"), "{reason}");
        bed.run_for(Duration::from_secs(1));
    }
    // A cable that was out for a moment.
    let now = bed.clock.now();
    bed.fabric.link_down(now, spine, 2).unwrap();
    let now = bed.clock.now();
    bed.fabric.link_up(now, spine, 2).unwrap();
    let report = bed.bring_up();
    assert_eq!(report.came_back.len(), 1, "{:?}", report.came_back);
    assert!(report.came_back[0].starts_with("link retrained: "), "{:?}", report.came_back);
}

/// Regression: a link between two nodes that came back was counted once from each of them, so that
/// two returns made it a flapping link.
#[test]
fn each_return_of_a_link_is_counted_once() {
    let settings = Settings { sweep_interval: 0, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    let host = *bed.hosts().last().unwrap();
    let leaf = bed.fabric.port(host, 1).unwrap().link.unwrap().node;
    let spines: Vec<u8> = (1..=8)
        .filter(|&port| {
            let far = bed.fabric.port(leaf, port).unwrap().link;
            far.is_some_and(|far| !bed.hosts().contains(&far.node))
        })
        .collect();
    for up in [false, true] {
        let before = bed.reports().len();
        for &port in &spines {
            let now = bed.clock.now();
            match up {
                true => bed.fabric.link_up(now, leaf, port).unwrap(),
                false => bed.fabric.link_down(now, leaf, port).unwrap(),
            };
        }
        bed.run_for(Duration::from_secs(30));
        let returned: Vec<_> =
            bed.reports()[before..].iter().flat_map(|report| report.returned.clone()).collect();
        let unique: std::collections::HashSet<_> = returned.iter().collect();
        assert_eq!(returned.len(), unique.len(), "{returned:x?}");
        assert_eq!(returned.is_empty(), !up);
    }
}
