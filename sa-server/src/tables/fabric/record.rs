//! The fabric plane in record form, which table answers are copied from.
//!
//! There is one flat array per record type, with each record as it appears in an answer, padded to
//! the stride, and a parallel array of the owners that decide its visibility. [`crate::query`]
//! decides which records match.

use std::ops::Range;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::record::{NodeRecord, stride};
use sa_proto::snapshot::{Lft, Mft, Node, Port, PortTables, find};

use super::end_port::EndPorts;
use super::guid_index::GuidIndex;
use super::partition::PKeySet;
use crate::tables::prefetch::prefetch;

/// Owner of a record, for partition visibility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// P_Key table of the port.
    pub pkeys: PKeySet,
    /// LID of the end port, if the port is one; none for external ports of switches.
    pub end_port: Lid,
}

/// Records of one type.
#[derive(Clone, Debug)]
pub struct Records<O = Owner> {
    stride: usize,
    bytes: Vec<u8>,
    owners: Vec<O>,
}

impl<O> Records<O> {
    /// Empty, with capacity for `count` records.
    pub(super) fn new(record_len: usize, count: usize) -> Self {
        let stride = stride(record_len);
        let bytes = Vec::with_capacity(count * stride);
        Self { stride, bytes, owners: Vec::with_capacity(count) }
    }

    pub(super) fn push(&mut self, record: &[u8], owner: O) {
        self.bytes.extend_from_slice(record);
        self.owners.push(owner);
        self.bytes.resize(self.owners.len() * self.stride, 0);
    }

    /// Record `at`, padded to its stride, with its owner.
    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<(&[u8], &O)> {
        let owner = self.owners.get(at as usize)?;
        let start = at as usize * self.stride;
        Some((self.bytes.get(start..start + self.stride)?, owner))
    }

