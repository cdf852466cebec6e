//! SL-to-VL and VL arbitration tables on a simulated fabric.

mod common;

use std::time::Duration;

use common::{Bed, fat_tree};
use sm_core::config::Settings;
use sm_core::fabric::SubnetParameters;
use sm_core::sweep::Phase;

fn rows(bed: &Bed) -> Vec<std::sync::Arc<sa_proto::snapshot::PortTables>> {
    let plane = bed.sweeper().fabric().plane(&SubnetParameters {
        prefix: 0,
        lifetime: 18,
        sa_key: 1,
        routing_engine: String::new(),
        engine_sls: 0,
        path_sls: Vec::new(),
        managers: Vec::new(),
        policy: Default::default(),
    });
    plane.port_tables
}

#[test]
fn without_qos_no_table_is_touched() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    let report = bed.bring_up();
    assert!(rows(&bed).is_empty());
    assert!(report.phases.iter().all(|(phase, _)| *phase != Phase::PortTables));
}

#[test]
fn with_qos_every_linked_port_gets_its_tables_once() {
    let settings = Settings { qos: true, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    let first = bed.bring_up();
    assert_eq!(first.errors, 0, "{first:?}");
    let tables = rows(&bed);
    assert_eq!(tables.len(), bed.fabric.nodes().count());
    for row in &tables {
        assert_eq!(row.sl_to_vl_maps.len(), 1, "all ports have equally many VLs");
        assert!(row.sl_to_vl.is_sorted() && row.vl_arb.is_sorted());
        assert!(!row.vl_arb.is_empty());
    }
    let before = bed.sweeper().counters().transmitted;
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    let again = bed.sweeper().counters().transmitted - before;
    assert!(
        again < first.smps / 2,
        "{again} SMPs in the second sweep, {} in the first",
        first.smps
    );
}

#[test]
fn a_switch_that_was_reset_gets_its_tables_again() {
    let settings = Settings { qos: true, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    bed.bring_up();
    let before = rows(&bed);
    let spine = *bed.switches().last().unwrap();
    let sent = bed.sweeper().counters().transmitted;
    let now = bed.clock.now();
    bed.fabric.reboot(now, spine).unwrap();
    bed.run_for(Duration::from_secs(20));
    assert_eq!(rows(&bed), before);
    assert!(bed.sweeper().counters().transmitted - sent > 36, "they were set");
}

/// The limits were read from the settings and written nowhere: ports kept what their firmware has.
#[test]
fn with_qos_ports_get_the_high_priority_limit_of_their_kind() {
    let limits = |qos: bool| {
        let settings =
            Settings { qos, qos_high_limit: 3, qos_swe_high_limit: 255, ..Settings::default() };
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
        assert_eq!(bed.bring_up().errors, 0);
        // As ports say, not as they were told.
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        assert_eq!(bed.bring_up().port_infos_set, 0, "what is right is not set again");
        let fabric = bed.sweeper().fabric();
        let mut limits: Vec<(bool, u8)> = fabric
            .nodes()
            .flat_map(|(node, _)| fabric.ports_of(node))
            .filter(|&port| fabric.port(port).peer().is_some())
            .map(|port| {
                let is_switch = fabric.node_of(port).switch.is_some();
                (is_switch, fabric.port(port).port_info().vl_high_limit())
            })
            .collect();
        limits.sort_unstable();
        limits.dedup();
        limits
    };
    assert_eq!(limits(true), [(false, 3), (true, 255)]);
    assert_eq!(limits(false), [(false, 0), (true, 0)], "they keep what they have");
}
