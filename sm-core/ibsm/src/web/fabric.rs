//! Documents about the fabric: the map, and details of one node.

use std::collections::{BTreeMap, HashMap, HashSet};

use ib_mad::types::{Guid, PortNum};
use sa_proto::snapshot::{FabricPlane, Node, Port, find};
use serde::Serialize;

use super::layout::{self, Kind, natural};
use crate::observe::links::{End, shortfall};
use crate::observe::moment::Sweep;
use crate::observe::node_name as name;
use crate::observe::topology::{self, Topology};

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
    etag: String,
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
        let absent = absent.map(|&guid| Spot::Absent(guid, missing, &peers));
        let present = plane.nodes.iter().map(|node| Spot::Present(node));
        let (mut switches, hosts): (Vec<_>, Vec<_>) =
            present.chain(absent).partition(Spot::is_switch);
        let by_name =
            |a: &Spot, b: &Spot| natural(&a.name(), &b.name()).then(a.guid().cmp(&b.guid()));
        switches.sort_by(by_name);
        let number: HashMap<Guid, u32> =
            switches.iter().zip(0..).map(|(spot, at)| (spot.guid(), at)).collect();
        let mut placed: Vec<_> = hosts.into_iter().map(|spot| (spot.leaf(&number), spot)).collect();
        placed.sort_by(|(a, one), (b, other)| {
            let key = |at: &Option<(u32, PortNum, Option<&Port>)>| {
                at.map_or((u32::MAX, PortNum(0)), |(leaf, num, _)| (leaf, num))
            };
            key(a).cmp(&key(b)).then_with(|| by_name(one, other))
        });
        let mut map = Self { etag, ..Self::default() };
        let mut input = layout::Input { hosts: vec![0; switches.len()], links: Vec::new() };
        for (at, spot) in &placed {
            let hosts = &mut map.hosts;
            let port = at.and_then(|(_, _, port)| port);
            hosts.name.push(spot.name());
            hosts.guid.push(spot.guid().to_string());
            hosts.lid.push(spot.lid(port));
            hosts.leaf.push(at.map_or(-1, |(leaf, ..)| leaf as i32));
            hosts.link.push(match (spot, port) {
                (Spot::Absent(..), _) => MISSING,
                (Spot::Present(node), Some(port)) => flags(plane, node, port),
                (Spot::Present(_), None) => 0,
            });
            hosts.links.push(spot.linked());
            if let Some((leaf, ..)) = at {
                input.hosts[*leaf as usize] += 1;
            }
        }
        for (spot, at) in switches.iter().zip(0..) {
            let Spot::Present(node) = spot else { continue };
            for port in &node.ports {
                let Some((peer, num)) = port.peer else { continue };
                let Some(&other) = number.get(&peer) else { continue };
                // Each link once, from its first end.
                if (at, port.num) > (other, num) {
                    continue;
                }
                input.links.push((at, other));
                let gbps = End::new(node, port).and_then(|end| end.gbps()).unwrap_or(0.0);
                let (a, b) = (u32::from(port.num.0), u32::from(num.0));
                let flags = flags(plane, node, port);
                map.links.extend([at, a, other, b, (gbps * 10.0) as u32, flags]);
            }
        }
        for (near, link) in &missing.links {
            let end = |end: topology::End| Some((*number.get(&end.0)?, u32::from(end.1.0)));
            if let (Some(near), Some(far)) = (end(*near), end(link.far)) {
                let ((a, p), (b, q)) = (near.min(far), near.max(far));
                input.links.push((a, b));
                map.links.extend([a, p, b, q, 0, MISSING]);
            }
        }
        let layout = layout::layout(&input);
        let manager = plane.subnet.sm_port_guid;
        let all = || switches.iter().chain(placed.iter().map(|(_, spot)| spot)).zip(0..);
        let is_manager = |spot: &Spot| match spot {
            Spot::Present(node) => node.ports.iter().any(|port| port.guid == manager),
            Spot::Absent(..) => false,
        };
        map.sm = all().find(|(spot, _)| is_manager(spot)).map(|(_, at)| at);
        let is_absent = |spot: &Spot| matches!(spot, Spot::Absent(..));
        map.missing = all().filter(|(spot, _)| is_absent(spot)).map(|(_, at)| at).collect();
        map.layout = match layout.kind {
            Kind::Tree => "tree",
            Kind::Distance => "distance",
        };
        (map.rows, map.width) = (layout.rows, layout.width);
        map.switches = Switches {
            name: switches.iter().map(Spot::name).collect(),
            guid: switches.iter().map(|spot| spot.guid().to_string()).collect(),
            lid: switches.iter().map(|spot| spot.lid(spot.first_port())).collect(),
            x: layout.x,
            row: layout.row,
            links: switches.iter().map(Spot::linked).collect(),
        };
        map
    }
}

