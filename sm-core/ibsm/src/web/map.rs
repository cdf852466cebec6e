//! The map: where nodes and links are, now or at an earlier time.

use std::collections::{BTreeMap, HashMap};

use ib_mad::netlist::LinkRate;
use ib_mad::types::{Guid, PortNum};
use sa_proto::snapshot::{FabricPlane, Node, Port, find};
use serde::Serialize;

use super::layout::{self, Kind, natural};
use crate::observe::links::{End, shortfall};
use crate::observe::node_name as name;
use crate::observe::ports::{KeptFabric, Ports};
use crate::observe::topology::{self, Link, Topology};

/// Flag: the link is slower or narrower than both ends support.
const DEGRADED: u32 = 1;
/// Flag: an end of the link is not Active.
const INACTIVE: u32 = 2;

/// Flag: the link is missing.
const MISSING: u32 = 4;

/// The map. Nodes that are missing keep their places. Nodes are numbered: switches first, by name,
/// then hosts by switch and port. Lists have one entry per node.
#[derive(Debug, Default, Serialize)]
pub(super) struct Map {
    pub(super) etag: String,
    /// Kind of layout, `tree` or `distance`.
    layout: &'static str,
    rows: u16,
    width: f32,
    /// Number of the node with the subnet manager.
    sm: Option<u32>,
    switches: Switches,
    hosts: Hosts,
    /// Links between switches, six numbers each: switch, port, switch, port, Gb/s × 10, flags: 1
    /// degraded, 2 not active, 4 missing.
    links: Vec<u32>,
    /// Numbers of nodes that are missing.
    missing: Vec<u32>,
    /// Where each end of a link is on the map.
    #[serde(skip)]
    pub(super) places: HashMap<topology::End, Place>,
}

/// Where an end of a link is on the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The first end of the link with this number: the index of its six numbers, divided by 6.
    Near(u32),
    /// The second end of it.
    Far(u32),
    /// The port of the host with this number, of those of hosts only.
    Host(u32),
}

#[derive(Debug, Default, Serialize)]
struct Switches {
    name: Vec<String>,
    guid: Vec<String>,
    lid: Vec<u16>,
    x: Vec<f32>,
    row: Vec<u16>,
    /// Number of ports with a link.
    links: Vec<u32>,
}

#[derive(Debug, Default, Serialize)]
struct Hosts {
    name: Vec<String>,
    guid: Vec<String>,
    lid: Vec<u16>,
    /// Number of the switch at the first port with a link; -1 if none.
    leaf: Vec<i32>,
    /// Flags of that link, as in `Map::links`.
    link: Vec<u32>,
    /// Number of ports with a link.
    links: Vec<u32>,
}

impl Map {
    /// The map of the published fabric, and of what is missing of it.
    pub(super) fn of(plane: &FabricPlane, missing: &Topology, etag: String) -> Self {
        let absent = missing.nodes.keys().filter(|guid| find(&plane.nodes, **guid).is_none());
        let peers = missing.peers();
        let absent = absent.map(|&guid| Spot::kept(guid, missing, &peers, None));
        let present = plane.nodes.iter().map(|node| Spot::Present(node));
        let mut draft = Draft::new(present.chain(absent).collect(), etag);
        draft.place_hosts(|node, port| flags(plane, node, port), |_| 0);
        for (node, at) in draft.present_switches() {
            for port in &node.ports {
                let Some((peer, num)) = port.peer else { continue };
                let Some(&other) = draft.number.get(&peer) else { continue };
                // Each link once, from its first end.
                if (at, port.num) > (other, num) {
                    continue;
                }
                let gbps = End::new(node, port).and_then(|end| end.gbps()).unwrap_or(0.0);
                draft.link((node.guid, port.num), (peer, num), gbps, flags(plane, node, port));
            }
        }
        draft.links_of(missing, |_, _| MISSING);
        let manager = plane.subnet.sm_port_guid;
        draft.finish(|node| node.ports.iter().any(|port| port.guid == manager))
    }

