use super::*;

fn node_info(kind: NodeType, guid: u64, ports: u8) -> [u8; 40] {
    let mut bytes = [0; 40];
    NodeInfo::new(&mut bytes[..])
        .unwrap()
        .set_node_type(kind)
        .set_num_ports(ports)
        .set_node_guid(Guid(guid))
        .set_port_guid(Guid(guid));
    bytes
}

fn add(fabric: &mut Fabric, kind: NodeType, guid: u64, ports: u8) -> NodeIndex {
    let bytes = node_info(kind, guid, ports);
    fabric.add(&NodeInfo::new(&bytes[..]).unwrap(), kind).unwrap()
}

/// A host, a line of `switches` switches by ports 1 and 2, and a host at the end.
fn line(switches: u64) -> Fabric {
    let mut fabric = Fabric::default();
    let first = add(&mut fabric, NodeType::Ca, 1, 1);
    let mut end = fabric.port_of(first, PortNum(1)).unwrap();
    fabric.set_sm_port(end);
    for guid in 0..switches {
        let switch = add(&mut fabric, NodeType::Switch, 100 + guid, 4);
        fabric.link(end, fabric.port_of(switch, PortNum(1)).unwrap());
        end = fabric.port_of(switch, PortNum(2)).unwrap();
    }
    let last = add(&mut fabric, NodeType::Ca, 2, 1);
    fabric.link(end, fabric.port_of(last, PortNum(1)).unwrap());
    let index = fabric.nodes().map(|(index, _)| index).collect::<Vec<_>>();
    for port in index.into_iter().flat_map(|node| fabric.ports_of(node)).collect::<Vec<_>>() {
        fabric.port_mut(port).known = true;
    }
    fabric
}

fn route(fabric: &Fabric, guid: u64) -> Option<String> {
    let node = fabric.find(Guid(guid)).unwrap();
    let first = PortNum(u8::from(fabric.node(node).switch.is_none()));
    Some(fabric.route_to(fabric.port_of(node, first).unwrap())?.to_string())
}

#[test]
fn directed_routes_follow_the_links() {
    let mut fabric = line(3);
    assert!(fabric.trace_routes(|_, _| true).is_empty());
    assert_eq!(route(&fabric, 1).as_deref(), Some("0"));
    assert_eq!(route(&fabric, 102).as_deref(), Some("0,1,2,2"));
    assert_eq!(route(&fabric, 2).as_deref(), Some("0,1,2,2,2"));
    assert_eq!(fabric.node(fabric.find(Guid(2)).unwrap()).hops(), 4);
}

#[test]
fn what_is_behind_a_cut_link_has_no_route() {
    let mut fabric = line(3);
    let middle = fabric.find(Guid(101)).unwrap();
    fabric.unlink(fabric.port_of(middle, PortNum(2)).unwrap());
    let unreached: Vec<Guid> =
        fabric.trace_routes(|_, _| true).iter().map(|&n| fabric.node(n).guid).collect();
    assert_eq!(unreached, [Guid(102), Guid(2)]);
    assert_eq!(route(&fabric, 102), None);
}

#[test]
fn routes_longer_than_directed_ones_may_be_end_in_nothing() {
    let mut fabric = line(70);
    let unreached = fabric.trace_routes(|_, _| true);
    assert_eq!(unreached.len(), 71 - 63);
    assert_eq!(route(&fabric, 2), None);
}

#[test]
fn a_node_that_returns_keeps_its_indices_and_forgets_its_past() {
    let mut fabric = line(1);
    let switch = fabric.find(Guid(100)).unwrap();
    let index = fabric.node(switch).switch.unwrap();
    fabric.switch_mut(index).lft.set_desired(vec![1; 64]);
    fabric.switch_mut(index).lft.acknowledge(0);
    fabric.remove(switch);
    settle(&mut fabric);
    assert_eq!((fabric.counts(), fabric.end_ports().count()), ((2, 0), 1));
    assert_eq!(add(&mut fabric, NodeType::Switch, 100, 4), switch);
    assert!(fabric.switch(index).lft.is_stale(0));
    assert!(fabric.ports_of(switch).all(|port| fabric.port(port).peer().is_none()));
    // In another shape it is another node.
    assert_ne!(add(&mut fabric, NodeType::Switch, 100, 8), switch);
    assert_eq!(fabric.counts(), (2, 1));
}

