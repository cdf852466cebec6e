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

mod batch;
mod follow;

use std::path::PathBuf;
use std::sync::Arc;

use ib_mad::types::PKey;
use sa_proto::snapshot::{RegistryPlane, Session};
use tracing::{error, info, warn};

use super::counters::Counters;
use super::store::{Store, StoreError, Stored};
use crate::publish::Publisher;
use crate::registry::{self, GuidBlock, Members, Ports, Registry, RegistryEvent};
use crate::routing::multicast::Membership;
use batch::Surroundings;
pub(super) use batch::{Verdict, Work};

/// How long to wait before a file that failed is opened again, seconds.
const REOPEN_INTERVAL_S: u64 = 2;

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

    /// All rows, whoever gave them.
    fn rows(&self) -> RegistryPlane {
        self.followed.clone().unwrap_or_else(|| self.registry.plane())
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
