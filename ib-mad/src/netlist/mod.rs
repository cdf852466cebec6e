//! Model of a subnet described by a net file: nodes, ports and cables.
//!
//! This module holds the model ([`Net`]), the reader of net files ([`Net::read`], [`Net::parse`])
//! and their writer ([`Net`]'s `Display`). Net files are the topology files of `ibsim` and the
//! output of `ibnetdiscover`, which share one format. Behaviour of nodes, link states and the
//! generation of nets are in other crates.
//!
//! # Examples
//!
//! ```
//! use ib_mad::netlist::{Net, NodeKind};
//!
//! let net = Net::parse("example.net", "
//! Switch 4 \"leaf\"
//! [1] \"host-a\"[1]
//! [2] \"host-b\"[1]
//!
//! Hca 1 \"host-a\"
//! [1] \"leaf\"[1]
//!
//! Hca 1 \"host-b\"
//! [1] \"leaf\"[2]
//! ")?;
//! assert_eq!((net.count(NodeKind::Switch), net.links().count()), (1, 2));
//! assert_eq!(Net::parse("again.net", &net.to_string())?, net);
//! # Ok::<(), ib_mad::netlist::NetError>(())
//! ```

mod error;
mod rate;
mod reader;
mod writer;

pub use error::{LinkError, NetError, PortName, Problem};
pub use rate::{LinkRate, LinkSpeed, LinkWidth};

use crate::types::Guid;

/// Limit of nodes in a net: more than there are unicast LIDs.
pub const NODES_MAX: usize = 1 << 16;
/// Limit of ports per node; 255 in a forwarding table means "no port".
pub const PORTS_MAX: u8 = 254;
/// Bytes of a name that are kept. A NodeDescription has 64, and three times as many if none of them
/// is text and each is replaced.
pub const NAME_LEN_MAX: usize = 256;
/// Length limit of a node id in bytes, as in `ibsim`.
pub const NODE_ID_LEN_MAX: usize = 64;

/// Nodes and the cables between them. Each cable is recorded at both of its ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    nodes: Vec<Node>,
    /// Console commands (`do` lines of net files), in order, which the simulator runs after loading
    /// the net.
    pub commands: Vec<String>,
}

/// Node type, as in NodeInfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// Switch: forwards packets; port 0 is its management port.
    Switch,
    /// Channel adapter of a host or storage system.
    Ca,
    /// Router: connects subnets.
    Router,
}

/// A port of a net, by node index and port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRef {
    /// Index of the node in [`Net::nodes`].
    pub node: u32,
    /// Port number on that node.
    pub port: u8,
}

/// A switch, channel adapter or router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The id by which net files refer to the node, unique in its net.
    pub id: String,
    /// Switch, channel adapter or router.
    pub kind: NodeKind,
    /// NodeInfo:NodeGUID.
    pub guid: Guid,
    /// NodeInfo:SystemImageGUID.
    pub system_image_guid: Guid,
    /// NodeInfo:VendorID, 24 bits.
    pub vendor_id: u32,
    /// NodeInfo:DeviceID.
    pub device_id: u16,
    /// NodeDescription or name, at most [`NAME_LEN_MAX`] bytes if it was read.
    pub description: String,
    /// Whether a switch has an enhanced port 0 (SwitchInfo:EnhancedPort0).
    pub enhanced_port0: bool,
    /// Rate of ports without a cable: the highest rate among the node's cables.
    pub rate: LinkRate,
    ports: Vec<Port>,
}

/// A port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// PortGUID; the same for all ports of a switch.
    pub guid: Guid,
    /// The far end of the cable.
    pub peer: Option<PortRef>,
    /// The widest and fastest link that the port supports; it supports slower ones too.
    pub rate: LinkRate,
    /// Base LID of the port when the file was written, 0 if none. On a switch: of port 0.
    pub lid: u16,
    /// LMC that belongs to `lid`.
    pub lmc: u8,
    /// VLCap code, which `ibnetdiscover -f` prints for ports with a cable: 1 to 5 for 1, 2, 4, 8
    /// and 15 data VLs; 0 if the file does not state it.
    pub vl_cap: u8,
}

