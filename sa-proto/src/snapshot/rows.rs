//! Sorted tables of shared rows that a small change leaves mostly as they were.
//!
//! A registry may hold hundreds of thousands of rows, and every write makes a new snapshot of it.
//! [`Rows`] is a tree of three levels whose parts snapshots share: a clone costs nothing, and
//! putting or removing a row copies one leaf and the lists of children above it. Keys lie beside
//! the rows, so that a search touches no row but the one it finds.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::row::{Row, Side, join, same};

/// Rows of a leaf, at most.
const LEAF_MAX: usize = 96;
/// Leaves of a branch, at most. The root has as many branches as there are.
const BRANCH_MAX: usize = 64;

/// Rows ascending by key, each key once.
pub struct Rows<R: Row> {
    branches: Arc<Vec<Branch<R>>>,
    len: usize,
}

struct Branch<R: Row> {
    /// No key of the branch is below, and none of the branch before is not; the first branch takes
    /// all that is below.
    first: R::Key,
    leaves: Arc<Vec<Leaf<R>>>,
    /// Rows in all leaves.
    len: usize,
}

struct Leaf<R: Row> {
    /// As in a branch.
    first: R::Key,
    rows: Arc<Vec<(R::Key, Arc<R>)>>,
}

impl<R: Row> Rows<R> {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether two tables are the same memory, hence equal.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.branches, &other.branches)
    }

    /// The row with this key.
    pub fn find(&self, key: R::Key) -> Option<&Arc<R>> {
        let branch = self.branches.get(child(&self.branches, |branch| branch.first, &key))?;
        let leaf = branch.leaves.get(child(&branch.leaves, |leaf| leaf.first, &key))?;
        let at = leaf.rows.binary_search_by_key(&key, |row| row.0).ok()?;
        Some(&leaf.rows[at].1)
    }

    /// The row at a position, counted from 0.
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

    /// What follows the start of a range: rows of its leaf, leaves of its branch, branches.
    #[allow(clippy::type_complexity, reason = "three slices, taken apart at once")]
    fn seek(&self, start: Bound<R::Key>) -> (&[Branch<R>], &[Leaf<R>], &[(R::Key, Arc<R>)]) {
        let (Bound::Included(key) | Bound::Excluded(key)) = start else {
            return (&self.branches, &[], &[]);
        };
        let at = child(&self.branches, |branch| branch.first, &key);
        let Some(branch) = self.branches.get(at) else { return (&[], &[], &[]) };
        let branches = &self.branches[at + 1..];
        let at = child(&branch.leaves, |leaf| leaf.first, &key);
        let Some(leaf) = branch.leaves.get(at) else { return (branches, &[], &[]) };
        let skip = leaf.rows.partition_point(|row| match start {
            Bound::Excluded(key) => row.0 <= key,
            _ => row.0 < key,
        });
        (branches, &branch.leaves[at + 1..], &leaf.rows[skip..])
    }

    /// The rows that differ from those of an older table, old and new, ascending by key. Costs
    /// no more than a look at the branches that both have, and at leaves of those that differ.
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

    /// Puts a row in its place; the one that had its key before.
    pub fn insert(&mut self, row: Arc<R>) -> Option<Arc<R>> {
        let key = row.key();
        let branches = Arc::make_mut(&mut self.branches);
        if branches.is_empty() {
            let leaf = Leaf { first: key, rows: Arc::new(vec![(key, row)]) };
            branches.push(Branch { first: key, leaves: Arc::new(vec![leaf]), len: 1 });
            self.len = 1;
            return None;
        }
        let of = child(branches, |branch| branch.first, &key);
        let branch = &mut branches[of];
        let leaves = Arc::make_mut(&mut branch.leaves);
        let at = child(leaves, |leaf| leaf.first, &key);
        let rows = Arc::make_mut(&mut leaves[at].rows);
        match rows.binary_search_by_key(&key, |row| row.0) {
            Ok(place) => return Some(std::mem::replace(&mut rows[place].1, row)),
            Err(place) => rows.insert(place, (key, row)),
        }
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

    /// Takes out the row with this key.
    pub fn remove(&mut self, key: R::Key) -> Option<Arc<R>> {
        self.find(key)?;
        let branches = Arc::make_mut(&mut self.branches);
        let of = child(branches, |branch| branch.first, &key);
        let branch = &mut branches[of];
        let leaves = Arc::make_mut(&mut branch.leaves);
        let at = child(leaves, |leaf| leaf.first, &key);
        let rows = Arc::make_mut(&mut leaves[at].rows);
        let (_, row) = rows.remove(rows.binary_search_by_key(&key, |row| row.0).ok()?);
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
    /// A branch of these leaves, of which there is at least one.
    fn new(leaves: Vec<Leaf<R>>) -> Self {
        let len = leaves.iter().map(|leaf| leaf.rows.len()).sum();
        Self { first: leaves[0].first, leaves: Arc::new(leaves), len }
    }
}

/// The leaves of two tables without those that they share.
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
    // A shared leaf begins with the same key in both.
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

/// The branches of two tables without those that they share.
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

/// The child that a key belongs to.
fn child<T, K: Ord>(children: &[T], first: impl Fn(&T) -> K, key: &K) -> usize {
    children.partition_point(|child| first(child) <= *key).saturating_sub(1)
}

/// Splits off the upper half of what became too long.
fn overflow<T>(items: &mut Vec<T>, max: usize) -> Option<Vec<T>> {
    (items.len() > max).then(|| items.split_off(items.len() / 2))
}

/// Which of two neighbours, that at `at` among them, the other is to be merged into: together they
/// are at most half full.
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

/// Takes rows in any order; of those with one key the last counts.
impl<R: Row> FromIterator<Arc<R>> for Rows<R> {
    fn from_iter<I: IntoIterator<Item = Arc<R>>>(rows: I) -> Self {
        let mut rows: Vec<_> = rows.into_iter().map(|row| (row.key(), row)).collect();
        if !rows.is_sorted_by(|a, b| a.0 < b.0) {
            rows.sort_by_key(|row| row.0);
            // Of equal keys the later row is the one that is kept.
            rows.reverse();
            rows.dedup_by_key(|row| row.0);
            rows.reverse();
        }
        let len = rows.len();
        let mut rows = rows.into_iter();
        let leaves = std::iter::from_fn(|| {
            // Room is left for what comes between.
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
mod tests {
    use std::collections::BTreeMap;

    use ib_mad::types::Guid;
    use proptest::prelude::*;

    use super::super::registry::AliasGuid;
    use super::*;

    fn row(key: u64, value: u64) -> Arc<AliasGuid> {
        Arc::new(AliasGuid { alias: Guid(key), port_guid: Guid(value), index: 1 })
    }

    fn rows(keys: impl IntoIterator<Item = u64>) -> Rows<AliasGuid> {
        keys.into_iter().map(|key| row(key, 0)).collect()
    }

    fn keys<'a>(rows: impl IntoIterator<Item = &'a Arc<AliasGuid>>) -> Vec<u64> {
        rows.into_iter().map(|row| row.alias.0).collect()
    }

    /// Whether the tree is what a search relies on.
    fn check(rows: &Rows<AliasGuid>) {
        let mut all = 0;
        for branch in rows.branches.iter() {
            assert!(!branch.leaves.is_empty() && branch.leaves.len() <= BRANCH_MAX);
            let in_leaves: usize = branch.leaves.iter().map(|leaf| leaf.rows.len()).sum();
            assert_eq!(branch.len, in_leaves);
            all += in_leaves;
            for leaf in branch.leaves.iter() {
                assert!(!leaf.rows.is_empty() && leaf.rows.len() <= LEAF_MAX);
            }
        }
        assert_eq!(rows.len(), all);
    }

    #[test]
    fn a_write_makes_two_tables_differ_by_a_leaf() {
        let before = rows(0..50_000);
        let mut after = before.clone();
        after.insert(row(70_000, 1));
        after.remove(Guid(25_000));
        let (left, right) = unshared(&before, &after);
        assert!(left.len() <= 2 && right.len() <= 3, "{} and {}", left.len(), right.len());
        assert_eq!(after.differences(&before).count(), 2);
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(
            start in proptest::collection::vec(0..20_000u64, 0..12_000),
            steps in proptest::collection::vec((0..20_000u64, 0..400u64, any::<bool>()), 0..60),
            (low, high) in (0..20_000u64, 0..20_000u64),
        ) {
            let mut table = rows(start.iter().copied());
            let mut map: BTreeMap<u64, u64> = start.iter().map(|&key| (key, 0)).collect();
            let before = table.clone();
            let first = keys(&before);
            for (from, count, put) in steps {
                for key in from..from + count {
                    let held = if put { table.insert(row(key, 7)) } else { table.remove(Guid(key)) };
                    let known = if put { map.insert(key, 7) } else { map.remove(&key) };
                    prop_assert_eq!(held.map(|row| row.port_guid.0), known);
                }
            }
            check(&table);
            let was: BTreeMap<u64, u64> = first.iter().map(|&key| (key, 0)).collect();
            let differ: Vec<u64> = was
                .keys()
                .chain(map.keys())
                .filter(|key| was.get(key) != map.get(key))
                .copied()
                .collect::<std::collections::BTreeSet<u64>>()
                .into_iter()
                .collect();
            let found: Vec<u64> = table
                .differences(&before)
                .map(|(old, new)| {
                    let key = new.or(old).unwrap().alias.0;
                    assert_eq!(old.map(|row| row.port_guid.0), was.get(&key).copied());
                    assert_eq!(new.map(|row| row.port_guid.0), map.get(&key).copied());
                    key
                })
                .collect();
            prop_assert_eq!(found, differ);
            let all: Vec<_> = table.iter().map(|row| (row.alias.0, row.port_guid.0)).collect();
            prop_assert_eq!(&all, &map.iter().map(|(&k, &v)| (k, v)).collect::<Vec<_>>());
            prop_assert_eq!(keys(&before), first, "a clone does not change");
            for at in [0, all.len() / 2, all.len().saturating_sub(1), all.len()] {
                prop_assert_eq!(table.get(at).map(|row| row.alias.0), all.get(at).map(|row| row.0));
            }
            prop_assert_eq!(table.find(Guid(low)).is_some(), map.contains_key(&low));
            let (low, high) = (low.min(high), low.max(high));
            let within: Vec<_> = map.range(low..high).map(|(&key, _)| key).collect();
            prop_assert_eq!(keys(table.range(Guid(low)..Guid(high))), within);
            let bounds = (Bound::Excluded(Guid(low)), Bound::Included(Guid(high)));
            let behind = map.range((Bound::Excluded(low), Bound::Included(high.max(low + 1))));
            let behind: Vec<_> = behind.map(|(&key, _)| key).filter(|&key| key <= high).collect();
            prop_assert_eq!(keys(table.range(bounds)), behind);
        }
    }

    #[test]
    fn a_change_leaves_almost_all_shared() {
        let before = rows((0..200_000).map(|n| n * 2));
        let mut after = before.clone();
        after.insert(row(100_001, 1));
        let shared = |a: &Rows<AliasGuid>, b: &Rows<AliasGuid>| {
            let leaves = |rows: &Rows<AliasGuid>| -> std::collections::HashSet<_> {
                let branches = rows.branches.iter();
                branches.flat_map(|b| b.leaves.iter().map(|leaf| Arc::as_ptr(&leaf.rows))).collect()
            };
            let (a, b) = (leaves(a), leaves(b));
            (a.len(), a.intersection(&b).count())
        };
        let (leaves, kept) = shared(&before, &after);
        assert!(leaves > 2_000 && kept >= leaves - 1, "{kept} of {leaves}");
        assert_eq!((before.len(), after.len()), (200_000, 200_001));
    }

    #[test]
    fn rows_may_come_in_any_order_and_the_last_of_a_key_counts() {
        let table: Rows<_> = [row(5, 1), row(3, 1), row(5, 2)].into_iter().collect();
        assert_eq!(keys(&table), [3, 5]);
        assert_eq!(table.find(Guid(5)).unwrap().port_guid, Guid(2));
        assert_eq!(table, Rows::from(vec![row(3, 1), row(5, 2)]));
        assert_ne!(table, Rows::from(vec![row(3, 1), row(5, 3)]));
    }

    #[test]
    fn a_table_that_lost_most_rows_is_small_again() {
        let mut table = rows(0..50_000);
        for key in (0..50_000).filter(|key| key % 100 != 0) {
            table.remove(Guid(key));
        }
        check(&table);
        assert_eq!(table.len(), 500);
        let leaves: usize = table.branches.iter().map(|branch| branch.leaves.len()).sum();
        assert!(leaves <= 500 * 8 / LEAF_MAX, "{leaves} leaves");
    }
}
