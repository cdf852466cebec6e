//! Keys of opensm.conf whose effect is seen on the wire.

use std::collections::BTreeSet;

use crate::common::{Bed, fat_tree};
use fabric_sim::Refusal;
use fabric_sim::generate::{Common, FatTree, Shape, generate};
use ib_mad::netlist::{LinkRate, LinkSpeed};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{AttributeId, Status};
use ib_mad::wire::smp::Smp;
use sm_config::Settings;
use sm_core::smp::Kind;
use sm_routing::multicast::Audience;

fn settings(keys: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    for (key, value) in keys {
        assert_eq!(settings.set(key, value), Ok(true), "{key}");
    }
    settings
}

/// Widths and speeds that links between two nodes may have, as far as they differ.
fn enabled(bed: &Bed) -> Vec<(u8, u8)> {
    let fabric = bed.sweeper().fabric();
    let ports = fabric.nodes().flat_map(|(node, _)| fabric.ports_of(node));
    let linked = ports.filter(|&port| fabric.port(port).peer().is_some());
    let info = |port| {
        let info = fabric.port(port).port_info();
        (info.link_width_enabled().0, info.link_speed_enabled().0)
    };
    let mut all: Vec<_> = linked.map(info).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn links_are_forced_to_a_width_and_speed_and_freed_again() {
    let forced = settings(&[("force_link_width", "1"), ("force_link_speed", "1")]);
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), forced);
    assert_eq!(bed.bring_up().errors, 0);
    assert_eq!(enabled(&bed), [(1, 1)]);

    let now = bed.clock.now();
    assert_eq!(bed.managers[0].sweeper.follow_settings(&Settings::default()), [""; 0]);
    bed.managers[0].sweeper.request_heavy_sweep(now);
    assert_eq!(bed.bring_up().errors, 0);
    let free = enabled(&bed);
    assert!(free.iter().all(|&(width, speed)| width > 1 && speed > 1), "{free:?}");
}

#[test]
fn reread_settings_apply_or_are_reported() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let new = settings(&[("subnet_timeout", "20"), ("lmc", "1"), ("m_key", "7")]);
    let now = bed.clock.now();
    let waiting = bed.managers[0].sweeper.follow_settings(&new);
    assert_eq!(waiting, ["lmc"]);
    bed.managers[0].sweeper.request_heavy_sweep(now);
    assert_eq!(bed.bring_up().errors, 0);
    let fabric = bed.sweeper().fabric();
    for port in fabric.end_ports() {
        let info = fabric.port(port).port_info();
        assert_eq!((info.subnet_time_out(), info.lmc()), (20, 0));
    }
    assert_eq!((bed.sweeper().settings().m_key, bed.sweeper().settings().lmc), (7, 0));
}

/// The greatest number of requests of the manager that are on the wire at once in a full sweep.
fn most_on_the_wire(bed: &mut Bed, settings: &Settings) -> u64 {
    let now = bed.clock.now();
    assert_eq!(bed.managers[0].sweeper.follow_settings(settings), [""; 0]);
    bed.managers[0].sweeper.request_heavy_sweep(now);
    let (reports, most) = (bed.reports().len(), std::cell::Cell::new(0));
    bed.run_until(std::time::Duration::from_secs(60), "a sweep", |bed| {
        let counters = bed.sweeper().counters();
        let done = counters.answered + counters.expired + counters.cancelled;
        most.set(most.get().max(counters.started - done));
        bed.reports().len() > reports
    });
    most.get()
}

#[test]
fn the_number_of_smps_on_the_wire_is_read_again() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings(&[("max_wire_smps", "2")]));
    bed.bring_up();
    assert_eq!(most_on_the_wire(&mut bed, &settings(&[("max_wire_smps", "2")])), 2);
    assert!(most_on_the_wire(&mut bed, &Settings::default()) > 10);
    assert_eq!(most_on_the_wire(&mut bed, &settings(&[("max_wire_smps", "3")])), 3);
}

#[test]
fn multicast_can_be_disabled() {
    let mut bed =
        Bed::with_manager(&fat_tree(2, 8, 20), settings(&[("disable_multicast", "TRUE")]));
    bed.bring_up();
    let hosts = bed.hosts();
    let mut members: Vec<_> =
        hosts[..4].iter().map(|&host| bed.fabric.port(host, 1).unwrap().guid).collect();
    members.sort_unstable();
    bed.managers[0].sweeper.put_members([(Lid(0xC001), Audience::new(members, 0))].into());
    bed.run_for(std::time::Duration::from_secs(1));
    assert_eq!(bed.sweeper().passed(Kind::SetMulticast).sent, 0);
    bed.managers[0].sweeper.follow_settings(&Settings::default());
    bed.run_for(std::time::Duration::from_secs(1));
    assert!(bed.sweeper().passed(Kind::SetMulticast).sent > 0, "what was put before gets a tree");
}

