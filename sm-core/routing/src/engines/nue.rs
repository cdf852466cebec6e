//! Nue: routes without credit loops on any fabric and with any number of virtual lanes, even one.
//!
//! After Domke, Hoefler, Matsuoka: "Routing on the Dependency Graph: A New Approach to
//! Deadlock-Free High-Performance Routing" (HPDC 2016). Other engines first compute routes and then
//! assign them to lanes, of which there may be too few. Nue first distributes destinations over the
//! available lanes ([`partition`]), then routes each destination by paths whose turns close no
//! cycle with the turns that routes of its lane already use ([`turns`]). The set of allowed turns
//! shrinks with each destination and paths become longer, but no destination is lost: a spanning
//! tree whose turns are reserved before all others ([`escape`]) reaches the rest.
//!
//! The search proceeds wave by wave outward from the egress switch ([`search`]), so that paths have
//! few hops; among paths with equal hops the least loaded is taken, as in `sssp`. A turn is claimed
//! only by the path that is chosen. If a switch has no allowed turn into any neighbour of the
//! previous wave, one of these neighbours gets another path of the same length that allows the
//! turn, provided that all switches that send to it may turn into the new path; this is the paper's
//! local backtracking. A switch that still has no path is tried again from the next wave. After the
//! last wave, the escape paths connect the remaining switches. OpenSM then routes the whole
//! destination by escape paths; here only these switches, the switches on their escape paths, and
//! those that cannot turn into these paths are routed so.
//!
//! Credit loops are excluded for traffic between switches with hosts, both to hosts and to the
//! switches themselves. Traffic from and to a switch without hosts takes shortest paths, whose
//! turns are not counted, unless `nue_include_switches` demands otherwise: a core switch of a tree
//! can reach another only by going down and up again, and each such turn would take allowed turns
//! from hosts.
//!
//! The order of destinations and the root of the escape paths decide which turns remain for the
//! last destinations; no choice is best for all fabrics. The first order goes outward from the best
//! root. If turns were refused with it, others are tried, as many as the fabric's size allows: the
//! order of switch numbers, which suits fabrics numbered by dimension, and pseudo-random orders,
//! with other roots ([`variant`]). The best results are routed a second time, one egress switch
//! after the other, alongside all other routes and by any turn that these allow, since the first
//! destinations were routed without knowledge of the links that others would need. The result with
//! few routes on its worst link and short paths is chosen ([`Made::demerits`]).
//!
//! The LIDs of an egress switch may take different paths, but all of these fall by the hops of the
//! first one's. As in OpenSM, the previous routing and `hop_weights` are not used.
//!
//! Linux replies on the SL of the request, so with a lane per destination a reply takes a lane on
//! which its way was never allowed. So the routes are placed in layers by pairs of switches, both
//! directions of a pair in one ([`dfsssp::pairs`]). Routes made for fewer groups of destinations
//! have fewer turns and fit in fewer layers: if the lanes do not suffice, destinations are divided
//! into half as many groups, in the end into one, whose routes fit in one layer. OpenSM leaves the
//! replies unproved. With one layer any SL is valid.

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

use crate::balance::most_to_hosts;
use crate::deal::Dealt;
use crate::engines::dfsssp;
use crate::engines::lash::Lash;
use crate::engines::settings::settings;
use crate::engines::sssp::{self, Distances};
use crate::lanes::Columns;
use crate::layering::Pairs;
use crate::verify::credit_loops_with_replies;
use crate::{
    CommonOptions, Destination, Engine, HopMatrix, Lanes, Layers, Previous, Routing, RoutingError,
    Steering, Topology,
};

settings! {
    /// Settings of `nue`.
    pub struct Settings {
        /// Maximum number of VLs for nue; 0 is all that ports support.
        lanes_max: u8 = 1, key "nue_max_num_vls", sweep, 0..=15, after "lash_start_vl";
        /// Whether nue also keeps routes to switches free of deadlocks.
        includes_switches: bool = false, key "nue_include_switches", sweep,
            after "nue_max_num_vls";
    }
}

/// The engine `nue`. Takes time proportional to LIDs times links on shortest paths, twice; if turns
/// were refused, once more for each of up to 60 variants, and twice for 8 of these; and all that
/// again for each halving of the groups of destinations.
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
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        if let Some(routing) = shortest(self.name(), topology, steering, previous) {
            return Ok(routing);
        }
        let distances = super::hops::compute(self.name(), topology, None)?;
        let by_pair = layered(topology, steering);
        let mut groups = lanes(steering);
        let own = loop {
            let mut routing = in_groups(topology, steering, &distances, groups);
            if has_proved_replies(topology, steering, &mut routing) {
                break routing;
            }
            groups /= 2;
        };
        let rating = |made: &Routing| (made.unreachable, most_to_hosts(topology, &made.lfts));
        Ok(by_pair.into_iter().chain([own]).min_by_key(rating).expect("`own` is one of them"))
    }
}

/// Returns the routes of `lash` if these fit in the lanes: they are shortest paths, and replies
/// take the lane of their request. All LIDs of a host take the same path by them.
fn layered(topology: &Topology, steering: &Steering) -> Option<Routing> {
    if steering.settings.nue.includes_switches
        || topology.destinations().iter().any(|to| to.lid_count > 1)
    {
        return None;
    }
    let common = CommonOptions { data_lanes: lanes(steering), ..CommonOptions::default() };
    let plain = Steering { common, ..Steering::default() };
    let mut routing = Lash.route(topology, &plain, None).ok()?;
    routing.engine = Nue.name();
    if matches!(&routing.lanes, Lanes::Layers(layers) if layers.count < 2) {
        routing.lanes = Lanes::Free;
    }
    Some(routing)
}

