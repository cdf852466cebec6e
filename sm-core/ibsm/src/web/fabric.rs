//! Details of one node, now or at an earlier time.

use std::collections::{HashMap, HashSet};

use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, Node, Port, find};
use serde::Serialize;

use super::map::{self, far_end, lid};
use crate::observe::links::{End, shortfall};
use crate::observe::moment::Sweep;
use crate::observe::node_name as name;
use crate::observe::topology::{self, Topology};

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

#[derive(Debug, Default, Serialize)]
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
        let mut lost: Vec<_> = lost.into_iter().collect();
        lost.sort_by_key(|(number, _)| *number);
        let ports = lost.into_iter().map(|(number, peer)| PortDetail::missing(number, peer));
        Self::kept(missing, guid, ports.collect(), true)
    }

    /// A node of a topology.
    fn kept(of: &Topology, guid: Guid, ports: Vec<PortDetail>, missing: bool) -> Option<Self> {
        let node = of.nodes.get(&guid)?;
        Some(Self {
            guid: guid.to_string(),
            name: of.name(guid),
            kind: if node.is_switch { "switch" } else { "host" },
            lid: 0,
            ports,
            faults: Vec::new(),
            missing,
        })
    }

    /// The node as it was connected at an earlier time, also if it was missing then of `expected`.
    /// States and LIDs of then are not known.
    pub(super) fn then(then: &Topology, expected: &Topology, guid: Guid) -> Option<Self> {
        let missing = expected.absent_from(then);
        let peer = |of: &Topology, (guid, port): topology::End| Peer {
            guid: guid.to_string(),
            name: of.name(guid),
            port: port.0,
        };
        let lost: HashMap<u8, Peer> =
            missing.links_of(guid).map(|(port, link)| (port.0, peer(expected, link.far))).collect();
        if !then.nodes.contains_key(&guid) {
            return Self::absent(&missing, guid, lost);
        }
        let usual: HashMap<_, _> = expected.links_of(guid).collect();
        let mut ports: Vec<PortDetail> = then
            .links_of(guid)
            .map(|(port, link)| {
                let usual = usual.get(&port).filter(|usual| usual.far == link.far);
                let better = usual.filter(|usual| map::gbps(&link.rate) < map::gbps(&usual.rate));
                PortDetail {
                    state: "linked".to_owned(),
                    gbps: Some(map::gbps(&link.rate)),
                    shortfall: better.map(|usual| usual.rate.clone()),
                    link: Some(link.rate),
                    peer: Some(peer(then, link.far)),
                    number: port.0,
                    ..PortDetail::default()
                }
            })
            .collect();
        ports.extend(lost.into_iter().map(|(number, peer)| PortDetail::missing(number, peer)));
        ports.sort_by_key(|port| port.number);
        Self::kept(then, guid, ports, false)
    }
}

impl PortDetail {
    /// A port whose link is missing.
    fn missing(number: u8, peer: Peer) -> Self {
        let state = "missing".to_owned();
        Self { number, state, missing: Some(peer), ..Self::default() }
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
