//! What a fabric consists of: nodes, and links with width and speed; and how two fabrics differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::netlist::{Net, NodeKind, PortRef};
use ib_mad::types::{Guid, PortNum};
use sa_proto::snapshot::{FabricPlane, Node, Port, find};
use xxhash_rust::xxh3::Xxh3;

use super::links::End as LinkEnd;
use super::node_name;

/// One end of a link: GUID of the node and number of the port.
pub type End = (Guid, PortNum);

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyNode {
    /// Its name.
    pub name: String,
    /// Whether it is a switch.
    pub is_switch: bool,
}

/// A link, by the lower of its ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The other end.
    pub far: End,
    /// Active width and speed: `4x NDR`; empty if unknown.
    pub rate: String,
}

/// Whether two rows of a node differ at most in what no topology has: P_Keys, and the state of a
/// switch.
pub fn is_alike(a: &Node, b: &Node) -> bool {
    // Destructured, so that a new field cannot be forgotten.
    let Node { guid, info, description, switch_info, ports } = a;
    let is_alike = |a: &Port, b: &Port| {
        let Port { num, guid, info, pkeys: _, peer } = a;
        (*num, *guid, *peer) == (b.num, b.guid, b.peer) && *info == b.info
    };
    *guid == b.guid
        && *info == b.info
        && *description == b.description
        && switch_info.is_some() == b.switch_info.is_some()
        && ports.len() == b.ports.len()
        && ports.iter().zip(&b.ports).all(|(a, b)| is_alike(a, b))
}

/// Whether two planes have the same nodes, ports and links, with the same state. Shared rows are
/// not compared.
pub fn have_same_links(a: &FabricPlane, b: &FabricPlane) -> bool {
    let mut nodes = a.nodes.iter().zip(&b.nodes);
    a.nodes.len() == b.nodes.len() && nodes.all(|(a, b)| Arc::ptr_eq(a, b) || is_alike(a, b))
}

/// Nodes and links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// By GUID.
    pub nodes: BTreeMap<Guid, TopologyNode>,
    /// By the lower end.
    pub links: BTreeMap<End, Link>,
}

impl Topology {
    /// That of a published fabric.
    pub fn of(plane: &FabricPlane) -> Self {
        Self::of_nodes(plane, plane.nodes.iter().map(|node| &**node))
    }

