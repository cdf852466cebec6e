//! The node, port and link records of nodes.

use std::ops::Range;
use std::sync::Arc;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::NodeInfo;
use ib_mad::wire::record::{
    LinkRecord, LinkRecordRepr, NodeRecord, NodeRecordRepr, PortInfoRecord, PortInfoRecordRepr,
};
use sa_proto::snapshot::{FabricPlane, Port, find};

use super::{Fabric, Scanned};
use crate::tables::fabric::guid_index::GuidIndex;
use crate::tables::fabric::partition::PKeySet;
use crate::tables::fabric::record::{LinkOwners, NodeRows, Owner, RecordTables, Records};

/// Records while they are collected.
pub(in crate::tables::fabric) struct Made {
    pub(in crate::tables::fabric) nodes: Records,
    pub(in crate::tables::fabric) ports: Records,
    pub(in crate::tables::fabric) links: Records<LinkOwners>,
}

impl Made {
    /// None.
    pub(in crate::tables::fabric) fn none() -> Self {
        Self {
            nodes: Records::new(NodeRecord::LEN, 0),
            ports: Records::new(PortInfoRecord::LEN, 0),
            links: Records::new(LinkRecord::LEN, 0),
        }
    }
}

impl Fabric<'_> {
    pub(in crate::tables::fabric) fn records(
        &self,
        plane: &FabricPlane,
        keys: &mut impl FnMut(&Scanned<'_>, &Port) -> PKeySet,
    ) -> RecordTables {
        let count = |of: fn(&Scanned<'_>) -> usize| self.nodes.iter().map(of).sum();
        let end_ports = |scanned: &Scanned<'_>| match scanned.is_switch {
            true => 1,
            false => scanned.shown.ports.len(),
        };
        let linked = |scanned: &Scanned<'_>| {
            scanned.node.ports.iter().filter(|port| port.peer.is_some()).count()
        };
        let nodes = Records::new(NodeRecord::LEN, count(end_ports));
        let ports = Records::new(PortInfoRecord::LEN, count(|scanned| scanned.shown.ports.len()));
        let links = Records::new(LinkRecord::LEN, count(linked));
        let mut by_node = Vec::with_capacity(self.nodes.len());
        let mut made = Made { nodes, ports, links };
        for scanned in &self.nodes {
            let [nodes, ports, links] = self.add_records(scanned, &mut made, keys);
            let node = scanned.node;
            by_node.push(NodeRows {
                guid: node.guid,
                node: Arc::clone(&scanned.shown),
                is_switch: scanned.is_switch,
                nodes,
                ports,
                links,
                extended_speeds: scanned.has_extended_speeds(),
                lft: find(&plane.lfts, node.guid).cloned(),
                mft: find(&plane.mfts, node.guid).cloned(),
                port_tables: find(&plane.port_tables, node.guid).cloned(),
            });
        }
        let Made { nodes, ports, links } = made;
        RecordTables {
            nodes: Arc::new(nodes),
            ports: Arc::new(ports),
            links: Arc::new(links),
            by_node: by_node.into(),
            node_of_lid: Arc::default(),
            nodes_of_lid: Arc::default(),
            by_guid: GuidIndex::default(),
            by_description: Arc::default(),
        }
    }

    /// Adds the records of a node; returns where they are.
    pub(in crate::tables::fabric) fn add_records(
        &self,
        scanned: &Scanned<'_>,
        made: &mut Made,
        keys: &mut impl FnMut(&Scanned<'_>, &Port) -> PKeySet,
    ) -> [Range<u32>; 3] {
        let mut owner = |scanned: &Scanned<'_>, port: &Port| Owner {
            pkeys: keys(scanned, port),
            end_port: if scanned.is_end_port(port) { scanned.lid(port).0 } else { Lid::NONE },
        };
        let lens = |made: &Made| [made.nodes.len(), made.ports.len(), made.links.len()];
        let starts = lens(made);
        for port in &scanned.node.ports {
            let from = owner(scanned, port);
            if scanned.is_end_port(port) {
                made.nodes.push(&node_record(scanned, port), from);
            }
            // Of further planes there are links only.
            if !scanned.has_planes() || scanned.shown.port(port.num).is_some() {
                made.ports.push(&port_info_record(scanned, port), from);
            }
            if let Some((peer, peer_port)) = self.peer(port) {
                let record = LinkRecordRepr {
                    from_lid: scanned.lid(port).0,
                    from_port: port.num,
                    to_port: peer_port.num,
                    to_lid: peer.lid(peer_port).0,
                };
                let to = owner(peer, peer_port);
                made.links.push(&record.to_bytes(), LinkOwners { from, to });
            }
        }
        let ends = lens(made);
        std::array::from_fn(|at| starts[at] as u32..ends[at] as u32)
    }
}

fn node_record(scanned: &Scanned<'_>, port: &Port) -> [u8; NodeRecord::LEN] {
    let mut node_info = scanned.node.info;
    NodeInfo::of_mut(&mut node_info).set_port_guid(port.guid).set_local_port_num(port.num);
    let node_description = scanned.node.description;
    NodeRecordRepr { lid: scanned.lid(port).0, node_info, node_description }.to_bytes()
}

fn port_info_record(scanned: &Scanned<'_>, port: &Port) -> [u8; PortInfoRecord::LEN] {
    PortInfoRecordRepr {
        lid: scanned.lid(port).0,
        port_num: port.num,
        options: 0,
        port_info: port.info,
    }
    .to_bytes()
}
