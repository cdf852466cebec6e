//! The order in which LIDs are routed.

use std::collections::HashSet;

use ib_mad::types::Lid;

use super::super::{Destination, Steering, Topology};

/// LIDs of one kind that one switch delivers, routed one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Group {
    /// The switch that delivers.
    pub(in super::super) home: u16,
    /// At least one, those of a port next to each other.
    pub(in super::super) lids: Vec<Lid>,
    /// The home switch's port for each.
    pub(in super::super) exits: Vec<u8>,
}

/// All LIDs: by kind (compute nodes, I/O nodes, other hosts, switches), then by home switch, those
/// with the most hosts first, then by port.
pub(in super::super) fn groups(topology: &Topology, steering: &Steering) -> Vec<Group> {
    let kinds = Kinds::new(steering);
    let hosts = topology.hosts_on();
    let most_hosts_first = |home: u16| u32::MAX - hosts[usize::from(home)];
    let mut destinations: Vec<(u8, Destination)> =
        topology.destinations().iter().map(|&d| (kinds.of(&d), d)).collect();
    destinations.sort_unstable_by_key(|(kind, d)| {
        (*kind, most_hosts_first(d.home), d.home, d.exit, d.base_lid)
    });
    let of_a_group =
        |a: &(u8, Destination), b: &(u8, Destination)| (a.0, a.1.home) == (b.0, b.1.home);
    let group = |destinations: &[(u8, Destination)]| Group {
        home: destinations[0].1.home,
        lids: destinations.iter().flat_map(|(_, d)| d.lids()).collect(),
        exits: destinations.iter().flat_map(|(_, d)| d.lids().map(|_| d.exit)).collect(),
    };
    destinations.chunk_by(of_a_group).map(group).collect()
}

/// Which hosts operators want to be balanced by themselves.
struct Kinds {
    compute_nodes: HashSet<Lid>,
    io_nodes: HashSet<Lid>,
}

impl Kinds {
    fn new(steering: &Steering) -> Self {
        Self {
            compute_nodes: steering.compute_nodes.iter().flatten().copied().collect(),
            io_nodes: steering.io_nodes.iter().copied().collect(),
        }
    }

    /// Lower ones are routed first.
    fn of(&self, destination: &Destination) -> u8 {
        if !destination.is_host() {
            3
        } else if self.compute_nodes.contains(&destination.base_lid) {
            0
        } else if self.io_nodes.contains(&destination.base_lid) {
            1
        } else {
            2
        }
    }
}
