//! Computes distances of switches from an egress switch, by hops or by the operator's link weights.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::deal::{Dealt, Shortest};
use crate::relief::relieve_all;
use crate::repair::{Repaired, repair_by_hops, settle};
use crate::tree::{self, Tree};
use crate::{CommonOptions, Entries, HopMatrix, Previous, Reason, RoutingError, Topology};

/// Distances to one egress switch after the other.
pub(crate) struct Distances<'a> {
    topology: &'a Topology,
    hops: HopMatrix,
    /// `None` without weights: then hops are the distances.
    weighted: Option<Weighted<'a>>,
}

/// Distances to one egress switch.
pub(crate) struct ToEgressSwitch<'a> {
    pub(super) egress_switch: u16,
    /// By switch: the largest hop count of a shortest path, or [`HopMatrix::UNREACHABLE`].
    pub(super) levels: &'a [u8],
    /// By switch the sum of weights on a shortest path, and by link the weight.
    costs: Option<(&'a [u32], &'a [u16])>,
}

impl<'a> Distances<'a> {
    /// Computes hops of all pairs; distances by weight are computed per egress switch on demand.
    pub(crate) fn new(
        engine: &'static str,
        topology: &'a Topology,
        common: &'a CommonOptions,
    ) -> Result<Self, RoutingError> {
        let weights = &common.hop_weights;
        if weights.iter().all(|&weight| weight == 1) {
            let hops = super::super::hops::compute(engine, topology, None)?;
            return Ok(Self { topology, hops, weighted: None });
        }
        super::super::hops::check_size(engine, topology)?;
        if weights.len() != topology.link_count() {
            let (weights, links) = (weights.len(), topology.link_count());
            return Err(Reason::HopWeights { weights, links }.of(engine));
        }
        let hops = HopMatrix::unreachable(topology.switch_count());
        let weighted = Some(Weighted::new(topology, weights));
        Ok(Self { topology, hops, weighted })
    }

    /// Routes a fat tree without weights; `None` if the fabric is none, or if found routes stay.
    pub(crate) fn route_tree(
        &self,
        common: &CommonOptions,
        previous: Option<&Previous<'_>>,
    ) -> Option<Dealt> {
        let hops = self.hops().filter(|_| !tree::is_found(previous))?;
        let tree = Tree::find(self.topology, common)?;
        Some(tree.route(self.topology, hops, previous, |_| Shortest))
    }

    /// Keeps the previous routes where possible; `None` if everything must be routed from scratch.
    /// That includes weighted links, where any change may affect the shortest paths of all
    /// switches.
    pub(crate) fn repair(&self, previous: Option<&Previous<'_>>) -> Option<Repaired> {
        let previous = previous.filter(|_| self.weighted.is_none())?;
        repair_by_hops(self.topology, &self.hops, previous, |_| Shortest)
    }

    /// Balances the repaired routing or calls `route_afresh`, as [`settle`] does.
    pub(crate) fn settle(
        &mut self,
        previous: Option<&Previous<'_>>,
        repaired: Option<Repaired>,
        route_afresh: impl FnOnce(&mut Self) -> Dealt,
    ) -> Dealt {
        if self.weighted.is_some() {
            return route_afresh(self);
        }
        let hops = self.hops.clone();
        settle(self.topology, previous, &hops, |_| Shortest, repaired, || route_afresh(self))
    }

    /// Moves routes away from the most loaded links, without weights. `loads` are those of hosts'
    /// routes to hosts' LIDs; returns the resulting loads.
    pub(crate) fn relieve(
        &self,
        common: &CommonOptions,
        loads: Vec<u32>,
        lfts: &mut [Entries],
    ) -> Vec<u32> {
        if self.weighted.is_some() {
            return loads;
        }
        relieve_all(self.topology, common, &self.hops, |_| Shortest, loads, lfts)
    }

    /// Hops between all pairs; `None` with weights.
    pub(crate) fn hops(&self) -> Option<&HopMatrix> {
        self.weighted.is_none().then_some(&self.hops)
    }

