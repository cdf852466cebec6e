//! What every routing engine implements.

use std::fmt;

use crate::engines::Steering;
use crate::error::RoutingError;
use crate::previous::Previous;
use crate::routing::Routing;
use crate::topology::Topology;

/// A routing engine. Equal inputs must give equal routings: no clocks, no random seeds, no hash
/// iteration order. Engines do not promise that the result is free of credit loops;
/// [`verify::credit_loops`](crate::verify::credit_loops) checks it.
pub trait Engine: fmt::Debug + Send + Sync {
    /// The name used in `routing_engine`, in logs and as a metric label.
    fn name(&self) -> &'static str;

    /// Whether the engine itself keeps previous routes where possible, with these options.
    fn keeps_routes(&self, _steering: &Steering) -> bool {
        true
    }

    /// Routes all destinations with the options in `steering`. Routes that need not change are kept
    /// from `previous`; without it all are computed from scratch. A LID that cannot be reached gets
    /// [`NO_ROUTE`](crate::NO_ROUTE); that is not an error.
    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        previous: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError>;
}
