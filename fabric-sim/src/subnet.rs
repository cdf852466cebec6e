//! State of a simulated subnet: nodes, ports, tables, cables. Flat arrays keep a fabric of 48,000
//! LIDs small; tables use memory only when programmed.
//!
//! Nodes' answers to SMPs are in `agent`, forwarding in `forward`, time and clients in `fabric`.

mod build;
mod tables;
mod traffic;

use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};

use ib_mad::netlist::LinkRate;
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{
    NodeType, PortInfo, PortPhysState, PortState, SmNoticeRepr, SwitchInfoRepr,
};

use crate::agent::congestion::Congestion;
use crate::agent::performance::CounterSupport;
use crate::agent::virtual_port::{self, VirtualPorts};

use self::build::{PORT_INFO_LEN, reset_port_info, reset_state, reset_switch};
pub(crate) use self::tables::{
    GUID_CAP, PKEY_CAP, PortTables, guids, pkeys, sl_to_vl, vl_arbitration,
};
pub use self::traffic::PortCounter;
use self::traffic::RareCounters;
pub(crate) use self::traffic::Traffic;

/// Index of a node, in the order of the net.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u32);

/// Index of a port. Every node has an index for port 0, which only switches have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PortIndex(pub(crate) u32);

impl PortIndex {
    const NONE: Self = Self(u32::MAX);
}

/// Static data of a node.
pub(crate) struct Node {
    /// Id in the net.
    name: Box<str>,
    pub(crate) node_type: NodeType,
    /// Physical ports.
    pub(crate) num_ports: u8,
    /// Whether it is powered: otherwise it neither answers nor forwards.
    pub(crate) up: bool,
    /// Index of its port 0; the others follow.
    first_port: u32,
    /// Index in [`Subnet::switches`], if it is a switch.
    switch: u32,
    /// Whether it is an adapter with a planarized port: several of its ports have one port GUID.
    pub(crate) has_planes: bool,
    pub(crate) guid: Guid,
    pub(crate) system_image_guid: Guid,
    pub(crate) vendor_id: u32,
    pub(crate) device_id: u16,
}

/// State of a port apart from its PortInfo: all that forwarding reads, in one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Port {
    pub(crate) node: NodeIndex,
    pub(crate) number: u8,
    /// The cable was pulled by a fault.
    cut: bool,
    /// Capable of FDR10, which PortInfo cannot express.
    pub(crate) fdr10: bool,
    /// Logical state; copied into PortInfo when that is read.
    state: PortState,
    /// The far end of the cable.
    peer: PortIndex,
    pub(crate) traffic: Traffic,
}

/// Forwarding tables of a switch.
pub(crate) struct Switch {
    pub(crate) info: SwitchInfoRepr,
    /// Output port by LID, up to the highest LID programmed; 255 drops.
    pub(crate) lft: Vec<u8>,
    /// Port masks by position, then multicast LID, up to the highest programmed.
    pub(crate) mft: Vec<Vec<u16>>,
}

/// An effect of an agent's work beyond its own node.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A trap to be sent to the master SM from this port.
    Trap(PortIndex, SmNoticeRepr),
    /// The M_Key lease of this port starts; the number identifies the lease.
    LeaseBegun(PortIndex, u64),
    /// Clients behind this port must reregister.
    Reregister(PortIndex),
}

/// See the [module](self).
pub(crate) struct Subnet {
    nodes: Vec<Node>,
    ports: Vec<Port>,
    /// PortInfo as on the wire, except the state and the fields that depend on the requester.
    port_info: Vec<[u8; PORT_INFO_LEN]>,
    port_guid: Vec<Guid>,
    tables: Vec<Option<Box<PortTables>>>,
    switches: Vec<Switch>,
    descriptions: Vec<[u8; 64]>,
    names: HashMap<Box<str>, NodeIndex>,
    /// Which counters the agents offer.
    pub(crate) counter_support: CounterSupport,
    /// Settings and logs of congestion control.
    pub(crate) congestion: Congestion,
    /// Virtual ports, by the port that has them.
    pub(crate) virtual_ports: HashMap<PortIndex, VirtualPorts>,
    /// Ports whose GUID tables cannot be set.
    pub(crate) fixed_guids: BTreeSet<PortIndex>,
    /// Counters beyond those in [`Port::traffic`].
    rare: RareCounters,
    /// Links that train up to this rate only, by both of their ports.
    pub(crate) degraded: HashMap<PortIndex, LinkRate>,
    /// Running M_Key leases by port, each with its number.
    pub(crate) leases: HashMap<PortIndex, u64>,
    /// Number of leases started so far.
    pub(crate) leases_begun: u64,
    /// Pending effects, in order.
    pub(crate) effects: Vec<Effect>,
}

