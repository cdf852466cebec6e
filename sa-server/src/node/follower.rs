//! What one agent holds, and the messages that bring it up to date. No I/O.
//!
//! Of each destination the responder keeps a hash of the records that it sent: 8 bytes, so that a
//! change goes unnoticed once in 2^64. The list of destinations is the generation's, shared by all
//! agents.

use std::sync::Arc;

use ib_mad::types::Guid;
use sa_proto::prost::bytes::Bytes;
use sa_proto::proto::node as proto;
use xxhash_rust::xxh3::xxh3_64;

use super::survey::{RECORDS_MAX, Record, Survey};
use super::terms::terms;
use crate::tables::cell::Generation;

/// Maximum length of a message of changes, bytes.
pub const CHANGES_LEN_MAX: usize = 256 << 10;
/// From this length on a message is sent. One below it takes the records of one more destination.
const CHANGES_LEN_FULL: usize = 200 << 10;
/// Maximum number of records of one destination. The paths of one that has more are left out.
const RECORDS_EACH_MAX: usize = 512;

/// The GUIDs of all end ports of a generation, ascending.
pub type GuidList = Arc<[Guid]>;

/// One agent: a port, and what was sent of its paths.
#[derive(Debug, Default)]
pub struct Follower {
    port: Guid,
    terms: Option<proto::Terms>,
    destinations: Option<GuidList>,
    /// A hash for each of the destinations; 0 if nothing was sent.
    hashes: Vec<u64>,
    /// Records sent in all.
    records: usize,
}

impl Follower {
    /// An agent that holds nothing yet.
    pub fn new(port: Guid) -> Self {
        Self { port, ..Self::default() }
    }

    /// All end ports of a generation; the same list as before if it is equal.
    pub fn destinations(generation: &Generation, before: Option<&GuidList>) -> GuidList {
        let ports = generation.tables.end_ports.all();
        let mut guids: Vec<Guid> = ports.iter().map(|port| port.guid).collect();
        guids.sort_unstable();
        match before {
            Some(before) if before[..] == guids[..] => Arc::clone(before),
            _ => guids.into(),
        }
    }

    /// Bytes kept.
    pub fn bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>()
    }

    /// The messages after which the agent has the paths of `generation`, whose end ports are
    /// `destinations`.
    pub fn update(
        &mut self,
        generation: &Generation,
        destinations: &GuidList,
    ) -> Vec<proto::Update> {
        let mut survey = Survey::new(generation, self.port);
        let mut messages = Vec::new();
        let sources = survey.as_ref().map(Survey::sources).unwrap_or_default();
        let terms = terms(&generation.tables, &sources);
        if self.terms.as_ref() != Some(&terms) {
            messages.push(update(proto::update::Kind::Terms(terms.clone())));
            self.terms = Some(terms);
        }
        let is_known = survey.is_some();
        let mut changes =
            Changes { messages: &mut messages, destinations: Vec::new(), records: Vec::new() };
        let known = std::mem::take(&mut self.hashes);
        let before = self.destinations.take();
        let mut before = before.iter().flat_map(|list| list.iter()).zip(known).peekable();
        self.hashes = Vec::with_capacity(destinations.len());
        self.records = 0;
        let mut records: Vec<u8> = Vec::new();
        for &destination in destinations.iter() {
            while let Some((&gone, hash)) = before.next_if(|(guid, _)| **guid < destination) {
                if hash != 0 {
                    changes.add(gone, &[]);
                }
            }
            let old = before.next_if(|(guid, _)| **guid == destination).map_or(0, |(_, hash)| hash);
            records.clear();
            if let Some(survey) = &mut survey {
                survey.paths(destination, |record| records.extend_from_slice(record));
            }
            let count = records.len() / size_of::<Record>();
            if count > RECORDS_EACH_MAX || self.records + count > RECORDS_MAX {
                records.clear();
            }
            self.records += records.len() / size_of::<Record>();
            let hash = if records.is_empty() { 0 } else { xxh3_64(&records).max(1) };
            if hash != old {
                changes.add(destination, &records);
            }
            self.hashes.push(hash);
        }
        for (&gone, hash) in before {
            if hash != 0 {
                changes.add(gone, &[]);
            }
        }
        changes.finish();
        self.destinations = Some(Arc::clone(destinations));
        let version = generation.version;
        messages.push(update(proto::update::Kind::Current(proto::Current {
            session: version.session.epoch,
            generation: version.fabric_generation,
            records: self.records as u32,
            is_known,
        })));
        messages
    }
}

/// Collects changes in messages of limited length.
struct Changes<'a> {
    messages: &'a mut Vec<proto::Update>,
    destinations: Vec<u64>,
    records: Vec<u8>,
}

impl Changes<'_> {
    fn add(&mut self, destination: Guid, records: &[u8]) {
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

    fn finish(mut self) {
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
