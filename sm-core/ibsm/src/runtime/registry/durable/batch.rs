//! A batch of work: decided, committed, published, answered, and retried once if that fails.

use std::mem;
use std::sync::Arc;

use ib_mad::types::Guid;
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::McMemberRecord;
use sa_proto::snapshot::{RegistryChanges, RegistryPlane, Session};
use tracing::error;

use super::{Access, DurableRegistry, GroupEvent, Unsettled};
use crate::publish::PublishError;
use sm_core::registry::{
    AnswerRecord, Changes, OrderRefusal, OrderReply, PartitionOrder, Ports, PredefinedGroup,
    Registry, RegistryEvent, Reply, Request,
};

/// A batch of work.
#[derive(Debug, Default)]
pub(in super::super) struct Work {
    /// Writes.
    pub(in super::super) writes: Vec<Write>,
    /// Ports, if a sweep has ended.
    pub(in super::super) ports: Option<Arc<Ports>>,
    /// Groups of operators' files, if a sweep has ended.
    pub(in super::super) predefined: Option<Arc<[PredefinedGroup]>>,
    /// Connected responders, if they changed.
    pub(in super::super) responders: Option<Vec<u64>>,
    /// Ports that were asked to register again before these.
    pub(in super::super) asked: Vec<Guid>,
}

/// A write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum Write {
    /// Changes nothing, but is answered like one.
    #[default]
    Nothing,
    /// A client's.
    Request(Request),
    /// A program's, given in the session with this epoch: it has no effect in another.
    Order { order: PartitionOrder, epoch: u64 },
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Verdict {
    /// The program is answered; what it ordered is in this version of the registry.
    Ordered { result: Result<(), OrderRefusal>, epoch: u64, sequence: u64 },
    /// The client is answered, once the responder's tables hold this sequence number of the epoch.
    Answer { status: Status, data: Option<AnswerRecord>, epoch: u64, sequence: u64 },
    /// The program's order was given in an earlier session, and has changed nothing.
    Superseded,
    /// The client is not answered, and the responder discards the write.
    Dropped,
    /// The responder gets no outcome, and retries.
    Silence,
}

impl Verdict {
    /// A client's answer in the session of this epoch.
    fn of(reply: Reply, epoch: u64) -> Self {
        let Reply { status, data, sequence, .. } = reply;
        Self::Answer { status, data, epoch, sequence }
    }
}

/// Inputs of the registry apart from its rows.
#[derive(Clone, Default)]
pub(super) struct Surroundings {
    pub(super) ports: Option<Arc<Ports>>,
    pub(super) predefined: Option<Arc<[PredefinedGroup]>>,
    pub(super) responders: Option<Vec<u64>>,
    /// Ports that were asked to register again. If these are forgotten they are asked once more.
    asked: Vec<Guid>,
}

/// How often a batch is decided, at most: once more after its commit failed.
const ATTEMPTS: u32 = 2;

/// A batch of writes that has begun.
pub(super) struct Batch {
    session: Session,
    ports: Arc<Ports>,
    writes: Vec<Write>,
    /// How often it is decided, at most.
    attempts: u32,
    /// Commits that failed.
    failed: u32,
    /// Whether it is certain that none of these is stored.
    nothing_stored: bool,
    stage: Stage,
}

/// How far a batch is.
enum Stage {
    /// Not decided.
    New,
    /// Decided; the commit is under way.
    Committing(Box<Decided>),
    /// Decided and stored.
    Committed(Box<Decided>),
}

/// The decisions on a batch.
struct Decided {
    /// What was stored before.
    before: RegistryPlane,
    changes: Arc<Changes>,
    decisions: Vec<Decision>,
}

/// The decision on a write.
enum Decision {
    Nothing,
    Superseded,
    Request(Reply),
    Order(OrderReply),
}

impl Batch {
    /// What was stored before this batch, while its commit is under way.
    pub(super) fn uncommitted(&self) -> Option<&RegistryPlane> {
        match &self.stage {
            Stage::Committing(decided) => Some(&decided.before),
            Stage::New | Stage::Committed(_) => None,
        }
    }
}

