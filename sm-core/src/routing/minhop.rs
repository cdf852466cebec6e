//! Minimum hop: breadth-first distances, ties spread by the routes that really pass ([`deal`]).
//! No deadlock avoidance; use `updn` or `dfsssp` where cycles exist. What was routed before is kept
//! as far as it can be ([`mend`](super::mend)).
//!
//! [`deal`]: super::deal

use super::deal::{Dealt, Shortest, deal};
use super::mend::{Labelled, Scope, mend};
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
        let mended = previous.and_then(|previous| {
            let (now, then) = (Labelled::by_hops(&hops), Labelled::by_hops(previous.hops));
            mend(topology, now, previous, then, |_| Shortest, Scope::Changed)
        });
        let anew = || deal(topology, &hops, |_| Shortest);
        let Dealt { lfts, unreachable } = mended.unwrap_or_else(anew);
        Ok(Routing { engine: self.name(), lfts, hops, lanes: Lanes::Free, unreachable })
    }
}

#[cfg(test)]
mod tests;
