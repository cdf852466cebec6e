//! Topologies in the history: whole ones, and how one differs from the one before.

use std::collections::BTreeMap;

use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, PortNum};
use serde::{Deserialize, Serialize};

use crate::observe::topology::{End, Link, Topology, TopologyNode};

/// Largest number of nodes, and of links, of a topology that is read.
const NODES_MAX: usize = 65_536;
const LINKS_MAX: usize = 2_621_440;

/// A topology, or what changes in one: nodes and links that are gone, and those that are new or
/// differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// GUIDs of nodes that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gone: Vec<u64>,
    /// GUID, name, and whether it is a switch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<(u64, String, bool)>,
    /// Lower ends of links that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unlinked: Vec<(u64, u8)>,
    /// Lower end, upper end, width and speed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    links: Vec<(u64, u8, u64, u8, String)>,
}

fn node((guid, node): (&Guid, &TopologyNode)) -> (u64, String, bool) {
    (guid.0, node.name.clone(), node.is_switch)
}

fn link((near, link): (&End, &Link)) -> (u64, u8, u64, u8, String) {
    (near.0.0, near.1.0, link.far.0.0, link.far.1.0, link.rate.clone())
}

impl Layout {
    /// A whole topology.
    pub fn of(topology: &Topology) -> Self {
        Self::between(&Topology::default(), topology)
    }

    /// What leads from `old` to `new`.
    pub fn between(old: &Topology, new: &Topology) -> Self {
        let differs = |(guid, node): &(&Guid, &TopologyNode)| old.nodes.get(guid) != Some(node);
        let is_other = |(near, link): &(&End, &Link)| old.links.get(near) != Some(link);
        let gone = old.nodes.keys().filter(|guid| !new.nodes.contains_key(guid));
        let unlinked = old.links.keys().filter(|near| !new.links.contains_key(near));
        Self {
            gone: gone.map(|guid| guid.0).collect(),
            nodes: new.nodes.iter().filter(differs).map(node).collect(),
            unlinked: unlinked.map(|(guid, port)| (guid.0, port.0)).collect(),
            links: new.links.iter().filter(is_other).map(link).collect(),
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Changes `topology`. Nodes and links beyond the limits are left out.
    pub fn apply(self, topology: &mut Topology) {
        for guid in self.gone {
            topology.nodes.remove(&Guid(guid));
        }
        for (guid, name, is_switch) in self.nodes {
            let guid = Guid(guid);
            if topology.nodes.len() < NODES_MAX || topology.nodes.contains_key(&guid) {
                topology.nodes.insert(guid, TopologyNode { name, is_switch });
            }
        }
        for (guid, port) in self.unlinked {
            topology.links.remove(&(Guid(guid), PortNum(port)));
        }
        for (guid, port, far, far_port, rate) in self.links {
            let near = (Guid(guid), PortNum(port));
            let far = (Guid(far), PortNum(far_port));
            if topology.links.len() < LINKS_MAX || topology.links.contains_key(&near) {
                topology.links.insert(near, Link { far, rate });
            }
        }
    }
}

/// The topology as a net file. It has no LIDs, and nodes have the ports up to the last with a link.
/// Links that cannot be, such as two at one port, are left out.
pub fn net_of(topology: &Topology) -> Net {
    let mut rates: BTreeMap<End, LinkRate> = BTreeMap::new();
    for (&near, link) in &topology.links {
        let rate = link.rate.replace(' ', "").parse().unwrap_or_default();
        rates.extend([(near, rate), (link.far, rate)]);
    }
    let mut net = Net::new();
    let mut numbers = BTreeMap::new();
    for (&guid, node) in topology.nodes.iter().take(NODES_MAX) {
        let kind = if node.is_switch { NodeKind::Switch } else { NodeKind::Ca };
        let ports = || rates.range((guid, PortNum(0))..=(guid, PortNum(u8::MAX)));
        let last = ports().next_back().map_or(1, |((_, port), _)| port.0.max(1));
        let mut entry = Node::new(kind, guid, last, LinkRate::default());
        entry.description.clone_from(&node.name);
        for ((_, port), rate) in ports() {
            if let Some(entry) = entry.port_mut(port.0) {
                entry.rate = *rate;
            }
        }
        numbers.insert(guid, net.add_node(entry));
    }
    for (near, link) in &topology.links {
        let at = |(guid, port): End| Some(PortRef { node: *numbers.get(&guid)?, port: port.0 });
        if let (Some(a), Some(b)) = (at(*near), at(link.far)) {
            // One that cannot be is left out.
            let _ = net.connect(a, b);
        }
    }
    net
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;
    use crate::observe::topology::Difference;

    const LINKS: [(u64, u8, u64, u8); 4] =
        [(1, 1, 8, 1), (2, 1, 8, 2), (1, 9, 100, 1), (2, 9, 101, 1)];

    #[test]
    fn what_lies_between_two_topologies_leads_from_one_to_the_other() {
        let fabrics = [
            Topology::default(),
            Topology::of(&plane(&LINKS, 0, 0)),
            Topology::of(&plane(&LINKS[..3], 1, 0)),
            Topology::of(&plane(&[LINKS[0], (2, 1, 8, 7), (2, 9, 102, 1)], 0, 0)),
        ];
        for old in &fabrics {
            for new in &fabrics {
                let layout = Layout::between(old, new);
                assert_eq!(layout.is_empty(), old == new);
                let text = serde_json::to_string(&layout).unwrap();
                let mut led = old.clone();
                serde_json::from_str::<Layout>(&text).unwrap().apply(&mut led);
                assert_eq!(led, *new);
            }
        }
    }

    #[test]
    fn a_topology_is_a_net_file_that_reads_back() {
        let topology = Topology::of(&plane(&LINKS, 1, 0));
        let text = net_of(&topology).to_string();
        let net = Net::parse("test", &text).unwrap();
        let read = Topology::of_net(&net);
        let difference = Difference::between(&topology, &read);
        assert!(difference.is_empty(), "{difference:?}\n{text}");
    }
}
