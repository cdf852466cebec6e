//! Registry, store and publisher as one: what a batch of work does to them, in which order.
//!
//! A batch is decided in memory, committed, published, and only then answered. If the commit fails,
//! memory is thrown away and read back from disk, so that it never holds what the disk does not;
//! the batch is then decided once more, which does no harm if the commit had happened after all:
//! outcomes are stored with what they changed. If that fails too, the writes are refused for want of
//! resources, and so are all others until the file can be opened again; but where nobody can tell
//! whether they are on disk, nothing is said, since a refusal would be final.
//!
//! No thread and no clock here; those are the parent module's.

use std::path::PathBuf;
use std::sync::Arc;

use ib_mad::types::PKey;
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::McMemberRecord;
use sa_proto::snapshot::{RegistryChanges, RegistryPlane, Session};
use tracing::{error, info, warn};

use super::counters::Counters;
use super::store::{Store, StoreError, Stored};
use crate::publish::{PublishError, Publisher};
use crate::registry::{
    self, AnswerRecord, Changes, GuidBlock, Members, Ports, PredefinedGroup, Registry,
    RegistryEvent, Reply, Request,
};
use crate::routing::multicast::Membership;

/// How long to wait before a file that failed is opened again, seconds.
const REOPEN_INTERVAL_S: u64 = 2;

/// What is to be done at once.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Writes; `None` changes nothing, but is answered like one.
    pub(super) writes: Vec<Option<Request>>,
    /// The fabric as it is now.
    pub(super) ports: Option<Arc<Ports>>,
    /// Groups of the site's files.
    pub(super) predefined: Option<Arc<[PredefinedGroup]>>,
    /// Responders that are connected.
    pub(super) responders: Option<Vec<u64>>,
}

/// What becomes of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is answered, once the tables hold the sequence number in the epoch.
    Answer { status: Status, data: Option<AnswerRecord>, epoch: u64, sequence: u64 },
    /// Its client is not answered, and its responder forgets it.
    Dropped,
    /// Nothing is said: whoever waits asks again.
    Silence,
}

/// Something that subscribers may want to hear of, and the group's P_Key.
pub(super) type GroupEvent = (RegistryEvent, Option<PKey>);

/// See the module.
pub(super) struct DurableRegistry {
    directory: PathBuf,
    /// Whether nothing was ever stored.
    fresh: bool,
    /// `None` while the file cannot be used; then nothing is in the registry, either.
    store: Option<Store>,
    /// When to try to open it again, seconds since 1970.
    reopen_due_s: u64,
    registry: Registry,
    /// What another master's clients registered, as far as it is on disk: what the registry is made of
    /// when it is our turn. Until then nobody asks it anything, and rows alone cost what changes.
    followed: Option<RegistryPlane>,
    /// What registries before this one counted.
    counted: registry::Counters,
    /// All that was told of.
    surroundings: Surroundings,
    /// Those of them that the registry does not know yet: all, if it was read back.
    untold: Surroundings,
    /// A commit that may or may not be on disk.
    unsettled: Option<Unsettled>,
    publisher: Arc<Publisher>,
    /// The session in which the registry was published.
    published: Option<Session>,
    events: Vec<GroupEvent>,
    /// Who belongs to which MLID, and whether that changed since it was last asked.
    members: Members,
    counters: Arc<Counters>,
}

/// A commit that was begun, until its end is known.
struct Unsettled {
    /// Sequence number on disk if it was made.
    sequence: u64,
    /// What happened in it.
    events: Vec<GroupEvent>,
}

/// What the registry has to know besides its rows.
#[derive(Clone, Default)]
struct Surroundings {
    ports: Option<Arc<Ports>>,
    predefined: Option<Arc<[PredefinedGroup]>>,
    responders: Option<Vec<u64>>,
}

