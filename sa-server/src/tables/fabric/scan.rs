//! Scans the nodes of a fabric plane: the LIDs, P_Keys and limits of ports, the links between them,
//! and the records built from them.

mod like;
mod node;
mod records;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::NodeType;
use sa_proto::snapshot::{FabricPlane, Node, Port, Subnet};

use super::EndClass;
use super::end_port::{EndPort, lid_range};
use super::partition::PKeySet;
use super::record::NO_NODE;
use super::walk::{Hop, Switches};
use crate::tables::limit::{Limit, RateSupport};
use crate::tables::qos_match::GroupSets;
use node::info;
pub(super) use node::{Scanned, scan_node};
pub(super) use records::Made;

/// All nodes, ascending by GUID.
pub(super) struct Fabric<'a> {
    nodes: Vec<Scanned<'a>>,
    /// Where each is among them.
    by_guid: HashMap<Guid, u32, RandomState>,
    /// Nodes that are switches, by row.
    switches: Vec<usize>,
    /// How many of them, the first, have hosts.
    pub(super) host_rows: usize,
}

impl<'a> Fabric<'a> {
    /// Numbers the switches: those that hosts are attached to come first, since most queries ask
    /// for rows of theirs.
    pub(super) fn scan(plane: &'a FabricPlane) -> Self {
        let mut nodes: Vec<Scanned<'_>> =
            plane.nodes.iter().map(|node| scan_node(node, &plane.subnet)).collect();
        nodes.sort_by_key(|scanned| scanned.node.guid);
        nodes.dedup_by_key(|scanned| scanned.node.guid);
        let by_guid = nodes.iter().map(|scanned| scanned.node.guid).zip(0..).collect();
        let mut fabric = Self { nodes, by_guid, switches: Vec::new(), host_rows: 0 };
        let has_hosts = |fabric: &Self, at: usize| {
            let mut peers = fabric.nodes[at].node.ports.iter().filter_map(|port| port.peer);
            peers.any(|(guid, _)| fabric.node(guid).is_some_and(|peer| !peer.is_switch))
        };
        let all = (0..fabric.nodes.len()).filter(|&at| fabric.nodes[at].is_switch);
        let (mut switches, others): (Vec<usize>, _) = all.partition(|&at| has_hosts(&fabric, at));
        fabric.host_rows = switches.len();
        switches.extend::<Vec<usize>>(others);
        // Rows are numbered in 16 bits, one of which means none; no subnet has LIDs for more.
        switches.truncate(usize::from(EndPort::DETACHED));
        for (row, &at) in switches.iter().enumerate() {
            fabric.nodes[at].row = row as u16;
        }
        fabric.switches = switches;
        fabric
    }

    /// Some nodes of a fabric, with their rows: all that the caller asks about, and their peers.
    pub(super) fn part(
        nodes: impl IntoIterator<Item = (&'a Arc<Node>, u16)>,
        subnet: &'a Subnet,
    ) -> Self {
        let scanned = |(node, row)| Scanned { row, ..scan_node(node, subnet) };
        let nodes: Vec<Scanned<'_>> = nodes.into_iter().map(scanned).collect();
        let by_guid = nodes.iter().map(|scanned| scanned.node.guid).zip(0..).collect();
        Self { nodes, by_guid, switches: Vec::new(), host_rows: 0 }
    }

    /// Whether a port of any node is planarized.
    pub(super) fn has_planes(&self) -> bool {
        self.nodes.iter().any(Scanned::has_planes)
    }

    /// The node with this GUID.
    pub(super) fn node(&self, guid: Guid) -> Option<&Scanned<'a>> {
        let at = *self.by_guid.get(&guid)?;
        Some(&self.nodes[at as usize])
    }

    /// The other end of a port's link.
    fn peer(&self, port: &Port) -> Option<(&Scanned<'a>, &'a Port)> {
        let (guid, num) = port.peer?;
        let peer = self.node(guid)?;
        Some((peer, peer.port(num)?))
    }

    pub(super) fn switches(&self) -> Switches {
        let mut switches = Switches::new();
        let mut hops = Vec::new();
        for &at in &self.switches {
            let scanned = &self.nodes[at];
            for port in &scanned.node.ports {
                hops.resize(port.num.0.into(), Hop::Nothing);
                hops.push(self.hop(scanned, port));
            }
            switches.push(scanned.node.guid, hops.drain(..));
        }
        switches
    }

    /// The far end of a switch's port.
    pub(super) fn hop(&self, scanned: &Scanned<'_>, port: &Port) -> Hop {
        if port.num == PortNum(0) {
            let (lid, lmc) = scanned.lid(port);
            return Hop::EndPort(lid, lmc);
        }
        match self.peer(port) {
            Some((peer, peer_port)) if peer.is_switch => {
                Hop::Switch(peer.row, scanned.limit(port).min(peer.limit(peer_port)))
            }
            Some((peer, peer_port)) => {
                let (lid, lmc) = peer.lid(peer_port);
                Hop::EndPort(lid, lmc)
            }
            None => Hop::Nothing,
        }
    }