#[test]
fn refused_maps_of_sls_are_no_errors_if_so_set() {
    for (suppressed, is_error) in [("TRUE", false), ("FALSE", true)] {
        let keys = [("qos", "TRUE"), ("suppress_sl2vl_mad_status_errors", suppressed)];
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings(&keys));
        bed.tamper = Some(Box::new(|packet| {
            let smp = Smp::new(&packet.mad).unwrap();
            if smp.method().is_response()
                && smp.attribute_id() == AttributeId::SL_TO_VL_MAPPING_TABLE
            {
                // Status: an invalid field.
                packet.mad[5] = 0x1C;
            }
        }));
        assert_eq!(bed.bring_up().errors > 0, is_error, "{suppressed}");
    }
}

/// OpenSM sets MulticastFDBTop to the last MLID of the blocks in use: groups beyond it receive
/// nothing.
#[test]
fn a_low_top_of_multicast_tables_is_lifted() {
    for (used, expected) in [("TRUE", 0xC3FF), ("FALSE", 0xC01F)] {
        let keys = settings(&[("use_mfttop", used)]);
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), keys);
        bed.tamper = Some(Box::new(|packet| {
            let smp = Smp::new(&packet.mad).unwrap();
            if smp.method().is_response() && smp.attribute_id() == AttributeId::SWITCH_INFO {
                // SwitchInfo, 18 bytes on; a top that was never set looks like OpenSM's.
                let top = &mut packet.mad[64 + 18..64 + 20];
                if top == [0, 0] {
                    top.copy_from_slice(&[0xC0, 0x1F]);
                }
            }
        }));
        assert_eq!(bed.bring_up().errors, 0);
        let fabric = bed.sweeper().fabric();
        for (_, switch) in fabric.switches() {
            assert_eq!(switch.switch_info().multicast_fdb_cap(), 1024);
            assert_eq!(switch.switch_info().multicast_fdb_top(), Lid(expected), "{used}");
        }
    }
}

/// Distinct pairs of enabled and active FDR10 of the fabric's ports.
fn fdr10(bed: &Bed) -> BTreeSet<(bool, bool)> {
    let ports = bed.fabric.nodes().flat_map(|node| (1..=8).map(move |num| (node, num)));
    let linked = ports
        .filter(|&(node, num)| bed.fabric.port(node, num).is_some_and(|port| port.link.is_some()));
    linked.filter_map(|(node, num)| bed.fabric.fdr10(node, num)).collect()
}

#[test]
fn fdr10_is_turned_off_and_on_and_left_alone() {
    let shape = FatTree { levels: 2, radix: 8, hosts: 20, oversubscription: (1, 1) };
    let rate = LinkRate { speed: LinkSpeed::Fdr10, ..LinkRate::default() };
    let common = Common { rate, ..Common::default() };
    let net = generate(&Shape::FatTree(shape), &common).unwrap();
    let mut bed = Bed::with_manager(&net, settings(&[("fdr10", "2")]));
    assert_eq!(bed.bring_up().errors, 0);
    assert_eq!(fdr10(&bed), [(false, false)].into());
    let sent = bed.sweeper().passed(Kind::SetMlnxExtPortInfo).sent;
    assert!(sent > 0);
    for (value, expected) in [("0", false), ("1", true)] {
        let lids = bed.crash_manager().sweeper.lids().clone();
        bed.manage(bed.hosts()[0], settings(&[("fdr10", value)]), lids);
        assert_eq!(bed.bring_up().errors, 0);
        assert_eq!(fdr10(&bed), [(expected, expected)].into(), "{value}");
    }
    assert_eq!(bed.sweeper().passed(Kind::SetMlnxExtPortInfo).sent, sent, "each port once");
    // Ports without FDR10 support, or with a faster link, are not queried.
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    assert_eq!(bed.sweeper().passed(Kind::MlnxExtPortInfo).sent, 0);
}

/// Older firmware does not know the attribute.
#[test]
fn ports_without_fdr10_information_are_no_fault() {
    let shape = FatTree { levels: 2, radix: 8, hosts: 20, oversubscription: (1, 1) };
    let rate = LinkRate { speed: LinkSpeed::Fdr10, ..LinkRate::default() };
    let common = Common { rate, ..Common::default() };
    let net = generate(&Shape::FatTree(shape), &common).unwrap();
    let mut bed = Bed::with_manager(&net, Settings::default());
    let rule = Refusal {
        method: None,
        attribute: AttributeId::MLNX_EXT_PORT_INFO,
        port: None,
        status: Some(Status::UNSUPPORTED_METHOD_ATTRIBUTE),
        times: u32::MAX,
    };
    for node in bed.fabric.nodes().collect::<Vec<_>>() {
        bed.fabric.refuse(node, rule).unwrap();
    }
    let report = bed.bring_up();
    assert_eq!((report.errors, bed.sweeper().faults().len()), (0, 0));
}