impl DurableRegistry {
    /// Reads the registry from the file in `directory`.
    pub(super) fn open(
        directory: PathBuf,
        publisher: Arc<Publisher>,
        counters: Arc<Counters>,
    ) -> Result<Self, StoreError> {
        let (store, stored) = Store::open(&directory)?;
        let mut this = Self {
            fresh: false,
            directory,
            store: Some(store),
            reopen_due_s: 0,
            registry: Registry::default(),
            followed: None,
            counted: registry::Counters::default(),
            surroundings: Surroundings::default(),
            untold: Surroundings::default(),
            unsettled: None,
            publisher,
            published: None,
            events: Vec::new(),
            members: Members::default(),
            counters,
        };
        this.adopt(stored);
        let sequence = this.registry.sequence();
        info!(sequence, records = records(&this.registry.plane()), "registry read");
        Ok(this)
    }

    /// Whether nothing was ever stored: the registry may begin with what another left.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The last change that is stored; 0 if there was none.
    pub(super) fn sequence(&self) -> u64 {
        self.registry.sequence()
    }

    /// Begins with these rows, if they can be stored; whether it does.
    pub(super) fn begin_with(&mut self, now_s: u64, mut plane: RegistryPlane) -> bool {
        plane.sequence = plane.sequence.max(1);
        let rows = RegistryChanges::between(&RegistryPlane::default(), &plane);
        let changes = Changes { rows, ..Changes::default() };
        for _ in 0..2 {
            // What is read back may be this: the commit was made after all.
            let Some(store) = self.store.as_mut().filter(|_| self.fresh) else { return false };
            match store.commit(&changes) {
                Ok(()) => {
                    self.adopt(Stored { plane, ..Stored::default() });
                    return true;
                }
                Err(failure) => {
                    self.counters.failures.add(1);
                    error!("what was read is not stored: {}", sa_proto::with_causes(&failure));
                    self.reopen(now_s);
                }
            }
        }
        false
    }

    /// Replaces what is stored by what another master has, while we are none. Whether that is on
    /// disk now. Sequence numbers do not go back, whoever gave them out.
    pub(super) fn follow(&mut self, now_s: u64, plane: &RegistryPlane) -> bool {
        if self.publisher.session().is_some() {
            return false;
        }
        if self.store.is_none() && now_s >= self.reopen_due_s {
            self.reopen(now_s);
        }
        let before = self.rows();
        let mut plane = plane.clone();
        plane.sequence = plane.sequence.max(before.sequence);
        let rows = RegistryChanges::between(&before, &plane);
        let Some(store) = &mut self.store else { return false };
        if rows.is_empty() && plane.sequence == before.sequence && !self.fresh {
            return true;
        }
        let changes = Changes { rows, ..Changes::default() };
        let kept = store.commit(&changes);
        if let Err(failure) = kept {
            self.counters.failures.add(1);
            let reason = sa_proto::with_causes(&failure);
            error!("what another master's clients registered is not stored: {reason}");
            self.reopen(now_s);
            return false;
        }
        self.counters.commits.add(1);
        self.fresh = false;
        self.published = None;
        self.members.apply(&changes.rows);
        self.followed = Some(plane);
        true
    }

    /// All rows, whoever gave them.
    fn rows(&self) -> RegistryPlane {
        self.followed.clone().unwrap_or_else(|| self.registry.plane())
    }

    /// Makes the registry what was followed, if anything was: we decide from now on.
    fn begin_where_the_master_ended(&mut self) {
        if let Some(plane) = self.followed.take() {
            self.replace_registry(Registry::restore(&plane, []));
        }
    }

    fn adopt(&mut self, stored: Stored) {
        self.followed = None;
        self.fresh = stored.fresh;
        // Changes do not tell of these rows.
        self.published = None;
        self.members.replace(&stored.plane);
        self.replace_registry(Registry::restore(&stored.plane, stored.outcomes));
    }

    fn replace_registry(&mut self, registry: Registry) {
        self.counted += self.registry.counters();
        self.registry = registry;
        self.untold = self.surroundings.clone();
    }

