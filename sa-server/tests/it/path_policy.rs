//! Effects of policy on paths for which the recorded fabrics have no cases: SLs that are dropped on
//! the way, virtual fabrics, other subnets, levels of every kind.

use std::sync::Arc;
use std::time::Instant;

use crate::common::{Chain, path_request, published, request};
use ib_mad::transport::Packet;
use ib_mad::types::{
    Gid, Guid, Lid, Lifetime, Mtu, PKey, PortNum, Rate, SUBNET_PREFIX_DEFAULT, Sl,
};
use ib_mad::wire::attribute::{NodeInfo, NodeType};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::{PathRecord, Selector};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::snapshot::{
    FabricPlane, IdMatch, Partition, PortGroup, PortTables, PrefixRoute, QosLevel, QosRule,
    RegistryPlane, RuleOrigin, Version,
};
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};
use sa_server::tables::qos_match::LevelNames;

/// Two switches, hosts 1 and 2 on the first, 3 and 4 on the second.
const TWO: Chain = Chain { switches: 2, hosts_each: 2 };

type Answer = PathRecord<[u8; 64]>;

/// The answer to one request.
fn ask(plane: &FabricPlane, mut packet: Packet) -> Result<Answer, Status> {
    let publisher = published(plane);
    let mut responder =
        Responder::new(publisher.reader(), ResponderConfig::default(), Arc::default());
    assert_eq!(responder.handle(&mut packet, Instant::now()), Outcome::Send);
    let mad = SaMad::new(&packet.mad);
    match mad.header().status() {
        Status::OK => Ok(PathRecord::new(*mad.data().first_chunk().unwrap()).unwrap()),
        status => Err(status),
    }
}

/// Asks for the path between two hosts with further components.
fn path(
    plane: &FabricPlane,
    (source, destination): (u16, u16),
    mask: ComponentMask,
    fill: impl Fn(&mut PathRecord<&mut [u8]>),
) -> Result<Answer, Status> {
    let mut packet = path_request(source, source, destination, 1);
    let all = SaMad::new(&packet.mad).sa().component_mask() | mask;
    SaMad::new(&mut packet.mad).sa_mut().set_component_mask(all);
    fill(&mut PathRecord::new(&mut packet.mad[56..]).unwrap());
    ask(plane, packet)
}

fn plain(plane: &FabricPlane, ends: (u16, u16)) -> Result<Answer, Status> {
    path(plane, ends, ComponentMask::NONE, |_| {})
}

fn is_none(answer: &Result<Answer, Status>) -> bool {
    matches!(answer, Err(status) if *status == Status::SA_NO_RECORDS)
}

fn level(index: u32) -> QosLevel {
    QosLevel {
        index,
        name: format!("level {index}"),
        sl: None,
        mtu_limit: None,
        rate_limit: None,
        packet_life: None,
        pkeys: Vec::new(),
    }
}

fn rule(index: u32, level: u32) -> QosRule {
    QosRule {
        index,
        name: format!("rule {index}"),
        origin: RuleOrigin::MatchRule,
        level,
        sources: None,
        destinations: None,
        pkeys: None,
        qos_classes: None,
        service_ids: None,
    }
}

fn policy(plane: &mut FabricPlane, levels: Vec<QosLevel>, rules: Vec<QosRule>) {
    plane.subnet.qos = true;
    plane.qos_levels = levels.into_iter().map(Arc::new).collect();
    plane.qos_rules = rules.into_iter().map(Arc::new).collect();
}

fn sl(value: u16) -> Sl {
    Sl::from_low_bits(value)
}

