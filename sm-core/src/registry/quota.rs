//! Who has how much: nobody fills the registry alone.
//!
//! A record is charged to a port. What a port registers for itself, by its own GUID or an alias,
//! is charged to it; so is what it registers for others, where anybody may (proxy joins, services
//! at multicast GIDs). What is charged to whom is not stored: a restart charges records to the
//! ports that they are of, and to nobody what others may have asked for, so that nobody's quota is
//! used up by somebody else.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use ib_mad::types::Guid;
use ib_mad::wire::mad::Status;

use super::{Core, Ports, Refusal, Request};

/// To whom a record is charged that no port is known to have asked for. No port has this GUID.
pub(super) const NOBODY: Guid = Guid(0);

/// Records charged to each port.
#[derive(Debug, Default)]
pub(super) struct Tally(HashMap<Guid, usize, RandomState>);

impl Tally {
    /// How many are charged to `port`.
    pub(super) fn of(&self, port: Guid) -> usize {
        self.0.get(&port).copied().unwrap_or(0)
    }

    /// Charges one more.
    pub(super) fn add(&mut self, port: Guid) {
        *self.0.entry(port).or_default() += 1;
    }

    /// Takes one back.
    pub(super) fn remove(&mut self, port: Guid) {
        match self.0.get_mut(&port) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.0.remove(&port)),
        }
    }
}

impl Core {
    /// Refuses what would give a port that has `count` records of a kind more than `max`, unless
    /// the requester is trusted.
    pub(super) fn within_quota(
        &mut self,
        request: &Request,
        count: usize,
        max: usize,
    ) -> Result<(), Refusal> {
        if request.trusted || count < max {
            return Ok(());
        }
        self.counters.quota_refused += 1;
        Err(Status::SA_NO_RESOURCES.into())
    }

    /// Refuses what would add `count` records beyond the limit of all together, of which the last
    /// are for trusted requesters.
    pub(super) fn room_for(
        &mut self,
        ports: &Ports,
        request: &Request,
        count: usize,
    ) -> Result<(), Refusal> {
        let records = self.groups.len()
            + self.members.len()
            + self.services.len()
            + self.subscriptions.len()
            + self.alias_guids.len();
        let settings = &ports.settings;
        let reserved = if request.trusted { 0 } else { settings.records_reserved };
        if records + count <= settings.records_max.saturating_sub(reserved) {
            return Ok(());
        }
        self.counters.records_refused += 1;
        Err(Status::SA_NO_RESOURCES.into())
    }
}
