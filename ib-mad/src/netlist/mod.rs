//! What a subnet is made of: nodes, ports and cables, as net files describe them.
//!
//! This module holds the model ([`Net`]), the reader of net files ([`Net::read`], [`Net::parse`])
//! and their writer ([`Net`]'s `Display`). Net files are the topology files of `ibsim` and the
//! output of `ibnetdiscover`, which are one format. What is not here: how nodes behave (the
//! simulated agents), which links are up at a moment, and where nets come from (`generate`).

mod error;
mod rate;
mod reader;
mod writer;

pub use error::{LinkError, NetError, PortName, Problem};
pub use rate::{LinkRate, LinkSpeed, LinkWidth};

use crate::types::Guid;

/// The most nodes a net may have: more than there are unicast LIDs.
pub const NODES_MAX: usize = 1 << 16;
/// The most ports a node may have; 255 in a forwarding table means "no port".
pub const PORTS_MAX: u8 = 254;
/// The longest node description, in bytes: what a NodeDescription attribute holds.
pub const DESCRIPTION_LEN_MAX: usize = 64;
/// The longest node id, in bytes, as in `ibsim`.
pub const NODE_ID_LEN_MAX: usize = 64;

/// Nodes and the cables between them. Each cable is seen from both of its ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    nodes: Vec<Node>,
    /// Console commands (`do` lines of net files), in order, for the simulator to carry out once
    /// the net is loaded.
    pub commands: Vec<String>,
}

/// What a node is, as NodeInfo's NodeType tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// Forwards packets; has the management port 0.
    Switch,
    /// Channel adapter: a host's or a storage system's.
    Ca,
    /// Joins subnets.
    Router,
}

/// A port of a net: node index and port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRef {
    /// Index of the node in [`Net::nodes`].
    pub node: u32,
    /// Port number on that node.
    pub port: u8,
}

/// One switch, channel adapter or router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name that net files use to refer to the node, unique in its net.
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
    /// NodeDescription, at most [`DESCRIPTION_LEN_MAX`] bytes.
    pub description: String,
    /// Whether a switch's port 0 is an enhanced one (SwitchInfo:EnhancedPort0).
    pub enhanced_port0: bool,
    /// What ports without a cable can do: as much as the node's best cable carries.
    pub rate: LinkRate,
    ports: Vec<Port>,
}

/// One port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// PortGUID; on a switch all ports have that of port 0.
    pub guid: Guid,
    /// Where the cable goes.
    pub peer: Option<PortRef>,
    /// The widest and fastest link the port can do; slower ones are possible as well.
    pub rate: LinkRate,
    /// The base LID the port had when the file was written, 0 if none. On a switch: port 0's.
    pub lid: u16,
    /// The LMC that came with `lid`.
    pub lmc: u8,
    /// PortInfo:VLCap as `ibnetdiscover -f` tells it for ports with a cable: 1 to 5 for 1, 2, 4, 8
    /// and 15 data VLs; 0 if it was not told.
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

    /// A node's port, unless the net has no such node or the node no such port.
    pub fn port(&self, at: PortRef) -> Option<&Port> {
        self.nodes.get(at.node as usize)?.port(at.port)
    }

    /// Each cable once, from its lower end.
    pub fn links(&self) -> impl Iterator<Item = (PortRef, PortRef)> + '_ {
        self.nodes.iter().zip(0..).flat_map(|(node, index)| {
            node.ports().filter_map(move |(number, port)| {
                let here = PortRef { node: index, port: number };
                port.peer.filter(|&peer| here < peer).map(|peer| (here, peer))
            })
        })
    }

    /// How many nodes are of this kind.
    pub fn count(&self, kind: NodeKind) -> usize {
        self.nodes.iter().filter(|node| node.kind == kind).count()
    }

    /// Adds a node and yields its index. Ids are the caller's to keep unique.
    ///
    /// # Panics
    /// If the net has [`NODES_MAX`] nodes; the reader and the generators check that before.
    pub fn add_node(&mut self, node: Node) -> u32 {
        assert!(self.nodes.len() < NODES_MAX, "a net has at most {NODES_MAX} nodes");
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Plugs a cable between two ports that have none yet.
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

    /// Whether every switch can be reached from every other by cables between switches alone.
    /// True if there is no switch.
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

    /// A port that can hold a cable: not a switch's port 0, nor an adapter's missing one.
    fn cable_port(&self, at: PortRef) -> Option<&Port> {
        self.port(at).filter(|_| at.port != 0)
    }

    fn cable_port_mut(&mut self, at: PortRef) -> Option<&mut Port> {
        let node = self.nodes.get_mut(at.node as usize)?;
        if at.port == 0 { None } else { node.ports.get_mut(usize::from(at.port)) }
    }
}

impl NodeKind {
    /// The letter that begins node ids in `ibnetdiscover`'s output: S, H or R.
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
    /// A node without cables that is named as `ibnetdiscover` names it, with port GUIDs as `ibsim`
    /// gives them: a switch's are its node GUID, port n of others has node GUID + n.
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

    /// NodeInfo:NumPorts; a switch's port 0 does not count.
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

    /// The port, to set its GUID, rate and LID. Cables are [`Net::connect`]'s.
    pub fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        if number == 0 && self.kind != NodeKind::Switch {
            return None;
        }
        self.ports.get_mut(usize::from(number))
    }

    /// All ports with their numbers, a switch's port 0 first.
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
