//! Discovery: which node is behind each port, and its attributes.
//!
//! A full discovery starts at the SM's own node and probes every link, from both ends where both
//! belong to switches. A partial one starts at the switches that reported a change and trusts
//! links that stayed Active between known nodes.
//!
//! `changed`: nodes that reported a change; `probes`: which node is behind a port; `contradiction`
//! and `checks`: results that exclude each other; `identity`: whether known routes still lead where
//! they led; `places`: nodes at other places than before; `homes`: GUIDs that two ports have;
//! `newcomers`: ports whose GUIDs belong to other places, which are empty; `memory`: what
//! `neighbors` takes; `answers`: attributes of nodes and ports; `new_nodes`: limits of what a link
//! may bring; `slow`: nodes that answer late; `quarantine`: what does not belong, and is kept out;
//! `end`: the end of a discovery, once all are read.

mod answerer;
mod answers;
mod came_back;
mod changed;
mod checks;
mod contradiction;
pub(in crate::sweep) mod end;
mod homes;
mod identity;
mod memory;
mod new_nodes;
mod newcomers;
pub(in crate::sweep) mod notes;
mod places;
mod probes;
mod quarantine;
mod slow;
mod unresponsive;

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use ib_mad::types::Guid;
use ib_mad::wire::mad::Status;

use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::{link, pkey};
use crate::smp::{Kind, Owner, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use answerer::Answerer;
use identity::Suspicion;
use new_nodes::NewNodes;
use notes::{CameBack, Contradictions, Unresponsive};
use quarantine::Strangers;
use slow::SlowNodes;

/// The stage that discovers the fabric.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Discovery {
    /// Whether it reads the whole fabric.
    pub(in crate::sweep) full: bool,
    /// Whether the subnet is already known, so that the number of new nodes is limited.
    bounded: bool,
    /// Nodes to read last, by routes that avoid links found down.
    suspects: Vec<NodeIndex>,
    /// Nodes that reported a change, and switches that lost a link.
    changed: BTreeSet<NodeIndex>,
    /// Ports on the way to them, which are read, too.
    on_the_way: HashSet<PortIndex>,
    /// Whether a fatal error was reported.
    is_fatal: bool,
    /// Whether the SM's own node did not answer, or not usefully.
    is_own_node_unread: bool,
    /// Ports by which the SM sends that are down.
    own_down: HashSet<PortIndex>,
    /// Whether all of them are, so that nothing can be read.
    pub(in crate::sweep) cut_off: bool,
    /// Whether a known route leads to another node, so that what was read is of no use.
    is_outdated: bool,
    /// Nodes that did not answer a request that every node must answer.
    pub(in crate::sweep) silent: HashSet<NodeIndex>,
    /// Nodes that did not answer for a port.
    pub(in crate::sweep) quiet: HashSet<NodeIndex>,
    pub(in crate::sweep) contradictions: Contradictions,
    pub(in crate::sweep) unresponsive: Unresponsive,
    /// Settings that another manager may have written.
    suspicions: Vec<Suspicion>,
    new_nodes: NewNodes,
    slow: SlowNodes,
    /// Answers from places at which their nodes are not expected, with the port that they came
    /// through: at most one for each port.
    out_of_place: Vec<(PortIndex, Answerer)>,
    strangers: Strangers,
    /// Ports whose link is ignored: it leads back to its own port, to a duplicate GUID, or to what
    /// does not belong.
    pub(in crate::sweep) left_out: HashSet<PortIndex>,
    /// Ports of switches that it has read.
    read: HashSet<PortIndex>,
    pub(in crate::sweep) came_back: CameBack,
    /// Whether a link that routes may use was found down.
    pub(in crate::sweep) routes_changed: bool,
    /// Switches that were reset: their tables are unknown.
    pub(in crate::sweep) reset: HashSet<NodeIndex>,
    /// Those of them that show settings of another manager in place of none: their links stayed up.
    rewritten: HashSet<NodeIndex>,
    /// GUIDs of ports in Initialize: they may have been reset, and their alias GUIDs with them.
    pub(in crate::sweep) retrained: HashSet<Guid>,
}

impl Discovery {
    /// A discovery of the whole fabric (`full`) or of parts of it, which reads `suspects` last.
    pub(in crate::sweep) fn new(subnet: &Subnet, full: bool, suspects: Vec<NodeIndex>) -> Self {
        let bounded = subnet.state.is_discovered || subnet.lids.len() > 1;
        Self { full, bounded, suspects, ..Self::default() }
    }

