//! New nodes of a subnet that is up: a host answers as a switch with any number of made-up switches
//! behind it, and a large part of the subnet is plugged in.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::common::{Bed, MadeUp, fat_tree};
use fabric_sim::NodeIndex;
use fabric_sim::generate::{Common, Grid, RandomGraph, Shape, generate};
use ib_mad::netlist::{LinkRate, Node, NodeKind, PortRef};
use ib_mad::transport::Packet;
use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo, PortState, SwitchInfo};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::{DATA, Smp, answer};
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::MKeyTable;
use sm_core::sweep::Phase;

/// Ports of each made-up switch. Port 1 leads towards the subnet, the others to further ones.
const PORTS: u8 = 36;

/// The switch that the host is connected to.
struct Leaf {
    guid: Guid,
    ports: u8,
    /// Its port that leads to the host.
    port: u8,
}

impl Leaf {
    fn answer(&self, packet: &mut Packet) -> bool {
        answer(&mut packet.mad, Status::OK);
        let mut info = NodeInfo::new(&mut packet.mad[DATA]).unwrap();
        info.set_base_version(1).set_class_version(1).set_node_type(NodeType::Switch);
        info.set_num_ports(self.ports).set_local_port_num(PortNum(self.port));
        info.set_node_guid(self.guid).set_port_guid(self.guid);
        true
    }
}

/// Answers for the node at the end of `route`, which begins at the host; `false` if it leads back
/// into the subnet.
fn make_up(leaf: &Leaf, route: &[u8], packet: &mut Packet) -> bool {
    let (mut path, mut ingress) = (Vec::new(), 1);
    if route == [1] {
        return leaf.answer(packet);
    }
    for &egress in route {
        match egress {
            1 if path.is_empty() => return false,
            1 => ingress = path.pop().unwrap_or(1),
            _ => {
                path.push(egress);
                ingress = 1;
            }
        }
    }
    let request = Smp::new(&packet.mad).unwrap();
    let (method, attribute) = (request.method(), request.attribute_id());
    let port = request.attribute_modifier() as u8;
    answer(&mut packet.mad, Status::OK);
    if method == Method::SET {
        return true;
    }
    let data = &mut packet.mad[DATA];
    data.fill(0);
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    let guid = Guid(hasher.finish() | 1 << 63);
    match attribute {
        AttributeId::NODE_INFO => {
            let mut info = NodeInfo::new(data).unwrap();
            info.set_base_version(1).set_class_version(1).set_node_type(NodeType::Switch);
            info.set_num_ports(PORTS).set_local_port_num(PortNum(ingress)).set_partition_cap(8);
            info.set_node_guid(guid).set_port_guid(guid).set_system_image_guid(guid);
        }
        AttributeId::SWITCH_INFO => {
            SwitchInfo::new(data).unwrap().set_linear_fdb_cap(0xC000);
        }
        AttributeId::PORT_INFO => {
            let mut info = PortInfo::new(data).unwrap();
            let state = if port == 0 { PortState::Active } else { PortState::Initialize };
            info.set_port_state(state).set_local_port_num(PortNum(port));
        }
        _ => {}
    }
    true
}

/// A fat tree that is up, whose last host then starts to answer for nodes that do not exist.
fn attacked(delay: Duration) -> (Bed, NodeIndex) {
    attacked_by(delay, make_up)
}

/// The same, by these answers.
fn attacked_by(
    delay: Duration,
    make_up: fn(&Leaf, &[u8], &mut Packet) -> bool,
) -> (Bed, NodeIndex) {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    bed.bring_up();
    let attacker = attack(&mut bed, delay, make_up);
    (bed, attacker)
}

