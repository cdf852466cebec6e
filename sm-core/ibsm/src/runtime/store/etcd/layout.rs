//! Keys and values in etcd, and the transactions on them. Nothing here does I/O.
//!
//! | key, after the prefix | value |
//! |---|---|
//! | `fence` | the manager that may commit; the key hangs on its lease |
//! | `head` | layout, number of the last commit in the tables, pieces of the tables |
//! | `table/NUMBER/PIECE` | all rows and outcomes after the commit with this number |
//! | `log/NUMBER` | a commit: how many pieces precede the last, and the last |
//! | `piece/NUMBER/PIECE` | the other pieces of a long commit |
//! | `state` | layout, version and list of the documents that are the state besides the registry |
//! | `document/HASH/PIECE` | the text of a document |
//!
//! Numbers and pieces are hexadecimal digits of fixed width, so that keys are in their order. Every
//! transaction that writes compares the revision in which `fence` was created, which only its
//! holder knows to be its own. A commit is visible when `log/NUMBER` is, and that key must be
//! absent: of two attempts with one number, one takes effect. Its pieces are written before.

use std::collections::BTreeSet;

use sa_proto::prost::bytes::Bytes;
use sa_proto::snapshot::encoding::{Canonical, Malformed, Reader};
use sa_proto::snapshot::{RegistryChanges, RegistryPlane, Session};
use sa_proto::state::{DOCUMENT_LEN_MAX, Documents, Kind, StateVersion};
use sm_core::registry::{Changes, Stamp, outcome};

use super::super::entry;
use super::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use super::proto::request_op::Request;
use super::proto::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use ib_mad::types::Guid;

/// Layout of keys and values. Another one is refused.
pub(super) const SCHEMA: u64 = 1;
/// Bytes of a piece: etcd accepts requests of 1.5 MiB by default.
pub(super) const PIECE_LEN: usize = 1 << 20;
/// Keys in a response, at most.
pub(super) const PAGE: i64 = 32;

/// The keys of a store.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

/// First key of a range, and the first key after it.
pub(super) type KeyRange = (Bytes, Bytes);

impl Keys {
    /// Keys that begin with this prefix, which has no slash at its end.
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    fn key(&self, rest: impl std::fmt::Display) -> Bytes {
        format!("{}/{rest}", self.prefix).into()
    }

    pub(super) fn fence(&self) -> Bytes {
        self.key("fence")
    }

    pub(super) fn head(&self) -> Bytes {
        self.key("head")
    }

    pub(super) fn log(&self, number: u64) -> Bytes {
        self.key(format_args!("log/{number:016x}"))
    }

    /// The log from this number on.
    pub(super) fn log_from(&self, number: u64) -> KeyRange {
        (self.log(number), self.key("log0"))
    }

    fn log_up_to(&self, number: u64) -> KeyRange {
        (self.key("log/"), self.log(number + 1))
    }

    fn piece(&self, number: u64, piece: usize) -> Bytes {
        self.key(format_args!("piece/{number:016x}/{piece:08x}"))
    }

    /// The first pieces of a commit.
    pub(super) fn pieces(&self, number: u64) -> KeyRange {
        (self.piece(number, 0), self.key(format_args!("piece/{number:016x}0")))
    }

    fn pieces_up_to(&self, number: u64) -> KeyRange {
        (self.key("piece/"), self.pieces(number).1)
    }

    pub(super) fn state(&self) -> Bytes {
        self.key("state")
    }

    /// A piece of the text with this hash.
    pub(super) fn document_piece(&self, hash: u128, piece: usize) -> Bytes {
        self.key(format_args!("document/{hash:032x}/{piece:08x}"))
    }

    /// The text with this hash.
    pub(super) fn document(&self, hash: u128) -> KeyRange {
        (self.document_piece(hash, 0), self.key(format_args!("document/{hash:032x}0")))
    }

    /// A piece of the tables.
    pub(super) fn table_piece(&self, number: u64, piece: usize) -> Bytes {
        self.key(format_args!("table/{number:016x}/{piece:08x}"))
    }

    /// The tables as of this commit.
    pub(super) fn table(&self, number: u64) -> KeyRange {
        (self.table_piece(number, 0), self.key(format_args!("table/{number:016x}0")))
    }

