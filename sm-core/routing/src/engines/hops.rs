//! Hop matrices for engines that cannot work without one.

use crate::{HopMatrix, Previous, Reason, RoutingError, Topology};

/// Computes the matrix. `previous` is the engine's previous routing, if its hops were computed by
/// this function.
pub(super) fn compute(
    engine: &'static str,
    topology: &Topology,
    previous: Option<&Previous<'_>>,
) -> Result<HopMatrix, RoutingError> {
    let previous = previous.filter(|previous| previous.is_of_same_switches(topology));
    let then = previous.and_then(|previous| Some((previous.topology, previous.hops?)));
    let computed = match then {
        Some((then, hops)) => HopMatrix::compute_since(topology, then, hops),
        None => HopMatrix::compute(topology),
    };
    computed.ok_or_else(|| too_many(engine, topology))
}

/// Returns an error if there are more switches than a matrix supports, for engines that fill in the
/// matrix themselves.
pub(super) fn check_size(engine: &'static str, topology: &Topology) -> Result<(), RoutingError> {
    let fits = topology.switch_count() <= HopMatrix::SWITCHES_MAX;
    if fits { Ok(()) } else { Err(too_many(engine, topology)) }
}

fn too_many(engine: &'static str, topology: &Topology) -> RoutingError {
    let switches = topology.switch_count();
    Reason::TooManySwitches { switches, max: HopMatrix::SWITCHES_MAX }.of(engine)
}
