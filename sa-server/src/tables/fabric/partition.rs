//! Partitions: which ports may see and reach each other.
//!
//! The P_Key table of every port is interned as two bit sets over the partitions of the subnet:
//! those it belongs to, and those it is a full member of. Whether two ports share a partition, and
//! which one, is then an AND of one or two words. How a query uses the result is not decided here.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ib_mad::types::PKey;

/// An interned P_Key table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PKeySet(u16);

/// All partitions and all distinct P_Key tables of the subnet.
#[derive(Clone, Debug, PartialEq)]
pub struct Partitions {
    /// Partition number by P_Key without its membership bit; [`NO_PARTITION`] if no port has it.
    number: Arc<[u16]>,
    /// P_Key without its membership bit, by partition number.
    base: Vec<u16>,
    /// Words a bit set.
    words: usize,
    /// `words` of them an interned table.
    bits: Vec<Word>,
    /// The P_Keys of every interned table in the order of OpenSM's, see [`place`]; empty unless
    /// ports may be full and limited members of one partition at once.
    both: Vec<Box<[PKey]>>,
    /// The relation of every pair of tables, see [`Pair`]; empty if there are too many.
    pairs: Arc<[Pair]>,
    /// Distinct tables.
    sets: usize,
}

/// Tables whose pairs are all written down: 128 KiB of them. Sites have a few dozen.
pub(super) const PAIRED_MAX: usize = 256;

/// Relation of two P_Key tables: the first P_Key they share, as the first one holds it;
/// [`Pair::SEEN`] if they share none but may see each other; otherwise 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair(u16);

impl Pair {
    /// No valid P_Key: its low 15 bits are 0.
    const SEEN: Self = Self(0x8000);
}

const NO_PARTITION: u16 = u16::MAX;

impl Partitions {
    /// The first P_Key by which `a` and `b` can communicate, as `a` holds it: in OpenSM's order,
    /// which compares P_Keys by their low byte first.
    #[inline(always)]
    pub fn first_shared(&self, a: PKeySet, b: PKeySet) -> Option<PKey> {
        match self.pair(a, b) {
            Some(Pair(key)) => Some(PKey(key)).filter(|key| key.is_valid()),
            None => self.look_for_shared(a, b),
        }
    }

    /// The precomputed relation of two tables.
    #[inline(always)]
    fn pair(&self, a: PKeySet, b: PKeySet) -> Option<Pair> {
        self.pairs.get(usize::from(a.0) * self.sets + usize::from(b.0)).copied()
    }

    #[cold]
    fn look_for_shared(&self, a: PKeySet, b: PKeySet) -> Option<PKey> {
        if !self.both.is_empty() {
            return self.first_shared_of_both(a, b);
        }
        for word in 0..self.words {
            let own = self.word(a, word);
            let shared = own.shared(self.word(b, word));
            if shared != 0 {
                let bit = shared.trailing_zeros() as usize;
                let full = (own.full >> bit & 1) as u16;
                return Some(PKey(self.base[word * 64 + bit] | full << 15));
            }
        }
        None
    }

    /// Same where a port may be a full and a limited member at once: OpenSM then prefers what both
    /// hold alike, then full to limited membership, then limited to full.
    #[cold]
    fn first_shared_of_both(&self, a: PKeySet, b: PKeySet) -> Option<PKey> {
        let keys = |set: PKeySet| self.both.get(usize::from(set.0)).map_or(&[][..], |keys| keys);
        let (a, b) = (keys(a), keys(b));
        let base = |key: PKey| place(PKey(key.base()));
        meet(a, b, |_, _| (true, true), place)
            .or_else(|| meet(a, b, |a, b| (a.is_full(), !b.is_full()), base))
            .or_else(|| meet(a, b, |a, b| (!a.is_full(), b.is_full()), base))
    }

