//! Fabrics in the history: whole ones, and how one differs from the one before.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::types::{Guid, PortNum};
use serde::{Deserialize, Serialize};

use crate::observe::ports::{KeptFabric, PortStatus, Ports};
use crate::observe::topology::{End, Link, Topology, TopologyNode};

/// Largest number of nodes, and of links, of a topology that is read. A node has at most 256 ports.
const NODES_MAX: usize = 65_536;
const LINKS_MAX: usize = 2_621_440;

/// Consecutive ports of a node with equal values: first and last number, PortGUID less the node's
/// GUID, PortPhysicalState × 16 + PortState, LID and LMC.
type Run = (u8, u8, u64, u8, u16, u8);

/// A fabric, or what changes in one: nodes and links that are gone, and those that are new or
/// differ. Releases that kept topologies only have written, and read, it without ports and engine.
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
    /// GUID of a node, and all its ports in the place of those before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<(u64, Vec<Run>)>,
    /// Name of the routing engine, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    engine: Option<String>,
}

fn node((guid, node): (&Guid, &TopologyNode)) -> (u64, String, bool) {
    (guid.0, node.name.clone(), node.is_switch)
}

fn link((near, link): (&End, &Link)) -> (u64, u8, u64, u8, String) {
    (near.0.0, near.1.0, link.far.0.0, link.far.1.0, link.rate.clone())
}

fn runs((&guid, ports): (&Guid, &Arc<[PortStatus]>)) -> (u64, Vec<Run>) {
    let mut runs: Vec<Run> = Vec::new();
    for port in ports.iter() {
        let number = port.number.0;
        let states = port.physical_state << 4 | port.state & 0xF;
        let rest = (port.guid.0.wrapping_sub(guid.0), states, port.lid, port.lmc);
        match runs.last_mut() {
            Some((_, last, offset, states, lid, lmc))
                if last.checked_add(1) == Some(number)
                    && (*offset, *states, *lid, *lmc) == rest =>
            {
                *last = number;
            }
            _ => runs.push((number, number, rest.0, rest.1, rest.2, rest.3)),
        }
    }
    (guid.0, runs)
}

/// The ports of a node, ascending by number. Of two with one number, the last counts.
fn ports_of(guid: u64, runs: &[Run]) -> Arc<[PortStatus]> {
    let mut ports = BTreeMap::new();
    for &(first, last, offset, states, lid, lmc) in runs {
        for number in (first..=last).map(PortNum) {
            let guid = Guid(guid.wrapping_add(offset));
            let (state, physical_state) = (states & 0xF, states >> 4);
            ports.insert(number, PortStatus { number, guid, state, physical_state, lid, lmc });
        }
    }
    ports.into_values().collect()
}

impl Layout {
    /// A whole fabric.
    pub fn of(fabric: &KeptFabric) -> Self {
        Self::between(&KeptFabric::default(), fabric)
    }

