//! Compares compiled rules with a sequential evaluation of the rules.

use ib_mad::types::{Guid, Lifetime, Mtu, Rate, Sl};
use ib_mad::wire::attribute::NodeType;
use proptest::prelude::*;
use sa_proto::snapshot::{FabricPlane, PortGroup, QosLevel, Subnet};

use super::*;

const PARTITIONS: [u16; 4] = [1, 2, 3, 0x7FFF];

fn level(index: u32, pkeys: Vec<(u16, u16)>) -> Arc<QosLevel> {
    Arc::new(QosLevel {
        index,
        name: format!("level {index}"),
        sl: Some(Sl::from_low_bits(index as u16)),
        mtu_limit: Some(Mtu::B1024),
        rate_limit: Some(Rate::Gbps10),
        packet_life: Some(Lifetime::from_low_bits(16)),
        pkeys,
    })
}

fn any_rule(index: u32) -> QosRule {
    QosRule {
        index,
        name: String::new(),
        origin: RuleOrigin::MatchRule,
        level: 0,
        sources: None,
        destinations: None,
        pkeys: None,
        qos_classes: None,
        service_ids: None,
    }
}

/// Groups: n holds port n, for n below 6; 6 all switches.
fn plane(rules: Vec<QosRule>) -> FabricPlane {
    let group = |index| PortGroup {
        index,
        name: String::new(),
        node_types: if index == 6 { PortGroup::NODE_SWITCH } else { 0 },
        ports: if index == 6 { Vec::new() } else { vec![Guid(index.into())] },
    };
    FabricPlane {
        subnet: Subnet { qos: true, ..Subnet::default() },
        port_groups: (0..7).map(|index| Arc::new(group(index))).collect(),
        qos_levels: vec![level(0, vec![]), level(1, vec![(1, 2)]), level(2, vec![(3, 3)])],
        qos_rules: rules.into_iter().map(Arc::new).collect(),
        ..FabricPlane::default()
    }
}

/// A port with this GUID, of a switch or not.
type Port = (u64, bool);

struct Compiled {
    matcher: QosMatcher,
    ports: Vec<(Port, GroupSet)>,
}

fn compile(plane: &FabricPlane) -> Compiled {
    let mut groups = GroupSets::of(plane);
    let ports = (0..8)
        .flat_map(|guid| [(guid, false), (guid, true)])
        .map(|port: Port| {
            let kind = if port.1 { NodeType::Switch } else { NodeType::Ca };
            (port, groups.intern(Guid(port.0), Some(kind)))
        })
        .collect();
    Compiled { matcher: QosMatcher::compile(plane, &groups, &PARTITIONS), ports }
}

impl Compiled {
    fn find(&self, asked: &Asked, source: Port, destination: Port) -> Option<u32> {
        let of = |port| self.ports.iter().find(|(other, _)| *other == port).unwrap().1;
        let criteria = self.matcher.criteria(asked);
        self.matcher.find(&criteria, of(source), of(destination)).map(|number| number.0)
    }
}

fn is_in((guid, is_switch): Port, group: u32) -> bool {
    match group {
        6 => is_switch,
        _ => group < 6 && guid == u64::from(group),
    }
}

/// The documented behaviour of rules, criterion by criterion.
fn accepts_all(rule: &QosRule, plane: &FabricPlane, asked: &Asked, from: Port, to: Port) -> bool {
    let Some(level) = plane.qos_levels.iter().find(|level| level.index == rule.level) else {
        return false;
    };
    let end = |groups: &Option<Vec<u32>>, port| match groups {
        Some(groups) => groups.iter().any(|&group| is_in(port, group)),
        None => true,
    };
    let number = |ranges: &Option<Vec<(u16, u16)>>, value: Option<u16>| match ranges {
        Some(ranges) => ranges.iter().any(|r| value.is_some_and(|v| r.0 <= v && v <= r.1)),
        None => true,
    };
    let service = match &rule.service_ids {
        Some(ids) => match asked.service_id {
            Some(asked) => ids.iter().any(|id| id.accepts(asked)),
            None => ids.is_empty(),
        },
        None => true,
    };
    let base = asked.pkey.map(|pkey| pkey.0 & 0x7FFF);
    let own = rule.origin != RuleOrigin::VirtualFabric
        || rule.pkeys.is_some()
        || base.is_none()
        || level.pkeys.is_empty()
        || number(&Some(level.pkeys.clone()), base);
    end(&rule.sources, from)
        && end(&rule.destinations, to)
        && number(&rule.qos_classes, asked.qos_class)
        && number(&rule.pkeys, base)
        && service
        && own
}

fn groups() -> impl Strategy<Value = Option<Vec<u32>>> {
    proptest::option::weighted(0.4, proptest::collection::vec(0..9u32, 0..4))
}

fn ranges(top: u16) -> impl Strategy<Value = Option<Vec<(u16, u16)>>> {
    let range = (0..=top, 0..4u16).prop_map(move |(first, len)| (first, (first + len).min(top)));
    proptest::option::weighted(0.3, proptest::collection::vec(range, 0..3))
}

/// Ranges, prefixes and masks with holes, many distinct ones, over few numbers.
fn service_ids() -> impl Strategy<Value = Option<Vec<IdMatch>>> {
    let spread = |small: u64| if small.is_multiple_of(2) { small } else { u64::MAX - small };
    let id = prop_oneof![
        (0..40u64, 0..5u64).prop_map(move |(first, len)| {
            let first = spread(first);
            IdMatch::Range(first, first.saturating_add(len))
        }),
        (0..40u64, 0..7u32).prop_map(move |(value, low)| IdMatch::Masked {
            value: spread(value),
            mask: u64::MAX << low,
        }),
        (0..40u64, 0..64u64)
            .prop_map(|(value, mask)| IdMatch::Masked { value, mask: mask | 1 << 63 | 1 }),
    ];
    proptest::option::weighted(0.4, proptest::collection::vec(id, 0..4))
}