/// Ports that do not own their GUID, after the one that does.
fn settle(fabric: &mut Fabric) -> Vec<(PortIndex, PortIndex)> {
    let settled = fabric.settle_end_ports(|_, _| Tenure::Elsewhere);
    settled.others.into_iter().map(|(owner, port)| (owner.unwrap(), port)).collect()
}

#[test]
fn a_port_guid_belongs_to_one_port_and_stays_there() {
    let mut fabric = line(2);
    let [sm_port, last, first_switch] = [(1, 1), (2, 1), (100, 0)]
        .map(|(guid, num)| fabric.port_of(fabric.find(Guid(guid)).unwrap(), PortNum(num)).unwrap());
    fabric.port_mut(first_switch).guid = Guid(7);
    fabric.port_mut(last).guid = Guid(8);
    assert!(settle(&mut fabric).is_empty());
    // The host's port takes on the switch's GUID: the switch had it before.
    fabric.port_mut(last).guid = Guid(7);
    assert_eq!(settle(&mut fabric), [(first_switch, last)]);
    assert!(fabric.is_end_port(first_switch) && !fabric.is_end_port(last));
    assert!(fabric.is_left_out(last) && !fabric.is_left_out(first_switch));
    // The SM's own port comes before all.
    fabric.port_mut(sm_port).guid = Guid(7);
    assert_eq!(settle(&mut fabric), [(sm_port, first_switch), (sm_port, last)]);
    fabric.port_mut(sm_port).guid = Guid(1);
    fabric.port_mut(first_switch).guid = Guid(100);
    assert!(settle(&mut fabric).is_empty() && fabric.is_end_port(last));

    // The GUID that stands for the SA is no port's own.
    fabric.port_mut(last).guid = Guid::WELL_KNOWN_SA;
    assert!(settle(&mut fabric).is_empty() && !fabric.is_end_port(last));
    assert_eq!(fabric.impostors().collect::<Vec<_>>(), [last]);
}

#[test]
fn compaction_drops_the_absent_and_changes_nothing_else() {
    let mut fabric = line(3);
    for guid in 1000..3000 {
        let node = add(&mut fabric, NodeType::Ca, guid, 2);
        fabric.remove(node);
    }
    fabric.trace_routes(|_, _| true);
    let index = fabric.node(fabric.find(Guid(101)).unwrap()).switch.unwrap();
    fabric.switch_mut(index).lft.set_desired(vec![1; 64]);
    fabric.switch_mut(index).lft.acknowledge(0);
    assert!(fabric.wants_compaction());
    let before: Vec<_> = [1, 2, 100, 101, 102].map(|guid| route(&fabric, guid)).into();
    let parameters = SubnetParameters {
        prefix: 0,
        lifetime: 0,
        sa_key: 0,
        routing_engine: String::new(),
        engine_sls: 0,
        path_sls: Vec::new(),
        managers: Vec::new(),
        policy: Default::default(),
    };
    let plane = fabric.plane(&parameters);
    let fabric = fabric.compacted();
    assert_eq!(before, [1, 2, 100, 101, 102].map(|guid| route(&fabric, guid)));
    assert_eq!(fabric.plane(&parameters), plane);
    assert!(!fabric.wants_compaction() && fabric.find(Guid(1000)).is_none());
    let index = fabric.node(fabric.find(Guid(101)).unwrap()).switch.unwrap();
    assert!(!fabric.switch(index).lft.is_stale(0));
}

/// After each sweep all links were examined.
#[test]
fn links_are_new_once() {
    let mut fabric = line(1);
    let sm_port = fabric.sm_port().unwrap();
    let peer = fabric.port(sm_port).peer().unwrap();
    assert_eq!(fabric.take_new_links().len(), 2);
    assert!(fabric.take_new_links().is_empty());
    fabric.link(sm_port, peer);
    assert!(fabric.take_new_links().is_empty(), "it was there");
    fabric.unlink(sm_port);
    assert!(fabric.take_new_links().is_empty());
    fabric.link(peer, sm_port);
    assert_eq!(fabric.take_new_links(), [(sm_port.min(peer), sm_port.max(peer))]);
    // Indices are others then.
    assert_eq!(fabric.compacted().take_new_links().len(), 2);
}

