//! Limits the time that a sweep spends on nodes that do not answer what it sets, or answer late.
//!
//! Any port can answer as a switch with more switches behind it, and leave each Set() unanswered.
//! Each such request takes all its attempts, so that thousands of them hold up a sweep, and the
//! repair of the next failed link, for minutes. The nodes that one link brought share a limit.
//! Beyond it, a node that has left a request unanswered gets no further one until the next sweep.
//! Each of them has that one chance: real switches may be behind the same link. Beyond a second
//! limit none has: nodes with LIDs from before may be tens of thousands.
//!
//! An answer that comes late counts as the part of an unanswered request that it took; this holds
//! for nodes without LIDs from before only, since others are most of the subnet after a restart.

use std::collections::HashMap;
use std::time::Duration;

use crate::fabric::{NodeIndex, PortIndex};

/// Requests that the nodes behind a link may leave unanswered in the stages of a sweep after
/// discovery: a full default window.
const SILENT_MAX: u32 = 64;
/// Requests after which those behind the link get none, whether they have left one unanswered or
/// not: more than there are nodes that a link brings in a sweep.
const SILENT_LIMIT: u32 = 4096;
/// An answer is late after this time. Agents answer within milliseconds.
pub(in crate::sweep) const LATE: Duration = Duration::from_millis(25);
/// What an unanswered request counts, so that parts of it can be counted.
const WHOLE: u32 = 1000;

/// What was left unanswered in the stages of a sweep after discovery.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Silence {
    /// Number of requests in thousandths, by the link that brought the node.
    by_entry: HashMap<PortIndex, u32>,
    /// Nodes that left requests unanswered, or answered late, and whether others to them were
    /// dropped.
    silent: HashMap<NodeIndex, bool>,
}

impl Silence {
    /// Counts a request that was given up, to a node that the link `entry` brought.
    pub(in crate::sweep) fn note(&mut self, node: NodeIndex, entry: PortIndex) {
        self.count(node, entry, WHOLE);
    }

    /// Counts a request to such a node that was answered after this time; one that is not answered
    /// is given up after `patience`.
    pub(in crate::sweep) fn note_late(
        &mut self,
        node: NodeIndex,
        entry: PortIndex,
        waited: Duration,
        patience: Duration,
    ) {
        let part = waited.as_millis() * u128::from(WHOLE) / patience.as_millis().max(1);
        self.count(node, entry, part.min(u128::from(WHOLE)) as u32);
    }

    fn count(&mut self, node: NodeIndex, entry: PortIndex, part: u32) {
        let count = self.by_entry.entry(entry).or_default();
        *count = count.saturating_add(part);
        self.silent.entry(node).or_default();
    }

    /// Whether requests to a node that the link `entry` brought are dropped; if so, whether this is
    /// the first.
    pub(in crate::sweep) fn drops(&mut self, node: NodeIndex, entry: PortIndex) -> Option<bool> {
        let count = self.by_entry.get(&entry).copied().unwrap_or_default() / WHOLE;
        if count < SILENT_MAX {
            return None;
        }
        if count >= SILENT_LIMIT {
            return Some(!self.silent.insert(node, true).unwrap_or_default());
        }
        let was_dropped = self.silent.get_mut(&node)?;
        Some(!std::mem::replace(was_dropped, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_behind_one_link_share_a_limit_and_each_has_a_chance() {
        let mut silence = Silence::default();
        let [a, b] = [1, 2].map(PortIndex::from_bits);
        let node = NodeIndex::from_bits;
        (1..SILENT_MAX).for_each(|_| silence.note(node(1), a));
        assert_eq!(silence.drops(node(1), a), None);
        silence.note(node(2), a);
        let drops = [1, 1, 2, 3].map(|number| silence.drops(node(number), a));
        assert_eq!(drops, [Some(true), Some(false), Some(true), None]);
        silence.note(node(4), b);
        assert_eq!(silence.drops(node(4), b), None);
        (SILENT_MAX..SILENT_LIMIT).for_each(|number| silence.note(node(number), a));
        let drops = [9999, 9999].map(|number| silence.drops(node(number), a));
        assert_eq!(drops, [Some(true), Some(false)], "none has a chance any more");
    }

    #[test]
    fn late_answers_count_as_parts_of_unanswered_requests() {
        let mut silence = Silence::default();
        let (entry, node) = (PortIndex::from_bits(1), NodeIndex::from_bits);
        let (waited, patience) = (Duration::from_millis(200), Duration::from_millis(800));
        (1..4 * SILENT_MAX).for_each(|_| silence.note_late(node(1), entry, waited, patience));
        assert_eq!(silence.drops(node(1), entry), None);
        silence.note_late(node(1), entry, waited, patience);
        assert_eq!(silence.drops(node(1), entry), Some(true));
        assert_eq!(silence.drops(node(2), entry), None, "it was not late");
    }
}
