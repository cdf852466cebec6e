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
        let ports = match std::mem::take(&mut self.new_links) {
            NewLinks::Of(ports) => ports,
            NewLinks::All => self.nodes().flat_map(|(node, _)| self.ports_of(node)).collect(),
        };
        let link = |port: PortIndex| {
            let peer = self.port(port).peer()?;
            Some((port.min(peer), port.max(peer)))
        };
        let mut links: Vec<_> = ports.into_iter().filter_map(link).collect();
        links.sort_unstable();
        links.dedup();
        links
    }
}
