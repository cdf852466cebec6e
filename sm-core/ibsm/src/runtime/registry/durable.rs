//! The registry with its store and its publication: the order in which a batch of work changes
//! them.
//!
//! A batch is decided in memory, committed, published, and only then answered. If the commit fails,
//! memory is discarded and read back from the store, so that it never holds more than the store
//! does. The batch is then decided once more, which is harmless if the commit had succeeded after
//! all: outcomes are stored with their changes. If that fails too, the writes are refused with
//! status "no resources", as are all others until the next attempt. Where it is unknown whether
//! they are stored, they are not answered: a refusal would be final.
//!
//! The store may take time ([`Store`]): while it does, the batch is open, what others see is the
//! state before it, and the next one waits.
//!
//! Thread and clock belong to the parent module.

mod batch;
mod failing;
mod follow;
mod shared;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ib_mad::types::PKey;
use sa_proto::snapshot::{RegistryPlane, RegistryVersion, Session, Version};
use tracing::{info, warn};

use super::counters::Counters;
use crate::clock::Clock;
use crate::publish::Publisher;
use crate::runtime::store::{Event, Store, StoreError, Stored};
use batch::{Batch, Surroundings};
pub(super) use batch::{Verdict, Work, Write};
use failing::Failing;
use sm_core::registry::{
    self, GuidBlock, HostTime, Members, Outcome, OutcomeKey, Ports, Registry, RegistryClock,
    RegistryEvent, Stamp,
};
use sm_routing::multicast::Membership;

/// How long the start waits for a store that is slow or out of reach.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait after a failure of the store before it is used again, seconds.
const RETRY_INTERVAL_S: u64 = 2;
/// The effect of a failure, for the log.
const UNTIL_RETRY: &str = "registrations are refused until a retry succeeds";
/// Minimum time between two stamps of registry time on disk. A restart continues exactly from any
/// of them; only if a boot lies between and the wall clock was set back does an older one matter.
const STAMP_INTERVAL: Duration = Duration::from_secs(1);

/// An event for subscribers, and the group's P_Key.
pub(super) type GroupEvent = (RegistryEvent, Option<PKey>);

/// The registry, durable and published; see the module.
pub(super) struct DurableRegistry {
    store: Box<dyn Store>,
    /// While nothing was read, the registry is empty.
    access: Access,
    /// Whether another manager may take the right to commit, though this one has a session.
    yields: bool,
    /// Whether nothing has ever been stored.
    fresh: bool,
    /// Session of the last commit.
    stored_session: Session,
    clock: RegistryClock,
    host_clock: Arc<dyn Clock>,
    /// The session of the master whose time was followed last.
    time_followed: Option<Session>,
    /// The last stamp that another manager stored, with a store that is shared.
    followed_stamp: Option<Stamp>,
    /// The current time.
    now: Stamp,
    /// The stamp in the store; `None` if it is unknown.
    stamped: Option<Stamp>,
    registry: Registry,
    /// The copy of the master's registry that is stored. The registry is restored from it at a
    /// takeover; until then rows suffice, and each update costs only its changes.
    followed: Option<RegistryPlane>,
    /// Outcomes that are stored with the copy, in order of decision.
    followed_outcomes: VecDeque<(OutcomeKey, Outcome)>,
    /// Counters of registries discarded before this one.
    counted: registry::Counters,
    /// Ports, predefined groups and responders.
    surroundings: Surroundings,
    /// Those parts that the registry has not applied yet: all, after it was read back.
    unapplied: Surroundings,
    /// The batch that is being worked on.
    batch: Option<Batch>,
    /// A commit that may or may not be stored.
    unsettled: Option<Unsettled>,
    /// Commits that failed since the last one that did not.
    failing: Failing,
    /// What was in memory when the store failed, while nothing can be read: it shows which requests
    /// may be stored.
    discarded: Option<Registry>,
    publisher: Arc<Publisher>,
    /// The session in which the registry was published.
    published: Option<Session>,
    /// The session in which a registry was published that lacks nothing: this manager alone may
    /// commit to the store. Others could have added to a copy.
    certain: Option<Session>,
    /// The same as `published` when the store failed, and the version that it held then.
    published_before: Option<(Session, RegistryVersion)>,
    /// The session in which a copy of a shared store was published, which is logged once.
    copy_published: Option<Session>,
    events: Vec<GroupEvent>,
    /// Members of MLIDs, and which of them changed.
    members: Members,
    counters: Arc<Counters>,
}