    /// Sends further requests after all outstanding ones have ended; returns whether there were
    /// any.
    pub(in crate::sweep) fn continues(&mut self, subnet: &mut Subnet, now: Instant) -> bool {
        if self.is_outdated {
            return false;
        }
        if !self.suspects.is_empty() && !self.cut_off {
            let suspects = std::mem::take(&mut self.suspects);
            subnet.visit_all(suspects);
            if !subnet.exchange.is_idle() {
                return true;
            }
        }
        self.retries_silent(subnet, now)
            || self.judges_out_of_place(subnet, now)
            || self.reads_new_nodes(subnet, now)
            || self.admits_strangers(subnet, now)
    }
}

impl RequestOwner for Discovery {
    type Kind = kinds::Discovery;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Discovery::OwnNodeInfo
            | kinds::Discovery::Probe
            | kinds::Discovery::ProbeAgain
            | kinds::Discovery::ProbeBeyond
            | kinds::Discovery::Identity
            | kinds::Discovery::NodeDescription
            | kinds::Discovery::SwitchInfo => Some(0),
            kinds::Discovery::ClearPortChange => {
                data[..20].copy_from_slice(&subnet.cleared_switch_info(request.port())?);
                Some(0)
            }
            kinds::Discovery::PortInfo | kinds::Discovery::LinkState => {
                Some(link::modifier(&subnet.fabric, request.port()))
            }
            kinds::Discovery::PKeys => Some(subnet.pkey_modifier(request)),
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, now } = owned;
        let port = request.port();
        let is_attribute =
            matches!(kind, kinds::Discovery::PortInfo | kinds::Discovery::SwitchInfo);
        if is_attribute && self.shown_again(subnet, request, data, now) {
            return;
        }
        match kind {
            kinds::Discovery::OwnNodeInfo => self.own_node_info(subnet, data),
            kinds::Discovery::Probe => self.probe_answered(subnet, port, data, now),
            kinds::Discovery::ProbeAgain => self.probed_again(subnet, request, Some(data), now),
            kinds::Discovery::ProbeBeyond => self.probed_beyond(subnet, request, Some(data), now),
            kinds::Discovery::Identity => self.identity(subnet, request, data, now),
            kinds::Discovery::NodeDescription => subnet.node_description(port, data),
            kinds::Discovery::SwitchInfo => self.switch_info(subnet, port, data),
            kinds::Discovery::ClearPortChange => self.port_change_cleared(subnet, port, data),
            kinds::Discovery::PortInfo => self.port_info(subnet, request, data, now),
            kinds::Discovery::LinkState => self.link_state(subnet, request, data),
            kinds::Discovery::PKeys => subnet.record_pkeys(request, data),
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, now } = owned;
        match kind {
            kinds::Discovery::LinkState => self.link_is_up(subnet, request),
            kinds::Discovery::OwnNodeInfo => {
                self.is_own_node_unread = true;
                let name = request.kind.name();
                subnet.error(format_args!("the SM's own node rejected {name}: {status}"));
            }
            kinds::Discovery::Probe
            | kinds::Discovery::ProbeAgain
            | kinds::Discovery::ProbeBeyond
            | kinds::Discovery::Identity
            | kinds::Discovery::NodeDescription
            | kinds::Discovery::SwitchInfo
            | kinds::Discovery::ClearPortChange
            | kinds::Discovery::PortInfo
            | kinds::Discovery::PKeys => {
                subnet.report_refusal(request, status);
                self.end_without_answer(subnet, kind, request, now);
            }
        }
    }

    /// Handles a request that was given up, unless it can be repeated by another route.
    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { kind, request, now } = owned;
        if kind == kinds::Discovery::Probe {
            return subnet.probe_unanswered(request);
        }
        if !self.defer(subnet, request) {
            self.given_up(subnet, request, now);
        }
    }
}

