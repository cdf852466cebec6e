//! Rules by Service ID: ranges, and masked comparisons.
//!
//! A mask whose bits begin at the top is a range; all ranges together divide the numbers into
//! intervals. Within pages of 65,536 numbers with many intervals, such as the port spaces of RDMA
//! CM, a table gives the interval of each number; elsewhere it is searched. Numbers under any other
//! mask are looked up once per mask; rules under masks beyond the first [`MASKS_MAX`] are in every
//! interval and are checked one by one.

use sa_proto::snapshot::IdMatch;

use super::sets::{Set, SetId, Sets, SetsBuilder, insert, remove};
use super::{Rule, accepts};
use crate::tables::prefetch::prefetch;

/// Masks that are looked up. Sites have none to three.
const MASKS_MAX: usize = 8;

/// Pages with a table: those with the most intervals.
const PAGES_MAX: usize = 2;
/// Fewer intervals are found as quickly by a search.
const PAGE_INTERVALS_MIN: usize = 8;
const PAGE_BITS: u32 = 16;

/// The intervals of a page of numbers.
#[derive(Clone, Debug)]
struct Page {
    /// The upper bits of its numbers.
    number: u64,
    /// Position of the interval by the lower ones.
    intervals: Box<[u16]>,
}

/// Sets of rules by Service ID.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceIds {
    /// Rules that do not ask: for requests without a ServiceID.
    without: SetId,
    /// First number of each interval, ascending, from 0 on; empty if no rule asks.
    starts: Vec<u64>,
    /// Set of each interval.
    sets: Vec<SetId>,
    pages: Vec<Page>,
    masks: Vec<Masked>,
    /// Rules to be confirmed, as words of bits; empty if there are none.
    unsure: Vec<u64>,
}

/// Numbers that are compared under one mask.
#[derive(Clone, Debug)]
struct Masked {
    mask: u64,
    /// Ascending.
    values: Vec<u64>,
    sets: Vec<SetId>,
}

/// Result of a look-up by ServiceID.
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
        found.interval = self.sets[self.interval(id)];
        for masked in &self.masks {
            if let Ok(at) = masked.values.binary_search(&(id & masked.mask)) {
                found.more[found.masked] = masked.sets[at];
                found.masked += 1;
            }
        }
        found
    }

    /// Position of the interval that a number is in.
    #[inline]
    fn interval(&self, id: u64) -> usize {
        match self.pages.iter().find(|page| page.number == id >> PAGE_BITS) {
            Some(page) => page.intervals[usize::from(id as u16)].into(),
            None => interval(&self.starts, id),
        }
    }

    /// Fetches what [`find`](Self::find) begins with.
    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        if let Some(page) = self.pages.iter().find(|page| page.number == id >> PAGE_BITS) {
            prefetch(&page.intervals, usize::from(id as u16));
        }
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
        let paged: usize = self.pages.iter().map(|page| size_of_val(&*page.intervals)).sum();
        (self.starts.len() + masked) * (size_of::<u64>() + size_of::<SetId>()) + paged
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
        let pages = pages(&starts);
        Self { without: sets.intern(&without), starts, sets: intervals, pages, masks, unsure }
    }
}

/// Position of the interval that a number is in, by where intervals start; the first starts at 0.
fn interval(starts: &[u64], id: u64) -> usize {
    starts.partition_point(|&start| start <= id).saturating_sub(1)
}

/// Tables for the pages that are cut most often.
fn pages(starts: &[u64]) -> Vec<Page> {
    let of_pages = starts.chunk_by(|a, b| a >> PAGE_BITS == b >> PAGE_BITS);
    let mut cut: Vec<(usize, u64)> = of_pages
        .filter(|of_page| of_page.len() >= PAGE_INTERVALS_MIN)
        .map(|of_page| (of_page.len(), of_page[0] >> PAGE_BITS))
        .collect();
    cut.sort_unstable_by(|a, b| b.cmp(a));
    let page = |&(_, number): &(usize, u64)| {
        let ids = (0..1 << PAGE_BITS).map(|low| number << PAGE_BITS | low);
        // No table if there are more intervals than its entries can number.
        let intervals: Option<Box<[u16]>> =
            ids.map(|id| u16::try_from(interval(starts, id)).ok()).collect();
        Some(Page { number, intervals: intervals? })
    };
    cut.iter().take(PAGES_MAX).filter_map(page).collect()
}

/// Cuts numbers into intervals at the ends of `ranges` (first, last, rule): where each begins, and
/// the rules that accept it, those of `always` among them.
pub(super) fn intervals(
    ranges: &[(u64, u64, usize)],
    always: Vec<u64>,
    sets: &mut SetsBuilder,
) -> (Vec<u64>, Vec<SetId>) {
    // Where ranges begin or end; ranges of one rule may overlap, so they are counted.
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
