//! Whether a fabric is a fat tree, and which of its switches are above which.

use std::collections::BTreeSet;

use ib_mad::types::Lid;

use super::super::updn::Order;
use super::super::{Destination, Steering, Topology};

/// Ranks that a tree may have, as in OpenSM.
const RANKS: std::ops::RangeInclusive<u16> = 2..=8;

/// Hosts that compute.
pub(super) struct ComputeNodes {
    /// Their base LIDs, if these are not all hosts.
    lids: Option<BTreeSet<Lid>>,
}

impl ComputeNodes {
    pub(super) fn new(steering: &Steering) -> Self {
        let lids = steering.compute_nodes.as_ref();
        Self { lids: lids.map(|lids| lids.iter().copied().collect()) }
    }

    /// Whether a destination is a host that computes.
    pub(super) fn has(&self, destination: &Destination) -> bool {
        let lids = self.lids.as_ref();
        destination.is_host() && lids.is_none_or(|lids| lids.contains(&destination.base_lid))
    }

    /// Whether there are no other hosts.
    pub(super) fn are_all(&self) -> bool {
        self.lids.is_none()
    }
}

/// Finds the ranks, or says why there are none.
///
/// Without roots, ranks count hops from compute nodes, and links must lead from one rank to
/// the next. OpenSM asks that the switches of a rank be alike, too, and so gives trees with a
/// cut link to another engine. With roots, ranks count hops from them, and links within a rank
/// are ordered by switches' ids.
pub(super) fn find_order(topology: &Topology, steering: &Steering) -> Result<Order, String> {
    let compute_nodes = ComputeNodes::new(steering);
    let hosts = topology.destinations().iter().filter(|destination| destination.is_host());
    let count = hosts.clone().count();
    if topology.switch_count() < 2 || count < 2 {
        let switches = topology.switch_count();
        return Err(format!(
            "a tree has at least 2 switches and 2 hosts, not {switches} and {count}"
        ));
    }
    let mut leaves: Vec<u16> = hosts.filter(|to| compute_nodes.has(to)).map(|to| to.home).collect();
    leaves.sort_unstable();
    leaves.dedup();
    let Some(&first) = leaves.first() else {
        return Err("no compute node of cn_guid_file is here".to_owned());
    };
    let order = if steering.roots.is_empty() {
        let order = Order::above(topology, steering, &leaves);
        refuse_siblings(topology, &order)?;
        order
    } else {
        Order::below(topology, steering, &steering.roots)
    };
    let rank = |switch: u16| order.ranks[usize::from(switch)];
    if let Some(&other) = leaves.iter().find(|&&leaf| rank(leaf) != rank(first)) {
        return Err(format!(
            "switch {first} and switch {other} have compute nodes, at ranks {} and {}; all must be \
             at one",
            rank(first),
            rank(other)
        ));
    }
    let ranks = rank(first) + 1;
    if !RANKS.contains(&ranks) {
        return Err(format!(
            "a tree has {} to {} ranks of switches, and this one {ranks}",
            RANKS.start(),
            RANKS.end()
        ));
    }
    Ok(order)
}

fn refuse_siblings(topology: &Topology, order: &Order) -> Result<(), String> {
    for switch in topology.switches() {
        let rank = order.ranks[usize::from(switch)];
        let links = topology.links(switch);
        if let Some(link) = links.iter().find(|link| order.ranks[usize::from(link.peer)] == rank) {
            let (port, peer) = (link.port, link.peer);
            return Err(format!(
                "port {port} of switch {switch} leads to switch {peer} of the same rank {rank}"
            ));
        }
    }
    Ok(())
}
