//! The registry on disk: `registry.redb` in the state directory, mode 0600.
//!
//! There is one table for each kind of row, from canonical key to canonical row
//! ([`sa_proto::snapshot::encoding`]); one of single values, the schema and the sequence number;
//! one with registry time; and two with one entry for each commit: the log of changes since the
//! tables of rows were updated last ([`entry`]), and outcomes. A commit is one transaction, and
//! durable when it returns. It appends to log and outcomes, a few pages for any rows: entries are
//! stored without their zeros ([`zeros`]). After [`FOLD_LEN`] of changes the log is folded into the
//! tables of rows. The registry decides what the rows contain.

mod tables;
mod zeros;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use daemon::kept;
use ib_mad::types::Guid;
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, StorageBackend, WriteTransaction};
use sa_proto::snapshot::{RegistryChanges, RegistryPlane, Session};

use super::error::failure;
use super::{Event, Store, StoreError, Stored, entry};
use sm_core::registry::{Changes, Outcome, OutcomeKey, outcome};
use tables::{
    LOG, META, OUTCOMES, PIECE_LEN, ReadError, RowReader, RowWriter, append, for_each_entry,
    put_stamp, read_stamp,
};

/// Layout of the file. One of [`SCHEMA_BEFORE`] is converted, others are refused.
pub(super) const SCHEMA: u64 = 3;
/// The layout in which entries had their zeros.
const SCHEMA_BEFORE: u64 = 2;
/// The file's name in the state directory.
const FILE: &str = "registry.redb";
/// Memory for pages of the file: rows are read once, at the start.
const CACHE_LEN: usize = 16 << 20;

/// Approximate size of the log, bytes, at which it is folded into the tables of rows: some twenty
/// milliseconds of work, and a few times as much memory.
const FOLD_LEN: usize = 1 << 19;

/// Bytes of the file that are read at once to be written again, and a page of the file.
const REWRITTEN_AT_ONCE: usize = 1 << 20;
const BLOCK_LEN: usize = 4096;

/// Commits whose outcomes are outdated, at which these are removed: their entries share pages, so
/// that many cost hardly more than one. Those that remain are expired when they are read.
const OUTDATED_AT_ONCE: usize = 64;

/// Memory kept for the bytes of the next commit: more than one of 1,024 writes takes.
const BUFFERS_MAX: usize = 1 << 20;

/// Where the file is kept.
pub trait Medium: Debug + Send + Sync {
    /// The file's path, for messages.
    fn path(&self) -> PathBuf;

    /// Opens the file, or creates it. What can be read from it was written to the disk, with
    /// [`rewrite`]. A crash loses what is written later and not synced.
    fn open(&self, builder: redb::Builder) -> Result<Database, redb::Error>;

    /// Approximate size of the log of changes, bytes, at which it is folded into the tables of
    /// rows.
    fn fold_len(&self) -> usize {
        FOLD_LEN
    }
}

/// A directory of the host.
#[derive(Clone, Debug)]
struct Directory(PathBuf);

impl Medium for Directory {
    fn path(&self) -> PathBuf {
        self.0.join(FILE)
    }

    fn open(&self, builder: redb::Builder) -> Result<Database, redb::Error> {
        let file = kept::check_directory(&self.0).and_then(|()| open_private(&self.path()));
        let file = file.map_err(redb::StorageError::Io)?;
        // Pages of another process must not be replaced with older ones. The library takes this
        // lock, too, where the file system has locks.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(redb::Error::DatabaseAlreadyOpen);
        }
        let backend = FileBackend::new(file.try_clone()?)?;
        rewrite(&backend).map_err(redb::StorageError::Io)?;
        // It fails only if there was no lock.
        let _ = file.unlock();
        Ok(builder.create_with_backend(backend)?)
    }
}

