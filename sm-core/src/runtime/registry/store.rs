//! The registry on disk: `registry.redb` in the state directory, mode 0600.
//!
//! A table a kind of row, from canonical key to canonical row ([`sa_proto::snapshot::encoding`]),
//! one of outcomes, and one of single values: the schema and the sequence number. A commit is one
//! transaction, and durable when it returns. What is in the rows is the registry's business.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use sa_proto::snapshot::encoding::{Canonical, Malformed, Reader, decode};
use sa_proto::snapshot::{self, RegistryPlane, Row, Rows, Table};

use crate::registry::{Changes, Outcome, OutcomeKey};

/// Layout of the file. Another one is refused.
pub(super) const SCHEMA: u64 = 1;
/// The file's name in the state directory.
pub(super) const FILE: &str = "registry.redb";
/// Memory for pages of the file: rows are read once, at the start.
const CACHE_LEN: usize = 16 << 20;

type Bytes = TableDefinition<'static, &'static [u8], &'static [u8]>;
const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");
const OUTCOMES: Bytes = TableDefinition::new("outcomes");

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
    /// What goes wrong with the next commit.
    #[cfg(test)]
    pub(super) fault: Option<Fault>,
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

    fn read(&self) -> Result<Stored, ReadError> {
        let transaction = self.database.begin_read().map_err(redb::Error::from)?;
        let meta = transaction.open_table(META).map_err(redb::Error::from)?;
        let sequence = meta.get("sequence").map_err(redb::Error::from)?;
        let sequence = sequence.map(|value| value.value());
        let mut outcomes = Vec::new();
        for_each(&transaction, OUTCOMES, |key, value| {
            outcomes.push((outcome_key(key)?, outcome(value)?));
            Ok(())
        })?;
        let plane = RegistryPlane {
            sequence: sequence.unwrap_or(0),
            groups: rows(&transaction)?,
            members: rows(&transaction)?,
            services: rows(&transaction)?,
            subscriptions: rows(&transaction)?,
            alias_guids: rows(&transaction)?,
        };
        // Each commit stores one. A process that ended before its first has left only the schema.
        Ok(Stored { plane, outcomes, fresh: sequence.is_none() })
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
        let done = self.write(|transaction| {
            transaction.open_table(META)?.insert("sequence", changes.rows.sequence)?;
            put(transaction, &changes.rows.groups)?;
            put(transaction, &changes.rows.members)?;
            put(transaction, &changes.rows.services)?;
            put(transaction, &changes.rows.subscriptions)?;
            put(transaction, &changes.rows.alias_guids)?;
            if !changes.outcomes_put.is_empty() || !changes.outcomes_removed.is_empty() {
                let mut table = transaction.open_table(OUTCOMES)?;
                let (mut key, mut value) = (Vec::new(), Vec::new());
                for (of, outcome) in &changes.outcomes_put {
                    put_outcome_key(of, &mut key);
                    put_outcome(outcome, &mut value);
                    table.insert(&key[..], &value[..])?;
                }
                for of in &changes.outcomes_removed {
                    put_outcome_key(of, &mut key);
                    table.remove(&key[..])?;
                }
            }
            Ok(())
        });
        done.map_err(|error| self.failure(error))
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

fn for_each(
    transaction: &redb::ReadTransaction,
    table: Bytes,
    mut take: impl FnMut(&[u8], &[u8]) -> Result<(), Malformed>,
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

fn put_outcome_key(key: &OutcomeKey, out: &mut Vec<u8>) {
    out.clear();
    key.slid.put(out);
    key.sgid.put(out);
    key.qpn.put(out);
    key.tid.put(out);
    key.attribute.0.put(out);
    key.method.0.put(out);
    key.digest.put(out);
}

fn outcome_key(bytes: &[u8]) -> Result<OutcomeKey, Malformed> {
    let mut input = Reader::new(bytes);
    let key = OutcomeKey {
        slid: Lid::take(&mut input)?,
        sgid: Gid::take(&mut input)?,
        qpn: Qpn::take(&mut input)?,
        tid: u64::take(&mut input)?,
        attribute: AttributeId(u16::take(&mut input)?),
        method: Method(u8::take(&mut input)?),
        digest: u64::take(&mut input)?,
    };
    input.finish()?;
    Ok(key)
}

fn put_outcome(outcome: &Outcome, out: &mut Vec<u8>) {
    out.clear();
    outcome.status.0.put(out);
    outcome.at_s.put(out);
    outcome.data.as_deref().copied().put(out);
}

fn outcome(bytes: &[u8]) -> Result<Outcome, Malformed> {
    let mut input = Reader::new(bytes);
    let status = Status(u16::take(&mut input)?);
    let at_s = u64::take(&mut input)?;
    let data: Option<[u8; 200]> = Canonical::take(&mut input)?;
    input.finish()?;
    Ok(Outcome { status, data: data.map(Box::new), at_s })
}

#[cfg(test)]
mod tests {
    use ib_mad::types::{Guid, PKey};
    use sa_proto::snapshot::{AliasGuid, MulticastGroup, RegistryChanges, Service, ServiceRid};

    use super::*;

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
        let directory = tempfile::tempdir().unwrap();
        let (mut store, stored) = Store::open(directory.path()).unwrap();
        assert_eq!(stored, Stored { fresh: true, ..Stored::default() });
        let mgid = Gid([0xFF; 16]);
        let group = MulticastGroup { mgid, record: [5; 52], predefined: true };
        let gid = Gid([1; 16]);
        let rid = ServiceRid { service_id: 5, service_gid: gid, service_pkey: PKey(0xFFFF) };
        let service = Service { rid, record: [3; 176], expires_s: Some(99) };
        let outcome = Outcome { status: Status(0), data: Some(Box::new([7; 200])), at_s: 50 };
        let mut first = changes(4);
        first.rows.groups.insert(mgid, Some(Arc::new(group.clone())));
        first.rows.services.insert(rid, Some(Arc::new(service.clone())));
        first.rows.alias_guids.extend([1, 2, 3].map(|n| (Guid(n), Some(alias(n)))));
        first.outcomes_put.extend([1, 2].map(|tid| (key(tid), Arc::new(outcome.clone()))));
        store.commit(&first).unwrap();
        let mut second = changes(5);
        second.rows.alias_guids.extend([2, 77].map(|n| (Guid(n), None)));
        second.outcomes_removed.extend([key(1), key(9)]);
        store.commit(&second).unwrap();
        drop(store);
        let (_, stored) = Store::open(directory.path()).unwrap();
        assert_eq!(stored.plane.sequence, 5);
        assert_eq!(stored.plane.alias_guids, vec![alias(1), alias(3)].into());
        assert_eq!(**stored.plane.groups.get(0).unwrap(), group);
        assert_eq!(**stored.plane.services.get(0).unwrap(), service);
        assert_eq!(stored.outcomes, [(key(2), outcome)]);
        assert!(!stored.fresh);
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
