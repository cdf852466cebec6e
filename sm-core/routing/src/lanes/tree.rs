//! The spanning tree of which the trees of multicast groups are parts, where packets change lanes
//! from hop to hop.

use crate::Link;

/// A tree that joins all switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterTree {
    root: u16,
    /// By switch: the link towards the root; the root has none.
    up: Vec<Option<Link>>,
}

impl MasterTree {
    /// A tree with this root. `up` has each switch's link towards it.
    pub(crate) fn new(root: u16, up: Vec<Option<Link>>) -> Self {
        Self { root, up }
    }

    /// The switch where all branches meet.
    pub fn root(&self) -> u16 {
        self.root
    }

    /// Whether a switch is part of the tree.
    pub fn joins(&self, switch: u16) -> bool {
        switch == self.root || self.up(switch).is_some()
    }

    /// The link of a switch towards the root; `None` at the root, and at switches that the tree
    /// does not join.
    pub fn up(&self, switch: u16) -> Option<Link> {
        self.up.get(usize::from(switch)).copied().flatten()
    }
}
