//! Rows of another registry: to be restored at the start, or copied while its SM is master.

use std::time::Duration;

use sa_proto::snapshot::{RegistryChanges, RegistryPlane, Session};
use tracing::error;

use super::super::store::Stored;
use super::DurableRegistry;
use sm_core::registry::{Changes, Registry};

/// By how much the sequence number grows at a takeover: the previous master may have used up to
/// that many numbers, and chosen MGIDs by them, that this SM does not know.
const TAKEOVER_GAP: u64 = 1 << 20;

impl DurableRegistry {
    /// Restores an empty registry from these rows; returns whether they could be stored.
    pub(in super::super) fn begin_with(&mut self, now_s: u64, mut plane: RegistryPlane) -> bool {
        plane.sequence = plane.sequence.max(1);
        let rows = RegistryChanges::between(&RegistryPlane::default(), &plane);
        let changes = Changes { rows, ..Changes::default() };
        for _ in 0..2 {
            // After a failure the file may hold them: the commit succeeded after all.
            if self.store.is_none() || !self.fresh {
                return false;
            }
            match self.commit(changes.clone()) {
                Ok(_) => {
                    self.adopt(Stored { plane, ..Stored::default() });
                    return true;
                }
                Err(failure) => {
                    self.counters.failures.add(1);
                    error!(
                        "cannot store the restored registry: {}",
                        sa_proto::with_causes(&failure)
                    );
                    self.reopen(now_s);
                }
            }
        }
        false
    }

    /// Stores a copy of the master's rows in this session while standing by; returns whether it is
    /// on disk.
    pub(in super::super) fn follow(
        &mut self,
        now_s: u64,
        session: Session,
        plane: &RegistryPlane,
    ) -> bool {
        if self.publisher.session().is_some() {
            return false;
        }
        if self.store.is_none() && now_s >= self.reopen_due_s {
            self.reopen(now_s);
        }
        let before = self.rows();
        let rows = RegistryChanges::between(&before, plane);
        let Some(store) = &mut self.store else { return false };
        let is_same = rows.is_empty() && plane.sequence == before.sequence;
        if is_same && store.stored_session() == session && !self.fresh {
            return true;
        }
        store.set_next_session(session);
        // Outcomes of our own session, in the time of our own registry, are of no use any more.
        let changes = Changes { rows, outcomes_since_s: u64::MAX, ..Changes::default() };
        let rows = match self.commit(changes) {
            Ok(rows) => rows,
            Err(failure) => {
                self.counters.failures.add(1);
                let reason = sa_proto::with_causes(&failure);
                error!("cannot store the registry of the master that is followed: {reason}");
                self.reopen(now_s);
                return false;
            }
        };
        self.counters.commits.add(1);
        self.fresh = false;
        self.published = None;
        self.members.apply(&rows);
        self.followed = Some(plane.clone());
        true
    }

    /// Continues the time of the master that is followed; does nothing while we are the master.
    pub(in super::super) fn follow_time(&mut self, time: Duration) {
        if self.publisher.session().is_none() {
            self.clock.follow(self.now.host, time);
            self.advance(self.now.host);
        }
    }

    /// Restores the registry from the copy, if there is one: this SM decides from now on.
    pub(super) fn begin_where_the_master_ended(&mut self) {
        if let Some(mut plane) = self.followed.take() {
            plane.sequence += TAKEOVER_GAP;
            self.replace_registry(Registry::restore(&plane, []));
        }
    }
}
