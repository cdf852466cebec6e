//! What one agent holds, and the messages that bring it up to date. No I/O.
//!
//! Most of it is shared with the other agents of its kind ([`Half`]). Its own are the terms, and
//! the paths from the port to itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::types::Guid;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;
use xxhash_rust::xxh3::xxh3_64;

use super::half::{Changes, GroupKey, Half, Halves, Lead, RECORDS_EACH_MAX, update};
use super::survey::{Record, Survey};
use super::terms::terms;
use crate::tables::cell::Generation;

/// GUIDs of one port that have paths among each other; further ones have none.
pub(super) const OWN_MAX: usize = 64;

/// GUIDs of a port, ascending, with a hash of the paths from it to each.
type OwnGuids = Box<[(Guid, u64)]>;

/// One agent: a port, and what was sent of its paths.
#[derive(Debug, Default)]
pub struct Follower {
    port: Guid,
    terms: Option<proto::Terms>,
    half: Option<Arc<Half>>,
    /// As they were sent.
    own: OwnGuids,
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
        let terms = terms(&generation.tables, self.port);
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
        halves.lead(generation, number, self.port, self.half.as_deref())
    }

    /// The messages after which the agent has the paths of `generation`. `lead` is that of its
    /// group. The last one is Current, without a confirmation.
    pub fn follow(&mut self, generation: &Generation, lead: &Lead) -> Messages {
        let mut survey = Survey::new(generation, self.port);
        let mut first = Vec::new();
        let terms = terms(&generation.tables, self.port);
        if self.terms.as_ref() != Some(&terms) {
            first.push(update(Kind::Terms(terms.clone())));
            self.terms = Some(terms);
        }
        let (own, records) = self.own_paths(lead, survey.as_mut());
        let mut last = Vec::new();
        let mut changes = Changes::new(&mut last);
        let mut of_own = 0;
        for (guid, records) in &records {
            if let Ok(at) = own.binary_search_by_key(guid, |(guid, _)| *guid) {
                of_own += records.len() / size_of::<Record>();
                // The shared messages may have paths to the port as others of its kind have them.
                if self.own_hash(*guid) == Some(own[at].1) && !has(&lead.changes, *guid) {
                    continue;
                }
            }
            changes.add(*guid, records);
        }
        changes.finish();
        let of_half: usize = own.iter().map(|(guid, _)| lead.half.count(*guid)).sum();
        let version = generation.version;
        last.push(update(Kind::Current(proto::Current {
            session: version.session.epoch,
            generation: version.fabric_generation,
            records: (lead.half.records() - of_half + of_own) as u32,
            is_known: survey.is_some(),
            confirmation: None,
        })));
        (self.half, self.own) = (Some(Arc::clone(&lead.half)), own);
        Messages { first, shared: Arc::clone(&lead.changes), last }
    }

    /// The port's GUIDs with hashes of the paths to them, and these paths. Those to a GUID that was
    /// one of the port's and is no more are among the latter, as far as the shared messages do not
    /// have them: none, or those that all others of its kind had before.
    fn own_paths(
        &self,
        lead: &Lead,
        mut survey: Option<&mut Survey<'_>>,
    ) -> (OwnGuids, BTreeMap<Guid, Vec<u8>>) {
        let names = survey.iter().flat_map(|survey| survey.names());
        let mut names: Vec<Guid> = names.map(|port| port.guid).collect();
        names.sort_unstable();
        names.dedup();
        let mut paths_to = |guid: Guid| {
            let mut records = Vec::new();
            if let Some(survey) = &mut survey {
                survey.append_paths(guid, &mut records);
            }
            if records.len() > RECORDS_EACH_MAX * size_of::<Record>() {
                records.clear();
            }
            records
        };
        let mut records = BTreeMap::new();
        for (at, guid) in names.iter().enumerate() {
            let paths = if at < OWN_MAX { paths_to(*guid) } else { Vec::new() };
            records.insert(*guid, paths);
        }
        let hash = |guid: &Guid| (*guid, xxh3_64(&records[guid]));
        let own = names.iter().map(hash).collect();
        let is_gone = |guid: &Guid| names.binary_search(guid).is_err();
        for (guid, _) in self.own.iter().filter(|(guid, _)| is_gone(guid)) {
            if !has(&lead.changes, *guid) {
                let is_destination = lead.half.count(*guid) > 0;
                records.insert(*guid, if is_destination { paths_to(*guid) } else { Vec::new() });
            }
        }
        (own, records)
    }

    /// Hash of the paths sent to one of the port's GUIDs.
    fn own_hash(&self, guid: Guid) -> Option<u64> {
        let at = self.own.binary_search_by_key(&guid, |(guid, _)| *guid).ok()?;
        Some(self.own[at].1)
    }

    /// The messages for the one agent of its group.
    pub fn update(&mut self, halves: &Halves, generation: &Generation, number: u64) -> Messages {
        let lead = self.lead(halves, generation, number);
        self.follow(generation, &lead)
    }
}

/// Whether messages replace the paths to a destination.
fn has(messages: &[proto::Update], destination: Guid) -> bool {
    messages.iter().any(|message| match &message.kind {
        Some(Kind::Changes(changes)) => changes.destinations.binary_search(&destination.0).is_ok(),
        _ => false,
    })
}
