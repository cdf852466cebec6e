//! Requests to nodes that leave many unanswered: see [`Silence`](crate::sweep::stages::silence).

use std::time::Instant;

use super::Sweeper;
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Destination, Request};
use crate::sweep::stages::Stage;
use crate::sweep::subnet::owner::Step;

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

    /// Ends a request that is dropped, the first to its node.
    pub(super) fn end_dropped(&mut self, now: Instant, request: Request) {
        match &mut self.sweep.stage {
            Stage::Discover(discovery) => {
                let node = self.subnet.fabric.port(request.port()).node;
                discovery.leave_out_silent(&self.subnet, node);
            }
            _ => _ = self.pass_to_owner(now, request, Step::Silent),
        }
    }

    /// The node of a request, and the link that brought it. In a discovery only new nodes count: it
    /// tries known ones by all routes.
    fn brought_by(&self, request: Request) -> Option<(NodeIndex, PortIndex)> {
        if request.destination() == Destination::OwnNode {
            return None;
        }
        let fabric = &self.subnet.fabric;
        let node = fabric.port(request.port()).node;
        let counts = fabric.node(node).is_new || !matches!(self.sweep.stage, Stage::Discover(_));
        fabric.node(node).entry().filter(|_| counts).map(|entry| (node, entry))
    }
}