    /// These nodes of a published fabric, and the links of which they are the lower end.
    pub fn of_nodes<'a>(plane: &FabricPlane, nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let mut topology = Self::default();
        for node in nodes {
            let is_switch = node.switch_info.is_some();
            let entry = TopologyNode { name: node_name(node), is_switch };
            topology.nodes.insert(node.guid, entry);
            for port in &node.ports {
                let (near, Some(far)) = ((node.guid, port.num), port.peer) else { continue };
                // A link has a row at either end.
                if near < far && find(&plane.nodes, far.0).is_some() {
                    let rate =
                        LinkEnd::new(node, port).map_or_else(String::new, |end| end.active());
                    topology.links.insert(near, Link { far, rate });
                }
            }
        }
        topology
    }

    /// That of a net file, such as ibnetdiscover prints.
    pub fn of_net(net: &Net) -> Self {
        let mut topology = Self::default();
        let guid = |at: PortRef| net.nodes()[at.node as usize].guid;
        for node in net.nodes() {
            let is_switch = node.kind == NodeKind::Switch;
            let entry = TopologyNode { name: node.description.clone(), is_switch };
            topology.nodes.insert(node.guid, entry);
        }
        for (a, b) in net.links() {
            let rates = [a, b].map(|end| net.port(end).map(|port| port.rate));
            // A link runs at what both ends have.
            let rate = match rates {
                [Some(near), Some(far)] => {
                    let rate = near.agreed(far);
                    format!("{}x {}", rate.width.lanes(), rate.speed)
                }
                _ => String::new(),
            };
            topology.insert_link((guid(a), PortNum(a.port)), (guid(b), PortNum(b.port)), rate);
        }
        topology
    }

    /// Adds a link, whichever end is the lower.
    pub fn insert_link(&mut self, a: End, b: End, rate: String) {
        self.links.insert(a.min(b), Link { far: a.max(b), rate });
    }

    /// The other end of the link at each end.
    pub fn peers(&self) -> BTreeMap<End, End> {
        self.links.iter().flat_map(|(&near, link)| [(near, link.far), (link.far, near)]).collect()
    }

    /// Name of a node; its GUID if it has none.
    pub fn name(&self, guid: Guid) -> String {
        match self.nodes.get(&guid).map(|node| &node.name[..]) {
            None | Some("") => guid.to_string(),
            Some(name) => name.to_owned(),
        }
    }

    /// What of this is not in `current`: nodes, the links of these nodes, and links whose ends both
    /// have no link.
    pub fn absent_from(&self, current: &Self) -> Self {
        let is = current.peers();
        let is_gone = |guid: Guid| !current.nodes.contains_key(&guid);
        let nodes = self.nodes.iter().filter(|(guid, _)| is_gone(**guid));
        let links = self.links.iter().filter(|(near, link)| {
            let is_of_absent = is_gone(near.0) || is_gone(link.far.0);
            is_of_absent || !is.contains_key(near) && !is.contains_key(&link.far)
        });
        Self {
            nodes: nodes.map(|(&guid, node)| (guid, node.clone())).collect(),
            links: links.map(|(&near, link)| (near, link.clone())).collect(),
        }
    }

    /// Hash of nodes and links; equal topologies have the same on every host.
    pub fn checksum(&self) -> u64 {
        let mut hash = Xxh3::new();
        let end = |hash: &mut Xxh3, (guid, port): End| {
            hash.update(&guid.0.to_be_bytes());
            hash.update(&[port.0]);
        };
        for (guid, node) in &self.nodes {
            end(&mut hash, (*guid, PortNum(u8::from(node.is_switch))));
            hash.update(node.name.as_bytes());
        }
        for (near, link) in &self.links {
            end(&mut hash, *near);
            end(&mut hash, link.far);
            hash.update(link.rate.as_bytes());
        }
        hash.digest()
    }

    /// Links of a node, by its port, each seen from there.
    pub fn links_of(&self, guid: Guid) -> impl Iterator<Item = (PortNum, Link)> {
        let mut links: BTreeMap<PortNum, Link> = BTreeMap::new();
        for (near, link) in &self.links {
            for (end, far) in [(*near, link.far), (link.far, *near)] {
                if end.0 == guid {
                    links.insert(end.1, Link { far, rate: link.rate.clone() });
                }
            }
        }
        links.into_iter()
    }

    /// A port, for people.
    pub fn describe(&self, (guid, port): End) -> String {
        format!("'{}' port {port}", self.name(guid))
    }
}

/// What is missing of a fabric. It keeps its place on the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Nodes that are not there, with their links, and links between nodes that are.
    pub topology: Topology,
    /// Differs for each such topology; empty if nothing is missing.
    pub tag: String,
}

impl Missing {
    /// What of `all` is not in `current`.
    pub fn of(all: &Topology, current: &Topology) -> Self {
        let topology = all.absent_from(current);
        let is_none = topology == Topology::default();
        let tag = if is_none { String::new() } else { format!("-{:016x}", topology.checksum()) };
        Self { topology, tag }
    }
}

/// A cable that leads elsewhere than expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The end that stayed.
    pub end: End,
    /// Where it led.
    pub was: End,
    /// Where it leads.
    pub is: End,
}

/// How a fabric differs from an earlier or expected one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Nodes that are not there.
    pub missing_nodes: Vec<Guid>,
    /// Nodes that were not expected.
    pub extra_nodes: Vec<Guid>,
    /// Links that are not there, by the lower end, although both nodes are, and neither end has
    /// another link.
    pub missing_links: Vec<End>,
    /// Links that were not expected, between expected nodes.
    pub extra_links: Vec<End>,
    /// Cables that lead elsewhere.
    pub moved: Vec<Moved>,
    /// Links of another width or speed, where both are known.
    pub changed: Vec<End>,
}

