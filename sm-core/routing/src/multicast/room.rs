//! Determines for which MLIDs the tables of switches are large enough, and computes paths that
//! avoid the others.

use std::sync::Arc;

use ib_mad::types::Lid;

use super::Tree;
use crate::{HopMatrix, Topology, TopologyBuilder};

/// Number of MLIDs that each switch forwards, from the first MLID on (SwitchInfo.MulticastFDBCap),
/// by switch number. A switch without an entry has room for all.
#[derive(Clone, Debug, Default)]
pub struct Room(pub Arc<[u16]>);

impl Room {
    fn is_short(capacity: u16, mlid: Lid) -> bool {
        mlid.0.saturating_sub(Lid::MULTICAST_FIRST.0) >= capacity
    }

    /// Whether a switch has no room for an MLID.
    pub fn is_barred(&self, switch: u16, mlid: Lid) -> bool {
        self.0.get(usize::from(switch)).is_some_and(|&capacity| Self::is_short(capacity, mlid))
    }

    /// By switch number: whether it has no room for an MLID.
    pub fn barred(&self, mlid: Lid) -> Arc<[bool]> {
        self.0.iter().map(|&capacity| Self::is_short(capacity, mlid)).collect()
    }

    /// A number that is equal for MLIDs for which the same switches have no room, and that rises
    /// with MLIDs; `None` if all have room.
    pub fn class(&self, mlid: Lid) -> Option<u16> {
        self.0.iter().copied().filter(|&capacity| Self::is_short(capacity, mlid)).max()
    }

    /// Finds a switch of a tree that has no room for its MLID.
    pub fn lacking(&self, tree: &Tree, mlid: Lid) -> Option<u16> {
        tree.masks.iter().map(|(switch, _)| *switch).find(|&switch| self.is_barred(switch, mlid))
    }
}

/// Hops between switches by paths that avoid the barred switches; `None` if there are too many
/// switches.
pub fn hops_around(topology: &Topology, barred: &[bool]) -> Option<HopMatrix> {
    let is_barred = |switch: u16| barred.get(usize::from(switch)).is_some_and(|&barred| barred);
    let mut builder = TopologyBuilder::new();
    for switch in topology.switches() {
        builder.add_switch(topology.port_count(switch)).ok()?;
    }
    for switch in topology.switches().filter(|&switch| !is_barred(switch)) {
        for link in topology.links(switch).iter().filter(|link| !is_barred(link.peer)) {
            builder.add_link((switch, link.port), (link.peer, link.peer_port)).ok()?;
        }
    }
    HopMatrix::compute(&builder.build().ok()?)
}