/// A node of the map: one that is there, or one that is missing.
#[derive(Clone, Copy)]
enum Spot<'a> {
    Present(&'a Node),
    /// With what is missing, and the far ends of the links of that.
    Absent(Guid, &'a Topology, &'a BTreeMap<topology::End, topology::End>),
}

impl<'a> Spot<'a> {
    fn guid(&self) -> Guid {
        match self {
            Self::Present(node) => node.guid,
            Self::Absent(guid, ..) => *guid,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Present(node) => name(node),
            Self::Absent(guid, missing, _) => missing.name(*guid),
        }
    }

    fn is_switch(&self) -> bool {
        match self {
            Self::Present(node) => node.switch_info.is_some(),
            Self::Absent(guid, missing, _) => {
                missing.nodes.get(guid).is_some_and(|node| node.is_switch)
            }
        }
    }

    /// The switch of a host: its number and port, and the host's port if it is there.
    fn leaf(&self, number: &HashMap<Guid, u32>) -> Option<(u32, PortNum, Option<&'a Port>)> {
        match self {
            Self::Present(node) => {
                leaf(node, number).map(|(leaf, num, port)| (leaf, num, Some(port)))
            }
            Self::Absent(guid, _, peers) => peers
                .range((*guid, PortNum(0))..=(*guid, PortNum(u8::MAX)))
                .find_map(|(_, far)| Some((*number.get(&far.0)?, far.1, None))),
        }
    }

    fn first_port(&self) -> Option<&'a Port> {
        match self {
            Self::Present(node) => node.ports.first(),
            Self::Absent(..) => None,
        }
    }

    fn lid(&self, port: Option<&Port>) -> u16 {
        match self {
            Self::Present(node) => lid(node, port),
            Self::Absent(..) => 0,
        }
    }

    fn linked(&self) -> u32 {
        match self {
            Self::Present(node) => linked(node),
            Self::Absent(..) => 0,
        }
    }
}

/// The switch linked to the first of a host's ports that has a link: its number and port, and the
/// host's port.
fn leaf<'a>(node: &'a Node, number: &HashMap<Guid, u32>) -> Option<(u32, PortNum, &'a Port)> {
    let peers = node.ports.iter().filter_map(|port| Some((port, port.peer?)));
    let mut places = peers.filter_map(|(port, (peer, num))| Some((*number.get(&peer)?, num, port)));
    places.next()
}

fn linked(node: &Node) -> u32 {
    node.ports.iter().filter(|port| port.peer.is_some()).count() as u32
}

/// LID of a port, else of the first port of its node that has one.
fn lid(node: &Node, port: Option<&Port>) -> u16 {
    let lid = |port: &Port| End::new(node, port).map_or(0, |end| end.info().base_lid().0);
    let others = node.ports.iter().map(lid);
    port.map(lid).into_iter().chain(others).find(|&lid| lid != 0).unwrap_or(0)
}