/// Writes what can be read from a file to the disk.
///
/// After a sync that failed, Linux keeps what it could not write in the page cache and regards it
/// as written: it can be read, by later processes too, later syncs succeed, and it is lost when the
/// power fails. Only a page that is written again is written to the disk.
///
/// Blocks of zeros are left as they are: they may be holes, and a full disk has no room for these.
/// No page of the library that is in use is one, as each begins with its kind.
pub fn rewrite(file: &impl StorageBackend) -> io::Result<()> {
    let len = file.len()?;
    let mut piece = vec![0; REWRITTEN_AT_ONCE];
    let mut offset = 0;
    while offset < len {
        let piece = &mut piece[..REWRITTEN_AT_ONCE.min((len - offset) as usize)];
        file.read(offset, piece)?;
        let is_used = |block: &[u8]| block.iter().any(|&byte| byte != 0);
        let blocks = piece.chunks(BLOCK_LEN).zip((0..).step_by(BLOCK_LEN));
        for (block, at) in blocks.filter(|(block, _)| is_used(block)) {
            file.write(offset + at, block)?;
        }
        offset += piece.len() as u64;
    }
    file.sync_data()
}

/// The store of one manager: a file that only it has open. Its calls end before they return.
pub(in super::super) struct FileStore {
    medium: Arc<dyn Medium>,
    /// `None` while it cannot be used.
    file: Option<RegistryFile>,
    event: Option<Event>,
}

impl FileStore {
    /// The store in this directory, not opened yet.
    pub(in super::super) fn new(directory: PathBuf) -> Self {
        Self::on(Arc::new(Directory(directory)))
    }

    /// The store on this medium, not opened yet.
    pub(in super::super) fn on(medium: Arc<dyn Medium>) -> Self {
        Self { medium, file: None, event: None }
    }
}

impl Store for FileStore {
    fn open(&mut self) {
        // The file must be closed first: it is locked.
        self.file = None;
        let opened = RegistryFile::open(&*self.medium);
        self.event = Some(match opened {
            Ok((file, stored)) => {
                self.file = Some(file);
                Event::Opened(Box::new(stored))
            }
            Err(failure) => Event::Failed(failure),
        });
    }

    fn submit(&mut self, changes: &Arc<Changes>, session: Session) {
        let file = self.file.as_mut().expect("commits are submitted while the store is open");
        self.event = Some(match file.commit(changes, session) {
            Ok(()) => Event::Committed,
            Err(failure) => {
                self.file = None;
                Event::Failed(failure)
            }
        });
    }

    fn poll(&mut self) -> Option<Event> {
        self.event.take()
    }
}

/// The single values that name the session of the rows.
const SESSION_KEYS: [&str; 2] = ["session_epoch", "session_sm_guid"];

/// The file, open.
#[derive(Debug)]
struct RegistryFile {
    database: Database,
    path: PathBuf,
    /// Number of the next commit.
    next: u64,
    /// Size of the log, bytes, and the changes of its commits.
    log_len: usize,
    unfolded: Vec<RegistryChanges>,
    /// Memory for the next commit: it takes as much each time.
    buffers: Buffers,
    /// Commits with outcomes, and the time of their last outcome.
    outcomes: VecDeque<Batch>,
    /// Size of the log at which it is folded, bytes.
    fold_len: usize,
    /// Session of the last commit.
    session: Session,
}

/// The bytes of a commit.
#[derive(Debug, Default)]
struct Buffers {
    /// Before zeros are left out.
    whole: Vec<u8>,
    rows: Vec<u8>,
    outcomes: Vec<u8>,
}

/// The outcomes of a commit.
#[derive(Clone, Copy, Debug)]
struct Batch {
    number: u64,
    pieces: u32,
    /// Time of the last of them, seconds of registry time.
    last_s: u64,
}

