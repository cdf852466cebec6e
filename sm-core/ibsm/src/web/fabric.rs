//! Details of one node, now or at an earlier time.

use std::collections::{BTreeSet, HashMap, HashSet};

use ib_mad::types::{Guid, PortNum};
use sa_proto::snapshot::{FabricPlane, Node, Port, Snapshot, find};
use serde::Serialize;

use super::map::{self, far_end, lid};
use super::membership::Membership;
use crate::observe::links::{End, shortfall};
use crate::observe::moment::Sweep;
use crate::observe::ports::{KeptFabric, PortStatus};
use crate::observe::topology::{self, Topology};
use crate::observe::{Since, node_name as name};

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
    #[serde(flatten)]
    abilities: Abilities,
    mtu: Option<u16>,
    peer: Option<Peer>,
    /// Whether the last sweep had errors at this port.
    fault: bool,
    /// The port at the other end of a link that is missing.
    missing: Option<Peer>,
    /// Since when state, far end, width and speed are as they are, milliseconds since 1970.
    since_ms: Option<u64>,
    /// Whether they changed then; they may have been so before.
    since_is_exact: bool,
    /// Not known of earlier times, nor of external ports of switches.
    #[serde(flatten)]
    membership: Option<Membership>,
}

#[derive(Debug, Serialize)]
struct Peer {
    guid: String,
    name: String,
    port: u8,
    /// What the port at that end can do; nothing of earlier times, and of what is missing.
    #[serde(flatten)]
    abilities: Option<Abilities>,
}

/// The widest width and fastest speed of a port: `4x NDR`.
#[derive(Debug, Default, Serialize)]
struct Abilities {
    supported: Option<String>,
    /// Of these, what is enabled.
    enabled: Option<String>,
}

impl Abilities {
    fn of(end: &End<'_>) -> Self {
        Self { supported: end.supported(), enabled: end.enabled() }
    }
}

impl NodeDetail {
    /// The node with this GUID, with the errors of the last sweep, and since when its ports are as
    /// they are; also one of those that are missing.
    pub(super) fn of(
        snapshot: &Snapshot,
        missing: &Topology,
        guid: Guid,
        sweep: Option<&Sweep>,
        since: &[(PortNum, Since)],
    ) -> Option<Self> {
        let plane = snapshot.fabric();
        let lost: HashMap<u8, Peer> = missing
            .links_of(guid)
            .map(|(port, link)| (port.0, missing_peer(plane, missing, link.far)))
            .collect();
        let Some(node) = find(&plane.nodes, guid) else {
            return Self::absent(missing, guid, lost);
        };
        let mut lost = lost;
        let mut memberships = Membership::of_node(snapshot, node);
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
            let at = since.binary_search_by_key(&port.num, |(number, _)| *number).ok();
            let since = at.map(|at| since[at].1);
            Some(PortDetail {
                missing: lost.remove(&port.num.0),
                since_ms: since.map(|since| since.time_ms),
                since_is_exact: since.is_some_and(|since| since.is_exact),
                membership: memberships.remove(&port.num),
                ..detail
            })
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

    /// The node as it was at an earlier time, also if it was missing then of `expected`. If the
    /// states of ports are not known, those with a link are listed as `linked`.
    pub(super) fn then(fabric: &KeptFabric, expected: &Topology, guid: Guid) -> Option<Self> {
        let then = &fabric.topology;
        let missing = expected.absent_from(then);
        let peer = |of: &Topology, (guid, port): topology::End| Peer {
            guid: guid.to_string(),
            name: of.name(guid),
            port: port.0,
            abilities: None,
        };
        let mut lost: HashMap<u8, Peer> =
            missing.links_of(guid).map(|(port, link)| (port.0, peer(expected, link.far))).collect();
        if !then.nodes.contains_key(&guid) {
            return Self::absent(&missing, guid, lost);
        }
        let usual: HashMap<_, _> = expected.links_of(guid).collect();
        let links: HashMap<_, _> = then.links_of(guid).collect();
        let known = fabric.ports.of_node(guid).iter().map(|port| port.number);
        let numbers: BTreeSet<PortNum> = known.chain(links.keys().copied()).collect();
        let mut ports: Vec<PortDetail> = numbers
            .into_iter()
            .map(|number| {
                let of_port = fabric.ports.at((guid, number)).map(PortDetail::kept);
                let missing = lost.remove(&number.0);
                let Some(link) = links.get(&number) else {
                    return PortDetail { missing, ..of_port.unwrap_or_default() };
                };
                let usual = usual.get(&number).filter(|usual| usual.far == link.far);
                let better = usual.filter(|usual| map::gbps(&link.rate) < map::gbps(&usual.rate));
                PortDetail {
                    gbps: Some(map::gbps(&link.rate)),
                    shortfall: better.map(|usual| usual.rate.clone()),
                    link: Some(link.rate.clone()),
                    peer: Some(peer(then, link.far)),
                    missing,
                    ..of_port.unwrap_or_else(|| PortDetail::linked(number))
                }
            })
            .collect();
        ports.extend(lost.into_iter().map(|(number, peer)| PortDetail::missing(number, peer)));
        ports.sort_by_key(|port| port.number);
        let lid = fabric.ports.lid(guid, None);
        Some(Self { lid, ..Self::kept(then, guid, ports, false)? })
    }
}

impl PortDetail {
    /// A port of an earlier time, without its link.
    fn kept(port: &PortStatus) -> Self {
        Self {
            number: port.number.0,
            guid: port.guid.to_string(),
            lid: port.lid,
            lmc: port.lmc,
            state: port.state(),
            physical_state: port.physical_state(),
            ..Self::default()
        }
    }

