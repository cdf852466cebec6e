//! Minimum hop: breadth-first distances, ties spread by the routes that really pass ([`deal`]).
//! No deadlock avoidance; use `updn` or `dfsssp` where cycles exist. What was routed before is kept
//! as far as it can be ([`repair`](super::repair)).
//!
//! [`deal`]: super::deal

use super::deal::{Shortest, deal_shortest};
use super::{Engine, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `minhop`, the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct MinHop;

impl Engine for MinHop {
    fn name(&self) -> &'static str {
        "minhop"
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
        deal_shortest(self.name(), topology, steering, previous, &Shortest)
    }
}

#[cfg(test)]
mod tests;
