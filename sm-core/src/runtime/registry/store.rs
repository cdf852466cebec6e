//! The registry on disk: `registry.redb` in the state directory, mode 0600.
//!
//! A table a kind of row, from canonical key to canonical row ([`sa_proto::snapshot::encoding`]),
//! one of single values: the schema and the sequence number; and two that only grow at one end and
//! shrink at the other: what changed since the rows were last brought up to date ([`log`]), and
//! outcomes, an entry a commit each. A commit is one transaction, and durable when it returns. It
//! writes those two entries, a few pages whatever rows it is about; each [`FOLD_LEN`] of changes
//! the tables take them in, the last of each row. What is in the rows is the registry's business.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use sa_proto::snapshot::encoding::{Canonical, Malformed, decode};
use sa_proto::snapshot::{self, RegistryChanges, RegistryPlane, Row, Rows, Table};

use super::log;
use crate::registry::{Changes, Outcome, OutcomeKey};

/// Layout of the file. Another one is refused.
pub(super) const SCHEMA: u64 = 2;
/// The file's name in the state directory.
pub(super) const FILE: &str = "registry.redb";
/// Memory for pages of the file: rows are read once, at the start.
const CACHE_LEN: usize = 16 << 20;

/// Bytes of changes in the log, about, after which the tables of rows take them in: some
/// milliseconds of work, and as much memory.
const FOLD_LEN: usize = 1 << 20;

type Bytes = TableDefinition<'static, &'static [u8], &'static [u8]>;
/// Bytes of an entry that are put together: with what the library adds they fill two of its pages.
/// An entry in one piece would have pages of a size that is got from the system each time.
const PIECE_LEN: usize = 8000;

/// From the number of a commit, and that of a piece.
type Numbered = TableDefinition<'static, (u64, u32), &'static [u8]>;
const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");
const LOG: Numbered = TableDefinition::new("log");
const OUTCOMES: Numbered = TableDefinition::new("outcomes");

/// Why the registry is not on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be read or written.
    #[error("registry {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: Box<redb::Error>,
    },
    /// Another process has it open.
    #[error("registry {} is in use: is another ibsm running? name another directory with --state-dir", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is not what this program wrote.
    #[error(
        "registry {} is damaged ({reason}); restore it from a backup, or move it away and start \
         again: clients will have to register anew", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file was written by another release.
    #[error(
        "registry {} has layout {found}, this release reads {SCHEMA}; run the release that wrote \
         it, or move it away and start again: clients will have to register anew", path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: u64,
    },
}

/// What was stored.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Stored {
    /// All rows.
    pub(super) plane: RegistryPlane,
    /// Outcomes that repeats are answered with.
    pub(super) outcomes: Vec<(OutcomeKey, Outcome)>,
    /// Whether nothing was ever stored.
    pub(super) fresh: bool,
}

/// The file, open.
#[derive(Debug)]
pub(super) struct Store {
    database: Database,
    path: PathBuf,
    /// Number of the next commit.
    next: u64,
    /// What is in the log: how many bytes, and what it comes to.
    log_len: usize,
    unfolded: RegistryChanges,
    /// Commits with outcomes, and when the last of these came about.
    outcomes: VecDeque<Batch>,
    /// Bytes in the log after which it is folded.
    fold_len: usize,
    /// What goes wrong with the next commit.
    #[cfg(test)]
    pub(super) fault: Option<Fault>,
}

/// The outcomes of a commit.
#[derive(Clone, Copy, Debug)]
struct Batch {
    number: u64,
    pieces: u32,
    /// When the last of them came about, seconds since 1970.
    last_s: u64,
}

/// When a commit fails.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Before anything is written.
    Before,
    /// When everything is.
    After,
}

