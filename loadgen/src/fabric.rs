//! Expected paths, computed from a snapshot independently of the responder's code.
//!
//! Routes are followed hop by hop through the forwarding tables, one pair at a time, without
//! optimizations: code shared with the responder would share its errors.

use std::collections::HashMap;
use std::sync::Arc;

use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, PortNum, Rate};
use ib_mad::wire::attribute::{CapabilityMask, NodeInfo, NodeType, PortInfo, PortState};
use sa_proto::snapshot::{FabricPlane, Lft, Node, Port, find};

use crate::ports::{EndPort, Ports};

/// Hops after which a route counts as a loop.
const HOPS_MAX: usize = 64;

/// The expected response to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A path with this MTU and rate.
    Path {
        /// The smallest of all ports on the path.
        mtu: Mtu,
        /// The lowest of all links on the path.
        rate: Rate,
    },
    /// No path: no shared partition, no route, or no return route.
    NoPath,
}

/// A fabric whose routes can be followed.
pub struct Fabric {
    plane: Arc<FabricPlane>,
    ports: Ports,
    /// Location of each port of `ports`.
    places: Vec<Place>,
    /// Location of every port with a LID, switches and routers included, by LID.
    by_lid: HashMap<Lid, Place>,
    lfts: HashMap<Guid, usize>,
}

/// Location of a port.
#[derive(Clone, Copy)]
struct Place {
    /// Index of its node in the plane.
    node: usize,
    num: PortNum,
}

/// Limits of a port.
#[derive(Clone, Copy)]
struct Limit {
    mtu: Option<Mtu>,
    rate: Rate,
}

impl Limit {
    const ANY: Self = Self { mtu: Some(Mtu::B4096), rate: Rate::Gbps1200 };

    fn min(self, other: Self) -> Self {
        Self { mtu: self.mtu.min(other.mtu), rate: self.rate.min(other.rate) }
    }
}

impl Fabric {
    /// Reads a plane, and finds the active end ports of its channel adapters.
    pub fn new(plane: Arc<FabricPlane>) -> Self {
        let mut ports = Ports::default();
        let (mut places, mut by_lid) = (Vec::new(), HashMap::new());
        for (at, node) in plane.nodes.iter().enumerate() {
            let is_switch = is_switch(node);
            for port in &node.ports {
                let (info, place) = (info(port), Place { node: at, num: port.num });
                // A switch's external ports have no LIDs, regardless of their PortInfo.
                if info.base_lid().is_unicast() && (!is_switch || port.num == PortNum(0)) {
                    let base = usize::from(info.base_lid().0);
                    let lids = base..base + (1 << info.lmc());
                    let lids = lids.filter_map(|lid| u16::try_from(lid).ok().map(Lid));
                    by_lid.extend(lids.map(|lid| (lid, place)));
                }
                if node_type(node) != Some(NodeType::Ca) {
                    continue;
                }
                if info.port_state() != PortState::Active.code() || !info.base_lid().is_unicast() {
                    continue;
                }
                let gid = Gid::new(plane.subnet.prefix, port.guid);
                let end = EndPort { gid, lid: info.base_lid(), lmc: info.lmc() };
                ports.push(end, name(node, port));
                places.push(place);
            }
        }
        let lfts = plane.lfts.iter().enumerate().map(|(at, lft)| (lft.switch, at)).collect();
        Self { plane, ports, places, by_lid, lfts }
    }

    /// The end ports.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The expected path, in the partition of `pkey` if the query has one. Both directions must
    /// work, since every query requests a reversible path.
    pub fn expect(&self, source: u32, destination: u32, pkey: Option<PKey>) -> Expected {
        self.expect_between(self.end(source), self.end(destination), pkey)
    }

    /// The expected path to a LID: of a listed port, another port, a switch, or unassigned.
    pub fn expect_to(&self, source: u32, dlid: Lid, pkey: PKey) -> Expected {
        match self.by_lid.get(&dlid) {
            Some(&place) => self.expect_between(self.end(source), (place, dlid), Some(pkey)),
            None => Expected::NoPath,
        }
    }

