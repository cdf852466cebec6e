//! Where the registry is kept so that it survives this process.
//!
//! [`Store`] is what the registry's thread sees; [`entry`] the bytes of a commit, the same in every
//! store; [`file`](mod@file) keeps them in `registry.redb`, [`etcd`] in a cluster that several
//! managers share. What rows contain is decided by the registry, and when to commit by
//! `registry::durable`.

pub(super) mod entry;
mod error;
pub(super) mod etcd;
pub(super) mod file;

#[cfg(test)]
pub(super) mod conformance;
#[cfg(test)]
pub(super) mod faulty;

pub use error::StoreError;

use std::sync::Arc;
use std::time::Duration;

use sa_proto::snapshot::{RegistryPlane, Session};
use sm_core::registry::{Changes, Outcome, OutcomeKey, Stamp};

/// A store of the registry. No call waits: what was begun is polled, and a store that needs time
/// wakes the thread that polls it.
///
/// What every store promises, and `conformance` tests:
///
/// - A commit is all or nothing, and durable when it is reported.
/// - [`open`](Self::open) yields exactly what was committed, in the order of the commits; of a
///   commit that failed it yields all or nothing.
/// - The session of a commit is stored with it.
pub(super) trait Store: Send {
    /// Begins to read everything, also what may have been read before. Ends in
    /// [`Event::Opened`] or [`Event::Failed`]; there is no news of a commit begun earlier.
    fn open(&mut self);

    /// Begins to store changes in the session of this SM. Ends in [`Event::Committed`], or in
    /// [`Event::Failed`], after which it is unknown whether they are stored and the store must be
    /// opened again. May be called while the store is open, and no other commit is under way.
    fn submit(&mut self, changes: &Arc<Changes>, session: Session);

    /// What ended since the last call.
    fn poll(&mut self) -> Option<Event>;

    /// What ended, or ends within this time.
    fn poll_within(&mut self, patience: Duration) -> Option<Event> {
        let _ = patience;
        self.poll()
    }

    /// Sets what to call, from any thread, when there may be something to poll.
    fn set_waker(&mut self, waker: Waker) {
        // A store whose calls end at once needs none.
        drop(waker);
    }

    /// Whether several managers share the store. Then it opens while this manager leads, and no
    /// other commits; otherwise it reports copies.
    fn is_shared(&self) -> bool {
        false
    }

    /// Sets the session in which this manager is master; `None`: it is not. The right to commit is
    /// given back.
    fn lead(&mut self, session: Option<Session>) {
        let _ = session;
    }

    /// Notes that the service loop and the registry's thread work. A store that several managers
    /// share gives back the right to commit when this was not noted for some seconds.
    fn note_alive(&mut self) {}
}

/// Wakes the thread that polls a store.
pub(super) type Waker = Box<dyn Fn() + Send + Sync>;

/// What ended.
#[derive(Debug)]
pub(super) enum Event {
    /// Everything was read, and the store accepts commits.
    Opened(Box<Stored>),
    /// What another manager may add to, as it is now, without outcomes: no commits are accepted.
    Copied(Box<Stored>),
    /// The changes are stored.
    Committed,
    /// The store could not be opened, or the commit failed; the store is closed.
    Failed(StoreError),
}

/// Contents of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stored {
    /// All rows.
    pub(super) plane: RegistryPlane,
    /// Outcomes that repeats are answered with.
    pub(super) outcomes: Vec<(OutcomeKey, Outcome)>,
    /// Registry time when it was last stored.
    pub(super) stamp: Option<Stamp>,
    /// Session of the last commit; of epoch 0 if there was none.
    pub(super) session: Session,
    /// Whether nothing was ever stored.
    pub(super) fresh: bool,
}
