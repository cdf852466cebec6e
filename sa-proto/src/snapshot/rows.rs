//! Sorted tables of shared rows in which a small change copies little.
//!
//! A registry may hold hundreds of thousands of rows, and every write creates a new snapshot of it.
//! [`Rows`] is a tree of three levels whose parts snapshots share: a clone costs nothing, and
//! inserting or removing a row copies one leaf and the lists of children above it. Keys are stored
//! next to the rows, so that a search reads only the row it finds.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::row::{Row, Side, join, same};

/// Limit of rows per leaf.
const LEAF_MAX: usize = 96;
/// Limit of leaves per branch. The number of branches is unlimited.
const BRANCH_MAX: usize = 64;

/// Rows ascending by key, without duplicates.
pub struct Rows<R: Row> {
    branches: Arc<Vec<Branch<R>>>,
    len: usize,
}

struct Branch<R: Row> {
    /// Lower bound of the branch's keys, above all keys of the branch before; the first branch
    /// holds all lower keys too.
    first: R::Key,
    leaves: Arc<Vec<Leaf<R>>>,
    /// Number of rows in all leaves.
    len: usize,
}

struct Leaf<R: Row> {
    /// As in a branch.
    first: R::Key,
    rows: Arc<Vec<(R::Key, Arc<R>)>>,
}

/// Where a row is, or belongs: indices of branch, leaf and row.
#[derive(Clone, Copy)]
struct Place {
    branch: usize,
    leaf: usize,
    row: usize,
}

