//! Fat-tree routing that avoids congestion for shift patterns, in which each host sends to the host
//! a fixed number of places on, as OpenSM's `ftree` does (Zahavi et al., Optimized InfiniBand
//! fat-tree routing for shift all-to-all communication patterns, 2009).
//!
//! Trees in which routes may take all links between ranks are routed as by all engines that know
//! trees ([`tree`]). The rest of this module is for others: operators' roots that leave links
//! within a rank or turn some round, and options that choose among ports.
//!
//! There, each LID of a host has one tree of routes: from its switch up to a root by the links that
//! the fewest trees use downwards, and from there down to all other switches, which send upwards by
//! the same links. So neighbouring hosts have different roots, and routes from different leaves to
//! a host merge only above the leaves. All routes go up and then down (`updn`), by the fewest hops
//! that this allows. Compute nodes are routed first, so that other hosts do not disturb them; a
//! leaf with fewer compute nodes than others leaves the places of the missing ones free.
//!
//! In trees with missing links, routes are then moved away from the most loaded links, as shift
//! patterns collide there in any case.
//!
//! Differences from OpenSM: trees need not be regular ([`shape`]), more than one LID per port is
//! allowed, and the engine rejects a fabric in which hosts cannot reach each other, while OpenSM
//! leaves such routes out.
//!
//! Previous routes are kept where possible ([`repair`](crate::repair)), and new routes take the
//! least loaded paths.
//!
//! Takes time proportional to switches times links plus switches times LIDs.

mod branches;
mod climb;
mod shape;

use std::collections::HashMap;

use ib_mad::types::Lid;

use self::climb::Climber;
use self::shape::{ComputeNodes, find_order};
use crate::balance::LinkLoads;
use crate::deal::{Batch, Dealt, batches_of};
use crate::engines::settings::settings;
use crate::engines::updn::{self, Labels, Ranked};
use crate::relief::relieve_all;
use crate::repair::settle;
use crate::tree;
use crate::{
    CommonOptions, Engine, HopMatrix, Lanes, Previous, Reason, Routing, RoutingError, Steering,
    Topology,
};

settings! {
    /// Settings of `ftree`.
    pub struct Settings {
        /// How many hops in the wrong direction ftree's routes to I/O nodes may take.
        max_reverse_hops: u16 = 0, key "max_reverse_hops", start, after "quasi_ftree_indexing";
    }
}

/// The engine `ftree`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FTree;

impl Engine for FTree {
    fn name(&self) -> &'static str {
        "ftree"
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        super::hops::check_size(self.name(), topology)?;
        let rank = |topology: &Topology| {
            let order = find_order(topology, steering).map_err(|reason| reason.of(self.name()))?;
            let mut labels = Labels::compute(topology, &order);
            // No path has more hops than a u8 counts.
            let reverse_hops = steering.settings.ftree.max_reverse_hops;
            let reverse_hops = u8::try_from(reverse_hops).unwrap_or(u8::MAX);
            for egress_switch in io_switches(topology, &steering.common) {
                labels.connect(topology, egress_switch, reverse_hops);
            }
            if steering.settings.updn.connect_roots {
                topology
                    .switches()
                    .for_each(|egress_switch| labels.connect(topology, egress_switch, u8::MAX));
            }
            Ok(Ranked { order, labels })
        };
        let now = rank(topology)?;
        let labels = &now.labels;
        if let Some((from, to)) = updn::parted_hosts(topology, &now.order, &labels.hops) {
            let reason = Reason::NoUpDownRoute { from, to, takes_io_nodes: true };
            return Err(reason.of(self.name()));
        }
        let mut hops = labels.hops.clone();
        hops.transpose();
        let path_rules = |egress_switch| labels.path_rules(egress_switch);
        let tree = labels.tree(topology, &steering.common);
        if let Some(tree) = tree.as_ref().filter(|_| !tree::is_found(previous)) {
            let dealt = tree.route(topology, &labels.hops, previous, path_rules);
            let Dealt { lfts, unreachable, loads, tree } = dealt;
            return Ok(Routing {
                engine: self.name(),
                lfts,
                hops,
                lanes: Lanes::Free,
                unreachable,
                loads,
                tree,
            });
        }
        let repaired = previous.and_then(|previous| {
            let then = Ranked::before(topology, previous, rank);
            now.repair(topology, previous, then.as_ref())
        });
        let nodes = ComputeNodes::new(&steering.common);
        let route_afresh = || {
            if let Some(tree) = &tree {
                return tree.route(topology, &labels.hops, None, path_rules);
            }
            let mut dealt = grow(topology, labels, &hops, &nodes);
            if !is_regular(topology, &now.order.ranks) {
                let loads = LinkLoads::of_tables(topology, &dealt.lfts).to_hosts;
                let lfts = &mut dealt.lfts;
                dealt.loads =
                    relieve_all(topology, &steering.common, &labels.hops, path_rules, loads, lfts);
            }
            dealt
        };
        let Dealt { lfts, unreachable, loads, tree } =
            settle(topology, previous, &labels.hops, path_rules, repaired, route_afresh);
        let lanes = Lanes::Free;
        Ok(Routing { engine: self.name(), lfts, hops, lanes, unreachable, loads, tree })
    }
}

