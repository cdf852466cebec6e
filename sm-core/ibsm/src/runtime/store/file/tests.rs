//! The file: commits, restarts, damage.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use ib_mad::types::{Gid, Guid, PKey};
use ib_mad::wire::mad::Status;
use sa_proto::snapshot::{AliasGuid, MulticastGroup, Service, ServiceRid};

use super::super::conformance::{Bed, conformance_tests};
use super::tables::table_of;
use super::*;
use sm_core::registry::testing::outcome_key as key;
use sm_core::registry::{AnswerRecord, HostTime, Outcome, Stamp};

fn open(directory: &Path) -> Result<(RegistryFile, Stored), StoreError> {
    RegistryFile::open(&Directory(directory.to_owned()))
}

fn alias(n: u64) -> Arc<AliasGuid> {
    Arc::new(AliasGuid { alias: Guid(n), port_guid: Guid(n + 1), index: 1 })
}

const SESSION: Session = Session { epoch: 3, sm_guid: Guid(8) };

fn changes(sequence: u64) -> Changes {
    let rows = RegistryChanges { sequence, ..RegistryChanges::default() };
    Changes { rows, ..Changes::default() }
}

#[test]
fn what_was_committed_is_there_when_the_file_is_opened_again() {
    // Folded never, at the second commit, and at each.
    for fold_len in [FOLD_LEN, 600, 0] {
        commit_and_open_again(fold_len);
    }
}

/// A full disk has no room for the holes of the file.
#[test]
fn holes_of_the_file_stay_holes_when_it_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let allocated = || {
        let metadata = fs::metadata(directory.path().join(FILE)).unwrap();
        (metadata.blocks() * 512, metadata.len())
    };
    let (mut store, _) = open(directory.path()).unwrap();
    store.commit(&changes(4), SESSION).unwrap();
    drop(store);
    let (before, len) = allocated();
    assert!(before * 4 < len, "{before} of {len} bytes");
    drop(open(directory.path()).unwrap());
    let (after, len) = allocated();
    assert!(after * 4 < len, "{after} of {len} bytes, {before} before");
}

fn commit_and_open_again(fold_len: usize) {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, stored) = open(directory.path()).unwrap();
    assert_eq!(stored, Stored { fresh: true, ..Stored::default() });
    store.fold_len = fold_len;
    let mgid = Gid([0xFF; 16]);
    let group = MulticastGroup { mgid, record: [5; 52], predefined: true };
    let gid = Gid([1; 16]);
    let rid = ServiceRid { service_id: 5, service_gid: gid, service_pkey: PKey(0xFFFF) };
    let service = Service { rid, record: [3; 176], expires_s: Some(99) };
    let outcome = Outcome { status: Status(0), data: Some(AnswerRecord::new(&[7; 200])), at_s: 50 };
    let mut first = changes(4);
    first.rows.groups.insert(mgid, Some(Arc::new(group.clone())));
    first.rows.services.insert(rid, Some(Arc::new(service.clone())));
    first.rows.alias_guids.extend([1, 2, 3].map(|n| (Guid(n), Some(alias(n)))));
    first.outcomes_put.push((key(1), Outcome { at_s: 40, ..outcome.clone() }));
    store.commit(&first, SESSION).unwrap();
    let mut second = changes(5);
    second.rows.alias_guids.extend([2, 77].map(|n| (Guid(n), None)));
    second.outcomes_put.push((key(2), outcome.clone()));
    second.outcomes_since_s = 41;
    let [time, since_boot, wall] = [5, 6, 7].map(Duration::from_millis);
    let stamp = Stamp { time, host: HostTime { boot: u128::MAX - 1, since_boot, wall } };
    second.stamp = Some(stamp);
    store.commit(&second, SESSION).unwrap();
    drop(store);
    let (mut store, stored) = open(directory.path()).unwrap();
    assert_eq!(stored.plane.sequence, 5);
    assert_eq!(stored.plane.alias_guids, vec![alias(1), alias(3)].into());
    assert_eq!(**stored.plane.groups.get(0).unwrap(), group);
    assert_eq!(**stored.plane.services.get(0).unwrap(), service);
    assert_eq!((stored.outcomes, stored.stamp), (vec![(key(2), outcome)], Some(stamp)));
    assert!(!stored.fresh);

    // A reopened store continues where it was.
    let mut third = changes(6);
    third.rows.alias_guids.insert(Guid(3), None);
    third.outcomes_since_s = 51;
    store.fold_len = 0;
    store.commit(&third, SESSION).unwrap();
    drop(store);
    let (_, stored) = open(directory.path()).unwrap();
    assert_eq!(stored.plane.sequence, 6);
    assert_eq!(stored.plane.alias_guids, vec![alias(1)].into());
    assert_eq!(stored.plane.groups.len(), 1);
    assert!(stored.outcomes.is_empty());
    assert_eq!(stored.stamp, Some(stamp), "a commit without one keeps the last");
}

