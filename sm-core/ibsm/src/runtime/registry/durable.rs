//! The registry with its store and its publication: the order in which a batch of work changes
//! them.
//!
//! A batch is decided in memory, committed, published, and only then answered. If the commit fails,
//! memory is discarded and read back from disk, so that it never holds more than the disk does. The
//! batch is then decided once more, which is harmless if the commit had succeeded after all:
//! outcomes are stored with their changes. If that fails too, the writes are refused with status
//! "no resources", as are all others until the file can be opened again. Where it is unknown
//! whether they are on disk, they are not answered: a refusal would be final.
//!
//! Thread and clock belong to the parent module.

mod batch;
mod follow;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ib_mad::types::PKey;
use sa_proto::snapshot::{RegistryChanges, RegistryPlane, RegistryVersion, Session, Version};
use tracing::{error, info, warn};

use super::counters::Counters;
use super::store::{RegistryStore, StoreError, Stored};
use crate::publish::Publisher;
use batch::Surroundings;
pub(super) use batch::{Verdict, Work};
use sm_core::registry::{
    self, Changes, GuidBlock, HostTime, Members, Ports, Registry, RegistryClock, RegistryEvent,
    Stamp,
};
use sm_routing::multicast::Membership;

/// How long to wait before a file that failed is opened again, seconds.
const REOPEN_INTERVAL_S: u64 = 2;
/// Minimum time between two stamps of registry time on disk. A restart continues exactly from any
/// of them; only if a boot lies between and the wall clock was set back does an older one matter.
const STAMP_INTERVAL: Duration = Duration::from_secs(1);

/// An event for subscribers, and the group's P_Key.
pub(super) type GroupEvent = (RegistryEvent, Option<PKey>);

/// The registry, durable and published; see the module.
pub(super) struct DurableRegistry {
    directory: PathBuf,
    /// Whether nothing has ever been stored.
    fresh: bool,
    /// `None` while the file cannot be used; then the registry is empty, too.
    store: Option<RegistryStore>,
    /// When to reopen it, seconds of registry time.
    reopen_due_s: u64,
    clock: RegistryClock,
    /// The current time.
    now: Stamp,
    /// The stamp on disk; `None` if it is unknown.
    stamped: Option<Stamp>,
    registry: Registry,
    /// The copy of the master's registry that is on disk. The registry is restored from it at a
    /// takeover; until then rows suffice, and each update costs only its changes.
    followed: Option<RegistryPlane>,
    /// Counters of registries discarded before this one.
    counted: registry::Counters,
    /// Ports, predefined groups and responders.
    surroundings: Surroundings,
    /// Those parts that the registry has not applied yet: all, after it was read back.
    unapplied: Surroundings,
    /// A commit that may or may not be on disk.
    unsettled: Option<Unsettled>,
    publisher: Arc<Publisher>,
    /// The session in which the registry was published.
    published: Option<Session>,
    events: Vec<GroupEvent>,
    /// Members of MLIDs, and which of them changed.
    members: Members,
    counters: Arc<Counters>,
}

/// A commit whose result is unknown.
struct Unsettled {
    /// Sequence number on disk if it succeeded.
    sequence: u64,
    /// Events of the commit.
    events: Vec<GroupEvent>,
}