    /// The LID that a record begins with.
    #[inline]
    pub(crate) fn lid(&self, at: u32) -> Lid {
        let record = self.bytes.get(at as usize * self.stride..).unwrap_or_default();
        Lid(u16::from_be_bytes(record.first_chunk().copied().unwrap_or_default()))
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Fetches a record and whose it is.
    #[inline]
    pub(crate) fn prefetch(&self, at: u32) {
        let start = at as usize * self.stride;
        prefetch(&self.bytes, start);
        prefetch(&self.bytes, start + self.stride - 1);
        prefetch(&self.owners, at as usize);
    }

    /// Same with other records in some places: ranges of these and, in their order, those that
    /// replace them. `None` if nothing differs.
    pub(super) fn patched(&self, made: &Self, places: &[(Range<u32>, Range<u32>)]) -> Option<Self>
    where
        O: Copy + PartialEq,
    {
        let at = |range: &Range<u32>| range.start as usize..range.end as usize;
        let is_same = |(then, now): &(Range<u32>, Range<u32>)| {
            let (then, now) = (at(then), at(now));
            let bytes = |range: &Range<usize>| range.start * self.stride..range.end * self.stride;
            self.bytes[bytes(&then)] == made.bytes[bytes(&now)]
                && self.owners[then] == made.owners[now]
        };
        if places.iter().all(is_same) {
            return None;
        }
        let more: usize = places.iter().map(|(_, now)| now.len()).sum();
        let mut next = Self {
            stride: self.stride,
            bytes: Vec::with_capacity(self.bytes.len() + more * self.stride),
            owners: Vec::with_capacity(self.owners.len() + more),
        };
        let mut add = |from: &Self, range: Range<usize>| {
            let bytes = range.start * self.stride..range.end * self.stride;
            next.bytes.extend_from_slice(&from.bytes[bytes]);
            next.owners.extend_from_slice(&from.owners[range]);
        };
        let mut copied = 0;
        for (then, now) in places {
            add(self, copied..then.start as usize);
            add(made, at(now));
            copied = then.end as usize;
        }
        add(self, copied..self.owners.len());
        Some(next)
    }

    /// Records `range` (as far as there are so many), padded to their stride, with their owners.
    pub fn range(&self, range: Range<u32>) -> impl Iterator<Item = (&[u8], &O)> {
        let end = (range.end as usize).min(self.owners.len());
        let start = (range.start as usize).min(end);
        self.bytes[start * self.stride..end * self.stride]
            .chunks_exact(self.stride)
            .zip(&self.owners[start..end])
    }
}

/// One node: the positions of its records, and the rows from which further records are built on
/// demand.
#[derive(Clone, Debug)]
pub struct NodeRows {
    /// Node GUID.
    pub guid: Guid,
    /// The node and its ports.
    pub node: Arc<Node>,
    /// Whether it is a switch.
    pub is_switch: bool,
    /// Its NodeRecords, one an end port.
    pub nodes: Range<u32>,
    /// Its PortInfoRecords, one a port.
    pub ports: Range<u32>,
    /// Its LinkRecords, one a link, as seen from this node.
    pub links: Range<u32>,
    /// Whether its PortInfo has the extended link speed fields (port 0's for a switch).
    pub extended_speeds: bool,
    /// Its linear forwarding table, if it is a switch that has one.
    pub lft: Option<Arc<Lft>>,
    /// Its multicast forwarding table, if it is a switch that has one.
    pub mft: Option<Arc<Mft>>,
    /// Its SL-to-VL and VL arbitration tables, if any were programmed.
    pub port_tables: Option<Arc<PortTables>>,
}

/// All records, and where to find them by node and by LID. Clones share the records.
#[derive(Clone, Debug)]
pub struct RecordTables {
    /// NodeRecords in the order of `by_node`.
    pub nodes: Arc<Records>,
    /// PortInfoRecords in the order of `by_node`.
    pub ports: Arc<Records>,
    /// LinkRecords in the order of `by_node`, each link once from either end.
    pub links: Arc<Records<LinkOwners>>,
    /// Nodes, ascending by GUID.
    pub(super) by_node: Arc<[NodeRows]>,
    /// Index into `by_node` by LID; `NO_NODE` if no node has it.
    pub(super) node_of_lid: Arc<[u32]>,
    /// NodeRecords by LID: the one of the port that has it.
    pub(super) nodes_of_lid: Arc<[Rows]>,
    /// NodeRecords by node GUID.
    pub(super) by_guid: GuidIndex<Rows>,
    /// NodeRecords by the hash of their description, ascending.
    pub(super) by_description: Arc<[(u64, u32)]>,
}

/// Records that follow each other: the first, and the one behind the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows(u32, u32);

impl From<&Range<u32>> for Rows {
    fn from(range: &Range<u32>) -> Self {
        Self(range.start, range.end)
    }
}

impl From<Rows> for Range<u32> {
    fn from(rows: Rows) -> Self {
        rows.0..rows.1
    }
}

/// Owners of the ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOwners {
    /// The end that the record begins with.
    pub from: Owner,
    /// The other end.
    pub to: Owner,
}

pub(super) const NO_NODE: u32 = u32::MAX;

impl RecordTables {
    /// Same with other multicast forwarding tables. Takes one step per node.
    pub(super) fn with_multicast(&self, mfts: &[Arc<Mft>]) -> Self {
        let mut next = self.clone();
        let nodes = Arc::make_mut(&mut next.by_node);
        for node in nodes.iter_mut().filter(|node| node.is_switch) {
            node.mft = find(mfts, node.guid).cloned();
        }
        next
    }

