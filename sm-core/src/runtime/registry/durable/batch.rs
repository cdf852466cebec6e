//! A batch of work: decided, committed, published, answered, and tried once more if that fails.

use std::sync::Arc;

use ib_mad::wire::mad::Status;
use ib_mad::wire::record::McMemberRecord;
use sa_proto::snapshot::{RegistryChanges, RegistryPlane, Session};
use tracing::error;

use super::super::store::StoreError;
use super::{DurableRegistry, GroupEvent, Unsettled};
use crate::publish::PublishError;
use crate::registry::{AnswerRecord, Ports, PredefinedGroup, RegistryEvent, Reply, Request};

/// What is to be done at once.
#[derive(Debug, Default)]
pub(in super::super) struct Work {
    /// Writes; `None` changes nothing, but is answered like one.
    pub(in super::super) writes: Vec<Option<Request>>,
    /// The fabric as it is now.
    pub(in super::super) ports: Option<Arc<Ports>>,
    /// Groups of the site's files.
    pub(in super::super) predefined: Option<Arc<[PredefinedGroup]>>,
    /// Responders that are connected.
    pub(in super::super) responders: Option<Vec<u64>>,
}

/// What becomes of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Verdict {
    /// It is answered, once the tables hold the sequence number in the epoch.
    Answer { status: Status, data: Option<AnswerRecord>, epoch: u64, sequence: u64 },
    /// Its client is not answered, and its responder forgets it.
    Dropped,
    /// Nothing is said: whoever waits asks again.
    Silence,
}

/// What the registry has to know besides its rows.
#[derive(Clone, Default)]
pub(super) struct Surroundings {
    pub(super) ports: Option<Arc<Ports>>,
    pub(super) predefined: Option<Arc<[PredefinedGroup]>>,
    pub(super) responders: Option<Vec<u64>>,
}

impl DurableRegistry {
    /// Does a batch of work; a verdict on each write, in their order.
    pub(in super::super) fn turn(&mut self, now_s: u64, work: Work) -> Vec<Verdict> {
        self.surroundings.take(&work);
        self.untold.take(&work);
        if self.store.is_none() && now_s >= self.reopen_due_s {
            self.reopen(now_s);
        }
        let is_master = self.publisher.session().is_some();
        let Some(ports) = self.surroundings.ports.clone().filter(|_| is_master) else {
            self.counters.not_master.add(work.writes.len());
            return vec![Verdict::Silence; work.writes.len()];
        };
        let mut nothing_stored = true;
        for _ in 0..2 {
            if self.store.is_none() {
                break;
            }
            match self.attempt(now_s, &ports, &work.writes) {
                Ok(verdicts) => return verdicts,
                Err(failure) => {
                    self.counters.failures.add(1);
                    error!(
                        "writes are not durable and are tried once more: {}",
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
        let epoch = self.published.map_or(0, |session| session.epoch);
        let refused =
            Verdict::Answer { status: Status::SA_NO_RESOURCES, data: None, epoch, sequence: 0 };
        vec![refused; work.writes.len()]
    }

    fn attempt(
        &mut self,
        now_s: u64,
        ports: &Ports,
        writes: &[Option<Request>],
    ) -> Result<Vec<Verdict>, StoreError> {
        self.begin_where_the_master_ended();
        let before = self.registry.plane();
        let around = self.untold.clone();
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
        if !changes.is_empty() {
            let store = self.store.as_mut().expect("a store was there a moment ago");
            store.commit(&changes)?;
            self.counters.commits.add(1);
            self.fresh = false;
        }
        self.settle(changes.rows.sequence);
        self.untold = Surroundings::default();
        self.members.apply(&changes.rows);
        let session = match self.publish(&changes.rows) {
            Ok(session) => session,
            Err(failure) => {
                // It is durable: what is asked again is answered as if it had been told.
                if !matches!(failure, PublishError::NoSession) {
                    error!("the registry is not published: {failure}");
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

    /// Publishes what changed; everything, if nothing was published in this session.
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
                // Another may have begun meanwhile; then it is published there next time.
                self.published = Some(session).filter(|session| version.session == *session);
                Ok(version.session)
            }
            Err(failure) => {
                self.published = None;
                Err(failure)
            }
        }
    }

    /// What happened, with what is known of the groups it happened to.
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
    /// Takes what is new.
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
