//! Dump files of a running subnet manager against those that OpenSM 3.3.23 wrote when it ran on the
//! same node of the same net in ibsim, and the same ports had joined the same groups.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use common::Bed;
use ib_mad::netlist::Net;
use ib_mad::types::{Guid, Lid};
use sm_core::config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::routing::multicast::Membership;
use sm_core::sweep::{DumpFileKind, DumpJob};

const NET: &str = include_str!("../src/dump/golden/tree.net");

/// The subnet as OpenSM had it.
fn bed() -> Bed {
    let mut bed = Bed::new(&Net::parse("tree.net", NET).unwrap());
    // "node003 mlx5_0", where OpenSM ran.
    let at = |node: &_| bed.fabric.node(*node).guid == Guid(0x0c42_a103_0377_b9a0);
    let home = bed.hosts().into_iter().find(at);
    bed.manage(home.unwrap(), Settings { lmc: 1, ..Settings::default() }, LidTable::default());
    bed.bring_up();
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
    let group = |hosts: &[&str]| -> Arc<[Guid]> {
        let mut guids: Vec<Guid> = hosts.iter().map(|host| guid_of(host)).collect();
        guids.sort_unstable();
        guids.into()
    };
    let membership: Membership = [
        (Lid(0xC000), group(&["000", "001", "004", "007"])),
        (Lid(0xC001), group(&["000", "004", "007"])),
    ]
    .into();
    bed.managers[0].sweeper.put_members(membership);
    bed.run_for(Duration::from_secs(1));

    let texts = texts(&bed.sweeper().dump_job(false));
    let golden = [
        ("opensm-lid-matrix.dump", include_str!("../src/dump/golden/tree.opensm-lid-matrix.dump")),
        ("opensm-lfts.dump", include_str!("../src/dump/golden/tree.opensm-lfts.dump")),
        ("opensm.fdbs", include_str!("../src/dump/golden/tree.opensm.fdbs")),
        ("opensm.mcfdbs", include_str!("../src/dump/golden/tree.opensm.mcfdbs")),
        ("opensm-subnet.lst", include_str!("../src/dump/golden/tree.opensm-subnet.lst")),
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
    let job = bed.sweeper().dump_job(true);
    assert_eq!(job.files(), [DumpFileKind::Mcfdbs]);
    assert_eq!(texts(&job)["opensm.mcfdbs"], "", "nobody has joined");
}

#[test]
fn before_anything_is_routed_there_is_nothing_to_tell() {
    let sweeper = sm_core::sweep::Sweeper::new(Settings::default(), LidTable::default(), 0);
    let job = sweeper.dump_job(false);
    assert_eq!(job.files(), [DumpFileKind::Mcfdbs]);
}
