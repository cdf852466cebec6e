//! A batch of work: decided, committed, published, answered, and retried once if that fails.

use std::sync::Arc;

use ib_mad::wire::mad::Status;
use ib_mad::wire::record::McMemberRecord;
use sa_proto::snapshot::{RegistryChanges, RegistryPlane, Session};
use tracing::error;

use super::super::store::StoreError;
use super::{DurableRegistry, GroupEvent, Unsettled};
use crate::publish::PublishError;
use sm_core::registry::{AnswerRecord, Ports, PredefinedGroup, RegistryEvent, Reply, Request};

/// A batch of work.
#[derive(Debug, Default)]
pub(in super::super) struct Work {
    /// Writes; `None` changes nothing, but is answered like one.
    pub(in super::super) writes: Vec<Option<Request>>,
    /// Ports, if a sweep has ended.
    pub(in super::super) ports: Option<Arc<Ports>>,
    /// Groups of operators' files, if a sweep has ended.
    pub(in super::super) predefined: Option<Arc<[PredefinedGroup]>>,
    /// Connected responders, if they changed.
    pub(in super::super) responders: Option<Vec<u64>>,
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Verdict {
    /// The client is answered, once the responder's tables hold this sequence number of the epoch.
    Answer { status: Status, data: Option<AnswerRecord>, epoch: u64, sequence: u64 },
    /// The client is not answered, and the responder discards the write.
    Dropped,
    /// The responder gets no outcome, and retries.
    Silence,
}

/// Inputs of the registry apart from its rows.
#[derive(Clone, Default)]
pub(super) struct Surroundings {
    pub(super) ports: Option<Arc<Ports>>,
    pub(super) predefined: Option<Arc<[PredefinedGroup]>>,
    pub(super) responders: Option<Vec<u64>>,
}

impl DurableRegistry {
    /// Does a batch of work; returns a verdict on each write, in order.
    pub(in super::super) fn turn(&mut self, now_s: u64, work: Work) -> Vec<Verdict> {
        self.surroundings.take(&work);
        self.unapplied.take(&work);
        if self.store.is_none() && now_s >= self.reopen_due_s {
            self.reopen(now_s);
        }
        let session = self.publisher.session();
        let ports = self.surroundings.ports.clone();
        let Some((ports, session)) = ports.zip(session) else {
            self.counters.not_master.add(work.writes.len());
            return vec![Verdict::Silence; work.writes.len()];
        };
        let mut nothing_stored = true;
        for _ in 0..2 {
            if self.store.is_none() {
                break;
            }
            match self.attempt(now_s, session, &ports, &work.writes) {
                Ok(verdicts) => return verdicts,
                Err(failure) => {
                    self.counters.failures.add(1);
                    error!(
                        "cannot commit writes to the registry: {}; reopening it and retrying once",
                        sa_proto::with_causes(&failure)
                    );
                    nothing_stored &= self.reopen(now_s) == Some(false);
                }
            }
        }
        if !nothing_stored {
            self.counters.unsettled.add(work.writes.len());
            return vec![Verdict::Dropped; work.writes.len()];
        }
        self.counters.refused_unstored.add(work.writes.len());
        let epoch = session.epoch;
        let refused =
            Verdict::Answer { status: Status::SA_NO_RESOURCES, data: None, epoch, sequence: 0 };
        vec![refused; work.writes.len()]
    }

    fn attempt(
        &mut self,
        now_s: u64,
        session: Session,
        ports: &Ports,
        writes: &[Option<Request>],
    ) -> Result<Vec<Verdict>, StoreError> {
        self.begin_where_the_master_ended();
        let before = self.registry.plane();
        let around = self.unapplied.clone();
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
        let replies: Vec<_> = writes
            .iter()
            .map(|write| write.as_ref().map(|request| self.registry.write(now_s, ports, request)))
            .collect();
        let changes = self.registry.take_changes();
        let events = self.take_events(&before);
        self.unsettled = Some(Unsettled { sequence: changes.rows.sequence, events });
        let store = self.store.as_mut().expect("the caller has checked that it is open");
        // A session begins with a commit: from then on this registry is newer than what other
        // managers hold.
        let rows = if changes.is_empty() && store.stored_session() == session {
            changes.rows
        } else {
            store.set_next_session(session);
            let rows = self.commit(changes)?;
            self.counters.commits.add(1);
            self.fresh = false;
            rows
        };
        self.settle(rows.sequence);
        self.unapplied = Surroundings::default();
        self.members.apply(&rows);
        let session = match self.publish(&rows) {
            Ok(session) => session,
            Err(failure) => {
                // It is durable: a retry gets the answer that this request would have got.
                if !matches!(failure, PublishError::NoSession) {
                    error!("cannot publish the registry: {failure}; clients repeat their requests");
                }
                return Ok(vec![Verdict::Silence; writes.len()]);
            }
        };
        let epoch = session.epoch;
        let verdict = |(write, reply): (&Option<Request>, Option<Reply>)| {
            let Some(reply) = reply else {
                let sequence = self.registry.sequence();
                return Verdict::Answer { status: Status::OK, data: None, epoch, sequence };
            };
            if let Some(request) = write {
                self.counters.decided(request, &reply);
            }
            if reply.dropped {
                return Verdict::Dropped;
            }
            let (status, data, sequence) = (reply.status, reply.data, reply.sequence);
            Verdict::Answer { status, data, epoch, sequence }
        };
        Ok(writes.iter().zip(replies).map(verdict).collect())
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
    /// Takes the changed rows.
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
    }
}
