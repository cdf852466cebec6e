//! Snapshots and deltas as messages of `snapshot.proto`: [`Encoder`] returns them one by one,
//! [`Decoder`] reassembles them and checks the result.
//!
//! Neither waits or sends, and neither keeps more than one chunk in addition to the snapshots. The
//! publisher and the responder decide what to send and when.

use std::sync::Arc;

use prost::bytes::Bytes;

use super::blocks::{BlockReader, BlockWriter};
use super::builder::BuildError;
use super::delta::{self, Delta, DeltaError};
use super::device::{Mft, PortTables, SubnetManager, VirtualPorts};
use super::digest::{BucketSet, Checksum, replace};
use super::encoding::{Canonical, Malformed, Reader, decode};
use super::fabric::{FabricPlane, Lft, Node, PathSls, Subnet};
use super::policy::{Partition, PortGroup, QosLevel, QosRule, VirtualFabric};
use super::registry::*;
use super::row::Row;
use super::sorted::{Sorted, for_each_table};
use super::state::Snapshot;
use super::tables::Table;
use super::version::{Session, Version};
use crate::proto::snapshot as proto;
use crate::proto::snapshot::begin::Content as ProtoContent;
use crate::proto::snapshot::from_sm::Message;

/// Limit of row bytes per message: far below gRPC's limit of 4 MiB.
pub const CHUNK_LEN: usize = 256 * 1024;
/// Limit of a message: one with [`CHUNK_LEN`] bytes of rows, and what encloses them.
pub const MESSAGE_LEN_MAX: usize = CHUNK_LEN + 1024;
/// Limit of row bytes per update: five times a fabric of 48k LIDs.
pub const UPDATE_LEN_MAX: usize = 1 << 30;

