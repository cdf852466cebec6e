//! Minimum hop: breadth-first distances, ties spread by the routes that really pass ([`deal`]).
//! No deadlock avoidance; use `updn` or `dfsssp` where cycles exist.
//!
//! [`deal`]: super::deal

use super::deal::{Before, Dealt, Shortest, deal};
use super::{Engine, HopMatrix, Lanes, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `minhop`, the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct MinHop;

impl Engine for MinHop {
    fn name(&self) -> &'static str {
        "minhop"
    }

    fn route(
        &self,
        topology: &Topology,
        _: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        let hops = HopMatrix::compute_for(self.name(), topology)?;
        let before = previous.map(|previous| Before { previous, hops: previous.hops });
        let Dealt { lfts, unreachable } = deal(topology, &hops, before, |_| Shortest);
        Ok(Routing { engine: self.name(), lfts, hops, lanes: Lanes::Free, unreachable })
    }
}

#[cfg(test)]
mod tests;
