//! The spanning tree of a torus of which the trees of multicast groups are parts.

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

    /// The link of a switch towards the root; `None` at the root.
    pub fn up(&self, switch: u16) -> Option<Link> {
        self.up.get(usize::from(switch)).copied().flatten()
    }
}
