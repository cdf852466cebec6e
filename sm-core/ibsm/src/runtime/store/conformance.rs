//! What every store promises, as tests that any store must pass: [`conformance_tests`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::mad::Status;
use sa_proto::snapshot::{AliasGuid, RegistryChanges, RegistryPlane, Session};
use sm_core::registry::testing::outcome_key;
use sm_core::registry::{AnswerRecord, Changes, HostTime, Outcome, OutcomeKey, Stamp};

use super::faulty::{Fault, Faults, FaultyStore};
use super::{Event, Store, StoreError, Stored};

/// Where stores of the same data come from.
pub(in super::super) trait Bed {
    /// Another store of the data, not open.
    fn store(&self) -> Box<dyn Store>;
}

/// The tests, run on the bed that the expression `$bed` returns, if it returns one.
macro_rules! conformance_tests {
    ($bed:expr, [$($name:ident)*]) => {$(
        #[test]
        fn $name() {
            if let Some(bed) = $bed {
                crate::runtime::store::conformance::$name(&bed);
            }
        }
    )*};
    ($bed:expr) => {
        crate::runtime::store::conformance::conformance_tests!($bed, [
            what_was_committed_is_read_back
            a_commit_that_failed_is_there_as_a_whole_or_not_at_all
            a_commit_of_any_size_is_one
            many_commits_are_read_back_in_their_order
            only_one_holder_commits
        ]);
    };
}
pub(in super::super) use conformance_tests;

pub(in super::super) const SESSION: Session = Session { epoch: 3, sm_guid: Guid(8) };
const PATIENCE: Duration = Duration::from_secs(30);

/// The next event, which must come.
pub(in super::super) fn event_of(store: &mut dyn Store) -> Event {
    within(store, PATIENCE).expect("the store has no news for half a minute")
}

/// The next event, if it comes in this time.
fn within(store: &mut dyn Store, patience: Duration) -> Option<Event> {
    let end = Instant::now() + patience;
    loop {
        match store.poll() {
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            event => return event,
        }
    }
}

