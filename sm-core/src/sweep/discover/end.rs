//! The end of a discovery: what was not seen again is cut, and what no route reaches is gone; unless it
//! is our own link that is missing.

use std::collections::HashSet;
use std::time::Instant;

use ib_mad::wire::attribute::PortState;
use tracing::{debug, error, info, warn};

use super::super::{LINES_MAX, Phase, Sweeper};
use crate::fabric::{NodeIndex, PortIndex};

/// Ports with a link and nobody behind it that are looked at again before long.
const UNANSWERED_MAX: usize = 1024;

impl Sweeper {
    /// Whether there are, or were once, other nodes than our own.
    pub(super) fn expects_others(&self) -> bool {
        let (hosts, switches) = self.fabric.counts();
        hosts + switches > 1 || self.lids.len() > 1
    }

    /// Our own port is down: that says nothing of the fabric, of which we keep what we know.
    fn await_own_link(&mut self, now: Instant) {
        if self.subnet.own_link_lost() {
            let port = self.fabric.home().map(|home| self.fabric.describe(home));
            error!(
                "the SM's own port is down; check its cable ({}). The fabric is left as it was \
                 last seen",
                port.unwrap_or_default()
            );
        }
        self.give_up(now);
    }

    /// Whether our own port has a link, and nobody that we could use is behind it, where there was
    /// somebody before. Directed routes begin there: nothing can be told of the fabric.
    fn is_secluded(&self, silent: &HashSet<NodeIndex>) -> bool {
        let Some(home) = self.fabric.home().filter(|&home| self.is_adapter_port(home)) else {
            return false;
        };
        let port = self.fabric.port(home);
        let has_link = matches!(
            port.state(),
            Some(PortState::Initialize | PortState::Armed | PortState::Active)
        );
        let is_seen = port.link_seen == self.subnet.discovery;
        let peer = port.peer().filter(|_| is_seen).map(|peer| self.fabric.port(peer).node);
        port.known
            && has_link
            && !self.sweep.left_out.contains(&home)
            && self.expects_others()
            && peer.is_none_or(|node| silent.contains(&node))
    }

    /// Nobody answers behind our own port: we keep what we know of the fabric.
    fn await_neighbour(&mut self, now: Instant) {
        if self.subnet.neighbour_lost() {
            let port = self.fabric.home().map(|home| self.fabric.describe(home));
            warn!(
                "nobody answers behind the SM's own port, though its link is up ({}). The fabric is \
                 left as it was last seen",
                port.unwrap_or_default()
            );
        }
        self.give_up(now);
    }

    /// All is asked and answered: cuts what was not seen again, and drops what no route reaches.
    pub(in crate::sweep) fn end_discovery(&mut self, now: Instant) {
        if self.sweep.cut_off {
            return self.await_own_link(now);
        }
        if self.is_secluded(&self.sweep.silent) {
            return self.await_neighbour(now);
        }
        if self.subnet.neighbour_found() {
            info!("somebody answers behind the SM's own port again");
        }
        self.cut_unseen_links();
        let mut silent = std::mem::take(&mut self.sweep.silent);
        let quiet = std::mem::take(&mut self.sweep.quiet);
        silent.extend(quiet.into_iter().filter(|&node| self.is_unread(node)));
        let unreached = self.fabric.trace_routes(|fabric, port| {
            let peer = fabric.port(port).peer();
            !silent.contains(&fabric.port(port).node)
                && peer.is_some_and(|peer| !silent.contains(&fabric.port(peer).node))
        });
        for &node in unreached.iter().take(LINES_MAX) {
            let node = self.fabric.node(node);
            info!("gone: {} '{}' {}", node.kind, node.name(), node.guid);
        }
        if unreached.len() > LINES_MAX {
            info!("gone: {} nodes more", unreached.len() - LINES_MAX);
        }
        for &node in &unreached {
            self.fabric.remove(node);
        }
        self.sweep.report.vanished = unreached.len();
        self.sweep.report.appeared = self.fabric.nodes().filter(|(_, node)| node.is_new).count();
        self.tell_what_came_back();
        self.find_unanswered_links();
        self.find_unread_ports();
        self.settle_end_ports();
        let home = self.fabric.home().filter(|&home| self.fabric.port(home).known);
        let lost = home.is_none_or(|home| silent.contains(&self.fabric.port(home).node));
        if lost {
            if !self.sweep.is_fatal {
                error!("the SM's own port cannot be read; trying again");
            }
            return self.give_up(now);
        }
        self.begin_election(now);
    }

