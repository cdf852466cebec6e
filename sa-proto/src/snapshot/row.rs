//! Rows: their keys, tables and partial changes, and sorted sequences of rows.
//!
//! Snapshots share rows by `Arc`: an unchanged row is the same allocation in both. Tables of rows
//! are in `sorted`.

use std::fmt::Debug;
use std::sync::Arc;

use super::blocks::{BlockReader, BlockWriter};
use super::encoding::{Canonical, Malformed, Reader};
use super::tables::Table;

/// A row of a table.
pub trait Row: Canonical + Clone + PartialEq + Debug + Send + Sync + 'static {
    /// The key by which the table is sorted.
    type Key: Canonical + Copy + Ord + Debug + Send + Sync + 'static;
    /// A change of a part of a row; [`NoPatch`] for rows that are always replaced.
    type Patch: Patch<Self>;
    /// The table of these rows.
    const TABLE: Table;
    /// This row's key.
    fn key(&self) -> Self::Key;

    /// Appends the encoding for a transfer in which rows share parts with earlier ones.
    fn put_sharing(&self, _blocks: &mut BlockWriter, out: &mut Vec<u8>) {
        self.put(out);
    }
    /// Reads what [`put_sharing`](Self::put_sharing) wrote.
    fn take_sharing(_blocks: &mut BlockReader, input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::take(input)
    }
}

/// A change of a part of a row of type `R`.
pub trait Patch<R>: Canonical + Clone + PartialEq + Debug + Send + Sync {
    /// The change from `old` to `new`, if it is smaller than `new`.
    fn between(old: &R, new: &R) -> Option<Self>;
    /// The changed row.
    fn apply(&self, row: &R) -> R;
    /// A single change with the effect of `self` followed by `later`.
    fn merge(&self, later: &Self) -> Self;
}

/// The patch type of rows that are always replaced: it has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPatch {}

impl Canonical for NoPatch {
    fn put(&self, _out: &mut Vec<u8>) {
        match *self {}
    }
    fn take(_input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Err(Malformed("a patch of a row that is only replaced"))
    }
}

impl<R> Patch<R> for NoPatch {
    fn between(_old: &R, _new: &R) -> Option<Self> {
        None
    }
    fn apply(&self, _row: &R) -> R {
        match *self {}
    }
    fn merge(&self, _later: &Self) -> Self {
        match *self {}
    }
}

/// The row with this key.
pub fn find<R: Row>(rows: &[Arc<R>], key: R::Key) -> Option<&Arc<R>> {
    rows.binary_search_by(|row| row.key().cmp(&key)).ok().map(|at| &rows[at])
}

/// Sorts by key and returns the first key that occurs twice.
pub(super) fn sort<R: Row>(rows: &mut [Arc<R>]) -> Option<R::Key> {
    if !rows.is_sorted_by_key(|row| row.key()) {
        rows.sort_by_key(|row| row.key());
    }
    rows.windows(2).find(|pair| pair[0].key() == pair[1].key()).map(|pair| pair[0].key())
}

/// Result for a key: present in one of two sorted sequences, or in both.
#[derive(Debug)]
pub(super) enum Side<A, B> {
    Left(A),
    Right(B),
    Both(A, B),
}

/// Iterates over two sequences sorted by key in parallel.
pub(super) fn join<K: Ord, A, B>(
    left: impl IntoIterator<Item = (K, A)>,
    right: impl IntoIterator<Item = (K, B)>,
) -> impl Iterator<Item = (K, Side<A, B>)> {
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    std::iter::from_fn(move || {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let order = match (left.peek(), right.peek()) {
            (Some((a, _)), Some((b, _))) => a.cmp(b),
            (Some(_), None) => Less,
            (None, _) => Greater,
        };
        match order {
            Less => left.next().map(|(key, a)| (key, Side::Left(a))),
            Greater => right.next().map(|(key, b)| (key, Side::Right(b))),
            Equal => match (left.next(), right.next()) {
                (Some((key, a)), Some((_, b))) => Some((key, Side::Both(a, b))),
                _ => None,
            },
        }
    })
}

/// Whether two rows are equal; rows with the same allocation are, without comparison.
pub(super) fn same<R: Row>(a: &Arc<R>, b: &Arc<R>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_yields_every_key_once_and_in_order() {
        let left = [(1, 'a'), (2, 'b'), (5, 'c')];
        let right = [(2, 'x'), (3, 'y'), (5, 'z'), (6, 'w')];
        let seen: Vec<_> = join(left, right).collect();
        let keys: Vec<_> = seen.iter().map(|&(key, _)| key).collect();
        assert_eq!(keys, [1, 2, 3, 5, 6]);
        assert!(matches!(seen[1].1, Side::Both('b', 'x')));
        assert!(matches!(seen[2].1, Side::Right('y')));
        assert!(matches!(seen[0].1, Side::Left('a')));
    }
}
