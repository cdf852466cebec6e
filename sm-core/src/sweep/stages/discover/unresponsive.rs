//! Nodes that do not answer: either gone, or only unreachable by the current route.
//!
//! Directed routes pass through switches that may fail during a discovery. So a silent node is
//! probed from all sides before it is declared gone: each port with a link towards such a node is
//! queried whether the link is still up, and if it is, which node is behind it. A node that answers
//! has a route again, and gets its unanswered requests again. A node whose port was to be read and
//! did not answer is handled in the same way. The search ends when a round finds nothing new: then
//! every port towards a node that is still silent is down, has no node behind it, or belongs to
//! another such node, so that no route leads to any of them.

use std::time::Instant;

use ib_mad::wire::attribute::PortState;
use tracing::debug;

use super::Discovery;
use super::notes::{Standing, Unresponsive};
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Kind, Owner, Request, kinds};
use crate::sweep::subnet::Subnet;

/// Maximum number of rounds per discovery. Every round but the last follows a node that answered or
/// fell silent.
const ROUNDS_MAX: u32 = 32;

/// Whether a request of the discovery may be repeated by another route to its node.
fn may_be_rerouted(request: Request) -> bool {
    let Owner::Discovery(kind) = request.kind.owner() else { return false };
    use kinds::Discovery::{Identity, OwnNodeInfo, ProbeAgain, ProbeBeyond};
    !matches!(kind, OwnNodeInfo | ProbeAgain | ProbeBeyond | Identity)
}

impl Discovery {
    /// Probes the far end of a port's link.
    pub(in crate::sweep) fn probe(&mut self, subnet: &mut Subnet, port: PortIndex) {
        // The number identifies the routes of the probe, in case the node does not answer.
        subnet.exchange.push(Request::block(Kind::Probe, port, self.unresponsive.reroutes));
    }

    /// Recomputes directed routes in a partial discovery, if a link that they may use went down.
    pub(in crate::sweep) fn find_other_routes(&mut self, subnet: &mut Subnet) {
        if !std::mem::take(&mut self.routes_changed) || self.full {
            return;
        }
        let in_flight: Vec<_> = subnet
            .exchange
            .in_flight()
            .map(|(tid, request)| (tid, request, subnet.route_of(request)))
            .collect();
        let unresponsive = &self.unresponsive;
        subnet.fabric.trace_routes(|fabric, egress| {
            unresponsive.is_usable(fabric.port(egress).node, egress)
        });
        self.unresponsive.reroutes = self.unresponsive.reroutes.wrapping_add(1);
        // Their answers may never come: the time-out is not waited for.
        let is_rerouted = |&(_, request, route): &(u64, Request, Option<_>)| {
            route.is_none() || subnet.route_of(request) != route
        };
        let rerouted: Vec<u64> =
            in_flight.into_iter().filter(is_rerouted).map(|(tid, ..)| tid).collect();
        subnet.exchange.send_again(&rerouted);
        self.read_ways(subnet);
    }

    /// Records that a discovery request got no answer. `false` if the cause cannot be an
    /// unreachable node.
    pub(in crate::sweep) fn defer(&mut self, subnet: &mut Subnet, request: Request) -> bool {
        if !may_be_rerouted(request) || subnet.is_sm_node(request.port()) {
            return false;
        }
        if self.mark_silent(subnet.fabric.port(request.port()).node) {
            debug!("{}: no answer from {}", request.kind.name(), subnet.place(request.port()));
        }
        match (request.kind, request.block.checked_sub(1)) {
            (Kind::LinkState, None) => {}
            // The far end did not answer before either: its probe is repeated.
            (Kind::LinkState, Some(mark)) => {
                let probe = Request::block(Kind::Probe, request.port(), mark);
                self.unresponsive.waiting.push(probe);
            }
            _ => self.unresponsive.waiting.push(request),
        }
        true
    }

    /// Whether a request is not sent because its node is currently unreachable.
    pub(in crate::sweep) fn is_unreachable(&self, subnet: &Subnet, request: Request) -> bool {
        may_be_rerouted(request)
            && self.unresponsive.is_silent(subnet.fabric.port(request.port()).node)
    }

    fn mark_silent(&mut self, node: NodeIndex) -> bool {
        let unresponsive = &mut self.unresponsive;
        let is_new = unresponsive.nodes.insert(node, Standing::Silent) != Some(Standing::Silent);
        unresponsive.progress |= is_new;
        is_new
    }

    /// `node` answered through `egress`; if it was silent, this is a new route to it.
    pub(in crate::sweep) fn node_answered(
        &mut self,
        subnet: &mut Subnet,
        node: NodeIndex,
        egress: PortIndex,
        ingress: PortIndex,
    ) {
        self.unresponsive.dead_ends.remove(&egress);
        self.unresponsive.dead_ends.remove(&ingress);
        if !self.unresponsive.is_silent(node) {
            return;
        }
        self.unresponsive.nodes.insert(node, Standing::Answers);
        self.unresponsive.progress = true;
        let is_switch = subnet.fabric.node(node).switch.is_some();
        // If the route through `egress` passes through the node itself, its upstream port stays.
        if is_switch && !subnet.fabric.leads_through(egress, node) {
            let before = subnet.fabric.upstream(node);
            subnet.fabric.set_upstream(node, egress);
            if before != Some(egress) {
                debug!("trying another route to {}", subnet.place(ingress));
                self.unresponsive.reroutes = self.unresponsive.reroutes.wrapping_add(1);
            }
        }
    }

