//! The walk through the fabric: what is behind each port, and what it says of itself.
//!
//! A heavy sweep begins at the SM's own node and probes every link, from both ends where both
//! belong to switches. A partial one begins at the switches that reported a change and trusts
//! links that stayed Active between nodes already known.
//!
//! `answers`: what nodes and ports say of themselves; `end`: what follows once all have.

mod answers;
mod end;

use std::time::Instant;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType};
use tracing::{debug, info};

use super::{Event, Phase, Sweeper};
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::pkey;
use crate::smp::{Kind, Request};

/// A NodeInfo that makes sense.
pub(super) struct Answerer {
    pub(super) bytes: [u8; 40],
    pub(super) kind: NodeType,
    pub(super) guid: Guid,
    pub(super) port_guid: Guid,
    pub(super) port_count: u8,
    pub(super) local_port: PortNum,
}

impl Answerer {
    /// Checks what a node says of itself; the reason if it cannot be.
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
            return Err("its number of ports is impossible");
        }
        let first = u8::from(kind != NodeType::Switch);
        if !(first..=port_count).contains(&local_port.0) {
            return Err("it answered by a port that it does not have");
        }
        Ok(Self { bytes, kind, guid, port_guid, port_count, local_port })
    }
}

impl Sweeper {
    /// Begins to discover: everything, or from `changed` on. Of a partial discovery `suspects` are
    /// asked last, by routes that avoid what turned out to be down.
    pub(super) fn begin_discovery(
        &mut self,
        now: Instant,
        changed: Option<Vec<NodeIndex>>,
        suspects: Vec<NodeIndex>,
    ) {
        self.sweep = std::mem::take(&mut self.sweep).into_discovery(changed.is_none(), suspects);
        self.sweep.report.first = self.subnet.first_as_master;
        self.sweep.report.smps = self.counters().transmitted;
        self.subnet.begin_discovery();
        self.take_system_images(changed.is_none());
        self.enter(now, Phase::Discover);
        match changed {
            None => {
                if self.fabric.wants_compaction() {
                    self.compact_fabric();
                    self.partitions.forget();
                    self.election.forget_ports();
                    self.subnet.forget_ports();
                    // Whoever waits is asked by this sweep.
                    self.clients.clear();
                }
                self.schedule.begin_all(now);
                self.emit(Event::Discovering);
                self.exchange.push(Request::OWN_NODE_INFO);
            }
            Some(nodes) => {
                // Should it be our own cable that was pulled, nothing else can be told.
                let home = self.fabric.home().filter(|&home| self.is_adapter_port(home));
                if let Some(home) = home {
                    self.exchange.push(Request::new(Kind::PortInfo, home));
                }
                self.visit_all(nodes);
            }
        }
    }

    fn is_adapter_port(&self, port: PortIndex) -> bool {
        self.fabric.node_of(port).switch.is_none()
    }

    fn visit_all(&mut self, nodes: Vec<NodeIndex>) {
        for node in nodes {
            if self.fabric.node(node).seen != self.subnet.discovery
                && let Some(port) = self.reached_by(node)
            {
                self.visit(node, port);
            }
        }
    }

    /// A port by which a known node can be asked.
    fn reached_by(&self, node: NodeIndex) -> Option<PortIndex> {
        let home = self.fabric.home();
        self.fabric
            .ports_of(node)
            .find(|&port| {
                self.fabric.node(node).switch.is_some()
                    || Some(port) == home
                    || self.fabric.port(port).peer().is_some()
            })
            .filter(|_| self.fabric.node(node).present)
    }

    pub(super) fn own_node_info(&mut self, data: &[u8; 64]) {
        let answerer = match Answerer::parse(data) {
            Ok(answerer) => answerer,
            Err(reason) => {
                return self.error(format_args!("the SM's own node cannot be used: {reason}"));
            }
        };
        let wanted = self.settings.guid;
        if wanted.0 != 0 && wanted != answerer.port_guid {
            self.sweep.is_fatal = true;
            return self.emit(Event::Fatal(format!(
                "port {wanted} (-g) is not here; the port here is {}. Leave -g out, or choose the \
                 node with --node",
                answerer.port_guid
            )));
        }
        let Some(node) = self.add(&answerer) else { return };
        let num = if answerer.kind == NodeType::Switch { PortNum(0) } else { answerer.local_port };
        let Some(home) = self.fabric.port_of(node, num) else { return };
        if self.fabric.home() != Some(home) {
            info!("running on {} port {num}, GUID {}", answerer.kind, answerer.port_guid);
        }
        self.fabric.set_home(home);
        self.fabric.port_mut(home).guid = answerer.port_guid;
        self.election.own.set_guid(answerer.port_guid);
        self.visit(node, home);
    }

