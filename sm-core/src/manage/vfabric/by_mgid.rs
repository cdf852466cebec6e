//! Which virtual fabric a multicast group belongs to.
//!
//! As for Service IDs: the first in the file whose applications name the MGID and whose member the
//! port is, then the first that takes unmatched MGIDs. With security only full members count,
//! because limited members cannot send to each other. Virtual fabrics in standby have no groups.

use std::collections::HashSet;

use ib_mad::types::{Gid, Guid, PKey};
use ib_mad::wire::attribute::NodeType;
use sa_proto::snapshot::{PortGroup, VirtualFabric};

use super::members::bit;

/// Virtual fabrics by MGID and port.
#[derive(Clone, Debug, Default)]
pub struct ByMgid {
    fabrics: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    row: VirtualFabric,
    /// Kinds of nodes whose ports may have groups.
    node_types: u8,
    ports: HashSet<Guid>,
}

impl ByMgid {
    /// Builds it from the rows of a snapshot.
    pub fn new(fabrics: &[VirtualFabric], groups: &[PortGroup]) -> Self {
        let mut rows: Vec<&VirtualFabric> = fabrics.iter().filter(|row| !row.standby).collect();
        rows.sort_unstable_by_key(|row| row.index);
        let entry = |row: &VirtualFabric| {
            let limited = if row.security { &[][..] } else { &row.limited_members[..] };
            let named: Vec<&PortGroup> = row
                .members
                .iter()
                .chain(limited)
                .filter_map(|index| groups.iter().find(|group| group.index == *index))
                .collect();
            Entry {
                node_types: named.iter().fold(0, |kinds, group| kinds | group.node_types),
                ports: named.iter().flat_map(|group| group.ports.iter().copied()).collect(),
                row: row.clone(),
            }
        };
        Self { fabrics: rows.into_iter().map(entry).collect() }
    }

    /// Whether there are none that could have a group.
    pub fn is_empty(&self) -> bool {
        self.fabrics.is_empty()
    }

    /// The virtual fabric that a group with this MGID belongs to if this port asks for it; with a
    /// P_Key only those that have it. `None` if there is none, so that partitions decide.
    pub fn for_mgid(
        &self,
        mgid: Gid,
        pkey: Option<PKey>,
        port: Guid,
        kind: NodeType,
    ) -> Option<&VirtualFabric> {
        let of_port =
            |entry: &&Entry| entry.node_types & bit(kind) != 0 || entry.ports.contains(&port);
        let of_pkey = |entry: &&Entry| pkey.is_none_or(|pkey| pkey.base() == entry.row.pkey.base());
        let candidates = || self.fabrics.iter().filter(of_port);
        let mut named = candidates().filter(|entry| names(&entry.row, mgid)).peekable();
        if named.peek().is_some() {
            // Named for another P_Key only: it is not unmatched by that.
            return named.find(of_pkey).map(|entry| &entry.row);
        }
        let mut unmatched = candidates().filter(|entry| entry.row.unmatched_mgids);
        unmatched.find(of_pkey).map(|entry| &entry.row)
    }

    /// The first virtual fabric of a port that names an MGID, regardless of its P_Key.
    pub fn first_named(&self, mgid: Gid, port: Guid, kind: NodeType) -> Option<&VirtualFabric> {
        let named = |entry: &&Entry| {
            let is_member = entry.node_types & bit(kind) != 0 || entry.ports.contains(&port);
            is_member && names(&entry.row, mgid)
        };
        self.fabrics.iter().find(named).map(|entry| &entry.row)
    }
}

/// Whether an application of a virtual fabric names an MGID.
fn names(row: &VirtualFabric, mgid: Gid) -> bool {
    accepts(&row.mgids, mgid)
}

/// Whether an MGID equals one of the first in the bits of the second.
pub(super) fn accepts(mgids: &[(Gid, Gid)], mgid: Gid) -> bool {
    let bits = |gid: Gid| u128::from_be_bytes(gid.0);
    mgids.iter().any(|&(value, mask)| (bits(mgid) ^ bits(value)) & bits(mask) == 0)
}
