//! Reading the store: the tables and the log once, then what was added to the log.

use std::sync::Arc;

use ib_mad::types::Guid;
use sa_proto::snapshot::encoding::Malformed;
use tonic::Code;

use super::client::Client;
use super::failure::Failure;
use super::image::Image;
use super::layout::{
    Head, KeyRange, Keys, SCHEMA, Unreadable, one, page, range, read_head, read_last, read_record,
};
use super::proto::response_op::Response;
use super::proto::{KeyValue, TxnRequest, TxnResponse};
use super::status::EtcdStatus;

/// How often everything is read again because the tables were replaced meanwhile.
const ATTEMPTS: usize = 5;

/// Why the contents are not known.
#[derive(Debug)]
pub(super) enum ReadFailure {
    /// To be tried again.
    Request(Failure),
    /// The contents are not what this release writes.
    Unreadable(Unreadable),
}

impl ReadFailure {
    /// What is wrong with `what`, and the `remedy` for damage; `None` if it is to be tried again.
    pub(super) fn damage(&self, [what, remedy]: [&str; 2]) -> Option<String> {
        match self {
            Self::Request(_) => None,
            Self::Unreadable(Unreadable::Schema(found)) => Some(format!(
                "{what}: layout {found}, this release reads {SCHEMA}: run the release that wrote \
                 it, or give another prefix"
            )),
            Self::Unreadable(Unreadable::Malformed(malformed)) => {
                Some(format!("{what}: damaged ({malformed}): {remedy}"))
            }
        }
    }

    /// Whether another release wrote the contents: they must not be replaced.
    pub(super) fn is_of_another_release(&self) -> bool {
        matches!(self, Self::Unreadable(Unreadable::Schema(_)))
    }
}

impl From<Failure> for ReadFailure {
    fn from(failure: Failure) -> Self {
        Self::Request(failure)
    }
}

impl From<Malformed> for ReadFailure {
    fn from(malformed: Malformed) -> Self {
        Self::Unreadable(malformed.into())
    }
}

impl From<Unreadable> for ReadFailure {
    fn from(unreadable: Unreadable) -> Self {
        Self::Unreadable(unreadable)
    }
}

/// A reader of one store.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) client: Client,
    pub(super) keys: Keys,
    pub(super) status: Arc<EtcdStatus>,
}

impl Reader {
    /// Brings an image up to date, or reads a first one; returns whether anything was new. There is
    /// an image afterwards, unless it fails.
    pub(super) async fn refresh(&self, image: &mut Option<Image>) -> Result<bool, ReadFailure> {
        let mut any = false;
        for _ in 0..ATTEMPTS {
            let Some(known) = image else {
                match self.everything().await {
                    Ok(all) => *image = Some(all),
                    Err(ReadFailure::Request(Failure::Refused(status)))
                        if status.code() == Code::OutOfRange =>
                    {
                        continue;
                    }
                    Err(failure) => return Err(failure),
                }
                any = true;
                continue;
            };
            match self.tail(known).await? {
                Tail::End => return Ok(any),
                Tail::More => any = true,
                Tail::Gap => *image = None,
            }
        }
        match image {
            // A master writes faster than this reads; what is known is of a moment ago.
            Some(_) => Ok(any),
            None => Err(Failure::Unreachable("its tables change too fast".to_owned()).into()),
        }
    }

    /// The next page of the log, together with the head.
    async fn tail(&self, image: &mut Image) -> Result<Tail, ReadFailure> {
        let mut any = false;
        loop {
            let next = image.last() + 1;
            let log = page(self.keys.log_from(next));
            let request = TxnRequest {
                compare: Vec::new(),
                success: vec![range(one(self.keys.head())), range(log)],
                failure: Vec::new(),
            };
            let response = self.client.txn(&request).await?;
            let (head, entries) = ranges(&response)?;
            let head = read_head(head.first().map(|kv| &kv.value[..]))?;
            if head.number >= next {
                return Ok(Tail::Gap);
            }
            let revision = response.header.as_ref().map_or(0, |header| header.revision);
            if entries.is_empty() {
                return Ok(if any { Tail::More } else { Tail::End });
            }
            for entry in entries {
                if self.keys.number_of(&entry.key) != Some(image.last() + 1) {
                    return Ok(Tail::Gap);
                }
                self.apply(image, entry, revision).await?;
            }
            any = true;
        }
    }