impl DurableRegistry {
    /// Reads the registry from the file in `directory`, and continues its time.
    pub(super) fn open(
        directory: PathBuf,
        publisher: Arc<Publisher>,
        counters: Arc<Counters>,
        now: HostTime,
    ) -> Result<Self, StoreError> {
        let (store, stored) = RegistryStore::open(&directory)?;
        let clock = RegistryClock::new(now, stored.stamp);
        let mut this = Self {
            fresh: false,
            directory,
            store: Some(store),
            reopen_due_s: 0,
            clock,
            now: clock.stamp(now),
            stamped: None,
            registry: Registry::default(),
            followed: None,
            counted: registry::Counters::default(),
            surroundings: Surroundings::default(),
            unapplied: Surroundings::default(),
            unsettled: None,
            publisher,
            published: None,
            events: Vec::new(),
            members: Members::default(),
            counters,
        };
        this.adopt(stored);
        this.advance(now);
        let sequence = this.registry.sequence();
        info!(sequence, records = records(&this.registry.plane()), "registry read");
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

    /// Commits changes, with the time if it is due.
    fn commit(&mut self, mut changes: Changes) -> Result<RegistryChanges, StoreError> {
        changes.stamp = self.due_stamp();
        let store = self.store.as_mut().expect("the caller has checked that it is open");
        store.commit(&changes)?;
        self.stamped = changes.stamp.or(self.stamped);
        Ok(changes.rows)
    }

    /// Whether nothing has ever been stored: the registry may be restored from a dump.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Sequence number of the last change on disk; 0 if there was none.
    pub(super) fn sequence(&self) -> u64 {
        self.registry.sequence()
    }

    /// Version on disk.
    pub(super) fn held(&self) -> RegistryVersion {
        let session =
            self.store.as_ref().map_or(Version::NONE.session, RegistryStore::stored_session);
        let copy = self.followed.as_ref().map(|plane| plane.sequence);
        RegistryVersion { session, sequence: copy.unwrap_or_else(|| self.registry.sequence()) }
    }

    /// All rows: of the copy while standing by, otherwise of the registry.
    fn rows(&self) -> RegistryPlane {
        self.followed.clone().unwrap_or_else(|| self.registry.plane())
    }

    fn adopt(&mut self, stored: Stored) {
        self.followed = None;
        self.fresh = stored.fresh;
        // These rows are in no list of changes: everything is published again.
        self.published = None;
        self.members.replace(&stored.plane);
        self.replace_registry(Registry::restore(&stored.plane, stored.outcomes));
    }

    fn replace_registry(&mut self, registry: Registry) {
        self.counted += self.registry.counters();
        self.registry = registry;
        self.unapplied = self.surroundings.clone();
    }

    /// Takes the events of the last commit if the sequence number on disk shows that it succeeded;
    /// returns whether it did, `None` if there was none.
    fn settle(&mut self, stored_sequence: u64) -> Option<bool> {
        let Unsettled { sequence, events } = self.unsettled.take()?;
        let made = stored_sequence >= sequence;
        if made {
            self.events.extend(events);
        }
        Some(made)
    }

    /// Reads everything back from disk. Returns whether the commit that failed is there; `None` if
    /// that is unknown, or if there was none.
    fn reopen(&mut self, now_s: u64) -> Option<bool> {
        // The file must be closed first: it is locked.
        self.store = None;
        self.stamped = None;
        self.published = None;
        self.followed = None;
        self.replace_registry(Registry::default());
        match RegistryStore::open(&self.directory) {
            Ok((store, stored)) => {
                let sequence = stored.plane.sequence;
                warn!(sequence, "registry reloaded from disk");
                self.store = Some(store);
                self.adopt(stored);
                self.settle(sequence)
            }
            Err(failure) => {
                self.reopen_due_s = now_s + REOPEN_INTERVAL_S;
                error!(
                    "cannot reopen the registry: {}; registrations are refused, retrying every \
                     {REOPEN_INTERVAL_S} s",
                    sa_proto::with_causes(&failure)
                );
                None
            }
        }
    }

    /// Reads everything back after a panic, which may have left memory inconsistent.
    pub(super) fn recover(&mut self, now_s: u64) {
        self.reopen(now_s);
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
        match self.store {
            Some(_) => self.registry.next_expiry(),
            None => Some(self.reopen_due_s),
        }
    }

    /// Whether a responder that follows the session with this epoch follows a later one than this
    /// SM's: then another SM is master. A responder with an earlier epoch is about to follow this
    /// SM's session, and is answered from it.
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

    /// Whether [`changed_members`](Self::changed_members) may return any.
    pub(super) fn may_have_changed_members(&self) -> bool {
        // Without the file there are no rows, which does not mean that there are no members.
        self.store.is_some() && self.members.may_have_changed()
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
        self.registry.take_guid_blocks()
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