/// Returns the best routes with destinations in `groups` groups, each on a lane of its own.
fn in_groups(
    topology: &Topology,
    steering: &Steering,
    distances: &HopMatrix,
    groups: u8,
) -> Routing {
    let layers = partition::layers(distances, egress_switches(topology), groups);
    let fabric = Fabric::new(topology, &steering.settings.nue);
    let attempt = |variant| Made::new(&fabric, distances, &layers, variant);
    let mut all = vec![attempt(Variant::FIRST)];
    if all[0].is_refused() {
        all.par_extend(Variant::others(topology).into_par_iter().map(attempt));
        // The sort is stable: of equal results the first wins.
        all.sort_by_cached_key(Made::demerits);
        all.truncate(Variant::AGAIN_MAX);
    }
    all.par_iter_mut().for_each(Made::route_again);
    let best =
        all.into_iter().min_by_key(Made::demerits).expect("the first attempt always has a result");
    let (lfts, mut hops, unreachable) = best.finish();
    hops.transpose();
    let lanes = lanes_of(topology, &layers);
    Routing { engine: Nue.name(), lfts, hops, lanes, unreachable, loads: Vec::new(), tree: None }
}

/// Makes replies on the SL of their requests as free of credit loops as requests, if the lanes
/// suffice: by layers that both directions of a pair of switches share, or if the layers by
/// destination already permit the replies. With one group that is always so.
fn has_proved_replies(topology: &Topology, steering: &Steering, routing: &mut Routing) -> bool {
    if routing.lanes == Lanes::Free {
        return true;
    }
    let pairs = match steering.settings.nue.includes_switches {
        true => Pairs::All,
        false => Pairs::BothWithHosts,
    };
    let by_pair = dfsssp::pairs::layers(topology, &routing.lfts, lanes(steering), pairs);
    if let Some(layers) = by_pair {
        routing.lanes = match layers.count {
            0 | 1 => Lanes::Free,
            _ => Lanes::Layers(layers),
        };
        return true;
    }
    let loops = credit_loops_with_replies(topology, &routing.tables(), &routing.lanes);
    loops.is_none_or(|loops| loops.is_free())
}

/// Returns the routes of `dfsssp` if these fit in the lanes, with their replies: no other routes
/// are shorter or better balanced.
fn shortest(
    engine: &'static str,
    topology: &Topology,
    steering: &Steering,
    previous: Option<&Previous<'_>>,
) -> Option<Routing> {
    if steering.settings.nue.includes_switches {
        return None;
    }
    let pairs = Pairs::BothWithHosts;
    let plain = CommonOptions { data_lanes: lanes(steering), ..CommonOptions::default() };
    let mut distances = Distances::new(engine, topology, &plain).ok()?;
    let previous = previous.filter(|previous| previous.hops.is_some());
    let dealt = distances.route_tree(&plain, previous);
    let dealt = dealt.unwrap_or_else(|| sssp::walk(topology, &plain, &mut distances));
    let Dealt { lfts, unreachable, loads, tree } = dealt;
    let lanes = match dfsssp::layers(topology, &plain, &mut distances, &lfts, pairs)? {
        // Any SL is valid.
        Lanes::Layers(layers) if layers.count < 2 => Lanes::Free,
        lanes => lanes,
    };
    let tables: Vec<&[u8]> = lfts.iter().map(|lft| &**lft).collect();
    let loops = credit_loops_with_replies(topology, &tables, &lanes);
    if loops.is_some_and(|loops| !loops.is_free()) {
        return None;
    }
    let hops = distances.finish();
    Some(Routing { engine, lfts, hops, lanes, unreachable, loads, tree })
}

/// Number of lanes that may be used.
fn lanes(steering: &Steering) -> u8 {
    let all = steering.common.data_lanes.max(1);
    match steering.settings.nue.lanes_max {
        0 => all,
        max => all.min(max),
    }
}

/// An egress switch and the destinations that it delivers.
#[derive(Clone, Debug)]
struct EgressSwitch {
    switch: u16,
    /// Hosts by port, then the switch itself.
    destinations: Vec<Destination>,
}

impl EgressSwitch {
    fn lids(&self) -> impl Iterator<Item = (Lid, &Destination)> {
        self.destinations.iter().flat_map(|to| to.lids().map(move |lid| (lid, to)))
    }

    fn has_hosts(&self) -> bool {
        self.destinations.first().is_some_and(Destination::is_host)
    }
}

/// Returns all egress switches by number.
fn egress_switches(topology: &Topology) -> Vec<EgressSwitch> {
    let mut destinations = topology.destinations().to_vec();
    destinations.sort_unstable_by_key(|to| (to.egress_switch, !to.is_host(), to.exit, to.base_lid));
    let of_egress_switch = |to: &[Destination]| EgressSwitch {
        switch: to[0].egress_switch,
        destinations: to.to_vec(),
    };
    destinations.chunk_by(|a, b| a.egress_switch == b.egress_switch).map(of_egress_switch).collect()
}

/// Returns the layers of routes, if there is more than one.
fn lanes_of(topology: &Topology, layers: &[Vec<EgressSwitch>]) -> Lanes {
    if layers.len() < 2 {
        return Lanes::Free;
    }
    let switches = topology.switch_count();
    let mut row = vec![0; switches];
    for (egress_switches, layer) in layers.iter().zip(0u8..) {
        egress_switches
            .iter()
            .for_each(|egress_switch| row[usize::from(egress_switch.switch)] = layer);
    }
    let mut all = Layers::new(switches, Columns::EgressSwitch, switches);
    all.count = layers.len() as u8;
    for source in topology.switches() {
        all.row_mut(source).copy_from_slice(&row);
    }
    Lanes::Layers(all)
}

#[cfg(test)]
mod tests;
