//! Determines the order in which LIDs are routed.

use std::collections::HashSet;

use ib_mad::types::Lid;

use crate::{CommonOptions, Destination, Topology};

/// LIDs of one kind and one egress switch, routed one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The switch that delivers these LIDs.
    pub(crate) egress_switch: u16,
    /// The LIDs, at least one; LIDs of a port are consecutive.
    pub(crate) lids: Vec<Lid>,
    /// By index in `lids`: the egress switch's port for the LID.
    pub(crate) exits: Vec<u8>,
}

/// Returns all LIDs by kind (compute nodes, I/O nodes, other hosts, switches), then by egress
/// switch, those with the most hosts first, then by port.
pub(crate) fn groups(topology: &Topology, common: &CommonOptions) -> Vec<Group> {
    let kinds = Kinds::new(common);
    let hosts = topology.hosts_on();
    let most_hosts_first = |egress_switch: u16| u32::MAX - hosts[usize::from(egress_switch)];
    let mut destinations: Vec<(u8, Destination)> =
        topology.destinations().iter().map(|&d| (kinds.of(&d), d)).collect();
    destinations.sort_unstable_by_key(|(kind, d)| {
        (*kind, most_hosts_first(d.egress_switch), d.egress_switch, d.exit, d.base_lid)
    });
    let of_a_group = |a: &(u8, Destination), b: &(u8, Destination)| {
        (a.0, a.1.egress_switch) == (b.0, b.1.egress_switch)
    };
    let group = |destinations: &[(u8, Destination)]| Group {
        egress_switch: destinations[0].1.egress_switch,
        lids: destinations.iter().flat_map(|(_, d)| d.lids()).collect(),
        exits: destinations.iter().flat_map(|(_, d)| d.lids().map(|_| d.exit)).collect(),
    };
    destinations.chunk_by(of_a_group).map(group).collect()
}

/// The kinds of hosts that are balanced separately, as configured by the operator.
struct Kinds {
    compute_nodes: HashSet<Lid>,
    io_nodes: HashSet<Lid>,
}

impl Kinds {
    fn new(common: &CommonOptions) -> Self {
        Self {
            compute_nodes: common.compute_nodes.iter().flatten().copied().collect(),
            io_nodes: common.io_nodes.iter().copied().collect(),
        }
    }

    /// The kind of a destination; lower kinds are routed first.
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
