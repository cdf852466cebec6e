//! Directed routes from the SM's port, and which nodes they reach.

use std::collections::VecDeque;

use ib_mad::types::PortNum;
use ib_mad::wire::smp::HOPS_MAX;

use super::{Fabric, NodeIndex, PortIndex};

/// Egress ports from the SM's node on, one a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectedRoute {
    ports: [PortNum; HOPS_MAX],
    hops: u8,
}

impl DirectedRoute {
    /// The route to the SM's own node.
    pub const LOCAL: Self = Self { ports: [PortNum(0); HOPS_MAX], hops: 0 };

    /// The ports to leave by, the SM's own first.
    pub fn ports(&self) -> &[PortNum] {
        &self.ports[..usize::from(self.hops)]
    }

    /// The route that continues through `egress`; `None` if it would be too long.
    pub fn extended(mut self, egress: PortNum) -> Option<Self> {
        *self.ports.get_mut(usize::from(self.hops))? = egress;
        self.hops += 1;
        Some(self)
    }
}

impl std::fmt::Display for DirectedRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The notation of the diagnostic tools: 0,1,17.
        f.write_str("0")?;
        self.ports().iter().try_for_each(|port| write!(f, ",{port}"))
    }
}

impl Fabric {
    /// The route to the node of `port`, arriving by the link of `port` unless it is a switch's:
    /// the agent of a channel adapter answers for the port it was reached by. The SM's own ports
    /// are reached without a link.
    pub fn route_to(&self, port: PortIndex) -> Option<DirectedRoute> {
        let mut route = DirectedRoute::LOCAL;
        let mut egress = self.upstream_of(port)?;
        while let Some(port) = egress {
            route = route.extended(self.port(port).num)?;
            egress = self.upstream_of(port)?;
        }
        // The route was collected from its end.
        route.ports[..usize::from(route.hops)].reverse();
        Some(route)
    }

    /// The route that leaves the known fabric through `egress`.
    pub fn route_through(&self, egress: PortIndex) -> Option<DirectedRoute> {
        // A route that starts at the SM's own channel adapter has no earlier hop.
        self.route_to(egress)?.extended(self.port(egress).num)
    }

    /// The port of the node before it that the route to a switch goes out by; `None` if there is no
    /// route, or the switch is the SM's own.
    pub(crate) fn upstream(&self, node: NodeIndex) -> Option<PortIndex> {
        self.node(node).upstream
    }

    /// Whether the route that leads out of `egress` passes `node`.
    pub(crate) fn leads_through(&self, egress: PortIndex, node: NodeIndex) -> bool {
        let mut at = Some(egress);
        for _ in 0..=HOPS_MAX {
            match at {
                Some(port) if self.port(port).node == node => return true,
                Some(port) => at = self.upstream_of(port).flatten(),
                None => return false,
            }
        }
        true
    }

    /// Whether the link by which a node is reached still leads to it.
    pub(crate) fn has_way(&self, node: NodeIndex) -> bool {
        let peer = self.upstream(node).and_then(|egress| self.port(egress).peer());
        peer.is_some_and(|peer| self.port(peer).node == node)
    }

    /// The egress port before the node of `port`; `Some(None)` for the SM's own node, `None` if
    /// there is no route.
    fn upstream_of(&self, port: PortIndex) -> Option<Option<PortIndex>> {
        let sm_port = self.sm_port?;
        let index = self.port(port).node;
        let node = self.node(index);
        if node.switch.is_some() {
            if self.port(sm_port).node == index { Some(None) } else { node.upstream.map(Some) }
        } else if self.is_own_port(port) {
            Some(None)
        } else {
            self.port(port).peer.map(Some)
        }
    }

    /// Walks the links from the SM's port, sets every node's place on the shortest directed
    /// routes, and returns the nodes present that no route reaches. Links are passed only where
    /// `usable` says so.
    pub fn trace_routes(&mut self, usable: impl Fn(&Self, PortIndex) -> bool) -> Vec<NodeIndex> {
        let mut reached = vec![false; self.nodes.len()];
        let mut queue = VecDeque::new();
        if let Some(sm_port) = self.sm_port {
            let node = self.port(sm_port).node;
            reached[node.get()] = true;
            self.set_sm_port(sm_port);
            if self.node(node).switch.is_some() {
                queue.extend(self.ports_of(node));
            } else {
                queue.extend(self.own_ports());
            }
        }
        while let Some(egress) = queue.pop_front() {
            let Some(ingress) = self.port(egress).peer.filter(|_| usable(self, egress)) else {
                continue;
            };
            let node = self.port(ingress).node;
            if !reached[node.get()] && usize::from(self.node_of(egress).hops) < HOPS_MAX {
                reached[node.get()] = true;
                self.set_upstream(node, egress);
                if self.node(node).switch.is_some() {
                    queue.extend(self.ports_of(node));
                }
            }
        }
        let unreached: Vec<NodeIndex> =
            self.nodes().map(|(index, _)| index).filter(|index| !reached[index.get()]).collect();
        for &node in &unreached {
            self.nodes[node.get()].upstream = None;
        }
        unreached
    }
}