/// Regression: `neighbors` kept the port GUID that the port at the far end had had before, so that
/// its M_Key was looked up by that.
#[test]
fn a_link_to_a_port_with_another_guid_is_new() {
    let mut fabric = line(1);
    let sm_port = fabric.sm_port().unwrap();
    let peer = fabric.port(sm_port).peer().unwrap();
    let guid = fabric.port(sm_port).guid;
    fabric.take_new_links();
    fabric.set_port_guid(sm_port, guid);
    assert!(fabric.take_new_links().is_empty());
    fabric.set_port_guid(sm_port, Guid(guid.0 + 1));
    assert_eq!(fabric.take_new_links(), [(sm_port.min(peer), sm_port.max(peer))]);
}

/// Two switches that only an adapter joins, whose two ports have one port GUID; the SM's port is
/// planarized, too.
fn two_planes() -> (Fabric, [PortIndex; 2], [PortIndex; 2]) {
    let mut fabric = Fabric::default();
    let [own, host] = [1, 2].map(|guid| add(&mut fabric, NodeType::Ca, guid, 2));
    let ports =
        |fabric: &Fabric, node| [1, 2].map(|num| fabric.port_of(node, PortNum(num)).unwrap());
    let (own, host) = (ports(&fabric, own), ports(&fabric, host));
    for plane in 0..2 {
        let switch = add(&mut fabric, NodeType::Switch, 100 + plane as u64, 4);
        let at = |fabric: &Fabric, num| fabric.port_of(switch, PortNum(num)).unwrap();
        fabric.link(own[plane], at(&fabric, 1));
        fabric.link(host[plane], at(&fabric, 2));
    }
    fabric.set_sm_port(own[0]);
    fabric.set_own_planes(own.to_vec());
    let all: Vec<NodeIndex> = fabric.nodes().map(|(index, _)| index).collect();
    for port in all.into_iter().flat_map(|node| fabric.ports_of(node)).collect::<Vec<_>>() {
        fabric.port_mut(port).known = true;
    }
    for (ports, guid) in [(own, 11), (host, 12)] {
        ports.iter().for_each(|&port| fabric.set_port_guid(port, Guid(guid)));
    }
    (fabric, own, host)
}

#[test]
fn ports_of_an_adapter_with_one_guid_are_planes_of_one_end_port() {
    let (mut fabric, own, host) = two_planes();
    assert!(settle(&mut fabric).is_empty(), "no duplicates");
    assert!(fabric.is_planarized());
    assert!(fabric.is_end_port(host[0]) && !fabric.is_end_port(host[1]));
    assert_eq!(fabric.end_port_of(host[1]), Some(host[0]));
    assert!(fabric.is_further_plane(host[1]) && !fabric.is_further_plane(host[0]));
    assert!(!fabric.is_left_out(host[1]));
    assert_eq!(fabric.end_ports().count(), 2 + 2, "adapters and switches");
    assert_eq!(fabric.lid_ports().count(), 4 + 2);
    assert!(own.iter().all(|&port| fabric.is_own_port(port)));

    // The plane of the owner is cut: the other stands for both, and keeps that.
    fabric.unlink(host[0]);
    assert!(settle(&mut fabric).is_empty());
    assert!(fabric.is_end_port(host[1]) && !fabric.has_lids(host[0]));
    fabric.unlink(host[1]);
    settle(&mut fabric);
    assert!(fabric.is_planarized(), "the SM's port is");
    assert_eq!(fabric.end_ports().count(), 1 + 2);

    // Another node with the GUID is a duplicate with all its ports.
    let (mut fabric, _, host) = two_planes();
    host.iter().for_each(|&port| fabric.set_port_guid(port, Guid(11)));
    assert_eq!(settle(&mut fabric).len(), 2);
    assert!(host.iter().all(|&port| fabric.is_left_out(port)));
}

#[test]
fn directed_routes_leave_by_the_port_in_the_plane_of_their_node() {
    let (mut fabric, own, host) = two_planes();
    assert!(fabric.trace_routes(|_, _| true).is_empty());
    assert_eq!(route(&fabric, 100).as_deref(), Some("0,1"));
    assert_eq!(route(&fabric, 101).as_deref(), Some("0,2"));
    assert_eq!(fabric.route_to(host[1]).unwrap().to_string(), "0,2,2");
    assert_eq!(fabric.route_to(own[1]).unwrap().to_string(), "0");
    // Adapters lead nowhere.
    fabric.unlink(own[1]);
    let unreached = fabric.trace_routes(|_, _| true);
    assert_eq!(unreached, [fabric.find(Guid(101)).unwrap()]);
}
