//! What writes came to, kept for as long as clients repeat them: a repeat gets the answer of the
//! first and changes nothing.
//!
//! Outcomes of writes that were granted are stored with what they changed. Refusals are kept in
//! memory alone, so that nobody makes the store write by asking for what is refused.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::mad::{AttributeId, Method, Status};

use super::answer::AnswerRecord;

/// Most outcomes of each kind (granted, refused) that are kept; beyond, the oldest is forgotten
/// early, which is counted.
pub const OUTCOMES_MAX: usize = 1 << 17;

/// What makes two requests the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutcomeKey {
    /// LID that the request came from.
    pub slid: Lid,
    /// Source GID of its GRH; zero if it had none.
    pub sgid: Gid,
    /// QP that it came from.
    pub qpn: Qpn,
    /// Low 48 bits of its TransactionID: `ibsim` writes over the others.
    pub tid: u64,
    /// What it was about.
    pub attribute: AttributeId,
    /// Its method.
    pub method: Method,
    /// Digest of its SM_Key, component mask and data.
    pub digest: u64,
}

/// What a write came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Status answered.
    pub status: Status,
    /// Data answered; `None` if it is the request's.
    pub data: Option<AnswerRecord>,
    /// When, in seconds since 1970 by the SM's clock.
    pub at_s: u64,
}

impl Outcome {
    fn is_granted(&self) -> bool {
        self.status == Status::OK
    }
}

/// An outcome as it is kept.
#[derive(Debug)]
struct Kept {
    /// Its number in the order in which outcomes came about.
    number: u64,
    outcome: Outcome,
}

/// The outcomes kept.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    by_key: HashMap<OutcomeKey, Kept, RandomState>,
    granted: Ages,
    refused: Ages,
    next: u64,
    put: Vec<(OutcomeKey, Outcome)>,
    /// Nothing from before this is kept, seconds since 1970.
    since_s: u64,
    /// Outcomes forgotten before their time.
    pub(super) forgotten_early: u64,
}

/// Outcomes of a kind in the order in which they came about.
#[derive(Debug, Default)]
struct Ages {
    /// Number and second; the key may have come to another outcome since.
    all: VecDeque<(u64, u64, OutcomeKey)>,
    /// How many have not.
    len: usize,
}

impl Outcomes {
    /// Outcomes as they were stored.
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

    /// What this request came to when it was first made, at `since_s` or later.
    pub(super) fn find(&self, key: &OutcomeKey, since_s: u64) -> Option<&Outcome> {
        self.by_key.get(key).map(|kept| &kept.outcome).filter(|outcome| outcome.at_s >= since_s)
    }

    /// Keeps what a request came to.
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

    /// Forgets what came about before `before_s`.
    pub(super) fn expire(&mut self, before_s: u64) {
        self.since_s = self.since_s.max(before_s);
        for granted in [true, false] {
            while self.ages(granted).all.front().is_some_and(|&(_, at_s, _)| at_s < before_s) {
                self.pop(granted);
            }
        }
    }

    /// When the oldest outcome came about, or one that another has replaced since.
    pub(super) fn oldest_s(&self) -> Option<u64> {
        let ages = [&self.granted, &self.refused];
        ages.into_iter().filter_map(|ages| Some(ages.all.front()?.1)).min()
    }

    /// Outcomes to be stored since this was last asked, and from when on outcomes are kept.
    pub(super) fn take_changes(&mut self) -> (Vec<(OutcomeKey, Outcome)>, u64) {
        (std::mem::take(&mut self.put), self.since_s)
    }

    fn ages(&mut self, granted: bool) -> &mut Ages {
        if granted { &mut self.granted } else { &mut self.refused }
    }

    /// Takes the oldest of a kind; whether it was still known. `None` if there is none.
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
    fn an_outcome_is_told_as_it_was_and_the_last_of_a_request_counts() {
        let mut outcomes = Outcomes::default();
        let data = |last: usize| {
            let mut data = [0; 200];
            data[last] = 9;
            Some(AnswerRecord::new(&data))
        };
        for (at_s, data) in [(5, data(199)), (6, data(7)), (7, None)] {
            let told = Outcome { status: Status::OK, data, at_s };
            outcomes.keep(key(1), told.clone());
            assert_eq!(outcomes.find(&key(1), 5), Some(&told));
        }
        outcomes.keep(key(1), outcome(Status::SA_REQ_INVALID, 8));
        assert_eq!((outcomes.granted.len, outcomes.refused.len), (0, 1));
        outcomes.expire(8);
        assert!(outcomes.find(&key(1), 8).is_some(), "the first three are over, the last is not");
        outcomes.expire(9);
        assert_eq!((outcomes.by_key.len(), outcomes.oldest_s()), (0, None));
    }

    #[test]
    fn granted_outcomes_are_stored_and_refusals_only_remembered() {
        let mut outcomes = Outcomes::default();
        outcomes.keep(key(1), outcome(Status::OK, 5));
        outcomes.keep(key(2), outcome(Status::SA_REQ_INVALID, 5));
        assert!(outcomes.find(&key(1), 5).is_some() && outcomes.find(&key(2), 5).is_some());
        let (put, _) = outcomes.take_changes();
        assert_eq!(put.len(), 1);
        assert_eq!(put[0].0, key(1));
        let restored = Outcomes::restore(put);
        assert!(restored.find(&key(1), 5).is_some() && restored.find(&key(2), 5).is_none());
    }

    #[test]
    fn outcomes_are_forgotten_when_their_time_is_over() {
        let mut outcomes = Outcomes::default();
        outcomes.keep(key(1), outcome(Status::OK, 5));
        outcomes.keep(key(2), outcome(Status::OK, 6));
        assert!(outcomes.find(&key(1), 6).is_none(), "too old to be told again");
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
        assert!(outcomes.find(&key(0), 0).is_none() && outcomes.find(&key(1), 0).is_some());
        // Refusals cannot push out what was granted.
        for tid in 0..=OUTCOMES_MAX as u64 {
            outcomes.keep(key(1 << 32 | tid), outcome(Status::SA_REQ_INVALID, 5));
        }
        assert!(outcomes.find(&key(1), 0).is_some());
        assert_eq!(outcomes.forgotten_early, 2);
    }
}
