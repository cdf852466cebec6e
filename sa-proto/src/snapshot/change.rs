//! Changes of one table: the part of a delta that is common to all kinds of rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::encoding::{Canonical, Malformed, Reader};
use super::row::{Patch, Row, Side, join, same};
use super::rows::Rows;
use super::sorted::{Sorted, keyed};
use super::tables::Table;

/// Each changed key with its new row; `None` if the row is removed.
pub type Changes<R> = BTreeMap<<R as Row>::Key, Option<Arc<R>>>;

/// A change patches a row that does not exist in this table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingRow(pub(super) Table);

/// The change of one row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change<R: Row> {
    /// Inserts or replaces the row.
    Put(Arc<R>),
    /// Changes a part of the row.
    Patch(R::Patch),
    /// Removes the row, if it exists.
    Remove,
}

impl<R: Row> Change<R> {
    /// The row after the change; `find` looks up the old row if the change is a patch.
    pub(super) fn row<'a>(
        &'a self,
        find: impl FnOnce() -> Option<&'a Arc<R>>,
    ) -> Option<&'a Arc<R>> {
        match self {
            Self::Put(row) => Some(row),
            Self::Patch(_) => find(),
            Self::Remove => None,
        }
    }
}

/// The changed rows of one table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TableDelta<R: Row> {
    /// Ascending by key, without duplicates.
    changes: Vec<(R::Key, Change<R>)>,
}

impl<R: Row> Default for TableDelta<R> {
    fn default() -> Self {
        Self { changes: Vec::new() }
    }
}

impl<R: Row> TableDelta<R> {
    /// The changes from `old` to `new`.
    pub(super) fn between<T: Sorted<R>>(old: &T, new: &T) -> Self {
        if old.is_same(new) {
            return Self::default();
        }
        let changes = join(keyed(old), keyed(new)).filter_map(|(key, side)| {
            let change = match side {
                Side::Left(_) => Change::Remove,
                Side::Right(row) => Change::Put(row.clone()),
                Side::Both(old, new) if same(old, new) => return None,
                Side::Both(old, new) => match R::Patch::between(old, new) {
                    Some(patch) => Change::Patch(patch),
                    None => Change::Put(new.clone()),
                },
            };
            Some((key, change))
        });
        Self { changes: changes.collect() }
    }

    /// The delta of these changes.
    pub(super) fn of(changes: &Changes<R>) -> Self {
        let change = |row: &Option<Arc<R>>| match row {
            Some(row) => Change::Put(row.clone()),
            None => Change::Remove,
        };
        Self { changes: changes.iter().map(|(&key, row)| (key, change(row))).collect() }
    }

    /// The table after the changes, in time proportional to their number.
    fn apply_in_place(&self, old: &Rows<R>) -> Result<Rows<R>, MissingRow> {
        let mut new = old.clone();
        for (key, change) in &self.changes {
            match change {
                Change::Put(row) => {
                    new.insert(row.clone());
                }
                Change::Patch(patch) => {
                    let row = old.find(*key).ok_or(MissingRow(R::TABLE))?;
                    new.insert(Arc::new(patch.apply(row)));
                }
                // An insertion merged with a removal is the removal of an absent row.
                Change::Remove => {
                    new.remove(*key);
                }
            }
        }
        Ok(new)
    }

    /// The table after the changes.
    fn apply(&self, old: &Vec<Arc<R>>) -> Result<Vec<Arc<R>>, MissingRow> {
        if self.changes.is_empty() {
            return Ok(old.clone());
        }
        let mut new = Vec::with_capacity(old.len() + self.changes.len());
        for (_, side) in join(keyed(old), self.by_key()) {
            match side {
                Side::Left(row) => new.push(row.clone()),
                Side::Right(Change::Put(row)) | Side::Both(_, Change::Put(row)) => {
                    new.push(row.clone());
                }
                Side::Both(row, Change::Patch(patch)) => new.push(Arc::new(patch.apply(row))),
                Side::Right(Change::Patch(_)) => {
                    return Err(MissingRow(R::TABLE));
                }
                // An insertion merged with a removal is the removal of an absent row.
                Side::Right(Change::Remove) | Side::Both(_, Change::Remove) => {}
            }
        }
        Ok(new)
    }

