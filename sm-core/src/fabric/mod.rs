//! The fabric as the SM knows it: nodes, switches and ports in arenas, addressed by typed indices.
//!
//! A node keeps its indices while it keeps its GUID, type and number of ports, over sweeps and
//! absences. The fabric holds what agents last reported ([`Port::info`] and others, in wire
//! format), and the forwarding tables that this SM last computed. It is discovered by `sweep`; the
//! intended configuration is decided in `manage` and `routing`.

mod assigned;
mod compact;
mod end_ports;
mod entries;
mod extent;
mod index;
mod lft;
mod mft;
mod new_links;
mod pkey;
mod plane;
mod planes;
mod policy_rows;
mod port_qos;
mod route;
mod virtual_ports;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use ib_mad::types::{Guid, PKey, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType};

use assigned::Assigned;

pub use end_ports::{Settled, Tenure};
pub use entries::{Node, Port, Switch, description};
pub use extent::Extent;
pub use index::{NodeIndex, PortIndex, SwitchIndex};
pub use lft::ForwardingTable;
pub use mft::{BlockKey, MulticastTable};
use new_links::NewLinks;
use pkey::PKeyTables;
pub use plane::SubnetParameters;
pub use policy_rows::PolicyRows;
pub use port_qos::HeldQos;
pub use route::DirectedRoute;
use virtual_ports::VirtualIndex;
pub use virtual_ports::{
    INDICES_MAX, VIRTUAL_PKEYS_MAX, VIRTUAL_PORTS_MAX, VirtualPort, VirtualPorts,
};

/// Maximum number of node slots, including those of absent nodes. There are 49,151 unicast LIDs,
/// and a node needs one to be usable.
pub const NODES_MAX: usize = 1 << 16;

/// Maximum number of ports of all these nodes: 40 per node on average.
pub const PORTS_MAX: usize = 40 * NODES_MAX;

/// Why a node cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// All slots are taken.
    #[error("fabric exceeds {NODES_MAX} nodes or {PORTS_MAX} ports")]
    Full,
}

/// Nodes, switches and ports, and their links.
#[derive(Debug, Default)]
pub struct Fabric {
    nodes: Vec<Node>,
    switches: Vec<Switch>,
    ports: Vec<Port>,
    by_guid: HashMap<Guid, NodeIndex>,
    /// The SM's own port.
    sm_port: Option<PortIndex>,
    /// Its planes, it among them; empty if it is not planarized.
    own_planes: Vec<PortIndex>,
    /// Whether any end port has further planes.
    has_planes: bool,
    pkey_tables: PKeyTables,
    /// Nodes that are present.
    present_count: usize,
    /// Node names given by the operator, by GUID.
    names: Arc<HashMap<Guid, Arc<str>>>,
    new_links: NewLinks,
    /// Whether the manager assigns LIDs and P_Keys.
    assigns: bool,
    virtual_index: VirtualIndex,
}

impl Fabric {
    /// An empty fabric with the operator's node names.
    pub fn with_names(names: Arc<HashMap<Guid, Arc<str>>>) -> Self {
        Self { names, ..Self::default() }
    }

    /// Node names given by the operator, by GUID.
    pub fn names(&self) -> &Arc<HashMap<Guid, Arc<str>>> {
        &self.names
    }

    /// The SM's own port, once found.
    pub fn sm_port(&self) -> Option<PortIndex> {
        self.sm_port
    }

    /// Sets the SM's own port.
    pub fn set_sm_port(&mut self, port: PortIndex) {
        self.sm_port = Some(port);
        let node = self.ports[port.get()].node;
        self.nodes[node.get()].upstream = None;
        self.nodes[node.get()].hops = 0;
    }

