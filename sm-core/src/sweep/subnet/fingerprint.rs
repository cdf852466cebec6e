//! Detects whether another subnet manager was master between the last run and this one: keeps a
//! fingerprint of the tables that the last run left in the switches, and compares it with the
//! tables that a new master reads.
//!
//! Ports show only the LID of their master. Another subnet manager on the same port, such as an
//! `opensm` that was tried there, has the same LID and leaves the same PortInfo; its routes differ
//! wherever routing has a choice. In a fabric without cycles there is no choice, so another SM
//! writes the same tables and cannot be detected; then registrations count as unknown.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use ib_mad::types::Guid;
use sa_proto::snapshot::Lft;

use crate::fabric::{Fabric, Switch};
use sm_routing::NO_ROUTE;

/// Fingerprint that a run saves for the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableFingerprint {
    /// Sequence number of the registry at that time. A registry with a lower number is incomplete.
    pub registry: u64,
    /// Hashes of forwarding tables by the switch's node GUID, of those that were written whole.
    tables: BTreeMap<Guid, u64>,
}

impl TableFingerprint {
    /// The fingerprint of the tables in force in a fabric.
    pub fn of(fabric: &Fabric, registry: u64) -> Self {
        AcknowledgedTables::of(fabric).fingerprint(registry)
    }

    /// Whether the tables that were read match the fingerprint: none differs, most are present, and
    /// another SM would have written others. Switches that were reset have none.
    pub fn matches(&self, fabric: &Fabric) -> bool {
        let found = Self::of(fabric, 0).tables;
        let known = self.tables.iter().filter_map(|(guid, hash)| Some((hash, found.get(guid)?)));
        let (same, others): (Vec<_>, Vec<_>) = known.partition(|(left, found)| left == found);
        others.is_empty() && same.len() * 2 > self.tables.len() && has_circle(fabric)
    }

    /// Reads what [`render`](Self::render) wrote; `None` if it is anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let registry = lines.next()?.strip_prefix("registry ")?.parse().ok()?;
        let table = |line: &str| {
            let (guid, hash) = line.split_once(' ')?;
            Some((guid.parse().ok()?, u64::from_str_radix(hash.strip_prefix("0x")?, 16).ok()?))
        };
        Some(Self { registry, tables: lines.map(table).collect::<Option<_>>()? })
    }

    /// As lines of a file: the registry's sequence number, then GUID and hash of each switch.
    pub fn render(&self) -> String {
        let mut text = format!("registry {}\n", self.registry);
        for (guid, hash) in &self.tables {
            let _ = writeln!(text, "{guid} {hash:#018x}");
        }
        text
    }
}

/// Complete forwarding tables of switches, copied from the fabric, because hashing them takes long.
#[derive(Clone, Debug)]
pub struct AcknowledgedTables(Vec<(Guid, Arc<Lft>)>);

impl AcknowledgedTables {
    /// The complete tables of a fabric.
    pub fn of(fabric: &Fabric) -> Self {
        let whole = |(_, switch): (_, &Switch)| {
            let is_whole = switch.lft.stale_blocks().next().is_none();
            let table = Some(switch.lft.desired().clone()).filter(|_| is_whole);
            Some((fabric.node(switch.node).guid, table.filter(|table| !table.ports.is_empty())?))
        };
        Self(fabric.switches().filter_map(whole).collect())
    }

    /// The fingerprint of these tables.
    pub fn fingerprint(&self, registry: u64) -> TableFingerprint {
        let tables = self.0.iter().map(|(guid, table)| (*guid, hash_of(&table.ports))).collect();
        TableFingerprint { registry, tables }
    }
}

/// The hash of a switch's forwarding table.
fn hash_of(ports: &[u8]) -> u64 {
    // Equal in each release and on each machine; blocks without routes at the end do not count.
    let (words, _) = ports.as_chunks::<8>();
    let used = words.iter().rposition(|word| *word != [NO_ROUTE; 8]).map_or(0, |last| last + 1);
    let fold = |hash: u64, word: &[u8; 8]| {
        let product = u128::from(hash ^ u64::from_le_bytes(*word)) * 0xD6E8_FEB8_6659_FD93;
        (product as u64 ^ (product >> 64) as u64).rotate_left(23).wrapping_add(1)
    };
    words[..used].iter().fold(used as u64, fold)
}

/// Whether the fabric has a cycle: at least as many links between switches as switches.
fn has_circle(fabric: &Fabric) -> bool {
    let ends =
        fabric.switches().flat_map(|(_, switch)| fabric.ports_of(switch.node)).filter(|&port| {
            let peer = fabric.port(port).peer();
            peer.is_some_and(|peer| fabric.node_of(peer).switch.is_some())
        });
    ends.count() >= 2 * fabric.switches().count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_reads_back_and_what_is_damaged_is_nothing() {
        let tables = BTreeMap::from([(Guid(1), u64::MAX), (Guid(0xb859_9f03_00a0_0000), 7)]);
        let left = TableFingerprint { registry: 12, tables };
        let text = left.render();
        assert_eq!(TableFingerprint::parse(&text), Some(left));
        for damaged in ["", "registry\n", "registry 1\n0x1\n", &text[..text.len() - 20]] {
            assert_eq!(TableFingerprint::parse(damaged), None, "{damaged:?}");
        }
    }
}