/// The far end of a link.
fn far_end<'a>(plane: &'a FabricPlane, port: &Port) -> Option<(&'a Node, &'a Port)> {
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

/// Details of a node.
#[derive(Debug, Serialize)]
pub(super) struct NodeDetail {
    guid: String,
    name: String,
    /// `switch` or `host`.
    kind: &'static str,
    lid: u16,
    ports: Vec<PortDetail>,
    /// Errors of the last sweep that concern this node.
    faults: Vec<String>,
    /// Whether the node is missing: its ports are those that had links.
    missing: bool,
}

#[derive(Debug, Serialize)]
struct PortDetail {
    number: u8,
    guid: String,
    lid: u16,
    lmc: u8,
    state: String,
    physical_state: String,
    /// Active width and speed: `4x NDR`; none without a link.
    link: Option<String>,
    gbps: Option<f64>,
    /// Width and speed that both ends support, if the link is slower or narrower.
    shortfall: Option<String>,
    mtu: Option<u16>,
    peer: Option<Peer>,
    /// Whether the last sweep had errors at this port.
    fault: bool,
    /// The port at the other end of a link that is missing.
    missing: Option<Peer>,
}

#[derive(Debug, Serialize)]
struct Peer {
    guid: String,
    name: String,
    port: u8,
}

impl NodeDetail {
    /// The node with this GUID, with the errors of the last sweep; also one of those that are
    /// missing.
    pub(super) fn of(
        plane: &FabricPlane,
        missing: &Topology,
        guid: Guid,
        sweep: Option<&Sweep>,
    ) -> Option<Self> {
        let lost: HashMap<u8, Peer> = missing
            .links_of(guid)
            .map(|(port, link)| (port.0, missing_peer(plane, missing, link.far)))
            .collect();
        let Some(node) = find(&plane.nodes, guid) else {
            return Self::absent(missing, guid, lost);
        };
        let mut lost = lost;
        let text = guid.to_string();
        let fault_ports = sweep.map_or(&[][..], |sweep| &sweep.fault_ports);
        let faulty: HashSet<u8> =
            fault_ports.iter().filter(|port| port.guid == text).map(|port| port.port).collect();
        let name = name(node);
        let quoted = format!("'{name}'");
        let concerns = |fault: &&String| fault.contains(&text) || fault.contains(&quoted);
        let faults = sweep.map_or(&[][..], |sweep| &sweep.faults).iter().filter(concerns);
        let ports = node.ports.iter().filter_map(|port| {
            let detail = port_detail(plane, node, port, &faulty)?;
            Some(PortDetail { missing: lost.remove(&port.num.0), ..detail })
        });
        Some(Self {
            kind: if node.switch_info.is_some() { "switch" } else { "host" },
            lid: lid(node, None),
            ports: ports.collect(),
            faults: faults.cloned().collect(),
            guid: text,
            name,
            missing: false,
        })
    }

    /// A node that is missing, with the ports that had links.
    fn absent(missing: &Topology, guid: Guid, lost: HashMap<u8, Peer>) -> Option<Self> {
        let node = missing.nodes.get(&guid)?;
        let mut lost: Vec<_> = lost.into_iter().collect();
        lost.sort_by_key(|(number, _)| *number);
        let ports = lost.into_iter().map(|(number, peer)| PortDetail {
            number,
            guid: String::new(),
            lid: 0,
            lmc: 0,
            state: "missing".to_owned(),
            physical_state: String::new(),
            link: None,
            gbps: None,
            shortfall: None,
            mtu: None,
            peer: None,
            fault: false,
            missing: Some(peer),
        });
        Some(Self {
            guid: guid.to_string(),
            name: missing.name(guid),
            kind: if node.is_switch { "switch" } else { "host" },
            lid: 0,
            ports: ports.collect(),
            faults: Vec::new(),
            missing: true,
        })
    }
}

/// The far end of a link that is missing.
fn missing_peer(plane: &FabricPlane, missing: &Topology, (guid, port): topology::End) -> Peer {
    let name = find(&plane.nodes, guid).map_or_else(|| missing.name(guid), |node| name(node));
    Peer { guid: guid.to_string(), name, port: port.0 }
}

fn port_detail(
    plane: &FabricPlane,
    node: &Node,
    port: &Port,
    faulty: &HashSet<u8>,
) -> Option<PortDetail> {
    let end = End::new(node, port)?;
    let far = far_end(plane, port);
    let far_port = far.and_then(|(node, port)| End::new(node, port));
    let info = end.info();
    Some(PortDetail {
        number: port.num.0,
        guid: port.guid.to_string(),
        lid: info.base_lid().0,
        lmc: info.lmc(),
        state: end.state(),
        physical_state: end.physical_state(),
        link: far.map(|_| end.active()),
        gbps: far.and_then(|_| end.gbps()),
        shortfall: far_port.and_then(|far| shortfall(&end, &far)),
        mtu: far.and_then(|_| end.mtu()),
        peer: far.map(|(node, port)| Peer {
            guid: node.guid.to_string(),
            name: name(node),
            port: port.num.0,
        }),
        fault: faulty.contains(&port.num.0),
        missing: None,
    })
}