impl Store {
    /// Opens the file in `directory`, making it if there is none, and reads all of it.
    pub(super) fn open(directory: &Path) -> Result<(Self, Stored), StoreError> {
        let path = directory.join(FILE);
        let damaged =
            |reason: &str| StoreError::Damaged { path: path.clone(), reason: reason.to_owned() };
        // What cannot be in a file of its own may make the library panic.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            create_private(&path)
                .map_err(|error| failure(&path, redb::StorageError::Io(error).into()))?;
            let database = redb::Builder::new()
                .set_cache_size(CACHE_LEN)
                .create(&path)
                .map_err(|error| failure(&path, error.into()))?;
            let mut store = Self {
                database,
                path: path.clone(),
                next: 0,
                log_len: 0,
                unfolded: RegistryChanges::default(),
                outcomes: VecDeque::new(),
                fold_len: FOLD_LEN,
                #[cfg(test)]
                fault: None,
            };
            let stored = store.read_or_begin()?;
            Ok((store, stored))
        }));
        opened.unwrap_or_else(|_| Err(damaged("its pages contradict each other")))
    }

    fn read_or_begin(&mut self) -> Result<Stored, StoreError> {
        let outcome = self.schema().map_err(|error| self.failure(error))?;
        match outcome {
            Some(SCHEMA) => self.read().map_err(|error| match error {
                ReadError::Store(error) => self.failure(error),
                ReadError::Malformed(malformed) => {
                    StoreError::Damaged { path: self.path.clone(), reason: malformed.to_string() }
                }
            }),
            Some(found) => Err(StoreError::Schema { path: self.path.clone(), found }),
            None => {
                let begun = self.write(|transaction| {
                    transaction.open_table(META)?.insert("schema", SCHEMA)?;
                    Ok(())
                });
                begun.map_err(|error| self.failure(error))?;
                Ok(Stored { fresh: true, ..Stored::default() })
            }
        }
    }

    fn schema(&self) -> Result<Option<u64>, redb::Error> {
        match self.database.begin_read()?.open_table(META) {
            Ok(meta) => Ok(meta.get("schema")?.map(|value| value.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&mut self) -> Result<Stored, ReadError> {
        let transaction = self.database.begin_read().map_err(redb::Error::from)?;
        let meta = transaction.open_table(META).map_err(redb::Error::from)?;
        let sequence = meta.get("sequence").map_err(redb::Error::from)?;
        let sequence = sequence.map(|value| value.value());
        let mut plane = RegistryPlane {
            sequence: sequence.unwrap_or(0),
            groups: rows(&transaction)?,
            members: rows(&transaction)?,
            services: rows(&transaction)?,
            subscriptions: rows(&transaction)?,
            alias_guids: rows(&transaction)?,
        };
        for_each_entry(&transaction, LOG, |number, _, entry| {
            self.next = self.next.max(number + 1);
            self.log_len += entry.len();
            let changes = log::changes(entry)?;
            plane.apply(&changes);
            self.unfolded.merge(&changes);
            Ok(())
        })?;
        let mut outcomes = Vec::new();
        for_each_entry(&transaction, OUTCOMES, |number, pieces, entry| {
            self.next = self.next.max(number + 1);
            let before = outcomes.len();
            log::outcomes(entry, &mut outcomes)?;
            let last_s = outcomes[before..].iter().map(|(_, outcome)| outcome.at_s).max();
            self.outcomes.push_back(Batch { number, pieces, last_s: last_s.unwrap_or(0) });
            Ok(())
        })?;
        // Each commit stores one. A process that ended before its first has left only the schema.
        let fresh = sequence.is_none() && self.log_len == 0;
        Ok(Stored { plane, outcomes, fresh })
    }

    /// Makes changes durable, all or none of them. After a failure the store has to be opened
    /// again: whether they were made is not known.
    pub(super) fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        #[cfg(test)]
        if let Some(fault) = self.fault.take() {
            if fault == Fault::After {
                self.commit(changes)?;
            }
            return Err(self.failure(redb::Error::PreviousIo));
        }
        let entry = log::entry(&changes.rows);
        let folds = self.log_len + entry.len() > self.fold_len;
        self.unfolded.merge(&changes.rows);
        let number = self.next;
        let since_s = changes.outcomes_since_s;
        let outdated = self.outcomes.iter().take_while(|batch| batch.last_s < since_s).count();
        let outcomes = log::outcomes_entry(&changes.outcomes_put);
        let done = self.write(|transaction| {
            if folds {
                self.fold(transaction)?;
            } else {
                append(&mut transaction.open_table(LOG)?, number, &entry)?;
            }
            if !outcomes.is_empty() || outdated > 0 {
                let mut table = transaction.open_table(OUTCOMES)?;
                for batch in self.outcomes.range(..outdated) {
                    for piece in 0..batch.pieces {
                        table.remove((batch.number, piece))?;
                    }
                }
                append(&mut table, number, &outcomes)?;
            }
            Ok(())
        });
        done.map_err(|error| self.failure(error))?;
        self.next += 1;
        self.outcomes.drain(..outdated);
        let last_s = changes.outcomes_put.iter().map(|(_, outcome)| outcome.at_s).max();
        let pieces = outcomes.len().div_ceil(PIECE_LEN) as u32;
        self.outcomes.extend(last_s.map(|last_s| Batch { number, pieces, last_s }));
        if folds {
            self.log_len = 0;
            self.unfolded = RegistryChanges::default();
        } else {
            self.log_len += entry.len();
        }
        Ok(())
    }

    /// Brings the tables of rows up to date, and empties the log.
    fn fold(&self, transaction: &WriteTransaction) -> Result<(), redb::Error> {
        let rows = &self.unfolded;
        transaction.open_table(META)?.insert("sequence", rows.sequence)?;
        put(transaction, &rows.groups)?;
        put(transaction, &rows.members)?;
        put(transaction, &rows.services)?;
        put(transaction, &rows.subscriptions)?;
        put(transaction, &rows.alias_guids)?;
        transaction.delete_table(LOG)?;
        Ok(())
    }

    fn write(
        &self,
        act: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        // Durable when it returns: that is the default.
        let transaction = self.database.begin_write()?;
        act(&transaction)?;
        transaction.commit()?;
        Ok(())
    }

    fn failure(&self, error: redb::Error) -> StoreError {
        failure(&self.path, error)
    }
}

/// Makes an empty file that only its owner can read, or sees to it that the one there is so.
fn create_private(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        }
        opened => opened.map(drop),
    }
}