#[test]
fn a_qos_level_bounds_the_path_attributes() {
    let mut plane = TWO.plane(|_| {});
    let whole = QosLevel {
        sl: Some(sl(3)),
        mtu_limit: Some(Mtu::B1024),
        rate_limit: Some(Rate::Gbps10),
        packet_life: Some(Lifetime::from_low_bits(12)),
        ..level(0)
    };
    policy(&mut plane, vec![whole], vec![rule(0, 0)]);
    let answer = plain(&plane, (1, 3)).unwrap();
    let returned = (answer.sl(), answer.mtu(), answer.rate(), answer.packet_life_time().code());
    assert_eq!(returned, (sl(3), Mtu::B1024.code(), Rate::Gbps10.code(), 12));
    // Wishes are compared with what the level leaves.
    let at_least = |mtu: Mtu| {
        path(&plane, (1, 3), path::MTU_SELECTOR | path::MTU, |record| {
            record.set_mtu_selector(Selector::Greater).set_mtu(mtu);
        })
    };
    assert!(at_least(Mtu::B512).is_ok());
    assert!(is_none(&at_least(Mtu::B1024)), "a level that cannot be met is no path");
    plane.subnet.qos = false;
    assert_eq!(plain(&plane, (1, 3)).unwrap().sl(), sl(0), "without QoS nothing of it applies");
}

#[test]
fn an_sl_asked_for_must_be_the_levels() {
    let mut plane = TWO.plane(|_| {});
    let with_sl = QosLevel { sl: Some(sl(3)), ..level(0) };
    let of_class_1 = QosRule { qos_classes: Some(vec![(1, 1)]), ..rule(0, 0) };
    policy(&mut plane, vec![with_sl], vec![of_class_1]);
    let ask = |class: u16, value: u16| {
        path(&plane, (1, 3), path::SL | path::QOS_CLASS, |record| {
            record.set_sl(sl(value)).set_qos_class(class);
        })
    };
    assert_eq!(ask(1, 3).unwrap().sl(), sl(3));
    assert!(is_none(&ask(1, 4)));
    assert_eq!(ask(2, 4).unwrap().sl(), sl(4), "no rule, no level");
}

#[test]
fn a_partitions_sl_counts_where_neither_request_nor_level_has_one() {
    let mut plane = TWO.plane(|port| port.pkeys = [PKey(0x8005)].into());
    plane.partitions = vec![Arc::new(Partition { pkey: PKey(5), name: "five".into(), sl: sl(6) })];
    policy(&mut plane, vec![level(0)], vec![rule(0, 0)]);
    assert_eq!(plain(&plane, (1, 3)).unwrap().sl(), sl(6));
    let asked = path(&plane, (1, 3), path::SL, |record| {
        record.set_sl(sl(2));
    });
    assert_eq!(asked.unwrap().sl(), sl(2));
    plane.subnet.qos = false;
    assert_eq!(plain(&plane, (1, 3)).unwrap().sl(), sl(0));
}

#[test]
fn half_a_service_id_is_insufficient() {
    let plane = TWO.plane(|_| {});
    for half in [path::SERVICE_ID_8_MSB, path::SERVICE_ID_56_LSB] {
        let answer = path(&plane, (1, 3), half, |_| {});
        assert!(matches!(answer, Err(Status::SA_INSUFFICIENT_COMPONENTS)));
    }
}

/// Tables of the second switch: packets from the first lose SL 1 on their way to the hosts.
fn with_drops(plane: &mut FabricPlane) {
    plane.subnet.qos = true;
    let switches = plane.nodes.iter().filter(|node| node.switch_info.is_some());
    let second = switches.map(|node| node.guid).max().unwrap();
    let passes = [0; 8];
    let drops = [0x0F, 0, 0, 0, 0, 0, 0, 0];
    // Port 4 leads to the first switch, ports 1 and 2 to hosts 3 and 4.
    plane.port_tables = vec![Arc::new(PortTables {
        node: second,
        sl_to_vl_maps: vec![passes, drops],
        sl_to_vl: vec![((1, 2), 0), ((2, 1), 0), ((4, 1), 1), ((4, 2), 1)],
        ..PortTables::default()
    })];
}

