//! Which links were found since somebody looked, so that who remembers links need not look at all.

use super::{Fabric, PortIndex};

/// Links noted singly; beyond that all are looked at.
const NOTED_MAX: usize = 1 << 17;

/// Links that nobody has looked at, by a port of each.
#[derive(Debug)]
pub(super) enum NewLinks {
    /// These; some may be gone again.
    Of(Vec<PortIndex>),
    /// Any may be among them.
    All,
}

impl Default for NewLinks {
    fn default() -> Self {
        Self::Of(Vec::new())
    }
}

impl NewLinks {
    pub(super) fn note(&mut self, port: PortIndex) {
        match self {
            Self::Of(ports) if ports.len() < NOTED_MAX => ports.push(port),
            _ => *self = Self::All,
        }
    }
}

impl Fabric {
    /// Links that were found since this was asked for last, each once; there may be others among them.
    pub fn take_new_links(&mut self) -> Vec<(PortIndex, PortIndex)> {
        match std::mem::take(&mut self.new_links) {
            NewLinks::Of(ports) => self.links_of(ports.into_iter()),
            NewLinks::All => self.links(),
        }
    }

    /// All links, each once.
    pub fn links(&self) -> Vec<(PortIndex, PortIndex)> {
        self.links_of(self.nodes().flat_map(|(node, _)| self.ports_of(node)))
    }

    fn links_of(&self, ports: impl Iterator<Item = PortIndex>) -> Vec<(PortIndex, PortIndex)> {
        let link = |port: PortIndex| {
            let peer = self.port(port).peer()?;
            Some((port.min(peer), port.max(peer)))
        };
        let mut links: Vec<_> = ports.filter_map(link).collect();
        links.sort_unstable();
        links.dedup();
        links
    }
}