/// A commit must leave nothing behind that grows.
#[test]
fn the_log_is_as_long_as_the_changes_since_it_was_folded() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = open(directory.path()).unwrap();
    store.fold_len = 2_000;
    for sequence in 1..400 {
        let mut next = changes(sequence);
        next.rows.alias_guids.insert(Guid(sequence % 7), Some(alias(sequence % 7)));
        store.commit(&next, SESSION).unwrap();
        store.commit(&changes(sequence), SESSION).unwrap();
        assert!(store.log_len <= 2_000 && store.unfolded.len() <= 200);
    }
    drop(store);
    let (store, stored) = open(directory.path()).unwrap();
    assert!((1..=2_000).contains(&store.log_len));
    assert_eq!((stored.plane.sequence, stored.plane.alias_guids.len()), (399, 7));
}

/// Those of another session go at once: what remained would be taken for outcomes of that session.
#[test]
fn outdated_outcomes_are_removed_in_lumps() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = open(directory.path()).unwrap();
    let with_outcome = |sequence: u64, since_s: u64| {
        let outcome = Outcome { status: Status(0), data: None, at_s: sequence };
        let outcomes_put = vec![(key(sequence), outcome)];
        Changes { outcomes_put, outcomes_since_s: since_s, ..changes(sequence) }
    };
    let kept = 10;
    let stored_ids = |stored: &Stored| {
        let tids = stored.outcomes.iter().map(|(key, _)| key.tid);
        tids.collect::<std::collections::BTreeSet<_>>()
    };
    for sequence in 1..=400 {
        let since_s = (sequence + 1u64).saturating_sub(kept);
        store.commit(&with_outcome(sequence, since_s), SESSION).unwrap();
        let entries = store.outcomes.len() as u64;
        let least = kept.min(sequence);
        assert!((least..least + OUTDATED_AT_ONCE as u64).contains(&entries), "{entries}");
        if sequence % 50 == 0 {
            drop(store);
            let (again, stored) = open(directory.path()).unwrap();
            assert_eq!(again.outcomes.len() as u64, entries, "what is removed is not on disk");
            let ids = stored_ids(&stored);
            assert!((since_s.max(1)..=sequence).all(|at| ids.contains(&key(at).tid)));
            store = again;
        }
    }
    let next = Session { epoch: SESSION.epoch + 1, ..SESSION };
    store.commit(&with_outcome(401, u64::MAX), next).unwrap();
    drop(store);
    let (_, stored) = open(directory.path()).unwrap();
    assert_eq!(stored_ids(&stored), [key(401).tid].into());
}

#[test]
fn only_the_owner_can_read_the_file() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    let path = directory.path().join(FILE);
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    drop(open(directory.path()).unwrap());
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_file_of_another_layout_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path()).unwrap();
    store
        .write(|transaction| {
            transaction.open_table(META)?.insert("schema", 99)?;
            Ok(())
        })
        .unwrap();
    drop(store);
    for _ in 0..2 {
        let error = open(directory.path()).unwrap_err();
        assert!(matches!(error, StoreError::Schema { found: 99, .. }), "{error}");
        assert!(error.to_string().contains("move it away"), "{error}");
    }
}