#[test]
fn an_sl_that_a_hop_drops_makes_no_path() {
    let mut plane = TWO.plane(|_| {});
    with_drops(&mut plane);
    let ask = |ends, value: u16| {
        path(&plane, ends, path::SL, |record| {
            record.set_sl(sl(value));
        })
    };
    assert_eq!(ask((1, 3), 0).unwrap().sl(), sl(0));
    assert!(is_none(&ask((1, 3), 1)));
    assert!(ask((4, 3), 1).is_ok(), "within the second switch nothing is dropped");
    let answer = ask((3, 1), 1).unwrap();
    assert!(!answer.reversible(), "the way back drops it");
    let mut without_qos = plane.clone();
    without_qos.subnet.qos = false;
    assert!(
        path(&without_qos, (1, 3), path::SL, |record| {
            record.set_sl(sl(1));
        })
        .is_ok()
    );
}

#[test]
fn a_level_whose_sl_is_dropped_makes_no_path_and_not_the_next_rule() {
    let mut plane = TWO.plane(|_| {});
    with_drops(&mut plane);
    let levels = vec![QosLevel { sl: Some(sl(1)), ..level(0) }, level(1)];
    policy(&mut plane, levels, vec![rule(0, 0), rule(1, 1)]);
    assert!(is_none(&plain(&plane, (1, 3))));
    assert!(plain(&plane, (4, 3)).is_ok());
}

#[test]
fn if_every_port_drops_the_same_sls_no_path_has_them() {
    let mut plane = TWO.plane(|_| {});
    plane.subnet.qos = true;
    let row = |node: Guid, is_switch: bool| PortTables {
        node,
        sl_to_vl_maps: vec![[0x00, 0x0F, 0, 0, 0, 0, 0, 0]],
        sl_to_vl: if is_switch { vec![((1, 2), 0)] } else { vec![((0, 0), 0)] },
        ..PortTables::default()
    };
    plane.port_tables = plane
        .nodes
        .iter()
        .map(|node| Arc::new(row(node.guid, node.switch_info.is_some())))
        .collect();
    let ask = |value: u16| {
        path(&plane, (1, 3), path::SL, |record| {
            record.set_sl(sl(value));
        })
    };
    assert!(ask(2).is_ok());
    assert!(is_none(&ask(3)));
}

#[test]
fn a_level_with_pkeys_gives_the_first_that_the_ends_share() {
    let mut plane =
        TWO.plane(|port| port.pkeys = [PKey(0xFFFF), PKey(0x8003), PKey(0x8004)].into());
    policy(&mut plane, vec![QosLevel { pkeys: vec![(2, 4)], ..level(0) }], vec![rule(0, 0)]);
    assert_eq!(plain(&plane, (1, 3)).unwrap().pkey(), PKey(3));
    let ask = |pkey| {
        path(&plane, (1, 3), path::PKEY, |record| {
            record.set_pkey(PKey(pkey));
        })
    };
    assert_eq!(ask(0x8004).unwrap().pkey(), PKey(0x8004));
    assert!(is_none(&ask(0xFFFF)), "shared, and not the level's");
    assert!(is_none(&ask(0x8002)), "the level's, and not shared");
}

/// Two virtual fabrics, one of an application and one of everything else, both of all ports; QoS
/// off.
fn virtual_fabrics(plane: &mut FabricPlane) {
    let fabric = |index, service_ids| QosRule {
        origin: RuleOrigin::VirtualFabric,
        service_ids,
        sources: Some(vec![0]),
        destinations: Some(vec![0]),
        ..rule(index, index)
    };
    plane.port_groups = vec![Arc::new(PortGroup {
        index: 0,
        name: "All".into(),
        node_types: PortGroup::NODE_CA,
        ports: Vec::new(),
    })];
    let levels = [
        QosLevel { pkeys: vec![(1, 1)], sl: Some(sl(1)), ..level(0) },
        QosLevel { pkeys: vec![(2, 2)], sl: Some(sl(2)), ..level(1) },
        QosLevel { pkeys: vec![(3, 3)], sl: Some(sl(3)), ..level(2) },
    ];
    let storage = Some(vec![IdMatch::Masked { value: 0x100, mask: 0xFF00 }]);
    policy(
        plane,
        levels.into(),
        vec![fabric(0, storage.clone()), fabric(1, storage), fabric(2, None)],
    );
    plane.subnet.qos = false;
}