    /// The ports of a node, each with its base LID and owner.
    pub fn ports_of<'a>(
        &'a self,
        node: &'a NodeRows,
    ) -> impl Iterator<Item = (&'a Port, Lid, &'a Owner)> {
        let records = self.ports.range(node.ports.clone());
        node.node.ports.iter().zip(records).map(|(port, (record, owner))| {
            let lid = record.first_chunk().copied().unwrap_or_default();
            (port, Lid(u16::from_be_bytes(lid)), owner)
        })
    }

    /// All nodes.
    pub fn all_nodes(&self) -> &[NodeRows] {
        &self.by_node
    }

    /// The node that has this LID among its own.
    #[inline]
    pub fn node_by_lid(&self, lid: Lid) -> Option<&NodeRows> {
        let node = *self.node_of_lid.get(lid.index())?;
        self.by_node.get(node as usize)
    }

    /// NodeRecords of the port that has this LID, or of all ports of its node if several claim
    /// the LID.
    #[inline]
    pub(crate) fn nodes_of_lid(&self, lid: Lid) -> Range<u32> {
        self.nodes_of_lid.get(lid.index()).copied().unwrap_or_default().into()
    }

    /// NodeRecords of the node with this node GUID.
    #[inline]
    pub(crate) fn nodes_of_guid(&self, guid: Guid) -> Range<u32> {
        self.by_guid.get(guid).unwrap_or_default().into()
    }

    /// NodeRecords that may have this description: all that do, and rarely one that does not.
    pub(crate) fn nodes_described<'a>(
        &'a self,
        description: &[u8],
    ) -> impl Iterator<Item = u32> + use<'a> {
        let hash = hash(text(description));
        let start = self.by_description.partition_point(|&(other, _)| other < hash);
        let described = self.by_description[start..].iter();
        described.take_while(move |(other, _)| *other == hash).map(|&(_, at)| at)
    }

    /// All NodeRecords.
    pub(crate) fn all_nodes_rows(&self) -> Range<u32> {
        0..self.nodes.len() as u32
    }

    /// Fetches what [`nodes_of_lid`](Self::nodes_of_lid) reads.
    #[inline]
    pub(crate) fn prefetch_node_of_lid(&self, lid: Lid) {
        prefetch(&self.nodes_of_lid, lid.index());
    }

    /// Prefetches what [`nodes_of_guid`](Self::nodes_of_guid) reads first.
    #[inline]
    pub(crate) fn prefetch_node_of_guid(&self, guid: Guid) {
        self.by_guid.prefetch(guid);
    }

    /// Builds the indices of the records by LID and GUID.
    pub(super) fn index(&mut self, end_ports: &EndPorts) {
        self.by_guid = GuidIndex::new(self.by_node.iter().map(|n| (n.guid, Rows::from(&n.nodes))));
        let mut described: Vec<(u64, u32)> = (0..)
            .zip(self.nodes.range(self.all_nodes_rows()))
            .map(|(at, (record, _))| {
                let view = NodeRecord::new(record).expect("a row contains a NodeRecord");
                (hash(text(&view.node_description())), at)
            })
            .collect();
        described.sort_unstable();
        self.by_description = described.into();
        self.nodes_of_lid = (0..self.node_of_lid.len() as u16)
            .map(|lid| {
                let Some(node) = self.node_by_lid(Lid(lid)) else { return Rows::default() };
                let base = end_ports.by_lid(Lid(lid)).map_or(Lid::NONE, |port| port.lid);
                let mut own = node.nodes.clone().filter(|&at| self.nodes.lid(at) == base);
                match (own.next(), own.next()) {
                    (Some(at), None) => Rows(at, at + 1),
                    _ => Rows::from(&node.nodes),
                }
            })
            .collect();
    }
}

/// A description as far as it counts: up to the first NUL, and with it.
pub(crate) fn text(description: &[u8]) -> &[u8] {
    let end = description.iter().position(|&byte| byte == 0);
    &description[..end.map_or(description.len(), |nul| nul + 1)]
}

/// Descriptions are few and of the fabric's own nodes: one that collides costs a comparison.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    std::hash::Hasher::write(&mut hasher, bytes);
    std::hash::Hasher::finish(&hasher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_their_stride_and_ranges_their_bounds() {
        let mut records: Records<u8> = Records::new(6, 0);
        records.push(&[1; 6], 10);
        records.push(&[2; 6], 20);
        let all: Vec<_> = records.range(0..9).collect();
        assert_eq!(all, [(&[1, 1, 1, 1, 1, 1, 0, 0][..], &10), (&[2, 2, 2, 2, 2, 2, 0, 0], &20)]);
        assert_eq!(records.range(1..2).count(), 1);
        assert_eq!(records.range(5..7).count(), 0);
    }
}
