//! What agents hold: the half of the world that is one port's, and the messages that lead from one
//! state of it to the next. No I/O.
//!
//! Ports of one kind ([`SourceKind`]) have equal paths but for their own GIDs and LIDs, which are
//! not in the records that are sent. So a half is found once for all agents of a kind, and a change
//! of it is written once for those that held the same half before. Of each destination it has a
//! hash of the records sent: 8 bytes, so that a change goes unnoticed once in 2^64.
//!
//! A half is right for one publication, and for those after it that leave it as it is: a new
//! generation that differs from the one before in routes only leaves a half as it is if no path
//! class of its switch changed, which is seen without finding paths.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use ib_mad::types::Guid;
use sa_proto::prost::bytes::Bytes;
use sa_proto::proto::node as proto;
use xxhash_rust::xxh3::xxh3_64;

use super::follower::OWN_MAX;
use super::lock;
use super::survey::{RECORDS_MAX, Record, Survey, source_of};
use crate::tables::cell::Generation;
use crate::tables::{SourceKind, Tables};

/// Maximum length of a message of changes, bytes.
pub const CHANGES_LEN_MAX: usize = 256 << 10;
/// From this length on a message is sent. One below it takes the records of one more destination.
const CHANGES_LEN_FULL: usize = 200 << 10;
/// Maximum number of records of one destination. The paths of one that has more are left out.
pub(super) const RECORDS_EACH_MAX: usize = 512;
/// Maximum number of records of a half: a port's paths to its own GUIDs come on top.
const RECORDS_OF_HALF_MAX: usize = RECORDS_MAX - OWN_MAX * RECORDS_EACH_MAX;

/// The GUIDs of all end ports of a generation, ascending.
type GuidList = Arc<[Guid]>;

/// The paths of the ports of one kind.
#[derive(Debug)]
pub struct Half {
    /// Unlike that of any other half of this process.
    id: u64,
    /// A port that has these paths.
    port: Guid,
    destinations: GuidList,
    /// A hash for each of the destinations; 0 if there is no path.
    hashes: Box<[u64]>,
    /// Number of records, for each of the destinations.
    counts: Box<[u16]>,
    records: usize,
    /// The last publication that left it as it is.
    valid: AtomicU64,
}

impl Half {
    /// Number of records.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Bytes kept, apart from the list of destinations.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.hashes[..]) + size_of_val(&self.counts[..])
    }

    /// Whether it is right for this publication, or for a later one.
    pub(super) fn is_valid(&self, number: u64) -> bool {
        self.valid.load(Relaxed) >= number
    }

    /// Number of records of paths to a destination.
    pub(super) fn count(&self, destination: Guid) -> usize {
        let at = self.destinations.binary_search(&destination);
        at.map_or(0, |at| usize::from(self.counts[at]))
    }

    fn is_equal(&self, other: &Self) -> bool {
        self.destinations == other.destinations && self.hashes == other.hashes
    }

    /// Destinations and hashes.
    fn iter(&self) -> impl Iterator<Item = (Guid, u64)> {
        self.destinations.iter().copied().zip(self.hashes.iter().copied())
    }
}

/// Agents with the same key have the same messages to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupKey {
    kind: Kind,
    /// The half that they hold; 0 for none.
    held: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Alike(SourceKind),
    /// A port that is like no other, or unknown.
    Port(Guid),
}

impl Kind {
    fn of(tables: &Tables, port: Guid) -> Self {
        let kind = source_of(tables, port).and_then(|found| tables.source_kind(found));
        kind.map_or(Self::Port(port), Self::Alike)
    }
}

/// A half, and what leads to it from the one before.
#[derive(Clone, Debug)]
pub struct Lead {
    /// The half.
    pub half: Arc<Half>,
    /// Messages for all agents of the group.
    pub changes: Arc<[proto::Update]>,
}

