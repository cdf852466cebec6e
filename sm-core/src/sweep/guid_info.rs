//! Alias GUIDs in the GUID tables of ports (14.2.5.5): written between sweeps, as the registry has
//! them, and again to a port that was reset.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use tracing::warn;

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::registry::{GUIDS_PER_BLOCK, GuidBlock};
use crate::smp::{Kind, Request};

/// How long to wait before blocks are sent that were not taken, or could not be sent yet.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Longest such delay, in doublings.
const RETRY_DOUBLINGS: u32 = 6;

type Block = [Guid; GUIDS_PER_BLOCK];

/// GUID tables as far as they have aliases.
#[derive(Debug, Default)]
pub(super) struct AliasGuids {
    /// What blocks are to hold, by port GUID and number.
    desired: BTreeMap<(Guid, u8), Block>,
    /// Those of them that ports are not known to hold.
    stale: BTreeSet<(Guid, u8)>,
    retry: Option<Instant>,
    /// Attempts in a row since a port last took a block.
    attempts: u32,
}

impl AliasGuids {
    /// The port is no more, and its aliases with it: should it come back, it is told anew.
    pub(super) fn remove(&mut self, port: Guid) {
        let keys: Vec<_> =
            self.desired.range((port, 0)..=(port, u8::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            self.desired.remove(&key);
            self.stale.remove(&key);
        }
    }

    /// Nothing is known any more of what a port holds.
    pub(super) fn forget(&mut self, port: Guid) {
        let keys = self.desired.range((port, 0)..=(port, u8::MAX)).map(|(key, _)| *key);
        self.stale.extend(keys);
    }

    /// Nothing is known any more of what any port holds.
    pub(super) fn forget_all(&mut self) {
        self.stale.extend(self.desired.keys().copied());
    }
}

impl Sweeper {
    /// Says what blocks of GUID tables are to hold from now on.
    pub fn put_guid_blocks(&mut self, now: Instant, blocks: &[GuidBlock]) {
        for block in blocks {
            let key = (block.port_guid, block.number);
            self.aliases.desired.insert(key, block.guids);
            self.aliases.stale.insert(key);
        }
        self.aliases.attempts = 0;
        self.write_guid_blocks(now);
        self.advance(now);
    }

    /// Sends blocks that ports are not known to hold, unless a sweep is under way or requests are
    /// on the wire: then it is done later.
    pub(super) fn write_guid_blocks(&mut self, now: Instant) {
        if self.aliases.stale.is_empty() {
            self.aliases.retry = None;
            return;
        }
        let delay = RETRY_DELAY * (1 << self.aliases.attempts.min(RETRY_DOUBLINGS));
        self.aliases.retry = Some(now + delay);
        if !self.subnet.up || !self.is_idle() {
            return;
        }
        let wanted: BTreeSet<Guid> = self.aliases.stale.iter().map(|(guid, _)| *guid).collect();
        let ports: HashMap<Guid, PortIndex> = self
            .fabric
            .end_ports()
            .map(|port| (self.fabric.port(port).guid, port))
            .filter(|(guid, _)| wanted.contains(guid))
            .collect();
        for (guid, number) in &self.aliases.stale {
            if let Some(&port) = ports.get(guid) {
                self.exchange.push(Request::block(Kind::SetGuidInfo, port, (*number).into()));
            }
        }
        if ports.is_empty() {
            // Those that are not there are written to when a sweep finds them.
            self.aliases.retry = None;
        }
    }

    pub(super) fn retry_guid_blocks(&mut self, now: Instant) {
        if self.sweep.is_idle() && self.aliases.retry.is_some_and(|due| now >= due) {
            self.aliases.attempts += 1;
            self.write_guid_blocks(now);
        }
    }

    pub(super) fn guid_blocks_due(&self) -> Option<Instant> {
        self.aliases.retry
    }

    /// A block as it is to be set; `None` if nothing is wanted of it.
    pub(super) fn wanted_guids(&self, request: Request) -> Option<[u8; 64]> {
        let block = self.aliases.desired.get(&self.guid_block_of(request))?;
        let mut bytes = [0; 64];
        for (place, guid) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(block) {
            *place = guid.0.to_be_bytes();
        }
        Some(bytes)
    }

    pub(super) fn guid_info_set(&mut self, request: Request, data: &[u8; 64]) {
        let key = self.guid_block_of(request);
        // The first entry of all is the port's own, which it may leave out.
        let start = if key.1 == 0 { 8 } else { 0 };
        if self.wanted_guids(request).is_some_and(|wanted| wanted[start..] != data[start..]) {
            // Others were asked for meanwhile, or it takes none: it is told again.
            let place = self.place(request.port());
            warn!("{place} does not hold the alias GUIDs that it was told");
            return;
        }
        self.aliases.stale.remove(&key);
        self.aliases.attempts = 0;
        let is_empty = |block: &Block| block.iter().skip(usize::from(key.1 == 0)).all(|g| g.0 == 0);
        if self.aliases.desired.get(&key).is_some_and(is_empty) {
            self.aliases.desired.remove(&key);
        }
    }

    fn guid_block_of(&self, request: Request) -> (Guid, u8) {
        (self.fabric.port(request.port()).guid, request.block as u8)
    }
}