impl<R: Row> Rows<R> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether two tables share their memory, and are therefore equal.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.branches, &other.branches)
    }

    /// The row with this key.
    pub fn find(&self, key: R::Key) -> Option<&Arc<R>> {
        self.at(&self.place(&key).ok()?)
    }

    /// Where the row with this key is; otherwise where it would be inserted.
    fn place(&self, key: &R::Key) -> Result<Place, Place> {
        let branch = child(&self.branches, |branch| &branch.first, key);
        let Some(leaves) = self.branches.get(branch).map(|branch| &branch.leaves) else {
            return Err(Place { branch, leaf: 0, row: 0 });
        };
        let leaf = child(leaves, |leaf| &leaf.first, key);
        match leaves[leaf].rows.binary_search_by(|(other, _)| other.cmp(key)) {
            Ok(row) => Ok(Place { branch, leaf, row }),
            Err(row) => Err(Place { branch, leaf, row }),
        }
    }

    fn at(&self, place: &Place) -> Option<&Arc<R>> {
        let leaf = self.branches.get(place.branch)?.leaves.get(place.leaf)?;
        Some(&leaf.rows.get(place.row)?.1)
    }

    /// The row at a position, from 0.
    pub fn get(&self, mut index: usize) -> Option<&Arc<R>> {
        for branch in self.branches.iter() {
            if index >= branch.len {
                index -= branch.len;
                continue;
            }
            for leaf in branch.leaves.iter() {
                match leaf.rows.get(index) {
                    Some((_, row)) => return Some(row),
                    None => index -= leaf.rows.len(),
                }
            }
        }
        None
    }

    /// All rows, ascending by key.
    pub fn iter(&self) -> Iter<'_, R> {
        self.range(..)
    }

    /// The rows whose keys are in `range`, ascending by key.
    pub fn range(&self, range: impl RangeBounds<R::Key>) -> Iter<'_, R> {
        let start = range.start_bound().cloned();
        let (branches, leaves, rows) = self.seek(start);
        Iter { branches, leaves, rows, end: range.end_bound().cloned() }
    }

    /// The remainder after the start of a range: rows of its leaf, leaves of its branch, branches.
    #[allow(clippy::type_complexity, reason = "three slices, taken apart at once")]
    fn seek(&self, start: Bound<R::Key>) -> (&[Branch<R>], &[Leaf<R>], &[(R::Key, Arc<R>)]) {
        let (Bound::Included(key) | Bound::Excluded(key)) = start else {
            return (&self.branches, &[], &[]);
        };
        let at = child(&self.branches, |branch| &branch.first, &key);
        let Some(branch) = self.branches.get(at) else { return (&[], &[], &[]) };
        let branches = &self.branches[at + 1..];
        let at = child(&branch.leaves, |leaf| &leaf.first, &key);
        let Some(leaf) = branch.leaves.get(at) else { return (branches, &[], &[]) };
        let skip = leaf.rows.partition_point(|row| match start {
            Bound::Excluded(key) => row.0 <= key,
            _ => row.0 < key,
        });
        (branches, &branch.leaves[at + 1..], &leaf.rows[skip..])
    }

    /// The rows that differ from those of an older table, old and new, ascending by key. Compares
    /// only branches that are not shared, and in these only leaves that are not shared.
    pub fn differences<'a>(
        &'a self,
        older: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a Arc<R>>, Option<&'a Arc<R>>)> {
        let (left, right) = unshared(older, self);
        let rows = |leaves: Vec<&'a Leaf<R>>| {
            leaves.into_iter().flat_map(|leaf| leaf.rows.iter().map(|(key, row)| (*key, row)))
        };
        join(rows(left), rows(right)).filter_map(|(_, side)| match side {
            Side::Left(old) => Some((Some(old), None)),
            Side::Right(new) => Some((None, Some(new))),
            Side::Both(old, new) if same(old, new) => None,
            Side::Both(old, new) => Some((Some(old), Some(new))),
        })
    }

    /// Inserts a row; returns the row that had its key before.
    pub fn insert(&mut self, row: Arc<R>) -> Option<Arc<R>> {
        let key = row.key();
        let place = self.place(&key);
        self.insert_at(place, key, row)
    }

    /// Inserts a row or replaces the one with its key, and returns it; `None` if an equal one was
    /// there, which stays. The table is searched once.
    pub fn put(&mut self, row: R) -> Option<Arc<R>> {
        let key = row.key();
        let place = self.place(&key);
        let old = place.as_ref().ok().and_then(|place| self.at(place));
        if old.is_some_and(|old| **old == row) {
            return None;
        }
        let row = Arc::new(row);
        self.insert_at(place, key, row.clone());
        Some(row)
    }

    /// Inserts a row at the place of its key.
    fn insert_at(
        &mut self,
        place: Result<Place, Place>,
        key: R::Key,
        row: Arc<R>,
    ) -> Option<Arc<R>> {
        let branches = Arc::make_mut(&mut self.branches);
        if branches.is_empty() {
            let leaf = Leaf { first: key, rows: Arc::new(vec![(key, row)]) };
            branches.push(Branch { first: key, leaves: Arc::new(vec![leaf]), len: 1 });
            self.len = 1;
            return None;
        }
        let (Ok(Place { branch: of, leaf: at, row: within })
        | Err(Place { branch: of, leaf: at, row: within })) = place;
        let branch = &mut branches[of];
        let leaves = Arc::make_mut(&mut branch.leaves);
        let rows = Arc::make_mut(&mut leaves[at].rows);
        if place.is_ok() {
            return Some(std::mem::replace(&mut rows[within].1, row));
        }
        rows.insert(within, (key, row));
        branch.len += 1;
        self.len += 1;
        if let Some(rest) = overflow(rows, LEAF_MAX) {
            leaves.insert(at + 1, Leaf { first: rest[0].0, rows: Arc::new(rest) });
            if let Some(rest) = overflow(leaves, BRANCH_MAX) {
                let next = Branch::new(rest);
                branch.len -= next.len;
                branches.insert(of + 1, next);
            }
        }
        None
    }

    /// Removes the row with this key.
    pub fn remove(&mut self, key: R::Key) -> Option<Arc<R>> {
        let Place { branch: of, leaf: at, row: within } = self.place(&key).ok()?;
        let branches = Arc::make_mut(&mut self.branches);
        let branch = &mut branches[of];
        let leaves = Arc::make_mut(&mut branch.leaves);
        let rows = Arc::make_mut(&mut leaves[at].rows);
        let (_, row) = rows.remove(within);
        branch.len -= 1;
        self.len -= 1;
        if let Some(into) = partner(at, LEAF_MAX, leaves.len(), |at| leaves[at].rows.len()) {
            let rest = leaves.remove(into + 1);
            Arc::make_mut(&mut leaves[into].rows).extend(rest.rows.iter().cloned());
        } else if leaves[at].rows.is_empty() {
            leaves.remove(at);
        }
        if let Some(into) = partner(of, BRANCH_MAX, branches.len(), |of| branches[of].leaves.len())
        {
            let rest = branches.remove(into + 1);
            Arc::make_mut(&mut branches[into].leaves).extend(rest.leaves.iter().cloned());
            branches[into].len += rest.len;
        } else if branches[of].leaves.is_empty() {
            branches.remove(of);
        }
        Some(row)
    }
}

