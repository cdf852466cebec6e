//! Which requests a survey has the answers to: those from the port itself that fall under no QoS
//! rule of their own.
//!
//! The surveyed requests have neither ServiceID nor QoS class. A rule that asks for a QoS class
//! accepts neither a request without one nor one with a class that it does not name, so that all
//! classes that no rule names are alike. ServiceIDs are, too, unless a rule accepts only requests
//! without: then requests with any ServiceID are exceptions.

use ib_mad::types::Guid;
use sa_proto::proto::node as proto;
use sa_proto::snapshot::{IdMatch, QosRule};

use super::survey::{source_of, sources};
use crate::tables::Tables;

/// Maximum number of exceptions of a kind. If there are more, all values are exceptions.
pub(super) const EXCEPTIONS_MAX: usize = 1 << 12;

/// The terms of the paths of a port; without GUIDs if these tables do not have it.
pub(super) fn terms(tables: &Tables, port: Guid) -> proto::Terms {
    let rules = || tables.qos.rows().map(|row| &**row);
    let source = source_of(tables, port);
    let switch = source.and_then(|source| tables.switch_of(source));
    let sources = source.map(|source| sources(tables, source)).unwrap_or_default();
    proto::Terms {
        subnet_prefix: tables.subnet.prefix,
        sources: sources.iter().map(|guid| guid.0).collect(),
        service_ids: service_ids(rules()),
        qos_classes: qos_classes(rules()),
        lid: source.map_or(0, |source| source.lid.0.into()),
        switch_guid: switch.map_or(0, |guid| guid.0),
    }
}

fn service_ids<'a>(rules: impl Iterator<Item = &'a QosRule>) -> Vec<proto::IdMatch> {
    const ALL: proto::IdMatch = proto::IdMatch { first: 0, last: u64::MAX, mask: 0 };
    let (mut ranges, mut masked) = (Vec::new(), Vec::new());
    for ids in rules.filter_map(|rule| rule.service_ids.as_deref()) {
        if ids.is_empty() {
            return vec![ALL];
        }
        for id in ids {
            match *id {
                IdMatch::Range(first, last) => ranges.push((first, last)),
                IdMatch::Masked { mask: 0, .. } => return vec![ALL],
                IdMatch::Masked { value, mask } => masked.push((value & mask, mask)),
            }
        }
    }
    masked.sort_unstable();
    masked.dedup();
    let ranges = united(ranges);
    if ranges.len() + masked.len() > EXCEPTIONS_MAX {
        return vec![ALL];
    }
    let ranges = ranges.into_iter().map(|(first, last)| proto::IdMatch { first, last, mask: 0 });
    let masked = masked.into_iter().map(|(first, mask)| proto::IdMatch { first, last: 0, mask });
    ranges.chain(masked).collect()
}

fn qos_classes<'a>(rules: impl Iterator<Item = &'a QosRule>) -> Vec<proto::Range> {
    let classes = rules.filter_map(|rule| rule.qos_classes.as_deref()).flatten();
    let ranges = united(classes.map(|&(first, last)| (first.into(), last.into())).collect());
    let range = |(first, last)| proto::Range { first: first as u32, last: last as u32 };
    ranges.into_iter().map(range).collect()
}

/// The same numbers in as few ranges as possible, ascending.
fn united(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.retain(|(first, last)| first <= last);
    ranges.sort_unstable();
    let mut united: Vec<(u64, u64)> = Vec::new();
    for (first, last) in ranges {
        match united.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => united.push((first, last)),
        }
    }
    united
}

#[cfg(test)]
mod tests {
    use super::*;
    use sa_proto::snapshot::RuleOrigin;

    fn rule(service_ids: Option<Vec<IdMatch>>, qos_classes: Option<Vec<(u16, u16)>>) -> QosRule {
        QosRule {
            index: 0,
            name: String::new(),
            origin: RuleOrigin::MatchRule,
            level: 0,
            sources: None,
            destinations: None,
            pkeys: None,
            qos_classes,
            service_ids,
        }
    }

    fn id(first: u64, last: u64, mask: u64) -> proto::IdMatch {
        proto::IdMatch { first, last, mask }
    }

    #[test]
    fn what_rules_name_is_an_exception() {
        let rules = [
            rule(Some(vec![IdMatch::Range(10, 19), IdMatch::Range(5, 5)]), None),
            rule(Some(vec![IdMatch::Range(20, 30)]), Some(vec![(3, 4), (7, 7)])),
            rule(Some(vec![IdMatch::Masked { value: 0x123, mask: 0xff00 }]), Some(vec![(4, 5)])),
            rule(None, None),
        ];
        let found = service_ids(rules.iter());
        assert_eq!(found, [id(5, 5, 0), id(10, 30, 0), id(0x100, 0, 0xff00)]);
        let found: Vec<_> = qos_classes(rules.iter()).iter().map(|r| (r.first, r.last)).collect();
        assert_eq!(found, [(3, 5), (7, 7)]);
    }

    #[test]
    fn a_rule_for_requests_without_a_service_makes_every_service_an_exception() {
        let rules = [rule(Some(vec![IdMatch::Range(10, 19)]), None), rule(Some(Vec::new()), None)];
        assert_eq!(service_ids(rules.iter()), [id(0, u64::MAX, 0)]);
    }

    #[test]
    fn too_many_exceptions_become_one_of_everything() {
        let ids = (0..=EXCEPTIONS_MAX as u64).map(|i| IdMatch::Range(i * 2, i * 2)).collect();
        assert_eq!(service_ids([rule(Some(ids), None)].iter()), [id(0, u64::MAX, 0)]);
    }
}
