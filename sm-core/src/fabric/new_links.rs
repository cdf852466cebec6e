//! Links found since they were last taken, so that a consumer need not examine all links.

use super::{Fabric, PortIndex};

/// Maximum number of links tracked individually; beyond it all links are examined.
const NOTED_MAX: usize = 1 << 17;

/// New links, by a port of each.
#[derive(Debug)]
pub(super) enum NewLinks {
    /// These links; some may have vanished again.
    Of(Vec<PortIndex>),
    /// Any link may be new.
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
    /// Takes the links found since the last call, each once; older ones may be included.
    pub fn take_new_links(&mut self) -> Vec<(PortIndex, PortIndex)> {
        match std::mem::take(&mut self.new_links) {
            NewLinks::Of(ports) => self.links_of(ports.into_iter()),
            NewLinks::All => self.links(),
        }
    }

    /// Counts the link of a port as new.
    pub fn note_new_link(&mut self, port: PortIndex) {
        self.new_links.note(port);
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