    /// A port with a link, of which no more is known.
    fn linked(number: PortNum) -> Self {
        Self { number: number.0, state: "linked".to_owned(), ..Self::default() }
    }

    /// A port whose link is missing.
    fn missing(number: u8, peer: Peer) -> Self {
        let state = "missing".to_owned();
        Self { number, state, missing: Some(peer), ..Self::default() }
    }
}

/// The far end of a link that is missing.
fn missing_peer(plane: &FabricPlane, missing: &Topology, (guid, port): topology::End) -> Peer {
    let name = find(&plane.nodes, guid).map_or_else(|| missing.name(guid), |node| name(node));
    Peer { guid: guid.to_string(), name, port: port.0, abilities: None }
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
        shortfall: far_port.as_ref().and_then(|far| shortfall(&end, far)),
        abilities: Abilities::of(&end),
        mtu: far.and_then(|_| end.mtu()),
        peer: far.map(|(node, port)| Peer {
            guid: node.guid.to_string(),
            name: name(node),
            port: port.num.0,
            abilities: far_port.as_ref().map(Abilities::of),
        }),
        fault: faulty.contains(&port.num.0),
        ..PortDetail::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::ports::Ports;
    use crate::observe::problem::testing::plane;

    const LINKS: [(u64, u8, u64, u8); 3] = [(1, 1, 8, 1), (1, 9, 100, 1), (1, 10, 101, 1)];

    #[test]
    fn a_node_of_an_earlier_time_has_the_states_and_lids_of_then() {
        let mut then = KeptFabric::of(&plane(&LINKS, 1, 1));
        let expected = Topology::of(&plane(&LINKS, 0, 0));
        then.topology.links.remove(&(Guid(1), PortNum(10)));
        let leaf = NodeDetail::then(&then, &expected, Guid(1)).unwrap();
        let states: Vec<_> = leaf.ports.iter().map(|port| (port.number, &port.state[..])).collect();
        assert_eq!(states, [(1, "Initialize"), (9, "Active"), (10, "Active")]);
        let [slow, usual, lost] = &leaf.ports[..] else { panic!("{leaf:?}") };
        assert_eq!(
            (slow.link.as_deref(), slow.shortfall.as_deref()),
            (Some("1x QDR"), Some("4x QDR"))
        );
        assert!(usual.peer.is_some() && usual.shortfall.is_none() && lost.peer.is_none());
        assert_eq!(lost.missing.as_ref().map(|peer| &peer.name[..]), Some("n101"));
        let host = NodeDetail::then(&then, &expected, Guid(100)).unwrap();
        assert_eq!(
            (host.lid, host.ports[0].lid, &host.ports[0].physical_state[..]),
            (1, 1, "LinkUp")
        );
        let older = KeptFabric { ports: Ports::default(), ..then };
        let leaf = NodeDetail::then(&older, &expected, Guid(1)).unwrap();
        assert_eq!((leaf.lid, &leaf.ports[0].state[..]), (0, "linked"));
    }
}
