//! Single-source shortest paths: each LID is routed by the least loaded of the shortest ways, and
//! the load of these ways then counts for the LIDs that follow. No deadlock avoidance; use `dfsssp`
//! where cycles exist.
//!
//! After Hoefler, Schneider, Lumsdaine: "Optimized Routing for Large-Scale InfiniBand Networks"
//! (HOTI 2009). Each link weighs the more the more routes are on it: one from each host to each LID.
//! Links that are cheaper by `hop_weights` come first whatever their load, so that the search is
//! confined to the shortest ways to a home switch. These are listed once for all its LIDs; a LID
//! then costs one look at each of them, nearest switches first, and no heap.
//!
//! LIDs of compute nodes come first, then those of I/O nodes, then other hosts', and those of
//! switches, which carry little traffic, at last. A host's LIDs follow each other and so take
//! different ways.
//!
//! Without weights, what was routed before is kept as far as it can be ([`repair`](super::repair)), and
//! what is new takes the least loaded ways, too.

mod distances;
mod order;
mod walk;

pub(super) use self::distances::Distances;
pub(super) use self::order::{Group, groups};
pub(super) use self::walk::{TOLERANCES, Walk};
use super::deal::Dealt;
use super::tables::Tables;
use super::{Engine, Lanes, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `sssp`. Costs LIDs times links on shortest ways.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sssp;

impl Engine for Sssp {
    fn name(&self) -> &'static str {
        "sssp"
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
        let repaired = distances.repair(previous);
        let Dealt { lfts, unreachable, loads } =
            distances.settle(previous, repaired, |distances| walk(topology, steering, distances));
        let (hops, lanes) = (distances.finish(), Lanes::Free);
        Ok(Routing { engine: self.name(), lfts, hops, lanes, unreachable, loads })
    }
}

/// Routes everything anew, whatever waits for what.
pub(super) fn walk(
    topology: &Topology,
    steering: &Steering,
    distances: &mut Distances<'_>,
) -> Dealt {
    let mut walk = Walk::new(topology);
    let mut tables = Tables::new(topology.switch_count(), topology.table_len());
    let mut unreachable = 0;
    for group in groups(topology, steering) {
        walk.begin(&distances.to(group.home), &group);
        unreachable += walk.unreached() * group.lids.len() as u64;
        for (&lid, &exit) in group.lids.iter().zip(&group.exits) {
            walk.route(0.0);
            walk.enter(&mut tables, lid, exit);
        }
    }
    let mut lfts = tables.finish();
    let loads = distances.relieve(steering, walk.loads_of_hosts(), &mut lfts);
    Dealt { lfts, unreachable, loads }
}

#[cfg(test)]
mod tests;
