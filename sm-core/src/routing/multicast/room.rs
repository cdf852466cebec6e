//! Which switches have room for which MLIDs, and the ways around those that have none.

use std::sync::Arc;

use ib_mad::types::Lid;

use super::Tree;
use crate::routing::{HopMatrix, Topology, TopologyBuilder};

/// How many MLIDs switches forward, from the first on (SwitchInfo.MulticastFDBCap), by number.
/// Without a number for it a switch has room for all.
#[derive(Clone, Debug, Default)]
pub struct Room(pub Arc<[u16]>);

impl Room {
    fn is_short(capacity: u16, mlid: Lid) -> bool {
        mlid.0.saturating_sub(Lid::MULTICAST_FIRST.0) >= capacity
    }

    /// Whether a switch has none for an MLID.
    pub fn is_barred(&self, switch: u16, mlid: Lid) -> bool {
        self.0.get(usize::from(switch)).is_some_and(|&capacity| Self::is_short(capacity, mlid))
    }

    /// Switches that have none, by number.
    pub fn barred(&self, mlid: Lid) -> Arc<[bool]> {
        self.0.iter().map(|&capacity| Self::is_short(capacity, mlid)).collect()
    }

    /// What is the same for MLIDs that the same switches have no room for, and rises with MLIDs;
    /// `None` if all have room.
    pub fn class(&self, mlid: Lid) -> Option<u16> {
        self.0.iter().copied().filter(|&capacity| Self::is_short(capacity, mlid)).max()
    }

    /// A switch of a tree that has none for its MLID.
    pub fn lacking(&self, tree: &Tree, mlid: Lid) -> Option<u16> {
        tree.masks.iter().map(|(switch, _)| *switch).find(|&switch| self.is_barred(switch, mlid))
    }
}

/// Hops between switches by ways that pass none of these; `None` if there are too many switches.
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
