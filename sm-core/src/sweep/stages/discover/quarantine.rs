//! Keeps out what is not in the baseline (`--quarantine`): links that lead to a node that does not
//! belong, and links between switches that do not. They stay in Initialize, and what is behind them
//! is not read.
//!
//! A node that belongs is never cut off by this. An adapter that belongs is read wherever its cable
//! leads. A link between switches that does not belong waits until everything else has been read;
//! it is used if no other link leads to the switch behind it.

use std::collections::HashSet;
use std::time::Instant;

use ib_mad::wire::attribute::NodeType;
use tracing::{debug, warn};

use super::Discovery;
use super::answerer::Answerer;
use crate::fabric::{Fabric, NodeIndex, PortIndex};
use crate::manage::quarantine::{End, KeptOut};
use crate::sweep::subnet::Subnet;

/// Links that wait until everything else has been read.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Strangers {
    waiting: Vec<(PortIndex, Answerer)>,
    /// Ports whose links are used although they do not belong.
    admitted: HashSet<PortIndex>,
}

impl Discovery {
    /// Whether the link of `egress` is kept out, or waits until everything else has been read.
    pub(super) fn is_kept_out(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        answerer: &Answerer,
    ) -> bool {
        let is_switch = answerer.kind == NodeType::Switch;
        if subnet.is_adapter_port(egress) {
            // The SM's own link.
            if is_switch {
                subnet.note_own_switch(answerer);
            }
            return false;
        }
        let Some(expected) = subnet.quarantine.in_force() else { return false };
        if subnet.is_own_node(answerer) {
            return false;
        }
        let (near, far) = (subnet.link_end(egress), (answerer.guid, answerer.local_port));
        // A GUID of the baseline at a port that had no link may be forged.
        let belongs =
            if is_switch { expected.has_node(far.0, true) } else { expected.has_adapter_port(far) };
        if !belongs {
            self.keep_out(subnet, egress, answerer);
            return true;
        }
        let may_be_used = !is_switch
            || expected.has_link(near, far)
            || self.strangers.admitted.contains(&egress)
            || subnet.is_in_use(egress, answerer);
        if !may_be_used {
            self.strangers.waiting.push((egress, answerer.clone()));
        }
        !may_be_used
    }

    /// Uses a link that waits if no other leads to the switch behind it, and keeps out the others.
    /// Returns whether requests were sent.
    pub(super) fn admits_strangers(&mut self, subnet: &mut Subnet, now: Instant) -> bool {
        while !self.cut_off && !self.strangers.waiting.is_empty() {
            let Some((egress, answerer)) = self.next_needed(subnet) else { return false };
            self.strangers.admitted.insert(egress);
            debug!("{} leads to a switch that nothing else leads to", subnet.place(egress));
            self.read_over_it(subnet, &answerer);
            self.judge(subnet, egress, &answerer, now);
            // The others are looked at when the switch has been read.
            if !subnet.exchange.is_idle() {
                return true;
            }
        }
        false
    }

    /// Reads the switch that answered over this link: it may have been asked over one that is
    /// gone.
    fn read_over_it(&mut self, subnet: &mut Subnet, answerer: &Answerer) {
        let Some(node) = subnet.fabric.find(answerer.guid) else { return };
        self.silent.remove(&node);
        self.quiet.remove(&node);
        subnet.fabric.node_seen(node, subnet.state.discovery.wrapping_sub(1));
    }

    /// Takes a link that is the only way to a switch. If there is none, keeps out all that wait.
    fn next_needed(&mut self, subnet: &mut Subnet) -> Option<(PortIndex, Answerer)> {
        let reached = self.reached(&subnet.fabric, subnet.state.discovery);
        let starts_here = |egress: PortIndex| reached.contains(&subnet.fabric.port(egress).node);
        let leads_away = |answerer: &Answerer| {
            let node = subnet.fabric.find(answerer.guid);
            node.is_none_or(|node| !reached.contains(&node))
        };
        let mut waiting = std::mem::take(&mut self.strangers.waiting);
        waiting.retain(|(egress, answerer)| !subnet.is_in_use(*egress, answerer));
        let is_needed =
            |(egress, by): &(PortIndex, Answerer)| starts_here(*egress) && leads_away(by);
        if let Some(needed) = waiting.iter().position(is_needed) {
            let found = waiting.swap_remove(needed);
            self.strangers.waiting = waiting;
            return Some(found);
        }
        // Nothing leads to where the others begin: their switches are gone.
        waiting.retain(|(egress, _)| starts_here(*egress));
        for (egress, answerer) in waiting {
            self.keep_out(subnet, egress, &answerer);
        }
        None
    }

