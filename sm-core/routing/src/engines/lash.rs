//! Layered shortest paths: one shortest path for each pair of switches, divided into layers, each
//! on its own virtual lane, such that the channel dependencies of a layer have no cycle.
//!
//! After Skeie, Lysne, Theiss: "Layered Shortest Path (LASH) Routing in Irregular System Area
//! Networks" (IPDPS 2002). The two paths between a pair of switches are in the same layer, so that
//! a reply uses the lane of its request. First fit determines the number of layers, over which
//! paths are then distributed evenly; unused lanes stay free for other purposes.
//!
//! Routes take the least loaded paths as far as lanes allow, as in `dfsssp`, and low ports
//! otherwise. With `do_mesh_analysis`, the engine searches for a mesh or torus ([`mesh`]) and takes
//! paths in the order of its dimensions if they need no more lanes; this doubles the computation
//! time. All LIDs of a switch, and so all LIDs of a host, take the same switches on their paths;
//! they are distributed over cables where several lead to the same switch.
//!
//! Pairs of switches without hosts are left out: they send each other nothing on data lanes. If
//! there are still too few lanes, pairs in which one switch has no hosts are left out too, as in
//! `dfsssp`. When only hosts change, routes stay ([`hosts`](crate::hosts)); after other changes
//! nothing is kept.

mod mesh;
pub(in crate::engines) mod pairs;
mod trees;

use self::mesh::Mesh;
use self::trees::Trees;
use crate::engines::settings::settings;
use crate::engines::sssp::{Distances, Group, TOLERANCES, groups};
use crate::layering::Pairs;
use crate::tables::Tables;
use crate::{
    CommonOptions, Engine, Entries, Lanes, Layers, Previous, Reason, Routing, RoutingError,
    Steering, Topology,
};

settings! {
    /// Settings of `lash`.
    pub struct Settings {
        /// Whether lash looks for a mesh to order switches by.
        analyses_mesh: bool = false, key "do_mesh_analysis", sweep,
            after "guid_routing_order_file";
        /// First VL of lash.
        start_lane: u8 = 0, key "lash_start_vl", sweep, 0..=15, after "do_mesh_analysis";
    }
}

/// The engine `lash`. Takes time proportional to pairs of switches times hops times layers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lash;

impl Engine for Lash {
    fn name(&self) -> &'static str {
        "lash"
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
        let (start, all) = (steering.settings.lash.start_lane, steering.common.data_lanes.max(1));
        let Some(lanes) = all.checked_sub(start).filter(|&lanes| lanes > 0) else {
            return Err(Reason::NoLaneFromStart { start, lanes: all }.of(self.name()));
        };
        let mut distances = Distances::new(self.name(), topology, &steering.common)?;
        let by_mesh = on_mesh(self.name(), topology, steering, start, lanes);
        // A routing has at least one layer, so fewer than this are impossible.
        let least = by_mesh.as_ref().filter(|routed| routed.layers.count <= start + 1);
        let routed = match least {
            Some(_) => by_mesh,
            None => {
                let plain = plain(topology, &steering.common, &mut distances, start, lanes);
                let both = [by_mesh, plain].into_iter().flatten();
                both.min_by_key(|routed| (routed.pairs, routed.layers.count))
            }
        };
        if let Some(Routed { lfts, unreachable, layers, .. }) = routed {
            let hops = distances.finish();
            let (loads, lanes) = (Vec::new(), Lanes::Layers(layers));
            return Ok(Routing {
                engine: self.name(),
                lfts,
                hops,
                lanes,
                unreachable,
                loads,
                tree: None,
            });
        }
        Err(Reason::TooFewLanes { lanes }.of(self.name()))
    }
}

/// Tables, the number of pairs of a switch and a LID without a route, and layers.
struct Routed {
    lfts: Vec<Entries>,
    unreachable: u64,
    layers: Layers,
    /// The pairs of switches whose traffic the layers separate.
    pairs: Pairs,
}

