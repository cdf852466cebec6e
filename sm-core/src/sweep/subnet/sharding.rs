//! State of the distribution of clients over responders. The rules that change it are in `shard`.

use ib_mad::types::Guid;

use super::sa_guid::SaGuids;
use crate::manage::shard::{SaLid, Spread, TakeOver};

/// The clients that are distributed over responders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Percentage of the ports that can be.
    pub share: u8,
    /// Whether ports whose adapters may have virtual functions are led to responders' ports
    /// that do not have the GUID that stands for the SA, too.
    pub virtualized: bool,
}

/// The distribution of clients over responders.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Shards {
    pub(in crate::sweep) sharding: Option<Sharding>,
    pub(in crate::sweep) sa_lids: Vec<SaLid>,
    pub(in crate::sweep) spread: Spread,
    /// The ports that are to have the GUID that stands for the SA.
    pub(in crate::sweep) sa_guids: SaGuids,
    /// Whether ports were moved since the caller last asked.
    pub(in crate::sweep) has_moved: bool,
}

impl Shards {
    /// The LID of a port moved to another port.
    pub(in crate::sweep) fn follow(&mut self, what: TakeOver) {
        let sa_lid = self.sa_lids.iter_mut().find(|sa_lid| sa_lid.port == what.old);
        sa_lid.into_iter().for_each(|sa_lid| sa_lid.port = what.spare);
    }

    pub(in crate::sweep) fn clear(&mut self) {
        self.spread.clear();
        self.sa_lids.clear();
        self.sa_guids.clear();
    }

    /// A port could not be addressed: it moves with the next step.
    pub(in crate::sweep) fn forget(&mut self, port: Guid) {
        self.spread.forget(port);
    }
}
