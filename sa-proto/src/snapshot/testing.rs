//! Small planes and random ones, for tests of this crate.

use std::sync::Arc;

use ib_mad::types::{Guid, PKey, PortNum};
use proptest::prelude::*;

use super::*;

pub(crate) const SESSION: Session = Session { epoch: 7, sm_guid: Guid(0xA) };

pub(crate) fn node(guid: Guid) -> Node {
    Node { guid, info: [1; 40], description: [2; 64], switch_info: None, ports: vec![] }
}

fn port(guid: Guid, peer: Option<(Guid, PortNum)>) -> Port {
    let pkeys = Arc::from([PKey::DEFAULT_FULL]);
    Port { num: PortNum(1), guid, info: [0; 64], pkeys, peer }
}

/// Two nodes whose first ports are linked.
pub(crate) fn linked_pair(a: Guid, b: Guid) -> Vec<Node> {
    let end = |own: Guid, far: Guid| Node {
        ports: vec![port(own, Some((far, PortNum(1))))],
        ..node(own)
    };
    vec![end(a, b), end(b, a)]
}

/// A forwarding table with every block filled with one value.
pub(crate) fn lft(switch: Guid, blocks: &[u8]) -> Lft {
    let ports = blocks.iter().flat_map(|&fill| [fill; Lft::BLOCK_LEN]).collect();
    Lft { switch, ports }
}

/// As many virtual ports as the node has ports, with what its description says.
fn virtual_ports(node: &Node) -> VirtualPorts {
    let port = |index: u16| VirtualPort {
        index,
        state: 4,
        guid: Guid(node.guid.0 + 1000 + u64::from(index)),
        node_guid: node.guid,
        is_usable: node.description[0] != 2,
        needs_lid: false,
        description: format!("vf{}", node.description[0]),
        pkeys: vec![PKey(node.description[0].into())],
    };
    let pkeys = vec![PKey::DEFAULT_FULL];
    VirtualPorts {
        port_guid: node.guid,
        pkeys,
        ports: (0..node.ports.len() as u16).map(port).collect(),
    }
}

/// Rows with keys from a small range, so that independently drawn planes have keys in common.
fn rows<T, C: FromIterator<Arc<T>> + std::fmt::Debug>(
    row: impl Fn(u64, u8) -> T + Clone + 'static,
) -> impl Strategy<Value = C> {
    proptest::collection::btree_map(0..12u64, 0..3u8, 0..8).prop_map(move |rows| {
        rows.into_iter().map(|(key, value)| Arc::new(row(key, value))).collect()
    })
}

pub(crate) fn fabric() -> impl Strategy<Value = FabricPlane> {
    let lfts =
        proptest::collection::btree_map(0..6u64, proptest::collection::vec(0..3u8, 0..6), 0..6)
            .prop_map(|tables| {
                (tables.iter())
                    .map(|(&switch, blocks)| Arc::new(lft(Guid(switch), blocks)))
                    .collect::<Vec<_>>()
            });
    let nodes = rows::<_, Vec<_>>(|key, value| Node {
        description: [value; 64],
        ports: vec![port(Guid(key + 100), None); usize::from(value.min(1))],
        switch_info: (value == 2).then_some([9; 20]),
        ..node(Guid(key))
    });
    let mfts = rows(|key, value| Mft {
        switch: Guid(key),
        blocks: vec![MftBlock { block: 0, position: 0, masks: [value + 1; 64] }],
    });
    (any::<u8>(), nodes, lfts, mfts).prop_map(|(prefix, nodes, lfts, mfts)| FabricPlane {
        subnet: Subnet { prefix: u64::from(prefix % 2), sa_key: 0x1234, ..Subnet::default() },
        path_sls: (lfts.iter().skip(1))
            .map(|lft| Arc::new(PathSls { switch: lft.switch, sls: lft.ports.to_vec() }))
            .collect(),
        virtual_ports: nodes.iter().skip(1).map(|node| Arc::new(virtual_ports(node))).collect(),
        nodes,
        lfts,
        mfts,
        qos_rules: vec![],
        ..FabricPlane::default()
    })
}

macro_rules! random_registry {
    ({} $($(#[$doc:meta])* $table:ident: $row:ident by $field:ident: $key:ident,
        named $($subject:ident).+: $subject_type:ident,
        $variant:ident = $number:literal $name:literal;)*) => {
        pub(crate) fn registry() -> impl Strategy<Value = RegistryPlane> {
            (1..1_000u64, ($(rows($row::sample),)*)).prop_map(|(sequence, ($($table,)*))| {
                RegistryPlane { sequence, $($table,)* }
            })
        }
    };
}
crate::registry_tables!([random_registry] {});

/// A snapshot of random planes with the given fabric generation.
pub(crate) fn snapshot(generation: u64) -> impl Strategy<Value = Snapshot> {
    (fabric(), registry()).prop_map(move |(fabric, registry)| {
        Snapshot::build(SESSION, generation, fabric, registry).expect("random planes are valid")
    })
}