    /// The number of the commit whose entry this is.
    pub(super) fn number_of(&self, log_key: &[u8]) -> Option<u64> {
        let digits = log_key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"/log/")?;
        u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }
}

/// The right to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fence {
    /// Revision in which our `fence` was created.
    pub(super) revision: i64,
    /// The lease that it hangs on.
    pub(super) lease: i64,
}

/// Takes the fence if no one has it.
pub(super) fn take_fence(keys: &Keys, lease: i64, holder: &str) -> TxnRequest {
    let value = Bytes::copy_from_slice(holder.as_bytes());
    TxnRequest {
        compare: vec![created_in(keys.fence(), 0)],
        success: vec![put(PutRequest { key: keys.fence(), value, lease })],
        failure: Vec::new(),
    }
}

/// Writes one piece, which nothing refers to yet.
pub(super) fn put_piece(keys: &Keys, fence: Fence, key: Bytes, value: Bytes) -> TxnRequest {
    TxnRequest {
        compare: vec![created_in(keys.fence(), fence.revision)],
        success: vec![put(PutRequest { key, value, lease: 0 })],
        failure: Vec::new(),
    }
}

/// A commit, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    number: u64,
    /// All pieces but the last, and the last with their count before it.
    pieces: Vec<Bytes>,
    last: Bytes,
}

impl Commit {
    /// The commit of a record with this number.
    pub(super) fn new(number: u64, record: Bytes) -> Self {
        let mut pieces: Vec<Bytes> = Vec::new();
        let mut rest = record;
        while rest.len() > PIECE_LEN {
            pieces.push(rest.split_to(PIECE_LEN));
        }
        let mut last = Vec::with_capacity(4 + rest.len());
        (pieces.len() as u32).put(&mut last);
        last.extend_from_slice(&rest);
        Self { number, pieces, last: last.into() }
    }

    /// Bytes of all pieces.
    pub(super) fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum::<usize>() + self.last.len()
    }

    /// The transactions, in their order; the last makes the commit visible.
    pub(super) fn transactions(&self, keys: &Keys, fence: Fence) -> Vec<TxnRequest> {
        let pieces = self.pieces.iter().enumerate();
        let pieces = pieces
            .map(|(at, piece)| put_piece(keys, fence, keys.piece(self.number, at), piece.clone()));
        let key = keys.log(self.number);
        let value = self.last.clone();
        let visible = TxnRequest {
            compare: vec![created_in(keys.fence(), fence.revision), created_in(key.clone(), 0)],
            success: vec![put(PutRequest { key: key.clone(), value, lease: 0 })],
            failure: vec![range(one(keys.fence())), range(one(key))],
        };
        pieces.chain([visible]).collect()
    }

    /// Whether the commit took effect earlier, by what its last transaction found: the fence and
    /// the entry. `false`: another manager has taken the fence, and what it took over is decided.
    pub(super) fn was_made(&self, fence: Fence, found: &[&KeyValue]) -> bool {
        is_held(fence, found) && found.iter().any(|kv| kv.value == self.last)
    }
}

/// The number of pieces before the last, and the last, of a value of the log.
pub(super) fn read_last(value: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    let mut input = Reader::new(value);
    let pieces = u32::take(&mut input)?;
    let rest = input.remaining();
    Ok((pieces as usize, input.bytes(rest)?))
}

/// The tables after a commit, in pieces.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    number: u64,
    pieces: Vec<Bytes>,
}

/// What `head` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Number of the last commit in the tables; 0 if there are none.
    pub(super) number: u64,
    /// Pieces of the tables.
    pub(super) pieces: u64,
}

impl Tables {
    /// Tables of a record that has everything after the commit with this number.
    pub(super) fn new(number: u64, mut record: Bytes) -> Self {
        let mut pieces = Vec::new();
        while !record.is_empty() {
            pieces.push(record.split_to(record.len().min(PIECE_LEN)));
        }
        Self { number, pieces }
    }

    /// The transactions that write the tables, at least one.
    pub(super) fn pieces(&self, keys: &Keys, fence: Fence) -> impl Iterator<Item = TxnRequest> {
        let pieces = self.pieces.iter().enumerate();
        pieces.map(move |(at, piece)| {
            put_piece(keys, fence, keys.table_piece(self.number, at), piece.clone())
        })
    }

