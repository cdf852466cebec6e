//! Probes: which node is behind a port, as its NodeInfo shows.

use std::time::Instant;

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortState};
use tracing::{debug, info};

use super::Discovery;
use super::answerer::Answerer;
use crate::fabric::{NodeIndex, PortIndex};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::Event;

impl Discovery {
    pub(super) fn own_node_info(&mut self, subnet: &mut Subnet, data: &[u8; 64]) {
        let answerer = match Answerer::parse(data) {
            Ok(answerer) => answerer,
            Err(reason) => {
                self.is_own_node_unread = true;
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
        if answerer.kind == NodeType::Switch {
            subnet.note_own_switch(&answerer);
        }
        if subnet.fabric.sm_port() != Some(sm_port) {
            info!("running on {} port {num}, GUID {}", answerer.kind, answerer.port_guid);
        }
        subnet.fabric.set_sm_port(sm_port);
        subnet.fabric.set_port_guid(sm_port, answerer.port_guid);
        subnet.election.own.set_guid(answerer.port_guid);
        subnet.visit(node, sm_port);
        subnet.visit_own_planes(sm_port);
    }

    /// Probes links again that the discovery before left out: the reason may be gone with a change
    /// elsewhere. Those of `nodes` are probed as their ports are read.
    pub(in crate::sweep) fn probe_left_out(&mut self, subnet: &mut Subnet, nodes: &[NodeIndex]) {
        for port in subnet.state.left_out.clone() {
            let entry = subnet.fabric.port(port);
            let is_there = subnet.fabric.node(entry.node).present && entry.peer().is_none();
            if is_there && !nodes.contains(&entry.node) {
                self.probe(subnet, port);
            }
        }
    }

    /// Handles a NodeInfo received through `egress`.
    pub(super) fn probe_answered(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        data: &[u8; 64],
        now: Instant,
    ) {
        match Answerer::parse(data) {
            Ok(answerer) => self.observe(subnet, egress, answerer, now),
            Err(reason) => {
                let place = subnet.place(egress);
                subnet.anomaly(format_args!("node behind {place} ignored: {reason}"));
            }
        }
    }

    /// Records that the link of `egress` leads to `answerer`, or sets that aside.
    fn observe(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        answerer: Answerer,
        now: Instant,
    ) {
        if self.is_out_of_place(subnet, egress, &answerer) {
            self.out_of_place.push((egress, answerer));
        } else {
            self.judge(subnet, egress, &answerer, now);
        }
    }

    /// Records that the link of `egress` leads to `answerer`, unless it is left out.
    pub(super) fn judge(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        answerer: &Answerer,
        now: Instant,
    ) {
        if self.is_withheld(subnet, egress, answerer, now)
            || self.is_kept_out(subnet, egress, answerer)
        {
            return;
        }
        let mut known =
            subnet.fabric.find(answerer.guid).filter(|&node| self.is_current(subnet, node));
        if let Some(node) = known.filter(|&node| !answerer.is_like(subnet.fabric.node(node))) {
            if !self.replaces_known(subnet, egress, node, answerer, now) {
                return;
            }
            known = None;
        } else if let Some(node) = known
            && self.returns_home(subnet, egress, node, answerer, now)
        {
            return;
        }
        let is_cut_off =
            |node| subnet.fabric.node(node).switch.is_some() && !subnet.fabric.has_way(node);
        if known.is_none_or(is_cut_off) {
            subnet.note_displaced(egress, answerer, now);
        }
        let Some(node) = known.or_else(|| self.admit(subnet, egress, answerer)) else { return };
        let Some(ingress) = subnet.fabric.port_of(node, answerer.local_port) else { return };
        if egress == ingress {
            return self.leads_to_itself(subnet, egress);
        }
        let is_down = self.read.contains(&ingress)
            && subnet.fabric.port(ingress).state() == Some(PortState::Down);
        if is_down && subnet.fabric.port(ingress).peer().is_none() {
            return self.contradicted_by_down(subnet, ingress, egress, 0, now);
        }
        self.cut_former_link(subnet, egress, ingress);
        if self.contradicts(subnet, egress, ingress, now) {
            return;
        }
        self.confirm_link(subnet, egress, ingress, answerer);
        subnet.note_home(egress, ingress, now);
    }

    /// Whether a node is present: seen by this discovery or, in a partial discovery, by any.
    fn is_current(&self, subnet: &Subnet, node: NodeIndex) -> bool {
        let node = subnet.fabric.node(node);
        node.present && (node.seen == subnet.state.discovery || !self.full)
    }

    /// Links two ports, and starts to read a node that is new.
    pub(in crate::sweep) fn confirm_link(
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
        if !is_switch {
            subnet.fabric.set_port_guid(ingress, by.port_guid);
        }
        self.node_answered(subnet, node, egress, ingress);
        let is_sm_node =
            subnet.fabric.sm_port().is_some_and(|sm_port| subnet.fabric.port(sm_port).node == node);
        if subnet.fabric.node(node).seen != subnet.state.discovery {
            if subnet.fabric.node(node).is_new {
                debug!("found {} {} behind {}", by.kind, by.guid, subnet.place(egress));
            }
            // A partial discovery reads a switch by the way that it knows: it is the switch itself
            // that confirms a new link.
            let has_way = !self.full && subnet.fabric.has_way(node);
            if is_switch && !is_sm_node && !has_way && !subnet.fabric.leads_through(egress, node) {
                subnet.fabric.set_upstream(node, egress);
            }
            self.visit_in_turn(subnet, node, ingress);
        } else if !is_switch && !confirmed_before {
            subnet.visit_end_port(ingress);
        }
    }
}

impl Subnet {
    /// Reads the ports by which the SM's own port is in other planes. They answer where the SM
    /// sends, and lead to the switches of their planes.
    fn visit_own_planes(&mut self, sm_port: PortIndex) {
        let (node, guid) = (self.fabric.port(sm_port).node, self.fabric.port(sm_port).guid);
        let planes = self.own_planes.iter().filter_map(|&num| self.fabric.port_of(node, num));
        let mut planes: Vec<PortIndex> = planes.filter(|_| self.is_adapter_port(sm_port)).collect();
        planes.sort_unstable();
        planes.dedup();
        // A node without them is another one than the caller took it for.
        if planes.len() < 2 || !planes.contains(&sm_port) {
            return self.fabric.set_own_planes(Vec::new());
        }
        self.fabric.set_own_planes(planes.clone());
        for plane in planes.into_iter().filter(|&plane| plane != sm_port) {
            self.fabric.set_port_guid(plane, guid);
            self.visit_end_port(plane);
        }
    }

    pub(super) fn is_confirmed(&self, port: PortIndex) -> bool {
        let port = self.fabric.port(port);
        port.peer().is_some() && port.link_seen == self.state.discovery
    }

    pub(super) fn add(&mut self, answerer: &Answerer) -> Option<NodeIndex> {
        let view = NodeInfo::new(&answerer.bytes[..]).ok()?;
        match self.fabric.add(&view, answerer.kind) {
            Ok(node) => Some(node),
            Err(error) => {
                self.anomaly(format_args!("node {} ignored: {error}", answerer.guid));
                None
            }
        }
    }
}
