//! Limits the time that a sweep spends on nodes that do not answer.
//!
//! Any port can answer as a switch with more switches behind it, and leave what follows unanswered.
//! Each such request takes all its attempts, so that thousands of them hold up a sweep, and the
//! repair of the next failed link, for minutes. The nodes that one link brought share a limit:
//! beyond it, further requests to them are dropped until the next sweep.

use std::collections::{HashMap, HashSet};

use crate::fabric::{NodeIndex, PortIndex};

/// Requests that the nodes behind a link may leave unanswered in a sweep: a full default window.
const SILENT_MAX: u32 = 64;

/// What was left unanswered in a sweep.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Silence {
    /// Requests, by the link that brought the node.
    by_entry: HashMap<PortIndex, u32>,
    /// Nodes to which requests were dropped.
    dropped: HashSet<NodeIndex>,
}

impl Silence {
    /// Counts a request that was given up, to a node that the link `entry` brought.
    pub(in crate::sweep) fn note(&mut self, entry: PortIndex) {
        *self.by_entry.entry(entry).or_default() += 1;
    }

    /// Whether no request was given up.
    pub(in crate::sweep) fn is_empty(&self) -> bool {
        self.by_entry.is_empty()
    }

    /// Whether requests to a node that the link `entry` brought are dropped; if so, whether this is
    /// the first.
    pub(in crate::sweep) fn drops(&mut self, node: NodeIndex, entry: PortIndex) -> Option<bool> {
        let silent = self.by_entry.get(&entry).copied().unwrap_or(0);
        (silent >= SILENT_MAX).then(|| self.dropped.insert(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_behind_one_link_share_a_limit() {
        let mut silence = Silence::default();
        let [a, b] = [1, 2].map(PortIndex::from_bits);
        (1..SILENT_MAX).for_each(|_| silence.note(a));
        assert_eq!(silence.drops(NodeIndex::from_bits(1), a), None);
        silence.note(a);
        let drops = [1, 1, 2].map(|node| silence.drops(NodeIndex::from_bits(node), a));
        assert_eq!(drops, [Some(true), Some(false), Some(true)]);
        assert_eq!(silence.drops(NodeIndex::from_bits(3), b), None);
    }
}