impl Subnet {
    pub(crate) fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeIndex, &Node)> {
        self.nodes.iter().enumerate().map(|(i, node)| (NodeIndex(i as u32), node))
    }

    /// Number of port indices, those of missing ports 0 included.
    pub(crate) fn port_places(&self) -> u32 {
        self.ports.len() as u32
    }

    pub(crate) fn node_of(&self, port: PortIndex) -> &Node {
        &self[self[port].node]
    }

    /// A port of a node; `None` if it has no such port.
    pub(crate) fn port(&self, node: NodeIndex, number: u8) -> Option<PortIndex> {
        let node = self.nodes.get(node.0 as usize)?;
        let exists = number <= node.num_ports && (number != 0 || node.is_switch());
        exists.then_some(PortIndex(node.first_port + u32::from(number)))
    }

    /// A switch's port 0, or the node's first port.
    pub(crate) fn default_port(&self, node: NodeIndex) -> PortIndex {
        let node = &self[node];
        PortIndex(node.first_port + u32::from(!node.is_switch()))
    }

    /// The port whose PortInfo holds the LID, M_Key and MasterSMLID of `port`: port 0 of a switch,
    /// else the port itself.
    pub(crate) fn management_port(&self, port: PortIndex) -> PortIndex {
        let node = self.node_of(port);
        if node.is_switch() { PortIndex(node.first_port) } else { port }
    }

    /// All ports of a node.
    pub(crate) fn ports_of(&self, node: NodeIndex) -> impl Iterator<Item = PortIndex> + use<> {
        let node = &self[node];
        let first = node.first_port + u32::from(!node.is_switch());
        (first..=node.first_port + u32::from(node.num_ports)).map(PortIndex)
    }

    /// The ports by which an adapter's port is in the planes of a fabric: those of its node with
    /// the same port GUID, ascending; only the port itself if it is not planarized.
    pub(crate) fn planes_of(&self, port: PortIndex) -> impl Iterator<Item = PortIndex> + '_ {
        let has_planes = self.node_of(port).has_planes;
        let others = has_planes.then(|| self.ports_of(self[port].node)).into_iter().flatten();
        let others = others.filter(move |&other| self.port_guid(other) == self.port_guid(port));
        others.chain((!has_planes).then_some(port))
    }

    /// The port at which the clients of `port` are: port 0 of a switch, the first plane of a
    /// planarized port, else the port itself.
    pub(crate) fn client_port(&self, port: PortIndex) -> PortIndex {
        let port = self.management_port(port);
        self.planes_of(port).next().unwrap_or(port)
    }

    /// The port that stands for `port` in what clients see of it: of a planarized port the first
    /// that is active, if any.
    pub(crate) fn shown_port(&self, port: PortIndex) -> PortIndex {
        let is_active = |&plane: &PortIndex| self.port_state(plane) == PortState::Active;
        self.planes_of(port).find(is_active).unwrap_or(port)
    }

    pub(crate) fn port_guid(&self, port: PortIndex) -> Guid {
        self.port_guid[port.0 as usize]
    }

    /// Finds a node by its id in the net or else by description or node GUID.
    pub(crate) fn find(&self, name: &str) -> Option<NodeIndex> {
        let by_description = || {
            let same = |text: &[u8; 64]| {
                let len = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
                &text[..len] == name.as_bytes()
            };
            self.descriptions.iter().position(same)
        };
        let by_guid = || {
            let guid: Guid = name.strip_prefix("0x").and_then(|_| name.parse().ok())?;
            self.nodes.iter().position(|node| node.guid == guid)
        };
        let found = || by_description().or_else(by_guid).map(|i| NodeIndex(i as u32));
        self.names.get(name).copied().or_else(found)
    }

    pub(crate) fn name(&self, node: NodeIndex) -> &str {
        &self[node].name
    }

    pub(crate) fn description(&self, node: NodeIndex) -> &[u8; 64] {
        &self.descriptions[node.0 as usize]
    }

    pub(crate) fn description_mut(&mut self, node: NodeIndex) -> &mut [u8; 64] {
        &mut self.descriptions[node.0 as usize]
    }

    /// The far end of the cable at `port`, whether or not it is cut.
    pub(crate) fn peer(&self, port: PortIndex) -> Option<PortIndex> {
        let peer = self[port].peer;
        (peer != PortIndex::NONE).then_some(peer)
    }

    /// The far end of an intact cable between powered nodes.
    pub(crate) fn wired_peer(&self, port: PortIndex) -> Option<PortIndex> {
        let peer = self.peer(port)?;
        let wired = !self[port].cut && self.node_of(port).up && self.node_of(peer).up;
        wired.then_some(peer)
    }

    /// Cuts or restores the cable at `port`. Link states follow in [`Subnet::settle`].
    pub(crate) fn set_cut(&mut self, port: PortIndex, cut: bool) {
        self[port].cut = cut;
        if let Some(peer) = self.peer(port) {
            self[peer].cut = cut;
        }
    }

    /// Takes the cable at `port` out of both ends. Their links must be down.
    pub(crate) fn disconnect(&mut self, port: PortIndex) {
        if let Some(peer) = self.peer(port) {
            for end in [port, peer] {
                (self[end].peer, self[end].cut) = (PortIndex::NONE, false);
                self.degraded.remove(&end);
            }
        }
    }

    /// Lays a cable between two ports that have none.
    pub(crate) fn connect(&mut self, a: PortIndex, b: PortIndex) {
        (self[a].peer, self[b].peer) = (b, a);
    }

    pub(crate) fn is_cut(&self, port: PortIndex) -> bool {
        self[port].cut
    }

    #[inline]
    pub(crate) fn port_info(&self, port: PortIndex) -> PortInfo<&[u8; PORT_INFO_LEN]> {
        PortInfo::of(&self.port_info[port.0 as usize])
    }

    #[inline]
    pub(crate) fn port_info_mut(&mut self, port: PortIndex) -> PortInfo<&mut [u8; PORT_INFO_LEN]> {
        PortInfo::of_mut(&mut self.port_info[port.0 as usize])
    }

    #[inline]
    pub(crate) fn port_state(&self, port: PortIndex) -> PortState {
        self[port].state
    }

    pub(crate) fn set_port_state(&mut self, port: PortIndex, state: PortState) {
        self[port].state = state;
    }

    pub(crate) fn phys_state(&self, port: PortIndex) -> PortPhysState {
        let code = self.port_info(port).port_physical_state();
        PortPhysState::from_code(code).unwrap_or(PortPhysState::Polling)
    }

    /// Whether `lid` is one of the port's LIDs.
    pub(crate) fn owns_lid(&self, port: PortIndex, lid: Lid) -> bool {
        let info = self.port_info(port);
        let base = info.base_lid();
        base != Lid::NONE && lid.0 >> info.lmc() == base.0 >> info.lmc()
    }

    /// Programmed tables of a port; `None` if all have their values after reset.
    pub(crate) fn tables(&self, port: PortIndex) -> Option<&PortTables> {
        self.tables[port.0 as usize].as_deref()
    }

    pub(crate) fn tables_mut(&mut self, port: PortIndex) -> &mut PortTables {
        self.tables[port.0 as usize].get_or_insert_default()
    }

    /// Forwarding tables of a switch; `None` for other nodes.
    #[inline]
    pub(crate) fn switch(&self, node: NodeIndex) -> Option<&Switch> {
        self.switches.get(self[node].switch as usize)
    }

    pub(crate) fn switch_mut(&mut self, node: NodeIndex) -> Option<&mut Switch> {
        let place = self[node].switch as usize;
        self.switches.get_mut(place)
    }

    /// Sets the multicast table size of all switches; kept over a power cycle.
    pub(crate) fn set_multicast_capacity(&mut self, mlids: u16) {
        self.switches.iter_mut().for_each(|switch| switch.info.multicast_fdb_cap = mlids);
    }

    /// Resets all that a node loses by a power cycle.
    pub(crate) fn reset(&mut self, node: NodeIndex) {
        for port in self.ports_of(node) {
            reset_port_info(&mut self.port_info[port.0 as usize]);
            self.tables[port.0 as usize] = None;
            self.clear_counters(port);
            self.congestion.reset(port);
            if let Some(virtual_ports) = self.virtual_ports.get_mut(&port) {
                virtual_ports.reset();
            }
            virtual_port::show(self, port);
            self[port].state = reset_state(self.node_of(port).is_switch(), self[port].number);
        }
        if let Some(switch) = self.switch_mut(node) {
            reset_switch(switch);
        }
    }
}

