//! Fabrics discovered and configured through SMPs alone, as by a subnet manager.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use fabric_sim::generate::{Common, FatTree, Grid, RandomGraph, Shape, generate};
use fabric_sim::{Endpoint, Fabric, Options, VirtualClock};
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::transport::Packet;
use ib_mad::types::{Guid, Lid, PortNum, Qpn};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo, PortPhysState, PortState, SwitchInfo};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{self, Request, Smp};

/// Node and port of either end, the lower first.
type Link = [(Guid, u8); 2];

/// A manager on the first host.
struct Manager {
    fabric: Fabric,
    endpoint: Endpoint,
    now: Instant,
}

impl Manager {
    fn new(net: &Net) -> Self {
        let mut fabric = Fabric::new(net, Options::default());
        let host = fabric.nodes().find(|&node| fabric.node(node).node_type == NodeType::Ca);
        let endpoint = fabric.attach(host.unwrap(), 0).unwrap();
        Self { fabric, endpoint, now: VirtualClock::new().now() }
    }

    fn ask(
        &mut self,
        method: Method,
        attribute: AttributeId,
        modifier: u32,
        path: &[PortNum],
        data: &[u8; 64],
    ) -> [u8; 64] {
        let mut packet = Packet::default();
        packet.address.qpn = Qpn::SMI;
        packet.address.local_qpn = Qpn::SMI;
        Request { method, attribute_id: attribute, attribute_modifier: modifier, tid: 1, m_key: 0 }
            .write_directed(&mut packet.mad, path)
            .unwrap();
        packet.mad[smp::DATA].copy_from_slice(data);
        self.fabric.send(self.now, self.endpoint, &packet);
        let mut deliveries = Vec::new();
        self.fabric.poll(self.now, &mut deliveries, 2);
        assert_eq!(deliveries.len(), 1, "{attribute} {modifier:#x} by {path:?}");
        let answer = Smp::of(&deliveries[0].packet.mad);
        assert_eq!(answer.status(), Status::OK, "{attribute} {modifier:#x} by {path:?}");
        answer.data()
    }

    fn get(&mut self, attribute: AttributeId, modifier: u32, path: &[PortNum]) -> [u8; 64] {
        self.ask(Method::GET, attribute, modifier, path, &[0; 64])
    }

    fn set_port(
        &mut self,
        path: &[PortNum],
        port: u8,
        change: impl Fn(&mut PortInfo<&mut [u8; 64]>),
    ) {
        let mut data = self.get(AttributeId::PORT_INFO, port.into(), path);
        let mut info = PortInfo::of_mut(&mut data);
        info.set_port_state(PortState::NoChange).set_port_physical_state(PortPhysState::NoChange);
        change(&mut info);
        self.ask(Method::SET, AttributeId::PORT_INFO, port.into(), path, &data);
    }

    /// All nodes by GUID with a route to each, and all links.
    fn discover(&mut self) -> (HashMap<Guid, Vec<PortNum>>, BTreeSet<Link>) {
        let mut routes = HashMap::new();
        let mut links = BTreeSet::new();
        let mut left = VecDeque::from([(Vec::new(), None)]);
        while let Some((path, from)) = left.pop_front() {
            let data = self.get(AttributeId::NODE_INFO, 0, &path);
            let node = NodeInfo::new(&data).unwrap();
            let (guid, num_ports) = (node.node_guid(), node.num_ports());
            if let Some(from) = from {
                let mut ends = [from, (guid, node.local_port_num().0)];
                ends.sort();
                links.insert(ends);
            }
            let is_switch = node.node_type() == NodeType::Switch.code();
            if routes.insert(guid, path.clone()).is_some() || !(is_switch || path.is_empty()) {
                continue;
            }
            for port in 1..=num_ports {
                let data = self.get(AttributeId::PORT_INFO, port.into(), &path);
                let info = PortInfo::new(&data).unwrap();
                if info.port_physical_state() == PortPhysState::LinkUp.code() {
                    let mut onward = path.clone();
                    onward.push(PortNum(port));
                    left.push_back((onward, Some((guid, port))));
                }
            }
        }
        (routes, links)
    }
}

#[test]
fn a_walk_finds_every_node_and_link_of_the_net() {
    let seeded =
        |seed| Common { seed, missing_links: 10.0, missing_hosts: 5.0, ..Common::default() };
    let tree = |levels, hosts| FatTree { levels, radix: 8, hosts, oversubscription: (1, 1) };
    let torus = Grid { dims: vec![3, 4, 2], wraps: true, hosts_per_switch: 2, radix: None };
    let graph = RandomGraph { switches: 30, degree: 5, hosts: 60, radix: None };
    for (shape, common) in [
        (Shape::FatTree(tree(2, 32)), Common::default()),
        (Shape::FatTree(tree(3, 128)), seeded(1)),
        (Shape::Grid(torus), seeded(2)),
        (Shape::Random(graph), seeded(3)),
    ] {
        let net = generate(&shape, &common).unwrap();
        let mut manager = Manager::new(&net);
        let (routes, links) = manager.discover();
        assert_eq!(routes.len(), net.nodes().len(), "{shape:?}");
        let end = |at: PortRef| (net.nodes()[at.node as usize].guid, at.port);
        let expected: BTreeSet<_> = net
            .links()
            .map(|(a, b)| {
                let mut ends = [end(a), end(b)];
                ends.sort();
                ends
            })
            .collect();
        assert_eq!(links, expected, "{shape:?}");
        assert_eq!(manager.fabric.counters().dropped_in_all(), 0);
    }
}

