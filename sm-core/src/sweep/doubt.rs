//! Nodes that leave a question without an answer: gone, or only the way to them.
//!
//! Directed routes lead through switches that may die while we ask. So who is silent in a discovery is
//! asked for from all sides before anything follows from it: each port with a link towards such a
//! node tells whether that is still up, and if it is, who is behind it. A node that answers so has a
//! route again, and is asked once more what it left unanswered. Whose port was to tell and did not
//! is doubted as well. That ends when nothing new is learnt: then every port towards a node that is
//! still silent is down, or has nobody behind it, or belongs to another such node, so that no route
//! leads to any of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use ib_mad::wire::attribute::PortState;
use tracing::debug;

use super::{Phase, Sweeper};
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Kind, Request};

/// Looks at what is silent in one discovery. Of those that do not end the doubts each was made since a
/// node answered, or fell silent, after the one before.
const ROUNDS_MAX: u32 = 32;

/// The doubts of one discovery.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// Nodes that were silent, and whether they answered since.
    nodes: BTreeMap<NodeIndex, Standing>,
    /// What they were asked.
    waiting: Vec<Request>,
    /// What was asked again, and how often routes had changed by then.
    again: HashMap<Request, u16>,
    /// Ports that have a link and nobody behind it, though their nodes answer.
    mute: HashSet<PortIndex>,
    /// How often routes changed in this discovery.
    reroutes: u16,
    /// Whether something was learnt since the last look.
    progress: bool,
    rounds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Silent,
    Answers,
}

impl Doubts {
    /// Whether a route may go on from the node of a port, and through that port.
    fn may_pass(&self, node: NodeIndex, egress: PortIndex) -> bool {
        !self.is_silent(node) && !self.mute.contains(&egress)
    }

    fn is_silent(&self, node: NodeIndex) -> bool {
        self.nodes.get(&node) == Some(&Standing::Silent)
    }
}

/// Whether a discovery asks this of nodes that it may lose the way to.
fn is_of_discovery(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Probe
            | Kind::LinkState
            | Kind::NodeDescription
            | Kind::SwitchInfo
            | Kind::PortInfo
            | Kind::PKeys
            | Kind::ClearPortChange
    )
}

impl Sweeper {
    /// Asks who is behind a port with a link.
    pub(super) fn probe(&mut self, port: PortIndex) {
        // It says by which routes it was asked, should nobody answer.
        self.exchange.push(Request::block(Kind::Probe, port, self.sweep.doubts.reroutes));
    }

    /// Finds routes anew, since a link that they may use is down.
    pub(super) fn find_other_routes(&mut self) {
        let doubts = &self.sweep.doubts;
        self.fabric
            .trace_routes(|fabric, egress| doubts.may_pass(fabric.port(egress).node, egress));
        self.sweep.doubts.reroutes = self.sweep.doubts.reroutes.wrapping_add(1);
    }

    /// Takes in that a request of the discovery got no answer. `false` if that is none of those whose
    /// node may only be out of reach.
    pub(super) fn doubts(&mut self, request: Request) -> bool {
        if self.sweep.phase != Phase::Discover
            || !is_of_discovery(request.kind)
            || self.is_at_home(request.port())
        {
            return false;
        }
        if self.doubt(self.fabric.port(request.port()).node) {
            debug!("{}: no answer from {}", request.kind.name(), self.place(request.port()));
        }
        match (request.kind, request.block.checked_sub(1)) {
            (Kind::LinkState, None) => {}
            // Nobody answered behind the port before: that is asked again.
            (Kind::LinkState, Some(mark)) => {
                let probe = Request::block(Kind::Probe, request.port(), mark);
                self.sweep.doubts.waiting.push(probe);
            }
            _ => self.sweep.doubts.waiting.push(request),
        }
        true
    }

    /// Takes in that nobody answered behind a port: whether that means anything, its own node tells.
    pub(super) fn probe_unanswered(&mut self, request: Request) {
        let mark = request.block.wrapping_add(1);
        self.exchange.push(Request::block(Kind::LinkState, request.port(), mark));
    }

    /// Whether a request need not be sent, as its node is known to be out of reach for now.
    pub(super) fn is_in_vain(&self, request: Request) -> bool {
        self.sweep.phase == Phase::Discover
            && is_of_discovery(request.kind)
            && self.sweep.doubts.is_silent(self.fabric.port(request.port()).node)
    }

    fn doubt(&mut self, node: NodeIndex) -> bool {
        let doubts = &mut self.sweep.doubts;
        let is_new = doubts.nodes.insert(node, Standing::Silent) != Some(Standing::Silent);
        doubts.progress |= is_new;
        is_new
    }

    fn is_at_home(&self, port: PortIndex) -> bool {
        let home = self.fabric.home().map(|home| self.fabric.port(home).node);
        home == Some(self.fabric.port(port).node)
    }