    fn expect_between(&self, source: End, destination: End, pkey: Option<PKey>) -> Expected {
        let others = &self.port(destination.0).1.pkeys;
        let shared = self.port(source.0).1.pkeys.iter().any(|&key| {
            pkey.is_none_or(|wanted| key.base() == wanted.base())
                && others.iter().any(|&other| key.matches(other))
        });
        let there = self.walk(source, destination);
        match (shared, there, self.walk(destination, source)) {
            (true, Some(Limit { mtu: Some(mtu), rate }), Some(_)) => Expected::Path { mtu, rate },
            _ => Expected::NoPath,
        }
    }

    /// Whether a path between the two ports may have this P_Key.
    pub fn may_use(&self, source: u32, destination: u32, pkey: PKey) -> bool {
        let holds = |port: u32| {
            let keys = &self.port(self.places[port as usize]).1.pkeys;
            keys.iter().any(|&key| key.matches(pkey) || key == pkey)
        };
        holds(source) && holds(destination)
    }

    /// A listed port, addressed by its base LID.
    fn end(&self, index: u32) -> End {
        (self.places[index as usize], self.ports.get(index).lid)
    }

    fn port(&self, place: Place) -> (&Node, &Port) {
        let node = &self.plane.nodes[place.node];
        (node, node.port(place.num).expect("the port was found when the fabric was read"))
    }

    /// Follows the route from one port to the other's LID; `None` if the packet would not arrive.
    fn walk(&self, (source, _): End, (destination, dlid): End) -> Option<Limit> {
        let (mut node, mut exit) = self.port(source);
        let (goal, goal_port) = self.port(destination);
        if is_switch(node) {
            // Packets that a switch itself sends use its own table.
            exit = node.port(self.egress(node, dlid)?)?;
        }
        let mut limit = Limit::ANY;
        for _ in 0..HOPS_MAX {
            let (guid, num) = exit.peer?;
            let next = find(&self.plane.nodes, guid)?;
            let entry = next.port(num)?;
            limit = limit.min(limit_of(node, exit)).min(limit_of(next, entry));
            let is_goal = |num: PortNum| guid == goal.guid && num == goal_port.num;
            if !is_switch(next) {
                return is_goal(num).then_some(limit);
            }
            let out = self.egress(next, dlid)?;
            if out == PortNum(0) {
                return is_goal(out).then_some(limit);
            }
            exit = next.port(out)?;
            node = next;
        }
        None
    }

    /// The port by which a switch forwards packets to a LID.
    fn egress(&self, switch: &Node, dlid: Lid) -> Option<PortNum> {
        let lft = &self.plane.lfts[*self.lfts.get(&switch.guid)?];
        let port = lft.ports.get(dlid.index()).filter(|&&port| port != Lft::NO_ROUTE);
        port.map(|&port| PortNum(port))
    }
}

/// A port, and the LID in the query.
type End = (Place, Lid);

fn limit_of(node: &Node, port: &Port) -> Limit {
    // A switch's external ports have the capabilities of its port 0.
    let managed = match node_type(node) {
        Some(NodeType::Switch) => node.port(PortNum(0)),
        _ => Some(port),
    };
    let mask = managed.map_or(CapabilityMask::NONE, |port| info(port).capability_mask());
    let info = info(port);
    Limit {
        mtu: Mtu::from_code(info.mtu_cap()),
        rate: info.active_rate(mask).unwrap_or(Rate::Gbps2_5),
    }
}

fn is_switch(node: &Node) -> bool {
    node_type(node) == Some(NodeType::Switch)
}

fn node_type(node: &Node) -> Option<NodeType> {
    NodeType::from_code(NodeInfo::new(&node.info[..]).ok()?.node_type())
}

fn info(port: &Port) -> PortInfo<&[u8; PortInfo::LEN]> {
    PortInfo::of(&port.info)
}