impl RegistryFile {
    /// Opens the file, or creates it, and reads all of it.
    fn open(medium: &dyn Medium) -> Result<(Self, Stored), StoreError> {
        let path = medium.path();
        let damaged =
            |reason: &str| StoreError::Damaged { path: path.clone(), reason: reason.to_owned() };
        // A damaged file may make the library panic.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let mut builder = redb::Builder::new();
            builder.set_cache_size(CACHE_LEN);
            let database = medium.open(builder).map_err(|error| failure(&path, error))?;
            let mut store = Self {
                database,
                path: path.clone(),
                next: 0,
                log_len: 0,
                unfolded: Vec::new(),
                buffers: Buffers::default(),
                outcomes: VecDeque::new(),
                fold_len: medium.fold_len(),
                session: Session::default(),
            };
            let stored = store.read_or_begin()?;
            Ok((store, stored))
        }));
        opened.unwrap_or_else(|_| Err(damaged("its pages are inconsistent")))
    }

    fn read_or_begin(&mut self) -> Result<Stored, StoreError> {
        let outcome = self.schema().map_err(|error| self.failure(error))?;
        match outcome {
            Some(schema @ (SCHEMA | SCHEMA_BEFORE)) => {
                let stored = self.read(schema).map_err(|error| match error {
                    ReadError::Store(error) => self.failure(error),
                    ReadError::Malformed(malformed) => {
                        let reason = malformed.to_string();
                        StoreError::Damaged { path: self.path.clone(), reason }
                    }
                })?;
                if schema != SCHEMA {
                    self.convert(&stored.outcomes).map_err(|error| self.failure(error))?;
                }
                Ok(stored)
            }
            Some(found) => {
                Err(StoreError::Schema { path: self.path.clone(), known: SCHEMA, found })
            }
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

    /// Reads a file of this layout.
    fn read(&mut self, schema: u64) -> Result<Stored, ReadError> {
        let whole = |stored: &[u8]| match schema {
            SCHEMA => zeros::unpack(stored),
            _ => Ok(stored.to_vec()),
        };
        let transaction = self.database.begin_read().map_err(redb::Error::from)?;
        let meta = transaction.open_table(META).map_err(redb::Error::from)?;
        let sequence = meta.get("sequence").map_err(redb::Error::from)?;
        let sequence = sequence.map(|value| value.value());
        let [epoch, sm_guid] = SESSION_KEYS.map(|key| meta.get(key));
        let number = |value: Option<redb::AccessGuard<'_, u64>>| value.map_or(0, |v| v.value());
        let epoch = number(epoch.map_err(redb::Error::from)?);
        let sm_guid = Guid(number(sm_guid.map_err(redb::Error::from)?));
        self.session = Session { epoch, sm_guid };
        let mut plane = RegistryPlane::read(sequence.unwrap_or(0), &mut RowReader(&transaction))?;
        for_each_entry(&transaction, LOG, |number, _, bytes| {
            self.next = self.next.max(number + 1);
            self.log_len += bytes.len();
            let changes = entry::read_rows(&whole(bytes)?)?;
            plane.apply(&changes);
            self.note_unfolded(&changes);
            Ok(())
        })?;
        let mut outcomes = Vec::new();
        for_each_entry(&transaction, OUTCOMES, |number, pieces, bytes| {
            self.next = self.next.max(number + 1);
            let before = outcomes.len();
            outcome::encoding::decode(&whole(bytes)?, &mut outcomes)?;
            let last_s = outcomes[before..].iter().map(|(_, outcome)| outcome.at_s).max();
            self.outcomes.push_back(Batch { number, pieces, last_s: last_s.unwrap_or(0) });
            Ok(())
        })?;
        // Each commit stores one. A process that ended before its first commit left only the
        // schema.
        let fresh = sequence.is_none() && self.log_len == 0;
        let stamp = read_stamp(&transaction)?;
        Ok(Stored { plane, outcomes, stamp, session: self.session, fresh })
    }

    /// Rewrites the entries of a file of the layout before.
    fn convert(&mut self, outcomes: &[(OutcomeKey, Outcome)]) -> Result<(), redb::Error> {
        let number = self.next;
        let mut packed = Vec::new();
        zeros::pack(&outcome::encoding::encode(outcomes), &mut packed);
        self.write(|transaction| {
            if !self.unfolded.is_empty() {
                self.fold(transaction)?;
            }
            transaction.delete_table(OUTCOMES)?;
            append(&mut transaction.open_table(OUTCOMES)?, number, &packed)?;
            transaction.open_table(META)?.insert("schema", SCHEMA)?;
            Ok(())
        })?;
        self.next += 1;
        self.log_len = 0;
        self.unfolded.clear();
        self.outcomes.clear();
        self.note_outcomes(number, outcomes, packed.len());
        Ok(())
    }

    /// The log has these changes, too.
    fn note_unfolded(&mut self, changes: &RegistryChanges) {
        match self.unfolded.last_mut() {
            // A commit of outcomes alone.
            Some(last) if changes.is_empty() => last.sequence = changes.sequence,
            _ => self.unfolded.push(changes.clone()),
        }
    }

    /// The entry of a commit has these outcomes, in so many bytes.
    fn note_outcomes(&mut self, number: u64, outcomes: &[(OutcomeKey, Outcome)], len: usize) {
        let last_s = outcomes.iter().map(|(_, outcome)| outcome.at_s).max();
        let pieces = len.div_ceil(PIECE_LEN) as u32;
        self.outcomes.extend(last_s.map(|last_s| Batch { number, pieces, last_s }));
    }

    /// Makes changes durable, all or none. After a failure the file must be reopened: it is unknown
    /// whether the changes are on disk.
    fn commit(&mut self, changes: &Changes, session: Session) -> Result<(), StoreError> {
        let mut buffers = std::mem::take(&mut self.buffers);
        let Buffers { whole, rows, outcomes } = &mut buffers;
        whole.clear();
        rows.clear();
        outcomes.clear();
        entry::put_rows(&changes.rows, whole);
        zeros::pack(whole, rows);
        whole.clear();
        outcome::encoding::put(&changes.outcomes_put, whole);
        zeros::pack(whole, outcomes);
        let folds = self.log_len + rows.len() > self.fold_len;
        self.note_unfolded(&changes.rows);
        let number = self.next;
        let since_s = changes.outcomes_since_s;
        let mut outdated = self.outcomes.iter().take_while(|batch| batch.last_s < since_s).count();
        // All of them are outdated where another session begins: what remained would be taken for
        // outcomes of that.
        if outdated < OUTDATED_AT_ONCE && outdated < self.outcomes.len() {
            outdated = 0;
        }
        let done = self.write(|transaction| {
            if folds {
                self.fold(transaction)?;
            } else {
                append(&mut transaction.open_table(LOG)?, number, rows)?;
            }
            if !outcomes.is_empty() || outdated > 0 {
                let mut table = transaction.open_table(OUTCOMES)?;
                for batch in self.outcomes.range(..outdated) {
                    for piece in 0..batch.pieces {
                        table.remove((batch.number, piece))?;
                    }
                }
                append(&mut table, number, outcomes)?;
            }
            if session != self.session {
                let mut meta = transaction.open_table(META)?;
                let values = [session.epoch, session.sm_guid.0];
                for (key, value) in SESSION_KEYS.into_iter().zip(values) {
                    meta.insert(key, value)?;
                }
            }
            if let Some(stamp) = &changes.stamp {
                put_stamp(transaction, stamp)?;
            }
            Ok(())
        });
        done.map_err(|error| self.failure(error))?;
        self.next += 1;
        self.session = session;
        self.outcomes.drain(..outdated);
        self.note_outcomes(number, &changes.outcomes_put, outcomes.len());
        if folds {
            self.log_len = 0;
            self.unfolded.clear();
        } else {
            self.log_len += rows.len();
        }
        let Buffers { whole, rows, outcomes } = &buffers;
        if whole.capacity() + rows.capacity() + outcomes.capacity() <= BUFFERS_MAX {
            self.buffers = buffers;
        }
        Ok(())
    }

    /// Folds the log into the tables of rows.
    fn fold(&self, transaction: &WriteTransaction) -> Result<(), redb::Error> {
        let rows = RegistryChanges::merged(&self.unfolded);
        transaction.open_table(META)?.insert("sequence", rows.sequence)?;
        rows.write(&mut RowWriter(transaction))?;
        transaction.delete_table(LOG)?;
        Ok(())
    }

    fn write(
        &self,
        act: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        // Durable when it returns, by default.
        let transaction = self.database.begin_write()?;
        act(&transaction)?;
        transaction.commit()?;
        Ok(())
    }

    fn failure(&self, error: redb::Error) -> StoreError {
        failure(&self.path, error)
    }
}

/// Opens a file that only its owner can read, creating it if need be.
fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = kept::open(path, &mut options)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    Ok(file)
}

#[cfg(test)]
mod tests;
