//! Dump files of a running subnet manager against those that OpenSM 3.3.23 wrote when it ran on the
//! same node of the same net in ibsim, and the same ports had joined the same groups.

use std::collections::HashMap;
use std::time::Duration;

use crate::common::{Bed, DISK};
use ib_mad::netlist::Net;
use ib_mad::types::{Guid, Lid};
use sm_config::{Settings, SitePolicy};
use sm_core::manage::lid::LidTable;
use sm_core::sweep::{DumpFileKind, DumpJob, DumpScope};
use sm_routing::multicast::{Audience, Membership};

const NET: &str = include_str!("../../src/dump/golden/tree.net");
/// Four leaves below two spines, with two hosts each, except one leaf with a single host.
const FAT: &str = include_str!("../../src/dump/golden/fat.net");
/// 3 by 3 by 2 switches, with a host each.
const TORUS: &str = include_str!("../../src/dump/golden/torus.net");

/// The subnet as OpenSM had it.
fn bed() -> Bed {
    // "node003 mlx5_0", where OpenSM ran.
    managed(NET, Guid(0x0c42_a103_0377_b9a0), Settings { lmc: 1, ..Settings::default() })
}

fn managed(net: &str, home: Guid, settings: Settings) -> Bed {
    let mut bed = Bed::new(&Net::parse("net", net).unwrap());
    let home = bed.hosts().into_iter().find(|&node| bed.fabric.node(node).guid == home);
    bed.manage(home.unwrap(), settings, LidTable::default());
    assert_eq!(bed.bring_up().errors, 0);
    bed
}

fn texts(job: &DumpJob) -> HashMap<&'static str, String> {
    let render = |&file: &DumpFileKind| {
        let mut text = String::new();
        let end: Result<(), ()> = job.render(file, |part| {
            text += part;
            Ok(())
        });
        end.unwrap();
        (file.name(), text)
    };
    job.files().iter().map(render).collect()
}

#[test]
fn dump_files_are_those_of_opensm() {
    let mut bed = bed();
    let ends = bed.sweeper().fabric();
    let guid_of = |host: &str| -> Guid {
        let name = format!("node{host} mlx5_0");
        let port = ends.end_ports().find(|&port| ends.node_of(port).name() == name);
        ends.port(port.unwrap()).guid
    };
    let group = |hosts: &[&str]| -> Audience {
        let mut guids: Vec<Guid> = hosts.iter().map(|host| guid_of(host)).collect();
        guids.sort_unstable();
        Audience::new(guids, 0)
    };
    let membership: Membership = [
        (Lid(0xC000), group(&["000", "001", "004", "007"])),
        (Lid(0xC001), group(&["000", "004", "007"])),
    ]
    .into();
    bed.managers[0].sweeper.put_members(membership);
    bed.run_for(Duration::from_secs(1));

    let texts = texts(&bed.sweeper().dump_job(DumpScope::Routing));
    let golden = [
        (
            "opensm-lid-matrix.dump",
            include_str!("../../src/dump/golden/tree.opensm-lid-matrix.dump"),
        ),
        ("opensm-lfts.dump", include_str!("../../src/dump/golden/tree.opensm-lfts.dump")),
        ("opensm.fdbs", include_str!("../../src/dump/golden/tree.opensm.fdbs")),
        ("opensm.mcfdbs", include_str!("../../src/dump/golden/tree.opensm.mcfdbs")),
        ("opensm-subnet.lst", include_str!("../../src/dump/golden/tree.opensm-subnet.lst")),
    ];
    assert_eq!(texts.len(), golden.len());
    for (name, expected) in golden {
        for (line, (ours, theirs)) in (1..).zip(texts[name].lines().zip(expected.lines())) {
            assert_eq!(ours, theirs, "{name}:{line}");
        }
        assert_eq!(texts[name], expected, "{name}");
    }
}

#[test]
fn after_joins_only_multicast_tables_are_written() {
    let bed = bed();
    let job = bed.sweeper().dump_job(DumpScope::Multicast);
    assert_eq!(job.files(), [DumpFileKind::Mcfdbs]);
    assert_eq!(texts(&job)["opensm.mcfdbs"], "", "no port has joined");
}

#[test]
fn nothing_is_reported_before_the_first_routing() {
    let sweeper = sm_core::sweep::Sweeper::new(Settings::default(), LidTable::default(), 0);
    let job = sweeper.dump_job(DumpScope::Routing);
    assert_eq!(job.files(), [DumpFileKind::Mcfdbs]);
}

