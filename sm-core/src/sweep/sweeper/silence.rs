//! Requests to nodes that leave many unanswered: see [`Silence`](crate::sweep::stages::silence).

use std::time::Instant;

use super::Sweeper;
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Destination, Request};
use crate::sweep::stages::Stage;
use crate::sweep::subnet::owner::Step;

impl Sweeper {
    /// Counts a request that was given up. A discovery has a limit of its own.
    pub(super) fn note_given_up(&mut self, now: Instant, request: Request) {
        let Some((node, entry)) = self.brought_by(request) else { return };
        match &mut self.sweep.stage {
            Stage::Discover(discovery) => discovery.note_given_up(&self.subnet, node, now),
            _ => self.sweep.silence.note(node, entry),
        }
    }

    /// Ends a request that is no longer sent because its node, or others behind the same link,
    /// took too long. Returns whether it is one.
    pub(super) fn drops(&mut self, now: Instant, request: Request) -> bool {
        let Some((node, entry)) = self.brought_by(request) else { return false };
        if let Stage::Discover(discovery) = &mut self.sweep.stage {
            return discovery.stops_reading(&self.subnet, node, now);
        }
        let Some(is_first) = self.sweep.silence.drops(node, entry) else { return false };
        if is_first {
            self.pass_to_owner(now, request, Step::Silent);
        }
        true
    }

    /// The node of a request, and the link that brought it.
    fn brought_by(&self, request: Request) -> Option<(NodeIndex, PortIndex)> {
        if request.destination() == Destination::OwnNode {
            return None;
        }
        let node = self.subnet.fabric.port(request.port()).node;
        self.subnet.fabric.node(node).brought_by().map(|entry| (node, entry))
    }
}
