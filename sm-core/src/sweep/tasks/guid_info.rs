//! Alias GUIDs in the GUID tables of ports (IBA 14.2.5.5, C14-24.1.1.5,
//! C14-62.1.1.22): written between sweeps as the registry
//! has them, and again to a port that was reset.
//!
//! Ports of responders get the GUID that stands for the SA in the last entry that is free
//! ([`sa_guid`]). Ports that have it of an earlier master, and are not to, are found by reading the
//! last block of all adapters' ports once in a term as master.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::NodeType;
use ib_mad::wire::mad::Status;
use tracing::{debug, info, warn};

use super::Task;
use crate::fabric::PortIndex;
use crate::registry::{GUIDS_PER_BLOCK, GuidBlock};
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use crate::sweep::subnet::sa_guid::{self, SaGuid};

/// Delay before blocks that a port did not accept are sent again.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// How often that delay doubles at most.
const RETRY_DOUBLINGS: u32 = 6;
/// Time from when the first ports are to have the GUID that stands for the SA to the search for
/// others that have it: responders have found the new master by then.
const SEARCH_DELAY: Duration = Duration::from_secs(60);
/// Ports read in a step of that search, and the time from one to the next, in which sweeps start.
const SEARCHED_AT_ONCE: usize = 256;
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);

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
    /// Ports that were to have the GUID that stands for the SA when the requests that are
    /// outstanding were made.
    asked: BTreeSet<Guid>,
    search: Search,
}

/// The search for ports that have the GUID that stands for the SA of an earlier master.
#[derive(Debug, Default)]
struct Search {
    /// The term as master in which it was planned.
    tenure: Option<u32>,
    /// When it goes on.
    due: Option<Instant>,
    /// Whether it has begun.
    has_begun: bool,
    /// Ports still to be read.
    left: VecDeque<Guid>,
}

impl AliasGuids {
    /// Sets the wanted contents of blocks, which are written when no sweep is under way.
    pub(in crate::sweep) fn put(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        blocks: &[GuidBlock],
    ) {
        let owners = &mut subnet.alias_owners;
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
        self.wake(subnet, now);
    }

    /// Sets the ports that are to have the GUID that stands for the SA.
    pub(in crate::sweep) fn want_sa_guid(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        ports: &BTreeSet<Guid>,
    ) {
        let tenure = subnet.election.tenure();
        if !ports.is_empty() && self.search.tenure != Some(tenure) {
            let due = Some(now + SEARCH_DELAY);
            self.search = Search { tenure: Some(tenure), due, ..Search::default() };
        }
        if subnet.shards.sa_guids.is_exactly(ports) {
            return;
        }
        for port in subnet.shards.sa_guids.want(ports) {
            self.stale.extend(self.keys_of(port));
        }
        self.attempts = 0;
        self.wake(subnet, now);
    }

    /// A sweep ended: blocks of the ports it found may be stale.
    pub(in crate::sweep) fn wake(&mut self, subnet: &Subnet, now: Instant) {
        let is_awaited = awaited(subnet).next().is_some();
        self.due = (!self.stale.is_empty() || is_awaited).then_some(now);
    }

    /// A port left the fabric, and its aliases with it.
    pub(in crate::sweep) fn remove(&mut self, subnet: &mut Subnet, port: Guid) {
        for key in self.keys_of(port) {
            let block = self.desired.remove(&key).unwrap_or_default();
            disown(&mut subnet.alias_owners, port, &block);
            self.stale.remove(&key);
        }
        subnet.shards.sa_guids.lose(port);
    }

    /// A port was reset: the contents of its table are unknown.
    pub(in crate::sweep) fn forget(&mut self, subnet: &mut Subnet, port: Guid) {
        self.stale.extend(self.keys_of(port));
        subnet.shards.sa_guids.ask_again(port);
    }

    /// Another subnet manager may have written to any port.
    pub(in crate::sweep) fn forget_all(&mut self, subnet: &mut Subnet) {
        self.stale.extend(self.desired.keys().copied());
        subnet.shards.sa_guids.ask_all_again();
    }

    /// Blocks of ports that are to have the GUID that stands for the SA, and have not answered
    /// whether they take it, are to be written. `ports` has the ports of the fabric among these.
    fn ask_awaited(&mut self, subnet: &mut Subnet, ports: &HashMap<Guid, PortIndex>) {
        let awaited: Vec<Guid> = awaited(subnet).collect();
        for guid in awaited {
            let Some(&port) = ports.get(&guid) else { continue };
            match sa_guid::last_block(subnet.fabric.port(port).port_info().guid_cap()) {
                Some(number) => self.rewrite((guid, number)),
                None => note(subnet, port, SaGuid::NoRoom),
            }
        }
    }

