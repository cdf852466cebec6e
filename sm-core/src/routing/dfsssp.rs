//! Deadlock-free single-source shortest paths: the routes of `sssp`, put into layers, one virtual
//! lane each, in which no links wait for each other in circles.
//!
//! After Domke, Hoefler, Nagel: "Deadlock-Free Oblivious Routing for Arbitrary Topologies" (IPDPS
//! 2011). There all routes begin in one layer, and those on cycles are moved to the next. Here each
//! route goes into the first layer that can take it, LID by LID.
//!
//! Routes that are as balanced as `sssp` makes them need many lanes on tori. If there are not
//! enough, routes are put into layers as soon as their LID is routed, which finds out early when
//! lanes will not do, and everything is routed again with more tolerance for ways that are not the
//! least loaded: then low ports are preferred, and as ports are usually numbered by dimension,
//! routes turn from one dimension into another in fewer ways.
//!
//! Packets between two ports of which at least one is a host's are taken care of; switches send
//! each other none on data lanes. If the best routes need more lanes than there are for that,
//! packets between hosts are: hosts reach core switches of damaged trees only by going down and up
//! again.
//!
//! Without weights, what was routed before is kept as far as it can be ([`repair`](super::repair)). All
//! routes are then put into layers again, which gives those that stay the lanes they had as long as
//! nothing before them changes; if they do not fit, everything is routed anew.

mod placement;
mod share;

use self::placement::Placement;
use super::deal::Dealt;
use super::layering::Pairs;
use super::sssp::{self, Distances, TOLERANCES, Walk, groups};
use super::tables::Tables;
use super::{Engine, Entries, Lanes, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `dfsssp`. Costs LIDs times links on shortest ways, and a search for each pair of
/// links and layer at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dfsssp;

impl Engine for Dfsssp {
    fn name(&self) -> &'static str {
        "dfsssp"
    }

    fn keeps_routes(&self, steering: &Steering) -> bool {
        steering.hop_weights.is_empty()
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        let mut distances = Distances::new(self.name(), topology, steering)?;
        let lanes = steering.data_lanes.max(1);
        let repaired = distances.repair(previous);
        let is_repaired = repaired.is_some();
        let walk = |distances: &mut Distances<'_>| sssp::walk(topology, steering, distances);
        // Those kept, then such as are made anew.
        let mut drafts = vec![distances.settle(previous, repaired, walk)];
        let made = |dealt: Dealt, lanes, distances: Distances<'_>| {
            let (Dealt { lfts, unreachable, loads }, hops) = (dealt, distances.finish());
            Routing { engine: self.name(), lfts, hops, lanes, unreachable, loads }
        };
        for &pairs in Pairs::choices(topology) {
            for place in 0..1 + usize::from(is_repaired) {
                if place == drafts.len() {
                    drafts.push(walk(&mut distances));
                }
                let lfts = &drafts[place].lfts;
                if let Some(lanes) = layers(topology, steering, &mut distances, lfts, pairs) {
                    return Ok(made(drafts.swap_remove(place), lanes, distances));
                }
            }
        }
        for &pairs in Pairs::choices(topology) {
            for tolerance in TOLERANCES {
                let routed = attempt(topology, steering, &mut distances, tolerance, pairs);
                if let Some((dealt, lanes)) = routed {
                    return Ok(made(dealt, lanes, distances));
                }
            }
        }
        Err(RoutingError::TooFewLanes { engine: self.name(), lanes })
    }
}

/// Routes everything, putting routes into layers on the way; `None` if there are too few lanes.
fn attempt(
    topology: &Topology,
    steering: &Steering,
    distances: &mut Distances<'_>,
    tolerance: f64,
    pairs: Pairs,
) -> Option<(Dealt, Lanes)> {
    let mut walk = Walk::new(topology);
    let mut tables = Tables::new(topology.switch_count(), topology.table_len());
    let mut placement = Placement::new(topology, steering.data_lanes, pairs);
    let mut unreachable = 0;
    for group in groups(topology, steering) {
        walk.begin(&distances.to(group.home), &group);
        unreachable += walk.unreached() * group.lids.len() as u64;
        for (&lid, &exit) in group.lids.iter().zip(&group.exits) {
            walk.route(tolerance);
            placement.place(&walk, lid, exit != 0)?;
            walk.enter(&mut tables, lid, exit);
        }
    }
    let dealt = Dealt { lfts: tables.finish(), unreachable, loads: Vec::new() };
    Some((dealt, Lanes::Layers(placement.finish())))
}

/// Layers for routes that there are already; `None` if there are too few lanes.
pub(super) fn layers(
    topology: &Topology,
    steering: &Steering,
    distances: &mut Distances<'_>,
    lfts: &[Entries],
    pairs: Pairs,
) -> Option<Lanes> {
    let mut walk = Walk::new(topology);
    let mut placement = Placement::new(topology, steering.data_lanes, pairs);
    for group in groups(topology, steering) {
        walk.turn_to(&distances.to(group.home));
        for (&lid, &exit) in group.lids.iter().zip(&group.exits) {
            walk.follow(lfts, lid);
            placement.place(&walk, lid, exit != 0)?;
        }
    }
    Some(Lanes::Layers(placement.finish()))
}

#[cfg(test)]
mod tests;
