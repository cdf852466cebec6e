//! Outcomes of writes, kept as long as clients repeat requests: a repeat gets the stored answer
//! and changes nothing.
//!
//! Outcomes of granted writes are stored with their changes. Refusals are kept in
//! memory only, so that refused requests cause no disk writes.

pub mod encoding;

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::ops::RangeInclusive;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::mad::{AttributeId, Method, Status};

use super::answer::AnswerRecord;

/// Maximum number of outcomes of each kind (granted, refused); beyond it the oldest is discarded
/// early and counted.
pub const OUTCOMES_MAX: usize = 1 << 17;

/// Identifies a request, so that a repeat is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutcomeKey {
    /// Source LID of the request.
    pub slid: Lid,
    /// Source GID of its GRH; zero if it had none.
    pub sgid: Gid,
    /// Source QP.
    pub qpn: Qpn,
    /// Low 48 bits of its TransactionID: `ibsim` overwrites the others.
    pub tid: u64,
    /// Its attribute.
    pub attribute: AttributeId,
    /// Its method.
    pub method: Method,
    /// Digest of its SM_Key, component mask and data.
    pub digest: u64,
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Status of the answer.
    pub status: Status,
    /// Data of the answer; `None` if it equals the request's.
    pub data: Option<AnswerRecord>,
    /// Registry time of the decision, in seconds.
    pub at_s: u64,
}

impl Outcome {
    fn is_granted(&self) -> bool {
        self.status == Status::OK
    }
}

/// A stored outcome.
#[derive(Debug)]
struct Kept {
    key: OutcomeKey,
    hash: u64,
    outcome: Outcome,
}

/// Where an outcome is: its number in order of decision among those of its kind, modulo 2^31, and
/// in the lowest bit the kind. Small, because they lie in random order: each is read from far away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u32);

impl Place {
    fn new(number: u64, is_granted: bool) -> Self {
        Self((number as u32) << 1 | u32::from(is_granted))
    }

    fn is_granted(self) -> bool {
        self.0 & 1 == 1
    }
}

/// All stored outcomes. They lie in the order in which they were decided, so that storing and
/// discarding one touches little memory besides its entry in `by_key`, and that is small.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// The last outcome of each request.
    by_key: HashTable<Place>,
    hasher: RandomState,
    granted: Ages,
    refused: Ages,
    /// Number of the first granted one that is yet to be stored.
    unstored: u64,
    /// Older outcomes are not kept, seconds of registry time.
    since_s: u64,
    /// Outcomes discarded before they expired.
    pub(super) forgotten_early: u64,
}

/// Outcomes of a kind in order of decision.
#[derive(Debug, Default)]
struct Ages {
    /// The key may have a newer outcome since.
    all: VecDeque<Kept>,
    /// Number of the first.
    first: u64,
    /// Number of entries whose key has no newer outcome.
    len: usize,
}

impl Ages {
    fn next(&self) -> u64 {
        self.first + self.all.len() as u64
    }

    fn at(&self, place: Place) -> Option<&Kept> {
        let index = (place.0 >> 1).wrapping_sub(self.first as u32) & (u32::MAX >> 1);
        self.all.get(index as usize)
    }
}

impl Outcomes {
    /// Restores stored outcomes.
    pub(super) fn restore(stored: impl IntoIterator<Item = (OutcomeKey, Outcome)>) -> Self {
        let mut stored: Vec<_> = stored.into_iter().collect();
        stored.sort_by_key(|(key, outcome)| (outcome.at_s, *key));
        let mut outcomes = Self::default();
        for (key, outcome) in stored {
            outcomes.keep(key, outcome);
        }
        outcomes.unstored = outcomes.granted.next();
        outcomes.forgotten_early = 0;
        outcomes
    }