/// Opens a store.
pub(in super::super) fn opened(store: &mut dyn Store) -> Stored {
    store.lead(Some(SESSION));
    store.open();
    loop {
        match event_of(store) {
            Event::Opened(stored) => return *stored,
            Event::Copied(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Commits to an open store.
pub(in super::super) fn commit(
    store: &mut dyn Store,
    changes: &Changes,
    session: Session,
) -> Result<(), StoreError> {
    store.submit(&Arc::new(changes.clone()), session);
    match event_of(store) {
        Event::Committed => Ok(()),
        Event::Failed(failure) => Err(failure),
        other => panic!("{other:?}"),
    }
}

/// Changes with this sequence number that put these aliases, and remove others.
pub(in super::super) fn changes(
    sequence: u64,
    put: impl IntoIterator<Item = u64>,
    removed: impl IntoIterator<Item = u64>,
) -> Changes {
    let mut rows = RegistryChanges { sequence, ..RegistryChanges::default() };
    let alias = |n| Arc::new(AliasGuid { alias: Guid(n), port_guid: Guid(n + 1), index: 1 });
    rows.alias_guids.extend(put.into_iter().map(|n| (Guid(n), Some(alias(n)))));
    rows.alias_guids.extend(removed.into_iter().map(|n| (Guid(n), None)));
    Changes { rows, ..Changes::default() }
}

/// The aliases.
pub(in super::super) fn aliases(plane: &RegistryPlane) -> Vec<u64> {
    plane.alias_guids.iter().map(|row| row.alias.0).collect()
}

fn outcome(tid: u64, at_s: u64) -> (OutcomeKey, Outcome) {
    let outcome = Outcome { status: Status(0), data: Some(AnswerRecord::new(&[7; 200])), at_s };
    (outcome_key(tid), outcome)
}

pub(in super::super) fn what_was_committed_is_read_back(bed: &impl Bed) {
    let mut store = bed.store();
    assert_eq!(opened(&mut *store), Stored { fresh: true, ..Stored::default() });
    let mut first = changes(4, [1, 2, 3], []);
    first.outcomes_put.push(outcome(1, 40));
    commit(&mut *store, &first, SESSION).unwrap();
    let mut second = changes(5, [], [2, 77]);
    second.outcomes_put.push(outcome(2, 50));
    second.outcomes_since_s = 41;
    let [time, since_boot, wall] = [5, 6, 7].map(Duration::from_millis);
    let stamp = Stamp { time, host: HostTime { boot: u128::MAX - 1, since_boot, wall } };
    second.stamp = Some(stamp);
    let next = Session { epoch: 4, sm_guid: Guid(9) };
    commit(&mut *store, &second, next).unwrap();
    for _ in 0..2 {
        drop(store);
        store = bed.store();
        let stored = opened(&mut *store);
        assert_eq!((aliases(&stored.plane), stored.plane.sequence), (vec![1, 3], 5));
        assert_eq!(stored.outcomes, [outcome(2, 50)]);
        assert_eq!((stored.stamp, stored.session, stored.fresh), (Some(stamp), next, false));
    }
    // It goes on where it was; what has no time or outcomes keeps those of before.
    commit(&mut *store, &changes(6, [9], []), next).unwrap();
    let stored = opened(&mut *store);
    assert_eq!((aliases(&stored.plane), stored.plane.sequence), (vec![1, 3, 9], 6));
    assert_eq!((stored.outcomes, stored.stamp), (vec![outcome(2, 50)], Some(stamp)));
}

pub(in super::super) fn a_commit_that_failed_is_there_as_a_whole_or_not_at_all(bed: &impl Bed) {
    let faults = Faults::default();
    let mut store = FaultyStore::new(bed.store(), &faults);
    opened(&mut store);
    commit(&mut store, &changes(1, [1], []), SESSION).unwrap();
    let mut all = vec![1];
    for (sequence, fault) in [(2, Fault::Before), (3, Fault::After)] {
        faults.fail_next(fault);
        let numbers = sequence * 10..sequence * 10 + 5;
        commit(&mut store, &changes(sequence, numbers.clone(), []), SESSION).unwrap_err();
        if fault == Fault::After {
            all.extend(numbers);
        }
        let stored = opened(&mut store);
        let last = if fault == Fault::After { sequence } else { 1 };
        assert_eq!((aliases(&stored.plane), stored.plane.sequence), (all.clone(), last));
    }
}

pub(in super::super) fn a_commit_of_any_size_is_one(bed: &impl Bed) {
    const ROWS: u64 = 300_000;
    let mut store = bed.store();
    opened(&mut *store);
    commit(&mut *store, &changes(1, 0..ROWS, []), SESSION).unwrap();
    commit(&mut *store, &changes(2, [ROWS], [0]), SESSION).unwrap();
    drop(store);
    let stored = opened(&mut *bed.store());
    assert!(aliases(&stored.plane).into_iter().eq(1..=ROWS));
}

/// Changes of the same row, so often that every store has rewritten its tables.
pub(in super::super) fn many_commits_are_read_back_in_their_order(bed: &impl Bed) {
    let mut store = bed.store();
    opened(&mut *store);
    for sequence in 1..=60 {
        let (even, odd) = (0..2_000).partition::<Vec<u64>, _>(|n| n % 2 == sequence % 2);
        commit(&mut *store, &changes(sequence, even, odd), SESSION).unwrap();
        if sequence % 20 == 0 {
            drop(store);
            store = bed.store();
            let stored = opened(&mut *store);
            assert_eq!(stored.plane.sequence, sequence);
            assert!(aliases(&stored.plane).into_iter().eq((0..2_000).step_by(2)));
        }
    }
}

pub(in super::super) fn only_one_holder_commits(bed: &impl Bed) {
    let mut first = bed.store();
    opened(&mut *first);
    commit(&mut *first, &changes(1, [1], []), SESSION).unwrap();
    let mut second = bed.store();
    second.lead(Some(Session { epoch: SESSION.epoch + 1, ..SESSION }));
    second.open();
    while let Some(early) = within(&mut *second, Duration::from_millis(700)) {
        assert!(matches!(early, Event::Copied(_) | Event::Failed(_)), "{early:?}");
    }
    commit(&mut *first, &changes(2, [2], []), SESSION).unwrap();
    drop(first);
    let stored = opened(&mut *second);
    assert_eq!(aliases(&stored.plane), [1, 2]);
    commit(&mut *second, &changes(3, [3], []), SESSION).unwrap();
}