    /// Whether `a` and `b` can communicate with `pkey`, whose membership bit is ignored.
    #[inline]
    pub fn share(&self, a: PKeySet, b: PKeySet, pkey: PKey) -> bool {
        let number = usize::from(self.number[usize::from(pkey.base())]);
        if number == usize::from(NO_PARTITION) {
            return false;
        }
        let word = number / 64;
        self.word(a, word).shared(self.word(b, word)) >> (number % 64) & 1 == 1
    }

    /// Whether a port with P_Key table `set` can talk to one that has `pkey`, whose membership bit
    /// counts.
    pub fn reaches(&self, set: PKeySet, pkey: PKey) -> bool {
        let number = usize::from(self.number[usize::from(pkey.base())]);
        if number == usize::from(NO_PARTITION) {
            return false;
        }
        let set = self.word(set, number / 64);
        let of = |bits: u64| bits >> (number % 64) & 1 == 1;
        of(set.full) || pkey.is_full() && of(set.member)
    }

    /// Whether a port with P_Key table `a` may see one with `b`: they share a partition, or one of
    /// them has no P_Key table, which the specification allows switch ports (IBA 10.9.2).
    #[inline(always)]
    pub fn visible(&self, a: PKeySet, b: PKeySet) -> bool {
        match self.pair(a, b) {
            Some(pair) => pair != Pair(0),
            None => self.look_whether_visible(a, b),
        }
    }

    #[cold]
    fn look_whether_visible(&self, a: PKeySet, b: PKeySet) -> bool {
        let shared = (0..self.words).any(|word| self.word(a, word).shared(self.word(b, word)) != 0);
        shared || self.has_none(a) || self.has_none(b)
    }

    /// Whether a P_Key table is empty.
    fn has_none(&self, set: PKeySet) -> bool {
        (0..self.words).all(|word| self.word(set, word).member == 0)
    }

    /// Membership in the 64 partitions of a word.
    #[inline]
    fn word(&self, set: PKeySet, word: usize) -> Word {
        self.bits[usize::from(set.0) * self.words + word]
    }

    /// Number of the partition of `pkey`, whose membership bit is ignored; `None` if no port is in
    /// it.
    #[inline]
    pub(super) fn number(&self, pkey: PKey) -> Option<usize> {
        let number = self.number[usize::from(pkey.base())];
        (number != NO_PARTITION).then_some(usize::from(number))
    }

    /// Number of distinct P_Key tables.
    pub(super) fn sets(&self) -> usize {
        self.sets
    }

    /// The valid P_Keys of an interned table, as [`PartitionsBuilder`] keeps them.
    pub(super) fn keys(&self, set: PKeySet) -> Vec<PKey> {
        let mut keys = match self.both.get(usize::from(set.0)) {
            Some(keys) => keys.to_vec(),
            None => {
                let key = |(number, &base): (usize, &u16)| {
                    let word = self.word(set, number / 64);
                    let of = |bits: u64| (bits >> (number % 64) & 1) as u16;
                    (of(word.member) == 1).then_some(PKey(base | of(word.full) << 15))
                };
                self.base.iter().enumerate().filter_map(key).collect()
            }
        };
        keys.sort_by_key(canonical);
        keys
    }

    /// P_Keys that ports have, or had when these tables were patched, without the membership bit,
    /// by partition number.
    pub fn bases(&self) -> &[u16] {
        &self.base
    }

    /// Whether a port with P_Key table `a` belongs to the partition of `pkey`, as full or limited
    /// member. An invalid P_Key matches every port.
    #[inline]
    pub fn is_member(&self, a: PKeySet, pkey: PKey) -> bool {
        let is_in = |number: usize| self.word(a, number / 64).member >> (number % 64) & 1 == 1;
        !pkey.is_valid() || self.number(pkey).is_some_and(is_in)
    }

    /// Number of partitions.
    pub fn len(&self) -> usize {
        self.base.len()
    }

    /// Whether no port has a P_Key.
    pub fn is_empty(&self) -> bool {
        self.base.is_empty()
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.number.len() * 2
            + self.base.len() * 2
            + self.bits.len() * size_of::<Word>()
            + size_of_val(&*self.pairs)
    }

