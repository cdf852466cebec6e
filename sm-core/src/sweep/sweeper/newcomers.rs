//! Ports at other places than their GUIDs belong to get what belongs to these after a while: see
//! `stages::discover::newcomers`.

use std::time::Instant;

use ib_mad::types::Guid;

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::manage::mkey::End;

impl Sweeper {
    /// Number of ports, virtual ones included, at other places than their GUIDs belong to, which do
    /// without the P_Keys and registrations of these until the owners have been away for long.
    pub fn newcomers(&self) -> usize {
        self.subnet.state.newcomers.count
    }

    /// The first of them: the port, the GUID and the place where that belongs.
    pub fn listed_newcomers(&self) -> impl Iterator<Item = (PortIndex, Guid, End)> {
        self.subnet.state.newcomers.listed.iter().copied()
    }

    /// Gives ports what belongs to this GUID of a port or node, although it belongs elsewhere. An
    /// operator knows that the host was moved. Returns whether a port was waiting for that.
    pub fn admit(&mut self, now: Instant, guid: Guid) -> bool {
        let admits = self.subnet.admit(guid);
        if admits {
            self.subnet.state.newcomers.due = Some(now);
        }
        admits
    }

    /// When newcomers are to be looked at.
    pub(super) fn newcomers_due(&self) -> Option<Instant> {
        self.subnet.state.newcomers.due.filter(|_| self.subnet.state.up)
    }

    /// Puts in force what ports get that are newcomers no more.
    pub(super) fn settle_newcomers(&mut self, now: Instant) {
        if !self.is_idle() || self.newcomers_due().is_none_or(|due| now < due) {
            return;
        }
        self.subnet.settle_newcomers(now);
        let newcomers = &mut self.subnet.state.newcomers;
        let settled = std::mem::take(&mut newcomers.settled);
        if settled.is_empty() {
            return;
        }
        newcomers.due = None;
        self.subnet.settle_newcomers(now);
        self.partition_changes.changed(now, self.subnet.fabric.port_count());
        self.reregistration.ask(&mut self.subnet, now, settled);
    }
}