/// From now on, the last host answers for nodes that do not exist.
fn attack(
    bed: &mut Bed,
    delay: Duration,
    make_up: fn(&Leaf, &[u8], &mut Packet) -> bool,
) -> NodeIndex {
    let attacker = *bed.hosts().last().unwrap();
    let link = bed.fabric.port(attacker, 1).unwrap().link.unwrap();
    let leaf = bed.fabric.node(link.node);
    let leaf = Leaf { guid: leaf.guid, ports: leaf.num_ports, port: link.port };
    let answer = Box::new(move |route: &[u8], packet: &mut Packet| make_up(&leaf, route, packet));
    bed.made_up = Some(MadeUp { at: attacker, delay, answer });
    flap(bed, attacker);
    attacker
}

fn flap(bed: &mut Bed, host: NodeIndex) {
    let now = bed.clock.now();
    bed.fabric.link_down(now, host, 1).unwrap();
    bed.fabric.link_up(now, host, 1).unwrap();
}

/// Regression: The sweep read made-up nodes until 65,536 nodes were known, which minimum-hop
/// routing cannot route.
#[test]
fn a_link_brings_a_limited_number_of_nodes_and_the_rest_is_served() {
    let (mut bed, _) = attacked(Duration::ZERO);
    let real = bed.switches().len();
    let found = |bed: &Bed| bed.reports().last().is_some_and(|report| report.switches > real);
    bed.run_until(Duration::from_secs(60), "made-up switches", found);
    let report = bed.reports().last().unwrap().clone();
    assert_eq!((report.switches, report.up), (real + PER_SWEEP, true));
    assert_eq!((report.left_out > 0, report.duplicate_guids), (true, 0));
    // The next sweep reads others, up to the limit of each; none ends the service of real nodes.
    let report = bed.bring_up();
    assert!(report.switches > real + PER_SWEEP && report.switches < real + 2 * PER_SWEEP + 1);
    assert!(report.up);
}

/// Nodes of 37 ports that one link brings in a sweep: 65,536 ports of them.
const PER_SWEEP: usize = (1 << 16) / (PORTS as usize + 1);

/// As [`make_up`], but the made-up nodes do not answer Set().
fn make_up_deaf(leaf: &Leaf, route: &[u8], packet: &mut Packet) -> bool {
    let is_set = Smp::new(&packet.mad).unwrap().method() == Method::SET;
    let is_made_up = make_up(leaf, route, packet);
    if is_made_up && is_set {
        // No request has this TransactionID.
        packet.mad[8..16].fill(0xFF);
    }
    is_made_up
}

/// Regression: the sweep waited for each forwarding table block of each made-up switch, for 12
/// minutes, in which no link that failed was noticed.
#[test]
fn made_up_switches_that_ignore_what_is_set_delay_a_sweep_by_seconds() {
    let (mut bed, _) = attacked_by(Duration::ZERO, make_up_deaf);
    let found = |bed: &Bed| bed.sweeper().fabric().counts().1 > 1000;
    bed.run_until(Duration::from_secs(60), "made-up switches", found);
    let (victim, now) = (bed.hosts()[1], bed.clock.now());
    bed.fabric.link_down(now, victim, 1).unwrap();
    let guid = bed.fabric.node(victim).guid;
    bed.run_until(Duration::from_secs(30), "the host is gone", |bed| {
        let fabric = bed.sweeper().fabric();
        !fabric.node(fabric.find(guid).unwrap()).present
    });
}

/// As [`make_up`], but the made-up nodes answer NodeInfo only.
fn make_up_mute(leaf: &Leaf, route: &[u8], packet: &mut Packet) -> bool {
    let attribute = Smp::new(&packet.mad).unwrap().attribute_id();
    let is_made_up = make_up(leaf, route, packet);
    if is_made_up && attribute != AttributeId::NODE_INFO && route.len() > 1 {
        packet.mad[8..16].fill(0xFF);
    }
    is_made_up
}