    /// A block is to be written, even if the registry has no aliases in it.
    fn rewrite(&mut self, key: BlockKey) {
        let mut empty = Block::default();
        if key.1 == 0 {
            empty[0] = key.0;
        }
        self.desired.entry(key).or_insert(empty);
        self.stale.insert(key);
    }

    /// Reads further ports.
    fn search(&mut self, subnet: &mut Subnet, now: Instant) {
        let fabric = &subnet.fabric;
        let guid = |port: &PortIndex| fabric.port(*port).guid;
        let is_adapter = |port: &PortIndex| {
            fabric.node_of(*port).kind == NodeType::Ca && Some(*port) != fabric.sm_port()
        };
        let adapters = fabric.end_ports().filter(is_adapter);
        if !std::mem::replace(&mut self.search.has_begun, true) {
            self.search.left = adapters.map(|port| guid(&port)).collect();
            self.search.left.make_contiguous().sort_unstable();
            self.search.due = Some(now);
            return;
        }
        let count = self.search.left.len().min(SEARCHED_AT_ONCE);
        let step: BTreeSet<Guid> = self.search.left.drain(..count).collect();
        let is_searched = |port: &PortIndex| {
            step.contains(&guid(port)) && subnet.shards.sa_guids.get(guid(port)).is_none()
        };
        for port in adapters.filter(is_searched) {
            if let Some(number) = sa_guid::last_block(fabric.port(port).port_info().guid_cap()) {
                subnet.exchange.push(Request::block(Kind::LastGuids, port, number.into()));
            }
        }
        self.search.due = (!self.search.left.is_empty()).then(|| now + SEARCH_INTERVAL);
    }

    /// The last block of a port that is not to have the GUID that stands for the SA.
    fn found(&mut self, subnet: &Subnet, key: BlockKey, got: &Block, now: Instant) {
        let has_it = got.iter().skip(usize::from(key.1 == 0)).any(|&at| at == Guid::WELL_KNOWN_SA);
        if !has_it || subnet.shards.sa_guids.get(key.0).is_some() {
            return;
        }
        info!("port {} has the GUID of the SA from an earlier master: clearing it", key.0);
        self.rewrite(key);
        self.due = Some(now);
    }

    fn keys_of(&self, port: Guid) -> Vec<BlockKey> {
        let blocks = self.desired.range((port, 0)..=(port, u8::MAX));
        blocks.map(|(key, _)| *key).collect()
    }

    /// A block is as wanted, or has no effect.
    fn done(&mut self, subnet: &Subnet, key: BlockKey) {
        self.stale.remove(&key);
        self.attempts = 0;
        if self.stale.is_empty() && awaited(subnet).next().is_none() {
            self.due = None;
        }
    }

    /// The wanted contents of a block of a port, and which entry of it is to be the GUID that
    /// stands for the SA; `None` if it has no aliases.
    fn wanted(&self, subnet: &Subnet, request: Request) -> Option<(Block, Option<usize>)> {
        let key = key_of(subnet, request);
        let mut block = *self.desired.get(&key)?;
        let entry = is_for_sa(subnet, request).then(|| {
            let guid_cap = subnet.fabric.port(request.port()).port_info().guid_cap();
            sa_guid::entry_in(&block, guid_cap)
        });
        let entry = entry.flatten();
        entry.into_iter().for_each(|at| block[at] = Guid::WELL_KNOWN_SA);
        Some((block, entry))
    }
}

/// Ports that have not answered whether they take the GUID that stands for the SA.
fn awaited(subnet: &Subnet) -> impl Iterator<Item = Guid> + '_ {
    let sa_guids = subnet.shards.sa_guids.iter();
    sa_guids.filter(|(_, is)| *is == SaGuid::Awaited).map(|(guid, _)| guid)
}

/// Whether a request writes the last block of a port that is to have the GUID that stands for the
/// SA.
fn is_for_sa(subnet: &Subnet, request: Request) -> bool {
    let port = subnet.fabric.port(request.port());
    let last = sa_guid::last_block(port.port_info().guid_cap());
    last.map(u16::from) == Some(request.block) && subnet.shards.sa_guids.get(port.guid).is_some()
}

