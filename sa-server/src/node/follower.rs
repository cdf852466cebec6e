//! What one agent holds, and the messages that bring it up to date. No I/O.
//!
//! Most of it is shared with the other agents of its kind ([`Half`]). Its own are the terms, and
//! the paths from the port to itself.

use std::sync::Arc;
use std::time::Duration;

use ib_mad::types::Guid;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;
use xxhash_rust::xxh3::xxh3_64;

use super::half::{Changes, GroupKey, Half, Halves, Lead, RECORDS_EACH_MAX, update};
use super::survey::{Record, Survey};
use super::terms::terms;
use crate::tables::cell::Generation;

/// GUIDs of one port that have paths among each other; further ones have none.
const OWN_MAX: usize = 64;

/// One agent: a port, and what was sent of its paths.
#[derive(Debug, Default)]
pub struct Follower {
    port: Guid,
    terms: Option<proto::Terms>,
    half: Option<Arc<Half>>,
    /// Hash of the port's paths to itself.
    own: u64,
}

/// Messages for one agent. They are sent in this order.
#[derive(Clone, Debug)]
pub struct Messages {
    /// Those before the changes that its group shares.
    pub first: Vec<proto::Update>,
    /// Those that its group shares.
    pub shared: Arc<[proto::Update]>,
    /// Those after.
    pub last: Vec<proto::Update>,
}

impl Messages {
    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &proto::Update> {
        self.first.iter().chain(&*self.shared).chain(&self.last)
    }
}

impl Follower {
    /// An agent that holds nothing yet.
    pub fn new(port: Guid) -> Self {
        Self { port, ..Self::default() }
    }

    /// The half that it holds.
    pub fn half(&self) -> Option<&Arc<Half>> {
        self.half.as_ref()
    }

    /// Whether what it holds is right for this publication.
    pub fn is_current(&self, number: u64) -> bool {
        self.half.as_ref().is_some_and(|half| half.is_valid(number))
    }

    /// The first message: the terms, by which the agent learns its switch before paths are found.
    /// It may prefer another responder then.
    pub fn greet(&mut self, generation: &Generation) -> proto::Update {
        let survey = Survey::new(generation, self.port);
        let terms = terms(&generation.tables, survey.as_ref());
        self.terms = Some(terms.clone());
        update(Kind::Terms(terms))
    }

    /// Agents with the same key get the same [`Lead`].
    pub fn group(&self, generation: &Generation) -> GroupKey {
        Halves::group(generation, self.port, self.half.as_deref())
    }

    /// Finds its half of `generation`, for its group. `number` is that of a publication not after
    /// the generation's.
    pub fn lead(&self, halves: &Halves, generation: &Generation, number: u64) -> Lead {
        halves.lead(generation, number, self.port, self.half.as_ref())
    }

    /// The messages after which the agent has the paths of `generation`. `lead` is that of its
    /// group, and `age` how long ago the manager confirmed the tables.
    pub fn follow(&mut self, generation: &Generation, lead: &Lead, age: Duration) -> Messages {
        let mut survey = Survey::new(generation, self.port);
        let mut first = Vec::new();
        let terms = terms(&generation.tables, survey.as_ref());
        if self.terms.as_ref() != Some(&terms) {
            first.push(update(Kind::Terms(terms.clone())));
            self.terms = Some(terms);
        }
        let mut names: Vec<Guid> =
            survey.iter().flat_map(|survey| survey.names().iter().map(|port| port.guid)).collect();
        names.sort_unstable();
        let mut own: Vec<(Guid, Vec<u8>)> = Vec::with_capacity(names.len());
        for (at, guid) in names.into_iter().enumerate() {
            let mut records = Vec::new();
            if let Some(survey) = survey.as_mut().filter(|_| at < OWN_MAX) {
                survey.append_paths(guid, &mut records);
            }
            if records.len() > RECORDS_EACH_MAX * size_of::<Record>() {
                records.clear();
            }
            own.push((guid, records));
        }
        let hash = own.iter().fold(0, |hash: u64, (guid, records)| {
            hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ guid.0 ^ xxh3_64(records)
        });
        let mut last = Vec::new();
        // The shared messages may have paths to the port as others of its kind have them.
        let is_replaced = own.iter().any(|(guid, _)| has(&lead.changes, *guid));
        if is_replaced || hash != self.own {
            let mut changes = Changes::new(&mut last);
            own.iter().for_each(|(guid, records)| changes.add(*guid, records));
            changes.finish();
        }
        let of_half: usize = own.iter().map(|(guid, _)| lead.half.count(*guid)).sum();
        let len: usize = own.iter().map(|(_, records)| records.len()).sum();
        let of_own = len / size_of::<Record>();
        let version = generation.version;
        last.push(update(Kind::Current(proto::Current {
            session: version.session.epoch,
            generation: version.fabric_generation,
            records: (lead.half.records() - of_half + of_own) as u32,
            is_known: survey.is_some(),
            age_ms: millis(age),
        })));
        (self.half, self.own) = (Some(Arc::clone(&lead.half)), hash);
        Messages { first, shared: Arc::clone(&lead.changes), last }
    }

    /// The messages for the one agent of its group.
    pub fn update(
        &mut self,
        halves: &Halves,
        generation: &Generation,
        number: u64,
        age: Duration,
    ) -> Messages {
        let lead = self.lead(halves, generation, number);
        self.follow(generation, &lead, age)
    }
}

/// Whether messages replace the paths to a destination.
fn has(messages: &[proto::Update], destination: Guid) -> bool {
    messages.iter().any(|message| match &message.kind {
        Some(Kind::Changes(changes)) => changes.destinations.binary_search(&destination.0).is_ok(),
        _ => false,
    })
}

/// A time in a message.
pub(super) fn millis(age: Duration) -> u32 {
    u32::try_from(age.as_millis()).unwrap_or(u32::MAX)
}
