//! Minimum hop: breadth-first distances, equal paths chosen by the number of routes that pass
//! ([`deal`]). No deadlock avoidance; use `updn` or `dfsssp` where cycles exist. Previous routes
//! are kept where possible ([`repair`](crate::repair)).
//!
//! [`deal`]: crate::deal

use super::shortest::route_shortest;
use crate::deal::Shortest;
use crate::{Engine, Previous, Routing, RoutingError, Steering, Topology};

/// The engine `minhop`, the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct MinHop;

impl Engine for MinHop {
    fn name(&self) -> &'static str {
        "minhop"
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
        route_shortest(self.name(), topology, &steering.common, previous, &Shortest)
    }
}

#[cfg(test)]
mod tests;
