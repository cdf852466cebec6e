//! Outcomes of writes, kept as long as clients repeat requests: a repeat gets the stored answer
//! and changes nothing.
//!
//! Outcomes of granted writes are stored with their changes. Refusals are kept in
//! memory only, so that refused requests cause no disk writes.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;

use foldhash::fast::RandomState;
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
    /// Its number in order of decision.
    number: u64,
    outcome: Outcome,
}

/// All stored outcomes.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    by_key: HashMap<OutcomeKey, Kept, RandomState>,
    granted: Ages,
    refused: Ages,
    next: u64,
    put: Vec<(OutcomeKey, Outcome)>,
    /// Older outcomes are not kept, seconds of registry time.
    since_s: u64,
    /// Outcomes discarded before they expired.
    pub(super) forgotten_early: u64,
}

/// Outcomes of a kind in order of decision.
#[derive(Debug, Default)]
struct Ages {
    /// Number and second; the key may have a newer outcome since.
    all: VecDeque<(u64, u64, OutcomeKey)>,
    /// Number of entries whose key has no newer outcome.
    len: usize,
}

impl Outcomes {
    /// Restores stored outcomes.
    pub(super) fn restore(stored: impl IntoIterator<Item = (OutcomeKey, Outcome)>) -> Self {
        let mut stored: Vec<_> = stored.into_iter().collect();
        stored.sort_by_key(|(key, outcome)| (outcome.at_s, *key));
        let mut outcomes = Self::default();
        for (key, outcome) in stored {
            outcomes.remember(key, outcome);
        }
        outcomes.forgotten_early = 0;
        outcomes
    }

    /// The outcome of this request, if it was decided within `time_s`.
    pub(super) fn find(&self, key: &OutcomeKey, time_s: RangeInclusive<u64>) -> Option<&Outcome> {
        let outcome = self.by_key.get(key).map(|kept| &kept.outcome);
        outcome.filter(|outcome| time_s.contains(&outcome.at_s))
    }

    /// Stores the outcome of a request.
    pub(super) fn keep(&mut self, key: OutcomeKey, outcome: Outcome) {
        if outcome.is_granted() {
            self.put.push((key, outcome.clone()));
        }
        self.remember(key, outcome);
    }

    fn remember(&mut self, key: OutcomeKey, outcome: Outcome) {
        let number = self.next;
        self.next += 1;
        let granted = outcome.is_granted();
        let ages = self.ages(granted);
        ages.all.push_back((number, outcome.at_s, key));
        ages.len += 1;
        if let Some(before) = self.by_key.insert(key, Kept { number, outcome }) {
            self.ages(before.outcome.is_granted()).len -= 1;
        }
        if self.ages(granted).len > OUTCOMES_MAX {
            self.forgotten_early += 1;
            while self.pop(granted) == Some(false) {}
        }
    }

    /// Discards outcomes decided before `before_s`.
    pub(super) fn expire(&mut self, before_s: u64) {
        self.since_s = self.since_s.max(before_s);
        for granted in [true, false] {
            while self.ages(granted).all.front().is_some_and(|&(_, at_s, _)| at_s < before_s) {
                self.pop(granted);
            }
        }
    }

    /// Time of the oldest entry, whether or not a newer outcome has replaced it.
    pub(super) fn oldest_s(&self) -> Option<u64> {
        let ages = [&self.granted, &self.refused];
        ages.into_iter().filter_map(|ages| Some(ages.all.front()?.1)).min()
    }

    /// Takes the outcomes to be stored since the last call, and the time before which none are
    /// kept.
    pub(super) fn take_changes(&mut self) -> (Vec<(OutcomeKey, Outcome)>, u64) {
        (std::mem::take(&mut self.put), self.since_s)
    }

    fn ages(&mut self, granted: bool) -> &mut Ages {
        if granted { &mut self.granted } else { &mut self.refused }
    }

    /// Removes the oldest of a kind; returns whether it was current. `None` if there is none.
    fn pop(&mut self, granted: bool) -> Option<bool> {
        let (number, _, key) = self.ages(granted).all.pop_front()?;
        let is_known = self.by_key.get(&key).is_some_and(|kept| kept.number == number);
        if is_known {
            self.by_key.remove(&key);
            self.ages(granted).len -= 1;
        }
        Some(is_known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tid: u64) -> OutcomeKey {
        OutcomeKey {
            slid: Lid(1),
            sgid: Gid::ZERO,
            qpn: Qpn::GSI,
            tid,
            attribute: AttributeId(0x38),
            method: Method::SET,
            digest: 7,
        }
    }

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
