//! Layered shortest paths: one shortest path for each pair of switches, put into layers, one
//! virtual lane each, in which no links wait for each other in circles.
//!
//! After Skeie, Lysne, Theiss: "Layered Shortest Path (LASH) Routing in Irregular System Area
//! Networks" (IPDPS 2002). The paths between two switches are in the same layer both ways, so that
//! a packet is answered on the lane it came by. As few layers are used as first fit finds, and
//! then share the paths evenly; lanes that are not needed stay free for other uses.
//!
//! Paths take the least loaded ways as far as lanes allow, as in `dfsssp`, and low ports
//! otherwise. With `do_mesh_analysis`, a mesh or torus is looked for ([`mesh`]), and paths by the order
//! of its dimensions are taken if they need no more lanes: that costs as much again. All LIDs
//! of a switch take the same switches on their ways; they are dealt to cables where several
//! lead to the same switch. That goes for the LIDs of one host, too.
//!
//! Pairs of switches without hosts are left out: they send each other nothing on data lanes. If
//! there are too few lanes all the same, pairs of which one has none are, too, as in `dfsssp`. Over
//! changes of hosts routes stay ([`hosts`](super::hosts)); over others nothing is kept.

mod mesh;
mod pairs;
mod trees;

use self::mesh::Mesh;
use self::trees::Trees;
use super::layering::Pairs;
use super::sssp::{Distances, Group, TOLERANCES, groups};
use super::tables::Tables;
use super::{Engine, Entries, Lanes, Layers, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `lash`. Costs pairs of switches times hops times layers.
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
        let (start, all) = (steering.lash_start_lane, steering.data_lanes.max(1));
        let Some(lanes) = all.checked_sub(start).filter(|&lanes| lanes > 0) else {
            let reason = format!("lanes begin at {start}, and there are {all}");
            return Err(RoutingError::Unsuitable { engine: self.name(), reason });
        };
        let mut distances = Distances::new(self.name(), topology, steering)?;
        let by_mesh = on_mesh(self.name(), topology, steering, start, lanes);
        // Fewer than one there are not.
        let least = by_mesh.as_ref().filter(|routed| routed.layers.count <= start + 1);
        let routed = match least {
            Some(_) => by_mesh,
            None => {
                let plain = plain(topology, steering, &mut distances, start, lanes);
                let both = [by_mesh, plain].into_iter().flatten();
                both.min_by_key(|routed| (routed.pairs, routed.layers.count))
            }
        };
        if let Some(Routed { lfts, unreachable, layers, .. }) = routed {
            let hops = distances.finish();
            let (loads, lanes) = (Vec::new(), Lanes::Layers(layers));
            return Ok(Routing { engine: self.name(), lfts, hops, lanes, unreachable, loads });
        }
        Err(RoutingError::TooFewLanes { engine: self.name(), lanes })
    }
}

/// Tables, pairs of a switch and a LID without a route, and layers.
struct Routed {
    lfts: Vec<Entries>,
    unreachable: u64,
    layers: Layers,
    /// Whose packets the layers keep apart.
    pairs: Pairs,
}

/// Routes by the dimensions of a mesh, if one is to be looked for and there is one.
fn on_mesh(
    engine: &'static str,
    topology: &Topology,
    steering: &Steering,
    start: u8,
    lanes: u8,
) -> Option<Routed> {
    // Who tells which links are dear wants other ways.
    if !steering.analyses_mesh || !steering.hop_weights.is_empty() {
        return None;
    }
    let mesh = Mesh::find(topology)?;
    let mut distances = Distances::new(engine, &mesh.topology, steering).ok()?;
    let trees = Trees::new(&mesh.topology, &mut distances, f64::INFINITY).0;
    let layers = pairs::layers(&mesh.topology, &trees, start, lanes, Pairs::WithHosts)?;
    let (lfts, unreachable) = tables(&mesh.topology, steering, &trees);
    let (lfts, layers, pairs) = (mesh.tables(lfts), mesh.layers(&layers), Pairs::WithHosts);
    Some(Routed { lfts, unreachable, layers, pairs })
}

/// Routes by the first paths for which there are lanes enough.
fn plain(
    topology: &Topology,
    steering: &Steering,
    distances: &mut Distances<'_>,
    start: u8,
    lanes: u8,
) -> Option<Routed> {
    let route = |trees: &Trees, pairs| {
        let layers = pairs::layers(topology, trees, start, lanes, pairs)?;
        let (lfts, unreachable) = tables(topology, steering, trees);
        Some(Routed { lfts, unreachable, layers, pairs })
    };
    let choices = choices(topology, distances);
    let pairs = Pairs::choices(topology);
    let best = pairs.iter().find_map(|&pairs| choices.iter().find_map(|trees| route(trees, pairs)));
    best.or_else(|| {
        // Those without tolerance, and with any, were among the choices.
        let some = TOLERANCES.into_iter().filter(|tolerance| (0.1..1e9).contains(tolerance));
        let mut all = pairs.iter().flat_map(|&pairs| some.clone().map(move |some| (some, pairs)));
        all.find_map(|(some, pairs)| route(&Trees::new(topology, distances, some).0, pairs))
    })
}

/// Paths to try first, those with the least loaded cables before others: by load and by ports, and both
/// with paths moved away from crowded links.
fn choices(topology: &Topology, distances: &mut Distances<'_>) -> Vec<Trees> {
    let by_ports = Trees::new(topology, distances, f64::INFINITY);
    let drawn = [Trees::new(topology, distances, 0.0), by_ports];
    let mut choices = Vec::new();
    // Of several cables to one switch, moving paths does not tell how much each has.
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

/// The tables of all switches, and how many pairs of a switch and a LID have no route.
fn tables(topology: &Topology, steering: &Steering, trees: &Trees) -> (Vec<Entries>, u64) {
    let mut tables = Tables::new(topology.switch_count(), topology.table_len());
    let mut unreachable = 0;
    for Group { home, lids, exits } in groups(topology, steering) {
        for ((&lid, &exit), place) in lids.iter().zip(&exits).zip(0..) {
            tables.begin(&[lid]);
            tables.enter(home, exit);
            for switch in topology.switches().filter(|&switch| switch != home) {
                match trees.port(topology, switch, home, place) {
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
