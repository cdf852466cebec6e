//! Decides whether a fabric is a fat tree, and which of its switches are above which.

use std::collections::BTreeSet;

use ib_mad::types::Lid;

use crate::engines::updn::Order;
use crate::{CommonOptions, Destination, Reason, Steering, Topology};

/// Numbers of ranks that a tree may have, as in OpenSM.
const RANKS: std::ops::RangeInclusive<u16> = 2..=8;

/// The hosts that are compute nodes.
pub(super) struct ComputeNodes {
    /// Their base LIDs; `None` if all hosts are compute nodes.
    lids: Option<BTreeSet<Lid>>,
}

impl ComputeNodes {
    pub(super) fn new(common: &CommonOptions) -> Self {
        let lids = common.compute_nodes.as_ref();
        Self { lids: lids.map(|lids| lids.iter().copied().collect()) }
    }

    /// Whether a destination is a compute node.
    pub(super) fn has(&self, destination: &Destination) -> bool {
        let lids = self.lids.as_ref();
        destination.is_host() && lids.is_none_or(|lids| lids.contains(&destination.base_lid))
    }

    /// Whether all hosts are compute nodes.
    pub(super) fn are_all(&self) -> bool {
        self.lids.is_none()
    }
}

/// Finds the ranks of switches.
///
/// Without roots, ranks count hops from compute nodes, and every link must join two adjacent ranks.
/// OpenSM also requires that all switches of a rank be alike, and so leaves trees with a cut link
/// to another engine. With roots, ranks count hops from them, and links within a rank are ordered
/// by switch ids.
pub(super) fn find_order(topology: &Topology, steering: &Steering) -> Result<Order, Reason> {
    let compute_nodes = ComputeNodes::new(&steering.common);
    let hosts = topology.destinations().iter().filter(|destination| destination.is_host());
    let count = hosts.clone().count();
    if topology.switch_count() < 2 || count < 2 {
        let switches = topology.switch_count();
        return Err(Reason::TooSmallForTree { switches, hosts: count });
    }
    let mut leaves: Vec<u16> =
        hosts.filter(|to| compute_nodes.has(to)).map(|to| to.egress_switch).collect();
    leaves.sort_unstable();
    leaves.dedup();
    let Some(&first) = leaves.first() else {
        return Err(Reason::NoComputeNodes);
    };
    let order = if steering.updn.roots.is_empty() {
        let order = Order::above(topology, &steering.common, &leaves);
        refuse_siblings(topology, &order)?;
        order
    } else {
        Order::below(topology, &steering.common, &steering.updn.roots)
    };
    let rank = |switch: u16| order.ranks[usize::from(switch)];
    if let Some(&other) = leaves.iter().find(|&&leaf| rank(leaf) != rank(first)) {
        let (first, other) = ((first, rank(first)), (other, rank(other)));
        return Err(Reason::UnequalLeaves { first, other });
    }
    let ranks = rank(first) + 1;
    if !RANKS.contains(&ranks) {
        return Err(Reason::RankCount { ranks, min: *RANKS.start(), max: *RANKS.end() });
    }
    Ok(order)
}

fn refuse_siblings(topology: &Topology, order: &Order) -> Result<(), Reason> {
    for switch in topology.switches() {
        let rank = order.ranks[usize::from(switch)];
        let links = topology.links(switch);
        if let Some(link) = links.iter().find(|link| order.ranks[usize::from(link.peer)] == rank) {
            let (port, peer) = (link.port, link.peer);
            return Err(Reason::LinkWithinRank { switch, port, peer, rank });
        }
    }
    Ok(())
}