    /// The map of an earlier fabric, and of what of `expected` was not there then. Links that were
    /// slower or narrower than in `expected` are marked as degraded.
    pub(super) fn then(fabric: &KeptFabric, expected: &Topology, etag: String) -> Self {
        let KeptFabric { topology: then, ports, .. } = fabric;
        let missing = expected.absent_from(then);
        let (peers, lost) = (then.peers(), missing.peers());
        let absent = missing.nodes.keys().filter(|guid| !then.nodes.contains_key(guid));
        let absent = absent.map(|&guid| Spot::kept(guid, &missing, &lost, None));
        let there = then.nodes.keys().map(|&guid| Spot::kept(guid, then, &peers, Some(ports)));
        let mut draft = Draft::new(there.chain(absent).collect(), etag);
        let flags_of = |near: topology::End, link: &Link| {
            let usual = expected.links.get(&near).filter(|usual| usual.far == link.far);
            let is_slow = usual.is_some_and(|usual| gbps(&link.rate) < gbps(&usual.rate));
            let ends = [near, link.far].map(|end| ports.at(end));
            let is_inactive = ends.iter().flatten().any(|port| !port.is_active());
            let degraded = if is_slow { DEGRADED } else { 0 };
            degraded | if is_inactive { INACTIVE } else { 0 }
        };
        draft.place_hosts(
            |_, _| 0,
            |end| {
                let far = peers.get(&end).copied().unwrap_or(end);
                then.links.get(&end.min(far)).map_or(0, |link| flags_of(end.min(far), link))
            },
        );
        draft.links_of(then, flags_of);
        draft.links_of(&missing, |_, _| MISSING);
        draft.finish(|_| false)
    }
}

/// Rate of a link as topologies have it, in Gb/s; 0 if it is unknown.
pub(super) fn gbps(rate: &str) -> f64 {
    let rate = rate.replace(' ', "").parse::<LinkRate>().ok();
    rate.map_or(0.0, |rate| f64::from(rate.mbps()) / 1e3)
}

/// The switch of a host, by its number and port, and the host's port.
type Leaf = (u32, PortNum, PortNum);

/// A map in the making.
struct Draft<'a> {
    map: Map,
    input: layout::Input,
    /// By number.
    switches: Vec<Spot<'a>>,
    /// The number of each switch.
    number: HashMap<Guid, u32>,
    /// By number, from that of the last switch on.
    hosts: Vec<(Option<Leaf>, Spot<'a>)>,
}

impl<'a> Draft<'a> {
    fn new(spots: Vec<Spot<'a>>, etag: String) -> Self {
        let (mut switches, hosts): (Vec<_>, Vec<_>) = spots.into_iter().partition(Spot::is_switch);
        let by_name =
            |a: &Spot, b: &Spot| natural(&a.name(), &b.name()).then(a.guid().cmp(&b.guid()));
        switches.sort_by(by_name);
        let number: HashMap<Guid, u32> =
            switches.iter().zip(0..).map(|(spot, at)| (spot.guid(), at)).collect();
        let mut hosts: Vec<_> = hosts.into_iter().map(|spot| (spot.leaf(&number), spot)).collect();
        hosts.sort_by(|(a, one), (b, other)| {
            let key =
                |at: &Option<Leaf>| at.map_or((u32::MAX, PortNum(0)), |(leaf, num, _)| (leaf, num));
            key(a).cmp(&key(b)).then_with(|| by_name(one, other))
        });
        let input = layout::Input { hosts: vec![0; switches.len()], links: Vec::new() };
        Self { map: Map { etag, ..Map::default() }, input, switches, number, hosts }
    }

    /// Lists the hosts. `flags_of`: those of the link at a port of a host that is published;
    /// `kept_flags`: at a port of one that was there.
    fn place_hosts(
        &mut self,
        flags_of: impl Fn(&Node, &Port) -> u32,
        kept_flags: impl Fn(topology::End) -> u32,
    ) {
        let hosts = &mut self.map.hosts;
        for ((leaf, spot), at) in self.hosts.iter().zip(0..) {
            let num = leaf.map(|(.., num)| num);
            let port = num.and_then(|num| spot.port(num));
            hosts.name.push(spot.name());
            hosts.guid.push(spot.guid().to_string());
            hosts.lid.push(spot.lid(num));
            hosts.leaf.push(leaf.map_or(-1, |(leaf, ..)| leaf as i32));
            hosts.link.push(match (spot, port, num) {
                (Spot::Kept { ports: None, .. }, ..) => MISSING,
                (Spot::Kept { guid, .. }, _, Some(num)) => kept_flags((*guid, num)),
                (Spot::Present(node), Some(port), _) => flags_of(node, port),
                _ => 0,
            });
            hosts.links.push(spot.linked());
            if let Some((leaf, ..)) = leaf {
                self.input.hosts[*leaf as usize] += 1;
            }
            if let Some(num) = num.filter(|_| !spot.is_missing()) {
                self.map.places.insert((spot.guid(), num), Place::Host(at));
            }
        }
    }

