//! What is logged of a sweep: errors and oddities by the place that they concern, and SMPs.

use std::fmt;

use tracing::trace;

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::smp::{Kind, Request};

/// Target of lines that are logged whatever the log's level is, as in OpenSM: who is master, and that the
/// subnet is up.
pub(crate) const STATE: &str = "ibsm::state";

impl Sweeper {
    /// Counts an error of the sweep that concerns `port`, which is tried again before long.
    pub(super) fn fault(&mut self, port: PortIndex, text: fmt::Arguments<'_>) {
        self.sweep.fault(self.fabric.port(port).node, port, text);
    }

    /// Counts an error of the sweep, and logs it unless there were many already.
    pub(super) fn error(&mut self, text: fmt::Arguments<'_>) {
        self.sweep.error(text);
    }

    /// Logs something odd about the fabric that does not keep the rest from working, unless there
    /// was much of that already.
    pub(super) fn complain(&mut self, text: fmt::Arguments<'_>) {
        self.sweep.complain(text);
    }

    /// The same of something odd about the node of `port`.
    pub(super) fn complain_of(&mut self, port: PortIndex, text: fmt::Arguments<'_>) {
        self.sweep.complain_of(self.fabric.port(port).node, text);
    }

    /// Tells of an SMP, where all is to be told.
    pub(super) fn trace_smp(&self, way: &str, request: Request) {
        if tracing::enabled!(tracing::Level::TRACE) && request.kind != Kind::OwnNodeInfo {
            let (name, block) = (request.kind.name(), request.block);
            trace!("{way} {name} block {block} of {}", self.place(request.port()));
        }
    }

    /// `port` in words, with the route to it.
    pub(super) fn place(&self, port: PortIndex) -> String {
        match self.fabric.route_to(port) {
            Some(route) => format!("{} (directed route {route})", self.fabric.describe(port)),
            None => self.fabric.describe(port),
        }
    }
}