    /// What leads from `old` to `new`.
    pub fn between(old: &KeptFabric, new: &KeptFabric) -> Self {
        let (was, is) = (&old.topology, &new.topology);
        let differs = |(guid, node): &(&Guid, &TopologyNode)| was.nodes.get(guid) != Some(node);
        let is_other = |(near, link): &(&End, &Link)| was.links.get(near) != Some(link);
        let gone = was.nodes.keys().filter(|guid| !is.nodes.contains_key(guid));
        let unlinked = was.links.keys().filter(|near| !is.links.contains_key(near));
        let have_changed = |(guid, ports): &(&Guid, &Arc<[PortStatus]>)| {
            let before = old.ports.0.get(guid);
            before.is_none_or(|before| !Arc::ptr_eq(before, ports) && before != *ports)
        };
        let has_changed = old.routing_engine != new.routing_engine;
        Self {
            gone: gone.map(|guid| guid.0).collect(),
            nodes: is.nodes.iter().filter(differs).map(node).collect(),
            unlinked: unlinked.map(|(guid, port)| (guid.0, port.0)).collect(),
            links: is.links.iter().filter(is_other).map(link).collect(),
            ports: new.ports.0.iter().filter(have_changed).map(runs).collect(),
            engine: has_changed.then(|| new.routing_engine.clone()),
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Changes `fabric`. Nodes and links beyond the limits are left out.
    pub fn apply(self, fabric: &mut KeptFabric) {
        let KeptFabric { topology, ports, routing_engine } = fabric;
        for guid in self.gone.into_iter().map(Guid) {
            topology.nodes.remove(&guid);
            ports.0.remove(&guid);
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
        for (guid, runs) in self.ports {
            if topology.nodes.contains_key(&Guid(guid)) {
                ports.0.insert(Guid(guid), ports_of(guid, &runs));
            }
        }
        *routing_engine = self.engine.unwrap_or(std::mem::take(routing_engine));
    }
}

/// The topology as a net file, with the LIDs of `known` ports. Nodes have the ports up to the last
/// that is known or has a link. Links that cannot be, such as two at one port, are left out.
pub fn net_of(topology: &Topology, known: &Ports) -> Net {
    let mut rates: BTreeMap<End, LinkRate> = BTreeMap::new();
    for (&near, link) in &topology.links {
        let rate = link.rate.replace(' ', "").parse().unwrap_or_default();
        rates.extend([(near, rate), (link.far, rate)]);
    }
    let mut net = Net::new();
    let mut numbers = BTreeMap::new();
    for (&guid, node) in topology.nodes.iter().take(NODES_MAX) {
        let kind = if node.is_switch { NodeKind::Switch } else { NodeKind::Ca };
        let linked = || rates.range((guid, PortNum(0))..=(guid, PortNum(u8::MAX)));
        let last_linked = linked().next_back().map_or(1, |((_, port), _)| port.0.max(1));
        let last_known = known.of_node(guid).last().map_or(1, |port| port.number.0);
        let ports = last_linked.max(last_known);
        let mut entry = Node::new(kind, guid, ports, LinkRate::default());
        entry.description.clone_from(&node.name);
        for ((_, port), rate) in linked() {
            if let Some(entry) = entry.port_mut(port.0) {
                entry.rate = *rate;
            }
        }
        for port in known.of_node(guid) {
            if let Some(entry) = entry.port_mut(port.number.0) {
                (entry.guid, entry.lid, entry.lmc) = (port.guid, port.lid, port.lmc);
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

    fn fabric(links: &[(u64, u8, u64, u8)], slow: usize, init: usize) -> KeptFabric {
        let routing_engine = format!("engine{init}");
        KeptFabric { routing_engine, ..KeptFabric::of(&plane(links, slow, init)) }
    }

    #[test]
    fn what_lies_between_two_fabrics_leads_from_one_to_the_other() {
        let fabrics = [
            KeptFabric::default(),
            fabric(&LINKS, 0, 0),
            fabric(&LINKS[..3], 1, 0),
            fabric(&LINKS, 0, 2),
            fabric(&[LINKS[0], (2, 1, 8, 7), (2, 9, 102, 1)], 0, 0),
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
    fn equal_ports_in_a_row_are_written_once() {
        let links: Vec<_> = (1..=40).map(|port| (1, port, 100 + u64::from(port), 1)).collect();
        let of_switch = |init| -> Vec<Run> {
            let layout = Layout::of(&fabric(&links, 0, init));
            layout.ports.into_iter().find(|(guid, _)| *guid == 1).unwrap().1
        };
        assert_eq!(of_switch(0), [(1, 40, 0, 0x54, 0, 0)]);
        assert_eq!(of_switch(1), [(1, 1, 0, 0x52, 0, 0), (2, 40, 0, 0x54, 0, 0)]);
        let last = (255, 255, 0, 4, 7, 0);
        assert_eq!(ports_of(1, &[(254, 255, 0, 4, 7, 0), last]).len(), 2);
        assert!(ports_of(1, &[(9, 3, 0, 4, 7, 0)]).is_empty(), "the last is before the first");
    }

    #[test]
    fn topologies_of_earlier_releases_are_read() {
        let new = fabric(&LINKS, 0, 0);
        let mut value = serde_json::to_value(Layout::of(&new)).unwrap();
        let fields = value.as_object_mut().unwrap();
        assert!(fields.remove("ports").is_some() && fields.remove("engine").is_some());
        let mut read = KeptFabric::default();
        serde_json::from_value::<Layout>(value).unwrap().apply(&mut read);
        assert_eq!((&read.topology, read.ports.is_empty()), (&new.topology, true));
        // The ports come with the first change that this release writes.
        Layout::between(&read, &new).apply(&mut read);
        assert_eq!(read, new);
    }

    #[test]
    fn a_topology_is_a_net_file_that_reads_back() {
        let KeptFabric { topology, ports, .. } = fabric(&LINKS, 1, 0);
        for known in [&Ports::default(), &ports] {
            let text = net_of(&topology, known).to_string();
            let net = Net::parse("test", &text).unwrap();
            let read = Topology::of_net(&net);
            let difference = Difference::between(&topology, &read);
            assert!(difference.is_empty(), "{difference:?}\n{text}");
            let host = net.nodes().iter().find(|node| node.guid == Guid(100)).unwrap();
            assert_eq!(host.port(1).unwrap().lid, known.lid(Guid(100), None));
        }
    }
}