    /// The nodes to which links lead that this discovery has found, or trusts.
    fn reached(&self, fabric: &Fabric, number: u32) -> HashSet<NodeIndex> {
        let Some(start) = fabric.sm_port().map(|sm_port| fabric.port(sm_port).node) else {
            return HashSet::new();
        };
        let mut reached = HashSet::from([start]);
        let mut queue = vec![start];
        while let Some(node) = queue.pop() {
            let ports = fabric.ports_of(node).map(|port| fabric.port(port));
            let found = ports.filter(|port| !self.full || port.link_seen == number);
            for peer in found.filter_map(|port| port.peer()) {
                let far = fabric.port(peer).node;
                if reached.insert(far) && fabric.node(far).switch.is_some() {
                    queue.push(far);
                }
            }
        }
        reached
    }

    fn keep_out(&mut self, subnet: &mut Subnet, egress: PortIndex, answerer: &Answerer) {
        self.left_out.insert(egress);
        if let Some(peer) = subnet.fabric.port(egress).peer() {
            self.cut(subnet, egress, peer);
            self.routes_changed = true;
        }
        let far = (answerer.guid, answerer.local_port);
        let expected = subnet.quarantine.in_force();
        let is_switch = answerer.kind == NodeType::Switch;
        let is_node = expected.is_some_and(|expected| !expected.has_node(answerer.guid, is_switch));
        let link = KeptOut { far, kind: answerer.kind, is_node };
        if subnet.quarantine.list(subnet.link_end(egress), link) {
            let place = subnet.place(egress);
            let what = if is_node { "node" } else { "link" };
            warn!(
                "quarantine: the {what} behind {place}, {} {} port {}, is not in the baseline; \
                 the link stays in Initialize",
                link.kind, far.0, far.1
            );
        }
    }
}

impl Subnet {
    /// Whether the link of `egress` to this port is known already, from its far end.
    fn is_in_use(&self, egress: PortIndex, answerer: &Answerer) -> bool {
        let node = self.fabric.find(answerer.guid);
        let ingress = node.and_then(|node| self.fabric.port_of(node, answerer.local_port));
        ingress.is_some_and(|ingress| {
            self.is_confirmed(egress) && self.fabric.port(egress).peer() == Some(ingress)
        })
    }

    /// An end of a link as baselines name it.
    fn link_end(&self, port: PortIndex) -> End {
        (self.fabric.node_of(port).guid, self.fabric.port(port).num)
    }

    /// Forgets links that were kept out and are not left out any more.
    pub(super) fn forget_admitted(&mut self) {
        let left_out: HashSet<End> =
            self.state.left_out.iter().map(|&port| self.link_end(port)).collect();
        self.quarantine.retain(|near| left_out.contains(&near));
    }

    /// Whether the SM's own node answered.
    pub(super) fn is_own_node(&self, answerer: &Answerer) -> bool {
        let sm_port = self.fabric.sm_port();
        sm_port.is_some_and(|sm_port| self.fabric.node_of(sm_port).guid == answerer.guid)
    }

    /// A baseline without the switch at the SM's port is of another fabric: keeping out all that is
    /// not in it would cut off everything.
    pub(super) fn note_own_switch(&mut self, answerer: &Answerer) {
        if self.quarantine.note_own_switch(answerer.guid) {
            warn!(
                "quarantine: the switch at the SM's port, {}, is not in the baseline, which must \
                 be that of another fabric: nothing is kept out",
                answerer.guid
            );
        }
    }
}
