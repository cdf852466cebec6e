//! Rows of another registry: to be restored at the start, or copied while its SM is master.

use std::sync::Arc;
use std::time::Duration;

use sa_proto::snapshot::{RegistryChanges, RegistryPlane, Session};

use super::DurableRegistry;
use super::shared::COMMIT_PATIENCE;
use crate::runtime::store::{Event, StoreError, Stored};
use sm_core::registry::{Changes, OUTCOMES_MAX, Outcome, OutcomeKey, Registry};

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
            if !self.is_open() || !self.fresh {
                return false;
            }
            let session = self.stored_session;
            match self.commit(changes.clone(), session) {
                Ok(_) => {
                    self.adopt(Stored { plane, session, ..Stored::default() });
                    return true;
                }
                Err(failure) => {
                    self.counters.failures.add(1);
                    let what = "cannot store the restored registry";
                    self.failing.note(now_s, what, "retrying", &failure);
                    self.reopen();
                    self.poll_store(now_s);
                }
            }
        }
        false
    }

    /// Commits changes at once, with the time if it is due.
    fn commit(
        &mut self,
        mut changes: Changes,
        session: Session,
    ) -> Result<Arc<Changes>, StoreError> {
        changes.stamp = self.due_stamp();
        let changes = Arc::new(changes);
        self.store.submit(&changes, session);
        loop {
            match self.store.poll_within(COMMIT_PATIENCE) {
                Some(Event::Committed) => break,
                Some(Event::Failed(failure)) => return Err(failure),
                Some(Event::Opened(_) | Event::Copied(_)) => {}
                None => return Err(StoreError::Late),
            }
        }
        self.stamped = changes.stamp.or(self.stamped);
        self.stored_session = session;
        Ok(changes)
    }

    /// Stores a copy of the master's rows in this session while standing by, with outcomes of
    /// requests that it has decided since the last copy; returns whether they are on disk.
    pub(in super::super) fn follow(
        &mut self,
        now_s: u64,
        session: Session,
        plane: &RegistryPlane,
        outcomes: &[(OutcomeKey, Outcome)],
    ) -> bool {
        if self.publisher.session().is_some() || self.is_busy() {
            return false;
        }
        // It was received while this SM was master in a later session, whose registry is newer.
        if session < self.publisher.version().session {
            return false;
        }
        self.retry_if_due(now_s);
        self.poll_store(now_s);
        if !self.is_open() {
            return false;
        }
        let before = self.rows();
        let rows = RegistryChanges::between(&before, plane);
        let is_same = rows.is_empty() && plane.sequence == before.sequence;
        if is_same && outcomes.is_empty() && self.stored_session == session && !self.fresh {
            return true;
        }
        // Each session begins with all that its master knows.
        let outcomes_since_s = match self.stored_session == session {
            true => now_s.saturating_sub(self.registry.retry_window_s()),
            false => u64::MAX,
        };
        let changes =
            Changes { rows, outcomes_put: outcomes.to_vec(), outcomes_since_s, stamp: None };
        let changes = match self.commit(changes, session) {
            Ok(changes) => changes,
            Err(failure) => {
                self.counters.failures.add(1);
                let what = "cannot store the copy of the master's registry";
                self.failing.note(now_s, what, "retrying", &failure);
                self.reopen();
                self.poll_store(now_s);
                self.refuse_for_now(now_s);
                return false;
            }
        };
        self.counters.commits.add(1);
        self.failing.note_success(now_s);
        self.fresh = false;
        self.published = None;
        self.members.apply(&changes.rows);
        let is_first = self.followed.replace(plane.clone()).is_none();
        if is_first {
            // Those that were read with the rows.
            self.followed_outcomes = self.registry.granted_outcomes().into();
        }
        self.keep_outcomes(&changes);
        true
    }

    /// Brings the outcomes in memory, for a takeover, in line with those stored.
    fn keep_outcomes(&mut self, changes: &Changes) {
        let known = &mut self.followed_outcomes;
        let since_s = changes.outcomes_since_s;
        let expired = known.iter().take_while(|(_, outcome)| outcome.at_s < since_s).count();
        known.drain(..expired);
        known.extend(changes.outcomes_put.iter().cloned());
        let excess = known.len().saturating_sub(OUTCOMES_MAX);
        known.drain(..excess);
        self.counters.uncopied.add(excess);
    }

    /// Continues the time of the master that is followed; does nothing while we are the master.
    /// Within a session an earlier time is that of an update which was longer on its way.
    pub(in super::super) fn follow_time(&mut self, session: Session, time: Duration) {
        if self.publisher.session().is_some() {
            return;
        }
        let now = self.host_clock.host();
        let is_first = self.time_followed.replace(session) != Some(session);
        if is_first || time > self.clock.stamp(now).time {
            self.clock.follow(now, time);
        }
        self.advance(now);
    }

    /// Restores the registry from the copy of another master's, if there is one: this SM decides
    /// from now on. The copy may have been read back since it was stored.
    pub(super) fn begin_where_the_master_ended(&mut self, session: Session) {
        let stored = self.stored_session;
        let is_others = stored.epoch != 0 && stored.sm_guid != session.sm_guid;
        let (mut plane, outcomes) = match self.followed.take() {
            Some(plane) => (plane, std::mem::take(&mut self.followed_outcomes)),
            None if is_others && !self.store.is_shared() => {
                (self.registry.plane(), self.registry.granted_outcomes().into())
            }
            None => return,
        };
        plane.sequence += TAKEOVER_GAP;
        self.replace_registry(Registry::take_over(&plane, outcomes));
    }
}
