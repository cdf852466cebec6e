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

/// Checks the invariants that a search relies on.
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
