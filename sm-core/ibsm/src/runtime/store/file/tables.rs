//! The tables of the file: writing and reading rows and entries.

use std::sync::Arc;

use redb::{ReadableTable, TableDefinition, WriteTransaction};
use sa_proto::snapshot::encoding::{Canonical, Malformed, Reader, decode};
use sa_proto::snapshot::{self, ReadRows, Row, Rows, WriteChanges};
use sm_core::registry::Stamp;

use super::entry;

type Bytes = TableDefinition<'static, &'static [u8], &'static [u8]>;
/// Bytes of an entry that are stored as one piece: with the library's overhead they fill two pages.
/// A larger piece would need pages of a size that is allocated from the system each time.
pub(super) const PIECE_LEN: usize = 8000;

/// From the number of a commit, and that of a piece.
pub(super) type Numbered = TableDefinition<'static, (u64, u32), &'static [u8]>;
pub(super) const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");
pub(super) const LOG: Numbered = TableDefinition::new("log");
pub(super) const OUTCOMES: Numbered = TableDefinition::new("outcomes");
/// Registry time, under [`STAMP`].
const CLOCK: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("clock");
const STAMP: &str = "stamp";

/// The table that holds rows of a kind.
pub(super) fn table_of<R: Row>() -> Bytes {
    TableDefinition::new(R::TABLE.registry_name().expect("rows of the registry plane"))
}

/// Writes changes to the tables of rows.
pub(super) struct RowWriter<'t>(pub(super) &'t WriteTransaction);

impl WriteChanges for RowWriter<'_> {
    type Error = redb::Error;

    fn changes<R: Row>(&mut self, changes: &snapshot::Changes<R>) -> Result<(), redb::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut table = self.0.open_table(table_of::<R>())?;
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
}

/// Reads the tables of rows.
pub(super) struct RowReader<'t>(pub(super) &'t redb::ReadTransaction);

impl ReadRows for RowReader<'_> {
    type Error = ReadError;

    fn rows<R: Row>(&mut self) -> Result<Rows<R>, ReadError> {
        rows(self.0)
    }
}

/// Appends the entry of a commit.
pub(super) fn append(
    table: &mut redb::Table<'_, (u64, u32), &'static [u8]>,
    number: u64,
    entry: &[u8],
) -> Result<(), redb::StorageError> {
    for (piece, bytes) in (0..).zip(entry.chunks(PIECE_LEN)) {
        table.insert((number, piece), bytes)?;
    }
    Ok(())
}

/// Stores registry time.
pub(super) fn put_stamp(transaction: &WriteTransaction, stamp: &Stamp) -> Result<(), redb::Error> {
    let mut value = Vec::new();
    entry::put_stamp(stamp, &mut value);
    transaction.open_table(CLOCK)?.insert(STAMP, &value[..])?;
    Ok(())
}

/// Reads what [`put_stamp`] stored; `None` if nothing was.
pub(super) fn read_stamp(transaction: &redb::ReadTransaction) -> Result<Option<Stamp>, ReadError> {
    let mut stamp = None;
    for_each(transaction, CLOCK, |_, value| {
        let mut input = Reader::new(value);
        stamp = Some(entry::take_stamp(&mut input)?);
        input.finish()
    })?;
    Ok(stamp)
}

pub(super) enum ReadError {
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

pub(super) fn for_each<K: redb::Key + 'static>(
    transaction: &redb::ReadTransaction,
    table: TableDefinition<'static, K, &'static [u8]>,
    mut take: impl FnMut(K::SelfType<'_>, &[u8]) -> Result<(), Malformed>,
) -> Result<(), ReadError> {
    let table = match transaction.open_table(table) {
        Ok(table) => table,
        // A table is created by its first entry.
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
pub(super) fn for_each_entry(
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
