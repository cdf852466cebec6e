//! Discovery: which node is behind each port, and its attributes.
//!
//! A full discovery starts at the SM's own node and probes every link, from both ends where both
//! belong to switches. A partial one starts at the switches that reported a change and trusts
//! links that stayed Active between known nodes.
//!
//! `answers`: attributes of nodes and ports; `end`: the end of a discovery, once all are read.

mod answers;
mod end;

use std::collections::HashSet;
use std::time::Instant;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType};
use tracing::{debug, info};

use super::came_back::CameBack;
use super::contradiction::Contradictions;
use super::current::{Stage, Sweep};
use super::subnet::Subnet;
use super::unresponsive::Unresponsive;
use super::{Event, Sweeper};
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::pkey;
use crate::smp::{Kind, Request};

/// The stage that discovers the fabric.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    /// Whether it reads the whole fabric.
    pub(super) full: bool,
    /// Nodes to read last, by routes that avoid links found down.
    suspects: Vec<NodeIndex>,
    /// Whether a fatal error was reported.
    is_fatal: bool,
    /// Whether the SM's own port is down, so that nothing can be read.
    pub(super) cut_off: bool,
    /// Nodes that did not answer a request that every node must answer.
    pub(super) silent: HashSet<NodeIndex>,
    /// Nodes that did not answer for a port.
    pub(super) quiet: HashSet<NodeIndex>,
    pub(super) contradictions: Contradictions,
    pub(super) unresponsive: Unresponsive,
    /// Ports whose link is ignored: it leads back to its own port, or to a duplicate GUID.
    pub(super) left_out: HashSet<PortIndex>,
    pub(super) came_back: CameBack,
    /// Whether a link that routes may use was found down.
    pub(super) routes_changed: bool,
    /// Links between switches that are gone.
    cut_links: usize,
    /// Switches that were reset: their tables are unknown.
    pub(super) reset: HashSet<NodeIndex>,
}

/// A NodeInfo that passed the checks.
pub(super) struct Answerer {
    pub(super) bytes: [u8; 40],
    pub(super) kind: NodeType,
    pub(super) guid: Guid,
    pub(super) port_guid: Guid,
    pub(super) port_count: u8,
    pub(super) local_port: PortNum,
}

impl Answerer {
    /// Checks a NodeInfo; returns the reason if it is invalid.
    pub(super) fn parse(data: &[u8; 64]) -> Result<Self, &'static str> {
        let mut bytes = [0; 40];
        bytes.copy_from_slice(&data[..40]);
        let info = NodeInfo::new(&bytes).map_err(|_| "NodeInfo is too short")?;
        let kind = NodeType::from_code(info.node_type()).ok_or("its NodeType is reserved")?;
        let (port_count, local_port) = (info.num_ports(), info.local_port_num());
        let (guid, port_guid) = (info.node_guid(), info.port_guid());
        if guid.0 == 0 || port_guid.0 == 0 {
            return Err("its GUID is 0");
        }
        if port_count == 0 || port_count == u8::MAX {
            return Err("its NumPorts is invalid");
        }
        let first = u8::from(kind != NodeType::Switch);
        if !(first..=port_count).contains(&local_port.0) {
            return Err("its LocalPortNum is not one of its ports");
        }
        Ok(Self { bytes, kind, guid, port_guid, port_count, local_port })
    }
}