/// Routes in dimension order if `do_mesh_analysis` is set and the fabric is a mesh or torus.
fn on_mesh(
    engine: &'static str,
    topology: &Topology,
    steering: &Steering,
    start: u8,
    lanes: u8,
) -> Option<Routed> {
    // With link weights, paths must follow the weights instead.
    if !steering.settings.lash.analyses_mesh || !steering.common.hop_weights.is_empty() {
        return None;
    }
    let mesh = Mesh::find(topology)?;
    let mut distances = Distances::new(engine, &mesh.topology, &steering.common).ok()?;
    let trees = Trees::new(&mesh.topology, &mut distances, f64::INFINITY).0;
    let layers = pairs::layers(&mesh.topology, &trees, start, lanes, Pairs::WithHosts)?;
    let (lfts, unreachable) = tables(&mesh.topology, &steering.common, &trees);
    let (lfts, layers, pairs) = (mesh.tables(lfts), mesh.layers(&layers), Pairs::WithHosts);
    Some(Routed { lfts, unreachable, layers, pairs })
}

/// Routes by the first set of paths that fits in the lanes.
fn plain(
    topology: &Topology,
    common: &CommonOptions,
    distances: &mut Distances<'_>,
    start: u8,
    lanes: u8,
) -> Option<Routed> {
    let route = |trees: &Trees, pairs| {
        let layers = pairs::layers(topology, trees, start, lanes, pairs)?;
        let (lfts, unreachable) = tables(topology, common, trees);
        Some(Routed { lfts, unreachable, layers, pairs })
    };
    let choices = choices(topology, distances);
    let pairs = Pairs::choices(topology);
    let best = pairs.iter().find_map(|&pairs| choices.iter().find_map(|trees| route(trees, pairs)));
    best.or_else(|| {
        // Zero and infinite tolerance are already among the choices.
        let some = TOLERANCES.into_iter().filter(|tolerance| (0.1..1e9).contains(tolerance));
        let mut all = pairs.iter().flat_map(|&pairs| some.clone().map(move |some| (some, pairs)));
        all.find_map(|(some, pairs)| route(&Trees::new(topology, distances, some).0, pairs))
    })
}

/// Sets of paths to try, ordered by load on the most loaded cable: paths chosen by load and by
/// ports, and both with routes moved away from the most loaded links.
fn choices(topology: &Topology, distances: &mut Distances<'_>) -> Vec<Trees> {
    let by_ports = Trees::new(topology, distances, f64::INFINITY);
    let drawn = [Trees::new(topology, distances, 0.0), by_ports];
    let mut choices = Vec::new();
    // With parallel cables between two switches, moving paths does not show the load of each cable.
    if let Some(hops) = distances.hops().filter(|_| !has_parallel_cables(topology)) {
        let relieved =
            drawn.iter().map(|(trees, loads)| trees.relieved(topology, hops, loads.clone()));
        choices.extend(relieved);
    }
    choices.extend(drawn);
    choices.sort_by_key(|(_, loads)| Trees::most(topology, loads));
    choices.into_iter().map(|(trees, _)| trees).collect()
}

fn has_parallel_cables(topology: &Topology) -> bool {
    topology.switches().any(|switch| {
        let mut peers: Vec<u16> = topology.links(switch).iter().map(|link| link.peer).collect();
        peers.sort_unstable();
        peers.windows(2).any(|pair| pair[0] == pair[1])
    })
}

/// Returns the tables of all switches, and the number of pairs of a switch and a LID without a
/// route.
fn tables(topology: &Topology, common: &CommonOptions, trees: &Trees) -> (Vec<Entries>, u64) {
    let mut tables = Tables::new(topology.switch_count(), topology.table_len());
    let mut unreachable = 0;
    for Group { egress_switch, lids, exits } in groups(topology, common) {
        for ((&lid, &exit), place) in lids.iter().zip(&exits).zip(0..) {
            tables.begin(&[lid]);
            tables.enter(egress_switch, exit);
            for switch in topology.switches().filter(|&switch| switch != egress_switch) {
                match trees.port(topology, switch, egress_switch, place) {
                    Some(port) => tables.enter(switch, port),
                    None => unreachable += 1,
                }
            }
        }
    }
    (tables.finish(), unreachable)
}

#[cfg(test)]
mod tests;
