//! QoS policies of a given size, for benchmarks: rules, levels and 20 groups of hosts.

use std::sync::Arc;

use ib_mad::transport::Packet;
use ib_mad::types::{Mtu, Sl};
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{FabricPlane, IdMatch, PortGroup, QosLevel, QosRule, RuleOrigin};

use crate::requests::Host;

const GROUPS: u32 = 20;

/// The criteria of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A range of Service IDs, ports of RDMA CM, and a QoS class; a third of the rules also the
    /// source's group, a fifth the destination's.
    Services,
    /// Groups and QoS class 0, such that each request meets some criteria of the rules: every word
    /// of some bit set has rules, and few or none match.
    Scattered,
}

impl Policy {
    /// Makes a request match one of `rules` rules, or, in half of the cases, none.
    pub fn ask(self, nth: u32, rules: u32, packet: &mut Packet) {
        let rule = nth.wrapping_mul(0x9E37_79B1) % (2 * rules.max(1));
        let class = if self == Self::Services { qos_class(rule) } else { 0 };
        let mut mad = SaMad::new(&mut packet.mad);
        PathRecord::of_mut(mad.data_mut()).set_service_id(service_id(rule)).set_qos_class(class);
    }

    /// Installs a policy of `rules` rules and a level DEFAULT.
    pub fn write(self, plane: &mut FabricPlane, hosts: &[Host], rules: u32) {
        write_policy(plane, hosts, self, rules);
    }
}

/// Service IDs of RDMA CM's TCP port space.
fn service_id(rule: u32) -> u64 {
    0x0000_0000_0106_0400 + u64::from(rule) * 0x20
}

fn qos_class(rule: u32) -> u16 {
    (rule % 64) as u16
}

fn write_policy(plane: &mut FabricPlane, hosts: &[Host], policy: Policy, rules: u32) {
    plane.subnet.qos = true;
    let members = |group: usize| {
        let of_group = hosts.iter().skip(group).step_by(GROUPS as usize);
        let mut ports: Vec<_> = of_group.map(|host| host.gid.guid()).collect();
        ports.sort_unstable();
        ports
    };
    plane.port_groups = (0..GROUPS)
        .map(|index| PortGroup {
            index,
            name: format!("group {index}"),
            node_types: 0,
            ports: members(index as usize),
        })
        .map(Arc::new)
        .collect();
    plane.qos_levels = (0..2)
        .map(|index| QosLevel {
            index,
            name: format!("level {index}"),
            sl: Some(Sl::from_low_bits(index as u16)),
            mtu_limit: (index == 1).then_some(Mtu::B2048),
            rate_limit: None,
            packet_life: None,
            pkeys: Vec::new(),
        })
        .map(Arc::new)
        .collect();
    let rule = |index: u32, origin| QosRule {
        index,
        name: format!("rule {index}"),
        origin,
        level: 0,
        sources: None,
        destinations: None,
        pkeys: None,
        qos_classes: None,
        service_ids: None,
    };
    let every = |index: u32, nth: u32| index.is_multiple_of(nth).then(|| vec![index % GROUPS]);
    let asks = |index: u32| match policy {
        Policy::Services => QosRule {
            sources: every(index, 3).filter(|_| rules > 1),
            destinations: every(index, 5).filter(|_| rules > 1),
            qos_classes: Some(vec![(qos_class(index), qos_class(index))]),
            service_ids: Some(vec![IdMatch::Range(service_id(index), service_id(index) + 0xF)]),
            ..rule(index, RuleOrigin::MatchRule)
        },
        // A source is in half of the groups in rules, and a destination never in the next one.
        Policy::Scattered => {
            let half = (0..GROUPS).filter(|group| group % 2 == index % 2).collect();
            let (source, other) = (index % GROUPS, GROUPS);
            QosRule {
                sources: Some(if index.is_multiple_of(2) { half } else { vec![source] }),
                destinations: Some(vec![if index.is_multiple_of(2) { other } else { source }]),
                qos_classes: Some(vec![(0, 0)]),
                ..rule(index, RuleOrigin::MatchRule)
            }
        }
    };
    let mut all: Vec<QosRule> =
        (0..rules).map(|index| QosRule { level: 1, ..asks(index) }).collect();
    if rules > 0 {
        all.push(rule(rules, RuleOrigin::Default));
    }
    plane.qos_rules = all.into_iter().map(Arc::new).collect();
}
