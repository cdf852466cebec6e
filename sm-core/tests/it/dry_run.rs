//! Dry runs: what a sweep would set is listed, and nothing is set. That they send nothing but Get()
//! is asserted by the bed.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use ib_mad::types::Lid;
use ib_mad::wire::attribute::{PortState, SmState};
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::smp::Kind;
use sm_core::sweep::{Change, Changes};
use sm_routing::multicast::Audience;

fn qos() -> Settings {
    let mut settings = Settings { qos: true, ..Settings::default() };
    for (key, value) in [
        ("qos_vlarb_high", "0:4,1:8"),
        ("qos_vlarb_low", "0:1,1:2,2:3"),
        ("qos_sl2vl", "0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7"),
        ("m_key", "0x5EC2E7"),
    ] {
        assert_eq!(settings.set(key, value), Ok(true), "{key}");
    }
    settings
}

/// A bed with a master on the fourth host.
fn ruled(settings: &Settings) -> Bed {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    let host = bed.hosts()[3];
    bed.manage(host, settings.clone(), LidTable::default());
    bed.bring_up();
    bed
}

/// A dry run on a host.
fn dry(bed: &mut Bed, host: usize, settings: &Settings) -> Changes {
    let host = bed.hosts()[host];
    let (report, changes) = bed.run_dry(host, settings.clone(), LidTable::default());
    assert!(report.up && report.errors == 0, "{:?}", report.faults);
    changes
}

fn of<'a>(changes: &'a Changes, attribute: &str) -> Vec<&'a Change> {
    changes.changes.iter().filter(|change| change.attribute == attribute).collect()
}

#[test]
fn a_fabric_that_is_as_it_should_be_would_not_change() {
    for settings in [Settings::default(), qos()] {
        let mut bed = ruled(&settings);
        assert_eq!(dry(&mut bed, 3, &settings), Changes::default());
        // At another port only the master's address differs.
        let other = dry(&mut bed, 9, &settings);
        assert_eq!(other.changes, []);
        assert_eq!(other.readdressed as usize, bed.end_ports().len());
        // The master has not noticed.
        assert_eq!(bed.sweeper().sm_state(), SmState::Master);
        assert_eq!(bed.what_is_wrong(), None);
    }
}

#[test]
fn each_attribute_that_differs_is_listed() {
    let mut bed = ruled(&qos());
    let mut settings = qos();
    for (key, value) in [
        ("subnet_timeout", "20"),
        ("packet_life_time", "16"),
        ("qos_vlarb_low", "0:1,1:2,2:4"),
        ("qos_sl2vl", "0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,6"),
    ] {
        assert_eq!(settings.set(key, value), Ok(true), "{key}");
    }
    let changes = dry(&mut bed, 3, &settings);
    let infos = of(&changes, "PortInfo");
    assert_eq!(infos.len(), bed.end_ports().len());
    for info in infos {
        let fields: Vec<_> = info.fields.iter().map(|change| change.field).collect();
        assert_eq!(fields, ["subnet_time_out"]);
        assert_eq!((&*info.fields[0].is, &*info.fields[0].would_be), ("18", "20"));
    }
    let switches = of(&changes, "SwitchInfo");
    assert_eq!(switches.len(), bed.switches().len());
    assert!(switches.iter().all(|switch| switch.fields.len() == 1 && switch.port.is_none()));
    let arbitration = of(&changes, "VLArbitrationTable");
    assert!(!arbitration.is_empty());
    assert!(arbitration.iter().all(|change| (change.blocks, change.entries) == (1, 1)));
    let maps = of(&changes, "SLtoVLMappingTable");
    assert!(!maps.is_empty() && maps.iter().all(|change| change.entries == change.blocks));
    assert_eq!(changes.readdressed, 0);
    let again = dry(&mut bed, 3, &settings);
    assert_eq!(again, changes, "nothing was set");
}

#[test]
fn other_routes_are_counted_by_entries() {
    let mut bed = ruled(&Settings::default());
    let mut settings = Settings { reassign_lfts: true, ..Settings::default() };
    assert_eq!(settings.set("scatter_ports", "7"), Ok(true));
    let changes = dry(&mut bed, 3, &settings);
    let tables = of(&changes, "LinearForwardingTable");
    assert!(!tables.is_empty() && tables.len() == changes.changes.len(), "{changes:?}");
    for table in tables {
        assert!(table.blocks >= 1 && table.entries >= 1 && table.port.is_none(), "{table:?}");
    }
    bed.assert_all_reachable();
}

#[test]
fn a_fabric_without_a_manager_is_left_as_it_is() {
    let net = fat_tree(2, 8, 20);
    let links = net.links().count();
    let mut bed = Bed::new(&net);
    let changes = dry(&mut bed, 3, &Settings::default());
    let infos = of(&changes, "PortInfo");
    let addressed = infos.iter().filter(|info| info.fields.iter().any(|f| f.field == "base_lid"));
    assert_eq!(addressed.count(), bed.end_ports().len());
    let active = infos.iter().filter(|info| {
        info.fields.iter().any(|f| f.field == "port_state" && f.would_be == "Active")
    });
    assert_eq!(active.count(), 2 * links);
    assert_eq!(of(&changes, "LinearForwardingTable").len(), bed.switches().len());
    for (node, num, lid, _) in bed.end_ports() {
        let port = bed.fabric.port(node, num).unwrap();
        assert_eq!((lid, port.master_sm_lid), (Lid::NONE, Lid::NONE));
        assert!(num == 0 || port.state == PortState::Initialize);
    }
}

/// A dry run does not know the registrations. A new master keeps the trees that it finds until
/// clients have registered again.
#[test]
fn multicast_trees_of_the_master_stay() {
    let mut bed = ruled(&Settings::default());
    let hosts = bed.hosts();
    let mut members: Vec<_> =
        hosts[..6].iter().map(|&host| bed.fabric.port(host, 1).unwrap().guid).collect();
    members.sort_unstable();
    bed.managers[0].sweeper.put_members([(Lid(0xC001), Audience::new(members, 0))].into());
    bed.run_for(Duration::from_secs(1));
    assert!(bed.sweeper().passed(Kind::SetMulticast).answered > 0);
    assert_eq!(dry(&mut bed, 3, &Settings::default()), Changes::default());
}