impl Difference {
    /// How `new` differs from `old`. Links of nodes that are missing or extra are not listed.
    pub fn between(old: &Topology, new: &Topology) -> Self {
        let only = |these: &Topology, others: &Topology| -> Vec<Guid> {
            let all = these.nodes.keys().copied();
            all.filter(|guid| !others.nodes.contains_key(guid)).collect()
        };
        let mut difference =
            Self { missing_nodes: only(old, new), extra_nodes: only(new, old), ..Self::default() };
        let (was, is) = (old.peers(), new.peers());
        for (&near, link) in &old.links {
            if is.get(&near) == Some(&link.far) {
                let rate = &new.links[&near].rate;
                if !rate.is_empty() && !link.rate.is_empty() && *rate != link.rate {
                    difference.changed.push(near);
                }
                continue;
            }
            let moved: Vec<Moved> = [(near, link.far), (link.far, near)]
                .into_iter()
                .filter_map(|(end, was)| Some(Moved { end, was, is: *is.get(&end)? }))
                .collect();
            let is_there = |end: End| new.nodes.contains_key(&end.0);
            if moved.is_empty() && is_there(near) && is_there(link.far) {
                difference.missing_links.push(near);
            }
            difference.moved.extend(moved);
        }
        for (&near, link) in &new.links {
            let known = |end: End| old.nodes.contains_key(&end.0);
            let was_free = |end: End| !was.contains_key(&end);
            if known(near) && known(link.far) && was_free(near) && was_free(link.far) {
                difference.extra_links.push(near);
            }
        }
        difference
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two leaf switches, 1 and 2, with two spines, 8 and 9, and a host, 5.
    fn fabric(links: &[(u64, u8, u64, u8)]) -> Topology {
        let mut topology = Topology::default();
        for guid in [1, 2, 5, 8, 9] {
            let node = TopologyNode { name: format!("n{guid}"), is_switch: guid != 5 };
            topology.nodes.insert(Guid(guid), node);
        }
        for &(a, p, b, q) in links {
            let end = |guid, port| (Guid(guid), PortNum(port));
            topology.insert_link(end(a, p), end(b, q), "4x NDR".to_owned());
        }
        topology
    }

    const ALL: [(u64, u8, u64, u8); 5] =
        [(1, 1, 8, 1), (1, 2, 9, 1), (2, 1, 8, 2), (2, 2, 9, 2), (5, 1, 1, 3)];

    #[test]
    fn what_is_absent_is_known_with_its_links_and_a_cable_that_moved_is_not() {
        let mut now = fabric(&[ALL[0], (2, 1, 8, 7), ALL[4]]);
        now.nodes.remove(&Guid(9));
        let missing = Missing::of(&fabric(&ALL), &now);
        assert_eq!(missing.topology.nodes.keys().collect::<Vec<_>>(), [&Guid(9)]);
        let ends: Vec<_> = missing.topology.links.keys().collect();
        assert_eq!(ends, [&(Guid(1), PortNum(2)), &(Guid(2), PortNum(2))]);
        assert_eq!(Missing::of(&now, &now), Missing::default());
        let other = Missing::of(&fabric(&ALL), &fabric(&ALL[1..]));
        assert_eq!(other.topology.links.len(), 1);
        assert!(!other.tag.is_empty() && other.tag != missing.tag);
    }

    #[test]
    fn equal_fabrics_do_not_differ() {
        assert!(Difference::between(&fabric(&ALL), &fabric(&ALL)).is_empty());
    }

    #[test]
    fn the_links_of_a_missing_node_are_not_listed() {
        let mut new = fabric(&[ALL[0], ALL[2], ALL[4]]);
        new.nodes.remove(&Guid(9));
        let difference = Difference::between(&fabric(&ALL), &new);
        assert_eq!(difference.missing_nodes, [Guid(9)]);
        assert!(difference.missing_links.is_empty());
        let back = Difference::between(&new, &fabric(&ALL));
        assert_eq!((back.extra_nodes, back.extra_links.len()), (vec![Guid(9)], 0));
    }

    #[test]
    fn a_link_is_missing_or_extra_or_of_another_speed() {
        let mut new = fabric(&ALL[1..]);
        new.links.values_mut().last().unwrap().rate = "1x NDR".to_owned();
        let difference = Difference::between(&fabric(&ALL), &new);
        assert_eq!(difference.missing_links, [(Guid(1), PortNum(1))]);
        assert_eq!(difference.changed.len(), 1);
        let back = Difference::between(&new, &fabric(&ALL));
        assert_eq!(back.extra_links, [(Guid(1), PortNum(1))]);
    }

    #[test]
    fn swapped_cables_are_neither_missing_nor_extra() {
        let swapped = [(1, 1, 9, 1), (1, 2, 8, 1), ALL[2], ALL[3], ALL[4]];
        let difference = Difference::between(&fabric(&ALL), &fabric(&swapped));
        assert!(difference.missing_links.is_empty() && difference.extra_links.is_empty());
        let first = difference.moved[0];
        let end = |guid, port| (Guid(guid), PortNum(port));
        assert_eq!((first.end, first.was, first.is), (end(1, 1), end(8, 1), end(9, 1)));
        assert_eq!(difference.moved.len(), 4, "each end of two cables");
    }
}
