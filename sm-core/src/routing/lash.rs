//! Layered shortest paths: one shortest path for each pair of switches, put into layers, one
//! virtual lane each, in which no links wait for each other in circles.
//!
//! After Skeie, Lysne, Theiss: "Layered Shortest Path (LASH) Routing in Irregular System Area
//! Networks" (IPDPS 2002). The paths between two switches are in the same layer both ways, so that
//! a packet is answered on the lane it came by. As few layers are used as first fit finds, and
//! then share the paths evenly; lanes that are not needed stay free for other uses.
//!
//! Paths take the least loaded ways as far as lanes allow, as in `dfsssp`, and low ports
//! otherwise, or always if a mesh is said to be cabled by dimensions (`do_mesh_analysis`). All LIDs
//! of a switch take the same switches on their ways; they are dealt to cables where several
//! lead to the same switch. That goes for the LIDs of one host, too.
//!
//! Pairs of switches without hosts are left out: they send each other nothing on data lanes. The
//! routing before is not looked at.

mod pairs;
mod trees;

use self::trees::Trees;
use super::sssp::{Distances, Group, TOLERANCES, groups};
use super::tables::Tables;
use super::{Engine, Lanes, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `lash`. Costs pairs of switches times hops times layers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lash;

impl Engine for Lash {
    fn name(&self) -> &'static str {
        "lash"
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
        let tolerances = if steering.analyses_mesh { &[f64::INFINITY][..] } else { &TOLERANCES };
        for &tolerance in tolerances {
            let trees = Trees::new(topology, &mut distances, tolerance);
            let Some(layers) = pairs::layers(topology, &trees, start, lanes) else { continue };
            let (lfts, unreachable) = tables(topology, steering, &trees);
            let (hops, lanes) = (distances.finish(), Lanes::Layers(layers));
            return Ok(Routing { engine: self.name(), lfts, hops, lanes, unreachable });
        }
        Err(RoutingError::TooFewLanes { engine: self.name(), lanes })
    }
}

/// The tables of all switches, and how many pairs of a switch and a LID have no route.
fn tables(topology: &Topology, steering: &Steering, trees: &Trees) -> (Vec<Vec<u8>>, u64) {
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
