//! Operators' files steer the tables that switches get, and are followed when they change.

mod common;

use std::path::Path;

use common::{Bed, fat_tree};
use sm_core::config::{Settings, SitePolicy};

fn settings(directory: &Path) -> Settings {
    let file = |name: &str| {
        let path = directory.join(name);
        std::fs::write(&path, "").unwrap();
        Some(path.to_string_lossy().into_owned())
    };
    Settings {
        partition_config_file: file("partitions"),
        hop_weights_file: file("weights"),
        ..Settings::default()
    }
}

/// Entries of switches' tables by which they send to a port.
fn entries_by(bed: &Bed, switch: fabric_sim::NodeIndex, port: u8) -> usize {
    let guid = bed.fabric.node(switch).guid;
    let fabric = bed.sweeper().fabric();
    let node = fabric.find(guid).unwrap();
    let table = fabric.switch(fabric.node(node).switch.unwrap()).lft.acknowledged().to_vec();
    table.iter().filter(|&&egress| egress == port).count()
}

fn sweep(bed: &mut Bed, policy: &SitePolicy) {
    let now = bed.clock.now();
    bed.managers[0].sweeper.set_routing_files(policy.routing.clone());
    bed.managers[0].sweeper.request_heavy_sweep(now);
    let report = bed.bring_up();
    assert_eq!(report.errors, 0, "{report:?}");
    bed.assert_all_reachable();
}

#[test]
fn a_file_that_changes_makes_routes_anew_though_the_fabric_is_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path());
    let (policy, _) = SitePolicy::load(&settings).unwrap();
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings.clone());
    sweep(&mut bed, &policy);
    let leaf = bed.switches()[0];
    let view = bed.fabric.node(leaf);
    let is_switch = |port: &u8| {
        let link = bed.fabric.port(leaf, *port).unwrap().link;
        link.is_some_and(|link| bed.switches().contains(&link.node))
    };
    let uplink = (1..=view.num_ports).find(is_switch).unwrap();
    let guid = view.guid;
    assert!(entries_by(&bed, leaf, uplink) > 1);

    let weights = directory.path().join("weights");
    std::fs::write(&weights, format!("{guid} {uplink} 4\n0x1 1 2\n")).unwrap();
    let (dear, reading) = policy.reload(&settings);
    assert!(reading.errors.is_empty(), "{:?}", reading.errors);
    sweep(&mut bed, &dear);
    // The spine behind it alone may still be nearest that way.
    assert!(entries_by(&bed, leaf, uplink) <= 1, "{}", entries_by(&bed, leaf, uplink));

    std::fs::write(&weights, "").unwrap();
    let (cheap, _) = dear.reload(&settings);
    sweep(&mut bed, &cheap);
    assert!(entries_by(&bed, leaf, uplink) > 1);
}

#[test]
fn roots_of_a_file_are_those_of_updn() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(directory.path());
    settings.set("routing_engine", "updn").unwrap();
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), settings.clone());
    // A leaf for a root: all routes go through it, up from all others and down.
    let leaf = bed.switches()[0];
    let roots = directory.path().join("roots");
    std::fs::write(&roots, format!("{} odd\n", bed.fabric.node(leaf).guid)).unwrap();
    settings.set("root_guid_file", &roots.to_string_lossy()).unwrap();
    let (policy, _) = SitePolicy::load(&settings).unwrap();
    let report = bed.bring_up();
    assert_eq!((report.errors, bed.sweeper().routing_engine()), (0, "updn"));
    let before: Vec<_> = bed.switches().iter().map(|&s| entries_by(&bed, s, 1)).collect();
    sweep(&mut bed, &policy);
    assert_eq!(bed.sweeper().routing_engine(), "updn");
    let after: Vec<_> = bed.switches().iter().map(|&s| entries_by(&bed, s, 1)).collect();
    assert_ne!(before, after);
}