impl DurableRegistry {
    /// Begins a batch of work, and continues it as [`proceed`](Self::proceed) does. While another
    /// batch is open there may be no writes; everything else is kept for the next one.
    pub(in super::super) fn begin(&mut self, now_s: u64, work: Work) -> Option<Vec<Verdict>> {
        self.surroundings.take(&work);
        self.unapplied.take(&work);
        self.surroundings.asked.clear();
        let session = self.publisher.session();
        self.lead(session.filter(|_| !self.yields));
        if self.batch.is_some() {
            debug_assert!(work.writes.is_empty(), "one batch after the other");
            return self.proceed(now_s);
        }
        self.retry_if_due(now_s);
        let ports = self.surroundings.ports.clone();
        let Some((ports, session)) = ports.zip(session) else {
            self.poll_store(now_s);
            self.unapplied.asked.clear();
            self.counters.not_master.add(work.writes.len());
            return Some(vec![Verdict::Silence; work.writes.len()]);
        };
        if !self.may_commit(now_s) {
            self.publish_copy(session);
            return Some(vec![Verdict::Silence; work.writes.len()]);
        }
        self.batch = Some(Batch {
            session,
            ports,
            writes: work.writes,
            // While commits fail one attempt shows it.
            attempts: if self.failing.lasts() { 1 } else { ATTEMPTS },
            failed: 0,
            nothing_stored: true,
            stage: Stage::New,
        });
        self.proceed(now_s)
    }

    /// Whether [`begin`](Self::begin) takes no writes: it goes on with an open batch, or another
    /// manager may commit.
    pub(in super::super) fn is_busy(&self) -> bool {
        self.batch.is_some() || self.waits_for_store()
    }

    /// Goes on with the open batch as far as the store permits; returns a verdict on each of its
    /// writes, in order, when it ends.
    fn proceed(&mut self, now_s: u64) -> Option<Vec<Verdict>> {
        loop {
            self.poll_store(now_s);
            let mut batch = self.batch.take()?;
            if !self.follows_session(&mut batch) {
                return Some(vec![Verdict::Silence; batch.writes.len()]);
            }
            match (mem::replace(&mut batch.stage, Stage::New), self.access) {
                (Stage::Committed(decided), _) => return Some(self.conclude(batch, *decided)),
                (Stage::New, Access::Open) if self.is_outranked(batch.session) => {
                    // A session above that of the store is about to begin.
                    self.batch = Some(batch);
                    return None;
                }
                (Stage::New, Access::Open) if batch.failed < batch.attempts => {
                    self.decide(now_s, batch);
                }
                (Stage::New, Access::Open) => {
                    self.refuse_for_now(now_s);
                    return Some(self.give_up(now_s, &batch));
                }
                (Stage::New, Access::Closed { .. } | Access::Refusing { .. }) => {
                    return Some(self.give_up(now_s, &batch));
                }
                (Stage::New, Access::Opening | Access::Copy) if self.store.is_shared() => {
                    // Another manager may have decided since.
                    self.counters.unsettled.add(batch.writes.len());
                    return Some(vec![Verdict::Dropped; batch.writes.len()]);
                }
                (stage, _) => {
                    self.batch = Some(Batch { stage, ..batch });
                    return None;
                }
            }
        }
    }

    /// Keeps a batch that is not decided in the current session. With a store that is shared,
    /// returns whether there is one.
    fn follows_session(&self, batch: &mut Batch) -> bool {
        if !self.store.is_shared() {
            return true;
        }
        let Some(session) = self.publisher.session() else { return false };
        if let Stage::New = batch.stage {
            batch.session = session;
        }
        true
    }

    /// The verdicts on writes that could not be stored.
    fn give_up(&mut self, now_s: u64, batch: &Batch) -> Vec<Verdict> {
        if !batch.nothing_stored {
            self.counters.unsettled.add(batch.writes.len());
            return vec![Verdict::Dropped; batch.writes.len()];
        }
        let verdicts = batch.writes.iter().map(|write| self.answer_known(now_s, batch, write));
        verdicts.collect()
    }