fn failure(path: &Path, error: redb::Error) -> StoreError {
    let path = path.to_owned();
    match error {
        redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => {
            StoreError::InUse { path }
        }
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            StoreError::Damaged { path, reason: error.to_string() }
        }
        error @ (redb::Error::Io(_) | redb::Error::PreviousIo) => {
            StoreError::Io { path, source: Box::new(error) }
        }
        error => StoreError::Damaged { path, reason: error.to_string() },
    }
}

/// The table that holds rows of a kind.
fn table_of<R: Row>() -> Bytes {
    TableDefinition::new(match R::TABLE {
        Table::MulticastGroups => "groups",
        Table::MulticastMembers => "members",
        Table::Services => "services",
        Table::Subscriptions => "subscriptions",
        Table::AliasGuids => "alias_guids",
        table => unreachable!("{table:?} is not of the registry"),
    })
}

fn put<R: Row>(
    transaction: &WriteTransaction,
    changes: &snapshot::Changes<R>,
) -> Result<(), redb::Error> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut table = transaction.open_table(table_of::<R>())?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for (of, row) in changes {
        key.clear();
        of.put(&mut key);
        match row {
            Some(row) => {
                value.clear();
                row.put(&mut value);
                table.insert(&key[..], &value[..])?;
            }
            None => {
                table.remove(&key[..])?;
            }
        }
    }
    Ok(())
}

/// Puts the entry of a commit behind those of the commits before.
fn append(
    table: &mut redb::Table<'_, (u64, u32), &'static [u8]>,
    number: u64,
    entry: &[u8],
) -> Result<(), redb::StorageError> {
    for (piece, bytes) in (0..).zip(entry.chunks(PIECE_LEN)) {
        table.insert((number, piece), bytes)?;
    }
    Ok(())
}

enum ReadError {
    Store(redb::Error),
    Malformed(Malformed),
}

impl From<redb::Error> for ReadError {
    fn from(error: redb::Error) -> Self {
        Self::Store(error)
    }
}

impl From<Malformed> for ReadError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