    /// The outcome of this request, if it was decided within `time_s`.
    pub(super) fn find(&self, key: &OutcomeKey, time_s: RangeInclusive<u64>) -> Option<&Outcome> {
        let is_of_key =
            |place: &Place| self.ages(*place).at(*place).is_some_and(|kept| kept.key == *key);
        let place = *self.by_key.find(self.hasher.hash_one(key), is_of_key)?;
        let outcome = self.ages(place).at(place).map(|kept| &kept.outcome);
        outcome.filter(|outcome| time_s.contains(&outcome.at_s))
    }

    /// Stores the outcome of a request.
    pub(super) fn keep(&mut self, key: OutcomeKey, outcome: Outcome) {
        let is_granted = outcome.is_granted();
        let hash = self.hasher.hash_one(key);
        let place = Place::new(self.ages_mut(is_granted).next(), is_granted);
        if let Some(before) = self.replace(hash, &key, place) {
            self.ages_mut(before.is_granted()).len -= 1;
        }
        if self.ages_mut(is_granted).len >= OUTCOMES_MAX {
            self.forgotten_early += 1;
            while self.pop(is_granted) == Some(false) {}
        }
        let ages = self.ages_mut(is_granted);
        ages.all.push_back(Kept { key, hash, outcome });
        ages.len += 1;
    }

    /// Sets the place of a key's outcome; returns that of the outcome before.
    fn replace(&mut self, hash: u64, key: &OutcomeKey, place: Place) -> Option<Place> {
        let Self { by_key, granted, refused, .. } = self;
        let ages = |place: &Place| if place.is_granted() { &*granted } else { &*refused };
        let is_of_key = |other: &Place| ages(other).at(*other).is_some_and(|kept| kept.key == *key);
        let hash_of =
            |other: &Place| ages(other).at(*other).expect("what has a place is kept").hash;
        match by_key.entry(hash, is_of_key, hash_of) {
            Entry::Occupied(mut entry) => Some(std::mem::replace(entry.get_mut(), place)),
            Entry::Vacant(entry) => {
                entry.insert(place);
                None
            }
        }
    }

    /// Discards outcomes decided before `before_s`.
    pub(super) fn expire(&mut self, before_s: u64) {
        self.since_s = self.since_s.max(before_s);
        for is_granted in [true, false] {
            let is_over = |kept: &Kept| kept.outcome.at_s < before_s;
            while self.ages_mut(is_granted).all.front().is_some_and(is_over) {
                self.pop(is_granted);
            }
        }
    }

    /// Time of the oldest entry, whether or not a newer outcome has replaced it.
    pub(super) fn oldest_s(&self) -> Option<u64> {
        let ages = [&self.granted, &self.refused];
        ages.into_iter().filter_map(|ages| Some(ages.all.front()?.outcome.at_s)).min()
    }

    /// Takes the outcomes to be stored since the last call, and the time before which none are
    /// kept.
    pub(super) fn take_changes(&mut self) -> (Vec<(OutcomeKey, Outcome)>, u64) {
        let Ages { all, first, .. } = &self.granted;
        let stored = usize::try_from(self.unstored.saturating_sub(*first)).unwrap_or(usize::MAX);
        let put = all.range(stored.min(all.len())..);
        let put = put.map(|kept| (kept.key, kept.outcome.clone())).collect();
        self.unstored = self.granted.next();
        (put, self.since_s)
    }

    /// Those of granted requests, in order of decision.
    pub(super) fn granted(&self) -> Vec<(OutcomeKey, Outcome)> {
        self.granted.all.iter().map(|kept| (kept.key, kept.outcome.clone())).collect()
    }

    fn ages(&self, place: Place) -> &Ages {
        if place.is_granted() { &self.granted } else { &self.refused }
    }

    fn ages_mut(&mut self, is_granted: bool) -> &mut Ages {
        if is_granted { &mut self.granted } else { &mut self.refused }
    }

