//! Single-source shortest paths: each LID is routed by the least loaded of the shortest paths, and
//! the load of these paths then counts for the LIDs that follow. No deadlock avoidance; use
//! `dfsssp` where cycles exist.
//!
//! After Hoefler, Schneider, Lumsdaine: "Optimized Routing for Large-Scale InfiniBand Networks"
//! (HOTI 2009). The weight of a link grows with the routes on it, one from each host to each LID.
//! Links that are cheaper by `hop_weights` are preferred regardless of load, so that the search is
//! confined to the shortest paths to an egress switch. These are listed once for all its LIDs; a
//! LID then costs one look at each of them, nearest switches first, and no heap.
//!
//! LIDs of compute nodes are routed first, then those of I/O nodes, then other hosts', and last
//! those of switches, which carry little traffic. A host's LIDs are consecutive and so take
//! different paths.
//!
//! Without weights, previous routes are kept where possible ([`repair`](crate::repair)), and new
//! routes take the least loaded paths.

mod distances;
mod order;
mod walk;

pub(crate) use self::distances::Distances;
pub(crate) use self::order::{Group, groups};
pub(crate) use self::walk::{TOLERANCES, Walk};
use crate::deal::Dealt;
use crate::tables::Tables;
use crate::{CommonOptions, Engine, Lanes, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `sssp`. Takes time proportional to LIDs times links on shortest paths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sssp;

impl Engine for Sssp {
    fn name(&self) -> &'static str {
        "sssp"
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
        let mut distances = Distances::new(self.name(), topology, &steering.common)?;
        let dealt = distances.route_tree(&steering.common, previous).unwrap_or_else(|| {
            let repaired = distances.repair(previous);
            distances
                .settle(previous, repaired, |distances| walk(topology, &steering.common, distances))
        });
        let Dealt { lfts, unreachable, loads, tree } = dealt;
        let (hops, lanes) = (distances.finish(), Lanes::Free);
        Ok(Routing { engine: self.name(), lfts, hops, lanes, unreachable, loads, tree })
    }
}

/// Routes everything from scratch, without regard to credit loops.
pub(crate) fn walk(
    topology: &Topology,
    common: &CommonOptions,
    distances: &mut Distances<'_>,
) -> Dealt {
    if let Some(dealt) = distances.route_tree(common, None) {
        return dealt;
    }
    let mut walk = Walk::new(topology);
    let mut tables = Tables::new(topology.switch_count(), topology.table_len());
    let mut unreachable = 0;
    for group in groups(topology, common) {
        walk.begin(&distances.to(group.egress_switch), &group);
        unreachable += walk.unreached() * group.lids.len() as u64;
        for (&lid, &exit) in group.lids.iter().zip(&group.exits) {
            walk.route(0.0);
            walk.enter(&mut tables, lid, exit);
        }
    }
    let mut lfts = tables.finish();
    let loads = distances.relieve(common, walk.loads_of_hosts(), &mut lfts);
    Dealt { lfts, unreachable, loads, tree: None }
}

#[cfg(test)]
mod tests;