impl Sweeper {
    /// Starts a discovery of the whole fabric, or from `changed` on. A partial discovery queries
    /// `suspects` last, by routes that avoid links found down.
    pub(super) fn begin_discovery(
        &mut self,
        now: Instant,
        changed: Option<Vec<NodeIndex>>,
        suspects: Vec<NodeIndex>,
    ) {
        let full = changed.is_none();
        let journal = std::mem::take(&mut self.subnet.journal);
        self.subnet.journal = journal.into_discovery(full);
        self.sweep = Sweep::default();
        self.subnet.journal.report.first = self.subnet.state.first_as_master;
        self.subnet.journal.report.smps = self.subnet.exchange.counters().transmitted;
        self.subnet.state.begin_discovery();
        self.take_system_images(full);
        let discovery = Discovery { full, suspects, ..Discovery::default() };
        self.enter(now, Stage::Discover(Box::new(discovery)));
        match changed {
            None => {
                if self.subnet.fabric.wants_compaction() {
                    self.compact_fabric();
                    self.subnet.partitions.forget();
                    self.subnet.election.forget_ports();
                    self.subnet.state.forget_ports();
                    // This sweep asks the clients that wait.
                    self.reregistration.clear(&mut self.subnet);
                }
                self.subnet.schedule.begin_all(now);
                self.subnet.events.push(Event::Discovering);
                self.subnet.exchange.push(Request::OWN_NODE_INFO);
            }
            Some(nodes) => {
                // If our own cable was pulled, nothing else is known of the fabric.
                let sm_port = self
                    .subnet
                    .fabric
                    .sm_port()
                    .filter(|&sm_port| self.subnet.is_adapter_port(sm_port));
                if let Some(sm_port) = sm_port {
                    self.subnet.exchange.push(Request::new(Kind::PortInfo, sm_port));
                }
                self.subnet.visit_all(nodes);
            }
        }
    }
}

impl Discovery {
    /// Handles a response with status 0.
    pub(super) fn answered(&mut self, subnet: &mut Subnet, request: Request, data: &[u8; 64]) {
        let port = request.port();
        match request.kind {
            Kind::OwnNodeInfo => self.own_node_info(subnet, data),
            Kind::Probe => self.probe_answered(subnet, port, data),
            Kind::ProbeAgain => self.probed_again(subnet, request, Some(data)),
            Kind::NodeDescription => subnet.node_description(port, data),
            Kind::SwitchInfo => self.switch_info(subnet, port, data),
            Kind::ClearPortChange => self.port_change_cleared(subnet, port, data),
            Kind::PortInfo => self.port_info(subnet, request, data),
            Kind::LinkState => self.link_state(subnet, request, data),
            Kind::MlnxExtPortInfo => subnet.fdr10_answered(request, data),
            Kind::PKeys => subnet.pkeys(request, data),
            // A discovery sends nothing else.
            _ => {}
        }
    }

    pub(super) fn own_node_info(&mut self, subnet: &mut Subnet, data: &[u8; 64]) {
        let answerer = match Answerer::parse(data) {
            Ok(answerer) => answerer,
            Err(reason) => {
                return subnet.error(format_args!("cannot use the SM's own node: {reason}"));
            }
        };
        let wanted = subnet.settings.guid;
        if wanted.0 != 0 && wanted != answerer.port_guid {
            self.is_fatal = true;
            return subnet.events.push(Event::Fatal(format!(
                "port {wanted} (-g) is not the local port, which is {}; omit -g, or select the \
                 node with --node",
                answerer.port_guid
            )));
        }
        let Some(node) = subnet.add(&answerer) else { return };
        let num = if answerer.kind == NodeType::Switch { PortNum(0) } else { answerer.local_port };
        let Some(sm_port) = subnet.fabric.port_of(node, num) else { return };
        if subnet.fabric.sm_port() != Some(sm_port) {
            info!("running on {} port {num}, GUID {}", answerer.kind, answerer.port_guid);
        }
        subnet.fabric.set_sm_port(sm_port);
        subnet.fabric.port_mut(sm_port).guid = answerer.port_guid;
        subnet.election.own.set_guid(answerer.port_guid);
        subnet.visit(node, sm_port);
    }

    /// Handles a NodeInfo received through `egress`.
    pub(super) fn probe_answered(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        data: &[u8; 64],
    ) {
        match Answerer::parse(data) {
            Ok(answerer) => self.observe(subnet, egress, &answerer),
            Err(reason) => {
                let place = subnet.place(egress);
                subnet.oddity(format_args!("node behind {place} ignored: {reason}"));
            }
        }
    }

