//! Tables updated with other multicast forwarding tables, or other alias GUIDs.

use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::{AliasGuid, FabricPlane, Mft, MftBlock, RegistryPlane};
use sa_server::tables::Tables;

fn mfts(tables: &Tables) -> Vec<(Guid, Option<Arc<Mft>>)> {
    tables.records.all_nodes().iter().map(|node| (node.guid, node.mft.clone())).collect()
}

#[test]
fn tables_with_other_multicast_are_what_building_them_would_give() {
    let registry = RegistryPlane::default();
    let plane = crate::common::Chain { switches: 3, hosts_each: 2 }.plane(|_| {});
    let with = |count: usize, fill: u8| {
        let blocks = vec![MftBlock { block: 0, position: 0, masks: [fill; 64] }];
        let table = |switch| Arc::new(Mft { switch, blocks: blocks.clone() });
        let mfts = plane.lfts.iter().map(|lft| table(lft.switch)).take(count).collect();
        FabricPlane { mfts, ..plane.clone() }
    };
    let mut tables = Tables::build(&plane, &registry);
    for (count, fill) in [(2, 1), (3, 7), (1, 7), (0, 0)] {
        let next = with(count, fill);
        let (before, built) = (mfts(&tables), Tables::build(&next, &registry));
        let replaced = tables.with_multicast(&next);
        assert_eq!(mfts(&replaced), mfts(&built));
        assert_eq!(mfts(&tables), before, "the tables before are as they were");
        assert_eq!(replaced.end_ports.all(), built.end_ports.all());
        assert_eq!(replaced.records.nodes.len(), built.records.nodes.len());
        assert_eq!(replaced.hot_bytes(), built.hot_bytes());
        tables = replaced;
    }
}

#[test]
fn tables_with_other_aliases_are_what_building_them_would_give() {
    let plane = crate::common::Chain { switches: 3, hosts_each: 2 }.plane(|_| {});
    let host = crate::common::Chain::host_guid;
    let row = |&(alias, host, index): &(u64, u16, u8)| {
        let port_guid = crate::common::Chain::host_guid(host);
        Arc::new(AliasGuid { alias: Guid(alias), port_guid, index })
    };
    let with = |aliases: &[(u64, u16, u8)]| RegistryPlane {
        alias_guids: aliases.iter().map(row).collect(),
        ..RegistryPlane::default()
    };
    // Aliases that move, that are some port's own, of a port that is not there, two at one place.
    let steps = [
        with(&[(0x77, 1, 1), (0x78, 1, 2), (0x79, 4, 1)]),
        with(&[(0x77, 4, 3), (0x79, 4, 1), (host(2).0, 1, 2), (0x80, 99, 1)]),
        with(&[(0x77, 4, 3), (0x79, 4, 3), (0x80, 99, 1)]),
        with(&[(0x79, 4, 3), (host(2).0, 3, 1)]),
        with(&[]),
    ];
    let mut before = RegistryPlane::default();
    let mut tables = Tables::build(&plane, &before);
    for (step, registry) in (0..).zip(steps) {
        let patched = tables.with_alias_guids(&before, &registry);
        let built = Tables::build(&plane, &registry);
        assert_eq!(patched.end_ports.all(), built.end_ports.all(), "step {step}");
        assert_eq!(patched.contradictions(), built.contradictions(), "step {step}");
        for lid in (0..16).map(Lid) {
            let names = |tables: &Tables| tables.end_ports.names_by_lid(lid).to_vec();
            assert_eq!(names(&patched), names(&built), "step {step}, LID {lid}");
        }
        let guids = [0x77, 0x78, 0x79, 0x80, host(1).0, host(2).0].map(Guid);
        for guid in guids {
            let found = |tables: &Tables| tables.end_ports.by_guid(guid).copied();
            assert_eq!(found(&patched), found(&built), "step {step}, {guid}");
        }
        for (port, index) in (1..=6).flat_map(|port| (1..4).map(move |index| (host(port), index))) {
            let place = |tables: &Tables| tables.alias_guid(port, index);
            assert_eq!(place(&patched), place(&built), "step {step}, {port} {index}");
        }
        (before, tables) = (registry, patched);
    }
}
