//! Tables that record which rows changed, and the change sets for the store and the publisher.

use std::ops::RangeBounds;
use std::sync::Arc;

use sa_proto::snapshot::{self, RegistryChanges, Row, Rows};

use super::outcome::{Outcome, OutcomeKey};

/// A table, and the keys of rows that changed since changes were last taken.
#[derive(Debug)]
pub(super) struct Tracked<R: Row> {
    rows: Rows<R>,
    changes: snapshot::Changes<R>,
    /// Counts changes.
    version: u64,
}

impl<R: Row> Default for Tracked<R> {
    fn default() -> Self {
        Self::restore(&Rows::default())
    }
}

impl<R: Row> Tracked<R> {
    /// A table of `rows`, unchanged.
    pub(super) fn restore(rows: &Rows<R>) -> Self {
        Self { rows: rows.clone(), changes: snapshot::Changes::<R>::new(), version: 0 }
    }

    /// The row with this key.
    pub(super) fn get(&self, key: R::Key) -> Option<&Arc<R>> {
        self.rows.find(key)
    }

    /// Adds a row or replaces the one with its key. An equal row changes nothing.
    pub(super) fn put(&mut self, row: R) {
        let key = row.key();
        if self.get(key).is_some_and(|old| **old == row) {
            return;
        }
        let row = Arc::new(row);
        self.rows.insert(row.clone());
        self.changes.insert(key, Some(row));
        self.version += 1;
    }

    /// Removes the row with this key.
    pub(super) fn remove(&mut self, key: R::Key) -> Option<Arc<R>> {
        let row = self.rows.remove(key)?;
        self.changes.insert(key, None);
        self.version += 1;
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

/// Everything that changed since changes were last taken: one transaction of the
/// store; its rows also enter the next snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Rows, and the sequence number of the last change. A removed row may never have been stored.
    pub rows: RegistryChanges,
    /// Outcomes to be stored.
    pub outcomes_put: Vec<(OutcomeKey, Outcome)>,
    /// Outcomes older than this, in seconds since 1970, can be deleted.
    pub outcomes_since_s: u64,
}

impl Changes {
    /// Whether nothing is to be stored.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.outcomes_put.is_empty()
    }
}
