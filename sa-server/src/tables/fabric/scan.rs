//! Scans the nodes of a fabric plane: the LIDs, P_Keys and limits of ports, the links between them,
//! and the records built from them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::{Guid, Lid, PKey, PortNum};
use ib_mad::wire::attribute::{CapabilityMask, NodeInfo, NodeType, PortInfo, SwitchInfo};
use ib_mad::wire::record::{
    LinkRecord, LinkRecordRepr, NodeRecord, NodeRecordRepr, PortInfoRecord, PortInfoRecordRepr,
};
use sa_proto::snapshot::{FabricPlane, Node, Port, Subnet, find};

use super::EndClass;
use super::end_port::{EndPort, lid_range};
use super::guid_index::GuidIndex;
use super::partition::PKeySet;
use super::record::{LinkOwners, NO_NODE, NodeRows, Owner, RecordTables, Records};
use super::walk::{Hop, Switches};
use crate::tables::limit::{Limit, RateSupport, quirk_mtu};
use crate::tables::qos_match::GroupSets;

/// A node with the properties that its ports share.
pub(super) struct Scanned<'a> {
    pub(super) node: &'a Arc<Node>,
    /// The node as records show it: of the planes of a planarized port only the one that stands for
    /// it ([`Node::is_further_plane`]).
    shown: Arc<Node>,
    subnet: &'a Subnet,
    kind: Option<NodeType>,
    is_switch: bool,
    /// Code of the MTU reported for its paths, although more may pass.
    quirk_mtu: Option<u8>,
    /// Row of the path classes, for switches.
    row: u16,
}

impl<'a> Scanned<'a> {
    pub(super) fn port(&self, num: PortNum) -> Option<&'a Port> {
        // A switch usually has all its ports in the table.
        let place = self.node.ports.get(usize::from(num.0)).filter(|port| port.num == num);
        if place.is_some() {
            return place;
        }
        let at = self.node.ports.binary_search_by_key(&num, |port| port.num).ok()?;
        Some(&self.node.ports[at])
    }

    fn port0(&self) -> Option<&'a Port> {
        self.port(PortNum(0))
    }

    /// A switch's external ports share port 0's LID, P_Keys and capabilities.
    fn is_external(&self, port: &Port) -> bool {
        self.is_switch && port.num != PortNum(0)
    }

    fn is_end_port(&self, port: &Port) -> bool {
        !self.is_external(port)
            && (self.is_switch || port.num != PortNum(0))
            && (self.is_switch || !self.node.is_further_plane(port))
    }

    /// The ports of an adapter that are in planes of the fabric for `port`, which stands for them;
    /// only itself if it is not planarized.
    fn planes_of<'p>(&'p self, port: &'p Port) -> impl Iterator<Item = &'p Port> {
        let is_plane = |other: &&Port| other.num == port.num || other.guid == port.guid;
        let ports = if self.is_switch { &[][..] } else { &self.node.ports[..] };
        ports.iter().filter(is_plane)
    }

    /// The port whose LID and capabilities `port` goes by.
    fn managed<'p>(&self, port: &'p Port) -> Option<&'p Port>
    where
        'a: 'p,
    {
        if self.is_external(port) { self.port0() } else { Some(port) }
    }

    fn capabilities(&self, port: &Port) -> CapabilityMask {
        self.managed(port).map_or(CapabilityMask::NONE, |port| info(port).capability_mask())
    }

    fn limit(&self, port: &Port) -> Limit {
        Limit::of_port(&info(port), self.capabilities(port)).reported(self.subnet)
    }

    /// Base LID and LMC. A base switch port 0 has one LID; its LMC field is ignored.
    fn lid(&self, port: &Port) -> (Lid, u8) {
        let Some(port) = self.managed(port) else { return (Lid::NONE, 0) };
        let enhanced = |switch: &[u8; 20]| {
            SwitchInfo::new(&switch[..]).is_ok_and(|switch| switch.enhanced_port0())
        };
        let has_lmc = !self.is_switch || self.node.switch_info.as_ref().is_some_and(enhanced);
        let info = info(port);
        (info.base_lid(), if has_lmc { info.lmc() } else { 0 })
    }

    /// Whether PortInfo has the extended link speed fields.
    pub(super) fn has_extended_speeds(&self) -> bool {
        let probe = self.port0().or(self.node.ports.first()).map(|port| self.capabilities(port));
        probe.is_some_and(|mask| mask.contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED))
    }

    /// Whether any of its ports is planarized.
    pub(super) fn has_planes(&self) -> bool {
        !Arc::ptr_eq(self.node, &self.shown)
    }

    /// The P_Key table; that of port 0 if an external port has none.
    pub(super) fn keys<'p>(&self, port: &'p Port) -> &'p [PKey]
    where
        'a: 'p,
    {
        let own = &port.pkeys[..];
        if own.iter().any(|key| key.is_valid()) {
            return own;
        }
        self.managed(port).map_or(own, |port| &port.pkeys[..])
    }
}

/// Records while they are collected.
pub(super) struct Made {
    pub(super) nodes: Records,
    pub(super) ports: Records,
    pub(super) links: Records<LinkOwners>,
}

impl Made {
    /// None.
    pub(super) fn none() -> Self {
        Self {
            nodes: Records::new(NodeRecord::LEN, 0),
            ports: Records::new(PortInfoRecord::LEN, 0),
            links: Records::new(LinkRecord::LEN, 0),
        }
    }
}

fn info(port: &Port) -> PortInfo<&[u8; PortInfo::LEN]> {
    PortInfo::of(&port.info)
}

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

    pub(super) fn records(
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
    pub(super) fn add_records(
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

pub(super) fn scan_node<'a>(node: &'a Arc<Node>, subnet: &'a Subnet) -> Scanned<'a> {
    let info = NodeInfo::of(&node.info);
    let kind = NodeType::from_code(info.node_type());
    let is_switch = kind == Some(NodeType::Switch);
    let quirk_mtu = quirk_mtu(subnet, &info);
    let is_further = |port: &Port| !is_switch && node.is_further_plane(port);
    let mut shown = Arc::clone(node);
    if node.ports.iter().any(is_further) {
        let ports = node.ports.iter().filter(|port| !is_further(port)).cloned().collect();
        shown = Arc::new(Node { ports, ..Node::clone(node) });
    }
    Scanned { node, shown, subnet, kind, is_switch, quirk_mtu, row: EndPort::DETACHED }
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

mod like;
#[cfg(test)]
mod tests;
