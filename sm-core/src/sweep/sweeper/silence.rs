//! Requests to nodes that leave many unanswered, or answer late: see
//! [`Silence`](crate::sweep::stages::silence).

use std::time::{Duration, Instant};

use super::Sweeper;
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Destination, Request, Transmit};
use crate::sweep::stages::Stage;
use crate::sweep::stages::silence::LATE;
use crate::sweep::subnet::Subnet;
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

    /// The next request to send. In a discovery, those to nodes that answer late have a part of the
    /// window.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<Transmit> {
        let Subnet { fabric, exchange, .. } = &mut self.subnet;
        let stage = &self.sweep.stage;
        exchange.poll_transmit(now, |request| match stage {
            Stage::Discover(discovery) if request.destination() != Destination::OwnNode => {
                discovery.is_slow(fabric.port(request.port()).node)
            }
            _ => false,
        })
    }

    /// Counts how long a node took to answer, if it appeared in a subnet already known.
    pub(super) fn note_answered(&mut self, now: Instant, request: Request, waited: Duration) {
        if let Stage::Discover(discovery) = &mut self.sweep.stage {
            if request.destination() != Destination::OwnNode {
                let node = self.subnet.fabric.port(request.port()).node;
                discovery.note_answered(&self.subnet, node, waited >= LATE, now);
            }
            return;
        }
        if waited < LATE || self.sweep.is_idle() {
            return;
        }
        let Some((node, _)) = self.brought_by(request) else { return };
        if let Some(entry) = self.subnet.fabric.node(node).entry() {
            let patience = self.subnet.exchange.patience();
            self.sweep.silence.note_late(node, entry, waited, patience);
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