/// Entries of that layout have their zeros.
#[test]
fn a_file_of_the_layout_before_is_read_and_converted() {
    let directory = tempfile::tempdir().unwrap();
    let outcome = Outcome { status: Status(0), data: Some(AnswerRecord::new(&[7; 200])), at_s: 50 };
    for folded in [false, true] {
        drop(fs::remove_file(directory.path().join(FILE)));
        let (mut store, _) = open(directory.path()).unwrap();
        if folded {
            store.fold_len = 0;
            let mut first = changes(4);
            first.rows.alias_guids.insert(Guid(1), Some(alias(1)));
            store.commit(&first, SESSION).unwrap();
        }
        let mut second = changes(5);
        second.rows.alias_guids.extend([2, 3].map(|n| (Guid(n), Some(alias(n)))));
        let outcomes = [(key(1), outcome.clone())];
        store
            .write(|transaction| {
                transaction.open_table(META)?.insert("schema", SCHEMA_BEFORE)?;
                append(&mut transaction.open_table(LOG)?, 7, &entry::rows(&second.rows))?;
                append(
                    &mut transaction.open_table(OUTCOMES)?,
                    7,
                    &outcome::encoding::encode(&outcomes),
                )?;
                Ok(())
            })
            .unwrap();
        drop(store);
        for _ in 0..2 {
            let (mut store, stored) = open(directory.path()).unwrap();
            assert_eq!(store.schema().unwrap(), Some(SCHEMA));
            assert_eq!(stored.plane.sequence, 5);
            assert_eq!(stored.plane.alias_guids.len(), if folded { 3 } else { 2 });
            assert_eq!(stored.outcomes, outcomes);
            store.commit(&changes(5), SESSION).unwrap();
        }
        let (mut store, _) = open(directory.path()).unwrap();
        store.commit(&Changes { outcomes_since_s: 51, ..changes(6) }, SESSION).unwrap();
        drop(store);
        assert!(open(directory.path()).unwrap().1.outcomes.is_empty(), "they are outdated");
    }
}

#[test]
fn a_file_that_is_something_else_or_malformed_is_called_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    fs::write(&path, [b'x'; 8192]).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), [b'x'; 8192], "it is left alone");
    fs::remove_file(&path).unwrap();
    let (store, _) = open(directory.path()).unwrap();
    store
        .write(|transaction| {
            let mut table = transaction.open_table(table_of::<AliasGuid>())?;
            table.insert(&[1u8; 8][..], &[2u8; 3][..])?;
            Ok(())
        })
        .unwrap();
    drop(store);
    let error = open(directory.path()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn a_file_in_use_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _held = open(directory.path()).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
}

/// A damaged file causes an error, never a panic or partial contents.
#[test]
fn a_cut_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = open(directory.path()).unwrap();
    let mut all = changes(1);
    all.rows.alias_guids.extend((0..2_000).map(|n| (Guid(n), Some(alias(n)))));
    store.commit(&all, SESSION).unwrap();
    assert!(store.log_len > 2 * PIECE_LEN, "the entry has several pieces");
    drop(store);
    let path = directory.path().join(FILE);
    let whole = fs::read(&path).unwrap();
    for cut in [100, 4096, whole.len() / 2] {
        fs::write(&path, &whole[..cut]).unwrap();
        match open(directory.path()) {
            Err(StoreError::Damaged { .. } | StoreError::Io { .. }) => {}
            Err(error) => panic!("{error}"),
            Ok((_, stored)) => assert_eq!(stored.plane.alias_guids.len(), 2_000),
        }
    }
}

impl Bed for tempfile::TempDir {
    fn store(&self) -> Box<dyn Store> {
        Box::new(FileStore::new(self.path().to_owned()))
    }
}

conformance_tests!(Some(tempfile::tempdir().unwrap()));
