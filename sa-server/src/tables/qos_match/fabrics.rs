//! Virtual fabrics that a request falls under, if it leaves the P_Key open.
//!
//! The first rule that accepts a request decides on its path. Virtual fabrics overlap, though, and
//! a request for all paths without a P_Key asks for those of all virtual fabrics that have both
//! ends: with a Service ID those that name it, or if none does, those that take unmatched ones. The
//! QoS policy, whose rules come after, is not considered.

use std::collections::HashMap;
use std::sync::Arc;

use sa_proto::snapshot::{FabricPlane, RuleOrigin, VirtualFabric};

use super::{Asked, Criteria, GroupSet, Level, QosMatcher, Rule, RuleNumber};

/// Maximum number of virtual fabrics whose paths are distinguished; those of others are left out.
const FABRICS_MAX: usize = 1024;

/// A virtual fabric, and its number among those with another P_Key or SL.
#[derive(Clone, Debug)]
pub(super) struct OfFabric {
    row: Arc<VirtualFabric>,
    number: usize,
}

/// The virtual fabric of each rule; empty if no rule belongs to a virtual fabric.
pub(super) fn by_rule(
    plane: &FabricPlane,
    rules: &[Rule],
    levels: &[Level],
) -> Vec<Option<OfFabric>> {
    let mut numbers = HashMap::new();
    let of_rule = |rule: &Rule| {
        let level = levels.get(rule.level? as usize)?.row();
        // A virtual fabric's level has its number; another level of its rules has no path.
        let at = plane.virtual_fabrics.binary_search_by_key(&level.index, |row| row.index).ok()?;
        let row = &plane.virtual_fabrics[at];
        let base = row.pkey.base();
        let is_its = rule.row.origin == RuleOrigin::VirtualFabric && level.pkeys == [(base, base)];
        is_its.then(|| {
            let next = numbers.len();
            let number = *numbers.entry((base, level.sl)).or_insert(next);
            OfFabric { row: Arc::clone(row), number }
        })
    };
    let all: Vec<_> = rules.iter().map(of_rule).collect();
    if all.iter().any(Option::is_some) { all } else { Vec::new() }
}

/// The levels of the virtual fabrics after the first that a request falls under.
pub(crate) struct Further<'a> {
    matcher: &'a QosMatcher,
    criteria: &'a Criteria,
    /// The Service ID, if those before name it, so that others must name it too.
    named: Option<u64>,
    ends: (GroupSet, GroupSet),
    last: RuleNumber,
    /// Bit set of numbers already returned.
    seen: [u64; FABRICS_MAX / 64],
}

impl QosMatcher {
    /// Whether rules of virtual fabrics are in force.
    #[inline]
    pub(crate) fn has_fabrics(&self) -> bool {
        !self.fabrics.is_empty()
    }

    /// Virtual fabrics that accept a request besides the first, by precedence; of those with one
    /// P_Key and SL only the first.
    pub(crate) fn further<'a>(
        &'a self,
        asked: &Asked,
        criteria: &'a Criteria,
        source: GroupSet,
        destination: GroupSet,
    ) -> Option<Further<'a>> {
        let first = self.find(criteria, source, destination)?;
        let fabric = self.fabric(first)?;
        let names = |id: &u64| fabric.row.service_ids.iter().any(|ids| ids.accepts(*id));
        let mut further = Further {
            matcher: self,
            criteria,
            named: asked.service_id.filter(names),
            ends: (source, destination),
            last: first,
            seen: [0; FABRICS_MAX / 64],
        };
        further.is_new(fabric.number);
        Some(further)
    }

    fn fabric(&self, number: RuleNumber) -> Option<&OfFabric> {
        self.fabrics.get(number.0 as usize)?.as_ref()
    }

    /// The first rule from `from` on that accepts the request.
    fn find_from(
        &self,
        from: usize,
        criteria: &Criteria,
        (source, destination): (GroupSet, GroupSet),
    ) -> Option<RuleNumber> {
        let ends =
            [self.by_source.get(source.index())?, self.by_destination.get(destination.index())?];
        let ids = [criteria.qos_class, criteria.pkey, *ends[0], *ends[1]];
        let (sets, service) = (ids.map(|id| self.sets.get(id)), &criteria.service);
        let first_word = from / 64;
        (first_word..self.rules.len().div_ceil(64)).find_map(|word| {
            let rules = sets.iter().fold(!0, |rules, set| rules & set.word(word))
                & service.word(&self.sets, |set| set.word(word));
            let before = if word == first_word { (1u64 << (from % 64)) - 1 } else { 0 };
            self.first(word, rules & !before, service)
        })
    }
}

impl Further<'_> {
    /// The rule of the level that was returned last.
    pub(crate) fn rule(&self) -> RuleNumber {
        self.last
    }

    /// Marks a number as returned. Returns whether it was not yet.
    fn is_new(&mut self, number: usize) -> bool {
        let Some(word) = self.seen.get_mut(number / 64) else { return false };
        let bit = 1 << (number % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl<'a> Iterator for Further<'a> {
    type Item = &'a Level;

    fn next(&mut self) -> Option<&'a Level> {
        let matcher = self.matcher;
        loop {
            let from = self.last.0 as usize + 1;
            self.last = matcher.find_from(from, self.criteria, self.ends)?;
            let Some(fabric) = matcher.fabric(self.last) else { continue };
            let names = |id: u64| fabric.row.service_ids.iter().any(|ids| ids.accepts(id));
            if self.named.is_none_or(names) && self.is_new(fabric.number) {
                return matcher.level(self.last);
            }
        }
    }
}
