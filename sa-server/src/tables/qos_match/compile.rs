//! Compiles QoS rules into bit sets, off the query path.

use std::collections::HashMap;
use std::sync::Arc;

use sa_proto::snapshot::FabricPlane;

use super::fabrics;
use super::in_force::in_force;
use super::service_id::{ServiceIds, intervals};
use super::sets::{SetId, SetsBuilder, insert};
use super::{GroupSets, Level, PKEYS, QOS_CLASSES, QosMatcher, RULES_MAX, Rule, implied_pkeys};

impl QosMatcher {
    /// Compiles the rules in force. `groups` has met all ports; `partitions` are the P_Keys that
    /// ports have, without the membership bit.
    pub(crate) fn compile(plane: &FabricPlane, groups: &GroupSets, partitions: &[u16]) -> Self {
        let mut partitions = partitions.to_vec();
        partitions.sort_unstable();
        let levels: Vec<Level> =
            plane.qos_levels.iter().map(|row| Level::new(row, &partitions)).collect();
        let level_of = |index: u32| {
            let at = plane.qos_levels.binary_search_by_key(&index, |row| row.index);
            at.ok().map(|at| at as u32)
        };
        let rules: Vec<Rule> = in_force(plane)
            .take(RULES_MAX)
            .map(|row| Rule { row: Arc::clone(row), level: level_of(row.level) })
            .collect();
        let left_out = in_force(plane).count() - rules.len();
        if rules.is_empty() {
            return Self::default();
        }
        let mut sets = SetsBuilder::new(rules.len());
        let mut valid = sets.none();
        for (number, _) in rules.iter().enumerate().filter(|(_, rule)| rule.level.is_some()) {
            insert(&mut valid, number);
        }
        let (by_qos_class, without_qos_class) = by_number(
            &mut sets,
            &valid,
            QOS_CLASSES,
            rules.iter().map(|rule| match &rule.row.qos_classes {
                Some(ranges) => Asks::Must(ranges),
                None => Asks::Nothing,
            }),
        );
        let (by_pkey, without_pkey) = by_number(
            &mut sets,
            &valid,
            PKEYS,
            rules.iter().map(|rule| {
                let level = rule.level.and_then(|level| levels.get(level as usize));
                match (&rule.row.pkeys, implied_pkeys(&rule.row, level)) {
                    (Some(ranges), _) => Asks::Must(ranges),
                    (None, Some(ranges)) => Asks::IfThere(ranges),
                    (None, None) => Asks::Nothing,
                }
            }),
        );
        let ids: Vec<_> = rules.iter().map(|rule| rule.row.service_ids.as_deref()).collect();
        let service_ids = ServiceIds::compile(&ids, &valid, &mut sets);
        let by_source = by_groups(&mut sets, groups, rules.iter().map(|rule| &rule.row.sources));
        let by_destination =
            by_groups(&mut sets, groups, rules.iter().map(|rule| &rule.row.destinations));
        let fabrics = fabrics::by_rule(plane, &rules, &levels);
        Self {
            sets: sets.finish(),
            rules,
            fabrics,
            refuses: levels.iter().any(|level| level.has_pkeys),
            levels,
            any: Level::any(),
            by_qos_class,
            without_qos_class,
            by_pkey,
            without_pkey,
            service_ids,
            by_source,
            by_destination,
            left_out,
        }
    }
}

/// Condition of a rule on a number.
enum Asks<'a> {
    Nothing,
    /// The field is present and within one of these ranges.
    Must(&'a [(u16, u16)]),
    /// The field is absent, or within one of these ranges.
    IfThere(&'a [(u16, u16)]),
}

/// The set of every number below `len`, and that of requests without one. No table if no rule asks.
fn by_number<'a>(
    sets: &mut SetsBuilder,
    valid: &[u64],
    len: usize,
    rules: impl Iterator<Item = Asks<'a>>,
) -> (Box<[SetId]>, SetId) {
    let (mut any, mut without, mut ranges) = (sets.none(), sets.none(), Vec::new());
    for (number, asks) in rules.enumerate() {
        if valid[number / 64] >> (number % 64) & 1 == 0 {
            continue;
        }
        let asked = match asks {
            Asks::Nothing => {
                insert(&mut any, number);
                insert(&mut without, number);
                continue;
            }
            Asks::Must(asked) => asked,
            Asks::IfThere(asked) => {
                insert(&mut without, number);
                asked
            }
        };
        ranges.extend(asked.iter().map(|&(first, last)| (first.into(), last.into(), number)));
    }
    let without_set = sets.intern(&without);
    if any == valid {
        return (Box::default(), without_set);
    }
    let (starts, found) = intervals(&ranges, any, sets);
    let mut table = vec![SetId::default(); len];
    for (i, &set) in found.iter().enumerate() {
        let start = usize::try_from(starts[i]).unwrap_or(len).min(len);
        let end =
            starts.get(i + 1).map_or(len, |&end| usize::try_from(end).unwrap_or(len).min(len));
        table[start..end].fill(set);
    }
    (table.into(), without_set)
}

/// The set of rules that accept an end, by the groups that it is in.
fn by_groups<'a>(
    sets: &mut SetsBuilder,
    groups: &GroupSets,
    rules: impl Iterator<Item = &'a Option<Vec<u32>>>,
) -> Box<[SetId]> {
    let mut any = sets.none();
    let mut of_group: HashMap<u32, Vec<usize>> = HashMap::new();
    for (number, wanted) in rules.enumerate() {
        match wanted {
            None => insert(&mut any, number),
            Some(wanted) => {
                wanted.iter().for_each(|&group| of_group.entry(group).or_default().push(number));
            }
        }
    }
    let set = |members: &Vec<u32>| {
        let mut words = any.clone();
        for number in members.iter().filter_map(|group| of_group.get(group)).flatten() {
            insert(&mut words, *number);
        }
        sets.intern(&words)
    };
    groups.sets.iter().map(set).collect()
}
