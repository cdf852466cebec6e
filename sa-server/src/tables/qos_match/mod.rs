//! Finds the QoS rule that applies to a request for a path.
//!
//! A rule accepts a request if all its criteria do, and the first rule that accepts applies. Rules
//! are compiled into bit sets with one bit per rule. Every value of a criterion (the port groups of
//! an end, the P_Key, the QoS class, the Service ID) has the set of rules that accept it; a rule
//! without the criterion is in all of these sets. The result is the lowest bit of the AND of five
//! sets. A summary word shows which 64-bit words of a set are not zero, so that with a thousand
//! rules only words that are not zero in all five sets are read.
//!
//! `query::path` applies the level to the path. The SM reads the rules from its policy file.

mod compile;
mod count;
mod fabrics;
mod groups;
mod in_force;
mod level;
mod service_id;
mod sets;

use std::sync::Arc;

use ib_mad::types::PKey;
use sa_proto::snapshot::{IdMatch, QosRule, RuleOrigin};

pub use count::{LevelCounts, LevelNames, LevelSlot};
pub use groups::GroupSet;
pub(crate) use groups::{GroupSets, node_type_bit};
pub use level::Level;
use service_id::{Found, ServiceIds};
use sets::{Set, SetId, Sets};

/// Maximum number of compiled rules. The SM refuses policies that have more; if a snapshot has
/// more, the last are ignored; [`QosMatcher::left_out`] is their number.
pub const RULES_MAX: usize = 1 << 14;

/// Number of P_Keys without their membership bit.
const PKEYS: usize = 1 << 15;
/// Number of QoS classes.
const QOS_CLASSES: usize = 1 << 12;

/// The fields of a request that rules ask about; `None` where its ComponentMask leaves one out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// ServiceID; only if both halves are there.
    pub service_id: Option<u64>,
    /// QoSClass, 12 bits.
    pub qos_class: Option<u16>,
    /// P_Key; rules compare it in 15 bits.
    pub pkey: Option<PKey>,
}

/// A request's fields looked up: to be used for any pair of ends.
#[derive(Clone, Copy, Debug)]
pub struct Criteria {
    qos_class: SetId,
    pkey: SetId,
    service: Found,
    /// Rules that accept all of these for any ends: the first word of their set, the summary
    /// if there are several.
    common: u64,
}

/// A rule that is in force, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleNumber(pub u32);

/// A rule with its level.
#[derive(Clone, Debug)]
struct Rule {
    row: Arc<QosRule>,
    /// Position in `levels`; none if the snapshot has no such level: the rule then accepts nothing.
    level: Option<u32>,
}

/// All rules that are in force, compiled.
#[derive(Clone, Debug, Default)]
pub struct QosMatcher {
    rules: Vec<Rule>,
    levels: Vec<Level>,
    /// The level if no rule applies.
    any: Level,
    sets: Sets,
    /// Set by QoS class; empty if no rule asks.
    by_qos_class: Box<[SetId]>,
    without_qos_class: SetId,
    /// Set by P_Key without its membership bit; empty if no rule asks.
    by_pkey: Box<[SetId]>,
    without_pkey: SetId,
    service_ids: ServiceIds,
    /// Sets by the groups of the source, and of the destination.
    by_source: Box<[SetId]>,
    by_destination: Box<[SetId]>,
    left_out: usize,
    /// The virtual fabric of each rule; empty if no rule belongs to a virtual fabric.
    fabrics: Vec<Option<fabrics::OfFabric>>,
    /// Whether some level restricts P_Keys.
    refuses: bool,
}

impl QosMatcher {
    /// Whether no rule is in force: then no request falls under any.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether some level refuses paths to requests without constraints: those between ends that
    /// do not share its P_Keys. Other levels only lower the reported parameters of paths.
    #[inline]
    pub(crate) fn refuses(&self) -> bool {
        self.refuses
    }

    /// Number of rules in force.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Rules of the snapshot beyond [`RULES_MAX`].
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Size of all bit sets and of their indices, bytes.
    pub fn bytes(&self) -> usize {
        let ids = self.by_qos_class.len()
            + self.by_pkey.len()
            + self.by_source.len()
            + self.by_destination.len();
        self.sets.bytes() + self.service_ids.bytes() + ids * size_of::<SetId>()
    }