    /// Precomputes the relation of every pair of tables.
    fn paired(mut self) -> Self {
        if self.sets <= PAIRED_MAX {
            let all = || (0..self.sets as u16).map(PKeySet);
            let pair = |(a, b)| match self.look_for_shared(a, b) {
                Some(key) => Pair(key.0),
                None if self.look_whether_visible(a, b) => Pair::SEEN,
                None => Pair(0),
            };
            self.pairs = all().flat_map(|a| all().map(move |b| (a, b))).map(pair).collect();
        }
        self
    }
}

/// Where OpenSM has a P_Key in its tables: it compares them by their low byte first.
fn place(key: PKey) -> u16 {
    key.0.swap_bytes()
}

/// The order of a table's P_Keys for comparison: by partition, the full one first.
fn canonical(key: &PKey) -> (u16, bool) {
    (key.base(), !key.is_full())
}

/// Walks two tables side by side, as far as keys are `wanted`, to the first of `a`'s that matches
/// the one of `b`'s beside it; whichever is behind by its `place` goes on.
fn meet(
    a: &[PKey],
    b: &[PKey],
    wanted: impl Fn(PKey, PKey) -> (bool, bool),
    place: impl Fn(PKey) -> u16,
) -> Option<PKey> {
    let (mut i, mut j) = (0, 0);
    while let (Some(&own), Some(&other)) = (a.get(i), b.get(j)) {
        match wanted(own, other) {
            (false, _) => i += 1,
            (_, false) => j += 1,
            _ if own.matches(other) => return Some(own),
            _ => match place(own).cmp(&place(other)) {
                Ordering::Less => i += 1,
                Ordering::Greater => j += 1,
                Ordering::Equal => {
                    i += 1;
                    j += 1;
                }
            },
        }
    }
    None
}

/// To which of 64 partitions a P_Key table belongs, and as full member.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Word {
    member: u64,
    full: u64,
}

impl Word {
    /// The partitions in which both can talk.
    #[inline]
    fn shared(self, other: Self) -> u64 {
        self.member & other.member & (self.full | other.full)
    }
}

/// Collects P_Key tables, then numbers the partitions found in them.
#[derive(Default)]
pub(super) struct PartitionsBuilder {
    /// Tables met, valid P_Keys only, ascending, each partition once.
    sets: HashMap<Vec<PKey>, u16>,
    /// The last table interned, as it was given: most ports' tables are like their neighbours'.
    last: Option<(Vec<PKey>, PKeySet)>,
    /// Whether a table may hold one partition's full and limited P_Key, and both count.
    both: bool,
}

impl PartitionsBuilder {
    /// `both`: whether ports may be full and limited members of one partition at once.
    pub(super) fn new(both: bool) -> Self {
        Self { both, ..Self::default() }
    }

    /// Adds tables to those of `partitions`, whose numbers stay. `both` as in [`new`](Self::new).
    pub(super) fn resume(partitions: &Partitions, both: bool) -> Self {
        let all = (0..partitions.sets).filter_map(|set| u16::try_from(set).ok());
        let sets = all.map(|set| (partitions.keys(PKeySet(set)), set)).collect();
        Self { sets, last: None, both }
    }