impl<R: Row> Branch<R> {
    /// A branch of these leaves, at least one.
    fn new(leaves: Vec<Leaf<R>>) -> Self {
        let len = leaves.iter().map(|leaf| leaf.rows.len()).sum();
        Self { first: leaves[0].first, leaves: Arc::new(leaves), len }
    }
}

/// The leaves of two tables that are not shared.
fn unshared<'a, R: Row>(a: &'a Rows<R>, b: &'a Rows<R>) -> (Vec<&'a Leaf<R>>, Vec<&'a Leaf<R>>) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    if a.is_same(b) {
        return (left, right);
    }
    let (in_a, in_b) = unshared_branches(a, b);
    let with_first = |branches: Vec<&'a Branch<R>>| {
        let leaves = branches.into_iter().flat_map(|branch| branch.leaves.iter());
        leaves.map(|leaf| (leaf.first, leaf))
    };
    // A shared leaf starts with the same key in both.
    for (_, side) in join(with_first(in_a), with_first(in_b)) {
        match side {
            Side::Left(leaf) => left.push(leaf),
            Side::Right(leaf) => right.push(leaf),
            Side::Both(one, other) if Arc::ptr_eq(&one.rows, &other.rows) => {}
            Side::Both(one, other) => {
                left.push(one);
                right.push(other);
            }
        }
    }
    (left, right)
}

/// The branches of two tables that are not shared.
fn unshared_branches<'a, R: Row>(
    a: &'a Rows<R>,
    b: &'a Rows<R>,
) -> (Vec<&'a Branch<R>>, Vec<&'a Branch<R>>) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let with_first = |rows: &'a Rows<R>| rows.branches.iter().map(|branch| (branch.first, branch));
    for (_, side) in join(with_first(a), with_first(b)) {
        match side {
            Side::Left(branch) => left.push(branch),
            Side::Right(branch) => right.push(branch),
            Side::Both(one, other) if Arc::ptr_eq(&one.leaves, &other.leaves) => {}
            Side::Both(one, other) => {
                left.push(one);
                right.push(other);
            }
        }
    }
    (left, right)
}

/// Index of the child for a key.
fn child<T, K: Ord>(children: &[T], first: impl Fn(&T) -> &K, key: &K) -> usize {
    children.partition_point(|child| first(child).cmp(key).is_le()).saturating_sub(1)
}

/// Splits off the upper half of a list that is too long.
fn overflow<T>(items: &mut Vec<T>, max: usize) -> Option<Vec<T>> {
    (items.len() > max).then(|| items.split_off(items.len() / 2))
}

/// Which of two neighbours, that at `at` among them, the other is merged into, if together they are
/// at most half full.
fn partner(at: usize, max: usize, count: usize, len: impl Fn(usize) -> usize) -> Option<usize> {
    let fits = |first: usize| first + 1 < count && len(first) + len(first + 1) <= max / 2;
    if at >= count || len(at) > max / 4 {
        return None;
    }
    at.checked_sub(1).filter(|&first| fits(first)).or_else(|| fits(at).then_some(at))
}

