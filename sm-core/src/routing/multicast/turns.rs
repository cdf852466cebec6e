//! What the packets of a tree wait for.

use std::sync::Arc;

use super::PortMask;
use crate::routing::Topology;
use crate::routing::torus::TorusLanes;

/// Lanes of a torus's QoS level.
const LEVEL_LANES: usize = 4;

/// The lanes of a tree's packets.
#[derive(Clone, Debug)]
pub enum Hops {
    /// The same on every link.
    OneLane,
    /// On a torus, packets of this SL have a lane by the ports that they come and go by.
    Torus(Arc<TorusLanes>, u8),
}

/// Packets of a channel go on to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The one that they come by.
    pub from: usize,
    /// The one that they go on by.
    pub to: usize,
}

impl Hops {
    /// Lanes a link, among which packets may change.
    pub fn lanes(&self) -> usize {
        match self {
            Self::OneLane => 1,
            Self::Torus(..) => LEVEL_LANES,
        }
    }

    fn lane(&self, switch: u16, in_port: u8, out_port: u8) -> usize {
        match self {
            Self::OneLane => 0,
            Self::Torus(lanes, sl) => {
                usize::from(lanes.vl(switch, in_port, out_port, *sl)) % LEVEL_LANES
            }
        }
    }

    /// Calls `turn` for all turns of a tree's packets from link to link, until it yields `false`;
    /// whether it never did. `masks` are the tree's ports, ascending by switch. Packets come in by
    /// every branch and by every member, and go out by all others.
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
