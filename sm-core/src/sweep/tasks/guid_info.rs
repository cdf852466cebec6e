//! Alias GUIDs in the GUID tables of ports (IBA 14.2.5.5, C14-24.1.1.5,
//! C14-62.1.1.22): written between sweeps as the registry
//! has them, and again to a port that was reset.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::mad::Status;
use tracing::{debug, warn};

use super::Task;
use crate::fabric::PortIndex;
use crate::registry::{GUIDS_PER_BLOCK, GuidBlock};
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

/// Delay before blocks that a port did not accept are sent again.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// How often that delay doubles at most.
const RETRY_DOUBLINGS: u32 = 6;

type Block = [Guid; GUIDS_PER_BLOCK];

/// A block of a port's GUID table: the port's GUID and the block's number.
type BlockKey = (Guid, u8);

/// The task that writes alias GUIDs.
#[derive(Debug, Default)]
pub(in crate::sweep) struct AliasGuids {
    /// Wanted contents of blocks.
    desired: BTreeMap<BlockKey, Block>,
    /// Blocks that may hold other contents.
    stale: BTreeSet<BlockKey>,
    /// When stale blocks are sent.
    due: Option<Instant>,
    /// Consecutive attempts without an accepted block.
    attempts: u32,
}

impl AliasGuids {
    /// Sets the wanted contents of blocks, which are written when no sweep is under way.
    /// `owners` has the port of each alias.
    pub(in crate::sweep) fn put(
        &mut self,
        owners: &mut HashMap<Guid, Guid>,
        now: Instant,
        blocks: &[GuidBlock],
    ) {
        for block in blocks {
            let key = (block.port_guid, block.number);
            let before = self.desired.insert(key, block.guids);
            disown(owners, block.port_guid, &before.unwrap_or_default());
            self.stale.insert(key);
        }
        for block in blocks {
            let aliases = block.guids.iter().filter(|&&guid| guid != Guid(0));
            owners.extend(aliases.map(|&alias| (alias, block.port_guid)));
        }
        self.attempts = 0;
        self.wake(now);
    }

    /// A sweep ended: blocks of the ports it found may be stale.
    pub(in crate::sweep) fn wake(&mut self, now: Instant) {
        self.due = (!self.stale.is_empty()).then_some(now);
    }

    /// A port left the fabric, and its aliases with it.
    pub(in crate::sweep) fn remove(&mut self, owners: &mut HashMap<Guid, Guid>, port: Guid) {
        for key in self.keys_of(port) {
            disown(owners, port, &self.desired.remove(&key).unwrap_or_default());
            self.stale.remove(&key);
        }
    }

    /// A port was reset: the contents of its table are unknown.
    pub(in crate::sweep) fn forget(&mut self, port: Guid) {
        self.stale.extend(self.keys_of(port));
    }

    /// Another subnet manager may have written to any port.
    pub(in crate::sweep) fn forget_all(&mut self) {
        self.stale.extend(self.desired.keys().copied());
    }

    fn keys_of(&self, port: Guid) -> Vec<BlockKey> {
        let blocks = self.desired.range((port, 0)..=(port, u8::MAX));
        blocks.map(|(key, _)| *key).collect()
    }

    /// The wanted bytes of a block; `None` if it has no aliases.
    fn wanted(&self, key: BlockKey) -> Option<[u8; 64]> {
        let block = self.desired.get(&key)?;
        let mut bytes = [0; 64];
        for (place, guid) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(block) {
            *place = guid.0.to_be_bytes();
        }
        Some(bytes)
    }
}

/// A port does not have these aliases any more.
fn disown(owners: &mut HashMap<Guid, Guid>, port: Guid, block: &Block) {
    for alias in block {
        if owners.get(alias) == Some(&port) {
            owners.remove(alias);
        }
    }
}

/// The block that a request writes.
fn key_of(subnet: &Subnet, request: Request) -> BlockKey {
    (subnet.fabric.port(request.port()).guid, request.block as u8)
}

impl Task for AliasGuids {
    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant) {
        self.due = None;
        if self.stale.is_empty() || !subnet.state.up {
            // The end of the sweep that brings the subnet up wakes this task.
            return;
        }
        let wanted: BTreeSet<Guid> = self.stale.iter().map(|(guid, _)| *guid).collect();
        let ports: HashMap<Guid, PortIndex> = subnet
            .fabric
            .end_ports()
            .map(|port| (subnet.fabric.port(port).guid, port))
            .filter(|(guid, _)| wanted.contains(guid))
            .collect();
        if ports.is_empty() {
            // Ports that are absent are written to when a sweep finds them.
            return;
        }
        for (guid, number) in &self.stale {
            if let Some(&port) = ports.get(guid) {
                let request = Request::block(Kind::SetGuidInfo, port, (*number).into());
                subnet.exchange.push(request);
            }
        }
        self.due = Some(now + RETRY_DELAY * (1 << self.attempts.min(RETRY_DOUBLINGS)));
        self.attempts += 1;
    }
}

impl RequestOwner for AliasGuids {
    type Kind = kinds::AliasGuids;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::AliasGuids::SetGuidInfo => {
                *data = self.wanted(key_of(subnet, request))?;
                Some(request.block.into())
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, .. } = owned;
        let key = key_of(subnet, request);
        // Entry 0 of block 0 is the port's own GUID, which a port need not return.
        let start = if key.1 == 0 { 8 } else { 0 };
        if self.wanted(key).is_some_and(|wanted| wanted[start..] != data[start..]) {
            // The registry changed meanwhile, or the port does not take them: sent again.
            let place = subnet.place(request.port());
            return warn!("{place} lost its alias GUIDs; setting them again");
        }
        self.stale.remove(&key);
        self.attempts = 0;
        if self.stale.is_empty() {
            self.due = None;
        }
        let is_empty = |block: &Block| block.iter().skip(usize::from(key.1 == 0)).all(|g| g.0 == 0);
        if self.desired.get(&key).is_some_and(is_empty) {
            self.desired.remove(&key);
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { request, .. } = owned;
        let (name, place) = (request.kind.name(), subnet.place(request.port()));
        warn!("{place} refused {name}: {status}");
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { request, .. } = owned;
        debug!("{}: no answer from {}", request.kind.name(), subnet.place(request.port()));
    }
}
