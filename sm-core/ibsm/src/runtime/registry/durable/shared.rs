//! With a store that several managers share: what is read while another may commit, and the right
//! to commit.

use std::time::Duration;

use sa_proto::snapshot::Session;
use sm_core::registry::{Registry, RegistryClock};
use tracing::{debug, info};

use super::{Access, DurableRegistry};
use crate::runtime::store::Stored;

/// How long an empty registry may take to be stored as it is restored from a dump.
pub(super) const COMMIT_PATIENCE: Duration = Duration::from_secs(5);

impl DurableRegistry {
    /// Whether another manager may take the right to commit, though this one has a session.
    pub(in super::super) fn set_yields(&mut self, yields: bool) {
        self.yields = yields;
    }

    /// Notes that this thread and the service loop work.
    pub(in super::super) fn note_alive(&mut self) {
        self.store.note_alive();
    }

    /// Asks for the right to commit in this session, or gives it back.
    pub(super) fn lead(&mut self, session: Option<Session>) {
        self.store.lead(session);
        if session.is_none() && self.store.is_shared() && self.access == Access::Open {
            // From now on another manager may add to it.
            self.followed = Some(self.rows());
            self.access = Access::Copy;
            self.published = None;
            self.doubt();
            // The store reports no result of a commit that is under way; it may be stored. What is
            // read next replaces what is in memory; until then no decision there counts.
            if self.uncommitted().is_some() {
                self.note_failed();
            }
            self.replace_registry(Registry::default());
        }
    }

    /// Takes news of the store; returns whether a batch may begin. A store of our own is opened
    /// again and the batch refused if that fails; one that is shared opens by itself.
    pub(super) fn may_commit(&mut self, now_s: u64) -> bool {
        if !self.store.is_shared() {
            return true;
        }
        self.poll_store(now_s);
        self.is_open()
    }

    /// Whether this manager is master and may not commit yet.
    pub(super) fn waits_for_store(&self) -> bool {
        self.store.is_shared() && !self.is_open() && self.publisher.session().is_some()
    }

    /// Whether nothing else can become known of what was stored before this run: an empty registry
    /// is empty.
    pub(in super::super) fn is_settled(&self) -> bool {
        !self.store.is_shared() || self.is_open()
    }

    /// Takes news of the store between batches.
    pub(in super::super) fn refresh(&mut self, now_s: u64) {
        if self.store.is_shared() {
            self.poll_store(now_s);
        }
    }

    /// Another manager may commit from now on, if several share the store: what is published may
    /// lack something.
    pub(super) fn doubt(&mut self) {
        self.certain = self.certain.filter(|_| !self.store.is_shared());
    }

    /// Whether the store has a session that is not below this one: another manager stored in it.
    pub(super) fn is_outranked(&self, session: Session) -> bool {
        self.store.is_shared() && self.stored_session > session
    }

    /// Takes what the store holds while another manager may commit.
    pub(super) fn adopt_copy(&mut self, copy: Stored) {
        if self.is_open() {
            return;
        }
        if self.publisher.session().is_none() {
            // A master without the right to commit must not outrank the one that has it.
            self.publisher.note_session(copy.session);
        }
        self.continue_time(&copy);
        self.access = Access::Copy;
        self.discarded = None;
        self.fresh = copy.fresh;
        self.stored_session = copy.session;
        self.members.replace(&copy.plane);
        self.published = None;
        self.followed = Some(copy.plane);
    }

    /// Takes session and time of the store that was opened: our next session is above it.
    pub(super) fn note_stored(&mut self, stored: &Stored) {
        if self.store.is_shared() {
            self.publisher.note_stored_session(stored.session);
            self.continue_time(stored);
        }
    }

    /// Continues the time of the manager that committed last.
    fn continue_time(&mut self, stored: &Stored) {
        let Some(stamp) = stored.stamp.filter(|stamp| self.followed_stamp != Some(*stamp)) else {
            return;
        };
        let now = self.host_clock.host();
        if now.boot != 0 && now.boot == stamp.host.boot {
            self.clock = RegistryClock::new(now, Some(stamp));
        } else {
            // The wall clocks of two hosts may differ by hours. Ours is followed back, too: while
            // no manager ran, the time of the one that was started again stood still.
            self.clock.follow(now, stamp.time);
        }
        self.followed_stamp = Some(stamp);
        self.advance(now);
    }

    /// Publishes what was read, for queries: writes wait.
    pub(super) fn publish_copy(&mut self, session: Session) {
        let Some(plane) = self.followed.as_ref().filter(|_| self.access == Access::Copy) else {
            return;
        };
        if self.published == Some(session) {
            return;
        }
        match self.publisher.publish_registry(plane.clone()) {
            Ok(version) => {
                if self.copy_published.replace(session) != Some(session) {
                    info!(
                        "published a copy of the store's registrations; writes wait for the fence"
                    );
                }
                self.published = Some(session).filter(|session| version.session == *session);
            }
            Err(failure) => debug!("cannot publish the copy of the registry: {failure}"),
        }
    }
}