    /// Applies an entry of the log, whose pieces are read as of this revision.
    async fn apply(
        &self,
        image: &mut Image,
        entry: &KeyValue,
        revision: i64,
    ) -> Result<(), ReadFailure> {
        let number = image.last() + 1;
        let (count, last) = read_last(&entry.value)?;
        if count == 0 {
            return Ok(image.apply(number, entry.value.len(), read_record(last)?)?);
        }
        let mut bytes = self.joined(self.keys.pieces(number), count, revision).await?;
        bytes.extend_from_slice(last);
        Ok(image.apply(number, bytes.len(), read_record(&bytes)?)?)
    }

    /// Reads tables and log as of one moment.
    async fn everything(&self) -> Result<Image, ReadFailure> {
        let response = self.client.range(one(self.keys.head())).await?;
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        let head = read_head(response.kvs.first().map(|kv| &kv.value[..]))?;
        let Head { number, pieces } = head;
        let pieces = usize::try_from(pieces).map_err(|_| Malformed("tables without end"))?;
        let tables = self.joined(self.keys.table(number), pieces, revision).await?;
        let mut image = Image::of_tables(head, &tables)?;
        let (mut from, end) = self.keys.log_from(image.last() + 1);
        loop {
            let mut request = page((from, end.clone()));
            request.revision = revision;
            let response = self.client.range(request).await?;
            for entry in &response.kvs {
                if self.keys.number_of(&entry.key) != Some(image.last() + 1) {
                    return Err(Malformed("a commit is missing in the log").into());
                }
                self.apply(&mut image, entry, revision).await?;
            }
            if !response.more {
                return Ok(image);
            }
            from = self.keys.log(image.last() + 1);
        }
    }

    /// The first pieces of a range, joined.
    pub(super) async fn joined(
        &self,
        (mut from, end): KeyRange,
        count: usize,
        revision: i64,
    ) -> Result<Vec<u8>, ReadFailure> {
        let (mut bytes, mut found) = (Vec::new(), 0);
        while found < count {
            let mut request = page((from, end.clone()));
            request.revision = revision;
            let response = self.client.range(request).await?;
            let Some(last) = response.kvs.last() else {
                return Err(Malformed("a piece is missing").into());
            };
            // The first key after the last one.
            from = [&last.key[..], &[0]].concat().into();
            for piece in response.kvs.iter().take(count - found) {
                bytes.extend_from_slice(&piece.value);
            }
            found += response.kvs.len();
        }
        Ok(bytes)
    }
}

/// What was found after the known part of the log.
enum Tail {
    /// Nothing.
    End,
    /// Commits, which were applied.
    More,
    /// The log was taken into the tables.
    Gap,
}

/// The two reads of a transaction.
fn ranges(response: &TxnResponse) -> Result<(&[KeyValue], &[KeyValue]), Malformed> {
    let kvs = |at: usize| match response.responses.get(at).map(|op| &op.response) {
        Some(Some(Response::ResponseRange(range))) => Ok(&range.kvs[..]),
        _ => Err(Malformed("a transaction without the results of its reads")),
    };
    Ok((kvs(0)?, kvs(1)?))
}

/// The manager that a fence's value names: session and identity of the process.
pub(super) fn holder_text(epoch: u64, sm_guid: Guid, process: u64) -> String {
    format!("epoch {epoch} of {sm_guid}, process {process:016x}")
}