    /// A port towards a silent node answered with its link state.
    pub(in crate::sweep) fn link_state(
        &mut self,
        subnet: &mut Subnet,
        request: Request,
        data: &[u8; 64],
    ) {
        let port = request.port();
        subnet.fabric.set_port_info(port, data);
        self.note_training(subnet, port);
        let state = subnet.fabric.port(port).state();
        if matches!(state, Some(PortState::Initialize | PortState::Armed | PortState::Active)) {
            return self.link_is_up(subnet, request);
        }
        if let Some(peer) = subnet.fabric.port(port).peer() {
            let far = subnet.fabric.port(peer).node;
            self.cut(subnet, port, peer);
            // A silent node is not part of any route.
            self.routes_changed |= !self.unresponsive.is_silent(far);
        }
    }

    /// The link of a port is up: probes the node behind it, unless a probe by the same routes was
    /// not answered.
    pub(in crate::sweep) fn link_is_up(&mut self, subnet: &mut Subnet, request: Request) {
        if request.block == self.unresponsive.reroutes.wrapping_add(1) {
            self.unresponsive.dead_ends.insert(request.port());
        } else {
            self.probe(subnet, request.port());
        }
    }

    /// Starts the next round after all other requests have ended; returns whether requests were
    /// sent.
    pub(in crate::sweep) fn retries_silent(&mut self, subnet: &mut Subnet, now: Instant) -> bool {
        if self.cut_off {
            return false;
        }
        loop {
            self.ask_again(subnet, now);
            if !subnet.exchange.is_idle() {
                return true;
            }
            let unresponsive = &mut self.unresponsive;
            if !std::mem::take(&mut unresponsive.progress) || unresponsive.rounds == ROUNDS_MAX {
                break;
            }
            unresponsive.rounds += 1;
            self.query_neighbours(subnet);
            if !subnet.exchange.is_idle() {
                return true;
            }
        }
        self.give_up_silent(subnet, now);
        !subnet.exchange.is_idle()
    }

    /// Repeats the unanswered requests of nodes that answer again, once per set of routes.
    fn ask_again(&mut self, subnet: &mut Subnet, now: Instant) {
        let waiting = std::mem::take(&mut self.unresponsive.waiting);
        for request in waiting {
            let node = subnet.fabric.port(request.port()).node;
            let unresponsive = &mut self.unresponsive;
            if unresponsive.is_silent(node) {
                unresponsive.waiting.push(request);
            } else if unresponsive.again.insert(request, unresponsive.reroutes)
                == Some(unresponsive.reroutes)
            {
                self.given_up(subnet, request, now);
            } else {
                subnet.exchange.push(request);
            }
        }
    }

    /// Queries the link state of each port that leads to a silent node. The port by which it was
    /// last reached comes first, so that correct routes stay.
    fn query_neighbours(&mut self, subnet: &mut Subnet) {
        let silent = self.unresponsive.nodes.iter();
        let silent: Vec<NodeIndex> = silent
            .filter(|(_, standing)| **standing == Standing::Silent)
            .map(|(&node, _)| node)
            .collect();
        for node in silent {
            let upstream = subnet.fabric.upstream(node);
            let mut towards: Vec<PortIndex> = subnet
                .fabric
                .ports_of(node)
                .filter_map(|port| subnet.fabric.port(port).peer())
                .filter(|&port| {
                    let entry = subnet.fabric.port(port);
                    let forwards = subnet.fabric.node_of(port).switch.is_some()
                        || subnet.fabric.is_own_port(port);
                    forwards && self.unresponsive.is_usable(entry.node, port)
                })
                .collect();
            towards.sort_by_key(|&port| Some(port) != upstream);
            for port in towards {
                subnet.exchange.push(Request::new(Kind::LinkState, port));
            }
        }
    }

    /// Gives up nodes that are still silent: no route leads to them.
    fn give_up_silent(&mut self, subnet: &mut Subnet, now: Instant) {
        for request in std::mem::take(&mut self.unresponsive.waiting) {
            self.given_up(subnet, request, now);
        }
        let Unresponsive { nodes, dead_ends, .. } = std::mem::take(&mut self.unresponsive);
        let silent = nodes.into_iter().filter(|(_, standing)| *standing == Standing::Silent);
        self.silent.extend(silent.map(|(node, _)| node));
        let mut dead_ends: Vec<PortIndex> = dead_ends.into_iter().collect();
        dead_ends.sort_unstable();
        // If no node next to the SM answers, nothing is known of the fabric: the last state is
        // kept.
        let is_lost = |port: PortIndex| {
            subnet.fabric.port(port).peer().is_none() || dead_ends.binary_search(&port).is_ok()
        };
        let is_alone = subnet.fabric.own_ports().all(is_lost);
        for &port in &dead_ends {
            if !(is_alone && subnet.fabric.is_own_port(port))
                && let Some(peer) = subnet.fabric.port(port).peer()
            {
                self.cut(subnet, port, peer);
            }
        }
    }
}

impl Subnet {
    /// Handles a probe without an answer; it counts only if the probing node itself answers.
    pub(in crate::sweep) fn probe_unanswered(&mut self, request: Request) {
        let mark = request.block.wrapping_add(1);
        self.exchange.push(Request::block(Kind::LinkState, request.port(), mark));
    }

    fn is_sm_node(&self, port: PortIndex) -> bool {
        let sm_port = self.fabric.sm_port().map(|sm_port| self.fabric.port(sm_port).node);
        sm_port == Some(self.fabric.port(port).node)
    }
}