    /// Looks up the criteria of a request.
    #[inline]
    pub fn criteria(&self, asked: &Asked) -> Criteria {
        let set = |table: &[SetId], value: Option<usize>, without| match value {
            Some(value) => table.get(value).copied().unwrap_or(without),
            None => without,
        };
        let pkey = asked.pkey.map(|pkey| usize::from(pkey.base()));
        let qos_class =
            set(&self.by_qos_class, asked.qos_class.map(usize::from), self.without_qos_class);
        let pkey = set(&self.by_pkey, pkey, self.without_pkey);
        let service = self.service_ids.find(asked.service_id);
        let (first, sets) = (|set: Set<'_>| set.first(), &self.sets);
        let common = first(sets.get(qos_class)) & first(sets.get(pkey)) & service.word(sets, first);
        Criteria { qos_class, pkey, service, common }
    }

    /// The first rule that accepts the request between ends in these groups.
    #[inline]
    pub fn find(
        &self,
        criteria: &Criteria,
        source: GroupSet,
        destination: GroupSet,
    ) -> Option<RuleNumber> {
        let source = self.sets.get(*self.by_source.get(source.index())?);
        let destination = self.sets.get(*self.by_destination.get(destination.index())?);
        let service = &criteria.service;
        let mut live = criteria.common & source.first() & destination.first();
        if self.sets.is_one_word() {
            return self.first(0, live, service);
        }
        let sets =
            [self.sets.get(criteria.qos_class), self.sets.get(criteria.pkey), source, destination];
        let mut part = 0;
        loop {
            while live != 0 {
                let word = part * 64 + live.trailing_zeros() as usize;
                live &= live - 1;
                let rules = sets.iter().fold(!0, |rules, set| rules & set.word(word))
                    & service.word(&self.sets, |set| set.word(word));
                if let Some(number) = self.first(word, rules, service) {
                    return Some(number);
                }
            }
            part += 1;
            if part >= self.sets.summaries() {
                return None;
            }
            live = sets.iter().fold(!0, |live, set| live & set.summary(part))
                & service.word(&self.sets, |set| set.summary(part));
        }
    }

    /// The first of these rules, which are in one word, that accepts the request.
    #[inline]
    fn first(&self, word: usize, mut rules: u64, service: &Found) -> Option<RuleNumber> {
        while rules != 0 {
            let number = word * 64 + rules.trailing_zeros() as usize;
            rules &= rules - 1;
            if self.service_ids.confirms(service, number, &self.rules) {
                return Some(RuleNumber(number as u32));
            }
        }
        None
    }

    /// Fetches what looking up a ServiceID begins with.
    #[inline]
    pub(crate) fn prefetch(&self, service_id: u64) {
        self.service_ids.prefetch(service_id);
    }

    /// The level that a rule grants, or one that grants everything if there is no rule: chosen
    /// by position, not by a branch that every other request would take the other way.
    #[inline]
    pub(crate) fn granted(&self, number: Option<RuleNumber>) -> &Level {
        let level = number.and_then(|number| self.rules.get(number.0 as usize)?.level);
        let at = level.map_or(usize::MAX, |level| level as usize);
        self.levels.get(at).unwrap_or(&self.any)
    }

    /// The level that a rule grants.
    #[inline]
    pub fn level(&self, number: RuleNumber) -> Option<&Level> {
        let level = self.rules.get(number.0 as usize)?.level?;
        self.levels.get(level as usize)
    }

    /// Has paths be counted by the names of their levels.
    pub fn count_by(&mut self, names: &LevelNames) {
        for level in &mut self.levels {
            level.slot = names.slot(&level.row().name);
        }
    }

    /// The rules in force, by precedence.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &Arc<QosRule>> {
        self.rules.iter().map(|rule| &rule.row)
    }

    /// The first criterion of a rule that does not hold; `None` if it accepts the request. For
    /// explaining, not for deciding: tests have it agree with [`find`](Self::find).
    ///
    /// `source` and `destination` return whether an end is in the group with this number.
    pub fn failing(
        &self,
        number: RuleNumber,
        asked: &Asked,
        source: impl Fn(u32) -> bool,
        destination: impl Fn(u32) -> bool,
    ) -> Option<Criterion> {
        let rule = self.rules.get(number.0 as usize)?;
        let row = &*rule.row;
        let within = |ranges: &[(u16, u16)], value: u16| {
            ranges.iter().any(|&(first, last)| (first..=last).contains(&value))
        };
        let level = rule.level.and_then(|level| self.levels.get(level as usize));
        if level.is_none() {
            return Some(Criterion::Level);
        }
        if row.sources.as_ref().is_some_and(|groups| !groups.iter().any(|&g| source(g))) {
            return Some(Criterion::Source);
        }
        let destinations = row.destinations.as_ref();
        if destinations.is_some_and(|groups| !groups.iter().any(|&g| destination(g))) {
            return Some(Criterion::Destination);
        }
        if let Some(ranges) = &row.qos_classes
            && !asked.qos_class.is_some_and(|class| within(ranges, class))
        {
            return Some(Criterion::QosClass);
        }
        let service_holds = match (&row.service_ids, asked.service_id) {
            (Some(ids), Some(id)) => ids.iter().any(|accepted| accepted.accepts(id)),
            (Some(ids), None) => ids.is_empty(),
            (None, _) => true,
        };
        if !service_holds {
            return Some(Criterion::ServiceId);
        }
        let pkey_holds = match (&row.pkeys, asked.pkey) {
            (Some(ranges), Some(pkey)) => within(ranges, pkey.base()),
            (Some(_), None) => false,
            (None, Some(pkey)) => {
                implied_pkeys(row, level).is_none_or(|keys| within(keys, pkey.base()))
            }
            (None, None) => true,
        };
        (!pkey_holds).then_some(Criterion::PKey)
    }
}

/// Criterion of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Criterion {
    /// The snapshot lacks the level that the rule grants.
    Level,
    /// The groups of the source.
    Source,
    /// The groups of the destination.
    Destination,
    /// QoSClass.
    QosClass,
    /// ServiceID.
    ServiceId,
    /// P_Key.
    PKey,
}

/// P_Keys that a request may name although the rule has no P_Key criterion. A request with a P_Key
/// refers to a virtual fabric that has it, so rules of other virtual fabrics must not apply.
fn implied_pkeys<'a>(row: &QosRule, level: Option<&'a Level>) -> Option<&'a [(u16, u16)]> {
    let pkeys = &level?.row().pkeys[..];
    (row.origin == RuleOrigin::VirtualFabric && !pkeys.is_empty()).then_some(pkeys)
}

/// Whether a rule's Service IDs accept one.
fn accepts(ids: Option<&Vec<IdMatch>>, id: u64) -> bool {
    ids.is_none_or(|ids| ids.iter().any(|accepted| accepted.accepts(id)))
}

#[cfg(test)]
mod tests;
