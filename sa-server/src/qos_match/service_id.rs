//! Rules by Service ID: ranges, and numbers that are compared in some of their bits only.
//!
//! A mask whose bits begin at the top makes a range; all ranges together cut the numbers into
//! intervals. Numbers under any other mask are looked up a mask at a time; rules under a mask beyond
//! the first [`MASKS_MAX`] stand in every interval and are confirmed one by one.

use sa_proto::snapshot::IdMatch;

use super::sets::{Set, SetId, Sets, SetsBuilder, insert, remove};
use super::{Rule, accepts};

/// Masks that are looked up. Sites have none to three.
const MASKS_MAX: usize = 8;

/// Sets of rules by Service ID.
#[derive(Debug, Default)]
pub(super) struct ServiceIds {
    /// Rules that do not ask: for requests without a ServiceID.
    without: SetId,
    /// First number of each interval, ascending, from 0 on; empty if no rule asks.
    starts: Vec<u64>,
    /// Set of each interval.
    sets: Vec<SetId>,
    masks: Vec<Masked>,
    /// Rules to be confirmed, as words of bits; empty if there are none.
    unsure: Vec<u64>,
}

/// Numbers that are compared under one mask.
#[derive(Debug)]
struct Masked {
    mask: u64,
    /// Ascending.
    values: Vec<u64>,
    sets: Vec<SetId>,
}

/// What a request's ServiceID leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    interval: SetId,
    /// Further rules, `masked` of them.
    more: [SetId; MASKS_MAX],
    masked: usize,
    id: Option<u64>,
}

impl Found {
    /// A word of the rules that accept the ServiceID.
    #[inline]
    pub(super) fn word<'a>(&self, sets: &'a Sets, word: impl Fn(Set<'a>) -> u64) -> u64 {
        let more = &self.more[..self.masked];
        more.iter().fold(word(sets.get(self.interval)), |bits, &set| bits | word(sets.get(set)))
    }
}

impl ServiceIds {
    #[inline]
    pub(super) fn find(&self, id: Option<u64>) -> Found {
        let mut found =
            Found { interval: self.without, more: [SetId::default(); MASKS_MAX], masked: 0, id };
        let Some(id) = id else { return found };
        if self.starts.is_empty() {
            return found;
        }
        let after = self.starts.partition_point(|&start| start <= id);
        found.interval = self.sets[after.saturating_sub(1)];
        for masked in &self.masks {
            if let Ok(at) = masked.values.binary_search(&(id & masked.mask)) {
                found.more[found.masked] = masked.sets[at];
                found.masked += 1;
            }
        }
        found
    }

    /// Whether a rule that was found really accepts the ServiceID.
    #[inline]
    pub(super) fn confirms(&self, found: &Found, number: usize, rules: &[Rule]) -> bool {
        let Some(word) = self.unsure.get(number / 64) else { return true };
        if word >> (number % 64) & 1 == 0 {
            return true;
        }
        let ids = rules.get(number).and_then(|rule| rule.row.service_ids.as_ref());
        found.id.is_none_or(|id| accepts(ids, id))
    }

    pub(super) fn bytes(&self) -> usize {
        let masked: usize = self.masks.iter().map(|masked| masked.values.len()).sum();
        (self.starts.len() + masked) * (size_of::<u64>() + size_of::<SetId>())
    }

    /// `rules`: the Service IDs of each rule, `None` if it does not ask; `valid`: which count.
    pub(super) fn compile(
        rules: &[Option<&[IdMatch]>],
        valid: &[u64],
        sets: &mut SetsBuilder,
    ) -> Self {
        let asks = rules.iter().any(Option::is_some);
        let (mut without, mut always) = (sets.none(), sets.none());
        let mut ranges = Vec::new();
        let mut masked: Vec<(u64, u64, usize)> = Vec::new();
        for (number, ids) in rules.iter().enumerate() {
            if valid[number / 64] >> (number % 64) & 1 == 0 {
                continue;
            }
            let Some(ids) = ids else {
                insert(&mut without, number);
                insert(&mut always, number);
                continue;
            };
            if ids.is_empty() {
                insert(&mut without, number);
            }
            for id in *ids {
                match *id {
                    IdMatch::Range(first, last) => ranges.push((first, last, number)),
                    IdMatch::Masked { value, mask } if mask.leading_ones() == mask.count_ones() => {
                        ranges.push((value & mask, value | !mask, number));
                    }
                    IdMatch::Masked { value, mask } => masked.push((mask, value & mask, number)),
                }
            }
        }
        if !asks {
            return Self { without: sets.intern(&without), ..Self::default() };
        }
        masked.sort_unstable();
        let mut unsure = Vec::new();
        let mut masks: Vec<Masked> = Vec::new();
        for of_mask in masked.chunk_by(|a, b| a.0 == b.0) {
            if masks.len() == MASKS_MAX {
                unsure.resize(always.len(), 0);
                for &(_, _, number) in of_mask {
                    insert(&mut always, number);
                    insert(&mut unsure, number);
                }
                continue;
            }
            let mut group = Masked { mask: of_mask[0].0, values: Vec::new(), sets: Vec::new() };
            for of_value in of_mask.chunk_by(|a, b| a.1 == b.1) {
                let mut words = sets.none();
                of_value.iter().for_each(|&(_, _, number)| insert(&mut words, number));
                group.values.push(of_value[0].1);
                group.sets.push(sets.intern(&words));
            }
            masks.push(group);
        }
        let (starts, intervals) = intervals(&ranges, always, sets);
        Self { without: sets.intern(&without), starts, sets: intervals, masks, unsure }
    }
}

/// Cuts numbers into intervals at the ends of `ranges` (first, last, rule): where each begins, and
/// the rules that accept it, those of `always` among them.
pub(super) fn intervals(
    ranges: &[(u64, u64, usize)],
    always: Vec<u64>,
    sets: &mut SetsBuilder,
) -> (Vec<u64>, Vec<SetId>) {
    // What begins or ends where; ranges of one rule may overlap, so they are counted.
    let mut edges: Vec<(u64, usize, i32)> = Vec::with_capacity(ranges.len() * 2);
    for &(first, last, rule) in ranges.iter().filter(|(first, last, _)| first <= last) {
        edges.push((first, rule, 1));
        if let Some(after) = last.checked_add(1) {
            edges.push((after, rule, -1));
        }
    }
    edges.sort_unstable();
    let mut current = always.clone();
    let is_always = |rule: usize| always[rule / 64] >> (rule % 64) & 1 == 1;
    let mut open: std::collections::HashMap<usize, i32> = std::collections::HashMap::new();
    let mut starts = vec![0];
    let mut found = vec![sets.intern(&current)];
    for edge in edges.chunk_by(|a, b| a.0 == b.0) {
        for &(_, rule, change) in edge {
            let count = open.entry(rule).or_default();
            *count += change;
            match *count {
                0 if !is_always(rule) => remove(&mut current, rule),
                0 => {}
                _ => insert(&mut current, rule),
            }
        }
        let (start, set) = (edge[0].0, sets.intern(&current));
        if starts.last() == Some(&start) {
            found.pop();
            found.push(set);
        } else {
            starts.push(start);
            found.push(set);
        }
    }
    (starts, found)
}
