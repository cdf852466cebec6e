//! Rows with a memory of what changed, and the changes as the store and the publisher take them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;
use std::sync::Arc;

use sa_proto::snapshot::{
    self, AliasGuid, MulticastGroup, MulticastMember, Row, Service, Subscription,
};

use super::outcome::{Outcome, OutcomeKey};

/// A table: rows by key, and the keys whose rows are not as they were when changes were last
/// taken.
#[derive(Debug)]
pub(super) struct Rows<R: Row> {
    rows: BTreeMap<R::Key, Arc<R>>,
    changed: BTreeSet<R::Key>,
    /// Counts changes.
    version: u64,
}

impl<R: Row> Default for Rows<R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), changed: BTreeSet::new(), version: 0 }
    }
}

impl<R: Row> Rows<R> {
    /// A table of `rows`, unchanged.
    pub(super) fn restore(rows: &snapshot::Rows<R>) -> Self {
        let rows = rows.iter().map(|row| (row.key(), row.clone())).collect();
        Self { rows, ..Self::default() }
    }

    /// The row with this key.
    pub(super) fn get(&self, key: &R::Key) -> Option<&Arc<R>> {
        self.rows.get(key)
    }

    /// Whether there is a row with this key.
    pub(super) fn contains(&self, key: &R::Key) -> bool {
        self.rows.contains_key(key)
    }

    /// Adds a row or replaces the one with its key. An equal row changes nothing.
    pub(super) fn put(&mut self, row: R) {
        let key = row.key();
        if self.rows.get(&key).is_some_and(|old| **old == row) {
            return;
        }
        self.rows.insert(key, Arc::new(row));
        self.touch(key);
    }

    /// Takes out the row with this key.
    pub(super) fn remove(&mut self, key: &R::Key) -> Option<Arc<R>> {
        let row = self.rows.remove(key)?;
        self.touch(*key);
        Some(row)
    }

    /// Rows in the order of their keys.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<R>> {
        self.rows.values()
    }

    /// Rows whose keys are in `range`, in order.
    pub(super) fn range(
        &self,
        range: impl RangeBounds<R::Key>,
    ) -> impl DoubleEndedIterator<Item = &Arc<R>> {
        self.rows.range(range).map(|(_, row)| row)
    }

    /// Rows there are.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Moves with every change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// All rows, as a snapshot has them.
    pub(super) fn to_rows(&self) -> snapshot::Rows<R> {
        self.rows.values().cloned().collect()
    }

    /// What changed since this was last asked.
    pub(super) fn take_changes(&mut self) -> RowChanges<R> {
        let mut changes = RowChanges::default();
        for key in std::mem::take(&mut self.changed) {
            match self.rows.get(&key) {
                Some(row) => changes.put.push(row.clone()),
                None => changes.removed.push(key),
            }
        }
        changes
    }

    fn touch(&mut self, key: R::Key) {
        self.changed.insert(key);
        self.version += 1;
    }
}

/// Changes of one table. Taking them twice does no harm.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChanges<R: Row> {
    /// Rows that are new or have changed, ascending by key.
    pub put: Vec<Arc<R>>,
    /// Keys of rows that are there no more, ascending. Some may never have been seen outside.
    pub removed: Vec<R::Key>,
}

impl<R: Row> Default for RowChanges<R> {
    fn default() -> Self {
        Self { put: Vec::new(), removed: Vec::new() }
    }
}

impl<R: Row> RowChanges<R> {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.removed.is_empty()
    }

    /// Makes the changes to `rows`, ascending by key: in proportion to the changes where rows are
    /// replaced, to the table where some come or go.
    pub fn apply(&self, rows: &mut Vec<Arc<R>>) {
        let mut added = Vec::new();
        for row in &self.put {
            match rows.binary_search_by_key(&row.key(), |row| row.key()) {
                Ok(at) => rows[at] = row.clone(),
                Err(_) => added.push(row.clone()),
            }
        }
        if !self.removed.is_empty() {
            rows.retain(|row| self.removed.binary_search(&row.key()).is_err());
        }
        if !added.is_empty() {
            rows.extend(added);
            rows.sort_by_key(|row| row.key());
        }
    }
}

/// Everything that changed since changes were last taken: what goes into one transaction of the
/// store, and into the next snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Sequence number of the last change.
    pub sequence: u64,
    /// Multicast groups.
    pub groups: RowChanges<MulticastGroup>,
    /// Members of groups.
    pub members: RowChanges<MulticastMember>,
    /// Services.
    pub services: RowChanges<Service>,
    /// Event subscriptions.
    pub subscriptions: RowChanges<Subscription>,
    /// Alias GUIDs.
    pub alias_guids: RowChanges<AliasGuid>,
    /// Outcomes to be remembered; for the store only.
    pub outcomes_put: Vec<(OutcomeKey, Arc<Outcome>)>,
    /// Outcomes to be forgotten; for the store only. Some may never have been seen outside.
    pub outcomes_removed: Vec<OutcomeKey>,
}

impl Changes {
    /// Whether nothing is to be stored.
    pub fn is_empty(&self) -> bool {
        self.rows_are_unchanged()
            && self.outcomes_put.is_empty()
            && self.outcomes_removed.is_empty()
    }

    /// Whether nothing is to be published.
    pub fn rows_are_unchanged(&self) -> bool {
        self.groups.is_empty()
            && self.members.is_empty()
            && self.services.is_empty()
            && self.subscriptions.is_empty()
            && self.alias_guids.is_empty()
    }
}
