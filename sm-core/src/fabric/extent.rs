//! How much of the fabric's room nodes take.

use std::collections::HashMap;

use super::{Fabric, NODES_MAX, PORTS_MAX, PortIndex};

/// Switches that a fabric has room for as far as new nodes are concerned. Min-hop routing keeps the
/// distance of each pair, and computes up to 16,384 switches.
const SWITCHES_MAX: usize = 1 << 13;

/// Numbers of nodes, of switches among them, and of their ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Nodes, switches included.
    pub nodes: usize,
    /// Switches.
    pub switches: usize,
    /// Ports of all nodes, port 0 included.
    pub ports: usize,
}

impl Extent {
    /// Adds a node.
    pub fn add(&mut self, is_switch: bool, ports: usize) {
        self.nodes += 1;
        self.switches += usize::from(is_switch);
        self.ports += ports;
    }

    /// Whether, with a further node of so many ports, this is no more than `room`.
    pub fn fits(&self, ports: usize, room: Self) -> bool {
        self.nodes < room.nodes && self.switches < room.switches && self.ports + ports <= room.ports
    }
}

impl Fabric {
    /// What is free. Slots of absent nodes are not.
    pub fn room(&self) -> Extent {
        Extent {
            nodes: NODES_MAX.saturating_sub(self.nodes.len()),
            switches: SWITCHES_MAX.saturating_sub(self.switches.len()),
            ports: PORTS_MAX.saturating_sub(self.ports.len()),
        }
    }

    /// What appeared behind each port of a known node; absent nodes count while they have slots.
    pub fn extents(&self) -> HashMap<PortIndex, Extent> {
        let mut extents = HashMap::new();
        for node in &self.nodes {
            if let Some(entry) = node.entry {
                let extent: &mut Extent = extents.entry(entry).or_default();
                extent.add(node.switch.is_some(), usize::from(node.port_count) + 1);
            }
        }
        extents
    }
}
