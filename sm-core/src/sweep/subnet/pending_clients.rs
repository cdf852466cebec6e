//! Ports whose clients are still to be asked to register again.

use std::collections::BTreeSet;

use crate::fabric::PortIndex;

/// Ports whose clients have not been asked to register again yet.
#[derive(Debug, Default)]
pub(in crate::sweep) struct PendingClients {
    /// Ports to ask between sweeps.
    pub(in crate::sweep) waiting: BTreeSet<PortIndex>,
    /// Ports to ask unless the forwarding tables are those of our last run.
    pub(in crate::sweep) unverified: BTreeSet<PortIndex>,
    /// Ports that were asked between sweeps, and did not answer.
    pub(in crate::sweep) lost: BTreeSet<PortIndex>,
}

impl PendingClients {
    /// Whether a port must not be asked yet.
    pub(in crate::sweep) fn is_deferred(&self, port: PortIndex) -> bool {
        self.waiting.contains(&port) || self.unverified.contains(&port)
    }

    /// Ports to ask between sweeps.
    pub(in crate::sweep) fn count(&self) -> usize {
        self.waiting.len() + self.lost.len()
    }
}
