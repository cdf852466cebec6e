//! Layered routing for fabrics of low diameter: the further LIDs of a host take detours, so that
//! traffic spread over its LIDs uses links that shortest paths leave idle.
//!
//! After Besta et al.: "FatPaths: Routing in Supercomputers and Data Centers when Shortest Paths
//! Fall Short" (SC 2020), and Blach et al.: "A High-Performance Design, Implementation, Deployment,
//! and Evaluation of The Slim Fly Network" (NSDI 2024), which has such layers on InfiniBand. A
//! dragonfly, HyperX or Slim Fly has one shortest path between most pairs of switches, and many
//! that are a hop or two longer. With an LMC, a host has several LIDs, each routed by itself:
//!
//! - the first LID by shortest paths, as in `sssp`;
//! - further LIDs by the same paths at first. Then each source in turn moves to the cheapest path
//!   that is at most [`extra_hops`](Settings::extra_hops) longer than the shortest ([`detours`]). A
//!   link costs more the more routes it carries, and the more of the other LIDs of the same host
//!   the same source reaches over it: the paths of a pair share few links.
//!
//! Routes are free of credit loops, with replies on the SL of their requests: all routes between
//! two switches, to all LIDs and in both directions, are in one layer without cycles ([`lanes`]).
//! Shortest paths are placed first, then a detour is taken only if the layer accepts it. Few lanes
//! mean few detours, never a lost route. If lanes do not suffice for shortest paths, the engine
//! refuses, as `dfsssp` and `lash` do. (The SL2VL tables of the second paper change lanes at each
//! hop, by a coloring of switches, and need three lanes for any paths of three hops. But the SL
//! there depends on the second switch of the path, and a reply on that SL is not covered.)
//!
//! At LMC 0, and on fat trees, there is nothing to detour around: all routes are shortest. Link
//! weights are not used, and the previous routing only when hosts come and go
//! ([`hosts`](crate::hosts)).

mod column;
mod detours;
mod extent;
mod lanes;

use self::detours::Detours;
use self::extent::Extent;
use self::lanes::PairLanes;
use crate::deal::Dealt;
use crate::engines::dfsssp;
use crate::engines::lash::Lash;
use crate::engines::settings::settings;
use crate::engines::sssp::{self, Distances};
use crate::layering::Pairs;
use crate::tree::Tree;
use crate::{
    CommonOptions, Engine, Entries, HopMatrix, Lanes, Layers, Previous, Reason, Routing,
    RoutingError, Steering, Topology,
};

settings! {
    /// Settings of `layers`.
    pub struct Settings {
        /// How many hops longer than the shortest path a path to a further LID of a host may be.
        extra_hops: u8 = 2, key "layers_extra_hops", sweep, 0..=2;
    }
}

/// The engine `layers`. Takes the time of `sssp` and `lash`, plus about a microsecond for each
/// source switch and each further LID, at most [`Extent::LOOKS_MAX`] of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayeredPaths;

impl Engine for LayeredPaths {
    fn name(&self) -> &'static str {
        "layers"
    }

    fn keeps_routes(&self, _steering: &Steering) -> bool {
        false
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        _: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        let common = CommonOptions { hop_weights: Vec::new(), ..steering.common.clone() };
        let extent = Extent::new(topology);
        let extra_hops = steering.settings.layers.extra_hops;
        let is_tree = Tree::find(topology, &common).is_some();
        if extent.plane_count() < 2 || extra_hops == 0 || is_tree {
            let (shortest, hops) = Shortest::find(self.name(), topology, &common)?;
            let Shortest { lfts, layers, unreachable } = shortest;
            return Ok(routing(self.name(), lfts, hops, layers, unreachable));
        }
        let first = topology.with_first_lids();
        let (mut shortest, hops) = Shortest::find(self.name(), &first, &common)?;
        let lanes = common.data_lanes.max(1);
        let assigned = shortest.pair_lanes(&first, &hops, lanes);
        let assigned = assigned.ok_or(Reason::TooFewLanes { lanes }.of(self.name()))?;
        let unreachable =
            shortest.unreachable + extent.copy_first_lids(topology, &mut shortest.lfts);
        let detours = Detours::new(topology, &hops, &extent, shortest.lfts, assigned, extra_hops);
        let (lfts, hops, layers) = detours.run();
        Ok(routing(self.name(), lfts, hops, layers, unreachable))
    }
}

fn routing(
    engine: &'static str,
    lfts: Vec<Entries>,
    hops: HopMatrix,
    layers: Layers,
    unreachable: u64,
) -> Routing {
    // In a single layer any SL is valid.
    let lanes = if layers.count < 2 { Lanes::Free } else { Lanes::Layers(layers) };
    Routing { engine, lfts, hops, lanes, unreachable, loads: Vec::new(), tree: None }
}

/// Shortest paths with layers that both directions of a pair of switches share.
struct Shortest {
    lfts: Vec<Entries>,
    layers: Layers,
    unreachable: u64,
}

impl Shortest {
    /// Takes the routes of `sssp`, or those of `lash` if these do not fit in the lanes. Also
    /// returns the hops.
    fn find(
        engine: &'static str,
        topology: &Topology,
        common: &CommonOptions,
    ) -> Result<(Self, HopMatrix), RoutingError> {
        let mut distances = Distances::new(engine, topology, common)?;
        let lanes = common.data_lanes.max(1);
        let Dealt { lfts, unreachable, .. } = sssp::walk(topology, common, &mut distances);
        let hops = distances.finish();
        let layers = |&pairs| dfsssp::pairs::layers(topology, &lfts, lanes, pairs);
        if let Some(layers) = Pairs::choices(topology).iter().find_map(layers) {
            return Ok((Self { lfts, layers, unreachable }, hops));
        }
        let plain = Steering { common: common.clone(), ..Steering::default() };
        match Lash.route(topology, &plain, None) {
            Ok(Routing { lfts, unreachable, lanes: Lanes::Layers(layers), .. }) => {
                Ok((Self { lfts, layers, unreachable }, hops))
            }
            _ => Err(Reason::TooFewLanes { lanes }.of(engine)),
        }
    }

    /// Gives lanes to pairs of switches such that detours fit, or as they were found.
    fn pair_lanes(&self, topology: &Topology, hops: &HopMatrix, lanes: u8) -> Option<PairLanes> {
        let adopt =
            |&pairs| PairLanes::adopt(topology, &self.lfts, self.layers.clone(), lanes, pairs);
        let found = PairLanes::find(topology, hops, &self.lfts, lanes);
        found.or_else(|| Pairs::choices(topology).iter().find_map(adopt))
    }
}

#[cfg(test)]
mod tests;