    /// Removes the oldest of a kind; returns whether it was current. `None` if there is none.
    fn pop(&mut self, is_granted: bool) -> Option<bool> {
        let ages = self.ages_mut(is_granted);
        let place = Place::new(ages.first, is_granted);
        let kept = ages.all.pop_front()?;
        ages.first += 1;
        let entry = self.by_key.find_entry(kept.hash, |other| *other == place);
        let is_current = entry.is_ok();
        if let Ok(entry) = entry {
            entry.remove();
            self.ages_mut(is_granted).len -= 1;
        }
        Some(is_current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::outcome_key as key;

    fn outcome(status: Status, at_s: u64) -> Outcome {
        Outcome { status, data: None, at_s }
    }

    #[test]
    fn an_outcome_is_repeated_unchanged_and_the_last_of_a_request_counts() {
        let mut outcomes = Outcomes::default();
        let data = |last: usize| {
            let mut data = [0; 200];
            data[last] = 9;
            Some(AnswerRecord::new(&data))
        };
        for (at_s, data) in [(5, data(199)), (6, data(7)), (7, None)] {
            let outcome = Outcome { status: Status::OK, data, at_s };
            outcomes.keep(key(1), outcome.clone());
            assert_eq!(outcomes.find(&key(1), 5..=99), Some(&outcome));
        }
        outcomes.keep(key(1), outcome(Status::SA_REQ_INVALID, 8));
        assert_eq!((outcomes.granted.len, outcomes.refused.len), (0, 1));
        outcomes.expire(8);
        assert!(
            outcomes.find(&key(1), 8..=99).is_some(),
            "the first three are over, the last is not"
        );
        outcomes.expire(9);
        assert_eq!((outcomes.by_key.len(), outcomes.oldest_s()), (0, None));
    }

    #[test]
    fn granted_outcomes_are_stored_and_refusals_only_remembered() {
        let mut outcomes = Outcomes::default();
        outcomes.keep(key(1), outcome(Status::OK, 5));
        outcomes.keep(key(2), outcome(Status::SA_REQ_INVALID, 5));
        assert!(
            outcomes.find(&key(1), 5..=99).is_some() && outcomes.find(&key(2), 5..=99).is_some()
        );
        let (put, _) = outcomes.take_changes();
        assert_eq!(put.len(), 1);
        assert_eq!(put[0].0, key(1));
        let restored = Outcomes::restore(put);
        assert!(
            restored.find(&key(1), 5..=99).is_some() && restored.find(&key(2), 5..=99).is_none()
        );
    }

    #[test]
    fn outcomes_are_forgotten_when_their_time_is_over() {
        let mut outcomes = Outcomes::default();
        outcomes.keep(key(1), outcome(Status::OK, 5));
        outcomes.keep(key(2), outcome(Status::OK, 6));
        assert!(outcomes.find(&key(1), 6..=99).is_none(), "too old for a repeat");
        outcomes.take_changes();
        outcomes.expire(6);
        assert_eq!(outcomes.oldest_s(), Some(6));
        assert_eq!(outcomes.take_changes(), (Vec::new(), 6));
    }

    #[test]
    fn the_oldest_outcome_makes_room_and_is_counted() {
        let mut outcomes = Outcomes::default();
        for tid in 0..=OUTCOMES_MAX as u64 {
            outcomes.keep(key(tid), outcome(Status::OK, 5));
        }
        assert_eq!(outcomes.forgotten_early, 1);
        assert!(
            outcomes.find(&key(0), 0..=99).is_none() && outcomes.find(&key(1), 0..=99).is_some()
        );
        // Refusals cannot evict granted outcomes.
        for tid in 0..=OUTCOMES_MAX as u64 {
            outcomes.keep(key(1 << 32 | tid), outcome(Status::SA_REQ_INVALID, 5));
        }
        assert!(outcomes.find(&key(1), 0..=99).is_some());
        assert_eq!(outcomes.forgotten_early, 2);
    }
}