    /// Makes the tables valid, which are written, and deletes what they replace: older tables, the
    /// log up to their commit, and what a manager that ended too early left. `head` was not changed
    /// since the revision `as_of`.
    pub(super) fn replace(&self, keys: &Keys, fence: Fence, as_of: i64) -> Replacement {
        let mut value = Vec::new();
        for field in [SCHEMA, self.number, self.pieces.len() as u64] {
            field.put(&mut value);
        }
        let (ours, after_ours) = keys.table(self.number);
        let stale_pieces = keys.table_piece(self.number, self.pieces.len());
        let replaced = [
            (keys.key("table/"), ours),
            (stale_pieces, after_ours.clone()),
            (after_ours, keys.key("table0")),
            keys.log_up_to(self.number),
            keys.pieces_up_to(self.number),
        ];
        Replacement::new(keys, fence, as_of, (keys.head(), value.into()), replaced)
    }
}

/// A transaction that replaces the value of a key, and deletes what the value before referred to.
///
/// A request that had no answer may be carried out later, after others: it would bring back what
/// was replaced since, whose parts are deleted. So each is carried out only if the key has not
/// changed since a revision.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    pub(super) request: TxnRequest,
    fence: Fence,
    value: Bytes,
}

impl Replacement {
    fn new(
        keys: &Keys,
        fence: Fence,
        as_of: i64,
        (key, value): (Bytes, Bytes),
        replaced: impl IntoIterator<Item = KeyRange>,
    ) -> Self {
        let new = put(PutRequest { key: key.clone(), value: value.clone(), lease: 0 });
        let request = TxnRequest {
            compare: vec![
                created_in(keys.fence(), fence.revision),
                unchanged_since(key.clone(), as_of),
            ],
            success: [new].into_iter().chain(replaced.into_iter().map(delete)).collect(),
            failure: vec![range(one(keys.fence())), range(one(key))],
        };
        Self { request, fence, value }
    }

    /// Whether it took effect earlier, by what it found: the fence and the key. `false`: another
    /// manager has taken the fence.
    pub(super) fn was_made(&self, found: &[&KeyValue]) -> bool {
        is_held(self.fence, found) && found.iter().any(|kv| kv.value == self.value)
    }
}

/// Whether the fence that was found is this one.
fn is_held(fence: Fence, found: &[&KeyValue]) -> bool {
    let found = found.iter().find(|kv| kv.key.ends_with(b"/fence"));
    found.is_some_and(|kv| kv.create_revision == fence.revision)
}

/// The state besides the registry, without texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateHead {
    pub(super) version: StateVersion,
    pub(super) documents: Vec<Listed>,
}

/// A document of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) hash: u128,
    /// Length of the text, if it is kept.
    pub(super) len: Option<u64>,
}

impl StateHead {
    pub(super) fn of(version: StateVersion, documents: &Documents) -> Self {
        let listed = documents.values().map(|document| Listed {
            kind: document.kind,
            name: document.name.clone(),
            hash: document.hash,
            len: document.text.as_ref().map(|text| text.len() as u64),
        });
        Self { version, documents: listed.collect() }
    }

    fn value(&self) -> Bytes {
        let mut value = Vec::new();
        let StateVersion { session, number } = self.version;
        for field in [SCHEMA, session.epoch, session.sm_guid.0, number] {
            field.put(&mut value);
        }
        (self.documents.len() as u32).put(&mut value);
        for Listed { kind, name, hash, len } in &self.documents {
            (*kind == Kind::OperatorsFile).put(&mut value);
            (name.len() as u32).put(&mut value);
            value.extend_from_slice(name.as_bytes());
            hash.put(&mut value);
            len.is_some().put(&mut value);
            len.unwrap_or_default().put(&mut value);
        }
        value.into()
    }
}

/// Makes a state valid, whose texts are written, and deletes all other texts. The state was not
/// changed since the revision `as_of`.
pub(super) fn put_state(keys: &Keys, fence: Fence, as_of: i64, head: &StateHead) -> Replacement {
    let kept = head.documents.iter().filter(|document| document.len.is_some());
    let kept: BTreeSet<u128> = kept.map(|document| document.hash).collect();
    let (mut from, mut replaced) = (keys.key("document/"), Vec::new());
    for hash in kept {
        let (first, end) = keys.document(hash);
        replaced.push((from, first));
        from = end;
    }
    replaced.push((from, keys.key("document0")));
    Replacement::new(keys, fence, as_of, (keys.state(), head.value()), replaced)
}

