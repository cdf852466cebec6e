//! Known M_Keys of ports. The rules that choose among them are in `keys`.

use std::collections::HashSet;
use std::sync::Arc;

use ib_mad::types::Guid;

use crate::manage::mkey::{End, MKeyTable, Neighbours};

/// Known M_Keys, and the neighbour of each port at the time when all ports could be read.
#[derive(Debug, Default)]
pub(in crate::sweep) struct MKeys {
    pub(in crate::sweep) known: MKeyTable,
    /// The M_Keys that ports had before. A master that was replaced may set its own once more,
    /// before it finds its successor. Not kept over a restart.
    pub(in crate::sweep) replaced: MKeyTable,
    pub(in crate::sweep) neighbours: Arc<Neighbours>,
    /// Links found since `neighbours` was last brought up to date: each by its ends, in the order
    /// in which they were found. At most twice as many as the fabric has.
    pub(in crate::sweep) new_links: Vec<(End, End)>,
    /// Whether the hint about M_Keys of other SMs was logged.
    pub(in crate::sweep) hinted: bool,
    /// GUID of the SM's own port; 0 if the transport does not report it.
    pub(in crate::sweep) own_port: Guid,
    /// Ports that get the configured M_Key before the remembered one, because it was answered last
    /// or the remembered one was not. At most as many as there are known M_Keys.
    pub(in crate::sweep) doubted: HashSet<Guid>,
    /// Ports whose remembered M_Key is wrong: their PortInfo hid the M_Key.
    pub(in crate::sweep) refuted: HashSet<Guid>,
    /// Ports that last reported an M_Key other than the configured one.
    pub(in crate::sweep) others: HashSet<Guid>,
}

impl MKeys {
    /// Records the M_Key of a port that has shown it, or answered a request with it.
    pub(in crate::sweep) fn prove(&mut self, holder: Guid, m_key: u64) {
        self.learn(holder, m_key);
        self.doubted.remove(&holder);
        self.refuted.remove(&holder);
    }

    /// Records the M_Key of a port, and the one that it replaces.
    pub(in crate::sweep) fn learn(&mut self, holder: Guid, m_key: u64) {
        if let Some(before) = self.known.get(holder).filter(|before| *before != m_key) {
            self.replaced.set(holder, before);
        }
        self.known.set(holder, m_key);
    }
}