    /// Records that the link of `egress` leads to `answerer`.
    fn observe(&mut self, subnet: &mut Subnet, egress: PortIndex, answerer: &Answerer) {
        let known = subnet.fabric.find(answerer.guid).filter(|&node| self.is_current(subnet, node));
        if let Some(node) = known {
            let node_is = subnet.fabric.node(node);
            if (node_is.kind, node_is.port_count) != (answerer.kind, answerer.port_count) {
                return self.report_different_nodes(subnet, egress, node, answerer);
            }
        }
        let Some(node) = known.or_else(|| subnet.add(answerer)) else { return };
        let Some(ingress) = subnet.fabric.port_of(node, answerer.local_port) else { return };
        if egress == ingress {
            return self.leads_to_itself(subnet, egress);
        }
        if self.contradicts(subnet, egress, ingress) {
            return;
        }
        self.confirm_link(subnet, egress, ingress, answerer);
    }

    /// Whether a node is present: seen by this discovery or, in a partial discovery, by any.
    fn is_current(&self, subnet: &Subnet, node: NodeIndex) -> bool {
        let node = subnet.fabric.node(node);
        node.present && (node.seen == subnet.state.discovery || !self.full)
    }

    /// Links two ports, and starts to read a node that is new.
    pub(super) fn confirm_link(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        ingress: PortIndex,
        by: &Answerer,
    ) {
        let confirmed_before = subnet.is_confirmed(ingress);
        self.note_link(subnet, egress, ingress);
        subnet.fabric.link(egress, ingress);
        for port in [egress, ingress] {
            subnet.fabric.link_seen(port, subnet.state.discovery);
        }
        let node = subnet.fabric.port(ingress).node;
        let is_switch = subnet.fabric.node(node).switch.is_some();
        if !is_switch && subnet.fabric.port(ingress).guid != by.port_guid {
            subnet.fabric.port_mut(ingress).guid = by.port_guid;
        }
        self.node_answered(subnet, node, egress, ingress);
        let is_sm_node =
            subnet.fabric.sm_port().is_some_and(|sm_port| subnet.fabric.port(sm_port).node == node);
        if subnet.fabric.node(node).seen != subnet.state.discovery {
            if subnet.fabric.node(node).is_new {
                debug!("found {} {} behind {}", by.kind, by.guid, subnet.place(egress));
            }
            if is_switch && !is_sm_node && !subnet.fabric.leads_through(egress, node) {
                subnet.fabric.set_upstream(node, egress);
            }
            subnet.visit(node, ingress);
        } else if !is_switch && !confirmed_before {
            subnet.visit_end_port(ingress);
        }
    }

    /// Sends further requests after all outstanding ones have ended; returns whether there were
    /// any.
    pub(super) fn continues(&mut self, subnet: &mut Subnet) -> bool {
        if !self.suspects.is_empty() && !self.cut_off {
            let suspects = std::mem::take(&mut self.suspects);
            subnet.visit_all(suspects);
            if !subnet.exchange.is_idle() {
                return true;
            }
        }
        self.retries_silent(subnet)
    }
}

impl Subnet {
    fn is_adapter_port(&self, port: PortIndex) -> bool {
        self.fabric.node_of(port).switch.is_none()
    }

    fn visit_all(&mut self, nodes: Vec<NodeIndex>) {
        for node in nodes {
            if self.fabric.node(node).seen != self.state.discovery
                && let Some(port) = self.reached_by(node)
            {
                self.visit(node, port);
            }
        }
    }

    /// A port by which a known node can be queried.
    fn reached_by(&self, node: NodeIndex) -> Option<PortIndex> {
        let sm_port = self.fabric.sm_port();
        self.fabric
            .ports_of(node)
            .find(|&port| {
                self.fabric.node(node).switch.is_some()
                    || Some(port) == sm_port
                    || self.fabric.port(port).peer().is_some()
            })
            .filter(|_| self.fabric.node(node).present)
    }

    fn is_confirmed(&self, port: PortIndex) -> bool {
        let port = self.fabric.port(port);
        port.peer().is_some() && port.link_seen == self.state.discovery
    }

    fn add(&mut self, answerer: &Answerer) -> Option<NodeIndex> {
        let view = NodeInfo::new(&answerer.bytes[..]).ok()?;
        match self.fabric.add(&view, answerer.kind) {
            Ok(node) => Some(node),
            Err(error) => {
                self.oddity(format_args!("node {} ignored: {error}", answerer.guid));
                None
            }
        }
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
