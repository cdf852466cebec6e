//! Computes virtual lanes of a dragonfly. All SLs have the same routes.
//!
//! ```text
//! VL = 2 × QoS level + lane      QoS level = SL modulo (data VLs / 2)
//! ```
//!
//! A packet is on lane 0 until it has crossed a link between groups, and then, if it goes on within
//! the group, on lane 1. The SL-to-VL table of each pair of ports has this: from a link between
//! groups to a link within a group it has lane 1, otherwise lane 0. Only where links within a group
//! are missing, some pairs of ports within a group have lane 1 as well.

use super::{HopLanes, MasterTree};
use crate::{PortMask, Topology};

/// Lanes per QoS level.
pub const LANES: u8 = 2;

/// The lanes of a dragonfly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DragonflyLanes {
    /// By switch and ingress port, from port 0: the egress ports with lane 1.
    second: Vec<PortMask>,
    /// By switch: index of its port 0 in `second`.
    first_port: Vec<u32>,
    /// Number of QoS levels, at least 1.
    levels: u8,
    tree: MasterTree,
}

impl DragonflyLanes {
    /// Creates tables from the pairs of links, by number, between which packets take lane 1.
    pub(crate) fn new(
        topology: &Topology,
        second: impl IntoIterator<Item = (usize, usize)>,
        data_lanes: u8,
        tree: MasterTree,
    ) -> Self {
        let mut first_port = Vec::with_capacity(topology.switch_count());
        let mut ports = 0;
        for switch in topology.switches() {
            first_port.push(ports);
            ports += u32::from(topology.port_count(switch)) + 1;
        }
        let mut masks = vec![PortMask::default(); ports as usize];
        for (link, next) in second {
            let at = topology.link(link);
            let port = first_port[usize::from(at.peer)] as usize + usize::from(at.peer_port);
            masks[port].insert(topology.link(next).port);
        }
        Self { second: masks, first_port, levels: (data_lanes / LANES).max(1), tree }
    }

    /// Number of QoS levels. SLs that differ by it share their VLs.
    pub fn levels(&self) -> u8 {
        self.levels
    }

    /// The ports by which packets that came in by a port leave on lane 1.
    fn second(&self, switch: u16, in_port: u8) -> PortMask {
        self.ports(switch).get(usize::from(in_port)).copied().unwrap_or_default()
    }

    fn ports(&self, switch: u16) -> &[PortMask] {
        let switch = usize::from(switch);
        let end = self.first_port.get(switch + 1).map_or(self.second.len(), |&end| end as usize);
        self.first_port.get(switch).map_or(&[], |&first| &self.second[first as usize..end])
    }

    /// The first VL of the level of an SL.
    fn first_vl(&self, sl: u8) -> u8 {
        sl % self.levels * LANES
    }

    /// The same lanes without a change of lanes.
    #[cfg(test)]
    pub(crate) fn on_one_lane(&self) -> Self {
        Self { second: vec![PortMask::default(); self.second.len()], ..self.clone() }
    }
}

impl HopLanes for DragonflyLanes {
    fn vl(&self, switch: u16, in_port: u8, out_port: u8, sl: u8) -> u8 {
        self.first_vl(sl) + u8::from(self.second(switch, in_port).contains(out_port))
    }

    fn vls(&self, switch: u16, out_port: u8, sl: u8) -> u16 {
        let changes = self.ports(switch).iter().any(|ports| ports.contains(out_port));
        (1 | u16::from(changes) << 1) << self.first_vl(sl)
    }

    fn host_vl(&self, sl: u8, _data_lanes: u8) -> u8 {
        self.first_vl(sl)
    }

    fn lane(&self, vl: u8) -> u8 {
        vl % LANES
    }

    fn tree(&self) -> &MasterTree {
        &self.tree
    }
}
