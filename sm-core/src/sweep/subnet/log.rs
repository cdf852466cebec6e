//! Log lines about SMPs, and the target of lines about the manager's state.

use tracing::trace;

use super::Subnet;
use crate::smp::{Destination, Request};

/// Target of lines that are logged at any log level, as OpenSM does: changes of mastership, and
/// SUBNET UP.
pub const STATE: &str = "ibsm::state";

impl Subnet {
    /// Logs an SMP at trace level; `way` is its direction.
    pub(in crate::sweep) fn trace_smp(&self, way: &str, request: Request) {
        if tracing::enabled!(tracing::Level::TRACE) && request.destination() != Destination::OwnNode
        {
            let (name, block) = (request.kind.name(), request.block);
            trace!("{way} {name} block {block} of {}", self.place(request.port()));
        }
    }
}