    fn present_switches(&self) -> Vec<(&'a Node, u32)> {
        let switches = self.switches.iter().zip(0..);
        let present = switches.filter_map(|(spot, at)| match spot {
            Spot::Present(node) => Some((*node, at)),
            Spot::Kept { .. } => None,
        });
        present.collect()
    }

    /// Adds a link, if it leads from a switch to another.
    fn link(&mut self, near: topology::End, far: topology::End, gbps: f64, flags: u32) {
        let number = |end: topology::End| self.number.get(&end.0).copied();
        let (Some(a), Some(b)) = (number(near), number(far)) else { return };
        let link = self.map.links.len() as u32 / 6;
        if flags & MISSING == 0 {
            self.map.places.insert(near, Place::Near(link));
            self.map.places.insert(far, Place::Far(link));
        }
        self.input.links.push((a, b));
        let (p, q) = (u32::from(near.1.0), u32::from(far.1.0));
        self.map.links.extend([a, p, b, q, (gbps * 10.0) as u32, flags]);
    }

    /// Adds the links of a topology between switches, from the switch with the lower number.
    fn links_of(&mut self, topology: &Topology, flags: impl Fn(topology::End, &Link) -> u32) {
        for (&near, link) in &topology.links {
            let number = |end: topology::End| self.number.get(&end.0).map(|at| (*at, end.1));
            let (first, second) = match number(near) > number(link.far) {
                true => (link.far, near),
                false => (near, link.far),
            };
            self.link(first, second, gbps(&link.rate), flags(near, link));
        }
    }

    fn finish(self, is_manager: impl Fn(&Node) -> bool) -> Map {
        let Self { mut map, input, switches, hosts, .. } = self;
        let layout = layout::layout(&input);
        let all = || switches.iter().chain(hosts.iter().map(|(_, spot)| spot)).zip(0..);
        let is_manager = |spot: &Spot| match spot {
            Spot::Present(node) => is_manager(node),
            Spot::Kept { .. } => false,
        };
        map.sm = all().find(|(spot, _)| is_manager(spot)).map(|(_, at)| at);
        map.missing = all().filter(|(spot, _)| spot.is_missing()).map(|(_, at)| at).collect();
        map.layout = match layout.kind {
            Kind::Tree => "tree",
            Kind::Distance => "distance",
        };
        (map.rows, map.width) = (layout.rows, layout.width);
        map.switches = Switches {
            name: switches.iter().map(Spot::name).collect(),
            guid: switches.iter().map(|spot| spot.guid().to_string()).collect(),
            lid: switches.iter().map(|spot| spot.lid(None)).collect(),
            x: layout.x,
            row: layout.row,
            links: switches.iter().map(Spot::linked).collect(),
        };
        map
    }
}

/// A node of the map.
#[derive(Clone, Copy)]
enum Spot<'a> {
    /// One of the published fabric.
    Present(&'a Node),
    /// One of a topology: with it and the far ends of its links.
    Kept {
        guid: Guid,
        topology: &'a Topology,
        peers: &'a BTreeMap<topology::End, topology::End>,
        /// The ports of then; `None` if it is missing.
        ports: Option<&'a Ports>,
    },
}

impl<'a> Spot<'a> {
    fn kept(
        guid: Guid,
        topology: &'a Topology,
        peers: &'a BTreeMap<topology::End, topology::End>,
        ports: Option<&'a Ports>,
    ) -> Self {
        Self::Kept { guid, topology, peers, ports }
    }

    fn is_missing(&self) -> bool {
        matches!(self, Self::Kept { ports: None, .. })
    }

