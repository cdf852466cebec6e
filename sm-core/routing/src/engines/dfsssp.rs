//! Deadlock-free single-source shortest paths: the routes of `sssp`, divided into layers, each on
//! its own virtual lane, such that the channel dependencies of a layer have no cycle.
//!
//! After Domke, Hoefler, Nagel: "Deadlock-Free Oblivious Routing for Arbitrary Topologies" (IPDPS
//! 2011). In the paper all routes start in one layer, and routes on cycles move to the next. Here
//! each route is placed in the first layer that accepts it, LID by LID.
//!
//! On tori, routes as balanced as those of `sssp` need many lanes. If lanes are scarce, routes are
//! placed in layers as soon as their LID is routed, which detects early that lanes do not suffice.
//! Then everything is routed again with a larger tolerance for paths that are not the least loaded:
//! low ports are preferred, and since ports are usually numbered by dimension, routes turn between
//! dimensions at fewer places.
//!
//! Where lanes suffice, the two directions between a pair of switches share a layer ([`pairs`]), so
//! that replies on the SL of their request add no dependencies. Otherwise layers are by source and
//! LID, which never need more lanes, and replies can close cycles; `verify` examines that.
//!
//! Layers cover packets between two ports at least one of which is a host's; switches send each
//! other no packets on data lanes. If the best routes need more lanes than exist, layers cover
//! packets between hosts only: in damaged trees, hosts reach some core switches only by going down
//! and up again.
//!
//! Without weights, previous routes are kept where possible ([`repair`](crate::repair)). All routes
//! are then placed in layers again; kept routes get the same lanes as long as no route placed
//! before them changes. If the routes do not fit, everything is routed from scratch.

pub(in crate::engines) mod pairs;
mod placement;
mod share;

use self::placement::Placement;
use crate::deal::Dealt;
use crate::engines::sssp::{self, Distances, TOLERANCES, Walk, groups};
use crate::layering::Pairs;
use crate::tables::Tables;
use crate::{
    CommonOptions, Engine, Entries, Lanes, Previous, Reason, Routing, RoutingError, Steering,
    Topology,
};

/// The engine `dfsssp`. Takes time proportional to LIDs times links on shortest paths, plus at most
/// one search per pair of links and layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dfsssp;

impl Engine for Dfsssp {
    fn name(&self) -> &'static str {
        "dfsssp"
    }

    fn keeps_routes(&self, steering: &Steering) -> bool {
        steering.common.hop_weights.is_empty()
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        let common = &steering.common;
        let mut distances = Distances::new(self.name(), topology, common)?;
        let lanes = common.data_lanes.max(1);
        let walk = |distances: &mut Distances<'_>| sssp::walk(topology, common, distances);
        // First attempt with the routes of a tree or kept routes, then with routes from scratch.
        let mut is_repaired = true;
        let first = distances.route_tree(common, previous).unwrap_or_else(|| {
            let repaired = distances.repair(previous);
            is_repaired = repaired.is_some();
            distances.settle(previous, repaired, walk)
        });
        let mut drafts = vec![first];
        let made = |dealt: Dealt, lanes, distances: Distances<'_>| {
            let (Dealt { lfts, unreachable, loads, tree }, hops) = (dealt, distances.finish());
            Routing { engine: self.name(), lfts, hops, lanes, unreachable, loads, tree }
        };
        for &pairs in Pairs::choices(topology) {
            for place in 0..1 + usize::from(is_repaired) {
                if place == drafts.len() {
                    drafts.push(walk(&mut distances));
                }
                let lfts = &drafts[place].lfts;
                if let Some(lanes) = layers(topology, common, &mut distances, lfts, pairs) {
                    return Ok(made(drafts.swap_remove(place), lanes, distances));
                }
            }
        }
        for &pairs in Pairs::choices(topology) {
            for tolerance in TOLERANCES {
                let routed = attempt(topology, common, &mut distances, tolerance, pairs);
                if let Some((dealt, lanes)) = routed {
                    return Ok(made(dealt, lanes, distances));
                }
            }
        }
        Err(Reason::TooFewLanes { lanes }.of(self.name()))
    }
}

/// Routes everything and places routes in layers on the way; `None` if there are too few lanes.
fn attempt(
    topology: &Topology,
    common: &CommonOptions,
    distances: &mut Distances<'_>,
    tolerance: f64,
    pairs: Pairs,
) -> Option<(Dealt, Lanes)> {
    let mut walk = Walk::new(topology);
    let mut tables = Tables::new(topology.switch_count(), topology.table_len());
    let mut placement = Placement::new(topology, common.data_lanes, pairs);
    let mut unreachable = 0;
    for group in groups(topology, common) {
        walk.begin(&distances.to(group.egress_switch), &group);
        unreachable += walk.unreached() * group.lids.len() as u64;
        for (&lid, &exit) in group.lids.iter().zip(&group.exits) {
            walk.route(tolerance);
            placement.place(&walk, lid, exit != 0)?;
            walk.enter(&mut tables, lid, exit);
        }
    }
    let dealt = Dealt { lfts: tables.finish(), unreachable, loads: Vec::new(), tree: None };
    // Lanes are scarce here: layers by pair would hardly fit.
    Some((dealt, Lanes::Layers(placement.finish())))
}

/// Computes layers for existing routes; `None` if there are too few lanes.
pub(crate) fn layers(
    topology: &Topology,
    common: &CommonOptions,
    distances: &mut Distances<'_>,
    lfts: &[Entries],
    pairs: Pairs,
) -> Option<Lanes> {
    let mut walk = Walk::new(topology);
    let mut placement = Placement::new(topology, common.data_lanes, pairs);
    for group in groups(topology, common) {
        walk.turn_to(&distances.to(group.egress_switch));
        for (&lid, &exit) in group.lids.iter().zip(&group.exits) {
            walk.follow(lfts, lid);
            placement.place(&walk, lid, exit != 0)?;
        }
    }
    let by_pair = self::pairs::layers(topology, lfts, common.data_lanes, pairs);
    Some(Lanes::Layers(by_pair.unwrap_or_else(|| placement.finish())))
}

#[cfg(test)]
mod tests;