impl Discovery {
    /// Handles a request that is not repeated.
    pub(in crate::sweep) fn given_up(
        &mut self,
        subnet: &mut Subnet,
        request: Request,
        now: Instant,
    ) {
        let Owner::Discovery(kind) = request.kind.owner() else { return };
        match kind {
            kinds::Discovery::OwnNodeInfo => {
                self.is_own_node_unread = true;
                subnet.hint_at_m_key(request);
                let name = request.kind.name();
                subnet.error(format_args!("{name}: the SM's own node does not answer"));
            }
            // Reported at the end of the discovery, if no node is found there.
            kinds::Discovery::Probe
            | kinds::Discovery::ProbeAgain
            | kinds::Discovery::ProbeBeyond
            | kinds::Discovery::Identity
            | kinds::Discovery::LinkState => {}
            kinds::Discovery::PortInfo => {
                self.quiet.insert(subnet.fabric.port(request.port()).node);
                subnet.report_silence(request);
            }
            kinds::Discovery::NodeDescription
            | kinds::Discovery::SwitchInfo
            | kinds::Discovery::ClearPortChange
            | kinds::Discovery::PKeys => subnet.report_silence(request),
        }
        self.end_without_answer(subnet, kind, request, now);
    }

    /// Continues without the result of a request.
    fn end_without_answer(
        &mut self,
        subnet: &mut Subnet,
        kind: kinds::Discovery,
        request: Request,
        now: Instant,
    ) {
        match kind {
            kinds::Discovery::ProbeAgain => self.probed_again(subnet, request, None, now),
            kinds::Discovery::ProbeBeyond => self.probed_beyond(subnet, request, None, now),
            kinds::Discovery::SwitchInfo => {
                self.silent.insert(subnet.fabric.port(request.port()).node);
            }
            kinds::Discovery::PortInfo => self.port_is_unread(subnet, request.port()),
            kinds::Discovery::ClearPortChange => {
                let node = subnet.fabric.port(request.port()).node;
                if self.is_unreachable(subnet, request) {
                    self.silent.insert(node);
                } else {
                    subnet.read_ports(node);
                }
            }
            kinds::Discovery::OwnNodeInfo
            | kinds::Discovery::Probe
            | kinds::Discovery::Identity
            | kinds::Discovery::NodeDescription
            | kinds::Discovery::LinkState
            | kinds::Discovery::PKeys => {}
        }
    }

    /// PortInfo of `port` is refused, or not answered. That says nothing about the other ports of
    /// its node: its link still leads where it led, but is not used until it can be read.
    fn port_is_unread(&mut self, subnet: &mut Subnet, port: PortIndex) {
        subnet.fabric.port_mut(port).known = false;
        if let Some(peer) = subnet.fabric.port(port).peer().filter(|_| !self.full) {
            subnet.fabric.link_seen(port, subnet.state.discovery);
            subnet.fabric.link_seen(peer, subnet.state.discovery);
        }
    }
}

impl Subnet {
    pub(in crate::sweep) fn is_adapter_port(&self, port: PortIndex) -> bool {
        self.fabric.node_of(port).switch.is_none()
    }

    pub(in crate::sweep) fn visit_all(&mut self, nodes: Vec<NodeIndex>) {
        for node in nodes {
            if self.fabric.node(node).seen != self.state.discovery
                && let Some(port) = self.reached_by(node)
            {
                if self.fabric.upstream(node).is_some() {
                    self.exchange.push(Request::new(Kind::Identity, port));
                }
                self.visit(node, port);
            }
        }
    }

    /// A port by which a known node can be queried.
    fn reached_by(&self, node: NodeIndex) -> Option<PortIndex> {
        self.fabric
            .ports_of(node)
            .find(|&port| {
                self.fabric.node(node).switch.is_some()
                    || self.fabric.is_own_port(port)
                    || self.fabric.port(port).peer().is_some()
            })
            .filter(|_| self.fabric.node(node).present)
    }

    /// Requests all attributes of a node; `port` is one by which it is reached.
    fn visit(&mut self, node: NodeIndex, port: PortIndex) {
        self.fabric.node_seen(node, self.state.discovery);
        self.exchange.push(Request::new(Kind::NodeDescription, port));
        if self.fabric.node(node).switch.is_some() {
            self.exchange.push(Request::new(Kind::SwitchInfo, port));
        } else {
            self.visit_end_port(port);
        }
    }

    fn visit_end_port(&mut self, port: PortIndex) {
        self.exchange.push(Request::new(Kind::PortInfo, port));
        let capacity = self.fabric.node_of(port).node_info().partition_cap();
        for block in 0..pkey::blocks(capacity) {
            self.exchange.push(Request::block(Kind::PKeys, port, block));
        }
    }
}