/// Rows of a table, ascending by key.
pub struct Iter<'a, R: Row> {
    branches: &'a [Branch<R>],
    leaves: &'a [Leaf<R>],
    rows: &'a [(R::Key, Arc<R>)],
    end: Bound<R::Key>,
}

impl<'a, R: Row> Iterator for Iter<'a, R> {
    type Item = &'a Arc<R>;

    fn next(&mut self) -> Option<&'a Arc<R>> {
        loop {
            if let Some(((key, row), rest)) = self.rows.split_first() {
                let within = match &self.end {
                    Bound::Unbounded => true,
                    Bound::Included(end) => key <= end,
                    Bound::Excluded(end) => key < end,
                };
                if !within {
                    (self.branches, self.leaves, self.rows) = (&[], &[], &[]);
                    return None;
                }
                self.rows = rest;
                return Some(row);
            }
            if let Some((leaf, rest)) = self.leaves.split_first() {
                (self.rows, self.leaves) = (&leaf.rows, rest);
            } else {
                let (branch, rest) = self.branches.split_first()?;
                (self.leaves, self.branches) = (&branch.leaves, rest);
            }
        }
    }
}

impl<R: Row> FusedIterator for Iter<'_, R> {}

impl<'a, R: Row> IntoIterator for &'a Rows<R> {
    type Item = &'a Arc<R>;
    type IntoIter = Iter<'a, R>;

    fn into_iter(self) -> Iter<'a, R> {
        self.iter()
    }
}

/// Collects rows in any order; of rows with the same key the last one counts.
impl<R: Row> FromIterator<Arc<R>> for Rows<R> {
    fn from_iter<I: IntoIterator<Item = Arc<R>>>(rows: I) -> Self {
        let mut rows: Vec<_> = rows.into_iter().map(|row| (row.key(), row)).collect();
        if !rows.is_sorted_by(|a, b| a.0 < b.0) {
            rows.sort_by_key(|row| row.0);
            // If keys are equal, the later row is kept.
            rows.reverse();
            rows.dedup_by_key(|row| row.0);
            rows.reverse();
        }
        let len = rows.len();
        let mut rows = rows.into_iter();
        let leaves = std::iter::from_fn(|| {
            // Leave room for rows inserted later.
            let rows: Vec<_> = rows.by_ref().take(LEAF_MAX * 3 / 4).collect();
            Some(Leaf { first: rows.first()?.0, rows: Arc::new(rows) })
        });
        let mut leaves = leaves.fuse();
        let branches = std::iter::from_fn(|| {
            let leaves: Vec<_> = leaves.by_ref().take(BRANCH_MAX * 3 / 4).collect();
            (!leaves.is_empty()).then(|| Branch::new(leaves))
        });
        Self { branches: Arc::new(branches.collect()), len }
    }
}

impl<R: Row> From<Vec<Arc<R>>> for Rows<R> {
    fn from(rows: Vec<Arc<R>>) -> Self {
        rows.into_iter().collect()
    }
}

impl<R: Row> Default for Rows<R> {
    fn default() -> Self {
        Self { branches: Arc::default(), len: 0 }
    }
}

impl<R: Row> Clone for Rows<R> {
    fn clone(&self) -> Self {
        Self { branches: self.branches.clone(), len: self.len }
    }
}

impl<R: Row> Clone for Branch<R> {
    fn clone(&self) -> Self {
        Self { first: self.first, leaves: self.leaves.clone(), len: self.len }
    }
}

impl<R: Row> Clone for Leaf<R> {
    fn clone(&self) -> Self {
        Self { first: self.first, rows: self.rows.clone() }
    }
}

impl<R: Row> PartialEq for Rows<R> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.differences(other).next().is_none()
    }
}

impl<R: Row + Eq> Eq for Rows<R> {}

impl<R: Row> fmt::Debug for Rows<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

#[cfg(test)]
mod tests;