/// Three switches in a row whose hosts have 128 LIDs each: almost all unicast LIDs are in use.
#[test]
fn all_unicast_lids_can_be_in_use() {
    const HOSTS: u8 = 127;
    const LMC: u8 = 7;
    let mut net = Net::new();
    let node = |kind, guid, ports| Node::new(kind, Guid(guid), ports, LinkRate::default());
    let switches: Vec<u32> =
        (0..3).map(|i| net.add_node(node(NodeKind::Switch, 0x100 + i, HOSTS + 2))).collect();
    let mut ends = Vec::new();
    for (i, &switch) in switches.iter().enumerate() {
        for port in 1..=HOSTS {
            let guid = 0x1_0000 + (i as u64) * 0x1000 + u64::from(port) * 8;
            let host = net.add_node(node(NodeKind::Ca, guid, 1));
            let (a, b) = (PortRef { node: host, port: 1 }, PortRef { node: switch, port });
            net.connect(a, b).unwrap();
            ends.push((i, port));
        }
    }
    let (up, down) = (HOSTS + 1, HOSTS + 2);
    for pair in switches.windows(2) {
        let (a, b) = (PortRef { node: pair[0], port: up }, PortRef { node: pair[1], port: down });
        net.connect(a, b).unwrap();
    }

    let mut manager = Manager::new(&net);
    // Switch i is reached by leaving the host, then going up i times.
    let route = |i: usize| {
        let mut path = vec![PortNum(1)];
        path.resize(i + 1, PortNum(up));
        path
    };
    let base = |index: usize| Lid(((index + 1) << LMC) as u16);
    for (index, &(i, port)) in ends.iter().enumerate() {
        let mut path = route(i);
        path.push(PortNum(port));
        manager.set_port(&path, 1, |info| {
            info.set_base_lid(base(index)).set_lmc(LMC);
        });
    }
    assert!(base(ends.len() - 1) <= Lid::UNICAST_LAST);
    for i in 0..3 {
        let own = Lid(i as u16 + 1);
        manager.set_port(&route(i), 0, |info| {
            info.set_base_lid(own);
        });
        let mut data = manager.get(AttributeId::SWITCH_INFO, 0, &route(i));
        SwitchInfo::of_mut(&mut data).set_linear_fdb_top(Lid::UNICAST_LAST);
        manager.ask(Method::SET, AttributeId::SWITCH_INFO, 0, &route(i), &data);
        let mut lft = vec![0xFF; usize::from(Lid::UNICAST_LAST.0) + 1];
        for (index, &(home, port)) in ends.iter().enumerate() {
            let out = match home.cmp(&i) {
                std::cmp::Ordering::Equal => port,
                std::cmp::Ordering::Greater => up,
                std::cmp::Ordering::Less => down,
            };
            lft[base(index).index()..][..1 << LMC].fill(out);
        }
        for home in 0..3 {
            let out = match home.cmp(&i) {
                std::cmp::Ordering::Equal => 0,
                std::cmp::Ordering::Greater => up,
                std::cmp::Ordering::Less => down,
            };
            lft[home + 1] = out;
        }
        for (block, ports) in (0u32..).zip(lft.as_chunks::<64>().0) {
            let attribute = AttributeId::LINEAR_FORWARDING_TABLE;
            manager.ask(Method::SET, attribute, block, &route(i), ports);
        }
    }
    for state in [PortState::Armed, PortState::Active] {
        for &(i, port) in &ends {
            let mut path = route(i);
            manager.set_port(&path, port, |info| {
                info.set_port_state(state);
            });
            path.push(PortNum(port));
            manager.set_port(&path, 1, |info| {
                info.set_port_state(state);
            });
        }
        for (i, port) in [(0, up), (1, down), (1, up), (2, down)] {
            manager.set_port(&route(i), port, |info| {
                info.set_port_state(state);
            });
        }
    }
    let report = manager.fabric.check_routes();
    assert!(report.is_whole(), "{:?} {:?}", report.lost, report.examples);
    assert_eq!((report.sources, report.lids), (ends.len() + 3, (ends.len() << LMC) + 3));
    assert_eq!(report.delivered, (report.sources * report.lids) as u64);
}
