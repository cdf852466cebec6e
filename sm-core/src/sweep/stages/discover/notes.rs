//! Notes that a discovery takes as it proceeds: what came back, what contradicts, and which nodes
//! do not answer. The rules for them are in `came_back`, `contradiction` and `unresponsive`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::Request;

/// Changes noted during a discovery of a subnet that was already up.
#[derive(Debug, Default)]
pub(in crate::sweep) struct CameBack {
    /// Links between ports that had no link, or a link to another port.
    pub(in crate::sweep) links: BTreeSet<(PortIndex, PortIndex)>,
    /// Ports that are no longer Active although they have the same link.
    pub(in crate::sweep) trained: BTreeSet<PortIndex>,
    /// Adapters one of whose ports lost its LID.
    pub(in crate::sweep) reset: BTreeSet<NodeIndex>,
}

/// The contradictions of one discovery.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Contradictions {
    pub(in crate::sweep) open: Vec<Contradiction>,
    /// GUIDs reported already.
    pub(in crate::sweep) reported: Vec<u64>,
    /// New links into switches that were seen from both ends.
    pub(in crate::sweep) confirmed: HashSet<Claim>,
}

/// Two claims that exclude each other, or a new link whose other end is to confirm it.
#[derive(Debug, Clone, Copy)]
pub(in crate::sweep) struct Contradiction {
    pub(in crate::sweep) older: Claim,
    pub(in crate::sweep) newer: Newer,
    /// What is being checked; all before it held.
    pub(in crate::sweep) check: Check,
    /// Whether the other end of a new link did not answer.
    pub(in crate::sweep) is_silent: bool,
    pub(in crate::sweep) settled: bool,
}

/// What is checked again before two nodes are taken to share a GUID. One claim is checked before
/// and after the other one, so that both held at one time. The routes by which they were checked
/// must still lead to the nodes from which they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sweep) enum Check {
    Older,
    Newer,
    /// The route to the node of the older claim's port.
    RouteOfOlder,
    /// The route to the node of the newer claim's port.
    RouteOfNewer,
    OlderAgain,
    NewerAgain,
}

/// The claim that the link of `from` leads to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::sweep) struct Claim {
    pub(in crate::sweep) from: PortIndex,
    pub(in crate::sweep) to: PortIndex,
}

/// The result that contradicts the older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sweep) enum Newer {
    /// Another link.
    Link(Claim),
    /// The port has no link.
    Down(PortIndex),
    /// The link of the port, a place at which the switch was before, leads to the switch: from
    /// there, another node is seen at the other end of the older claim's link.
    Home(PortIndex),
}

/// Nodes of one discovery that did not answer.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Unresponsive {
    /// Nodes that were silent, and whether they answered since.
    pub(in crate::sweep) nodes: BTreeMap<NodeIndex, Standing>,
    /// The requests that they left unanswered.
    pub(in crate::sweep) waiting: Vec<Request>,
    /// Repeated requests, and the number of route changes at that time.
    pub(in crate::sweep) again: HashMap<Request, u16>,
    /// Ports that have a link and no node behind it, though their own nodes answer.
    pub(in crate::sweep) dead_ends: HashSet<PortIndex>,
    /// How often routes changed in this discovery.
    pub(in crate::sweep) reroutes: u16,
    /// Whether the last round found something new.
    pub(in crate::sweep) progress: bool,
    pub(in crate::sweep) rounds: u32,
}

/// Whether a node that was silent answered since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sweep) enum Standing {
    Silent,
    Answers,
}

impl Unresponsive {
    /// Whether a route may continue from the node of a port, and through that port.
    pub(in crate::sweep) fn is_usable(&self, node: NodeIndex, egress: PortIndex) -> bool {
        !self.is_silent(node) && !self.dead_ends.contains(&egress)
    }

    pub(in crate::sweep) fn is_silent(&self, node: NodeIndex) -> bool {
        self.nodes.get(&node) == Some(&Standing::Silent)
    }
}
