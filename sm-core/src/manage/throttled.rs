//! Throttled links between switches: they run below the width or speed that both ends enable, and
//! routes avoid them (`avoid_throttled_links`).

use std::collections::HashSet;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::LinkEnd;

use super::link::capability_mask;
use crate::fabric::{Fabric, NodeIndex, PortIndex};

/// A damaged or loose cable still carries packets, at one lane of four or at the
/// speed of an older generation: routes over it share far less bandwidth than others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThrottledLinks {
    /// Links with a route around them, by both ports: node GUID and number, since indices change.
    avoided: HashSet<(Guid, PortNum)>,
    /// Links without which the fabric would fall apart.
    needed: usize,
}

impl ThrottledLinks {
    /// Finds throttled links between switches for which `is_routed` is true. Examines every link.
    pub fn find(fabric: &Fabric, is_routed: impl Fn(NodeIndex) -> bool) -> Self {
        let mut throttled = Vec::new();
        let switches = fabric.switches().last().map_or(0, |(last, _)| last.get() as u32 + 1);
        let mut regions = Regions((0..switches).collect());
        for (near, switch) in fabric.switches().filter(|(_, switch)| is_routed(switch.node)) {
            for port in fabric.ports_of(switch.node) {
                let Some(peer) = fabric.port(port).peer().filter(|&peer| port < peer) else {
                    continue;
                };
                let is_known = fabric.port(port).known && fabric.port(peer).known;
                let Some(far) = fabric.node_of(peer).switch else { continue };
                if !is_known || !is_routed(fabric.port(peer).node) {
                    continue;
                }
                let ends = (near.get() as u32, far.get() as u32);
                match shortfall(fabric, port) {
                    Some(_) => throttled.push((ends, port, peer)),
                    None => regions.join(ends),
                }
            }
        }
        let mut found = Self::default();
        for ((near, far), port, peer) in throttled {
            if regions.of(near) == regions.of(far) {
                found.avoided.extend([port, peer].map(|port| key(fabric, port)));
            } else {
                found.needed += 1;
            }
        }
        found
    }

    /// Whether routes avoid the link at a port.
    pub fn contains(&self, fabric: &Fabric, port: PortIndex) -> bool {
        !self.avoided.is_empty() && self.avoided.contains(&key(fabric, port))
    }

    /// Number of links that routes avoid.
    pub fn count(&self) -> usize {
        self.avoided.len() / 2
    }

    /// The links that routes avoid, by one port each, in the fabric's order.
    pub fn links<'a>(&'a self, fabric: &'a Fabric) -> impl Iterator<Item = PortIndex> + 'a {
        let ports = fabric.switches().flat_map(|(_, switch)| fabric.ports_of(switch.node));
        ports.filter(|&port| {
            self.contains(fabric, port) && fabric.port(port).peer().is_some_and(|peer| port < peer)
        })
    }

    /// Number of throttled links still in use, because no route avoids them.
    pub fn needed(&self) -> usize {
        self.needed
    }
}

fn key(fabric: &Fabric, port: PortIndex) -> (Guid, PortNum) {
    (fabric.node_of(port).guid, fabric.port(port).num)
}

/// Width and speed that the link at a port should have, if it falls short of them.
pub fn shortfall(fabric: &Fabric, port: PortIndex) -> Option<(&'static str, &'static str)> {
    let end = |port| LinkEnd::new(&fabric.port(port).port_info(), capability_mask(fabric, port));
    end(port).shortfall(end(fabric.port(port).peer()?))
}

/// Switches that unthrottled links join: a forest whose roots point to themselves.
struct Regions(Vec<u32>);

impl Regions {
    fn of(&mut self, mut switch: u32) -> u32 {
        while self.0[switch as usize] != switch {
            let above = self.0[switch as usize];
            self.0[switch as usize] = self.0[above as usize];
            switch = above;
        }
        switch
    }

    fn join(&mut self, (near, far): (u32, u32)) {
        let (near, far) = (self.of(near), self.of(far));
        self.0[near as usize] = far;
    }
}