/// Reads the value of `state`.
pub(super) fn read_state(value: &[u8]) -> Result<StateHead, Unreadable> {
    let mut input = Reader::new(value);
    let schema = u64::take(&mut input)?;
    if schema != SCHEMA {
        return Err(Unreadable::Schema(schema));
    }
    let session = Session { epoch: u64::take(&mut input)?, sm_guid: Guid(u64::take(&mut input)?) };
    let version = StateVersion { session, number: u64::take(&mut input)? };
    // A kind, the lengths of name and text, a hash.
    let count = input.count(1 + 4 + 16 + 9)?;
    let documents = (0..count).map(|_| {
        let kind = match bool::take(&mut input)? {
            true => Kind::OperatorsFile,
            false => Kind::StateFile,
        };
        let len = u32::take(&mut input)? as usize;
        let name = std::str::from_utf8(input.bytes(len)?);
        let name = name.map_err(|_| Malformed("a name that is no text"))?.to_owned();
        let hash = u128::take(&mut input)?;
        let (has_text, len) = (bool::take(&mut input)?, u64::take(&mut input)?);
        Ok(Listed { kind, name, hash, len: has_text.then_some(len) })
    });
    let documents = documents.collect::<Result<_, Malformed>>()?;
    input.finish()?;
    Ok(StateHead { version, documents })
}

/// Number of pieces of a text.
pub(super) fn pieces_of(len: u64) -> Result<usize, Malformed> {
    let len = usize::try_from(len).ok().filter(|&len| len <= DOCUMENT_LEN_MAX);
    Ok(len.ok_or(Malformed("a document that is too long"))?.div_ceil(PIECE_LEN))
}

/// Why a value cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Malformed(Malformed),
    Schema(u64),
}

impl From<Malformed> for Unreadable {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// Reads the value of `head`.
pub(super) fn read_head(value: Option<&[u8]>) -> Result<Head, Unreadable> {
    let Some(value) = value else { return Ok(Head::default()) };
    let mut input = Reader::new(value);
    let schema = u64::take(&mut input)?;
    if schema != SCHEMA {
        return Err(Unreadable::Schema(schema));
    }
    let (number, pieces) = (u64::take(&mut input)?, u64::take(&mut input)?);
    input.finish()?;
    Ok(Head { number, pieces })
}

/// What a commit stores, or what the tables hold.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) session: Session,
    pub(super) stamp: Option<Stamp>,
    /// Outcomes of earlier records that end before this time are outdated.
    pub(super) outcomes_since_s: u64,
    pub(super) rows: RegistryChanges,
    /// As [`outcome::encoding::encode`] writes them.
    pub(super) outcomes: Bytes,
}

/// The record of a commit, and the part of it that has the outcomes.
pub(super) fn record_of(changes: &Changes, session: Session) -> (Bytes, Bytes) {
    let outcomes = outcome::encoding::encode(&changes.outcomes_put);
    let (stamp, since_s) = (changes.stamp, changes.outcomes_since_s);
    let record = write(session, stamp, since_s, &changes.rows, &[&outcomes]);
    let outcomes = record.slice(record.len() - outcomes.len()..);
    (record, outcomes)
}

/// The record of everything.
pub(super) fn record_of_all(
    plane: &RegistryPlane,
    outcomes: &[&[u8]],
    session: Session,
    stamp: Option<Stamp>,
) -> Bytes {
    let rows = RegistryChanges::between(&RegistryPlane::default(), plane);
    write(session, stamp, 0, &rows, outcomes)
}

fn write(
    session: Session,
    stamp: Option<Stamp>,
    outcomes_since_s: u64,
    rows: &RegistryChanges,
    outcomes: &[&[u8]],
) -> Bytes {
    let rows = entry::rows(rows);
    let len: usize = outcomes.iter().map(|part| part.len()).sum();
    let mut out = Vec::with_capacity(128 + rows.len() + len);
    session.epoch.put(&mut out);
    session.sm_guid.0.put(&mut out);
    stamp.is_some().put(&mut out);
    if let Some(stamp) = &stamp {
        entry::put_stamp(stamp, &mut out);
    }
    outcomes_since_s.put(&mut out);
    (rows.len() as u64).put(&mut out);
    out.extend_from_slice(&rows);
    for part in outcomes {
        out.extend_from_slice(part);
    }
    out.into()
}