    /// Number of distinct tables so far.
    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }

    /// Interns one port's P_Key table. Unless both may be there, of two P_Keys of one partition the
    /// full one counts. Beyond 65,536 distinct tables, more than there are LIDs to use them, all
    /// others are empty.
    pub(super) fn intern(&mut self, table: &[PKey]) -> PKeySet {
        if let Some((last, set)) = &self.last
            && last == table
        {
            return *set;
        }
        let mut keys: Vec<PKey> = table.iter().copied().filter(|key| key.is_valid()).collect();
        keys.sort_by_key(canonical);
        if self.both {
            keys.dedup();
        } else {
            keys.dedup_by_key(|key| key.base());
        }
        let next = self.sets.len();
        let known = match u16::try_from(next) {
            Ok(next) => *self.sets.entry(keys).or_insert(next),
            Err(_) => self.sets.get(&keys).copied().unwrap_or(0),
        };
        let set = PKeySet(known);
        self.last = Some((table.to_vec(), set));
        set
    }

    pub(super) fn finish(self) -> Partitions {
        let partitions: BTreeSet<u16> =
            self.sets.keys().flatten().map(|key| key.base().swap_bytes()).collect();
        let base: Vec<u16> = partitions.into_iter().map(u16::swap_bytes).collect();
        let mut number = vec![NO_PARTITION; 1 << 15];
        for (partition, &base) in base.iter().enumerate() {
            number[usize::from(base)] = partition as u16;
        }
        let words = base.len().div_ceil(64).max(1);
        let mut bits = vec![Word::default(); self.sets.len() * words];
        let sets = self.sets.len();
        let mut both = vec![Box::default(); if self.both { sets } else { 0 }];
        for (keys, set) in self.sets {
            if let Some(own) = both.get_mut(usize::from(set)) {
                let mut keys = keys.clone();
                keys.sort_by_key(|&key| place(key));
                *own = keys.into_boxed_slice();
            }
            let start = usize::from(set) * words;
            for key in keys {
                let partition = usize::from(number[usize::from(key.base())]);
                let bit = 1 << (partition % 64);
                let word = &mut bits[start + partition / 64];
                word.member |= bit;
                if key.is_full() {
                    word.full |= bit;
                }
            }
        }
        Partitions { number: number.into(), base, words, bits, both, pairs: Arc::default(), sets }
            .paired()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(a: &[u16], b: &[u16]) -> (Partitions, PKeySet, PKeySet) {
        let mut builder = PartitionsBuilder::default();
        let keys = |table: &[u16]| table.iter().map(|&key| PKey(key)).collect::<Vec<_>>();
        let (a, b) = (builder.intern(&keys(a)), builder.intern(&keys(b)));
        (builder.finish(), a, b)
    }

    #[test]
    fn the_shared_key_carries_the_first_ports_membership() {
        let (partitions, a, b) = pair(&[0x7FFF, 0x8001], &[0xFFFF, 0x0001]);
        assert_eq!(partitions.first_shared(a, b), Some(PKey(0x8001)));
        assert_eq!(partitions.first_shared(b, a), Some(PKey(0x0001)));
        assert!(partitions.share(a, b, PKey(0xFFFF)) && partitions.share(a, b, PKey(0x7FFF)));
        assert!(!partitions.share(a, b, PKey(0x8002)) && !partitions.share(a, b, PKey(0x8000)));
    }

    #[test]
    fn limited_members_neither_talk_nor_see_each_other() {
        let (partitions, a, b) = pair(&[0x0001], &[0x0001, 0x8002]);
        assert_eq!(partitions.first_shared(a, b), None);
        assert!(!partitions.visible(a, b));
    }

    #[test]
    fn a_port_without_a_table_is_seen_but_has_no_path() {
        let (partitions, a, b) = pair(&[0, 0x8000], &[0xFFFF]);
        assert!(partitions.visible(a, b));
        assert_eq!(partitions.first_shared(a, b), None);
    }

    #[test]
    fn full_membership_wins_where_a_table_holds_both() {
        let (partitions, a, b) = pair(&[0x0005, 0x8005], &[0x0005]);
        assert_eq!(partitions.first_shared(a, b), Some(PKey(0x8005)));
    }

    /// As OpenSM 3.3.23 with `allow_both_pkeys` was seen to answer.
    #[test]
    fn where_both_memberships_count_what_both_hold_alike_comes_first() {
        let pair = |a: &[u16], b: &[u16]| {
            let mut builder = PartitionsBuilder::new(true);
            let keys = |table: &[u16]| table.iter().map(|&key| PKey(key)).collect::<Vec<_>>();
            let (a, b) = (builder.intern(&keys(a)), builder.intern(&keys(b)));
            builder.finish().first_shared(a, b)
        };
        // Limited in 2 and full in 3, towards both in 2 and limited in 3.
        assert_eq!(pair(&[0x0002, 0x8003], &[0x0002, 0x8002, 0x0003]), Some(PKey(0x8003)));
        assert_eq!(pair(&[0x0002, 0x8002, 0x0003], &[0x0002, 0x8003]), Some(PKey(0x0003)));
        assert_eq!(pair(&[0x0002, 0x8002], &[0x8002]), Some(PKey(0x0002)));
        assert_eq!(pair(&[0x8002], &[0x0002, 0x8002]), Some(PKey(0x8002)));
        assert_eq!(pair(&[0x0002, 0x8002], &[0x0002]), Some(PKey(0x8002)));
        assert_eq!(pair(&[0x0002], &[0x0002]), None);
    }

    proptest! {
        /// Tables are found again, and further ones follow; partitions may be numbered otherwise.
        #[test]
        fn a_builder_that_resumes_keeps_the_numbers_of_tables(
            tables in proptest::collection::vec(proptest::collection::vec(0u16..80, 0..9), 1..9),
            more in proptest::collection::vec(0u16..80, 0..9),
            both: bool,
        ) {
            let key = |key: &u16| PKey(((key / 2 * 0x101) & 0x7FFF) | ((key % 2) << 15));
            let keys = |table: &[u16]| -> Vec<PKey> { table.iter().map(key).collect() };
            let mut builder = PartitionsBuilder::new(both);
            let sets: Vec<PKeySet> = tables.iter().map(|t| builder.intern(&keys(t))).collect();
            let before = builder.finish();
            let mut resumed = PartitionsBuilder::resume(&before, both);
            prop_assert_eq!(resumed.len(), before.sets());
            let new = resumed.intern(&keys(&more));
            prop_assert!(usize::from(new.0) <= before.sets());
            let again: Vec<PKeySet> = tables.iter().map(|t| resumed.intern(&keys(t))).collect();
            prop_assert_eq!(&again, &sets);
            let after = resumed.finish();
            for &a in &sets {
                prop_assert_eq!(after.keys(a), before.keys(a));
                for &b in &sets {
                    prop_assert_eq!(after.first_shared(a, b), before.first_shared(a, b));
                }
            }
        }

        /// The bit sets give the same result as a comparison of the tables, for any size.
        #[test]
        fn bit_sets_agree_with_the_tables(
            a in proptest::collection::vec(0u16..400, 0..90),
            b in proptest::collection::vec(0u16..400, 0..90),
            probe in 0u16..400,
        ) {
            // Half of the keys full, all partitions below 200.
            let spread = |keys: &[u16]| -> Vec<u16> {
                keys.iter().map(|&k| (k / 2) | (k % 2) << 15).collect()
            };
            let (a, b, probe) = (spread(&a), spread(&b), PKey(spread(&[probe])[0]));
            let (partitions, sa, sb) = pair(&a, &b);
            let talk = |p: &PKey, q: &PKey| p.matches(*q);
            let meet = |only: Option<PKey>| a.iter().any(|&p| b.iter().any(|&q| {
                talk(&PKey(p), &PKey(q)) && only.is_none_or(|key| key.base() == PKey(p).base())
            }));
            prop_assert_eq!(partitions.first_shared(sa, sb).is_some(), meet(None));
            let looked_for = partitions.look_for_shared(sa, sb);
            prop_assert_eq!(partitions.first_shared(sa, sb), looked_for);
            let is_visible = partitions.look_whether_visible(sa, sb);
            prop_assert_eq!(partitions.visible(sa, sb), is_visible);
            prop_assert_eq!(partitions.share(sa, sb, probe), probe.is_valid() && meet(Some(probe)));
        }
    }
}