fn for_each<K: redb::Key + 'static>(
    transaction: &redb::ReadTransaction,
    table: TableDefinition<'static, K, &'static [u8]>,
    mut take: impl FnMut(K::SelfType<'_>, &[u8]) -> Result<(), Malformed>,
) -> Result<(), ReadError> {
    let table = match transaction.open_table(table) {
        Ok(table) => table,
        // Tables are made when there is something to be put in them.
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
        Err(error) => return Err(redb::Error::from(error).into()),
    };
    for entry in table.iter().map_err(redb::Error::from)? {
        let (key, value) = entry.map_err(redb::Error::from)?;
        take(key.value(), value.value())?;
    }
    Ok(())
}

/// Calls `take` with the number, the pieces and the bytes of each entry, in their order.
fn for_each_entry(
    transaction: &redb::ReadTransaction,
    table: Numbered,
    mut take: impl FnMut(u64, u32, &[u8]) -> Result<(), Malformed>,
) -> Result<(), ReadError> {
    let mut entry: Option<(u64, u32, Vec<u8>)> = None;
    for_each(transaction, table, |(number, piece), bytes| {
        match &mut entry {
            Some((of, pieces, whole)) if *of == number && *pieces == piece => {
                *pieces += 1;
                whole.extend_from_slice(bytes);
            }
            _ if piece != 0 => return Err(Malformed("an entry without its beginning")),
            last => {
                if let Some((number, pieces, whole)) = last.replace((number, 1, bytes.to_vec())) {
                    take(number, pieces, &whole)?;
                }
            }
        }
        Ok(())
    })?;
    match entry {
        Some((number, pieces, whole)) => Ok(take(number, pieces, &whole)?),
        None => Ok(()),
    }
}

fn rows<R: Row>(transaction: &redb::ReadTransaction) -> Result<Rows<R>, ReadError> {
    let mut rows = Vec::new();
    for_each(transaction, table_of::<R>(), |key, value| {
        let row: R = decode(value)?;
        if decode::<R::Key>(key)? != row.key() {
            return Err(Malformed("a row under another's key"));
        }
        rows.push(Arc::new(row));
        Ok(())
    })?;
    Ok(rows.into())
}

#[cfg(test)]
mod tests {
    use ib_mad::types::{Gid, Guid, Lid, PKey, Qpn};
    use ib_mad::wire::mad::{AttributeId, Method, Status};
    use sa_proto::snapshot::{AliasGuid, MulticastGroup, Service, ServiceRid};

    use super::*;
    use crate::registry::AnswerRecord;

    fn alias(n: u64) -> Arc<AliasGuid> {
        Arc::new(AliasGuid { alias: Guid(n), port_guid: Guid(n + 1), index: 1 })
    }

    fn key(tid: u64) -> OutcomeKey {
        OutcomeKey {
            slid: Lid(3),
            sgid: Gid([9; 16]),
            qpn: Qpn(1),
            tid,
            attribute: AttributeId(0x31),
            method: Method::SET,
            digest: 77,
        }
    }

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

    fn commit_and_open_again(fold_len: usize) {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, stored) = Store::open(directory.path()).unwrap();
        assert_eq!(stored, Stored { fresh: true, ..Stored::default() });
        store.fold_len = fold_len;
        let mgid = Gid([0xFF; 16]);
        let group = MulticastGroup { mgid, record: [5; 52], predefined: true };
        let gid = Gid([1; 16]);
        let rid = ServiceRid { service_id: 5, service_gid: gid, service_pkey: PKey(0xFFFF) };
        let service = Service { rid, record: [3; 176], expires_s: Some(99) };
        let outcome =
            Outcome { status: Status(0), data: Some(AnswerRecord::new(&[7; 200])), at_s: 50 };
        let mut first = changes(4);
        first.rows.groups.insert(mgid, Some(Arc::new(group.clone())));
        first.rows.services.insert(rid, Some(Arc::new(service.clone())));
        first.rows.alias_guids.extend([1, 2, 3].map(|n| (Guid(n), Some(alias(n)))));
        first.outcomes_put.push((key(1), Outcome { at_s: 40, ..outcome.clone() }));
        store.commit(&first).unwrap();
        let mut second = changes(5);
        second.rows.alias_guids.extend([2, 77].map(|n| (Guid(n), None)));
        second.outcomes_put.push((key(2), outcome.clone()));
        second.outcomes_since_s = 41;
        store.commit(&second).unwrap();
        drop(store);
        let (mut store, stored) = Store::open(directory.path()).unwrap();
        assert_eq!(stored.plane.sequence, 5);
        assert_eq!(stored.plane.alias_guids, vec![alias(1), alias(3)].into());
        assert_eq!(**stored.plane.groups.get(0).unwrap(), group);
        assert_eq!(**stored.plane.services.get(0).unwrap(), service);
        assert_eq!(stored.outcomes, [(key(2), outcome)]);
        assert!(!stored.fresh);