    /// The verdict on a write of a batch that is not stored: a refusal, unless the write is the
    /// repeat of one that is stored.
    fn answer_known(&mut self, now_s: u64, batch: &Batch, write: &Write) -> Verdict {
        let epoch = batch.session.epoch;
        // What responders do not have in this session they would wait for.
        let is_served = self.is_read() && self.published == Some(batch.session);
        match write {
            Write::Nothing if is_served => {
                let sequence = self.registry.sequence();
                return Verdict::Answer { status: Status::OK, data: None, epoch, sequence };
            }
            Write::Request(request) => {
                let may_be_stored = |registry: &Registry| registry.may_have_granted(now_s, request);
                if self.discarded.as_ref().is_some_and(may_be_stored) {
                    self.counters.unsettled.add(1);
                    return Verdict::Dropped;
                }
                if self.is_read()
                    && let Some(reply) = self.registry.repeat(now_s, &batch.ports, request)
                {
                    return match is_served && !reply.dropped {
                        true => Verdict::of(reply, epoch),
                        false => Verdict::Dropped,
                    };
                }
            }
            Write::Nothing | Write::Order { .. } => {}
        }
        self.counters.refused_unstored.add(1);
        Verdict::Answer { status: Status::SA_NO_RESOURCES, data: None, epoch, sequence: 0 }
    }