/// Returns the base LIDs of compute nodes in routing order, per switch. Shift patterns in this
/// order, from each node to the one a fixed number of places on, do not collide.
pub fn compute_order(topology: &Topology, common: &CommonOptions) -> Vec<Vec<Lid>> {
    let nodes = ComputeNodes::new(common);
    let is_base = |lid: &&Lid| topology.owner(**lid).is_some_and(|to| to.base_lid == **lid);
    let batches = batches_of(topology, |to| nodes.has(to));
    let leaves = batches.chunk_by(|a, b| a.egress_switch == b.egress_switch);
    leaves
        .map(|leaf| leaf.iter().flat_map(|batch| &batch.lids).filter(is_base).copied().collect())
        .collect()
}

/// Routes everything from scratch.
fn grow(topology: &Topology, labels: &Labels, hops: &HopMatrix, nodes: &ComputeNodes) -> Dealt {
    let mut climber = Climber::new(topology, labels, hops);
    let compute = batches_of(topology, |to| if nodes.are_all() { true } else { nodes.has(to) });
    let most = compute
        .chunk_by(|a, b| a.egress_switch == b.egress_switch)
        .map(hosts_of)
        .max()
        .unwrap_or(0);
    for leaf in compute.chunk_by(|a, b| a.egress_switch == b.egress_switch) {
        leaf.iter().for_each(|batch| climber.route(batch));
        let hosts = hosts_of(leaf);
        if hosts > 0 {
            climber.skip(leaf[0].egress_switch, (most - hosts) as u32);
        }
    }
    if !nodes.are_all() {
        let others = batches_of(topology, |to| !nodes.has(to));
        others.iter().for_each(|batch| climber.route(batch));
    }
    let Climber { tables, unreachable, .. } = climber;
    Dealt { lfts: tables.finish(), unreachable, loads: Vec::new(), tree: None }
}

/// Whether all switches of a rank have the same number of links. In other trees shift patterns
/// collide in any case.
fn is_regular(topology: &Topology, ranks: &[u16]) -> bool {
    let mut counts = HashMap::new();
    topology.switches().all(|switch| {
        let links = topology.links(switch).len();
        *counts.entry(ranks[usize::from(switch)]).or_insert(links) == links
    })
}

/// Counts hosts' LIDs in batches.
fn hosts_of(batches: &[Batch]) -> usize {
    batches.iter().map(|batch| batch.host_lids).sum()
}

/// Lists switches with I/O nodes.
fn io_switches(topology: &Topology, common: &CommonOptions) -> Vec<u16> {
    let destinations = topology.destinations();
    let place = |lid| destinations.binary_search_by_key(lid, |to| to.base_lid).ok();
    let mut egress_switches: Vec<u16> =
        common.io_nodes.iter().filter_map(place).map(|at| destinations[at].egress_switch).collect();
    egress_switches.sort_unstable();
    egress_switches.dedup();
    egress_switches
}

#[cfg(test)]
mod tests;
