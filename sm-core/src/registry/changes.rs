//! Tables that record which rows changed, and the change sets for the store and the publisher.

use std::hash::{BuildHasher, Hash};
use std::ops::RangeBounds;
use std::sync::Arc;

use foldhash::fast::FixedState;
use sa_proto::snapshot::{self, Registered, RegistryChanges, Row, Rows};

use super::clock::Stamp;
use super::outcome::{Outcome, OutcomeKey};

/// Slots for the sequence numbers of changes, in each table.
const SLOTS: usize = 1 << 12;

/// A table, and the keys of rows that changed since changes were last taken.
#[derive(Debug)]
pub(super) struct Tracked<R: Row> {
    rows: Rows<R>,
    changes: snapshot::Changes<R>,
    /// Counts changes.
    version: u64,
    /// Sequence number of the change in progress.
    sequence: u64,
    /// Sequence number of the last change of a subject, by its hash. Subjects that share a slot
    /// have that of the later change.
    changed: Box<[u64]>,
}

impl<R: Registered> Default for Tracked<R> {
    fn default() -> Self {
        Self::restore(&Rows::default(), 0)
    }
}

impl<R: Registered> Tracked<R> {
    /// A table of `rows`, unchanged since sequence number `sequence`.
    pub(super) fn restore(rows: &Rows<R>, sequence: u64) -> Self {
        Self {
            rows: rows.clone(),
            changes: snapshot::Changes::<R>::new(),
            version: 0,
            sequence,
            changed: vec![sequence; SLOTS].into(),
        }
    }

    /// Changes from now on have this sequence number.
    pub(super) fn begin(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    /// Sequence number of the last change of a subject, or a later one.
    pub(super) fn changed_at(&self, subject: R::Subject) -> u64 {
        self.changed[slot(&subject)]
    }

    fn note(&mut self, subject: R::Subject) {
        self.changed[slot(&subject)] = self.sequence;
        self.version += 1;
    }

    /// The row with this key.
    pub(super) fn get(&self, key: R::Key) -> Option<&Arc<R>> {
        self.rows.find(key)
    }

    /// Adds a row or replaces the one with its key. An equal row changes nothing.
    pub(super) fn put(&mut self, row: R) {
        let Some(row) = self.rows.put(row) else { return };
        self.note(row.subject());
        self.changes.insert(row.key(), Some(row));
    }

    /// Removes the row with this key.
    pub(super) fn remove(&mut self, key: R::Key) -> Option<Arc<R>> {
        let row = self.rows.remove(key)?;
        self.changes.insert(key, None);
        self.note(row.subject());
        Some(row)
    }

    /// All rows, ascending by key.
    pub(super) fn rows(&self) -> &Rows<R> {
        &self.rows
    }

    /// Rows whose keys are in `range`, ascending by key.
    pub(super) fn range(&self, range: impl RangeBounds<R::Key>) -> snapshot::Iter<'_, R> {
        self.rows.range(range)
    }

    /// Rows that are new or have changed since changes were last taken.
    pub(super) fn changed(&self) -> impl Iterator<Item = &Arc<R>> {
        self.changes.values().flatten()
    }

    /// How many rows there are.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Increases with every change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changes(&mut self) -> snapshot::Changes<R> {
        std::mem::take(&mut self.changes)
    }
}

fn slot(subject: &impl Hash) -> usize {
    FixedState::default().hash_one(subject) as usize % SLOTS
}

/// Everything that changed since changes were last taken: one transaction of the
/// store; its rows also enter the next snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Rows, and the sequence number of the last change. A removed row may never have been stored.
    pub rows: RegistryChanges,
    /// Outcomes to be stored.
    pub outcomes_put: Vec<(OutcomeKey, Outcome)>,
    /// Outcomes older than this, in seconds of registry time, can be deleted.
    pub outcomes_since_s: u64,
    /// Registry time to be stored, if it is due.
    pub stamp: Option<Stamp>,
}

impl Changes {
    /// Whether nothing is to be stored.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.outcomes_put.is_empty()
    }
}
