//! GUIDs become numbers; what is missing is reported once per file.

use super::*;
use sm_config::{ReadFile, SitePolicy};
use sm_routing::TopologyBuilder;

/// Reads files from disk.
const DISK: ReadFile = &|path, _| std::fs::read(path);

/// Two leaves 0 and 1 under spines 2 and 3, by ports 3 and 4; hosts at ports 1 and 2 of the leaves.
/// Switches have GUIDs 0xa0 to 0xa3 and LIDs 10 to 13, hosts GUIDs 1 to 4 and LIDs 1 to 4.
fn topology() -> Topology {
    let mut builder = TopologyBuilder::new();
    for ports in [4, 4, 2, 2] {
        builder.add_switch(ports).unwrap();
    }
    for (leaf, spine) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        builder.add_link((leaf, spine as u8 + 1), (spine, leaf as u8 + 1)).unwrap();
    }
    for (lid, egress_switch, exit) in [(1, 0, 1), (2, 0, 2), (3, 1, 1), (4, 1, 2)] {
        let base_lid = Lid(lid);
        builder
            .add_destination(Destination { base_lid, lid_count: 1, egress_switch, exit })
            .unwrap();
    }
    for egress_switch in 0..4 {
        let base_lid = Lid(10 + egress_switch);
        builder
            .add_destination(Destination { base_lid, lid_count: 1, egress_switch, exit: 0 })
            .unwrap();
    }
    builder.build().unwrap()
}

fn steered(named: &[(&str, &str)]) -> Steered {
    let topology = topology();
    let ports = (1..=4).map(|id| (Guid(id.into()), Lid(id)));
    let switches = (0..4).map(|number| Guid(0xa0 + number));
    let places = Places::new(&topology, switches, ports);
    let directory = tempfile::tempdir().unwrap();
    let partitions = directory.path().join("partitions");
    std::fs::write(&partitions, "").unwrap();
    let mut settings = Settings {
        partition_config_file: Some(partitions.to_string_lossy().into_owned()),
        ..Settings::default()
    };
    settings.set("routing_engine", "updn,ftree,file").unwrap();
    for (key, text) in named {
        let path = directory.path().join(key);
        std::fs::write(&path, text).unwrap();
        assert_eq!(settings.set(key, &path.to_string_lossy()), Ok(true));
    }
    let (policy, reading) = SitePolicy::load(&settings, DISK).unwrap();
    assert!(reading.errors.is_empty(), "{:?}", reading.errors);
    let mut steered = steer(&policy.routing, &settings, &places);
    let here = directory.path().to_string_lossy().into_owned() + "/";
    steered.remarks.iter_mut().for_each(|remark| *remark = remark.replace(&here, ""));
    steered
}

fn steering(named: &[(&str, &str)]) -> Steering {
    let Steered { steering, remarks } = steered(named);
    assert_eq!(remarks, Vec::<String>::new());
    steering
}

#[test]
fn without_files_engines_know_switches_guids_and_no_more() {
    let guids: Vec<Guid> = (0xa0..0xa4).map(Guid).collect();
    let switch_ids = guids.iter().map(|guid| guid.0).collect();
    let expected = Steering {
        common: CommonOptions { switch_ids, ..CommonOptions::default() },
        torus: torus::Options { switch_guids: guids, ..torus::Options::default() },
        ..Steering::default()
    };
    assert_eq!(steering(&[]), expected);
}

#[test]
fn roots_are_switches_or_those_that_hosts_are_on() {
    assert_eq!(steering(&[("root_guid_file", "0xa3\n0xa2\n0xa3\n0x4\n")]).updn.roots, [3, 2, 1]);
    let Steered { steering, remarks } =
        steered(&[("root_guid_file", "# spines\n0xa3\n0xb0 gone\n0xb1\n")]);
    assert_eq!(steering.updn.roots, [3]);
    assert_eq!(
        remarks,
        ["root_guid_file:3: 0x00000000000000b0 is not in the fabric, or is of the wrong node \
             type; 2 of 3 lines ignored"]
    );
}

#[test]
fn hosts_that_are_not_only_io_nodes_are_compute_nodes() {
    let lids = |lids: &[u16]| lids.iter().copied().map(Lid).collect::<Vec<_>>();
    let cn = ("cn_guid_file", "0x1\n0x2\n");
    let io = ("io_guid_file", "0x2\n0x3\n");
    let both = steering(&[cn, io]).common;
    assert_eq!((both.compute_nodes, both.io_nodes), (Some(lids(&[1, 2])), lids(&[3])));
    let only = steering(&[io]).common;
    assert_eq!((only.compute_nodes, only.io_nodes), (Some(lids(&[1, 4])), lids(&[2, 3])));
}

#[test]
fn ids_stand_for_guids_but_not_for_a_torus() {
    let steering = steering(&[("ids_guid_file", "0xa0 7\n0xa3 0x10\n")]);
    assert_eq!(steering.common.switch_ids, [7, 0xa1, 0xa2, 16]);
    assert_eq!(steering.torus.switch_guids[0], Guid(0xa0));
}