/// The halves that agents of a responder hold.
#[derive(Debug, Default)]
pub struct Halves {
    state: Mutex<State>,
    ids: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Publications so far.
    number: u64,
    /// Those that are as the last publication leaves them.
    by_kind: HashMap<Kind, Weak<Half>>,
    /// All end ports of the tables that paths were found in last.
    destinations: Option<(Weak<Tables>, GuidList)>,
}

impl Halves {
    /// Number of the last publication. It must be read before the generation whose paths are
    /// found.
    pub fn number(&self) -> u64 {
        self.state().number
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Queries are answered from other tables now. Returns the number of this publication. Halves
    /// that it cannot have changed remain valid.
    pub fn advance(&self, before: Option<&Tables>, now: Option<&Tables>) -> u64 {
        let mut state = self.state();
        state.number += 1;
        let number = state.number;
        let known = std::mem::take(&mut state.by_kind);
        let (Some(before), Some(now)) = (before, now) else { return number };
        let live = known.into_iter().filter_map(|(kind, half)| Some((kind, half.upgrade()?)));
        let live = live.filter(|(_, half)| half.is_valid(number - 1));
        if now.has_same_paths(before) {
            for (kind, half) in live {
                half.valid.store(number, Relaxed);
                state.by_kind.insert(kind, Arc::downgrade(&half));
            }
            return number;
        }
        let is_alike = |kind: &Kind| matches!(kind, Kind::Alike(_));
        let live = live.filter_map(|(kind, half)| is_alike(&kind).then_some(half));
        let mut live = live.peekable();
        if live.peek().is_none() || !now.differs_only_in_routes(before) {
            return number;
        }
        for half in live {
            let Some(port) = now.end_ports.by_guid(half.port) else { continue };
            if now.has_same_routes(before, port.row) {
                half.valid.store(number, Relaxed);
                state.by_kind.insert(Kind::of(now, half.port), Arc::downgrade(&half));
            }
        }
        number
    }

    /// Which agents' messages are those of an agent at `port` that holds `held`.
    pub fn group(generation: &Generation, port: Guid, held: Option<&Half>) -> GroupKey {
        let kind = Kind::of(&generation.tables, port);
        GroupKey { kind, held: held.map_or(0, |half| half.id) }
    }

    /// Finds the half of `port` in `generation`, and the changes since `held`. `number` is that of
    /// a publication not after the generation's.
    pub fn lead(
        &self,
        generation: &Generation,
        number: u64,
        port: Guid,
        held: Option<&Half>,
    ) -> Lead {
        let destinations = self.destinations(generation);
        let mut changes = Vec::new();
        let found = self.find(generation, destinations, port, held, &mut changes);
        let kind = Kind::of(&generation.tables, port);
        let mut state = self.state();
        // Only of this kind: others that hold an equal half may have become of another one.
        let is_last = state.number == number;
        let registered = state.by_kind.get(&kind).filter(|_| is_last).and_then(Weak::upgrade);
        let same = registered.filter(|half| half.is_valid(number) && half.is_equal(&found));
        let half = same.unwrap_or_else(|| Arc::new(found));
        half.valid.fetch_max(number, Relaxed);
        if is_last {
            state.by_kind.retain(|_, half| half.strong_count() > 0);
            state.by_kind.insert(kind, Arc::downgrade(&half));
        }
        Lead { half, changes: changes.into() }
    }

    /// All end ports of a generation; the same list as before if it is equal.
    fn destinations(&self, generation: &Generation) -> GuidList {
        let tables = Arc::downgrade(&generation.tables);
        let before = self.state().destinations.take();
        let list = match &before {
            Some((of, list)) if of.ptr_eq(&tables) => Arc::clone(list),
            _ => {
                let ports = generation.tables.end_ports.all();
                let mut guids: Vec<Guid> = ports.iter().map(|port| port.guid).collect();
                guids.sort_unstable();
                match before {
                    Some((_, before)) if before[..] == guids[..] => before,
                    _ => guids.into(),
                }
            }
        };
        self.state().destinations = Some((tables, Arc::clone(&list)));
        list
    }

    /// Finds all paths, and writes those that differ from `held` into messages.
    fn find(
        &self,
        generation: &Generation,
        destinations: GuidList,
        port: Guid,
        held: Option<&Half>,
        messages: &mut Vec<proto::Update>,
    ) -> Half {
        let mut survey = Survey::new(generation, port);
        // What others of the kind see of the port itself.
        let mut other = survey.as_ref().and_then(|survey| another(generation, survey));
        let mut changes = Changes::new(messages);
        let mut before = held.into_iter().flat_map(Half::iter).peekable();
        let mut hashes = Vec::with_capacity(destinations.len());
        let mut counts = Vec::with_capacity(destinations.len());
        let mut total = 0;
        let mut records: Vec<u8> = Vec::new();
        for &destination in destinations.iter() {
            while let Some((gone, hash)) = before.next_if(|(guid, _)| *guid < destination) {
                if hash != 0 {
                    changes.add(gone, &[]);
                }
            }
            let old = before.next_if(|(guid, _)| *guid == destination).map_or(0, |(_, hash)| hash);
            records.clear();
            match &mut survey {
                Some(survey) if survey.is_own(destination) => {
                    if let Some(other) = &mut other {
                        other.append_paths(destination, &mut records);
                    }
                }
                Some(survey) => survey.append_paths(destination, &mut records),
                None => {}
            }
            let count = records.len() / size_of::<Record>();
            if count > RECORDS_EACH_MAX || total + count > RECORDS_OF_HALF_MAX {
                records.clear();
            }
            let count = records.len() / size_of::<Record>();
            total += count;
            let hash = if records.is_empty() { 0 } else { xxh3_64(&records).max(1) };
            if hash != old {
                changes.add(destination, &records);
            }
            hashes.push(hash);
            counts.push(count as u16);
        }
        for (gone, hash) in before {
            if hash != 0 {
                changes.add(gone, &[]);
            }
        }
        changes.finish();
        Half {
            id: self.ids.fetch_add(1, Relaxed) + 1,
            port,
            destinations,
            hashes: hashes.into(),
            counts: counts.into(),
            records: total,
            valid: AtomicU64::new(0),
        }
    }
}

/// Paths of another port of the same kind, if there is one.
fn another<'a>(generation: &'a Generation, survey: &Survey<'_>) -> Option<Survey<'a>> {
    let kind = survey.kind()?;
    let own = survey.source();
    let tables = &generation.tables;
    let is_like = |port: &&crate::tables::EndPort| {
        !port.is_same_port(own) && tables.source_kind(port) == Some(kind)
    };
    Survey::new(generation, tables.end_ports.all().iter().find(is_like)?.guid)
}

/// Collects changes in messages of limited length.
pub(super) struct Changes<'a> {
    messages: &'a mut Vec<proto::Update>,
    destinations: Vec<u64>,
    records: Vec<u8>,
}

impl<'a> Changes<'a> {
    pub(super) fn new(messages: &'a mut Vec<proto::Update>) -> Self {
        Self { messages, destinations: Vec::new(), records: Vec::new() }
    }

    pub(super) fn add(&mut self, destination: Guid, records: &[u8]) {
        self.destinations.push(destination.0);
        self.records.extend_from_slice(records);
        if self.destinations.len() * 8 + self.records.len() >= CHANGES_LEN_FULL {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let destinations = std::mem::take(&mut self.destinations);
        let records = Bytes::from(std::mem::take(&mut self.records));
        let changes = proto::Changes { destinations, records };
        self.messages.push(update(proto::update::Kind::Changes(changes)));
    }

    pub(super) fn finish(mut self) {
        if !self.destinations.is_empty() {
            self.flush();
        }
    }
}

pub(super) fn update(kind: proto::update::Kind) -> proto::Update {
    proto::Update { kind: Some(kind) }
}

// A message that is nearly full takes one more destination.
const _: () = assert!(
    CHANGES_LEN_FULL + RECORDS_EACH_MAX * size_of::<Record>() + (8 << 10) <= CHANGES_LEN_MAX
);