    /// Does a batch of work; a verdict on each write, in their order.
    pub(super) fn turn(&mut self, now_s: u64, work: Work) -> Vec<Verdict> {
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

    /// Notes what happened in the commit begun last if it was made, now that it is known what is
    /// on disk. Whether it was; `None` if there was none.
    fn settle(&mut self, stored_sequence: u64) -> Option<bool> {
        let Unsettled { sequence, events } = self.unsettled.take()?;
        let made = stored_sequence >= sequence;
        if made {
            self.events.extend(events);
        }
        Some(made)
    }

    /// Reads everything back from disk. Whether the commit that failed is there; `None` if nobody
    /// can tell, or if there was none.
    fn reopen(&mut self, now_s: u64) -> Option<bool> {
        // The file must be closed first: it is locked.
        self.store = None;
        self.published = None;
        self.followed = None;
        self.replace_registry(Registry::default());
        match Store::open(&self.directory) {
            Ok((store, stored)) => {
                let sequence = stored.plane.sequence;
                warn!(sequence, "registry read back");
                self.store = Some(store);
                self.adopt(stored);
                self.settle(sequence)
            }
            Err(failure) => {
                self.reopen_due_s = now_s + REOPEN_INTERVAL_S;
                error!("writes are refused: {}", sa_proto::with_causes(&failure));
                None
            }
        }
    }

    /// Throws memory away after a panic, which may have left it half changed.
    pub(super) fn recover(&mut self, now_s: u64) {
        self.reopen(now_s);
    }

    /// What happened since this was last asked.
    pub(super) fn events(&mut self) -> Vec<GroupEvent> {
        std::mem::take(&mut self.events)
    }

    /// When [`turn`](Self::turn) has something to do though no work came, seconds since 1970.
    pub(super) fn due_s(&self) -> Option<u64> {
        // Whoever is not the master lets nothing run out.
        if self.publisher.session().is_none() || self.surroundings.ports.is_none() {
            return None;
        }
        match self.store {
            Some(_) => self.registry.next_expiry(),
            None => Some(self.reopen_due_s),
        }
    }

    /// Whether whoever follows the session with this epoch follows a later one than ours: then
    /// another SM is the master. Those that follow an earlier one are on their way to ours, and
    /// what they are answered with is of ours.
    pub(super) fn is_superseded_by(&self, epoch: u64) -> bool {
        self.publisher.session().is_some_and(|session| session.epoch < epoch)
    }

    /// The session in which all of the registry is published.
    pub(super) fn published(&self) -> Option<Session> {
        self.published
    }

    /// All rows as they are on disk; `None` while the file cannot be used.
    pub(super) fn plane(&self) -> Option<RegistryPlane> {
        self.store.is_some().then(|| self.rows())
    }

    /// Whether [`changed_members`](Self::changed_members) may have something to tell.
    pub(super) fn may_have_changed_members(&self) -> bool {
        // Without the file there are no rows to look at, which does not mean that nobody is in.
        self.store.is_some() && self.members.may_have_changed()
    }

    /// Who belongs to which MLID, if that changed since this was last asked. Takes time that goes
    /// with the size of the groups that changed.
    pub(super) fn changed_members(&mut self) -> Membership {
        if !self.may_have_changed_members() {
            return Membership::default();
        }
        self.members.take_changes(&self.rows())
    }

    /// The fabric as it was told last.
    pub(super) fn ports(&self) -> Option<&Arc<Ports>> {
        self.surroundings.ports.as_ref()
    }

    /// Blocks of GUID tables that changed since this was last asked.
    pub(super) fn changed_guid_blocks(&mut self) -> Vec<GuidBlock> {
        self.registry.take_guid_blocks()
    }

    /// What the registry counted since the program started.
    pub(super) fn registry_counters(&self) -> registry::Counters {
        let mut counters = self.counted;
        counters += self.registry.counters();
        counters
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

/// How many records of each kind, for the log.
fn records(plane: &RegistryPlane) -> String {
    format!(
        "{} groups, {} members, {} services, {} subscriptions, {} alias GUIDs",
        plane.groups.len(),
        plane.members.len(),
        plane.services.len(),
        plane.subscriptions.len(),
        plane.alias_guids.len()
    )
}

#[cfg(test)]
mod tests;