/// Reads a record.
pub(super) fn read_record(bytes: &[u8]) -> Result<Record, Malformed> {
    let mut input = Reader::new(bytes);
    let session = Session { epoch: u64::take(&mut input)?, sm_guid: Guid(u64::take(&mut input)?) };
    let stamp = match bool::take(&mut input)? {
        true => Some(entry::take_stamp(&mut input)?),
        false => None,
    };
    let outcomes_since_s = u64::take(&mut input)?;
    let len = u64::take(&mut input)?;
    let len = usize::try_from(len).map_err(|_| Malformed("a record longer than memory"))?;
    let rows = entry::read_rows(input.bytes(len)?)?;
    let rest = input.remaining();
    let outcomes = Bytes::copy_from_slice(input.bytes(rest)?);
    Ok(Record { session, stamp, outcomes_since_s, rows, outcomes })
}

/// One key.
pub(super) fn one(key: Bytes) -> RangeRequest {
    RangeRequest { key, ..RangeRequest::default() }
}

/// Up to [`PAGE`] keys of a range.
pub(super) fn page((key, range_end): KeyRange) -> RangeRequest {
    RangeRequest { key, range_end, limit: PAGE, revision: 0 }
}

/// A read as part of a transaction.
pub(super) fn range(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(request)) }
}

fn put(request: PutRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestPut(request)) }
}

fn delete((key, range_end): KeyRange) -> RequestOp {
    let request = DeleteRangeRequest { key, range_end };
    RequestOp { request: Some(Request::RequestDeleteRange(request)) }
}

/// That a key was not changed after this revision.
fn unchanged_since(key: Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Less.into(),
        target: CompareTarget::Mod.into(),
        key,
        target_union: Some(TargetUnion::ModRevision(revision + 1)),
    }
}

