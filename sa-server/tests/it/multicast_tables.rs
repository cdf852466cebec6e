//! Tables in which other multicast forwarding tables take the place of those before.

use std::sync::Arc;

use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, Mft, MftBlock, RegistryPlane};
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