/// The node's description, with the port number if the node has several ports.
fn name(node: &Node, port: &Port) -> String {
    let text = ib_mad::text::of_field(&node.description).trim().to_owned();
    match (text.is_empty(), node.ports.len()) {
        (true, _) => String::new(),
        (false, 0 | 1) => text,
        (false, _) => format!("{text} port {}", port.num),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ib_mad::wire::attribute::{LinkSpeeds, LinkWidths};
    use sa_proto::snapshot::Subnet;

    fn port(num: u8, guid: u64, lid: u16, mtu: Mtu, peer: Option<(u64, u8)>) -> Port {
        let mut bytes = [0; 64];
        PortInfo::new(&mut bytes[..])
            .unwrap()
            .set_base_lid(Lid(lid))
            .set_port_state(PortState::Active)
            .set_mtu_cap(mtu)
            .set_link_width_active(LinkWidths::X4)
            .set_link_speed_active(LinkSpeeds::QDR);
        Port {
            num: PortNum(num),
            guid: Guid(guid),
            info: bytes,
            pkeys: [PKey(0xFFFF)].into(),
            peer: peer.map(|(guid, num)| (Guid(guid), PortNum(num))),
        }
    }

    fn node(guid: u64, kind: NodeType, text: &str, ports: Vec<Port>) -> Arc<Node> {
        let (mut info, mut description) = ([0; 40], [0; 64]);
        NodeInfo::new(&mut info[..]).unwrap().set_node_type(kind).set_node_guid(Guid(guid));
        description[..text.len()].copy_from_slice(text.as_bytes());
        let switch_info = (kind == NodeType::Switch).then_some([0; 20]);
        Arc::new(Node { guid: Guid(guid), info, description, switch_info, ports })
    }

    /// Hosts a (LID 1) and c (LID 3) on switch 10, b (LID 2) on switch 20; the switches' link has
    /// a smaller MTU than the others.
    pub(crate) fn plane() -> FabricPlane {
        let host = |guid, text: &str, lid, switch, exit| {
            let ports = vec![port(1, guid + 1, lid, Mtu::B4096, Some((switch, exit)))];
            node(guid, NodeType::Ca, text, ports)
        };
        let lft = |guid, routes: [u8; 4]| {
            let mut ports = vec![Lft::NO_ROUTE; 64];
            ports[..4].copy_from_slice(&routes);
            Arc::new(Lft { switch: Guid(guid), ports: ports.into() })
        };
        let switch = |guid, links: Vec<Port>| {
            let mut ports = vec![port(0, guid, 0, Mtu::B4096, None)];
            ports.extend(links);
            node(guid, NodeType::Switch, "", ports)
        };
        FabricPlane {
            subnet: Subnet { prefix: 0xFE80 << 48, ..Subnet::default() },
            nodes: vec![
                switch(
                    10,
                    vec![
                        port(1, 10, 0, Mtu::B4096, Some((100, 1))),
                        port(2, 10, 0, Mtu::B4096, Some((300, 1))),
                        port(3, 10, 0, Mtu::B2048, Some((20, 3))),
                    ],
                ),
                switch(
                    20,
                    vec![
                        port(1, 20, 0, Mtu::B4096, Some((200, 1))),
                        port(3, 20, 0, Mtu::B4096, Some((10, 3))),
                    ],
                ),
                host(100, "a", 1, 10, 1),
                host(200, "b", 2, 20, 1),
                host(300, "c", 3, 10, 2),
            ],
            lfts: vec![lft(10, [255, 1, 3, 2]), lft(20, [255, 3, 1, 255])],
            ..FabricPlane::default()
        }
    }

    fn fabric(change: impl FnOnce(&mut FabricPlane)) -> Fabric {
        let mut plane = plane();
        change(&mut plane);
        Fabric::new(Arc::new(plane))
    }

    const A: u32 = 0;
    const B: u32 = 1;
    const C: u32 = 2;

    #[test]
    fn the_least_port_on_the_way_counts() {
        let fabric = fabric(|_| {});
        assert_eq!([A, B, C].map(|i| fabric.ports().name(i)), ["a", "b", "c"]);
        let path = |mtu| Expected::Path { mtu, rate: Rate::Gbps40 };
        assert_eq!(fabric.expect(A, B, None), path(Mtu::B2048));
        assert_eq!(fabric.expect(A, C, None), path(Mtu::B4096));
    }

    /// Switches are ports with LIDs too, and so is the requester itself.
    #[test]
    fn a_path_leads_to_the_owner_of_the_lid() {
        let fabric = fabric(|plane| {
            let switch: &mut Node = Arc::make_mut(&mut plane.nodes[1]);
            PortInfo::new(&mut switch.ports[0].info[..]).unwrap().set_base_lid(Lid(9));
            for (lft, port) in plane.lfts.iter_mut().zip([3, 0]) {
                Arc::make_mut(lft).ports[9] = port;
            }
        });
        let (all, other) = (PKey::DEFAULT_FULL, PKey(0x8001));
        let is_path = |expected| matches!(expected, Expected::Path { .. });
        assert_eq!(fabric.expect_to(A, Lid(2), all), fabric.expect(A, B, Some(all)));
        assert_eq!(fabric.expect_to(A, Lid(2), other), Expected::NoPath, "no members");
        assert!(is_path(fabric.expect_to(A, Lid(1), all)), "to itself");
        assert!(is_path(fabric.expect_to(A, Lid(9), all)), "to a switch");
        assert_eq!(fabric.expect_to(C, Lid(9), all), Expected::NoPath, "and not back");
        assert_eq!(fabric.expect_to(A, Lid(8), all), Expected::NoPath, "an unassigned LID");
    }

    /// Switch 20 has no route to c, though b's requests would arrive there only from that switch.
    #[test]
    fn a_path_without_a_way_back_is_none() {
        let fabric = fabric(|_| {});
        assert_eq!(fabric.expect(B, C, None), Expected::NoPath);
        assert_eq!(fabric.expect(C, B, None), Expected::NoPath);
    }

    #[test]
    fn loops_and_wrong_ends_are_no_paths() {
        let looping = fabric(|plane| Arc::make_mut(&mut plane.lfts[1]).ports[2] = 3);
        assert_eq!(looping.expect(A, B, None), Expected::NoPath);
        let astray = fabric(|plane| Arc::make_mut(&mut plane.lfts[0]).ports[3] = 1);
        assert_eq!(astray.expect(A, C, None), Expected::NoPath);
    }

    #[test]
    fn a_path_needs_a_partition_in_common() {
        let set = |plane: &mut FabricPlane, at: usize, keys: &[u16]| {
            let node: &mut Node = Arc::make_mut(&mut plane.nodes[at]);
            node.ports[0].pkeys = keys.iter().copied().map(PKey).collect();
        };
        let fabric = fabric(|plane| {
            set(plane, 2, &[0x7FFF, 0x8001]);
            set(plane, 4, &[0x7FFF, 0x0001]);
        });
        let path = Expected::Path { mtu: Mtu::B4096, rate: Rate::Gbps40 };
        assert_eq!(fabric.expect(A, C, None), path);
        assert_eq!(fabric.expect(A, C, Some(PKey(0x8001))), path);
        assert_eq!(fabric.expect(A, C, Some(PKey(0xFFFF))), Expected::NoPath, "two limited ones");
        assert!(fabric.may_use(A, C, PKey(0x8001)) && fabric.may_use(C, A, PKey(0x0001)));
        assert!(!fabric.may_use(A, C, PKey(0x8002)));
    }

    #[test]
    fn ports_that_are_not_active_are_left_out() {
        let fabric = fabric(|plane| {
            let node = Arc::make_mut(&mut plane.nodes[3]);
            PortInfo::new(&mut node.ports[0].info[..]).unwrap().set_port_state(PortState::Armed);
        });
        assert_eq!(fabric.ports().len(), 2);
    }
}