/// Regression: thousands of switches that fell silent once they were found held a discovery for a
/// minute.
#[test]
fn made_up_switches_that_fall_silent_delay_a_sweep_by_seconds() {
    let (mut bed, _) = attacked_by(Duration::ZERO, make_up_mute);
    bed.run_for(Duration::from_secs(1));
    let (victim, now) = (bed.hosts()[1], bed.clock.now());
    bed.fabric.link_down(now, victim, 1).unwrap();
    let guid = bed.fabric.node(victim).guid;
    bed.run_until(Duration::from_secs(22), "the host is gone", |bed| {
        let fabric = bed.sweeper().fabric();
        !fabric.node(fabric.find(guid).unwrap()).present
    });
}

/// Regression: made-up nodes had LIDs from before when they came back, after a restart or once
/// their slots were removed, and none of the limits held for them: thousands that did not answer
/// held a sweep for minutes.
#[test]
fn made_up_switches_that_come_back_silent_delay_a_sweep_by_seconds() {
    let (mut bed, attacker) = attacked(Duration::ZERO);
    // They get LIDs, sweep after sweep.
    for _ in 0..3 {
        bed.bring_up();
    }
    let made_up = bed.sweeper().fabric().counts().1;
    assert!(made_up > 4000, "{made_up}");
    let (host, lids) = (bed.hosts()[0], bed.sweeper().lids().clone());
    bed.managers.clear();
    bed.manage(host, Settings::default(), lids);
    let link = bed.fabric.port(attacker, 1).unwrap().link.unwrap();
    let leaf = bed.fabric.node(link.node);
    let leaf = Leaf { guid: leaf.guid, ports: leaf.num_ports, port: link.port };
    let answer =
        Box::new(move |route: &[u8], packet: &mut Packet| make_up_mute(&leaf, route, packet));
    bed.made_up = Some(MadeUp { at: attacker, delay: Duration::ZERO, answer });
    bed.run_for(Duration::from_secs(1));
    let (victim, now) = (bed.hosts()[1], bed.clock.now());
    bed.fabric.link_down(now, victim, 1).unwrap();
    let guid = bed.fabric.node(victim).guid;
    bed.run_until(Duration::from_secs(40), "the host is gone", |bed| {
        let fabric = bed.sweeper().fabric();
        fabric.find(guid).is_none_or(|node| !fabric.node(node).present)
            && bed.reports().last().is_some_and(|report| report.up)
    });
}

/// Regression: A switch that answers as late as it may held the sweep for hours, and no link that
/// failed meanwhile was noticed.
#[test]
fn slow_made_up_nodes_delay_a_sweep_by_seconds() {
    let (mut bed, attacker) = attacked(Duration::from_millis(150));
    let before = bed.reports().len();
    bed.run_until(Duration::from_secs(60), "a sweep", |bed| bed.reports().len() > before);
    let victim = bed.hosts()[1];
    assert_ne!(victim, attacker);
    for up in [false, true] {
        let now = bed.clock.now();
        match up {
            false => bed.fabric.link_down(now, victim, 1).unwrap(),
            true => bed.fabric.link_up(now, victim, 1).unwrap(),
        };
        let guid = bed.fabric.node(victim).guid;
        let what = if up { "the host is back" } else { "the host is gone" };
        bed.run_until(Duration::from_secs(60), what, |bed| {
            let fabric = bed.sweeper().fabric();
            let node = fabric.find(guid).unwrap();
            let state = bed.fabric.port(victim, 1).unwrap().state;
            fabric.node(node).present == up && (!up || state == PortState::Active)
        });
    }
}

/// Regression: made-up switches that answered what was read at once, and what was set late, held a
/// sweep for minutes: only requests that were given up counted.
#[test]
fn made_up_switches_that_are_slow_to_take_settings_delay_a_sweep_by_seconds() {
    let (mut bed, _) = attacked_by(Duration::ZERO, make_up);
    let sets = |bed: &Bed| bed.sweeper().phase() == Phase::Addresses;
    bed.run_until(Duration::from_secs(60), "made-up switches", sets);
    assert!(bed.sweeper().fabric().counts().1 > 1000);
    bed.made_up.as_mut().unwrap().delay = Duration::from_millis(150);
    let before = bed.reports().len();
    bed.run_until(Duration::from_secs(20), "the end of the sweep", |bed| {
        bed.reports().len() > before
    });
}

