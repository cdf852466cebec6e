//! Planarized fabrics: a port of an adapter that is in several planes, by a port of its own in
//! each.
//!
//! The ports of an adapter that have one port GUID are one port to clients: an end port with one
//! LID, one P_Key table and one record of the SA. One of them, the owner of the GUID, stands for it
//! ([`end_ports`](Fabric::end_ports)); the others are its *further planes*. All of them are
//! configured alike ([`lid_ports`](Fabric::lid_ports)). A plane is what links between switches
//! connect; adapters join planes, and forward nothing from one to another.

use super::{Fabric, PortIndex};

impl Fabric {
    /// The ports by which the SM sends: its own port, or that port's planes, ascending.
    pub fn own_ports(&self) -> impl Iterator<Item = PortIndex> + '_ {
        let only = self.sm_port.filter(|_| self.own_planes.is_empty());
        self.own_planes.iter().copied().chain(only)
    }

    /// Whether the SM sends by this port.
    pub fn is_own_port(&self, port: PortIndex) -> bool {
        self.sm_port == Some(port) || self.own_planes.contains(&port)
    }

    /// Sets the planes of the SM's own port, ascending; none if it is not planarized.
    pub(crate) fn set_own_planes(&mut self, planes: Vec<PortIndex>) {
        self.own_planes = planes;
    }

    /// Whether any end port has further planes, as
    /// [`settle_end_ports`](Self::settle_end_ports) found last.
    pub fn is_planarized(&self) -> bool {
        self.has_planes
    }

    /// The end port that a port with LIDs belongs to: itself, or the port of its adapter that owns
    /// their port GUID.
    pub fn end_port_of(&self, port: PortIndex) -> Option<PortIndex> {
        if self.is_end_port(port) {
            return Some(port);
        }
        let entry = self.port(port);
        if entry.owns_guid != Some(false) || !self.could_be_end_port(port) {
            return None;
        }
        self.owner_beside(port)
    }

    /// Whether a port carries LIDs: an end port, or a further plane of one.
    pub fn has_lids(&self, port: PortIndex) -> bool {
        self.end_port_of(port).is_some()
    }

    /// Whether a port is a further plane of an end port.
    pub fn is_further_plane(&self, port: PortIndex) -> bool {
        self.end_port_of(port).is_some_and(|end_port| end_port != port)
    }

    /// The ports that carry LIDs, each with the end port that it belongs to.
    pub fn lid_ports(&self) -> impl Iterator<Item = (PortIndex, PortIndex)> + '_ {
        let of_nodes = self.nodes().flat_map(move |(index, node)| {
            let last = if node.switch.is_some() { 0 } else { node.port_count };
            self.ports_of(index).take(usize::from(last.max(1)))
        });
        of_nodes.filter_map(|port| Some((port, self.end_port_of(port)?)))
    }

    /// The other ports of the port's adapter with the same port GUID, of an end port or a further
    /// plane.
    pub fn planes_beside(&self, port: PortIndex) -> impl Iterator<Item = PortIndex> + '_ {
        let (node, guid) = (self.port(port).node, self.port(port).guid);
        let is_adapter = self.node(node).switch.is_none();
        self.ports_of(node)
            .filter(move |&other| is_adapter && other != port && self.port(other).guid == guid)
    }

    /// The port of the same adapter that owns the GUID of `port`.
    pub(super) fn owner_beside(&self, port: PortIndex) -> Option<PortIndex> {
        self.planes_beside(port).find(|&other| self.port(other).owns_guid == Some(true))
    }
}