/// Records whether a port took the GUID that stands for the SA, and logs it if that is new.
fn note(subnet: &mut Subnet, port: PortIndex, is: SaGuid) {
    let place = subnet.place(port);
    if !subnet.shards.sa_guids.set(subnet.fabric.port(port).guid, is) {
        return;
    }
    let why = match is {
        SaGuid::Awaited => return,
        SaGuid::Held => return info!("{place} answers virtual functions: it has the SA's GUID"),
        SaGuid::Refused => "does not take the SA's GUID",
        SaGuid::NoRoom => "has no free entry in its GUID table for the SA's GUID",
    };
    warn!("{place} {why}: ports that may have virtual functions are not led to it");
}

/// Whether a block has no aliases; entry 0 of block 0 is the port GUID.
fn is_empty(block: &Block, number: u8) -> bool {
    block.iter().skip(usize::from(number == 0)).all(|guid| guid.0 == 0)
}

/// The GUIDs of a block as read from a port.
fn guids_of(data: &[u8; 64]) -> Block {
    let (guids, _) = data.as_chunks::<8>();
    std::array::from_fn(|at| Guid(u64::from_be_bytes(guids[at])))
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
        self.due.into_iter().chain(self.search.due).min()
    }

    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant) {
        if self.search.due.is_some_and(|due| due <= now) {
            self.search.due = Some(now + SEARCH_DELAY);
            if subnet.state.up && subnet.election.is_master() {
                self.search(subnet, now);
            }
        }
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        let mut wanted: BTreeSet<Guid> = awaited(subnet).collect();
        wanted.extend(self.stale.iter().map(|(guid, _)| *guid));
        if wanted.is_empty() || !subnet.state.up {
            // The end of the sweep that brings the subnet up wakes this task.
            return;
        }
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
        self.ask_awaited(subnet, &ports);
        self.asked = subnet.shards.sa_guids.iter().map(|(guid, _)| guid).collect();
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
            kinds::AliasGuids::LastGuids => {}
            kinds::AliasGuids::SetGuidInfo => {
                let (block, _) = self.wanted(subnet, request)?;
                for (place, guid) in data.as_chunks_mut::<8>().0.iter_mut().zip(block) {
                    *place = guid.0.to_be_bytes();
                }
            }
        }
        Some(request.block.into())
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, now } = owned;
        let (key, got) = (key_of(subnet, request), guids_of(data));
        if kind == kinds::AliasGuids::LastGuids {
            return self.found(subnet, key, &got, now);
        }
        let Some((wanted, entry)) = self.wanted(subnet, request) else {
            return self.done(subnet, key);
        };
        let has_aliases = self.desired.get(&key).is_some_and(|block| !is_empty(block, key.1));
        if is_for_sa(subnet, request) {
            if !self.asked.contains(&key.0) {
                return; // The answer to an earlier request.
            }
            let is_held = |at| got[at] == Guid::WELL_KNOWN_SA;
            let is = match entry {
                Some(at) if is_held(at) => SaGuid::Held,
                Some(_) => SaGuid::Refused,
                None => SaGuid::NoRoom,
            };
            note(subnet, request.port(), is);
        }
        // Entry 0 of block 0 is the port's own GUID, which a port need not return. What a port
        // without aliases has instead of the SA's GUID is no concern.
        let differs = |at: usize| Some(at) != entry && wanted[at] != got[at];
        let mut entries = usize::from(key.1 == 0)..GUIDS_PER_BLOCK;
        if (has_aliases || entry.is_none()) && entries.any(differs) {
            // The registry changed meanwhile, or the port does not take them: sent again.
            let place = subnet.place(request.port());
            return warn!("{place} lost its alias GUIDs; setting them again");
        }
        self.done(subnet, key);
        if !has_aliases && entry.is_none() {
            self.desired.remove(&key);
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, .. } = owned;
        let (name, place) = (request.kind.name(), subnet.place(request.port()));
        if kind == kinds::AliasGuids::LastGuids {
            return debug!("{place} refused {name}: {status}");
        }
        warn!("{place} refused {name}: {status}");
        let key = key_of(subnet, request);
        if status.is_busy() || !is_for_sa(subnet, request) {
            return;
        }
        note(subnet, request.port(), SaGuid::Refused);
        if self.desired.get(&key).is_some_and(|block| is_empty(block, key.1)) {
            self.done(subnet, key);
            self.desired.remove(&key);
        }
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { request, .. } = owned;
        debug!("{}: no answer from {}", request.kind.name(), subnet.place(request.port()));
    }
}