/// A part of the subnet with more nodes than a link brings in a sweep is plugged in.
#[test]
fn a_large_part_of_the_subnet_is_served_after_a_few_sweeps() {
    let graph = RandomGraph { switches: 20, degree: 4, hosts: 2600, radix: None };
    let net = generate(&Shape::Random(graph), &Common::default()).unwrap();
    let mut bed = Bed::with_manager(&net, Settings::default());
    let leaf = bed.fabric.port(bed.hosts()[0], 1).unwrap().link.unwrap().node;
    let links: Vec<u8> = (1..=bed.fabric.node(leaf).num_ports)
        .filter(|&num| {
            let far = bed.fabric.port(leaf, num).and_then(|port| port.link);
            far.is_some_and(|far| bed.fabric.node(far.node).node_type == NodeType::Switch)
        })
        .collect();
    let now = bed.clock.now();
    for &num in &links {
        bed.fabric.link_down(now, leaf, num).unwrap();
    }
    assert!(bed.bring_up().hosts < 200);
    let now = bed.clock.now();
    bed.fabric.link_up(now, leaf, links[0]).unwrap();
    let all =
        |bed: &Bed| bed.sweeper().fabric().counts().0 == 2600 && bed.what_is_wrong().is_none();
    bed.run_until(Duration::from_secs(30), "all hosts", all);
}

/// As [`make_up`], but there is one made-up switch only, with one VL and room for one MLID.
fn make_up_one(leaf: &Leaf, route: &[u8], packet: &mut Packet) -> bool {
    let request = Smp::new(&packet.mad).unwrap();
    let (attribute, port) = (request.attribute_id(), request.attribute_modifier() as u8);
    let is_made_up = make_up(leaf, route, packet);
    if is_made_up && attribute == AttributeId::PORT_INFO {
        let mut info = PortInfo::new(&mut packet.mad[DATA]).unwrap();
        info.set_vl_cap(1);
        if port > 1 {
            info.set_port_state(PortState::Down);
        }
    } else if is_made_up && attribute == AttributeId::SWITCH_INFO {
        SwitchInfo::new(&mut packet.mad[DATA]).unwrap().set_multicast_fdb_cap(1);
    }
    is_made_up
}

/// A torus of four by four switches with a host each, routed by an engine that needs lanes.
fn torus() -> (Grid, Settings) {
    let mut settings = Settings::default();
    settings.set("routing_engine", "lash").unwrap();
    (Grid { dims: vec![4, 4], wraps: true, hosts_per_switch: 1, radix: None }, settings)
}

/// Regression: a host that answered as a switch with one VL and room for one MLID left no lanes to
/// the routing engine, and no MLIDs to other ports.
#[test]
fn a_made_up_switch_with_room_for_little_leaves_lanes_and_mlids_to_others() {
    let (grid, settings) = torus();
    let net = generate(&Shape::Grid(grid), &Common::default()).unwrap();
    let mut bed = Bed::with_manager(&net, settings);
    bed.bring_up();
    let before = (bed.registered().mlid_last, bed.sweeper().engine_sls());
    assert_eq!(bed.sweeper().routing_engine(), "lash");
    attack(&mut bed, Duration::ZERO, make_up_one);
    let found = |bed: &Bed| bed.reports().last().is_some_and(|report| report.switches == 17);
    bed.run_until(Duration::from_secs(60), "a made-up switch", found);
    assert_eq!(bed.sweeper().routing_engine(), "lash", "{:?}", bed.sweeper().rejected_engines());
    assert_eq!((bed.registered().mlid_last, bed.sweeper().engine_sls()), before);
}

