//! Tracks the turns that packets of one layer may take.

use crate::Topology;
use crate::layering::Layering;

/// Allowed turns from one link to the next. They never close a cycle, so no packet waits, directly
/// or indirectly, for a buffer that it holds itself.
#[derive(Debug)]
pub(super) struct Turns {
    layering: Layering,
    /// Turns allowed since [`Turns::keep`].
    added: Vec<(u32, u32)>,
    /// Whether a turn was ever refused.
    pub(super) is_refused: bool,
}

impl Turns {
    /// Starts without allowed turns.
    pub(super) fn new(topology: &Topology) -> Self {
        Self { layering: Layering::new(topology, 1), added: Vec::new(), is_refused: false }
    }

    /// Allows a turn; `false` if it would close a cycle.
    #[inline]
    pub(super) fn allow(&mut self, from: u32, to: u32) -> bool {
        if self.layering.has(0, from, to) {
            return true;
        }
        let is_allowed = self.layering.add(0, from, to);
        if is_allowed {
            self.added.push((from, to));
        } else {
            self.is_refused = true;
        }
        is_allowed
    }

    /// Allows all of some turns, or none.
    pub(super) fn allow_all(&mut self, turns: impl IntoIterator<Item = (u32, u32)>) -> bool {
        let before = self.added.len();
        for (from, to) in turns {
            if !self.allow(from, to) {
                for (from, to) in self.added.drain(before..) {
                    self.layering.remove(0, from, to);
                }
                return false;
            }
        }
        true
    }

    /// Releases the turns allowed since the last call that are not `used`, so that they do not
    /// block others.
    pub(super) fn keep(&mut self, mut used: impl FnMut(u32, u32) -> bool) {
        for (from, to) in self.added.drain(..) {
            if !used(from, to) {
                self.layering.remove(0, from, to);
            }
        }
    }
}