impl Net {
    /// A net without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// All nodes; [`PortRef::node`] is an index into them.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A port of a node; `None` if the node or port does not exist.
    pub fn port(&self, at: PortRef) -> Option<&Port> {
        self.nodes.get(at.node as usize)?.port(at.port)
    }

    /// All cables, each once, from its lower end.
    pub fn links(&self) -> impl Iterator<Item = (PortRef, PortRef)> + '_ {
        self.nodes.iter().zip(0..).flat_map(|(node, index)| {
            node.ports().filter_map(move |(number, port)| {
                let here = PortRef { node: index, port: number };
                port.peer.filter(|&peer| here < peer).map(|peer| (here, peer))
            })
        })
    }

    /// Number of nodes of this type.
    pub fn count(&self, kind: NodeKind) -> usize {
        self.nodes.iter().filter(|node| node.kind == kind).count()
    }

    /// Adds a node and returns its index. The caller ensures that ids are unique.
    ///
    /// # Panics
    /// If the net has [`NODES_MAX`] nodes; the reader and the generators check that before.
    pub fn add_node(&mut self, node: Node) -> u32 {
        assert!(self.nodes.len() < NODES_MAX, "a net has at most {NODES_MAX} nodes");
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Connects two free ports by a cable.
    pub fn connect(&mut self, a: PortRef, b: PortRef) -> Result<(), LinkError> {
        if a == b {
            return Err(LinkError::ToItself { port: a });
        }
        for (end, other) in [(a, b), (b, a)] {
            let port = self.cable_port(end).ok_or(LinkError::NoSuchPort { port: end })?;
            if let Some(peer) = port.peer.filter(|&peer| peer != other) {
                return Err(LinkError::InUse { port: end, peer });
            }
        }
        for (end, other) in [(a, b), (b, a)] {
            if let Some(port) = self.cable_port_mut(end) {
                port.peer = Some(other);
            }
        }
        Ok(())
    }

    /// Whether all switches are connected by cables between switches alone. True if there is no
    /// switch.
    pub fn switches_connected(&self) -> bool {
        let is_switch = |index: u32| self.nodes[index as usize].kind == NodeKind::Switch;
        let Some(first) = (0..self.nodes.len() as u32).find(|&index| is_switch(index)) else {
            return true;
        };
        let mut seen = vec![false; self.nodes.len()];
        let mut left = vec![first];
        let mut reached = 1;
        seen[first as usize] = true;
        while let Some(index) = left.pop() {
            for (_, port) in self.nodes[index as usize].ports() {
                let Some(peer) = port.peer.filter(|peer| is_switch(peer.node)) else { continue };
                if !std::mem::replace(&mut seen[peer.node as usize], true) {
                    reached += 1;
                    left.push(peer.node);
                }
            }
        }
        reached == self.count(NodeKind::Switch)
    }

    /// A port that can have a cable: `None` for a nonexistent port and a switch's port 0.
    fn cable_port(&self, at: PortRef) -> Option<&Port> {
        self.port(at).filter(|_| at.port != 0)
    }

    fn cable_port_mut(&mut self, at: PortRef) -> Option<&mut Port> {
        let node = self.nodes.get_mut(at.node as usize)?;
        if at.port == 0 { None } else { node.ports.get_mut(usize::from(at.port)) }
    }
}

impl NodeKind {
    /// First letter of node ids in `ibnetdiscover`'s output: S, H or R.
    pub const fn letter(self) -> char {
        match self {
            Self::Switch => 'S',
            Self::Ca => 'H',
            Self::Router => 'R',
        }
    }

    /// NodeInfo's NodeType code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ca => 1,
            Self::Switch => 2,
            Self::Router => 3,
        }
    }
}

impl Node {
    /// A node without cables, named as by `ibnetdiscover`, with port GUIDs as in `ibsim`: on a
    /// switch the node GUID, otherwise node GUID + n for port n.
    pub fn new(kind: NodeKind, guid: Guid, ports: u8, rate: LinkRate) -> Self {
        let port = |number: u8| {
            let offset = if kind == NodeKind::Switch { 0 } else { u64::from(number) };
            let guid = Guid(guid.0.wrapping_add(offset));
            Port { guid, peer: None, rate, lid: 0, lmc: 0, vl_cap: 0 }
        };
        let id = format!("{}-{:016x}", kind.letter(), guid.0);
        Self {
            description: id.clone(),
            id,
            kind,
            guid,
            system_image_guid: guid,
            vendor_id: 0,
            device_id: 0,
            enhanced_port0: false,
            rate,
            ports: (0..=ports.min(PORTS_MAX)).map(port).collect(),
        }
    }