/// Why messages do not form a valid update.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// A message or row is malformed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The rows violate an invariant of snapshots.
    #[error("invalid snapshot: {0}")]
    Build(#[from] BuildError),
    /// The delta cannot be applied.
    #[error(transparent)]
    Delta(#[from] DeltaError),
    /// The buckets are for a different state than the one held.
    #[error("buckets for {base} do not apply to {held}")]
    WrongBase {
        /// The version that they are for.
        base: Version,
        /// The version held, perhaps with other rows.
        held: Version,
    },
    /// The resulting state differs from the sender's.
    #[error("checksum mismatch after the update to {target}: the result differs from the sender's")]
    Checksum {
        /// The version after the update.
        target: Version,
    },
    /// More rows than any fabric has.
    #[error("update exceeds {UPDATE_LEN_MAX} bytes")]
    TooLong,
}

/// The messages of one update, in order.
pub struct Encoder {
    begin: Option<proto::Begin>,
    content: Content,
    /// Index of the table in [`Table::ALL`], and of the next row or change in it.
    table: usize,
    item: usize,
    /// Encoded items of the table that are not sent yet.
    pending: Vec<u8>,
    end: Option<proto::End>,
}

enum Content {
    Rows { snapshot: Arc<Snapshot>, buckets: Option<Box<BucketSet>>, blocks: Box<BlockWriter> },
    Changes(Arc<Delta>),
}

impl Encoder {
    /// A full update to `snapshot`.
    pub fn full(snapshot: Arc<Snapshot>) -> Self {
        Self::rows(snapshot, None, ProtoContent::Full(proto::Full {}))
    }

    /// The rows of `snapshot` in `buckets`, for a receiver that holds `base` with different rows in
    /// them.
    pub fn buckets(
        snapshot: Arc<Snapshot>,
        buckets: BucketSet,
        base: Version,
        base_checksum: Checksum,
    ) -> Self {
        let content = proto::Buckets {
            base: Some(base.into()),
            base_checksum: Some(base_checksum.into()),
            set: buckets.to_bytes().into(),
        };
        Self::rows(snapshot, Some(buckets), ProtoContent::Buckets(content))
    }

    /// A delta.
    pub fn delta(delta: Arc<Delta>) -> Self {
        let begin = proto::Begin {
            target: Some(delta.target.into()),
            content: Some(ProtoContent::Delta(proto::DeltaFrom { base: Some(delta.base.into()) })),
            subnet: delta.subnet.as_ref().map(encoded),
            front_door: String::new(),
            front_door_token: 0,
        };
        let checksum = delta.checksum;
        Self::new(begin, Content::Changes(delta), checksum)
    }

    fn rows(snapshot: Arc<Snapshot>, buckets: Option<BucketSet>, content: ProtoContent) -> Self {
        let begin = proto::Begin {
            target: Some(snapshot.version.into()),
            content: Some(content),
            subnet: Some(encoded(&snapshot.fabric.subnet)),
            front_door: String::new(),
            front_door_token: 0,
        };
        let checksum = snapshot.checksum();
        let (buckets, blocks) = (buckets.map(Box::new), Box::default());
        let content = Content::Rows { snapshot, buckets, blocks };
        Self::new(begin, content, checksum)
    }

    fn new(begin: proto::Begin, content: Content, checksum: Checksum) -> Self {
        let end = Some(proto::End { checksum: Some(checksum.into()), registry_time_ns: 0 });
        Self { begin: Some(begin), content, table: 0, item: 0, pending: Vec::new(), end }
    }

    /// The next chunk of items of one table.
    fn next_chunk(&mut self) -> Option<proto::Chunk> {
        while let Some(&table) = Table::ALL.get(self.table) {
            while self.pending.len() < CHUNK_LEN
                && self.content.put_item(table, self.item, &mut self.pending)
            {
                self.item += 1;
            }
            if !self.pending.is_empty() {
                let rest = self.pending.split_off(self.pending.len().min(CHUNK_LEN));
                let data = std::mem::replace(&mut self.pending, rest).into();
                return Some(proto::Chunk { table: table as u32, data });
            }
            self.table += 1;
            self.item = 0;
        }
        None
    }
}

impl Iterator for Encoder {
    type Item = proto::FromSm;

    fn next(&mut self) -> Option<proto::FromSm> {
        let message = if let Some(begin) = self.begin.take() {
            Message::Begin(begin)
        } else if let Some(chunk) = self.next_chunk() {
            Message::Chunk(chunk)
        } else {
            Message::End(self.end.take()?)
        };
        Some(proto::FromSm { message: Some(message) })
    }
}

impl Content {
    /// Appends an item of a table with its length; `false` if there are no more. Rows outside the
    /// buckets to be sent append nothing.
    fn put_item(&mut self, table: Table, index: usize, out: &mut Vec<u8>) -> bool {
        macro_rules! put {
            ($plane:ident, $table:ident, $row:ident) => {
                if table == $row::TABLE {
                    return match self {
                        Self::Rows { snapshot, buckets, blocks } => {
                            let Some(row) = snapshot.$plane.$table.at(index) else {
                                return false;
                            };
                            let wanted = buckets
                                .as_ref()
                                .is_none_or(|set| set.$plane.has::<$row>(row.key()));
                            if wanted {
                                with_length(out, |out| row.put_sharing(blocks, out));
                            }
                            true
                        }
                        Self::Changes(delta) => {
                            let more = index < delta.$table.len();
                            if more {
                                with_length(out, |out| delta.$table.put(index, out));
                            }
                            more
                        }
                    };
                }
            };
        }
        for_each_table!(put);
        false
    }
}

fn with_length(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    0u32.put(out);
    put(out);
    let len = (out.len() - start - size_of::<u32>()) as u32;
    out[start..start + size_of::<u32>()].copy_from_slice(&len.to_be_bytes());
}

fn encoded(value: &impl Canonical) -> Bytes {
    let mut out = Vec::new();
    value.put(&mut out);
    out.into()
}

/// Reassembles the messages of one update.
#[derive(Debug)]
pub struct Decoder {
    target: Version,
    update: Update,
    blocks: BlockReader,
    table: Option<Table>,
    /// The beginning of an item whose end has not arrived.
    partial: Vec<u8>,
    /// Row bytes so far.
    len: usize,
}

#[derive(Debug)]
enum Update {
    Full(Box<Planes>),
    Buckets { base: Version, base_checksum: Checksum, set: Box<BucketSet>, planes: Box<Planes> },
    Delta(Box<Delta>),
}

#[derive(Debug, Default)]
struct Planes {
    fabric: FabricPlane,
    registry: RegistryPlane,
}

impl Decoder {
    /// Starts an update.
    pub fn new(begin: proto::Begin) -> Result<Self, UpdateError> {
        let target = Version::try_from(begin.target)?;
        let subnet = begin.subnet.as_deref().map(decode).transpose()?;
        let content = begin.content.ok_or(Malformed("an update without a kind"))?;
        let update = match content {
            ProtoContent::Full(proto::Full {}) => Update::Full(Planes::new(subnet, target)?),
            ProtoContent::Buckets(buckets) => Update::Buckets {
                base: Version::try_from(buckets.base)?,
                base_checksum: Checksum::try_from(buckets.base_checksum)?,
                set: BucketSet::from_bytes(&buckets.set)
                    .map(Box::new)
                    .ok_or(Malformed("a set of buckets of another length"))?,
                planes: Planes::new(subnet, target)?,
            },
            ProtoContent::Delta(from) => {
                let base = Version::try_from(from.base)?;
                Update::Delta(Box::new(Delta::new(base, target, subnet)))
            }
        };
        let (blocks, partial) = (BlockReader::default(), Vec::new());
        Ok(Self { target, update, blocks, table: None, partial, len: 0 })
    }

    /// The version after the update.
    pub fn target(&self) -> Version {
        self.target
    }

    /// Handles the next chunk.
    pub fn chunk(&mut self, chunk: &proto::Chunk) -> Result<(), UpdateError> {
        let table = u8::try_from(chunk.table).ok().and_then(Table::from_number);
        let table = table.ok_or(Malformed("an unknown table"))?;
        if self.table != Some(table) {
            if !self.partial.is_empty() || self.table.is_some_and(|before| before >= table) {
                return Err(Malformed("tables out of order").into());
            }
            self.table = Some(table);
        }
        self.len += chunk.data.len();
        if self.len > UPDATE_LEN_MAX {
            return Err(UpdateError::TooLong);
        }
        if self.partial.is_empty() {
            let used = self.items(table, &chunk.data)?;
            self.partial.extend_from_slice(&chunk.data[used..]);
        } else {
            let mut data = std::mem::take(&mut self.partial);
            data.extend_from_slice(&chunk.data);
            let used = self.items(table, &data)?;
            data.drain(..used);
            self.partial = data;
        }
        Ok(())
    }

    /// Decodes the complete items at the start of `data`; returns their length in bytes.
    fn items(&mut self, table: Table, data: &[u8]) -> Result<usize, UpdateError> {
        let mut rest = data;
        while let Some((len, behind)) = rest.split_first_chunk() {
            let Some((item, behind)) = behind.split_at_checked(u32::from_be_bytes(*len) as usize)
            else {
                break;
            };
            self.item(table, item)?;
            rest = behind;
        }
        Ok(data.len() - rest.len())
    }

    fn item(&mut self, table: Table, item: &[u8]) -> Result<(), Malformed> {
        macro_rules! take {
            ($plane:ident, $table:ident, $row:ident) => {
                if table == $row::TABLE {
                    return match &mut self.update {
                        Update::Full(planes) | Update::Buckets { planes, .. } => {
                            let mut input = Reader::new(item);
                            let row = $row::take_sharing(&mut self.blocks, &mut input)?;
                            planes.$plane.$table.add(Arc::new(row));
                            input.finish()
                        }
                        Update::Delta(delta) => delta.$table.push_encoded(item),
                    };
                }
            };
        }
        for_each_table!(take);
        Err(Malformed("an unknown table"))
    }

    /// Ends the update: returns the snapshot after it, given the one held. Equal rows are shared
    /// with that.
    pub fn finish(self, end: proto::End, held: &Snapshot) -> Result<Snapshot, UpdateError> {
        if !self.partial.is_empty() {
            return Err(Malformed("an update ends within a row").into());
        }
        let checksum = Checksum::try_from(end.checksum)?;
        let next = match self.update {
            Update::Full(planes) => planes.build(self.target)?,
            Update::Buckets { base, base_checksum, set, planes } => {
                if held.version != base || held.checksum() != base_checksum {
                    return Err(UpdateError::WrongBase { base, held: held.version });
                }
                planes.complete(held, &set)?.build(self.target)?
            }
            Update::Delta(mut delta) => {
                delta.checksum = checksum;
                return Ok(delta::apply(held, &delta)?);
            }
        };
        if next.checksum() != checksum {
            return Err(UpdateError::Checksum { target: self.target });
        }
        Ok(next)
    }
}

impl Planes {
    fn new(subnet: Option<Subnet>, target: Version) -> Result<Box<Self>, Malformed> {
        let subnet = subnet.ok_or(Malformed("an update without subnet parameters"))?;
        let sequence = target.registry_sequence;
        Ok(Box::new(Self {
            fabric: FabricPlane { subnet, ..FabricPlane::default() },
            registry: RegistryPlane { sequence, ..RegistryPlane::default() },
        }))
    }

    /// Adds the rows of `held` in buckets that were not sent.
    fn complete(mut self, held: &Snapshot, set: &BucketSet) -> Result<Self, Malformed> {
        macro_rules! complete {
            ($plane:ident, $table:ident, $row:ident) => {
                let sent = std::mem::take(&mut self.$plane.$table);
                self.$plane.$table = replace(&held.$plane.$table, &set.$plane, sent)
                    .ok_or(Malformed("rows out of order or of another bucket"))?;
            };
        }
        for_each_table!(complete);
        Ok(self)
    }

    fn build(self, target: Version) -> Result<Snapshot, BuildError> {
        Snapshot::build(target.session, target.fabric_generation, self.fabric, self.registry)
    }
}

impl From<Version> for proto::Version {
    fn from(version: Version) -> Self {
        Self {
            epoch: version.session.epoch,
            sm_guid: version.session.sm_guid.0,
            fabric_generation: version.fabric_generation,
            registry_sequence: version.registry_sequence,
        }
    }
}

impl TryFrom<Option<proto::Version>> for Version {
    type Error = Malformed;

    fn try_from(version: Option<proto::Version>) -> Result<Self, Malformed> {
        let version = version.ok_or(Malformed("a message without a version"))?;
        Ok(Self {
            session: Session {
                epoch: version.epoch,
                sm_guid: ib_mad::types::Guid(version.sm_guid),
            },
            fabric_generation: version.fabric_generation,
            registry_sequence: version.registry_sequence,
        })
    }
}

impl From<Checksum> for proto::Checksum {
    fn from(checksum: Checksum) -> Self {
        Self { fabric: encoded(&checksum.fabric), registry: encoded(&checksum.registry) }
    }
}

impl TryFrom<Option<proto::Checksum>> for Checksum {
    type Error = Malformed;

    fn try_from(checksum: Option<proto::Checksum>) -> Result<Self, Malformed> {
        let checksum = checksum.ok_or(Malformed("a message without a checksum"))?;
        Ok(Self { fabric: decode(&checksum.fabric)?, registry: decode(&checksum.registry)? })
    }
}

#[cfg(test)]
mod tests;
