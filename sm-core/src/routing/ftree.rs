//! Fat trees: routes that keep apart what hosts send in step, each to the host so many places on
//! ("shift"), as OpenSM's `ftree` does (Zahavi et al., Optimized InfiniBand fat-tree routing for
//! shift all-to-all communication patterns, 2009).
//!
//! Each LID of a host has one tree of routes: from its switch up to a root by the links that the
//! fewest trees come down by, and from there down to all others, who send up the same way. So
//! neighbouring hosts have different roots, and who sends to a host meets its other senders only
//! above. All routes go up and then down (`updn`), by the fewest hops that allows. Compute
//! nodes come first, so that other hosts do not disturb them; leaves with fewer of them than others
//! leave the places of those missing free.
//!
//! In trees with missing links routes are then moved away from the most loaded ones, as there shifts
//! get in each other's way in any case.
//!
//! Differs from OpenSM: trees need not be regular ([`shape`]), more than one LID a port is
//! allowed, and hosts that cannot reach each other make the engine decline, while OpenSM leaves
//! such routes out.
//!
//! What was routed before is kept as far as it can be ([`repair`](super::repair)), and what is new takes
//! the least loaded ways: shifts keep clear of each other only in trees that are routed anew.
//!
//! Takes time in proportion to switches times links, and to switches times LIDs.

mod branches;
mod climb;
mod shape;

use std::collections::HashMap;

use ib_mad::types::Lid;

use self::climb::Climber;
use self::shape::{ComputeNodes, find_order};
use super::balance::LinkLoads;
use super::deal::{Batch, Dealt, batches_of};
use super::relief::relieve_all;
use super::repair::settle;
use super::updn::{self, Labels, Ranked};
use super::{Engine, HopMatrix, Lanes, Previous, Routing, RoutingError, Steering, Topology};

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
        HopMatrix::check_size(self.name(), topology)?;
        let unsuitable = |reason| RoutingError::Unsuitable { engine: self.name(), reason };
        let rank = |topology: &Topology| {
            let order = find_order(topology, steering).map_err(unsuitable)?;
            let mut labels = Labels::compute(topology, &order);
            for home in io_homes(topology, steering) {
                labels.connect(topology, home, steering.max_reverse_hops);
            }
            if steering.connect_roots {
                topology.switches().for_each(|home| labels.connect(topology, home, u8::MAX));
            }
            Ok(Ranked { order, labels })
        };
        let (now, then) = Ranked::both(topology, previous, rank)?;
        let labels = &now.labels;
        if let Some((from, to)) = updn::parted_hosts(topology, &now.order, &labels.hops) {
            return Err(unsuitable(format!(
                "switch {from} and switch {to} have hosts, but no route between them goes up and then \
                 down; io_guid_file and max_reverse_hops can allow others"
            )));
        }
        let mut hops = labels.hops.clone();
        hops.transpose();
        let repaired = previous.and_then(|previous| now.repair(topology, previous, then.as_ref()));
        let nodes = ComputeNodes::new(steering);
        let ways = |home| labels.ways(home);
        let anew = || {
            let mut dealt = grow(topology, labels, &hops, &nodes);
            if !is_regular(topology, &now.order.ranks) {
                let loads = LinkLoads::of_tables(topology, &dealt.lfts).to_hosts;
                let lfts = &mut dealt.lfts;
                dealt.loads = relieve_all(topology, steering, &labels.hops, ways, loads, lfts);
            }
            dealt
        };
        let Dealt { lfts, unreachable, loads } =
            settle(topology, previous, &labels.hops, ways, repaired, anew);
        Ok(Routing { engine: self.name(), lfts, hops, lanes: Lanes::Free, unreachable, loads })
    }
}

/// Base LIDs of compute nodes in the order in which they are dealt, by their switches. Traffic of
/// nodes that send in step to those so many places on in this order is kept apart.
pub fn compute_order(topology: &Topology, steering: &Steering) -> Vec<Vec<Lid>> {
    let nodes = ComputeNodes::new(steering);
    let is_base = |lid: &&Lid| topology.owner(**lid).is_some_and(|to| to.base_lid == **lid);
    let batches = batches_of(topology, |to| nodes.has(to));
    let leaves = batches.chunk_by(|a, b| a.home == b.home);
    leaves
        .map(|leaf| leaf.iter().flat_map(|batch| &batch.lids).filter(is_base).copied().collect())
        .collect()
}

/// Routes everything anew.
fn grow(topology: &Topology, labels: &Labels, hops: &HopMatrix, nodes: &ComputeNodes) -> Dealt {
    let mut climber = Climber::new(topology, labels, hops);
    let compute = batches_of(topology, |to| if nodes.are_all() { true } else { nodes.has(to) });
    let most = compute.chunk_by(|a, b| a.home == b.home).map(hosts_of).max().unwrap_or(0);
    for leaf in compute.chunk_by(|a, b| a.home == b.home) {
        leaf.iter().for_each(|batch| climber.route(batch));
        let hosts = hosts_of(leaf);
        if hosts > 0 {
            climber.skip(leaf[0].home, (most - hosts) as u32);
        }
    }
    if !nodes.are_all() {
        let others = batches_of(topology, |to| !nodes.has(to));
        others.iter().for_each(|batch| climber.route(batch));
    }
    let Climber { tables, unreachable, .. } = climber;
    Dealt { lfts: tables.finish(), unreachable, loads: Vec::new() }
}

/// Whether switches of a rank have as many links each. In other trees shifts get in each other's way
/// in any case.
fn is_regular(topology: &Topology, ranks: &[u16]) -> bool {
    let mut counts = HashMap::new();
    topology.switches().all(|switch| {
        let links = topology.links(switch).len();
        *counts.entry(ranks[usize::from(switch)]).or_insert(links) == links
    })
}

/// Hosts' LIDs in batches.
fn hosts_of(batches: &[Batch]) -> usize {
    batches.iter().map(|batch| batch.host_lids).sum()
}

/// Switches with I/O nodes.
fn io_homes(topology: &Topology, steering: &Steering) -> Vec<u16> {
    let destinations = topology.destinations();
    let place = |lid| destinations.binary_search_by_key(lid, |to| to.base_lid).ok();
    let mut homes: Vec<u16> =
        steering.io_nodes.iter().filter_map(place).map(|at| destinations[at].home).collect();
    homes.sort_unstable();
    homes.dedup();
    homes
}

#[cfg(test)]
mod tests;