    /// The node of that index.
    #[inline]
    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.get()]
    }

    /// The node of that index, to change.
    #[inline]
    pub fn node_mut(&mut self, index: NodeIndex) -> &mut Node {
        let node = &mut self.nodes[index.get()];
        node.row = OnceLock::new();
        node
    }

    /// The switch of that index.
    #[inline]
    pub fn switch(&self, index: SwitchIndex) -> &Switch {
        &self.switches[index.get()]
    }

    /// The switch of that index, to change.
    #[inline]
    pub fn switch_mut(&mut self, index: SwitchIndex) -> &mut Switch {
        let switch = &mut self.switches[index.get()];
        self.nodes[switch.node.get()].row = OnceLock::new();
        switch
    }

    /// The linear forwarding table of a switch, to change.
    #[inline]
    pub fn lft_mut(&mut self, index: SwitchIndex) -> &mut ForwardingTable {
        &mut self.switches[index.get()].lft
    }

    /// The multicast forwarding table of a switch, to change.
    #[inline]
    pub fn mft_mut(&mut self, index: SwitchIndex) -> &mut MulticastTable {
        &mut self.switches[index.get()].mft
    }

    /// The port of that index.
    #[inline]
    pub fn port(&self, index: PortIndex) -> &Port {
        &self.ports[index.get()]
    }

    /// The port of that index, to change.
    #[inline]
    pub fn port_mut(&mut self, index: PortIndex) -> &mut Port {
        self.touch(index);
        &mut self.ports[index.get()]
    }

    /// Records the PortInfo that a port reported.
    pub fn set_port_info(&mut self, index: PortIndex, info: &[u8; 64]) {
        let port = &self.ports[index.get()];
        if !port.known || port.info != *info {
            let port = self.port_mut(index);
            port.info = *info;
            port.known = true;
        }
    }

    /// Records the SwitchInfo that a switch reported; `data` starts with it.
    pub fn set_switch_info(&mut self, index: SwitchIndex, data: &[u8; 64]) {
        let info = &data[..self.switch(index).info.len()];
        if self.switch(index).info != *info {
            self.switch_mut(index).info.copy_from_slice(info);
        }
    }

    /// Records that discovery `number` saw the link of a port.
    pub(crate) fn link_seen(&mut self, index: PortIndex, number: u32) {
        self.ports[index.get()].link_seen = number;
    }

    /// Records that discovery `number` found a node.
    pub(crate) fn node_seen(&mut self, index: NodeIndex, number: u32) {
        self.nodes[index.get()].seen = number;
    }

    /// Invalidates the published rows of a port's node and of its neighbour.
    fn touch(&mut self, index: PortIndex) {
        let port = &self.ports[index.get()];
        self.nodes[port.node.get()].row = OnceLock::new();
        if let Some(peer) = port.peer {
            self.nodes[self.ports[peer.get()].node.get()].row = OnceLock::new();
        }
    }

    /// The node of a port.
    #[inline]
    pub fn node_of(&self, port: PortIndex) -> &Node {
        self.node(self.port(port).node)
    }

    /// The node with that GUID, present or not.
    pub fn find(&self, guid: Guid) -> Option<NodeIndex> {
        self.by_guid.get(&guid).copied()
    }

    /// Port `num` of a node; `None` beyond its last port.
    #[inline]
    pub fn port_of(&self, node: NodeIndex, num: PortNum) -> Option<PortIndex> {
        let node = self.node(node);
        (num.0 <= node.port_count).then(|| PortIndex(node.first_port.0 + u32::from(num.0)))
    }

    /// All ports of a node: from 0 on a switch, from 1 elsewhere.
    pub fn ports_of(&self, node: NodeIndex) -> impl Iterator<Item = PortIndex> + use<> {
        let node = self.node(node);
        let first = node.first_port.0 + u32::from(node.switch.is_none());
        (first..=node.first_port.0 + u32::from(node.port_count)).map(PortIndex)
    }

    /// The nodes that are present.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.present)
            .map(|(i, node)| (NodeIndex(i as u32), node))
    }

    /// The switches that are present.
    pub fn switches(&self) -> impl Iterator<Item = (SwitchIndex, &Switch)> {
        self.switches
            .iter()
            .enumerate()
            .filter(|(_, switch)| self.node(switch.node).present)
            .map(|(i, switch)| (SwitchIndex(i as u32), switch))
    }

    /// Nodes present that are not switches, and switches.
    pub fn counts(&self) -> (usize, usize) {
        let switches = self.switches().count();
        (self.present_count - switches, switches)
    }

    /// Number of ports of all nodes, with those that are not present.
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// Adds the node that `info`, a NodeInfo, describes, or brings it back if it was here before.
    /// Its ports are unknown and unlinked.
    pub fn add<T: AsRef<[u8]>>(
        &mut self,
        info: &NodeInfo<T>,
        kind: NodeType,
    ) -> Result<NodeIndex, FabricError> {
        let guid = info.node_guid();
        let mut bytes = [0; 40];
        bytes.copy_from_slice(&info.as_bytes()[..40]);
        if let Some(index) = self.find(guid) {
            if self.node(index).kind == kind && self.node(index).port_count == info.num_ports() {
                self.revive(index, bytes);
                return Ok(index);
            }
            // Same GUID with another type or number of ports: the old node is gone.
            self.remove(index);
        }
        let ports = self.ports.len() + usize::from(info.num_ports()) + 1;
        if self.nodes.len() >= NODES_MAX || ports > PORTS_MAX {
            return Err(FabricError::Full);
        }
        let index = NodeIndex(self.nodes.len() as u32);
        let first_port = PortIndex(self.ports.len() as u32);
        let switch = (kind == NodeType::Switch).then(|| {
            let switch = SwitchIndex(self.switches.len() as u32);
            let lft = ForwardingTable::unknown(guid);
            let mft = MulticastTable::default();
            self.switches.push(Switch {
                node: index,
                info: [0; 20],
                lft,
                mft,
                refuses_wildcard_maps: false,
            });
            switch
        });
        let no_pkeys = self.pkey_tables.empty();
        self.ports.extend((0..=info.num_ports()).map(|num| Port {
            node: index,
            num: PortNum(num),
            guid: if switch.is_some() { info.port_guid() } else { Guid(0) },
            info: [0; 64],
            qos: None,
            mlnx_speeds: None,
            pkeys: no_pkeys.clone(),
            known: false,
            reregistered_in: 0,
            link_seen: 0,
            peer: None,
            owns_guid: None,
            is_newcomer: false,
            assigned: Assigned::default(),
            virtual_ports: None,
        }));
        self.nodes.push(Node {
            guid,
            kind,
            info: bytes,
            description: [0; 64],
            label: self.names.get(&guid).cloned(),
            port_count: info.num_ports(),
            switch,
            present: true,
            is_new: true,
            seen: 0,
            upstream: None,
            hops: 0,
            first_port,
            entry: None,
            returned_by: None,
            row: OnceLock::new(),
        });
        self.by_guid.insert(guid, index);
        self.present_count += 1;
        Ok(index)
    }

    /// Makes an absent node present again; one that is present only takes the new NodeInfo.
    fn revive(&mut self, index: NodeIndex, info: [u8; 40]) {
        if self.node(index).present && self.node(index).info == info {
            return;
        }
        let port_guid = NodeInfo::new(&info).map(|info| info.port_guid());
        if self.node(index).switch.is_some()
            && let Ok(guid) = port_guid
        {
            // A switch whose port GUID changed or was misreported keeps nothing of the old one.
            self.ports_of(index).for_each(|port| self.port_mut(port).guid = guid);
        }
        let node = self.node_mut(index);
        node.info = info;
        if !std::mem::replace(&mut node.present, true) {
            node.is_new = true;
            self.present_count += 1;
        }
    }

    /// Removes a node from the fabric. Its slot is kept for its return; its programmed state is
    /// discarded.
    pub fn remove(&mut self, index: NodeIndex) {
        if !self.node(index).present {
            return;
        }
        for port in self.ports_of(index) {
            self.unlink(port);
            self.remove_virtual_ports(port);
            let port = self.port_mut(port);
            port.known = false;
            port.reregistered_in = 0;
            port.info = [0; 64];
            port.mlnx_speeds = None;
            port.owns_guid = None;
            port.assigned = Assigned::default();
        }
        let node = self.node_mut(index);
        node.present = false;
        node.upstream = None;
        if let Some(switch) = node.switch {
            let switch = self.switch_mut(switch);
            switch.lft.forget();
            switch.mft.forget();
            switch.info = [0; 20];
        }
        self.present_count -= 1;
    }

    /// Links two ports, cutting the links either had with others.
    pub fn link(&mut self, a: PortIndex, b: PortIndex) {
        if self.port(a).peer != Some(b) {
            self.unlink(a);
            self.unlink(b);
            self.port_mut(a).peer = Some(b);
            self.port_mut(b).peer = Some(a);
            self.new_links.note(a);
        }
    }

    /// Records the port GUID of a port. Another one than before makes its link another one, too:
    /// `neighbors` names ports by their GUIDs.
    pub(crate) fn set_port_guid(&mut self, port: PortIndex, guid: Guid) {
        if self.port(port).guid != guid {
            self.port_mut(port).guid = guid;
            self.new_links.note(port);
        }
    }

    /// Cuts the link of a port, if it has one.
    pub fn unlink(&mut self, port: PortIndex) {
        if let Some(peer) = self.port_mut(port).peer.take() {
            self.port_mut(peer).peer = None;
        }
    }

    /// Records one block of 32 entries of a port's P_Key table.
    pub fn set_pkey_block(&mut self, port: PortIndex, block: u16, keys: &[PKey; 32]) {
        let old = &self.ports[port.get()].pkeys;
        self.port_mut(port).pkeys = self.pkey_tables.with_block(old, block, keys);
    }

    /// Sets the node before `node` on its directed route.
    pub(crate) fn set_upstream(&mut self, node: NodeIndex, egress: PortIndex) {
        let hops = self.node_of(egress).hops.saturating_add(1);
        let node = &mut self.nodes[node.get()];
        node.upstream = Some(egress);
        node.hops = hops;
    }

    /// Sets the port of a known node behind which a node appeared.
    pub(crate) fn set_entry(&mut self, node: NodeIndex, entry: PortIndex) {
        self.nodes[node.get()].entry = Some(entry);
    }

    /// Sets the port of a known node behind which a node with LIDs from before appeared.
    pub(crate) fn set_returned_by(&mut self, node: NodeIndex, entry: PortIndex) {
        self.nodes[node.get()].returned_by = Some(entry);
    }

    /// Describes a port, for messages.
    pub fn describe(&self, port: PortIndex) -> String {
        let (port, node) = (self.port(port), self.node_of(port));
        format!("{} '{}' {} port {}", node.kind, node.name(), node.guid, port.num)
    }
}

#[cfg(test)]
mod tests;