#[test]
fn virtual_fabrics_decide_by_service_id_and_pkey_whether_qos_is_on_or_not() {
    let mut plane =
        TWO.plane(|port| port.pkeys = [PKey(0x8001), PKey(0x8002), PKey(0x8003)].into());
    virtual_fabrics(&mut plane);
    let ask = |service_id: Option<u64>, pkey: Option<u16>| {
        let mut mask = ComponentMask::NONE;
        if service_id.is_some() {
            mask |= path::SERVICE_ID;
        }
        if pkey.is_some() {
            mask |= path::PKEY;
        }
        let answer = path(&plane, (1, 3), mask, |record| {
            record.set_service_id(service_id.unwrap_or(0)).set_pkey(PKey(pkey.unwrap_or(0)));
        });
        answer.ok().map(|record| (record.pkey().base(), record.sl().get()))
    };
    assert_eq!(ask(Some(0x1AB), None), Some((1, 1)), "the first that has the application");
    assert_eq!(ask(Some(0x1AB), Some(0x8002)), Some((2, 2)), "the one that has the P_Key, too");
    assert_eq!(ask(Some(0x1AB), Some(0x8003)), Some((3, 3)));
    assert_eq!(ask(Some(0x2AB), None), Some((3, 3)), "of no application: all others");
    assert_eq!(ask(None, None), Some((3, 3)), "no application named: all others");
    assert_eq!(ask(None, Some(0x8003)), Some((3, 3)));
    // No virtual fabric of that P_Key takes requests without its application: no rule, no limits.
    assert_eq!(ask(None, Some(0x8001)), Some((1, 0)));
}

/// Host 4 is a router.
fn with_router(plane: &mut FabricPlane) -> Guid {
    let guid = Chain::host_guid(4);
    for node in &mut plane.nodes {
        if node.ports.iter().any(|port| port.guid == guid && port.num == PortNum(1)) {
            let node = Arc::make_mut(node);
            NodeInfo::new(&mut node.info[..]).unwrap().set_node_type(NodeType::Router);
        }
    }
    guid
}

const FAR_PREFIX: u64 = 0x2001_0DB8_0000_0001;

fn to_far(plane: &FabricPlane) -> Result<Answer, Status> {
    path(plane, (1, 3), ComponentMask::NONE, |record| {
        record.set_dgid(Gid::new(FAR_PREFIX, Guid(7)));
    })
}

#[test]
fn another_subnet_is_reached_through_the_router_of_its_prefix_route() {
    let mut plane = TWO.plane(|_| {});
    let router = with_router(&mut plane);
    assert!(is_none(&to_far(&plane)), "no route");
    let routes = |prefix, router| vec![PrefixRoute { prefix, router }];
    for routes in [
        routes(Some(FAR_PREFIX), Some(router)),
        routes(Some(FAR_PREFIX), None),
        routes(None, None),
        routes(None, Some(router)),
    ] {
        plane.subnet.prefix_routes = routes;
        let answer = to_far(&plane).unwrap();
        assert_eq!((answer.dlid(), answer.hop_limit()), (Lid(4), 255));
        assert_eq!(answer.dgid(), Gid::new(FAR_PREFIX, Guid(7)), "as it was asked for");
    }
    let near = plain(&plane, (1, 3)).unwrap();
    assert_eq!((near.hop_limit(), near.dgid().prefix()), (0, SUBNET_PREFIX_DEFAULT));
}

