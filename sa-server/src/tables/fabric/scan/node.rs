//! A node, with what all of its ports share.

use std::sync::Arc;

use ib_mad::types::{Lid, PKey, PortNum};
use ib_mad::wire::attribute::{CapabilityMask, NodeInfo, NodeType, PortInfo, SwitchInfo};
use sa_proto::snapshot::{Node, Port, Subnet};

use super::EndPort;
use crate::tables::limit::{Limit, quirk_mtu};

/// A node with the properties that its ports share.
pub(in crate::tables::fabric) struct Scanned<'a> {
    pub(in crate::tables::fabric) node: &'a Arc<Node>,
    /// The node as records show it: of the planes of a planarized port only the one that stands for
    /// it ([`Node::is_further_plane`]).
    pub(super) shown: Arc<Node>,
    pub(super) subnet: &'a Subnet,
    pub(super) kind: Option<NodeType>,
    pub(super) is_switch: bool,
    /// Code of the MTU reported for its paths, although more may pass.
    pub(super) quirk_mtu: Option<u8>,
    /// Row of the path classes, for switches.
    pub(super) row: u16,
}

impl<'a> Scanned<'a> {
    pub(in crate::tables::fabric) fn port(&self, num: PortNum) -> Option<&'a Port> {
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

    pub(in crate::tables::fabric) fn is_end_port(&self, port: &Port) -> bool {
        !self.is_external(port)
            && (self.is_switch || port.num != PortNum(0))
            && (self.is_switch || !self.node.is_further_plane(port))
    }

    /// The ports of an adapter that are in planes of the fabric for `port`, which stands for them;
    /// only itself if it is not planarized.
    pub(super) fn planes_of<'p>(&'p self, port: &'p Port) -> impl Iterator<Item = &'p Port> {
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

    pub(super) fn limit(&self, port: &Port) -> Limit {
        Limit::of_port(&info(port), self.capabilities(port)).reported(self.subnet)
    }

    /// Base LID and LMC. A base switch port 0 has one LID; its LMC field is ignored.
    pub(in crate::tables::fabric) fn lid(&self, port: &Port) -> (Lid, u8) {
        let Some(port) = self.managed(port) else { return (Lid::NONE, 0) };
        let enhanced = |switch: &[u8; 20]| {
            SwitchInfo::new(&switch[..]).is_ok_and(|switch| switch.enhanced_port0())
        };
        let has_lmc = !self.is_switch || self.node.switch_info.as_ref().is_some_and(enhanced);
        let info = info(port);
        (info.base_lid(), if has_lmc { info.lmc() } else { 0 })
    }

    /// Whether PortInfo has the extended link speed fields.
    pub(in crate::tables::fabric) fn has_extended_speeds(&self) -> bool {
        let probe = self.port0().or(self.node.ports.first()).map(|port| self.capabilities(port));
        probe.is_some_and(|mask| mask.contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED))
    }

    /// Whether any of its ports is planarized.
    pub(in crate::tables::fabric) fn has_planes(&self) -> bool {
        !Arc::ptr_eq(self.node, &self.shown)
    }

    /// The P_Key table; that of port 0 if an external port has none.
    pub(in crate::tables::fabric) fn keys<'p>(&self, port: &'p Port) -> &'p [PKey]
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

pub(in crate::tables::fabric) fn scan_node<'a>(
    node: &'a Arc<Node>,
    subnet: &'a Subnet,
) -> Scanned<'a> {
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

pub(super) fn info(port: &Port) -> PortInfo<&[u8; PortInfo::LEN]> {
    PortInfo::of(&port.info)
}
