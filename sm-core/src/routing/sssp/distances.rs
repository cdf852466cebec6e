//! How far switches are from a home switch, by hops or by operators' weights of hops.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::deal::{Dealt, Shortest};
use super::super::relief::relieve_all;
use super::super::repair::{Repaired, repair_by_hops, settle};
use super::super::{Entries, HopMatrix, Previous, RoutingError, Steering, Topology};

/// Distances to one home switch after the other.
pub(in super::super) struct Distances<'a> {
    topology: &'a Topology,
    hops: HopMatrix,
    /// Without weights `None`: hops then are the distances.
    weighted: Option<Weighted<'a>>,
}

/// Distances to one home switch.
pub(in super::super) struct ToHome<'a> {
    pub(super) home: u16,
    /// By switch: the most hops that a shortest way has, or [`HopMatrix::UNREACHABLE`].
    pub(super) levels: &'a [u8],
    /// By switch: the sum of weights on a shortest way, and the weight of each link.
    costs: Option<(&'a [u32], &'a [u16])>,
}

impl<'a> Distances<'a> {
    /// Those of all pairs by hops; by weights they are found as they are asked for.
    pub(in super::super) fn new(
        engine: &'static str,
        topology: &'a Topology,
        steering: &'a Steering,
    ) -> Result<Self, RoutingError> {
        let weights = &steering.hop_weights;
        if weights.iter().all(|&weight| weight == 1) {
            let hops = HopMatrix::compute_for(engine, topology, None)?;
            return Ok(Self { topology, hops, weighted: None });
        }
        HopMatrix::check_size(engine, topology)?;
        if weights.len() != topology.link_count() {
            let reason = format!(
                "{} hop weights are given for {} links",
                weights.len(),
                topology.link_count()
            );
            return Err(RoutingError::Unsuitable { engine, reason });
        }
        let hops = HopMatrix::unreachable(topology.switch_count());
        let weighted = Some(Weighted::new(topology, weights));
        Ok(Self { topology, hops, weighted })
    }

    /// Keeps routes from before as far as possible; `None` if everything is to be routed anew, as
    /// with weights, by which any change may move the shortest ways of all.
    pub(in super::super) fn repair(&self, previous: Option<&Previous<'_>>) -> Option<Repaired> {
        let previous = previous.filter(|_| self.weighted.is_none())?;
        repair_by_hops(self.topology, &self.hops, previous, |_| Shortest)
    }

    /// What was repaired or what is routed `anew`, as [`settle`] has it.
    pub(in super::super) fn settle(
        &mut self,
        previous: Option<&Previous<'_>>,
        repaired: Option<Repaired>,
        anew: impl FnOnce(&mut Self) -> Dealt,
    ) -> Dealt {
        if self.weighted.is_some() {
            return anew(self);
        }
        let hops = self.hops.clone();
        settle(self.topology, previous, &hops, |_| Shortest, repaired, || anew(self))
    }

    /// Moves routes away from the most loaded links, without weights. `loads` are those of hosts'
    /// routes to hosts' LIDs; yields what they are then.
    pub(in super::super) fn relieve(
        &self,
        steering: &Steering,
        loads: Vec<u32>,
        lfts: &mut [Entries],
    ) -> Vec<u32> {
        if self.weighted.is_some() {
            return loads;
        }
        relieve_all(self.topology, steering, &self.hops, |_| Shortest, loads, lfts)
    }

    /// Hops between all pairs; `None` with weights.
    pub(in super::super) fn hops(&self) -> Option<&HopMatrix> {
        self.weighted.is_none().then_some(&self.hops)
    }

    /// Turns to a home switch.
    pub(in super::super) fn to(&mut self, home: u16) -> ToHome<'_> {
        let Some(weighted) = &mut self.weighted else {
            return ToHome { home, levels: self.hops.row(home), costs: None };
        };
        weighted.search(self.topology, home);
        for (switch, &level) in self.topology.switches().zip(&weighted.levels) {
            self.hops.row_mut(switch)[usize::from(home)] = level;
        }
        let costs = Some((&weighted.costs[..], weighted.weights));
        ToHome { home, levels: &weighted.levels, costs }
    }

    /// By switch and home switch, of those turned to: the most hops of a way that is allowed.
    pub(in super::super) fn finish(self) -> HopMatrix {
        self.hops
    }
}

impl ToHome<'_> {
    /// By switch: the most hops that a shortest way has.
    pub(in super::super) fn levels(&self) -> &[u8] {
        self.levels
    }

    /// By switch: the sum of weights on a shortest way; empty without weights.
    pub(in super::super) fn costs(&self) -> &[u32] {
        self.costs.map_or(&[], |(costs, _)| costs)
    }

    /// Whether a link from a switch to `peer` lies on a shortest way.
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

/// Dijkstra's search from home switches, against the direction in which routes go.
struct Weighted<'a> {
    /// By link.
    weights: &'a [u16],
    /// By link: the same cable in the other direction.
    reverse: Vec<u32>,
    costs: Vec<u32>,
    levels: Vec<u8>,
    heap: BinaryHeap<Reverse<(u32, u16)>>,
}

/// Stands for a switch that cannot be reached. Real costs are below: 2^14 weights below 2^16.
const NO_COST: u32 = u32::MAX;

/// What a link costs. Free links would make ways that go round in circles as good as others.
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

    fn search(&mut self, topology: &Topology, home: u16) {
        self.costs.fill(NO_COST);
        self.levels.fill(HopMatrix::UNREACHABLE);
        self.costs[usize::from(home)] = 0;
        self.heap.push(Reverse((0, home)));
        while let Some(Reverse((cost, switch))) = self.heap.pop() {
            if cost > self.costs[usize::from(switch)]
                || self.levels[usize::from(switch)] != HopMatrix::UNREACHABLE
            {
                continue;
            }
            // Whatever is nearer has been here before.
            self.levels[usize::from(switch)] = self.level(topology, switch, home);
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

    /// One more than that of any switch that a shortest way leads to.
    fn level(&self, topology: &Topology, switch: u16, home: u16) -> u8 {
        if switch == home {
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