    /// NumPorts of NodeInfo: a switch's port 0 does not count.
    pub fn port_count(&self) -> u8 {
        (self.ports.len() - 1) as u8
    }

    /// A port by its number; only switches have a port 0.
    pub fn port(&self, number: u8) -> Option<&Port> {
        if number == 0 && self.kind != NodeKind::Switch {
            return None;
        }
        self.ports.get(usize::from(number))
    }

    /// A port, mutable: to set its GUID, rate and LID. Use [`Net::connect`] for cables.
    pub fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        if number == 0 && self.kind != NodeKind::Switch {
            return None;
        }
        self.ports.get_mut(usize::from(number))
    }

    /// All ports with their numbers, starting with a switch's port 0.
    pub fn ports(&self) -> impl Iterator<Item = (u8, &Port)> {
        let first = usize::from(self.kind != NodeKind::Switch);
        (0u8..=u8::MAX).zip(&self.ports).skip(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Net {
        let mut net = Net::new();
        net.add_node(Node::new(NodeKind::Switch, Guid(0x10), 2, LinkRate::default()));
        net.add_node(Node::new(NodeKind::Ca, Guid(0x20), 1, LinkRate::default()));
        net
    }

    fn at(node: u32, port: u8) -> PortRef {
        PortRef { node, port }
    }

    #[test]
    fn a_cable_is_seen_from_both_ends() {
        let mut net = pair();
        net.connect(at(1, 1), at(0, 2)).unwrap();
        assert_eq!(net.port(at(0, 2)).unwrap().peer, Some(at(1, 1)));
        assert_eq!(net.port(at(1, 1)).unwrap().peer, Some(at(0, 2)));
        assert_eq!(net.links().collect::<Vec<_>>(), [(at(0, 2), at(1, 1))]);
    }

    #[test]
    fn a_port_takes_one_cable() {
        let mut net = pair();
        net.connect(at(0, 2), at(1, 1)).unwrap();
        assert_eq!(net.connect(at(1, 1), at(0, 2)), Ok(()), "the same cable again");
        let expected = LinkError::InUse { port: at(1, 1), peer: at(0, 2) };
        assert_eq!(net.connect(at(0, 1), at(1, 1)), Err(expected));
        assert_eq!(net.port(at(0, 1)).unwrap().peer, None);
    }

    #[test]
    fn management_ports_and_missing_ports_take_no_cable() {
        let mut net = pair();
        for (a, b) in [(at(0, 0), at(1, 1)), (at(0, 1), at(1, 2)), (at(0, 1), at(2, 1))] {
            assert!(matches!(net.connect(a, b), Err(LinkError::NoSuchPort { .. })), "{a:?} {b:?}");
        }
        assert_eq!(net.connect(at(0, 1), at(0, 1)), Err(LinkError::ToItself { port: at(0, 1) }));
    }

    #[test]
    fn only_switches_have_port_0_and_all_their_ports_share_a_guid() {
        let net = pair();
        let guids = |index: usize| -> Vec<_> {
            net.nodes()[index].ports().map(|(number, port)| (number, port.guid.0)).collect()
        };
        assert_eq!(guids(0), [(0, 0x10), (1, 0x10), (2, 0x10)]);
        assert_eq!(guids(1), [(1, 0x21)]);
        assert_eq!((net.nodes()[0].port_count(), net.nodes()[1].port_count()), (2, 1));
    }

    #[test]
    fn switches_joined_only_through_a_host_are_not_connected() {
        let mut net = Net::new();
        for guid in [0x10, 0x20] {
            net.add_node(Node::new(NodeKind::Switch, Guid(guid), 2, LinkRate::default()));
        }
        net.add_node(Node::new(NodeKind::Ca, Guid(0x30), 2, LinkRate::default()));
        net.connect(at(2, 1), at(0, 1)).unwrap();
        net.connect(at(2, 2), at(1, 1)).unwrap();
        assert!(!net.switches_connected());
        net.connect(at(0, 2), at(1, 2)).unwrap();
        assert!(net.switches_connected());
    }
}
