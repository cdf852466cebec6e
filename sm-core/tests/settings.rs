//! Keys of opensm.conf whose effect is seen on the wire.

mod common;

use common::{Bed, fat_tree};
use ib_mad::types::Lid;
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::smp::Smp;
use sm_core::config::Settings;
use sm_core::routing::multicast::Audience;
use sm_core::smp::Kind;

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
fn settings_read_again_count_if_they_can_and_are_told_if_not() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let new = settings(&[("subnet_timeout", "20"), ("lmc", "1"), ("m_key", "7")]);
    let now = bed.clock.now();
    let waiting = bed.managers[0].sweeper.follow_settings(&new);
    assert_eq!(waiting, ["m_key", "lmc"]);
    bed.managers[0].sweeper.request_heavy_sweep(now);
    assert_eq!(bed.bring_up().errors, 0);
    let fabric = bed.sweeper().fabric();
    for port in fabric.end_ports() {
        let info = fabric.port(port).port_info();
        assert_eq!((info.subnet_time_out(), info.lmc()), (20, 0));
    }
    assert_eq!((bed.sweeper().settings().m_key, bed.sweeper().settings().lmc), (0, 0));
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
    assert!(bed.sweeper().passed(Kind::SetMulticast).sent > 0, "what was put before is planted");
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

/// OpenSM tells switches the last MLID of the blocks in use. Groups beyond would hear nothing.
#[test]
fn a_low_top_of_multicast_tables_is_lifted() {
    for (used, expected) in [("TRUE", 0xC3FF), ("FALSE", 0xC01F)] {
        let keys = settings(&[("use_mfttop", used)]);
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), keys);
        bed.tamper = Some(Box::new(|packet| {
            let smp = Smp::new(&packet.mad).unwrap();
            if smp.method().is_response() && smp.attribute_id() == AttributeId::SWITCH_INFO {
                // SwitchInfo, 18 bytes on; what nobody ever set looks like OpenSM's.
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