    fn cut_unseen_links(&mut self) {
        let number = self.subnet.discovery;
        let seen: Vec<NodeIndex> = self
            .fabric
            .nodes()
            .filter(|(_, node)| node.seen == number)
            .map(|(index, _)| index)
            .collect();
        for node in seen {
            if !self.sweep.full && self.fabric.node(node).switch.is_none() {
                // Its links are judged from their other ends, which may not have been asked.
                continue;
            }
            for port in self.fabric.ports_of(node) {
                if self.fabric.port(port).link_seen != number
                    && let Some(peer) = self.fabric.port(port).peer()
                {
                    self.cut(port, peer);
                }
            }
        }
    }

    /// Takes in that a link is gone. Links between switches are told: a host that goes is told by
    /// its name, and takes its link along.
    pub(in crate::sweep) fn cut(&mut self, port: PortIndex, peer: PortIndex) {
        let is_switch = |port| self.fabric.node_of(port).switch.is_some();
        if is_switch(port) && is_switch(peer) && self.subnet.up {
            self.sweep.cut_links += 1;
            let (a, b) = (self.fabric.describe(port), self.fabric.describe(peer));
            match self.sweep.cut_links {
                n if n <= LINES_MAX => info!("link down: {a} - {b}"),
                n if n == LINES_MAX + 1 => info!("more links are down; they are only counted"),
                _ => debug!("link down: {a} - {b}"),
            }
        }
        self.fabric.unlink(port);
    }

    /// Settles which port each port GUID belongs to.
    fn settle_end_ports(&mut self) {
        for (owner, other) in self.fabric.settle_end_ports() {
            let guid = self.fabric.port(owner).guid;
            if !self.first_report(guid.0) {
                continue;
            }
            let (first, second) = (self.place(owner), self.place(other));
            error!(
                "duplicate port GUID: {guid} is that of {first}, and of {second}. The second is \
                 left out; give one of the ports another GUID"
            );
        }
    }

    /// Finds ports with a link behind which nobody was found, to be looked at again before long.
    fn find_unanswered_links(&mut self) {
        let up = |state| {
            matches!(state, Some(PortState::Initialize | PortState::Armed | PortState::Active))
        };
        let unanswered: Vec<PortIndex> = self
            .fabric
            .nodes()
            .flat_map(|(index, node)| {
                let first = u8::from(node.switch.is_some());
                self.fabric.ports_of(index).skip(usize::from(first))
            })
            .filter(|port| {
                let entry = self.fabric.port(*port);
                let expected = entry.known && entry.peer().is_none() && up(entry.state());
                expected && !self.sweep.left_out.contains(port)
            })
            .take(UNANSWERED_MAX)
            .collect();
        let new: Vec<PortIndex> = unanswered
            .iter()
            .copied()
            .filter(|port| !self.subnet.unanswered.contains(port))
            .collect();
        if let [first, others @ ..] = &new[..] {
            let place = self.place(*first);
            match others.len() {
                0 => {
                    self.complain(format_args!("{place} has a link, but nobody answers behind it"));
                }
                more => self.complain(format_args!(
                    "{place} and {more} more ports have a link, but nobody answers behind it"
                )),
            }
            self.sweep.report.oddities += others.len() as u64;
            for port in others {
                debug!("{} has a link, but nobody answers behind it", self.place(*port));
            }
        }
        self.subnet.unanswered = unanswered;
    }

    /// Ends a sweep that led to nothing.
    pub(in crate::sweep) fn give_up(&mut self, now: Instant) {
        self.sweep.phase = Phase::Idle;
        self.subnet.give_up(now, &mut self.schedule);
    }
}