    /// Returns the distances to an egress switch.
    pub(crate) fn to(&mut self, egress_switch: u16) -> ToEgressSwitch<'_> {
        let Some(weighted) = &mut self.weighted else {
            return ToEgressSwitch {
                egress_switch,
                levels: self.hops.row(egress_switch),
                costs: None,
            };
        };
        weighted.search(self.topology, egress_switch);
        for (switch, &level) in self.topology.switches().zip(&weighted.levels) {
            self.hops.row_mut(switch)[usize::from(egress_switch)] = level;
        }
        let costs = Some((&weighted.costs[..], weighted.weights));
        ToEgressSwitch { egress_switch, levels: &weighted.levels, costs }
    }

    /// By switch and egress switch, of those requested: the largest hop count of an allowed path.
    pub(crate) fn finish(self) -> HopMatrix {
        self.hops
    }
}

impl ToEgressSwitch<'_> {
    /// By switch: the largest hop count of a shortest path.
    pub(crate) fn levels(&self) -> &[u8] {
        self.levels
    }

    /// By switch: the sum of weights on a shortest path; empty without weights.
    pub(crate) fn costs(&self) -> &[u32] {
        self.costs.map_or(&[], |(costs, _)| costs)
    }

    /// Whether a link from a switch to `peer` lies on a shortest path.
    #[inline]
    pub(super) fn is_closer(&self, switch: u16, peer: u16, link: usize) -> bool {
        let (here, there) = (self.levels[usize::from(switch)], self.levels[usize::from(peer)]);
        match self.costs {
            None => there.checked_add(1) == Some(here),
            Some((costs, weights)) => {
                let cost = |switch: u16| costs[usize::from(switch)];
                there < here && cost(peer) + weight(weights, link) == cost(switch)
            }
        }
    }
}

/// Dijkstra's search from egress switches, against the direction of routes.
struct Weighted<'a> {
    /// Weights by link.
    weights: &'a [u16],
    /// By link: number of the same cable's link in the other direction.
    reverse: Vec<u32>,
    costs: Vec<u32>,
    levels: Vec<u8>,
    heap: BinaryHeap<Reverse<(u32, u16)>>,
}

/// Marks an unreachable switch. Real costs are smaller: at most 2^14 weights below 2^16.
const NO_COST: u32 = u32::MAX;

/// The weight of a link, at least 1. With links of weight 0, paths with loops would cost no more
/// than others.
fn weight(weights: &[u16], link: usize) -> u32 {
    u32::from(weights[link].max(1))
}

impl<'a> Weighted<'a> {
    fn new(topology: &Topology, weights: &'a [u16]) -> Self {
        let reverse = (0..topology.link_count()).map(|link| {
            let link = topology.link(link);
            topology.link_at(link.peer, link.peer_port).map_or(u32::MAX, |back| back as u32)
        });
        Self {
            weights,
            reverse: reverse.collect(),
            costs: vec![NO_COST; topology.switch_count()],
            levels: vec![HopMatrix::UNREACHABLE; topology.switch_count()],
            heap: BinaryHeap::new(),
        }
    }

    fn search(&mut self, topology: &Topology, egress_switch: u16) {
        self.costs.fill(NO_COST);
        self.levels.fill(HopMatrix::UNREACHABLE);
        self.costs[usize::from(egress_switch)] = 0;
        self.heap.push(Reverse((0, egress_switch)));
        while let Some(Reverse((cost, switch))) = self.heap.pop() {
            if cost > self.costs[usize::from(switch)]
                || self.levels[usize::from(switch)] != HopMatrix::UNREACHABLE
            {
                continue;
            }
            // All nearer switches have been handled.
            self.levels[usize::from(switch)] = self.level(topology, switch, egress_switch);
            for (back, link) in topology.links(switch).iter().zip(topology.link_range(switch)) {
                let Some(&link) = self.reverse.get(link) else { continue };
                let cost = cost + weight(self.weights, link as usize);
                if cost < self.costs[usize::from(back.peer)] {
                    self.costs[usize::from(back.peer)] = cost;
                    self.heap.push(Reverse((cost, back.peer)));
                }
            }
        }
    }

    /// One more than the largest level of any next switch on a shortest path.
    fn level(&self, topology: &Topology, switch: u16, egress_switch: u16) -> u8 {
        if switch == egress_switch {
            return 0;
        }
        let links = topology.links(switch).iter().zip(topology.link_range(switch));
        let closer = links.filter(|(link, number)| {
            self.costs[usize::from(link.peer)].checked_add(weight(self.weights, *number))
                == Some(self.costs[usize::from(switch)])
        });
        let levels = closer.map(|(link, _)| self.levels[usize::from(link.peer)]);
        let most = levels.filter(|&level| level < HopMatrix::HOPS_MAX).max();
        most.map_or(HopMatrix::UNREACHABLE, |level| level + 1)
    }
}