    /// `node` answered behind `egress`: if it was silent, that is a route to it.
    pub(super) fn is_heard(&mut self, node: NodeIndex, egress: PortIndex, ingress: PortIndex) {
        self.sweep.doubts.mute.remove(&egress);
        self.sweep.doubts.mute.remove(&ingress);
        if !self.sweep.doubts.is_silent(node) {
            return;
        }
        self.sweep.doubts.nodes.insert(node, Standing::Answers);
        self.sweep.doubts.progress = true;
        let is_switch = self.fabric.node(node).switch.is_some();
        // What answers beyond itself is where it was.
        if is_switch && !self.fabric.leads_through(egress, node) {
            let before = self.fabric.upstream(node);
            self.fabric.set_upstream(node, egress);
            if before != Some(egress) {
                debug!("another route to {}", self.place(ingress));
                self.sweep.doubts.reroutes = self.sweep.doubts.reroutes.wrapping_add(1);
            }
        }
    }

    /// A port towards a silent node told of its link.
    pub(super) fn link_state(&mut self, request: Request, data: &[u8; 64]) {
        let port = request.port();
        self.fabric.set_port_info(port, data);
        self.note_training(port);
        let state = self.fabric.port(port).state();
        if matches!(state, Some(PortState::Initialize | PortState::Armed | PortState::Active)) {
            return self.link_is_up(request);
        }
        if let Some(peer) = self.fabric.port(port).peer() {
            let far = self.fabric.port(peer).node;
            self.cut(port, peer);
            // What is silent is no part of any route.
            self.sweep.routes_changed |= !self.sweep.doubts.is_silent(far);
        }
    }

    /// The link of a port is up, as far as is known: who is behind it is asked, unless nobody answered
    /// that by the very routes that there are.
    pub(super) fn link_is_up(&mut self, request: Request) {
        if request.block == self.sweep.doubts.reroutes.wrapping_add(1) {
            self.sweep.doubts.mute.insert(request.port());
        } else {
            self.probe(request.port());
        }
    }

    /// All is asked and answered but for what is in doubt: whether more is being asked now.
    pub(super) fn resolves_doubts(&mut self, now: Instant) -> bool {
        if self.sweep.cut_off {
            return false;
        }
        loop {
            self.ask_again(now);
            if !self.exchange.is_idle() {
                return true;
            }
            let doubts = &mut self.sweep.doubts;
            if !std::mem::take(&mut doubts.progress) || doubts.rounds == ROUNDS_MAX {
                break;
            }
            doubts.rounds += 1;
            self.look_from_all_sides();
            if !self.exchange.is_idle() {
                return true;
            }
        }
        self.give_up_doubts(now);
        !self.exchange.is_idle()
    }

    /// Asks those who answer again what they left unanswered. If that was asked again already, and
    /// routes are as they were, it stays so.
    fn ask_again(&mut self, now: Instant) {
        let waiting = std::mem::take(&mut self.sweep.doubts.waiting);
        for request in waiting {
            let node = self.fabric.port(request.port()).node;
            let doubts = &mut self.sweep.doubts;
            if doubts.is_silent(node) {
                doubts.waiting.push(request);
            } else if doubts.again.insert(request, doubts.reroutes) == Some(doubts.reroutes) {
                self.handle_lasting_silence(now, request);
            } else {
                self.exchange.push(request);
            }
        }
    }

    /// Asks each port that leads to a silent node for its link. That by which the node was reached
    /// comes first, so that routes which are right stay.
    fn look_from_all_sides(&mut self) {
        let silent = self.sweep.doubts.nodes.iter();
        let silent: Vec<NodeIndex> = silent
            .filter(|(_, standing)| **standing == Standing::Silent)
            .map(|(&node, _)| node)
            .collect();
        for node in silent {
            let upstream = self.fabric.upstream(node);
            let mut towards: Vec<PortIndex> = self
                .fabric
                .ports_of(node)
                .filter_map(|port| self.fabric.port(port).peer())
                .filter(|&port| {
                    let entry = self.fabric.port(port);
                    let forwards = self.fabric.node_of(port).switch.is_some()
                        || Some(port) == self.fabric.home();
                    forwards && self.sweep.doubts.may_pass(entry.node, port)
                })
                .collect();
            towards.sort_by_key(|&port| Some(port) != upstream);
            for port in towards {
                self.exchange.push(Request::new(Kind::LinkState, port));
            }
        }
    }

    /// No route leads to those who are still silent.
    fn give_up_doubts(&mut self, now: Instant) {
        for request in std::mem::take(&mut self.sweep.doubts.waiting) {
            self.handle_lasting_silence(now, request);
        }
        let Doubts { nodes, mute, .. } = std::mem::take(&mut self.sweep.doubts);
        let silent = nodes.into_iter().filter(|(_, standing)| *standing == Standing::Silent);
        self.sweep.silent.extend(silent.map(|(node, _)| node));
        let mut mute: Vec<PortIndex> = mute.into_iter().collect();
        mute.sort_unstable();
        for port in mute {
            // Nobody behind our own port says nothing of the fabric: that is kept as it was.
            if Some(port) != self.fabric.home()
                && let Some(peer) = self.fabric.port(port).peer()
            {
                self.cut(port, peer);
            }
        }
    }
}
