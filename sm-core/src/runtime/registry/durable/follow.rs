//! What another registry has: the rows to begin with, or to keep while its SM is the master.

use sa_proto::snapshot::{RegistryChanges, RegistryPlane};
use tracing::error;

use super::super::store::Stored;
use super::DurableRegistry;
use crate::registry::{Changes, Registry};

impl DurableRegistry {
    /// Begins with these rows, if they can be stored; whether it does.
    pub(in super::super) fn begin_with(&mut self, now_s: u64, mut plane: RegistryPlane) -> bool {
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
    pub(in super::super) fn follow(&mut self, now_s: u64, plane: &RegistryPlane) -> bool {
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

    /// Makes the registry what was followed, if anything was: we decide from now on.
    pub(super) fn begin_where_the_master_ended(&mut self) {
        if let Some(plane) = self.followed.take() {
            self.replace_registry(Registry::restore(&plane, []));
        }
    }
}