    fn guid(&self) -> Guid {
        match self {
            Self::Present(node) => node.guid,
            Self::Kept { guid, .. } => *guid,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Present(node) => name(node),
            Self::Kept { guid, topology, .. } => topology.name(*guid),
        }
    }

    fn is_switch(&self) -> bool {
        match self {
            Self::Present(node) => node.switch_info.is_some(),
            Self::Kept { guid, topology, .. } => {
                topology.nodes.get(guid).is_some_and(|node| node.is_switch)
            }
        }
    }

    /// The switch at the first of a host's ports with a link to one.
    fn leaf(&self, number: &HashMap<Guid, u32>) -> Option<Leaf> {
        let at = |num: PortNum, (guid, far): topology::End| Some((*number.get(&guid)?, far, num));
        match self {
            Self::Present(node) => node.ports.iter().find_map(|port| at(port.num, port.peer?)),
            Self::Kept { guid, peers, .. } => {
                links(peers, *guid).find_map(|(near, far)| at(near.1, *far))
            }
        }
    }

    fn port(&self, num: PortNum) -> Option<&'a Port> {
        match self {
            Self::Present(node) => node.port(num),
            Self::Kept { .. } => None,
        }
    }

    /// LID of a port, else of the first port of the node that has one.
    fn lid(&self, num: Option<PortNum>) -> u16 {
        match self {
            Self::Present(node) => lid(node, num.and_then(|num| node.port(num))),
            Self::Kept { guid, ports, .. } => ports.map_or(0, |ports| ports.lid(*guid, num)),
        }
    }

    /// Number of links; 0 of a node that is missing.
    fn linked(&self) -> u32 {
        match self {
            Self::Present(node) => {
                node.ports.iter().filter(|port| port.peer.is_some()).count() as u32
            }
            Self::Kept { ports: None, .. } => 0,
            Self::Kept { guid, peers, .. } => links(peers, *guid).count() as u32,
        }
    }
}

/// The links of a node, each from its end.
fn links(
    peers: &BTreeMap<topology::End, topology::End>,
    guid: Guid,
) -> impl Iterator<Item = (&topology::End, &topology::End)> {
    peers.range((guid, PortNum(0))..=(guid, PortNum(u8::MAX)))
}

/// LID of a port, else of the first port of its node that has one.
pub(super) fn lid(node: &Node, port: Option<&Port>) -> u16 {
    let lid = |port: &Port| End::new(node, port).map_or(0, |end| end.info().base_lid().0);
    let others = node.ports.iter().map(lid);
    port.map(lid).into_iter().chain(others).find(|&lid| lid != 0).unwrap_or(0)
}

/// The far end of a link.
pub(super) fn far_end<'a>(plane: &'a FabricPlane, port: &Port) -> Option<(&'a Node, &'a Port)> {
    let (guid, num) = port.peer?;
    let node = find(&plane.nodes, guid)?;
    Some((node, node.port(num)?))
}

fn flags(plane: &FabricPlane, node: &Node, port: &Port) -> u32 {
    let Some(near) = End::new(node, port) else { return INACTIVE };
    let far = far_end(plane, port).and_then(|(node, port)| End::new(node, port));
    let Some(far) = far else { return INACTIVE };
    let inactive = if near.is_active() && far.is_active() { 0 } else { INACTIVE };
    let degraded = if shortfall(&near, &far).is_some() { DEGRADED } else { 0 };
    inactive | degraded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;

    #[test]
    fn the_map_of_an_earlier_time_has_lids_and_marks_what_was_not_active() {
        let links = [(1, 1, 8, 1), (1, 9, 100, 1), (1, 10, 101, 1)];
        let expected = Topology::of(&plane(&links, 0, 0));
        let flags = |slow, init| {
            let then = KeptFabric::of(&plane(&links, slow, init));
            let map = Map::then(&then, &expected, String::new());
            assert_eq!(map.hosts.lid, [1, 1]);
            (map.links[5], map.hosts.link)
        };
        assert_eq!(flags(0, 0), (0, vec![0, 0]));
        assert_eq!(flags(1, 2), (DEGRADED | INACTIVE, vec![INACTIVE, 0]));
    }
}
