//! Requests to nodes that leave many unanswered: see [`Silence`](crate::sweep::stages::silence).

use super::Sweeper;
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::Request;
use crate::sweep::stages::Stage;

impl Sweeper {
    /// Counts a request that was given up.
    pub(super) fn note_given_up(&mut self, request: Request) {
        if let Some((_, entry)) = self.brought_by(request) {
            self.sweep.silence.note(entry);
        }
    }

    /// Whether a request is dropped; if so, whether it is the first to its node in this sweep.
    pub(super) fn drops(&mut self, request: Request) -> Option<bool> {
        if self.sweep.silence.is_empty() {
            return None;
        }
        let (node, entry) = self.brought_by(request)?;
        self.sweep.silence.drops(node, entry)
    }

    /// The node of a request, and the link that brought it, in stages that limit what is left
    /// unanswered. A discovery has limits of its own.
    fn brought_by(&self, request: Request) -> Option<(NodeIndex, PortIndex)> {
        if matches!(self.sweep.stage, Stage::Discover(_)) {
            return None;
        }
        let node = self.subnet.fabric.port(request.port()).node;
        Some((node, self.subnet.fabric.node(node).entry()?))
    }
}