/// A switch that has fewer VLs than the others, and appears behind a cable later, is served.
#[test]
fn a_new_switch_with_one_vl_is_routed() {
    let (grid, settings) = torus();
    let mut net = generate(&Shape::Grid(grid), &Common::default()).unwrap();
    let free = |net: &ib_mad::netlist::Net, node: u32| {
        let ports = 1..=net.nodes()[node as usize].port_count();
        let mut ends = ports.map(|port| PortRef { node, port });
        ends.find(|&end| net.links().all(|(a, b)| a != end && b != end))
    };
    let mut add = |kind, guid, ports| {
        let mut node = Node::new(kind, Guid(guid), ports, LinkRate::default());
        node.id = format!("new{guid:x}");
        net.add_node(node)
    };
    let (switch, host) = (add(NodeKind::Switch, 0xABC0, 4), add(NodeKind::Ca, 0xABD0, 1));
    let leaf = (0..switch).find_map(|node| free(&net, node)).unwrap();
    net.connect(leaf, PortRef { node: switch, port: 1 }).unwrap();
    net.connect(PortRef { node: switch, port: 2 }, PortRef { node: host, port: 1 }).unwrap();
    let mut bed = Bed::with_manager(&net, settings);
    let nodes: Vec<NodeIndex> = bed.fabric.nodes().collect();
    let new = *nodes.iter().find(|&&node| bed.fabric.node(node).guid == Guid(0xABC0)).unwrap();
    bed.lie = Some(Box::new(move |node, packet| {
        let smp = Smp::new(&packet.mad).unwrap();
        if node == new && smp.attribute_id() == AttributeId::PORT_INFO {
            PortInfo::new(&mut packet.mad[DATA]).unwrap().set_vl_cap(1);
        }
    }));
    let now = bed.clock.now();
    bed.fabric.link_down(now, new, 1).unwrap();
    bed.bring_up();
    let now = bed.clock.now();
    bed.fabric.link_up(now, new, 1).unwrap();
    bed.settle(Duration::from_secs(60), "a new switch");
    assert_eq!(bed.sweeper().fabric().counts(), (17, 17));
    assert_eq!(bed.sweeper().routing_engine(), "lash");
    bed.assert_all_reachable();
}

/// As [`make_up`], but there are made-up switches behind the first only, and adapters behind those.
fn make_up_adapters(leaf: &Leaf, route: &[u8], packet: &mut Packet) -> bool {
    let request = Smp::new(&packet.mad).unwrap();
    let (method, attribute) = (request.method(), request.attribute_id());
    let is_made_up = make_up(leaf, route, packet);
    let mut depth = 0_usize;
    for &egress in route {
        depth = if egress == 1 { depth.saturating_sub(1) } else { depth + 1 };
    }
    if is_made_up && route != [1] && depth >= 2 && method == Method::GET {
        if attribute == AttributeId::NODE_INFO {
            let mut info = NodeInfo::new(&mut packet.mad[DATA]).unwrap();
            info.set_node_type(NodeType::Ca).set_num_ports(1);
        } else if attribute == AttributeId::SWITCH_INFO {
            packet.mad[8..16].fill(0xFF);
        }
    }
    is_made_up
}

/// Regression: with an LMC, made-up adapters behind one link took all LIDs, and hosts that were
/// away lost theirs.
#[test]
fn made_up_adapters_leave_lids_to_others() {
    let settings = Settings { lmc: 7, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), settings);
    bed.bring_up();
    let (away, now) = (bed.hosts()[3], bed.clock.now());
    let guid = bed.fabric.port(away, 1).unwrap().guid;
    let before = bed.sweeper().lids().get(guid);
    bed.fabric.link_down(now, away, 1).unwrap();
    bed.run_for(Duration::from_secs(2));
    attack(&mut bed, Duration::ZERO, make_up_adapters);
    let found = |bed: &Bed| bed.reports().last().is_some_and(|report| report.left_out > 0);
    bed.run_until(Duration::from_secs(60), "adapters left out", found);
    bed.bring_up();
    let lids = bed.sweeper().lids();
    assert!(bed.sweeper().fabric().counts().0 > 100, "{:?}", bed.sweeper().fabric().counts());
    assert_eq!(lids.get(guid), before);
    assert!(lids.free_count() > 49151 / 3, "{}", lids.free_count());
}

