//! Ports whose clients are still to be asked to register again.

use std::collections::BTreeSet;
use std::sync::Arc;

use ib_mad::types::Guid;

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

/// Ports that have lost registrations.
#[derive(Debug, Default)]
pub(in crate::sweep) struct LapsedPorts {
    /// In the registry of the previous master, or in the one that all managers share.
    pub(in crate::sweep) ports: Arc<BTreeSet<Guid>>,
    /// Those of them that were asked to register again, and have answered. At most as many, until
    /// they are taken.
    pub(in crate::sweep) asked: Vec<Guid>,
}

impl LapsedPorts {
    /// A port was asked.
    pub(in crate::sweep) fn note_asked(&mut self, guid: Guid) {
        if self.ports.contains(&guid) && self.asked.len() < self.ports.len() {
            self.asked.push(guid);
        }
    }
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