    /// Something answered behind `egress`.
    pub(super) fn probe_answered(&mut self, egress: PortIndex, data: &[u8; 64]) {
        match Answerer::parse(data) {
            Ok(answerer) => self.observe(egress, &answerer),
            Err(reason) => {
                let place = self.place(egress);
                self.complain(format_args!("the node behind {place} cannot be used: {reason}"));
            }
        }
    }

    /// Takes in that the link of `egress` leads to `answerer`.
    fn observe(&mut self, egress: PortIndex, answerer: &Answerer) {
        let known = self.fabric.find(answerer.guid).filter(|&node| self.is_current(node));
        if let Some(node) = known {
            let node_is = self.fabric.node(node);
            if (node_is.kind, node_is.port_count) != (answerer.kind, answerer.port_count) {
                return self.report_different_nodes(egress, node, answerer);
            }
        }
        let Some(node) = known.or_else(|| self.add(answerer)) else { return };
        let Some(ingress) = self.fabric.port_of(node, answerer.local_port) else { return };
        if egress == ingress {
            return self.leads_to_itself(egress);
        }
        if self.contradicts(egress, ingress) {
            return;
        }
        self.confirm_link(egress, ingress, answerer);
    }

    /// Whether a node is known to be there now: seen by this discovery or, in a partial one, at all.
    fn is_current(&self, node: NodeIndex) -> bool {
        let node = self.fabric.node(node);
        node.present && (node.seen == self.subnet.discovery || !self.sweep.full)
    }

    /// Links two ports, and visits what is new by that.
    pub(super) fn confirm_link(&mut self, egress: PortIndex, ingress: PortIndex, by: &Answerer) {
        let confirmed_before = self.is_confirmed(ingress);
        self.note_link(egress, ingress);
        self.fabric.link(egress, ingress);
        for port in [egress, ingress] {
            self.fabric.link_seen(port, self.subnet.discovery);
        }
        let node = self.fabric.port(ingress).node;
        let is_switch = self.fabric.node(node).switch.is_some();
        if !is_switch && self.fabric.port(ingress).guid != by.port_guid {
            self.fabric.port_mut(ingress).guid = by.port_guid;
        }
        self.is_heard(node, egress, ingress);
        let at_home = self.fabric.home().is_some_and(|home| self.fabric.port(home).node == node);
        if self.fabric.node(node).seen != self.subnet.discovery {
            if self.fabric.node(node).is_new {
                debug!("found {} {} behind {}", by.kind, by.guid, self.place(egress));
            }
            if is_switch && !at_home && !self.fabric.leads_through(egress, node) {
                self.fabric.set_upstream(node, egress);
            }
            self.visit(node, ingress);
        } else if !is_switch && !confirmed_before {
            self.visit_end_port(ingress);
        }
    }

    fn is_confirmed(&self, port: PortIndex) -> bool {
        let port = self.fabric.port(port);
        port.peer().is_some() && port.link_seen == self.subnet.discovery
    }

    fn add(&mut self, answerer: &Answerer) -> Option<NodeIndex> {
        let view = NodeInfo::new(&answerer.bytes[..]).ok()?;
        match self.fabric.add(&view, answerer.kind) {
            Ok(node) => Some(node),
            Err(error) => {
                self.complain(format_args!("node {} is left out: {error}", answerer.guid));
                None
            }
        }
    }

    /// Asks a node for all that it says of itself. `port` is one by which it is reached.
    fn visit(&mut self, node: NodeIndex, port: PortIndex) {
        self.fabric.node_seen(node, self.subnet.discovery);
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

    /// Whether there is more to ask, now that all so far is answered or given up.
    pub(super) fn discovers_more(&mut self, now: Instant) -> bool {
        if !self.sweep.suspects.is_empty() && !self.sweep.cut_off {
            let suspects = std::mem::take(&mut self.sweep.suspects);
            self.visit_all(suspects);
            if !self.exchange.is_idle() {
                return true;
            }
        }
        self.resolves_doubts(now)
    }
}
