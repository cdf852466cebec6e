//! How much of the fabric's room nodes take.

use std::collections::HashMap;

use super::{Fabric, NODES_MAX, Node, PORTS_MAX, PortIndex};

/// Switches that a fabric has room for as far as new nodes are concerned. Min-hop routing keeps the
/// distance of each pair, and computes up to 16,384 switches.
const SWITCHES_MAX: usize = 1 << 13;

/// Numbers of nodes, of switches among them, of their ports, and of the LIDs that these may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Nodes, switches included.
    pub nodes: usize,
    /// Switches.
    pub switches: usize,
    /// Ports of all nodes, port 0 included.
    pub ports: usize,
    /// LIDs, if all ports of adapters are linked.
    pub lids: usize,
}

impl Extent {
    /// What a node takes that has so many ports besides port 0; `lmc` is that of end ports.
    pub fn of_node(is_switch: bool, port_count: u8, lmc: u8) -> Self {
        let end_ports = if is_switch { 1 } else { usize::from(port_count) };
        Self {
            nodes: 1,
            switches: usize::from(is_switch),
            ports: usize::from(port_count) + 1,
            lids: end_ports << lmc,
        }
    }

    /// Adds nodes.
    pub fn add(&mut self, more: Self) {
        self.nodes += more.nodes;
        self.switches += more.switches;
        self.ports += more.ports;
        self.lids += more.lids;
    }

    /// Whether this, with `more`, is no more than `room`. Where there is room for no switch, no
    /// adapter is added either.
    pub fn fits(&self, more: Self, room: Self) -> bool {
        self.nodes < room.nodes
            && self.switches < room.switches
            && self.ports + more.ports <= room.ports
            && self.lids + more.lids <= room.lids
    }
}

impl Fabric {
    /// What is free, if so many LIDs are. Slots of absent nodes are not.
    pub fn room(&self, lids: usize) -> Extent {
        Extent {
            nodes: NODES_MAX.saturating_sub(self.nodes.len()),
            switches: SWITCHES_MAX.saturating_sub(self.switches.len()),
            ports: PORTS_MAX.saturating_sub(self.ports.len()),
            lids,
        }
    }

    /// What appeared behind each port of a known node; absent nodes count while they have slots.
    pub fn extents(&self, extent_of: impl Fn(&Node) -> Extent) -> HashMap<PortIndex, Extent> {
        let mut extents = HashMap::new();
        for node in &self.nodes {
            if let Some(entry) = node.entry {
                let extent: &mut Extent = extents.entry(entry).or_default();
                extent.add(extent_of(node));
            }
        }
        extents
    }
}