/// Whether the store can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everything was read, and it accepts commits.
    Open,
    /// Everything was read; another manager may commit.
    Copy,
    /// It is being read.
    Opening,
    /// It could not be opened; to be tried again at this time, in seconds of registry time.
    Closed { due_s: u64 },
    /// Everything was read, but commits fail; the next one is tried at this time.
    Refusing { due_s: u64 },
}

/// A commit whose result is unknown.
struct Unsettled {
    /// Session and sequence number in the store if it succeeded.
    session: Session,
    sequence: u64,
    /// Events of the commit.
    events: Vec<GroupEvent>,
}

impl DurableRegistry {
    /// Reads the registry from `store`, and continues its time.
    pub(super) fn open(
        mut store: Box<dyn Store>,
        publisher: Arc<Publisher>,
        counters: Arc<Counters>,
        host_clock: Arc<dyn Clock>,
    ) -> Result<Self, StoreError> {
        store.open();
        let (stored, copy) = match store.poll_within(START_PATIENCE) {
            Some(Event::Opened(stored)) => (Some(*stored), None),
            Some(Event::Copied(copy)) => (None, Some(*copy)),
            Some(Event::Failed(failure)) => return Err(failure),
            Some(Event::Committed) | None => {
                warn!("the store does not answer yet; until it does, no registrations are known");
                (None, None)
            }
        };
        // Reading may have taken long, and another manager may have stored its time meanwhile.
        let now = host_clock.host();
        let clock = RegistryClock::new(now, stored.as_ref().and_then(|stored| stored.stamp));
        let mut this = Self {
            store,
            access: Access::Opening,
            yields: false,
            fresh: false,
            stored_session: Version::NONE.session,
            clock,
            host_clock,
            time_followed: None,
            followed_stamp: None,
            now: clock.stamp(now),
            stamped: None,
            registry: Registry::default(),
            followed: None,
            followed_outcomes: VecDeque::new(),
            counted: registry::Counters::default(),
            surroundings: Surroundings::default(),
            unapplied: Surroundings::default(),
            batch: None,
            unsettled: None,
            failing: Failing::default(),
            discarded: None,
            publisher,
            published: None,
            certain: None,
            published_before: None,
            copy_published: None,
            events: Vec::new(),
            members: Members::default(),
            counters,
        };
        this.advance(now);
        if let Some(stored) = stored {
            this.adopt(stored);
            let sequence = this.registry.sequence();
            info!(sequence, records = records(&this.registry.plane()), "registry read");
        }
        if let Some(copy) = copy {
            this.adopt_copy(copy);
            info!(sequence = this.sequence(), records = records(&this.rows()), "registry read");
        }
        Ok(this)
    }

    /// Sets the time; returns registry time, in seconds. `now` does not decrease.
    pub(super) fn advance(&mut self, now: HostTime) -> u64 {
        self.now = self.clock.stamp(now);
        self.publisher.set_registry_time(self.now.time);
        self.now.time.as_secs()
    }

    /// The current time.
    pub(super) fn now(&self) -> Stamp {
        self.now
    }

    /// The stamp for the next commit, if the one on disk is older than [`STAMP_INTERVAL`].
    fn due_stamp(&self) -> Option<Stamp> {
        let is_recent = |on_disk: Stamp| {
            // A time that was set back is stored at once.
            let age = self.now.time.checked_sub(on_disk.time);
            age.is_some_and(|age| age < STAMP_INTERVAL)
        };
        (!self.stamped.is_some_and(is_recent)).then_some(self.now)
    }

    /// Whether nothing has ever been stored: the registry may be restored from a dump.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Whether everything in the store was read and commits are accepted.
    pub(super) fn is_open(&self) -> bool {
        self.access == Access::Open
    }