    /// The commit of the batch failed.
    pub(super) fn note_failed(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.failed += 1;
            batch.stage = Stage::New;
        }
    }

    /// The store was read again, or that failed; `made` says whether the commit that had failed is
    /// stored, if that is known.
    pub(super) fn note_reopened(&mut self, made: Option<bool>) {
        if let Some(batch) = self.batch.as_mut().filter(|batch| batch.failed > 0) {
            batch.nothing_stored &= made == Some(false);
        }
    }

    /// Decides on the writes, and submits what is to be stored.
    fn decide(&mut self, now_s: u64, mut batch: Batch) {
        self.begin_where_the_master_ended(batch.session);
        self.registry.begin_session();
        let before = self.registry.plane();
        let ports = &batch.ports;
        let around = mem::take(&mut self.unapplied);
        if !around.asked.is_empty() {
            self.registry.ports_asked(&around.asked);
        }
        if let Some(predefined) = &around.predefined {
            self.registry.set_predefined(ports, predefined);
        }
        if around.ports.is_some() {
            self.registry.fabric_changed(ports);
        }
        if let Some(responders) = &around.responders {
            self.registry.set_responders(responders);
        }
        self.registry.expire(now_s);
        let epoch_now = self.publisher.session().map_or(0, |session| session.epoch);
        let mut decisions = Vec::with_capacity(batch.writes.len());
        for write in &batch.writes {
            decisions.push(match write {
                Write::Nothing => Decision::Nothing,
                Write::Request(request) => {
                    Decision::Request(self.registry.write(now_s, ports, request))
                }
                // Another manager may have been master since, and have decided otherwise.
                Write::Order { epoch, .. } if *epoch != epoch_now => {
                    self.counters.superseded_orders.add(1);
                    Decision::Superseded
                }
                Write::Order { order, .. } => Decision::Order(self.registry.order(ports, order)),
            });
        }
        let mut changes = self.registry.take_changes();
        let events = self.take_events(&before);
        let sequence = changes.rows.sequence;
        self.unsettled = Some(Unsettled { session: batch.session, sequence, events });
        // A session begins with a commit: from then on this registry is newer than what other
        // managers hold.
        let is_stored = changes.is_empty() && self.stored_session == batch.session;
        if !is_stored {
            changes.stamp = self.due_stamp();
        }
        let changes = Arc::new(changes);
        if !is_stored {
            self.store.submit(&changes, batch.session);
        }
        let decided = Decided { before, changes, decisions };
        batch.stage = match is_stored {
            true => Stage::Committed(Box::new(decided)),
            false => Stage::Committing(Box::new(decided)),
        };
        self.batch = Some(batch);
    }

    /// What was submitted is stored.
    pub(super) fn note_committed(&mut self) {
        let Some(batch) = &mut self.batch else { return };
        if let Stage::Committing(decided) = mem::replace(&mut batch.stage, Stage::New) {
            self.counters.commits.add(1);
            self.failing.note_success(self.now.time.as_secs());
            self.fresh = false;
            self.stored_session = batch.session;
            self.stamped = decided.changes.stamp.or(self.stamped);
            batch.stage = Stage::Committed(decided);
        }
    }

    /// Publishes a batch that is stored; returns the verdicts.
    fn conclude(&mut self, batch: Batch, decided: Decided) -> Vec<Verdict> {
        let Decided { changes, decisions, .. } = decided;
        let rows = &changes.rows;
        self.settle(batch.session, rows.sequence);
        self.members.apply(rows);
        self.log_outcomes(&changes);
        let session = match self.publish(rows) {
            Ok(session) => session,
            Err(failure) => {
                // It is durable: a retry gets the answer that this request would have got.
                if !matches!(failure, PublishError::NoSession) {
                    error!("cannot publish the registry: {failure}; clients repeat their requests");
                }
                return vec![Verdict::Silence; batch.writes.len()];
            }
        };
        if self.is_settled() {
            self.certain = self.published;
        }
        let epoch = session.epoch;
        let verdict = |(write, decision): (&Write, Decision)| {
            let reply = match decision {
                Decision::Nothing => {
                    let sequence = self.registry.sequence();
                    return Verdict::Answer { status: Status::OK, data: None, epoch, sequence };
                }
                // An attempt before may have stored it.
                Decision::Superseded if batch.failed > 0 => return Verdict::Dropped,
                Decision::Superseded => return Verdict::Superseded,
                Decision::Order(OrderReply { result, sequence }) => {
                    return Verdict::Ordered { result, epoch, sequence };
                }
                Decision::Request(reply) => reply,
            };
            if let Write::Request(request) = write {
                self.counters.decided(request, &reply);
            }
            match reply.dropped {
                true => Verdict::Dropped,
                false => Verdict::of(reply, epoch),
            }
        };
        batch.writes.iter().zip(decisions).map(verdict).collect()
    }

    /// Hands outcomes to followers: of this commit, or all, if it is the first of a session.
    fn log_outcomes(&self, changes: &Arc<Changes>) {
        let Some(session) = self.publisher.session() else { return };
        let sequence = changes.rows.sequence;
        if self.published == Some(session) {
            return self.publisher.log_outcomes(session, sequence, changes);
        }
        let outcomes_put = self.registry.granted_outcomes();
        let all = Arc::new(Changes { outcomes_put, ..Changes::default() });
        self.publisher.log_outcomes(session, sequence, &all);
    }

    /// Publishes the changes; everything, if nothing was published in this session.
    fn publish(&mut self, changes: &RegistryChanges) -> Result<Session, PublishError> {
        let session = self.publisher.session().ok_or(PublishError::NoSession)?;
        let published = if self.published != Some(session) {
            self.publisher.publish_registry(self.registry.plane())
        } else if changes.is_empty() {
            return Ok(session);
        } else {
            self.publisher.publish_changes(self.registry.plane(), changes)
        };
        match published {
            Ok(version) => {
                // Another session may have begun meanwhile; then it is published in that next time.
                self.published = Some(session).filter(|session| version.session == *session);
                Ok(version.session)
            }
            Err(failure) => {
                self.published = None;
                Err(failure)
            }
        }
    }

    /// Events, with the P_Keys of their groups.
    fn take_events(&mut self, before: &RegistryPlane) -> Vec<GroupEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.registry.poll_event() {
            let pkey_in = |record: &[u8; 52]| {
                McMemberRecord::new(&record[..]).ok().map(|record| record.pkey())
            };
            let (RegistryEvent::GroupCreated(mgid) | RegistryEvent::GroupDeleted(mgid)) = event;
            let now = self.registry.group(mgid);
            let group = now.or_else(|| before.groups.find(mgid));
            events.push((event, group.and_then(|group| pkey_in(&group.record))));
        }
        events
    }
}

impl Surroundings {
    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_none()
            && self.predefined.is_none()
            && self.responders.is_none()
            && self.asked.is_empty()
    }

    /// Takes the changed parts.
    fn take(&mut self, work: &Work) {
        if work.ports.is_some() {
            self.ports.clone_from(&work.ports);
        }
        if work.predefined.is_some() {
            self.predefined.clone_from(&work.predefined);
        }
        if work.responders.is_some() {
            self.responders.clone_from(&work.responders);
        }
        self.asked.extend_from_slice(&work.asked);
    }
}
