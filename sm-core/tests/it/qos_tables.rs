//! SL-to-VL and VL arbitration tables on a simulated fabric.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::Refusal;
use ib_mad::wire::attribute::PortInfo;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{DATA, Smp};
use sm_config::Settings;
use sm_core::smp::Kind;
use sm_core::sweep::Phase;

fn rows(bed: &Bed) -> Vec<std::sync::Arc<sa_proto::snapshot::PortTables>> {
    let plane = bed.plane();
    plane.port_tables
}

#[test]
fn without_qos_no_table_is_touched() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    let report = bed.bring_up();
    assert!(rows(&bed).is_empty());
    assert!(report.phases.iter().all(|(phase, _)| *phase != Phase::PortTables));
}

/// Proves IBA 7.6.6, 7.6.9.
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

/// The maps that the simulated ports hold.
fn maps(bed: &Bed) -> Vec<[u8; 8]> {
    let all = bed.fabric.nodes().flat_map(|node| {
        let linked = (0..=40)
            .filter(move |&out| bed.fabric.port(node, out).is_some_and(|port| port.link.is_some()));
        linked
            .flat_map(move |out| (0..=40).map_while(move |num| bed.fabric.sl_to_vl(node, num, out)))
    });
    all.collect()
}

/// A fabric with QoS, where ports of switches have two different numbers of VLs.
fn mapped(use_optimized_slvl: bool, refuse: Option<Refusal>) -> (Bed, u64) {
    let settings = Settings { qos: true, use_optimized_slvl, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
    if let Some(rule) = refuse {
        for switch in bed.switches() {
            bed.fabric.refuse(switch, rule).unwrap();
        }
    }
    // Every fourth port of a switch reports only two VLs.
    bed.tamper = Some(Box::new(|packet| {
        let smp = Smp::new(&packet.mad).unwrap();
        let port = smp.attribute_modifier() & 0xFF;
        let is_answer = smp.method().is_response() && smp.attribute_id() == AttributeId::PORT_INFO;
        if is_answer && port != 0 && port.is_multiple_of(4) {
            PortInfo::new(&mut packet.mad[DATA]).unwrap().set_vl_cap(2);
        }
    }));
    let report = bed.bring_up();
    assert_eq!(report.errors, 0, "{report:?}");
    let sent = bed.sweeper().passed(Kind::SetSlToVl).sent;
    (bed, sent)
}

#[test]
fn a_switch_that_takes_one_map_for_all_its_ports_gets_one() {
    let (singly, many) = mapped(false, None);
    let (at_once, few) = mapped(true, None);
    assert_eq!(maps(&at_once), maps(&singly), "the same tables");
    assert_eq!(rows(&at_once), rows(&singly), "and the same are published");
    let kinds: BTreeSet<_> = maps(&at_once).into_iter().collect();
    assert!(kinds.len() > 1, "ports of two kinds are there");
    // One for each host, switch and port 0 of one, and one for each port that is otherwise.
    let (hosts, switches) = (at_once.hosts().len(), at_once.switches().len());
    let most = (hosts + switches * (2 + 8 / 4)) as u64;
    assert!(few <= most && few * 8 < many, "{few} requests for maps, {many} singly");
}

#[test]
fn a_switch_that_does_not_take_what_it_says_gets_its_maps_singly() {
    let rule = Refusal {
        method: Some(Method::SET),
        attribute: AttributeId::SL_TO_VL_MAPPING_TABLE,
        port: None,
        status: Some(Status::UNSUPPORTED_METHOD_ATTRIBUTE),
        times: 1,
    };
    let (refused, _) = mapped(true, Some(rule));
    let (singly, _) = mapped(false, None);
    assert_eq!((maps(&refused), rows(&refused)), (maps(&singly), rows(&singly)));
}

/// Regression: the limits were read from the settings and never written: ports kept those of their
/// firmware (IBA C14-62.1.1.11).
#[test]
fn with_qos_ports_get_the_high_priority_limit_of_their_kind() {
    let limits = |qos: bool| {
        let settings =
            Settings { qos, qos_high_limit: 3, qos_swe_high_limit: 255, ..Settings::default() };
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings);
        assert_eq!(bed.bring_up().errors, 0);
        // As ports report, not as they were set.
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