/// Regression: the GUID of a host that was away could become an alias once its LIDs were lost.
#[test]
fn a_guid_is_known_without_lids_while_its_place_is_remembered() {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    bed.bring_up();
    let (away, now) = (bed.hosts()[3], bed.clock.now());
    let guid = bed.fabric.port(away, 1).unwrap().guid;
    bed.fabric.link_down(now, away, 1).unwrap();
    bed.run_for(Duration::from_secs(2));
    let neighbours = bed.managers[0].sweeper.neighbours().clone();
    let host = bed.hosts()[0];
    bed.managers.clear();
    bed.manage(host, Settings::default(), LidTable::default());
    bed.managers[0].sweeper.set_m_keys(MKeyTable::default(), neighbours);
    bed.bring_up();
    let sweeper = bed.sweeper();
    assert_eq!(sweeper.lids().get(guid), None);
    assert!(sweeper.known_guids().any(|known| known == guid));
}

/// Regression: nodes that were found earlier and then answered each request just in time held a
/// discovery for minutes.
#[test]
fn known_nodes_that_become_slow_delay_a_sweep_by_seconds_and_stay_known() {
    let (mut bed, _) = attacked(Duration::ZERO);
    let real = bed.switches().len();
    let found = |bed: &Bed| bed.sweeper().fabric().counts().1 > 1000;
    bed.run_until(Duration::from_secs(60), "made-up switches", found);
    bed.bring_up();
    let counts = bed.sweeper().fabric().counts();
    assert!(counts.1 > real + 1000);
    bed.made_up.as_mut().unwrap().delay = Duration::from_millis(150);
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    let begun = bed.reports().len();
    bed.run_for(Duration::from_millis(500));
    // A cable of another host that is pulled meanwhile is noticed soon.
    let (victim, now) = (bed.hosts()[1], bed.clock.now());
    bed.fabric.link_down(now, victim, 1).unwrap();
    bed.run_until(Duration::from_secs(20), "the end of the sweep", |bed| {
        bed.reports().len() > begun
    });
    let guid = bed.fabric.node(victim).guid;
    bed.run_until(Duration::from_secs(30), "the host is gone", |bed| {
        let fabric = bed.sweeper().fabric();
        !fabric.node(fabric.find(guid).unwrap()).present
    });
    let (hosts, switches) = bed.sweeper().fabric().counts();
    assert_eq!(hosts, counts.0 - 1, "no other host is affected");
    assert!(switches >= counts.1, "{switches}: they stay as they were known");
}

/// Regression: the same of nodes that were known before a restart, which are read with all others.
#[test]
fn nodes_that_are_slow_after_a_restart_delay_the_service_of_others_by_seconds() {
    let (mut bed, _) = attacked(Duration::ZERO);
    for _ in 0..3 {
        bed.bring_up();
    }
    assert!(bed.sweeper().fabric().counts().1 > 4000);
    let hosts = bed.sweeper().fabric().counts().0;
    let (host, lids) = (bed.hosts()[0], bed.sweeper().lids().clone());
    bed.managers.clear();
    bed.manage(host, Settings::default(), lids);
    bed.made_up.as_mut().unwrap().delay = Duration::from_millis(150);
    let up = |bed: &Bed| bed.reports().last().is_some_and(|report| report.up);
    bed.run_until(Duration::from_secs(40), "a sweep", up);
    assert_eq!(bed.sweeper().fabric().counts().0, hosts, "all real hosts are served");
}

/// All nodes of a fabric are slow, and each is read: only what appeared later has a limit.
#[test]
fn a_fabric_that_is_slow_as_a_whole_is_read() {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    bed.fabric.set_delay(None, Duration::from_millis(20)).unwrap();
    let report = bed.bring_up();
    assert_eq!((report.hosts, report.left_out), (8, 0));
}