    /// The rows of `new`, the result of applying these changes to `old`. Unchanged rows share
    /// their allocation with `old`.
    pub(super) fn share(&self, old: &Vec<Arc<R>>, new: &Vec<Arc<R>>) -> Vec<Arc<R>> {
        let mut changed = self.by_key().map(|(key, _)| key).peekable();
        let rows = join(keyed(old), keyed(new)).filter_map(|(key, side)| match side {
            Side::Left(_) => None,
            Side::Right(row) => Some(row),
            Side::Both(old, new) => {
                while changed.next_if(|&changed| changed < key).is_some() {}
                Some(if changed.peek() == Some(&key) { new } else { old })
            }
        });
        rows.cloned().collect()
    }

    /// A single delta with the effect of `self` followed by `later`.
    pub(super) fn merge(&self, later: &Self) -> Result<Self, MissingRow> {
        let changes = join(self.by_key(), later.by_key()).map(|(key, side)| {
            let change = match side {
                Side::Left(change) | Side::Right(change) => change.clone(),
                Side::Both(Change::Patch(first), Change::Patch(second)) => {
                    Change::Patch(first.merge(second))
                }
                Side::Both(Change::Put(row), Change::Patch(patch)) => {
                    Change::Put(Arc::new(patch.apply(row)))
                }
                Side::Both(Change::Remove, Change::Patch(_)) => {
                    return Err(MissingRow(R::TABLE));
                }
                Side::Both(_, change @ (Change::Put(_) | Change::Remove)) => change.clone(),
            };
            Ok((key, change))
        });
        Ok(Self { changes: changes.collect::<Result<_, _>>()? })
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// The changes, ascending by key.
    pub(super) fn by_key(&self) -> impl Iterator<Item = (R::Key, &Change<R>)> {
        self.changes.iter().map(|(key, change)| (*key, change))
    }

    /// Encoded size of the changes in bytes.
    pub(super) fn encoded_len(&self) -> usize {
        let mut scratch = Vec::new();
        let len = |index| {
            scratch.clear();
            self.put(index, &mut scratch);
            scratch.len()
        };
        (0..self.len()).map(len).sum()
    }

    /// Appends the change at `index`, as [`push_encoded`](Self::push_encoded) reads it.
    pub(super) fn put(&self, index: usize, out: &mut Vec<u8>) {
        let (key, change) = &self.changes[index];
        match change {
            Change::Put(row) => {
                out.push(kind::PUT);
                row.put(out);
            }
            Change::Patch(patch) => {
                out.push(kind::PATCH);
                key.put(out);
                patch.put(out);
            }
            Change::Remove => {
                out.push(kind::REMOVE);
                key.put(out);
            }
        }
    }

    /// Decodes one change and appends it; its key must be greater than those before.
    pub(super) fn push_encoded(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut input = Reader::new(bytes);
        let (key, change) = match u8::take(&mut input)? {
            kind::PUT => {
                let row = R::take(&mut input)?;
                (row.key(), Change::Put(Arc::new(row)))
            }
            kind::PATCH => (R::Key::take(&mut input)?, Change::Patch(R::Patch::take(&mut input)?)),
            kind::REMOVE => (R::Key::take(&mut input)?, Change::Remove),
            _ => return Err(Malformed("unknown kind of change")),
        };
        input.finish()?;
        if self.changes.last().is_some_and(|(last, _)| *last >= key) {
            return Err(Malformed("changes out of order"));
        }
        self.changes.push((key, change));
        Ok(())
    }
}

/// A table that changes can be applied to.
pub(super) trait Changeable<R: Row>: Sorted<R> {
    /// The table after `delta`.
    fn changed(&self, delta: &TableDelta<R>) -> Result<Self, MissingRow>;
}

impl<R: Row> Changeable<R> for Vec<Arc<R>> {
    fn changed(&self, delta: &TableDelta<R>) -> Result<Self, MissingRow> {
        delta.apply(self)
    }
}

impl<R: Row> Changeable<R> for Rows<R> {
    fn changed(&self, delta: &TableDelta<R>) -> Result<Self, MissingRow> {
        delta.apply_in_place(self)
    }
}

/// First byte of an encoded change.
mod kind {
    pub(super) const PUT: u8 = 0;
    pub(super) const PATCH: u8 = 1;
    pub(super) const REMOVE: u8 = 2;
}