/// That a key was created in this revision; 0: that it is absent.
fn created_in(key: Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key,
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::conformance::{SESSION, changes};
    use super::*;
    use sa_proto::state::Document;

    const FENCE: Fence = Fence { revision: 7, lease: 1 };

    fn keys() -> Keys {
        Keys::new("/ibsm")
    }

    #[test]
    fn records_read_back_and_parts_of_them_do_not() {
        let mut all = changes(9, [1, 2], [3]);
        all.outcomes_since_s = 77;
        let host = sm_core::registry::HostTime { boot: 1 << 70, ..Default::default() };
        all.stamp = Some(Stamp { time: std::time::Duration::from_millis(5), host });
        let (bytes, _) = record_of(&all, SESSION);
        let record = read_record(&bytes).unwrap();
        assert_eq!((record.session, record.stamp), (SESSION, all.stamp));
        assert_eq!((record.outcomes_since_s, &record.rows), (77, &all.rows));
        for len in 0..bytes.len() {
            assert!(read_record(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn a_long_commit_is_visible_with_its_last_transaction_and_no_request_is_too_long() {
        let record = Bytes::from(vec![5; 2 * PIECE_LEN + 10]);
        let commit = Commit::new(3, record);
        let transactions = commit.transactions(&keys(), FENCE);
        assert_eq!(transactions.len(), 3);
        assert_eq!(commit.len(), 2 * PIECE_LEN + 10 + 4);
        let put_of = |transaction: &TxnRequest| match &transaction.success[..] {
            [RequestOp { request: Some(Request::RequestPut(put)) }] => put.clone(),
            other => panic!("{other:?}"),
        };
        for transaction in &transactions {
            assert!(put_of(transaction).value.len() <= PIECE_LEN);
            assert_eq!(transaction.compare[0], created_in(keys().fence(), 7), "all are fenced");
        }
        let last = put_of(&transactions[2]);
        assert_eq!(keys().number_of(&last.key), Some(3));
        assert_eq!(read_last(&last.value), Ok((2, &[5; 10][..])));
        assert!(transactions[2].compare.contains(&created_in(keys().log(3), 0)));
        let (first, end) = keys().pieces(3);
        assert!(transactions[..2].iter().all(|t| (&first..&end).contains(&&put_of(t).key)));
    }

    #[test]
    fn a_state_reads_back_and_replaces_all_other_texts() {
        let documents = [
            Document::new(Kind::StateFile, "guid2lid", "0x1 1 1"),
            Document { text: None, ..Document::new(Kind::OperatorsFile, "qos_policy_file", "x") },
            Document::absent("partition_config_file"),
        ];
        let hashes = documents.each_ref().map(|document| document.hash);
        let documents: Documents =
            documents.into_iter().map(|it| (it.name.clone(), it.into())).collect();
        let version = StateVersion { session: SESSION, number: 7 };
        let head = StateHead::of(version, &documents);
        let value = head.value();
        assert_eq!(read_state(&value), Ok(head.clone()));
        for len in 0..value.len() {
            assert!(read_state(&value[..len]).is_err(), "{len}");
        }
        let transaction = put_state(&keys(), FENCE, 40, &head).request;
        let conditions = [created_in(keys().fence(), 7), unchanged_since(keys().state(), 40)];
        assert_eq!(transaction.compare, conditions);
        let is_deleted = |key: &Bytes| {
            transaction.success.iter().any(|op| match &op.request {
                Some(Request::RequestDeleteRange(range)) => {
                    (&range.key..&range.range_end).contains(&key)
                }
                _ => false,
            })
        };
        assert!(!is_deleted(&keys().document_piece(hashes[0], 0)));
        assert!(!is_deleted(&keys().document_piece(hashes[0], 99)));
        for other in [0, hashes[0] - 1, hashes[0] + 1, hashes[1], u128::MAX] {
            assert!(is_deleted(&keys().document_piece(other, 3)), "{other:x}");
        }
        let others = [keys().state(), keys().fence(), keys().log(1), keys().head()];
        assert!(!others.iter().any(is_deleted));
    }

    #[test]
    fn keys_are_in_the_order_of_their_numbers_and_ranges_hold_no_others() {
        let keys = keys();
        assert!(keys.log(9) < keys.log(10) && keys.log(10) < keys.log(u64::MAX));
        let (from, end) = keys.log_from(5);
        assert!((&from..&end).contains(&&keys.log(u64::MAX)) && keys.log(4) < from);
        let (from, end) = keys.log_up_to(5);
        assert!((&from..&end).contains(&&keys.log(5)) && keys.log(6) >= end);
        let (from, end) = keys.table(5);
        assert!((&from..&end).contains(&&keys.table_piece(5, 9)));
        assert!(keys.table_piece(6, 0) >= end && keys.table_piece(4, 9) < from);
        assert_eq!(keys.number_of(&keys.fence()), None);
    }

    /// The answer to a commit was lost, and its repeat found the entry.
    #[test]
    fn a_repeat_that_finds_its_own_entry_was_made_unless_the_fence_is_lost() {
        let commit = Commit::new(3, Bytes::from_static(b"record"));
        let value = commit.last.clone();
        let entry = KeyValue { key: keys().log(3), value, ..KeyValue::default() };
        let fence = |create_revision| KeyValue {
            key: keys().fence(),
            create_revision,
            ..KeyValue::default()
        };
        assert!(commit.was_made(FENCE, &[&fence(7), &entry]));
        assert!(!commit.was_made(FENCE, &[&fence(8), &entry]), "another took over");
        assert!(!commit.was_made(FENCE, &[&entry]), "the lease has ended");
        assert!(!commit.was_made(FENCE, &[&fence(7)]));
        let other = KeyValue { value: Bytes::from_static(b"other"), ..entry };
        assert!(!commit.was_made(FENCE, &[&fence(7), &other]));
    }

    #[test]
    fn a_head_of_another_layout_is_refused() {
        assert_eq!(read_head(None), Ok(Head::default()));
        let mut value = Vec::new();
        [2u64, 5, 5].iter().for_each(|field| field.put(&mut value));
        assert_eq!(read_head(Some(&value)), Err(Unreadable::Schema(2)));
        assert!(matches!(read_head(Some(&value[..9])), Err(Unreadable::Schema(2))));
        assert!(matches!(read_head(Some(&value[..7])), Err(Unreadable::Malformed(_))));
    }
}