#[test]
fn the_first_route_that_fits_and_has_its_router_counts() {
    let mut plane = TWO.plane(|_| {});
    let router = with_router(&mut plane);
    let route = |prefix, router| PrefixRoute { prefix, router };
    plane.subnet.prefix_routes =
        vec![route(Some(FAR_PREFIX), Some(Guid(0xBAD))), route(None, Some(router))];
    assert_eq!(to_far(&plane).unwrap().dlid(), Lid(4), "the next one");
    plane.subnet.prefix_routes.truncate(1);
    assert!(is_none(&to_far(&plane)));
    // A port that is no router's leads nowhere.
    plane.subnet.prefix_routes = vec![route(None, Some(Chain::host_guid(3)))];
    assert!(is_none(&to_far(&plane)));
}

#[test]
fn a_table_of_paths_to_another_subnet_names_it_in_each() {
    let mut plane = TWO.plane(|_| {});
    with_router(&mut plane);
    plane.subnet.prefix_routes = vec![PrefixRoute { prefix: None, router: None }];
    let far = Gid::new(FAR_PREFIX, Guid(7));
    let mut packet =
        request(1, Method::GET_TABLE, attribute::PATH_RECORD, 1, path::DGID | path::SLID);
    PathRecord::new(&mut packet.mad[56..]).unwrap().set_dgid(far).set_slid(Lid(2));
    let answer = ask(&plane, packet).unwrap();
    assert_eq!((answer.dgid(), answer.slid(), answer.hop_limit()), (far, Lid(2), 255));
}

#[test]
fn raw_packets_have_no_pkey_and_need_none() {
    let mut plane = TWO.plane(|_| {});
    let raw = |plane: &FabricPlane| {
        path(plane, (1, 3), path::RAW_TRAFFIC, |record| {
            record.set_raw_traffic(true);
        })
    };
    assert_eq!(raw(&plane).unwrap().pkey(), PKey(0));
    let row = Partition { pkey: PKey(0x7FFF), name: "Default".into(), sl: sl(5) };
    plane.partitions = vec![Arc::new(row)];
    plane.subnet.qos = true;
    let answer = raw(&plane).unwrap();
    assert_eq!((answer.pkey(), answer.sl()), (PKey(0), sl(5)), "the SL is that of what they share");
}

/// The counts of a level stay its own when a policy is read again in another order.
#[test]
fn paths_are_counted_by_the_name_of_their_level() {
    let names = LevelNames::default();
    let stats = Arc::new(Stats::default());
    let named = |index: u32, name: &str| QosLevel { name: name.to_owned(), ..level(index) };
    let of_class = |index: u32, class: u16| QosRule {
        qos_classes: Some(vec![(class, class)]),
        ..rule(index, index)
    };
    let ask_under = |order: [&str; 2]| {
        let mut plane = TWO.plane(|_| {});
        let levels = vec![named(0, order[0]), named(1, order[1])];
        policy(&mut plane, levels, vec![of_class(0, 1), of_class(1, 2)]);
        let mut tables = Tables::build(&plane, &RegistryPlane::default());
        tables.qos.count_by(&names);
        let mut publisher = Publisher::new();
        publisher.publish(Arc::new(Generation::new(
            Version::OFFLINE,
            tables.into(),
            Arc::default(),
        )));
        let config = ResponderConfig::default();
        let mut responder = Responder::new(publisher.reader(), config, Arc::clone(&stats));
        for class in [1, 1, 2, 3] {
            let mut packet = path_request(1, 1, 3, class);
            let mask = SaMad::new(&packet.mad).sa().component_mask() | path::QOS_CLASS;
            SaMad::new(&mut packet.mad).sa_mut().set_component_mask(mask);
            let mut record = PathRecord::new(&mut packet.mad[56..]).unwrap();
            record.set_qos_class(class as u16);
            assert_eq!(responder.handle(&mut packet, Instant::now()), Outcome::Send);
        }
    };
    ask_under(["gold", "silver"]);
    ask_under(["silver", "gold"]);
    let counts: Vec<_> =
        names.all().iter().map(|(name, slot)| (name.clone(), stats.levels.get(*slot))).collect();
    let want = [("none", 2), ("gold", 3), ("silver", 3), ("other", 0)];
    assert_eq!(counts, want.map(|(name, count)| (name.to_owned(), count)));
}
