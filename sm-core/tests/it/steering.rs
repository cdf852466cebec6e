//! Operators' files affect the tables of switches, and changed files take effect.

use std::path::Path;

use crate::common::{Bed, DISK, fat_tree};
use fabric_sim::NodeIndex;
use fabric_sim::generate::{Common, Grid, Shape, generate};
use ib_mad::types::{Guid, Lid};
use sm_config::{Settings, SitePolicy};

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
fn a_changed_file_reroutes_an_unchanged_fabric() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path());
    let (policy, _) = SitePolicy::load(&settings, DISK).unwrap();
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
    let (dear, reading) = policy.reload(&settings, DISK);
    assert!(reading.errors.is_empty(), "{:?}", reading.errors);
    sweep(&mut bed, &dear);
    // The spine behind it alone may still be nearest that way.
    assert!(entries_by(&bed, leaf, uplink) <= 1, "{}", entries_by(&bed, leaf, uplink));

    std::fs::write(&weights, "").unwrap();
    let (cheap, _) = dear.reload(&settings, DISK);
    sweep(&mut bed, &cheap);
    assert!(entries_by(&bed, leaf, uplink) > 1);
}

/// Regression: these keys were read again, and the routes of before were kept.
#[test]
fn changed_options_reroute_an_unchanged_fabric() {
    let tables = |bed: &Bed| -> Vec<Vec<u8>> {
        let fabric = bed.sweeper().fabric();
        fabric.switches().map(|(_, switch)| switch.lft.acknowledged().to_vec()).collect()
    };
    for (key, value) in [("port_shifting", "TRUE"), ("scatter_ports", "7")] {
        let mut changed = Settings::default();
        changed.set(key, value).unwrap();
        let mut fresh = Bed::with_manager(&fat_tree(2, 8, 20), changed.clone());
        fresh.bring_up();
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
        bed.bring_up();
        assert_ne!(tables(&bed), tables(&fresh), "{key}");
        let now = bed.clock.now();
        bed.managers[0].sweeper.follow_settings(&changed);
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.bring_up();
        assert_eq!(tables(&bed), tables(&fresh), "{key}");
    }
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
    let (policy, _) = SitePolicy::load(&settings, DISK).unwrap();
    let report = bed.bring_up();
    assert_eq!((report.errors, bed.sweeper().routing_engine()), (0, "updn"));
    let before: Vec<_> = bed.switches().iter().map(|&s| entries_by(&bed, s, 1)).collect();
    sweep(&mut bed, &policy);
    assert_eq!(bed.sweeper().routing_engine(), "updn");
    let after: Vec<_> = bed.switches().iter().map(|&s| entries_by(&bed, s, 1)).collect();
    assert_ne!(before, after);
}

/// Four switches in a ring, with a host on each.
fn ring() -> Bed {
    let grid = Grid { dims: vec![4], wraps: true, hosts_per_switch: 1, radix: None };
    let net = generate(&Shape::Grid(grid), &Common::default()).unwrap();
    let mut settings = Settings::default();
    settings.set("routing_engine", "file").unwrap();
    Bed::with_manager(&net, settings)
}

/// The switches of a ring in their order along it, by node GUID.
fn along(bed: &Bed) -> Vec<NodeIndex> {
    let switches = bed.switches();
    let mut all = vec![switches[0]];
    while all.len() < switches.len() {
        let view = bed.fabric.node(all[all.len() - 1]);
        let at = all[all.len() - 1];
        let ports = (1..=view.num_ports).filter_map(|port| bed.fabric.port(at, port)?.link);
        let next = ports.map(|link| link.node).find(|n| switches.contains(n) && !all.contains(n));
        all.push(next.unwrap());
    }
    all
}

fn guid(bed: &Bed, node: NodeIndex) -> Guid {
    bed.fabric.node(node).guid
}

fn lid(bed: &Bed, guid: Guid) -> Lid {
    bed.sweeper().lids().get(guid).unwrap().first
}

/// The switch that one forwards packets for a LID to.
fn next(bed: &Bed, switch: NodeIndex, lid: Lid) -> NodeIndex {
    let fabric = bed.sweeper().fabric();
    let node = fabric.find(guid(bed, switch)).unwrap();
    let table = fabric.switch(fabric.node(node).switch.unwrap()).lft.acknowledged().to_vec();
    bed.fabric.port(switch, table[lid.index()]).unwrap().link.unwrap().node
}

/// A dump of hops between the switches of a ring; `hops` are those between two places along it.
fn matrix(bed: &Bed, ring: &[NodeIndex], hops: impl Fn(usize, usize) -> usize) -> String {
    let mut text = String::new();
    for (from, &switch) in ring.iter().enumerate() {
        text += &format!("Switch: guid {}\n", guid(bed, switch));
        for (to, &other) in ring.iter().enumerate() {
            let (lid, hops) = (lid(bed, guid(bed, other)).0, hops(from, to));
            text += &format!("{lid:#06x}: {hops:02x} # portguid {}\n", guid(bed, other));
        }
    }
    text
}

#[test]
fn hops_of_a_file_lead_the_routes_of_the_engine_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(directory.path());
    let file = directory.path().join("hops");
    for (key, value) in
        [("routing_engine", "file"), ("lid_matrix_dump_file", &file.to_string_lossy())]
    {
        settings.set(key, value).unwrap();
    }
    let mut bed = ring();
    bed.bring_up();
    assert_eq!(bed.sweeper().routing_engine(), "minhop", "there is nothing to route by yet");
    let ring = along(&bed);
    let hosts: Vec<NodeIndex> = bed.hosts();
    let host = |bed: &Bed, switch| {
        let at = |n: &NodeIndex| bed.fabric.port(*n, 1).unwrap().link.unwrap().node;
        let host = *hosts.iter().find(|n| at(n) == switch).unwrap();
        bed.sweeper().lids().get(bed.fabric.port(host, 1).unwrap().guid).unwrap().first
    };

    // As on a line whose ends are next to each other, and send the long way all the same.
    let line = |bed: &Bed, first: usize| {
        let place = move |at: usize| (at + 4 - first) % 4;
        matrix(bed, &ring, |from, to| place(from).abs_diff(place(to)))
    };
    std::fs::write(&file, line(&bed, 0)).unwrap();
    let (policy, reading) = SitePolicy::load(&settings, DISK).unwrap();
    assert!(reading.errors.is_empty(), "{:?}", reading.errors);
    sweep(&mut bed, &policy);
    assert_eq!(bed.sweeper().routing_engine(), "file");
    assert_eq!(next(&bed, ring[0], host(&bed, ring[3])), ring[1]);
    assert_eq!(next(&bed, ring[3], host(&bed, ring[0])), ring[2]);

    // A file that changes is followed.
    std::fs::write(&file, line(&bed, 2)).unwrap();
    let (policy, _) = policy.reload(&settings, DISK);
    sweep(&mut bed, &policy);
    assert_eq!(next(&bed, ring[0], host(&bed, ring[3])), ring[3]);
    assert_eq!(next(&bed, ring[1], host(&bed, ring[2])), ring[0]);

    // With impossible hop counts another engine routes.
    let far = matrix(&bed, &ring, |from, to| if from == to { 0 } else { 9 });
    std::fs::write(&file, far).unwrap();
    let (policy, _) = policy.reload(&settings, DISK);
    sweep(&mut bed, &policy);
    assert_eq!(bed.sweeper().routing_engine(), "minhop");
    assert_eq!(next(&bed, ring[1], host(&bed, ring[2])), ring[2]);
}