prop_compose! {
    fn rule()(
        level in 0..4u32,
        is_fabric in any::<bool>(),
        sources in groups(),
        destinations in groups(),
        pkeys in ranges(0x7FFF % 8),
        qos_classes in ranges(4095 % 10),
        service_ids in service_ids(),
    ) -> QosRule {
        let origin = if is_fabric { RuleOrigin::VirtualFabric } else { RuleOrigin::MatchRule };
        QosRule {
            level,
            origin,
            sources,
            destinations,
            pkeys,
            qos_classes,
            service_ids,
            ..any_rule(0)
        }
    }
}

prop_compose! {
    fn asked()(
        service_id in proptest::option::of((0..60u64).prop_map(|small| {
            if small.is_multiple_of(2) { small } else { u64::MAX - small }
        })),
        qos_class in proptest::option::of(0..12u16),
        pkey in proptest::option::of((0..8u16, any::<bool>()).prop_map(|(base, full)| {
            PKey(base | u16::from(full) << 15)
        })),
    ) -> Asked {
        Asked { service_id, qos_class, pkey }
    }
}

fn port() -> impl Strategy<Value = Port> {
    (0..8u64, any::<bool>())
}

proptest! {
    /// The bit sets find the same rule as a sequential search, and the explanation of a skipped
    /// rule gives the reason why it does not match.
    #[test]
    fn the_first_rule_whose_criteria_all_hold_is_found(
        mut rules in proptest::collection::vec(rule(), 0..150),
        asked in proptest::collection::vec((asked(), port(), port()), 1..20),
    ) {
        for (index, rule) in (0..).zip(&mut rules) {
            rule.index = index;
        }
        let plane = plane(rules);
        let compiled = compile(&plane);
        for (asked, from, to) in asked {
            let accepted = |rule: &Arc<QosRule>| accepts_all(rule, &plane, &asked, from, to);
            let want = plane.qos_rules.iter().position(accepted).map(|at| at as u32);
            prop_assert_eq!(compiled.find(&asked, from, to), want);
            for (number, rule) in (0..).zip(&plane.qos_rules) {
                let failing = compiled.matcher.failing(
                    RuleNumber(number),
                    &asked,
                    |group| is_in(from, group),
                    |group| is_in(to, group),
                );
                prop_assert_eq!(failing.is_none(), accepted(rule), "{:?}", failing);
            }
        }
    }
}

#[test]
fn a_rule_far_behind_is_found_as_well_as_one_in_front() {
    let class = |index: u32| QosRule {
        qos_classes: Some(vec![(index as u16 % 4096, index as u16 % 4096)]),
        sources: (index >= 4096).then(|| vec![3]),
        ..any_rule(index)
    };
    let compiled = compile(&plane((0..6000).map(class).collect()));
    let asked = |class| Asked { qos_class: Some(class), ..Asked::default() };
    assert_eq!(compiled.find(&asked(4095), (1, false), (1, false)), Some(4095));
    assert_eq!(compiled.find(&asked(0), (1, false), (1, false)), Some(0));
    assert_eq!(compiled.find(&Asked::default(), (1, false), (1, false)), None);
}

#[test]
fn without_qos_only_virtual_fabrics_have_rules() {
    let mut plane = plane(vec![any_rule(0), any_rule(1)]);
    plane.subnet.qos = false;
    assert!(compile(&plane).matcher.is_empty());
    Arc::make_mut(&mut plane.qos_rules[1]).origin = RuleOrigin::VirtualFabric;
    let compiled = compile(&plane);
    assert_eq!(compiled.matcher.len(), 1);
    assert_eq!(compiled.find(&Asked::default(), (1, false), (2, false)), Some(0));
}

#[test]
fn rules_beyond_the_limit_are_left_out_and_counted() {
    let rules = (0..RULES_MAX as u32 + 3).map(any_rule).collect();
    let compiled = compile(&plane(rules));
    assert_eq!((compiled.matcher.len(), compiled.matcher.left_out()), (RULES_MAX, 3));
}

/// A thousand rules of one port, class and service each take some hundred bytes a distinct value.
#[test]
fn a_thousand_rules_take_less_than_a_megabyte() {
    let rule = |index: u32| QosRule {
        sources: Some(vec![index % 6]),
        qos_classes: Some(vec![(index as u16, index as u16 + 3)]),
        service_ids: Some(vec![IdMatch::Range(u64::from(index) << 16, u64::from(index) << 16 | 9)]),
        ..any_rule(index)
    };
    let matcher = compile(&plane((0..1000).map(rule).collect())).matcher;
    assert!(matcher.bytes() < 1 << 20, "{}", matcher.bytes());
}

#[test]
fn an_empty_list_holds_for_nothing_but_a_service_id_left_out() {
    let empty = QosRule { service_ids: Some(vec![]), ..any_rule(0) };
    let no_class = QosRule { qos_classes: Some(vec![]), ..any_rule(1) };
    let compiled = compile(&plane(vec![no_class, empty, any_rule(2)]));
    assert_eq!(compiled.find(&Asked::default(), (1, false), (2, false)), Some(1));
    let asked = Asked { service_id: Some(7), qos_class: Some(0), ..Asked::default() };
    assert_eq!(compiled.find(&asked, (1, false), (2, false)), Some(2));
}
