//! Nodes that answer a discovery late, each time.
//!
//! Any port can answer as thousands of switches, and answer each request shortly before it is given
//! up. Requests to such nodes, and to those behind them, have a part of the window, and those that
//! one link brought are read for a limited time. What is not read then stays as it was known, and
//! what is new is left out until a later sweep.
//!
//! Packets that are lost make answers late, too: a node is slow if a quarter of its answers are,
//! and not only one or two. Nodes that no link brought have no limit: they were found by the first
//! discovery.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Discovery;
use crate::fabric::{NodeIndex, PortIndex};
use crate::sweep::subnet::Subnet;

/// Late answers of a node from which on it may be slow.
const LATE_MIN: u32 = 3;
/// Of so many answers of a slow node one is late, or more.
const LATE_PER: u32 = 4;
/// Late answers of the nodes that one link brought, after which the time to read slow ones runs.
const LATE_OF_LINK: u32 = 64;
/// That time.
pub(super) const SLOW_TIME: Duration = Duration::from_secs(10);

/// Nodes that answered late in one discovery.
#[derive(Debug, Default)]
pub(in crate::sweep) struct SlowNodes {
    by_node: HashMap<NodeIndex, Answers>,
    by_link: HashMap<PortIndex, Link>,
    /// Known nodes that were not read, and the links that brought them.
    unread: HashMap<NodeIndex, PortIndex>,
}

/// Answers of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    all: u32,
    late: u32,
    /// Whether it was found behind a slow one, and has not answered in time.
    is_behind_slow: bool,
}

impl Answers {
    fn is_slow(self) -> bool {
        let is_late = self.late >= LATE_MIN && self.late.saturating_mul(LATE_PER) >= self.all;
        is_late || self.is_behind_slow
    }
}

/// Late answers of the nodes that a link brought.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    late: u32,
    /// When slow ones are no longer read.
    ends: Option<Instant>,
}

impl SlowNodes {
    fn is_slow(&self, node: NodeIndex) -> bool {
        self.by_node.get(&node).is_some_and(|answers| answers.is_slow())
    }

    /// Known nodes that were not read, with the links that brought them.
    pub(super) fn unread(&self) -> impl Iterator<Item = (NodeIndex, PortIndex)> {
        self.unread.iter().map(|(&node, &link)| (node, link))
    }
}

impl Discovery {
    /// Whether requests to a node are expected to be answered late.
    pub(in crate::sweep) fn is_slow(&self, node: NodeIndex) -> bool {
        self.slow.is_slow(node)
    }

    /// Counts an answer of a node.
    pub(in crate::sweep) fn note_answered(
        &mut self,
        subnet: &Subnet,
        node: NodeIndex,
        is_late: bool,
        now: Instant,
    ) {
        let Some(link) = subnet.fabric.node(node).brought_by() else { return };
        let answers = self.slow.by_node.entry(node).or_default();
        answers.all = answers.all.saturating_add(1);
        answers.is_behind_slow &= is_late;
        if is_late {
            answers.late = answers.late.saturating_add(1);
            let link = self.slow.by_link.entry(link).or_default();
            link.late = link.late.saturating_add(1);
            if link.late >= LATE_OF_LINK {
                link.ends.get_or_insert(now + SLOW_TIME);
            }
        }
    }

    /// A node answered behind a port: if that is a slow one's, it is taken for slow, too, since
    /// agents pass on what is for others.
    pub(super) fn note_found_behind(
        &mut self,
        subnet: &Subnet,
        egress: PortIndex,
        node: NodeIndex,
    ) {
        let is_brought = subnet.fabric.node(node).brought_by().is_some();
        if is_brought && self.slow.is_slow(subnet.fabric.port(egress).node) {
            let behind_slow = Answers { is_behind_slow: true, ..Answers::default() };
            self.slow.by_node.entry(node).or_insert(behind_slow);
        }
    }

    /// Whether a node is slow, and the time to read such nodes is over; the link that brought it.
    pub(super) fn is_slow_too_long(
        &self,
        subnet: &Subnet,
        node: NodeIndex,
        now: Instant,
    ) -> Option<PortIndex> {
        let link = subnet.fabric.node(node).brought_by()?;
        let ends = self.slow.by_link.get(&link)?.ends?;
        (now >= ends && self.slow.is_slow(node)).then_some(link)
    }

    /// A node that was known before is not read.
    pub(super) fn leave_unread(&mut self, node: NodeIndex, link: PortIndex) {
        self.slow.unread.insert(node, link);
    }

    /// The links of known nodes that were not read stay as they were.
    pub(super) fn keep_unread(&self, subnet: &mut Subnet) {
        let number = subnet.state.discovery;
        for (node, _) in self.slow.unread() {
            for port in subnet.fabric.ports_of(node) {
                if let Some(peer) = subnet.fabric.port(port).peer() {
                    subnet.fabric.link_seen(port, number);
                    subnet.fabric.link_seen(peer, number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_packets_make_no_node_slow() {
        let of = |all, late| Answers { all, late, is_behind_slow: false }.is_slow();
        assert!(!of(2, 2) && of(3, 3) && of(12, 3) && !of(13, 3) && of(40, 10));
        assert!(Answers { is_behind_slow: true, ..Answers::default() }.is_slow());
    }
}