        // What was opened again goes on where it was.
        let mut third = changes(6);
        third.rows.alias_guids.insert(Guid(3), None);
        third.outcomes_since_s = 51;
        store.fold_len = 0;
        store.commit(&third).unwrap();
        drop(store);
        let (_, stored) = Store::open(directory.path()).unwrap();
        assert_eq!(stored.plane.sequence, 6);
        assert_eq!(stored.plane.alias_guids, vec![alias(1)].into());
        assert_eq!(stored.plane.groups.len(), 1);
        assert!(stored.outcomes.is_empty());
    }

    /// Each commit is to leave nothing behind that grows.
    #[test]
    fn the_log_is_as_long_as_the_changes_since_it_was_folded() {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(directory.path()).unwrap();
        store.fold_len = 2_000;
        for sequence in 1..200 {
            let mut next = changes(sequence);
            next.rows.alias_guids.insert(Guid(sequence % 7), Some(alias(sequence % 7)));
            store.commit(&next).unwrap();
            assert!(store.log_len <= 2_000 && store.unfolded.len() <= 7);
        }
        drop(store);
        let (store, stored) = Store::open(directory.path()).unwrap();
        assert!((1..=2_000).contains(&store.log_len));
        assert_eq!((stored.plane.sequence, stored.plane.alias_guids.len()), (199, 7));
    }

    #[test]
    fn only_the_owner_can_read_the_file() {
        let directory = tempfile::tempdir().unwrap();
        drop(Store::open(directory.path()).unwrap());
        let path = directory.path().join(FILE);
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        drop(Store::open(directory.path()).unwrap());
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn a_file_of_another_layout_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(directory.path()).unwrap();
        store
            .write(|transaction| {
                transaction.open_table(META)?.insert("schema", 99)?;
                Ok(())
            })
            .unwrap();
        drop(store);
        for _ in 0..2 {
            let error = Store::open(directory.path()).unwrap_err();
            assert!(matches!(error, StoreError::Schema { found: 99, .. }), "{error}");
            assert!(error.to_string().contains("move it away"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_something_else_or_malformed_is_called_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        fs::write(&path, [b'x'; 8192]).unwrap();
        let error = Store::open(directory.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), [b'x'; 8192], "it is left alone");
        fs::remove_file(&path).unwrap();
        let (store, _) = Store::open(directory.path()).unwrap();
        store
            .write(|transaction| {
                let mut table = transaction.open_table(table_of::<AliasGuid>())?;
                table.insert(&[1u8; 8][..], &[2u8; 3][..])?;
                Ok(())
            })
            .unwrap();
        drop(store);
        let error = Store::open(directory.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }

    #[test]
    fn a_file_in_use_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let _held = Store::open(directory.path()).unwrap();
        let error = Store::open(directory.path()).unwrap_err();
        assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    }

    /// Whatever became of the file: an error, not a panic, and never half of it.
    #[test]
    fn a_cut_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(directory.path()).unwrap();
        let mut all = changes(1);
        all.rows.alias_guids.extend((0..2_000).map(|n| (Guid(n), Some(alias(n)))));
        store.commit(&all).unwrap();
        assert!(store.log_len > 4 * PIECE_LEN, "the entry has several pieces");
        drop(store);
        let path = directory.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        for cut in [100, 4096, whole.len() / 2] {
            fs::write(&path, &whole[..cut]).unwrap();
            match Store::open(directory.path()) {
                Err(StoreError::Damaged { .. } | StoreError::Io { .. }) => {}
                Err(error) => panic!("{error}"),
                Ok((_, stored)) => assert_eq!(stored.plane.alias_guids.len(), 2_000),
            }
        }
    }
}
