//! Nodes that reported a change or lost a link, and how they are reached.
//!
//! The route to a switch may lead over the very link that is gone, so that its answers would not
//! arrive. The ports by which routes to such switches leave the switches before them
//! are read at the same time: if one of them is down, routes are traced again at once, what was
//! sent over it is sent again, and the ports on the new way are read. A switch on the way is
//! believed about its own port, as in each discovery, and about nothing else.

use std::time::Instant;

use ib_mad::types::Lid;
use ib_mad::wire::smp::HOPS_MAX;

use super::Discovery;
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;

/// Maximum number of ports on the way that are read in a discovery. Where more switches report, the
/// ends of their links are read anyway.
const ON_THE_WAY_MAX: usize = 256;

impl Discovery {
    /// Reads nodes that reported a change, and the links by which they are reached.
    pub(in crate::sweep) fn visit_changed(&mut self, subnet: &mut Subnet, nodes: Vec<NodeIndex>) {
        self.changed.extend(&nodes);
        subnet.visit_all(nodes);
        self.read_ways(subnet);
    }

    /// Handles a link that is no longer there: the switches at its ends are read, unless they are
    /// already.
    pub(super) fn link_is_gone(&mut self, subnet: &mut Subnet, port: PortIndex, peer: PortIndex) {
        self.cut(subnet, port, peer);
        // The ways to them are read when routes are traced again.
        self.routes_changed = true;
        for end in [port, peer] {
            let node = subnet.fabric.port(end).node;
            if subnet.fabric.node(node).switch.is_some() {
                self.changed.insert(node);
                subnet.visit_all(vec![node]);
            }
        }
    }

    /// Reads the ports on the way to changed switches, of switches that are not read themselves.
    pub(super) fn read_ways(&mut self, subnet: &mut Subnet) {
        for &node in &self.changed {
            for egress in subnet.way_to(node) {
                let switch = subnet.fabric.port(egress).node;
                if subnet.fabric.node(switch).seen != subnet.state.discovery
                    && self.on_the_way.len() < ON_THE_WAY_MAX
                    && self.on_the_way.insert(egress)
                {
                    subnet.exchange.push(Request::new(Kind::PortInfo, egress));
                }
            }
        }
    }

    /// A trap arrived: if its issuer, at `lid`, is a switch that this discovery has not read, and
    /// is not held down, it is read now. One that was read may have changed since, and waits for
    /// the next sweep.
    pub(in crate::sweep) fn trap_arrived(&mut self, subnet: &mut Subnet, now: Instant, lid: Lid) {
        if self.full || self.is_outdated || self.cut_off {
            return;
        }
        if !subnet.schedule.is_due(now, lid) {
            return;
        }
        let unread = |node: &NodeIndex| subnet.fabric.node(*node).seen != subnet.state.discovery;
        let Some(node) = subnet.switch_at(lid).filter(unread) else { return };
        subnet.schedule.take_issuer(now, lid);
        self.visit_changed(subnet, vec![node]);
    }
}

impl Subnet {
    /// The ports of switches by which the route to a switch leaves them, the last first.
    fn way_to(&self, node: NodeIndex) -> Vec<PortIndex> {
        let mut way = Vec::new();
        let mut at = node;
        while self.fabric.node(at).switch.is_some()
            && let Some(egress) = self.fabric.upstream(at)
            && way.len() < HOPS_MAX
        {
            at = self.fabric.port(egress).node;
            way.push(egress);
        }
        // The SM's own port is read first of all.
        way.retain(|&egress| self.fabric.node_of(egress).switch.is_some());
        way
    }

    /// The switch with that LID.
    pub(in crate::sweep) fn switch_at(&self, lid: Lid) -> Option<NodeIndex> {
        let has_lid = |&node: &NodeIndex| {
            let port0 = self.fabric.ports_of(node).next();
            port0.is_some_and(|port0| self.owns_any(port0, &[lid]))
        };
        self.fabric.switches().map(|(_, switch)| switch.node).find(has_lid)
    }
}
