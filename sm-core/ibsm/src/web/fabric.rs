//! Documents about the fabric: the map, and details of one node.

use std::collections::{HashMap, HashSet};

use ib_mad::types::{Guid, PortNum};
use sa_proto::snapshot::{FabricPlane, Node, Port, find};
use serde::Serialize;

use super::layout::{self, Kind, natural};
use crate::observe::links::{End, shortfall};
use crate::observe::moment::Sweep;
use crate::observe::node_name as name;

/// Flag: the link is slower or narrower than both ends support.
const DEGRADED: u32 = 1;
/// Flag: an end of the link is not Active.
const INACTIVE: u32 = 2;

/// The map. Nodes are numbered: switches first, by name, then hosts by switch and port. Lists have
/// one entry per node.
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
    /// degraded, 2 not active.
    links: Vec<u32>,
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
    /// The map of the published fabric.
    pub(super) fn of(plane: &FabricPlane, etag: String) -> Self {
        let mut switches: Vec<&Node> = Vec::new();
        let mut hosts: Vec<&Node> = Vec::new();
        for node in &plane.nodes {
            if node.switch_info.is_some() { &mut switches } else { &mut hosts }.push(node);
        }
        let by_name = |a: &&Node, b: &&Node| natural(&name(a), &name(b)).then(a.guid.cmp(&b.guid));
        switches.sort_by(by_name);
        let number: HashMap<Guid, u32> =
            switches.iter().zip(0..).map(|(node, at)| (node.guid, at)).collect();
        let mut placed: Vec<_> = hosts.iter().map(|node| (leaf(node, &number), *node)).collect();
        placed.sort_by(|(a, one), (b, other)| {
            let key = |at: &Option<(u32, PortNum, &Port)>| {
                at.map_or((u32::MAX, PortNum(0)), |(leaf, num, _)| (leaf, num))
            };
            key(a).cmp(&key(b)).then_with(|| by_name(one, other))
        });
        let mut map = Self { etag, ..Self::default() };
        let mut input = layout::Input { hosts: vec![0; switches.len()], links: Vec::new() };
        for (at, node) in &placed {
            let hosts = &mut map.hosts;
            hosts.name.push(name(node));
            hosts.guid.push(node.guid.to_string());
            hosts.lid.push(lid(node, at.map(|(_, _, port)| port)));
            hosts.leaf.push(at.map_or(-1, |(leaf, ..)| leaf as i32));
            hosts.link.push(at.map_or(0, |(_, _, port)| flags(plane, node, port)));
            hosts.links.push(linked(node));
            if let Some((leaf, ..)) = at {
                input.hosts[*leaf as usize] += 1;
            }
        }
        for (node, at) in switches.iter().zip(0..) {
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
        let layout = layout::layout(&input);
        let manager = plane.subnet.sm_port_guid;
        let is_manager = |node: &Node| node.ports.iter().any(|port| port.guid == manager);
        let mut all = switches.iter().copied().chain(placed.iter().map(|(_, node)| *node));
        map.sm = all.position(is_manager).map(|at| at as u32);
        map.layout = match layout.kind {
            Kind::Tree => "tree",
            Kind::Distance => "distance",
        };
        (map.rows, map.width) = (layout.rows, layout.width);
        map.switches = Switches {
            name: switches.iter().map(|node| name(node)).collect(),
            guid: switches.iter().map(|node| node.guid.to_string()).collect(),
            lid: switches.iter().map(|node| lid(node, node.ports.first())).collect(),
            x: layout.x,
            row: layout.row,
            links: switches.iter().map(|node| linked(node)).collect(),
        };
        map
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
}

#[derive(Debug, Serialize)]
struct Peer {
    guid: String,
    name: String,
    port: u8,
}

impl NodeDetail {
    /// The node with this GUID, with the errors of the last sweep.
    pub(super) fn of(plane: &FabricPlane, guid: Guid, sweep: Option<&Sweep>) -> Option<Self> {
        let node = find(&plane.nodes, guid)?;
        let text = guid.to_string();
        let fault_ports = sweep.map_or(&[][..], |sweep| &sweep.fault_ports);
        let faulty: HashSet<u8> =
            fault_ports.iter().filter(|port| port.guid == text).map(|port| port.port).collect();
        let name = name(node);
        let quoted = format!("'{name}'");
        let concerns = |fault: &&String| fault.contains(&text) || fault.contains(&quoted);
        let faults = sweep.map_or(&[][..], |sweep| &sweep.faults).iter().filter(concerns);
        let ports = node.ports.iter().filter_map(|port| port_detail(plane, node, port, &faulty));
        Some(Self {
            kind: if node.switch_info.is_some() { "switch" } else { "host" },
            lid: lid(node, None),
            ports: ports.collect(),
            faults: faults.cloned().collect(),
            guid: text,
            name,
        })
    }
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
    })
}
