//! Enumerates the dependencies of the packets of a tree.

use std::sync::Arc;

use crate::lanes::{HopLanes, LEVEL_LANES};
use crate::{PortMask, Topology};

/// The lanes of a tree's packets on each hop.
#[derive(Clone, Debug)]
pub enum Hops {
    /// The same lane on every link.
    OneLane,
    /// Packets of this SL have a lane by ingress and egress port.
    ByPorts(Arc<dyn HopLanes>, u8),
}

/// A dependency: packets of one channel continue on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The channel on which they arrive.
    pub from: usize,
    /// The channel on which they continue.
    pub to: usize,
}

impl Hops {
    /// Number of lanes per link between which packets may change.
    pub fn lanes(&self) -> usize {
        match self {
            Self::OneLane => 1,
            Self::ByPorts(..) => LEVEL_LANES.into(),
        }
    }

    fn lane(&self, switch: u16, in_port: u8, out_port: u8) -> usize {
        match self {
            Self::OneLane => 0,
            Self::ByPorts(lanes, sl) => lanes.lane(lanes.vl(switch, in_port, out_port, *sl)).into(),
        }
    }

    /// Calls `turn` for all turns of a tree's packets from link to link, until it returns `false`.
    /// Returns whether it never did. `masks` has the tree's ports, ascending by switch. Packets
    /// arrive by every branch and from every member, and leave by all others.
    pub fn turns(
        &self,
        topology: &Topology,
        masks: &[(u16, PortMask)],
        mut turn: impl FnMut(Turn) -> bool,
    ) -> bool {
        let lanes = self.lanes();
        for &(switch, mask) in masks {
            for port in mask.ports() {
                let Some(link) = topology.link_at(switch, port).map(|link| topology.link(link))
                else {
                    continue;
                };
                let Some(from) = topology.link_at(link.peer, link.peer_port) else { continue };
                let from_lanes = self.lanes_into(link.peer, link.peer_port, masks);
                for out in mask.ports().filter(|&out| out != port) {
                    let Some(to) = topology.link_at(switch, out) else { continue };
                    let to = to * lanes + self.lane(switch, port, out);
                    for lane in (0..lanes).filter(|lane| from_lanes >> lane & 1 == 1) {
                        if !turn(Turn { from: from * lanes + lane, to }) {
                            return false;
                        }
                    }
                }
            }
        }
        true
    }

    /// The lanes, as bits, on which packets of the tree leave a switch by a port.
    fn lanes_into(&self, switch: u16, port: u8, masks: &[(u16, PortMask)]) -> u32 {
        if self.lanes() == 1 {
            return 1;
        }
        let Ok(at) = masks.binary_search_by_key(&switch, |(switch, _)| *switch) else { return 0 };
        let ins = masks[at].1.ports().filter(|&way| way != port);
        ins.fold(0, |lanes, way| lanes | 1 << self.lane(switch, way, port))
    }
}