impl Node {
    #[inline]
    pub(crate) fn is_switch(&self) -> bool {
        self.node_type == NodeType::Switch
    }
}

impl Switch {
    /// The output port of a unicast LID; 255 if none.
    #[inline]
    pub(crate) fn out_port(&self, lid: Lid) -> u8 {
        if lid > self.info.linear_fdb_top {
            return 0xFF;
        }
        self.lft.get(lid.index()).copied().unwrap_or(0xFF)
    }

    /// The ports of a multicast LID: bit n of mask i is port 16 × i + n.
    pub(crate) fn multicast_mask(&self, position: usize, mlid: Lid) -> u16 {
        let top = self.info.multicast_fdb_top;
        if top != Lid::NONE && mlid > top {
            return 0;
        }
        let entry = usize::from(mlid.0.saturating_sub(Lid::MULTICAST_FIRST.0));
        self.mft.get(position).and_then(|masks| masks.get(entry)).copied().unwrap_or(0)
    }
}

impl Index<NodeIndex> for Subnet {
    type Output = Node;
    #[inline]
    fn index(&self, node: NodeIndex) -> &Node {
        &self.nodes[node.0 as usize]
    }
}

impl IndexMut<NodeIndex> for Subnet {
    fn index_mut(&mut self, node: NodeIndex) -> &mut Node {
        &mut self.nodes[node.0 as usize]
    }
}

impl Index<PortIndex> for Subnet {
    type Output = Port;
    #[inline]
    fn index(&self, port: PortIndex) -> &Port {
        &self.ports[port.0 as usize]
    }
}

impl IndexMut<PortIndex> for Subnet {
    fn index_mut(&mut self, port: PortIndex) -> &mut Port {
        &mut self.ports[port.0 as usize]
    }
}
