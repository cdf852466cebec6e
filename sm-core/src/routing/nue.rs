//! Nue: routes without credit loops on any fabric and with any number of virtual lanes, even one.
//!
//! After Domke, Hoefler, Matsuoka: "Routing on the Dependency Graph: A New Approach to
//! Deadlock-Free High-Performance Routing" (HPDC 2016). Other engines look for routes first and
//! then for lanes to put them in, of which there may be too few. Here destinations are dealt to the
//! lanes there are ([`partition`]), and each is routed by ways that only take turns which close no
//! cycle with those that routes of its lane took before ([`turns`]). What is allowed shrinks from
//! destination to destination, and ways become longer, but never none: a spanning tree whose turns
//! are allowed before all others ([`escape`]) joins whatever is left.
//!
//! The search goes wave by wave from the home switch outward ([`search`]), so that ways have few
//! hops; among ways with equal hops the least loaded is taken, as in `sssp`. A turn is only claimed
//! by the way that is chosen. Where no turn is left into any neighbour of the wave before, one of
//! them is given another way as short that can be turned into, if that suits all that send to it;
//! this is the paper's local backtracking. A switch that is still left out is tried again from the
//! next wave. After the last, the escape paths join those that are left: not the whole destination,
//! as in OpenSM, but they, the switches on their ways, and who cannot turn into these.
//!
//! What must not wait in circles is what goes between switches with hosts, whether to hosts or to
//! the switches themselves. A switch without hosts gets shortest ways to and from, by turns that
//! count for nothing, unless `nue_includes_switches` asks for all: a core switch of a tree can reach
//! another only by going down and up again, and each such turn would cost hosts some of theirs.
//!
//! The order of destinations decides which turns are left for the last ones, and so does the root
//! of the escape paths; none is the best for all fabrics. The first order is from the best root
//! outward. If turns were refused by that, others are tried, as many as the fabric's size allows:
//! that of numbers, which suits fabrics numbered by dimension, and such as follow no rule, with
//! other roots ([`variant`]). The best of them are routed a second time, home by home, beside all
//! other routes and by any turn that these take: who came first could not know what links others
//! would need. What is taken has few routes on its worst link, and short ways
//! ([`Made::demerits`]).
//!
//! Ways of a home's LIDs differ, but all fall by the hops of the first one's. The layer depends on
//! the home alone; with one lane there are no layers, and any SL will do. The routing before is not
//! looked at, nor are `hop_weights`, as in OpenSM.

mod escape;
mod fabric;
mod further;
mod lane;
mod loads;
mod made;
mod partition;
mod search;
mod tree;
mod turns;
mod variant;

use self::fabric::Fabric;
use self::made::Made;
use self::variant::Variant;
use ib_mad::types::Lid;
use rayon::prelude::*;

use super::deal::Dealt;
use super::dfsssp;
use super::lanes::Columns;
use super::layering::Pairs;
use super::sssp::{self, Distances};
use super::{
    Destination, Engine, HopMatrix, Lanes, Layers, Previous, Routing, RoutingError, Steering,
    Topology,
};

/// The engine `nue`. Costs LIDs times links on shortest ways, twice; if turns were refused, again
/// for each of up to 60 variants, and twice for 8 of these.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nue;

impl Engine for Nue {
    fn name(&self) -> &'static str {
        "nue"
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
        if let Some(routing) = shortest(self.name(), topology, steering) {
            return Ok(routing);
        }
        let distances = HopMatrix::compute_for(self.name(), topology, None)?;
        let layers = partition::layers(&distances, homes(topology), lanes(steering));
        let fabric = Fabric::new(topology, steering);
        let attempt = |variant| Made::new(&fabric, &distances, &layers, variant);
        let mut all = vec![attempt(Variant::FIRST)];
        if all[0].is_refused() {
            all.par_extend(Variant::others(topology).into_par_iter().map(attempt));
            // Of equals the first.
            all.sort_by_cached_key(Made::demerits);
            all.truncate(Variant::AGAIN_MAX);
        }
        all.par_iter_mut().for_each(Made::route_again);
        let best = all.into_iter().min_by_key(Made::demerits).expect("there is one");
        let (lfts, mut hops, unreachable) = best.finish();
        hops.transpose();
        let lanes = lanes_of(topology, &layers);
        Ok(Routing { engine: self.name(), lfts, hops, lanes, unreachable, loads: Vec::new() })
    }
}

/// Routes as of `dfsssp`, if these do with the lanes: there are none shorter, or better spread.
fn shortest(engine: &'static str, topology: &Topology, steering: &Steering) -> Option<Routing> {
    if steering.nue_includes_switches {
        return None;
    }
    let pairs = Pairs::BothWithHosts;
    let plain = Steering { data_lanes: lanes(steering), ..Steering::default() };
    let mut distances = Distances::new(engine, topology, &plain).ok()?;
    let Dealt { lfts, unreachable, loads } = sssp::walk(topology, &plain, &mut distances);
    let lanes = match dfsssp::layers(topology, &plain, &mut distances, &lfts, pairs)? {
        // Any SL will do.
        Lanes::Layers(layers) if layers.count < 2 => Lanes::Free,
        lanes => lanes,
    };
    Some(Routing { engine, lfts, hops: distances.finish(), lanes, unreachable, loads })
}

/// How many lanes may be used.
fn lanes(steering: &Steering) -> u8 {
    let all = steering.data_lanes.max(1);
    match steering.nue_lanes_max {
        0 => all,
        max => all.min(max),
    }
}

/// A switch that delivers, and what.
#[derive(Clone, Debug)]
struct Home {
    switch: u16,
    /// Hosts by port, then the switch itself.
    destinations: Vec<Destination>,
}

impl Home {
    fn lids(&self) -> impl Iterator<Item = (Lid, &Destination)> {
        self.destinations.iter().flat_map(|to| to.lids().map(move |lid| (lid, to)))
    }

    fn has_hosts(&self) -> bool {
        self.destinations.first().is_some_and(Destination::is_host)
    }
}

/// All homes by number.
fn homes(topology: &Topology) -> Vec<Home> {
    let mut destinations = topology.destinations().to_vec();
    destinations.sort_unstable_by_key(|to| (to.home, !to.is_host(), to.exit, to.base_lid));
    let of_home = |to: &[Destination]| Home { switch: to[0].home, destinations: to.to_vec() };
    destinations.chunk_by(|a, b| a.home == b.home).map(of_home).collect()
}

/// The layers of routes, if there is more than one.
fn lanes_of(topology: &Topology, layers: &[Vec<Home>]) -> Lanes {
    if layers.len() < 2 {
        return Lanes::Free;
    }
    let switches = topology.switch_count();
    let mut row = vec![0; switches];
    for (homes, layer) in layers.iter().zip(0u8..) {
        homes.iter().for_each(|home| row[usize::from(home.switch)] = layer);
    }
    let mut all = Layers::new(switches, Columns::HomeSwitch, switches);
    all.count = layers.len() as u8;
    for source in topology.switches() {
        all.row_mut(source).copy_from_slice(&row);
    }
    Lanes::Layers(all)
}

#[cfg(test)]
mod tests;
