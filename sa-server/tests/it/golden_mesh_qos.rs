//! A fabric with partitions and a QoS policy: what its ports are programmed with, and what rules
//! and levels do to paths.
//!
//! The rows are those that the recorded `partitions.conf` and `qos-policy.conf` come to, written
//! out; that the SM makes them of the files is tested where it does.

use std::path::Path;
use std::sync::Arc;

use crate::golden_support::compare::{BEYOND_TABLE, replay};
use crate::golden_support::{Golden, guid};
use ib_mad::types::{Guid, Lifetime, Mtu, PKey, Rate, Sl};
use sa_proto::snapshot::{
    FabricPlane, IdMatch, Partition, PortGroup, QosLevel, QosRule, RuleOrigin,
};

/// That port has no link.
const DIFFERENT: &[(&str, &str)] = &[
    ("porttables/P_KeyTableRecord/sw-last/port-1,block-0/trusted/*", BEYOND_TABLE),
    ("porttables/P_KeyTableRecord/sw-last/port-1,block-1/trusted/*", BEYOND_TABLE),
];

#[test]
fn answers_equal_those_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/mesh-qos.json.gz");
    let golden = Golden::read(&path);
    let tables = golden.pkeys();
    let ports = Ports::of(&golden);
    replay(
        &golden,
        DIFFERENT,
        |lid, port| tables.get(&(lid, port)).cloned().unwrap_or_default(),
        |plane| policy(plane, &ports),
    );
}

/// Ports that the policy names.
struct Ports {
    sm: Guid,
    h1: Guid,
    h2: Guid,
    h3: Guid,
    far: Guid,
}

impl Ports {
    fn of(golden: &Golden) -> Self {
        let role = |name: &str| guid(&golden.facts.roles[name].guid);
        Self { sm: role("sm"), h1: role("h1"), h2: role("h2"), h3: role("h3"), far: role("far") }
    }
}

fn policy(plane: &mut FabricPlane, ports: &Ports) {
    plane.subnet.qos = true;
    plane.partitions =
        [("Compute", 1, 1), ("Storage", 2, 0), ("Admin", 3, 2), ("Default", 0x7FFF, 0)]
            .into_iter()
            .map(|(name, pkey, sl)| {
                let name = name.to_owned();
                Arc::new(Partition { pkey: PKey(pkey), name, sl: Sl::from_low_bits(sl) })
            })
            .collect();

    let Ports { sm, h1, h2, h3, far } = *ports;
    let groups = [
        ("ByGuid", 0, vec![h1, h2]),
        // Its name has blanks and no quotes: OpenSM finds no such port.
        // Its name has blanks and no quotes: OpenSM finds no such port.
        ("ByName", 0, vec![]),
        ("ByPartition", 0, vec![sm, h1, h2]),
        ("ByPkey", 0, vec![h1, h2, sm, h3, far]),
        ("Switches", PortGroup::NODE_SWITCH, vec![]),
        ("Manager", 0, vec![sm]),
    ];
    plane.port_groups = (0..)
        .zip(groups)
        .map(|(index, (name, node_types, mut ports))| {
            ports.sort_unstable();
            Arc::new(PortGroup { index, name: name.to_owned(), node_types, ports })
        })
        .collect();

    let level = |index, name: &str, sl| QosLevel {
        index,
        name: name.to_owned(),
        sl: Some(Sl::from_low_bits(sl)),
        mtu_limit: None,
        rate_limit: None,
        packet_life: None,
        pkeys: Vec::new(),
    };
    let life = |code| Some(Lifetime::from_low_bits(code));
    plane.qos_levels = [
        level(DEFAULT, "DEFAULT", 0),
        QosLevel { mtu_limit: Some(Mtu::B512), ..level(SMALL_MTU, "SmallMtu", 1) },
        QosLevel { rate_limit: Some(Rate::Gbps2_5), ..level(SLOW_RATE, "SlowRate", 2) },
        QosLevel { pkeys: vec![(1, 1)], ..level(COMPUTE, "Compute", 3) },
        QosLevel { packet_life: life(12), ..level(LONG_LIFE, "LongLife", 1) },
        QosLevel {
            mtu_limit: Some(Mtu::B1024),
            rate_limit: Some(Rate::Gbps10),
            pkeys: vec![(0x7FFF, 0x7FFF)],
            packet_life: life(16),
            ..level(WHOLE, "Whole", 4)
        },
    ]
    .into_iter()
    .map(Arc::new)
    .collect();

    let rule = |name: &str, level| QosRule {
        index: 0,
        name: name.to_owned(),
        origin: RuleOrigin::MatchRule,
        level,
        sources: None,
        destinations: None,
        pkeys: None,
        qos_classes: None,
        service_ids: None,
    };
    let group = |name: &str| {
        let found = plane.port_groups.iter().find(|group| group.name == name);
        Some(vec![found.expect("one of the groups").index])
    };
    let class = |first, last| Some(vec![(first, last)]);
    let rules = [
        QosRule {
            qos_classes: class(5, 5),
            service_ids: Some(vec![IdMatch::Range(0x1000_0000_0000_0001, 0x1000_0000_0000_0FFF)]),
            ..rule("class and service", LONG_LIFE)
        },
        QosRule { qos_classes: Some(vec![(7, 9), (100, 100)]), ..rule("class", WHOLE) },
        QosRule {
            service_ids: Some(vec![
                IdMatch::Range(0x1000_CAFE, 0x1000_CAFE),
                IdMatch::Range(0x10000, 0x1FFFF),
            ]),
            ..rule("service", SMALL_MTU)
        },
        QosRule {
            destinations: group("Switches"),
            qos_classes: class(1, 3),
            ..rule("destination and class", SLOW_RATE)
        },
        QosRule {
            sources: group("ByPartition"),
            destinations: group("Manager"),
            ..rule("source and destination", COMPUTE)
        },
        QosRule { pkeys: Some(vec![(2, 2)]), ..rule("pkey", LONG_LIFE) },
        QosRule { sources: group("ByName"), ..rule("source", SLOW_RATE) },
        QosRule {
            destinations: group("ByPkey"),
            qos_classes: class(2, 2),
            ..rule("group by pkey", SMALL_MTU)
        },
        QosRule { destinations: group("ByName"), ..rule("destination", SMALL_MTU) },
        QosRule { origin: RuleOrigin::Default, ..rule("DEFAULT", DEFAULT) },
    ];
    plane.qos_rules =
        (0..).zip(rules).map(|(index, rule)| Arc::new(QosRule { index, ..rule })).collect();
}

const DEFAULT: u32 = 0;
const SMALL_MTU: u32 = 1;
const SLOW_RATE: u32 = 2;
const COMPUTE: u32 = 3;
const LONG_LIFE: u32 = 4;
const WHOLE: u32 = 5;
