//! Quotas: no single port can fill the registry.
//!
//! Each record is charged to a port. Records that a port registers for itself, by port GUID or
//! alias, are charged to it; so are those it registers for others, where any port may (proxy joins,
//! services at multicast GIDs). Charges are not stored: after a restart records are charged to the
//! ports they describe, and records that another port may have requested are charged to no port, so
//! that no port's quota is used up by another.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use ib_mad::types::Guid;
use ib_mad::wire::mad::Status;

use super::{Core, Ports, Refusal, Request};

/// Owner of records whose requesting port is unknown. No port has this GUID.
pub(super) const NO_REQUESTER: Guid = Guid(0);

/// Number of records charged to each port.
#[derive(Debug, Default)]
pub(super) struct Tally(HashMap<Guid, usize, RandomState>);

impl Tally {
    /// The number charged to `port`.
    pub(super) fn of(&self, port: Guid) -> usize {
        self.0.get(&port).copied().unwrap_or(0)
    }

    /// Charges one record.
    pub(super) fn add(&mut self, port: Guid) {
        *self.0.entry(port).or_default() += 1;
    }

    /// Releases one record.
    pub(super) fn remove(&mut self, port: Guid) {
        match self.0.get_mut(&port) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.0.remove(&port)),
        }
    }
}

impl Core {
    /// Refuses a record if its port already has `count` of `max` records of the kind, unless
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

    /// Refuses `count` more records beyond the limit of all kinds, of which the last
    /// are reserved for trusted requesters.
    pub(super) fn room_for(
        &mut self,
        ports: &Ports,
        request: &Request,
        count: usize,
    ) -> Result<(), Refusal> {
        let settings = &ports.settings;
        let reserved = if request.trusted { 0 } else { settings.records_reserved };
        if self.len() + count <= settings.records_max.saturating_sub(reserved) {
            return Ok(());
        }
        self.counters.records_refused += 1;
        Err(Status::SA_NO_RESOURCES.into())
    }
}
