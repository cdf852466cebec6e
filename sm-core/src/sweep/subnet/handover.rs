//! State of handovers between this subnet manager and others.

use std::collections::BTreeSet;
use std::time::Instant;

use ib_mad::types::Guid;

use crate::fabric::PortIndex;
use crate::mastership::RemoteSm;

/// State of handovers, in both directions.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Handover {
    /// The SM that was offered a handover.
    pub(in crate::sweep) offered: Option<RemoteSm>,
    /// When it was offered.
    pub(in crate::sweep) offered_at: Option<Instant>,
    /// Whether that SM answered HANDOVER.
    pub(in crate::sweep) is_accepted: bool,
    /// Whether another SM was master since this SM was.
    pub(in crate::sweep) follows_another: bool,
    /// Whether to keep the LIDs that the previous master assigned.
    inherits_lids: bool,
    /// Whether this SM was standby since its LIDs were set.
    pub(in crate::sweep) stood_by: bool,
    /// Whether this SM has configured the subnet since it last stood by.
    pub(in crate::sweep) has_configured: bool,
    /// The SM that handed over to this one, until the next election.
    pub(in crate::sweep) taken_from: Option<Guid>,
    /// The master to which a trap that requests a handover is to be sent.
    pub(in crate::sweep) asks_master: Option<PortIndex>,
    /// Whether all SMs have the registry in one store.
    pub(in crate::sweep) registry_is_shared: bool,
    /// Port GUIDs of SMs that follow this SM's registry.
    pub(in crate::sweep) followers: BTreeSet<Guid>,
    /// Whether this SM stands by for any other master that it finds.
    pub(in crate::sweep) is_in_doubt: bool,
    /// Whether the current election polls all other SMs because of that, and whether such an
    /// election has found no other master.
    pub(in crate::sweep) elects_in_doubt: bool,
    pub(in crate::sweep) is_doubt_settled: bool,
    /// Whether no handover is requested or accepted until this SM's copy of the master's registry
    /// is complete.
    pub(in crate::sweep) awaits_copy: bool,
}

impl Handover {
    /// No handover is expected.
    pub(in crate::sweep) fn settle(&mut self) {
        self.offered = None;
        self.taken_from = None;
        self.asks_master = None;
    }

    /// Starts a term as master.
    pub(in crate::sweep) fn begin_tenure(&mut self) {
        self.inherits_lids |= std::mem::take(&mut self.follows_another);
    }

    /// Whether LIDs that ports hold have precedence over ours; `true` once.
    pub(in crate::sweep) fn take_inherits_lids(&mut self) -> bool {
        std::mem::take(&mut self.inherits_lids)
    }
}