    /// LIDs of end ports, ascending.
    pub(super) fn lids(&self) -> Vec<Lid> {
        let end_ports = self.nodes.iter().flat_map(|scanned| {
            let ports = scanned.node.ports.iter().filter(|port| scanned.is_end_port(port));
            ports.map(|port| scanned.lid(port))
        });
        let mut lids: Vec<Lid> =
            end_ports.flat_map(|(base, lmc)| lid_range(base, lmc)).map(Lid).collect();
        lids.sort_unstable();
        lids.dedup();
        lids
    }

    /// End ports without their columns, and the classes they are of.
    pub(super) fn end_ports(
        &self,
        keys: &mut impl FnMut(&Scanned<'_>, &Port) -> PKeySet,
        groups: &mut GroupSets,
    ) -> (Vec<EndClass>, Vec<EndPort>) {
        let mut classes = Vec::new();
        let mut known: HashMap<EndClass, u16> = HashMap::new();
        let mut ports = Vec::new();
        for scanned in &self.nodes {
            for port in scanned.node.ports.iter().filter(|port| scanned.is_end_port(port)) {
                let (lid, lmc) = scanned.lid(port);
                let peer = self.peer(port);
                let row = match peer {
                    _ if scanned.is_switch => scanned.row,
                    Some((peer, _)) if peer.is_switch => peer.row,
                    _ => EndPort::DETACHED,
                };
                let own = scanned.limit(port);
                let limit = peer.map_or(own, |(peer, port)| own.min(peer.limit(port)));
                let reported = scanned.quirk_mtu.map_or(limit.mtu, |mtu| limit.mtu.min(mtu));
                let class = EndClass {
                    pkeys: keys(scanned, port),
                    limit: Limit { mtu: reported, ..limit },
                    mtu_cap: limit.mtu,
                    lmc,
                    rates: RateSupport::of_port(&info(port)),
                    groups: groups.intern(port.guid, scanned.kind),
                    is_virtual: false,
                };
                let class = *known.entry(class).or_insert_with(|| {
                    classes.push(class);
                    (classes.len() - 1) as u16
                });
                ports.push(EndPort { guid: port.guid, lid, row, column: 0, class });
            }
            // Classes are numbered in 16 bits. There are never more end ports than unicast LIDs
            // in a subnet that works; of one that does not, the rest stays unknown.
            if classes.len() + usize::from(u8::MAX) >= usize::from(u16::MAX) {
                break;
            }
        }
        (classes, ports)
    }

    pub(super) fn node_of_lid(&self, lids: &[Lid]) -> Arc<[u32]> {
        let mut of_lid = vec![NO_NODE; lids.last().map_or(0, |lid| lid.index() + 1)];
        for (at, scanned) in self.nodes.iter().enumerate() {
            for port in scanned.node.ports.iter().filter(|port| scanned.is_end_port(port)) {
                let (base, lmc) = scanned.lid(port);
                for lid in lid_range(base, lmc) {
                    let entry = &mut of_lid[usize::from(lid)];
                    if *entry == NO_NODE {
                        *entry = at as u32;
                    }
                }
            }
        }
        of_lid.into()
    }

    /// GUIDs of routers' ports, by their last byte first as all end ports are walked.
    pub(super) fn routers(&self) -> Vec<Guid> {
        let routers = self.nodes.iter().filter(|node| node.kind == Some(NodeType::Router));
        let mut ports: Vec<Guid> =
            routers.flat_map(|scanned| scanned.node.ports.iter().map(|port| port.guid)).collect();
        ports.sort_by_key(|guid| guid.0.swap_bytes());
        ports
    }

    /// Rows of switches that planarized ports are cabled to, each by the port's GUID and, for one
    /// GUID, in the order of planes.
    pub(super) fn plane_rows(&self) -> Vec<(Guid, u16)> {
        let mut rows = Vec::new();
        for scanned in self.nodes.iter().filter(|scanned| scanned.has_planes()) {
            for port in scanned.node.ports.iter().filter(|port| scanned.is_end_port(port)) {
                let peers = scanned.planes_of(port).filter_map(|plane| self.peer(plane));
                let switches = peers.filter(|(peer, _)| peer.is_switch);
                rows.extend(switches.map(|(peer, _)| (port.guid, peer.row)));
            }
        }
        rows.sort_by_key(|(guid, _)| *guid);
        rows
    }

    /// Base LIDs of end ports that are linked to each other without a switch between, ascending.
    pub(super) fn direct_links(&self) -> Vec<(Lid, Lid)> {
        let mut links = Vec::new();
        for scanned in self.nodes.iter().filter(|scanned| !scanned.is_switch) {
            for port in &scanned.node.ports {
                match self.peer(port) {
                    Some((peer, peer_port)) if !peer.is_switch => {
                        links.push((scanned.lid(port).0, peer.lid(peer_port).0));
                    }
                    _ => {}
                }
            }
        }
        links.sort_unstable();
        links
    }
}

#[cfg(test)]
mod tests;