#[test]
fn what_opensm_writes_unasked_is_written_unasked() {
    let bed = bed();
    assert_eq!(bed.sweeper().dump_job(DumpScope::Links).files(), [DumpFileKind::Subnet]);
}

#[test]
fn virtual_lanes_by_sl_are_those_of_opensm() {
    let settings = Settings { lmc: 1, qos: true, ..Settings::default() };
    let bed = managed(NET, Guid(0x0c42_a103_0377_b9a0), settings);
    let texts = texts(&bed.sweeper().dump_job(DumpScope::Routing));
    let expected = include_str!("../../src/dump/golden/tree.opensm-sl2vl.dump");
    let ours = &texts["opensm-sl2vl.dump"];
    for (line, (ours, theirs)) in (1..).zip(ours.lines().zip(expected.lines())) {
        assert_eq!(ours, theirs, "line {line}");
    }
    assert_eq!(ours, expected);
}

fn of_fat_tree(engine: &str) -> HashMap<&'static str, String> {
    let mut settings = Settings::default();
    assert_eq!(settings.set("routing_engine", engine), Ok(true));
    let bed = managed(FAT, Guid(0x10070), settings);
    assert_eq!(bed.sweeper().routing_engine(), engine);
    texts(&bed.sweeper().dump_job(DumpScope::Routing))
}

#[test]
fn roots_of_updn_are_those_of_opensm() {
    let expected = include_str!("../../src/dump/golden/fat.opensm-updn-roots.dump");
    assert_eq!(of_fat_tree("updn")["opensm-updn-roots.dump"], expected);
    assert!(!of_fat_tree("minhop").contains_key("opensm-updn-roots.dump"));
}

#[test]
fn hosts_in_the_order_of_ftree_are_those_of_opensm() {
    let expected = include_str!("../../src/dump/golden/fat.opensm-ftree-ca-order.dump");
    assert_eq!(of_fat_tree("ftree")["opensm-ftree-ca-order.dump"], expected);
}

/// The seed is not at the origin, and x is listed in the opposite direction.
#[test]
fn places_in_a_torus_are_those_of_opensm() {
    let mut settings = Settings { partition_config_file: None, ..Settings::default() };
    settings.set("routing_engine", "torus-2QoS").unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dump/golden/torus.torus-2QoS.conf");
    settings.torus_config = Some(config.to_owned());
    let mut bed = Bed::new(&Net::parse("net", TORUS).unwrap());
    let home = bed.hosts()[0];
    bed.manage(home, settings.clone(), LidTable::default());
    let (policy, _) = SitePolicy::load(&settings, DISK).unwrap();
    bed.managers[0].sweeper.set_routing_files(policy.routing.clone());
    assert_eq!(bed.bring_up().errors, 0);
    assert_eq!(bed.sweeper().routing_engine(), "torus-2QoS");
    let texts = texts(&bed.sweeper().dump_job(DumpScope::Routing));
    let expected = include_str!("../../src/dump/golden/torus.opensm-torus.dump");
    assert_eq!(texts["opensm-torus.dump"], expected);
    let unasked = bed.sweeper().dump_job(DumpScope::Links);
    assert_eq!(unasked.files(), [DumpFileKind::Subnet]);
}

#[test]
fn nodes_have_the_names_that_operators_give_them() {
    let mut bed = Bed::new(&Net::parse("fat.net", FAT).unwrap());
    let home = bed.hosts()[0];
    bed.manage(home, Settings::default(), LidTable::default());
    let name = (Guid(0x10070), "login node".into());
    bed.managers[0].sweeper.set_node_names([name].into());
    bed.bring_up();
    let texts = texts(&bed.sweeper().dump_job(DumpScope::Routing));
    for file in ["opensm-subnet.lst", "opensm-lfts.dump"] {
        assert!(texts[file].contains("login node"), "{file}");
        assert!(!texts[file].contains("host0 ") && texts[file].contains("host1 "), "{file}");
    }
    // The SA's record equals the node's own answer.
    let fabric = bed.sweeper().fabric();
    let node = fabric.node(fabric.find(Guid(0x10070)).unwrap());
    assert!(node.description.starts_with(b"host0 mlx5_0"));
}