#[test]
fn weights_and_ignored_ports_are_of_links_between_switches() {
    let topology = topology();
    let link = topology.link_at(0, 3).unwrap();
    let files =
        [("hop_weights_file", "0xa0 3 5\n0xa0 1 9\n"), ("port_prof_ignore_file", "0xa0 3\n")];
    let both = steering(&files).common;
    assert_eq!(both.hop_weights.len(), topology.link_count());
    assert_eq!((both.hop_weights[link], both.hop_weights.iter().sum::<u16>()), (5, 8 + 4));
    let ignored = both.ignored_links.iter().filter(|&&ignored| ignored).count();
    assert_eq!((both.ignored_links[link], ignored), (true, 1));

    let Steered { steering, remarks } = steered(&[("hop_weights_file", "0xa0 3 1\n0xa2 3 2\n")]);
    assert!(steering.common.hop_weights.is_empty(), "all weigh 1");
    let expected = "hop_weights_file:2: 0x00000000000000a2 has no port of that number; 1 of 2 \
                    lines ignored";
    assert_eq!(remarks, [expected]);
}

#[test]
fn a_port_order_ends_with_the_ports_that_are_not_named() {
    let named = [("port_search_ordering_file", "0xa0 4 3\n0xa0 1\n0xa3 2 3\n")];
    let Steered { steering, remarks } = steered(&named);
    assert_eq!(steering.common.port_orders, [vec![4, 3, 1, 2], vec![], vec![], vec![]]);
    assert_eq!(remarks.len(), 1, "{remarks:?}");
}

#[test]
fn an_order_of_ports_and_tables_are_given_by_lids() {
    let order = ("guid_routing_order_file", "0x4\n0x1\n0x4\n");
    let table = "Unicast lids [0x0-0x4] of switch Lid 10 guid 0x00000000000000a0 (leaf):\n\
                 0x0003 004 : (Channel Adapter portguid 0x0000000000000003: 'host')\n\
                 Unicast lids [0x0-0x4] of switch Lid 20 guid 0x00000000000000b0 (gone):\n";
    let Steered { steering, remarks } = steered(&[order, ("lfts_file", table)]);
    assert_eq!(steering.common.routing_order, [Lid(4), Lid(1)]);
    assert_eq!((steering.file.lfts.len(), steering.file.lfts[0][3]), (4, 4));
    let expected = "lfts_file: 1 of 2 switches are not in the fabric, first 0x00000000000000b0";
    assert_eq!(remarks, [expected]);
    let Steered { steering, remarks } = steered(&[("lfts_file", &table.replace("004", "005"))]);
    assert!(steering.file.lfts.is_empty());
    assert!(remarks.iter().any(|remark| remark.starts_with("lfts_file:2: ")), "{remarks:?}");
}

#[test]
fn plain_settings_are_handed_on() {
    let topology = topology();
    let places = Places::new(&topology, [], []);
    let mut settings = Settings::default();
    for (key, text) in [("connect_roots", "TRUE"), ("lash_start_vl", "2")] {
        settings.set(key, text).unwrap();
    }
    let steering = steer(&RoutingFiles::default(), &settings, &places).steering;
    assert!(steering.settings.updn.connect_roots);
    assert_eq!(steering.settings.lash.start_lane, 2);
}

/// The random choice comes before the choice of another first port, as in OpenSM.
#[test]
fn ties_are_broken_as_settings_say() {
    let topology = topology();
    let places = Places::new(&topology, [], []);
    for (scatter_ports, port_shifting, ties) in [
        (0, false, Ties::InTurn),
        (0, true, Ties::Shifted),
        (7, false, Ties::Scattered(7)),
        (7, true, Ties::Scattered(7)),
    ] {
        let guid_routing_order_no_scatter = port_shifting;
        let settings = Settings {
            scatter_ports,
            port_shifting,
            guid_routing_order_no_scatter,
            ..Settings::default()
        };
        let files = RoutingFiles::default();
        let steering = steer(&files, &settings, &places).steering.common;
        assert_eq!((steering.ties, steering.ordered_take_turns), (ties, port_shifting));
        // Routes of another run are kept if it was asked for the same.
        let differs = files.digest(&settings) != files.digest(&Settings::default());
        assert_eq!(differs, ties != Ties::InTurn);
    }
}

#[test]
fn a_file_for_engines_that_are_not_tried_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, "").unwrap();
        Some(path.to_string_lossy().into_owned())
    };
    let mut settings = Settings {
        partition_config_file: file("partitions"),
        root_guid_file: file("roots"),
        hop_weights_file: file("weights"),
        ..Settings::default()
    };
    let topology = topology();
    let places = Places::new(&topology, [], []);
    let (policy, _) = SitePolicy::load(&settings, DISK).unwrap();
    let remarks = steer(&policy.routing, &settings, &places).remarks;
    assert_eq!(remarks.len(), 1);
    assert!(remarks[0].ends_with("roots has no effect: routing_engine lists none of updn, ftree"));
    settings.set("routing_engine", "dor,UPDN").unwrap();
    assert!(steer(&policy.routing, &settings, &places).remarks.is_empty());
}