    /// Whether everything in the store was read.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.access, Access::Open | Access::Copy | Access::Refusing { .. })
    }

    /// Sequence number of the last change in the store; 0 if there was none.
    pub(super) fn sequence(&self) -> u64 {
        if let Some(before) = self.uncommitted() {
            return before.sequence;
        }
        self.followed.as_ref().map_or_else(|| self.registry.sequence(), |plane| plane.sequence)
    }

    /// The stored version.
    pub(super) fn held(&self) -> RegistryVersion {
        RegistryVersion { session: self.stored_session, sequence: self.sequence() }
    }

    /// All rows as they are stored: of the copy while standing by, otherwise of the registry.
    fn rows(&self) -> RegistryPlane {
        let stored = self.uncommitted().or(self.followed.as_ref());
        stored.cloned().unwrap_or_else(|| self.registry.plane())
    }

    /// What was stored before the batch whose commit is under way.
    fn uncommitted(&self) -> Option<&RegistryPlane> {
        self.batch.as_ref()?.uncommitted()
    }

    fn adopt(&mut self, stored: Stored) {
        self.access = Access::Open;
        self.discarded = None;
        self.followed = None;
        self.fresh = stored.fresh;
        self.stored_session = stored.session;
        // These rows are in no list of changes: everything is published again.
        self.published = None;
        self.members.replace(&stored.plane);
        self.catch_up_with(&stored.outcomes);
        self.replace_registry(Registry::restore(&stored.plane, stored.outcomes));
    }

    /// Takes registry time to that of the last of these outcomes, which may be later than the last
    /// stamp: repeats of these requests are recognized from now on.
    fn catch_up_with(&mut self, outcomes: &[(OutcomeKey, Outcome)]) {
        let last_s = outcomes.iter().map(|(_, outcome)| outcome.at_s).max();
        if let Some(last_s) = last_s {
            let now = self.host_clock.host();
            self.clock.catch_up(now, Duration::from_secs(last_s));
            self.advance(now);
        }
    }

    /// Returns the one before.
    fn replace_registry(&mut self, registry: Registry) -> Registry {
        self.counted += self.registry.counters();
        self.unapplied = self.surroundings.clone();
        std::mem::replace(&mut self.registry, registry)
    }

    /// Takes the events of the last commit if session and sequence number in the store show that it
    /// succeeded; returns whether it did, `None` if there was none.
    fn settle(&mut self, stored: Session, stored_sequence: u64) -> Option<bool> {
        let Unsettled { session, sequence, events } = self.unsettled.take()?;
        let made = stored == session && stored_sequence >= sequence;
        if made {
            self.events.extend(events);
        }
        Some(made)
    }

    /// Discards what is in memory, and begins to read everything back.
    fn reopen(&mut self) {
        self.stored_session = Version::NONE.session;
        self.stamped = None;
        self.published = None;
        self.published_before = None;
        self.doubt();
        // While standing by, the copy is what is stored.
        let copy = self.followed.take();
        let outcomes = std::mem::take(&mut self.followed_outcomes);
        let is_read = self.is_read();
        self.access = Access::Opening;
        let discarded = self.replace_registry(Registry::default());
        let discarded =
            copy.map(|plane| Registry::take_over(&plane, outcomes)).unwrap_or(discarded);
        self.discarded = Some(discarded).filter(|_| is_read).or(self.discarded.take());
        self.store.open();
    }

    /// Takes news of the store.
    fn poll_store(&mut self, now_s: u64) {
        while let Some(event) = self.store.poll() {
            match event {
                Event::Opened(stored) => {
                    let (session, sequence) = (stored.session, stored.plane.sequence);
                    self.failing.note_reloaded(sequence);
                    let before = self.published_before.take();
                    self.note_stored(&stored);
                    self.adopt(*stored);
                    // What was published is what is stored.
                    let stored = RegistryVersion { session, sequence };
                    self.published =
                        before.and_then(|(of, version)| (version == stored).then_some(of));
                    let made = self.settle(session, sequence);
                    self.note_reopened(made);
                }
                Event::Copied(copy) => self.adopt_copy(*copy),
                Event::Failed(failure) if self.access != Access::Open => {
                    self.access = Access::Closed { due_s: now_s + RETRY_INTERVAL_S };
                    self.note_reopened(None);
                    self.failing.note(now_s, "cannot reopen the registry", UNTIL_RETRY, &failure);
                }
                Event::Failed(failure) => {
                    self.counters.failures.add(1);
                    let published = self.published.map(|session| (session, self.held()));
                    let what = "cannot commit writes to the registry";
                    self.failing.note(now_s, what, UNTIL_RETRY, &failure);
                    self.note_failed();
                    self.reopen();
                    self.published_before = published;
                }
                Event::Committed => self.note_committed(),
            }
        }
    }

    /// Uses a store that failed again, if it is time.
    fn retry_if_due(&mut self, now_s: u64) {
        match self.access {
            Access::Closed { due_s } if now_s >= due_s => self.reopen(),
            Access::Refusing { due_s } if now_s >= due_s => self.access = Access::Open,
            _ => {}
        }
    }

    /// Commits fail though the store can be read: the next one is not tried at once. Without this,
    /// each write would cost that everything is read.
    fn refuse_for_now(&mut self, now_s: u64) {
        if self.access == Access::Open && !self.store.is_shared() {
            self.access = Access::Refusing { due_s: now_s + RETRY_INTERVAL_S };
        }
    }

    /// Reads everything back after a panic, which may have left memory inconsistent.
    pub(super) fn recover(&mut self, now_s: u64) {
        self.batch = None;
        self.reopen();
        self.poll_store(now_s);
    }

    /// Events since the last call.
    pub(super) fn events(&mut self) -> Vec<GroupEvent> {
        std::mem::take(&mut self.events)
    }

    /// When to call [`turn`](Self::turn) without work, seconds of registry time.
    pub(super) fn due_s(&self) -> Option<u64> {
        // Only the master expires leases.
        if self.publisher.session().is_none() || self.surroundings.ports.is_none() {
            return None;
        }
        match self.access {
            // What the store does next wakes the thread.
            _ if self.batch.is_some() => None,
            Access::Copy => None,
            // It arrived while a batch was open.
            Access::Open if !self.unapplied.is_empty() => Some(0),
            Access::Open => self.registry.next_expiry(),
            Access::Opening => None,
            Access::Closed { due_s } | Access::Refusing { due_s } => Some(due_s),
        }
    }

    /// The session of this SM, if it is master.
    pub(super) fn session(&self) -> Option<Session> {
        self.publisher.session()
    }

    /// The version that was published last.
    pub(super) fn published_version(&self) -> Version {
        self.publisher.version()
    }

    /// The session in which all of the registry is published.
    pub(super) fn published(&self) -> Option<Session> {
        self.published
    }

    /// The last session in which a registry was published that lacks nothing, if it still does.
    pub(super) fn certain(&self) -> Option<Session> {
        self.certain
    }

    /// All rows as they are stored; `None` while the store cannot be used.
    pub(super) fn plane(&self) -> Option<RegistryPlane> {
        self.is_read().then(|| self.rows())
    }

    /// Whether [`changed_members`](Self::changed_members) may return any.
    pub(super) fn may_have_changed_members(&self) -> bool {
        // Without the store there are no rows, which does not mean that there are no members.
        self.is_read() && self.members.may_have_changed()
    }

    /// Members of MLIDs whose members changed since the last call. The time is proportional to the
    /// size of the groups that changed.
    pub(super) fn changed_members(&mut self) -> Membership {
        if !self.may_have_changed_members() {
            return Membership::default();
        }
        self.members.take_changes(&self.rows())
    }

    /// Ports as of the last sweep.
    pub(super) fn ports(&self) -> Option<&Arc<Ports>> {
        self.surroundings.ports.as_ref()
    }

    /// Blocks of GUID tables that changed since the last call.
    pub(super) fn changed_guid_blocks(&mut self) -> Vec<GuidBlock> {
        match self.uncommitted() {
            Some(_) => Vec::new(),
            None => self.registry.take_guid_blocks(),
        }
    }

    /// Counters of the registry since the program started.
    pub(super) fn registry_counters(&self) -> registry::Counters {
        let mut counters = self.counted;
        counters += self.registry.counters();
        counters
    }
}

/// The number of records of each kind, for the log.
fn records(plane: &RegistryPlane) -> String {
    let counts = plane.counts().map(|(_, name, count)| format!("{name}: {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
