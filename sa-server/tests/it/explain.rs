//! Explanations of paths for operators, which match the answers to clients.

use std::sync::Arc;
use std::time::Instant;

use crate::common::{Chain, path_request, published};
use ib_mad::types::{Gid, Guid, Mtu, PKey, PortNum, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::{LinkSpeeds, NodeInfo, NodeType, PortInfo};
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{
    FabricPlane, IdMatch, Node, PortGroup, PrefixRoute, QosLevel, QosRule, RegistryPlane,
    RuleOrigin,
};
use sa_server::serve::responder::{Responder, ResponderConfig};
use sa_server::tables::Tables;
use sa_server::watch::explain::{
    Arrival, Criterion, ExplainError, Explanation, Name, NoPath, Request, explain,
};

/// Three switches in a row, `sw 0` to `sw 2`; hosts 1 and 2 on the first, to 5 and 6 on the last,
/// `host 1` to `host 6`. A switch's port 3 leads right, 4 left.
const THREE: Chain = Chain { switches: 3, hosts_each: 2 };

fn plane() -> FabricPlane {
    let mut plane = THREE.plane(|_| {});
    for node in &mut plane.nodes {
        let node = Arc::make_mut(node);
        let name = if node.switch_info.is_some() {
            format!("sw {}", (node.guid.0 & 0xFFFF) / 0x40)
        } else {
            let host = (1..=6).find(|&lid| Chain::host_guid(lid) == node.ports[0].guid).unwrap();
            format!("host {host}")
        };
        node.description[..name.len()].copy_from_slice(name.as_bytes());
    }
    plane
}

fn request(source: &str, destination: &str) -> Request {
    Request {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        service_id: None,
        qos_class: None,
        pkey: None,
    }
}

fn ask(plane: &FabricPlane, request: &Request) -> Result<Explanation, ExplainError> {
    let registry = RegistryPlane::default();
    explain(&Tables::build(plane, &registry), &registry, request)
}

/// The ports of one node, by its name.
fn change(plane: &mut FabricPlane, name: &str, num: u8, change: impl Fn(PortInfo<&mut [u8]>)) {
    for node in &mut plane.nodes {
        if node.description.starts_with(name.as_bytes()) {
            let ports = &mut Arc::make_mut(node).ports;
            let port = ports.iter_mut().find(|port| port.num == PortNum(num)).unwrap();
            change(PortInfo::new(&mut port.info[..]).unwrap());
        }
    }
}

#[test]
fn every_hop_and_the_narrowest_links_are_listed() {
    let mut plane = plane();
    change(&mut plane, "sw 1", 3, |mut info| {
        info.set_mtu_cap(Mtu::B2048);
    });
    change(&mut plane, "sw 2", 1, |mut info| {
        info.set_link_speed_active(LinkSpeeds::SDR);
    });
    let explanation = ask(&plane, &request("host 1", "host 5")).unwrap();
    let hops: Vec<_> =
        explanation.hops.iter().map(|hop| (&hop.node[..], hop.entry, hop.exit)).collect();
    assert_eq!(hops, [("host 1", 0, 1), ("sw 0", 1, 3), ("sw 1", 4, 3), ("sw 2", 4, 1)]);
    assert_eq!(explanation.arrival, Arrival::Delivered);
    let mtu = explanation.mtu_bound_by.unwrap();
    assert_eq!((mtu.hop, &mtu.from[..], &mtu.to[..]), (2, "sw 1/P3", "sw 2/P4"));
    let rate = explanation.rate_bound_by.unwrap();
    assert_eq!((rate.hop, &rate.from[..], &rate.to[..]), (3, "sw 2/P1", "host 5/P1"));
    // The bounds of the path are the values of the record.
    let record = explanation.record.unwrap();
    assert_eq!((record.mtu.to_string(), &record.rate), (mtu.value, &rate.value));
    assert_eq!((record.slid, record.dlid, explanation.status), (1, 5, 0));
}

/// Regression: links were reported as the limit although they allow more than the record has.
#[test]
fn port_0_of_a_switch_may_be_what_bounds_the_path() {
    let mut plane = plane();
    change(&mut plane, "sw 2", 0, |mut info| {
        info.set_mtu_cap(Mtu::B1024).set_link_speed_active(LinkSpeeds::SDR);
    });
    let explanation = ask(&plane, &request("host 1", "sw 2")).unwrap();
    let record = explanation.record.unwrap();
    assert_eq!(record.mtu, 1024);
    for (bound, value) in [
        (explanation.mtu_bound_by, record.mtu.to_string()),
        (explanation.rate_bound_by, record.rate),
    ] {
        let bound = bound.unwrap();
        assert_eq!((&bound.from[..], &bound.to[..]), ("sw 2/P0", ""));
        assert_eq!((bound.hop, bound.value), (explanation.hops.len() - 1, value));
    }
}

#[test]
fn ports_go_by_name_guid_lid_and_gid() {
    let plane = plane();
    let guid = Chain::host_guid(3);
    let gid = Gid::new(SUBNET_PREFIX_DEFAULT, guid);
    let names =
        ["host 3", "host 3/P1", "host 3/1", "3", "0x3", &guid.to_string(), &gid.to_string()];
    for name in names {
        let explanation = ask(&plane, &request("1", name)).unwrap();
        assert_eq!(
            (explanation.destination.lid, &explanation.destination.node[..]),
            (3, "host 3"),
            "{name}"
        );
    }
    // A host's node GUID stands for its only port; a switch's port 0 has its node GUID.
    let node_guid = Guid(guid.0 - 1).to_string();
    assert_eq!(ask(&plane, &request("1", &node_guid)).unwrap().destination.lid, 3);
    let explanation = ask(&plane, &request("sw 0", "sw 2")).unwrap();
    assert_eq!(
        (explanation.hops.len(), explanation.hops[2].exit, explanation.destination.node_type),
        (3, 0, "switch")
    );
    assert!(matches!(ask(&plane, &request("1", "host 9")), Err(ExplainError::Unknown { .. })));
    assert!(matches!(ask(&plane, &request("1", "100")), Err(ExplainError::Unknown { .. })));
    let group = request("1", "ff12:401b:ffff::1");
    assert!(matches!(ask(&plane, &group), Err(ExplainError::Multicast(_))));
}

/// Regression: `ibsmctl explain 'node00002 HCA-1' node00012`, an example of its help, was refused.
#[test]
fn a_name_matches_without_the_adapter_suffix_or_by_unique_prefix() {
    let mut plane = plane();
    for (lid, name) in [(3, "node3 HCA-1"), (4, "node30 HCA-1")] {
        let is_it = |node: &&mut Arc<Node>| node.ports[0].guid == Chain::host_guid(lid);
        let node = plane.nodes.iter_mut().find(is_it).unwrap();
        let node = Arc::make_mut(node);
        node.description = [0; 64];
        node.description[..name.len()].copy_from_slice(name.as_bytes());
    }
    let matching = [
        ("node3 HCA-1", 3),
        ("node3", 3),
        ("node3/P1", 3),
        ("node30", 4),
        ("node30/1", 4),
        ("node30 H", 4),
    ];
    for (name, lid) in matching {
        for (source, destination) in [("1", name), (name, "1")] {
            let explanation = ask(&plane, &request(source, destination)).unwrap();
            assert_eq!(explanation.source.lid + explanation.destination.lid, lid + 1, "{name}");
        }
    }
    let refused = ask(&plane, &request("1", "nod"));
    assert!(matches!(refused, Err(ExplainError::Ambiguous { count: 2, .. })), "{refused:?}");
    let Err(ExplainError::Unknown { nearest, .. }) = ask(&plane, &request("1", "nobe3")) else {
        panic!("a name that no port has");
    };
    assert_eq!(nearest.as_deref(), Some("node3 HCA-1"));
}

#[test]
fn a_name_that_several_ports_have_is_refused() {
    let mut plane = plane();
    for node in &mut plane.nodes {
        Arc::make_mut(node).description = [b'x'; 64];
    }
    let name = "x".repeat(64);
    let refused = ask(&plane, &request("1", &name));
    assert!(matches!(refused, Err(ExplainError::Ambiguous { count: 9, .. })));
}

/// Levels "fast" with SL 1 and "slow" with SL 2 and MTU 512; rules with all criteria.
fn with_policy(plane: &mut FabricPlane) {
    let level = |index, name: &str, mtu_limit| QosLevel {
        index,
        name: name.into(),
        sl: Some(Sl::from_low_bits(index as u16 + 1)),
        mtu_limit,
        rate_limit: None,
        packet_life: None,
        pkeys: Vec::new(),
    };
    let rule = |index, name: &str, level| QosRule {
        index,
        name: name.into(),
        origin: RuleOrigin::MatchRule,
        level,
        sources: None,
        destinations: None,
        pkeys: None,
        qos_classes: None,
        service_ids: None,
    };
    plane.subnet.qos = true;
    let switches = PortGroup {
        index: 0,
        name: "switches".into(),
        node_types: PortGroup::NODE_SWITCH,
        ports: Vec::new(),
    };
    plane.port_groups = vec![Arc::new(switches)];
    plane.qos_levels =
        [level(0, "fast", None), level(1, "slow", Some(Mtu::B512))].map(Arc::new).into();
    plane.qos_rules = [
        QosRule { sources: Some(vec![0]), ..rule(0, "from switches", 0) },
        QosRule { destinations: Some(vec![0]), ..rule(1, "to switches", 0) },
        QosRule { qos_classes: Some(vec![(9, 9)]), ..rule(2, "class", 0) },
        QosRule { service_ids: Some(vec![IdMatch::Range(1, 9)]), ..rule(3, "service", 0) },
        QosRule { pkeys: Some(vec![(1, 1)]), ..rule(4, "pkey", 0) },
        QosRule { qos_classes: Some(vec![(0, 5)]), ..rule(5, "classes", 1) },
        QosRule { origin: RuleOrigin::Default, ..rule(6, "DEFAULT", 0) },
    ]
    .map(Arc::new)
    .into();
}

#[test]
fn the_matching_rule_and_earlier_mismatches_are_explained() {
    let mut plane = plane();
    with_policy(&mut plane);
    let explanation =
        ask(&plane, &Request { qos_class: Some(4), ..request("host 1", "host 3") }).unwrap();
    let passed: Vec<_> = explanation
        .passed_over
        .iter()
        .map(|rule| (&rule.name[..], rule.failing.unwrap()))
        .collect();
    assert_eq!(
        passed,
        [
            ("from switches", Criterion::Source),
            ("to switches", Criterion::Destination),
            ("class", Criterion::QosClass),
            ("service", Criterion::ServiceId),
            ("pkey", Criterion::PKey),
        ]
    );
    let rule = explanation.rule.unwrap();
    assert_eq!((rule.index, &rule.name[..], rule.origin), (5, "classes", "match_rule"));
    assert_eq!(rule.level.unwrap().name, "slow");
    assert_eq!(explanation.record.unwrap().mtu, 512);
    let explanation = ask(&plane, &request("host 1", "sw 2")).unwrap();
    assert_eq!(
        (explanation.rule.unwrap().name, explanation.passed_over.len()),
        ("to switches".into(), 1)
    );
    let explanation = ask(&plane, &request("host 1", "host 2")).unwrap();
    assert_eq!(explanation.rule.unwrap().origin, "default");
}

/// The record is byte for byte the one that a client gets.
#[test]
fn the_explained_record_is_the_record_sent() {
    let mut plane = plane();
    with_policy(&mut plane);
    let publisher = published(&plane);
    let mut responder =
        Responder::new(publisher.reader(), ResponderConfig::default(), Arc::default());
    for (source, destination, class) in [(1, 3, 4), (2, 6, 7), (4, 4, 0)] {
        let mut packet = path_request(source, source, destination, 1);
        let mut mad = SaMad::new(&mut packet.mad);
        mad.sa_mut().set_component_mask(path::SGID | path::DGID | path::QOS_CLASS);
        PathRecord::new(&mut mad.data_mut()[..]).unwrap().set_qos_class(class);
        responder.handle(&mut packet, Instant::now());
        let sent: String = packet.mad[56..120].iter().map(|byte| format!("{byte:02x}")).collect();

        let guid = |lid| Name::Guid(Chain::host_guid(lid));
        let request = Request {
            source: guid(source),
            destination: guid(destination),
            qos_class: Some(class),
            ..request("1", "1")
        };
        assert_eq!(ask(&plane, &request).unwrap().record.unwrap().bytes, sent);
    }
}

#[test]
fn the_reason_for_a_missing_path_is_explained() {
    let mut plane = plane();
    let explanation =
        ask(&plane, &Request { pkey: Some(PKey(0x8001)), ..request("1", "3") }).unwrap();
    assert_eq!((explanation.no_path, explanation.record), (Some(NoPath::PKeyNotShared), None));
    assert_eq!((explanation.status, explanation.arrival), (0x0300, Arrival::Delivered));

    // The second switch forgets host 5.
    let switch = plane.lfts[1].switch;
    Arc::make_mut(&mut plane.lfts[1]).ports[5] = 255;
    let explanation = ask(&plane, &request("host 1", "host 5")).unwrap();
    assert_eq!((explanation.no_path, explanation.no_way_back), (Some(NoPath::Unreachable), None));
    assert_eq!((explanation.arrival, explanation.hops.len()), (Arrival::NoRoute, 2));
    // It and the third send what is for host 5 to each other.
    Arc::make_mut(&mut plane.lfts[1]).ports[5] = 3;
    Arc::make_mut(&mut plane.lfts[2]).ports[5] = 4;
    assert_eq!(plane.lfts[1].switch, switch);
    assert_eq!(ask(&plane, &request("host 1", "host 5")).unwrap().arrival, Arrival::Loop);
    // It delivers to host 3 what is for host 5.
    Arc::make_mut(&mut plane.lfts[1]).ports[5] = 1;
    assert_eq!(ask(&plane, &request("host 1", "host 5")).unwrap().arrival, Arrival::Misdelivered);
}

#[test]
fn the_way_to_another_subnet_is_that_to_its_router() {
    let mut plane = plane();
    let far = "2001:db8::7";
    assert!(matches!(ask(&plane, &request("1", far)), Err(ExplainError::NoRouter(_))));
    let node = plane.nodes.iter_mut().find(|node| node.description.starts_with(b"host 6"));
    let node = Arc::make_mut(node.unwrap());
    NodeInfo::new(&mut node.info[..]).unwrap().set_node_type(NodeType::Router);
    plane.subnet.prefix_routes = vec![PrefixRoute { prefix: None, router: None }];
    let explanation = ask(&plane, &request("1", far)).unwrap();
    assert_eq!(
        (&explanation.destination.node[..], explanation.off_subnet.is_some()),
        ("host 6", true)
    );
    let record = explanation.record.unwrap();
    assert_eq!((record.dlid, record.hop_limit), (6, 255));
    assert_eq!(record.dgid, explanation.off_subnet.unwrap());
}

#[test]
fn the_adapter_that_limits_the_mtu_is_named() {
    let mut plane = plane();
    change(&mut plane, "sw 1", 3, |mut info| {
        info.set_mtu_cap(Mtu::B2048);
    });
    let node = plane.nodes.iter_mut().find(|node| node.description.starts_with(b"host 6"));
    let info = &mut Arc::make_mut(node.unwrap()).info[..];
    NodeInfo::new(info).unwrap().set_vendor_id(0x0002C9).set_device_id(23108);
    for (quirks, mtu, node) in [(true, 1024, Some("host 6")), (false, 2048, None)] {
        plane.subnet.quirks = quirks;
        let explanation = ask(&plane, &request("host 1", "host 6")).unwrap();
        assert_eq!(explanation.mtu_lowered_for.as_deref(), node);
        assert_eq!(
            (explanation.record.unwrap().mtu, &explanation.mtu_bound_by.unwrap().value[..]),
            (mtu, "2048")
        );
    }
    plane.subnet.quirks = true;
    assert_eq!(ask(&plane, &request("host 1", "host 2")).unwrap().mtu_lowered_for, None);
}

#[test]
fn an_explanation_can_be_written_as_json() {
    let explanation = ask(&plane(), &request("host 1", "host 1")).unwrap();
    assert_eq!(explanation.hops.len(), 1, "a loopback leaves the port and comes back");
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["arrival"], "delivered");
    assert_eq!(json["record"]["sl"], 0);
}
