//! What writes came to, kept for as long as clients repeat them: a repeat gets the answer of the
//! first and changes nothing.
//!
//! Outcomes of writes that were granted are stored with what they changed. Refusals are kept in
//! memory alone, so that nobody makes the store write by asking for what is refused.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use ib_mad::types::{Gid, Lid, Qpn};
use ib_mad::wire::mad::{AttributeId, Method, Status};

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
    pub data: Option<Box<[u8; 200]>>,
    /// When, in seconds since 1970 by the SM's clock.
    pub at_s: u64,
}

/// Outcomes in the order in which they came about.
#[derive(Debug, Default)]
struct Log {
    by_key: HashMap<OutcomeKey, (u64, Arc<Outcome>)>,
    by_age: BTreeMap<u64, OutcomeKey>,
    next: u64,
}

impl Log {
    fn put(&mut self, key: OutcomeKey, outcome: Arc<Outcome>) {
        let number = self.next;
        self.next += 1;
        self.by_age.insert(number, key);
        if let Some((old, _)) = self.by_key.insert(key, (number, outcome)) {
            self.by_age.remove(&old);
        }
    }

    fn oldest(&self) -> Option<(&OutcomeKey, &Arc<Outcome>)> {
        let (_, key) = self.by_age.first_key_value()?;
        self.by_key.get(key).map(|(_, outcome)| (key, outcome))
    }

    fn pop_oldest(&mut self) -> Option<OutcomeKey> {
        let (_, key) = self.by_age.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }

    fn len(&self) -> usize {
        self.by_key.len()
    }
}

/// The outcomes kept.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    granted: Log,
    refused: Log,
    put: Vec<OutcomeKey>,
    removed: HashSet<OutcomeKey>,
    /// Outcomes forgotten before their time.
    pub(super) forgotten_early: u64,
}

impl Outcomes {
    /// Outcomes as they were stored.
    pub(super) fn restore(stored: impl IntoIterator<Item = (OutcomeKey, Outcome)>) -> Self {
        let mut stored: Vec<_> = stored.into_iter().collect();
        stored.sort_by_key(|(key, outcome)| (outcome.at_s, *key));
        let mut outcomes = Self::default();
        for (key, outcome) in stored {
            outcomes.granted.put(key, Arc::new(outcome));
        }
        outcomes
    }

    /// What this request came to when it was first made, at `since_s` or later.
    pub(super) fn find(&self, key: &OutcomeKey, since_s: u64) -> Option<&Arc<Outcome>> {
        let known = self.granted.by_key.get(key).or_else(|| self.refused.by_key.get(key));
        known.map(|(_, outcome)| outcome).filter(|outcome| outcome.at_s >= since_s)
    }

    /// Keeps what a request came to.
    pub(super) fn keep(&mut self, key: OutcomeKey, outcome: Outcome) {
        let granted = outcome.status == Status::OK;
        let log = if granted { &mut self.granted } else { &mut self.refused };
        log.put(key, Arc::new(outcome));
        let too_many = log.len() > OUTCOMES_MAX;
        if granted {
            self.put.push(key);
            self.removed.remove(&key);
        }
        if too_many {
            self.forgotten_early += 1;
            self.forget_oldest(granted);
        }
    }

    /// Forgets what came about before `before_s`.
    pub(super) fn expire(&mut self, before_s: u64) {
        for granted in [true, false] {
            while self.log(granted).oldest().is_some_and(|(_, old)| old.at_s < before_s) {
                self.forget_oldest(granted);
            }
        }
    }

    /// When the oldest outcome came about.
    pub(super) fn oldest_s(&self) -> Option<u64> {
        let logs = [&self.granted, &self.refused];
        logs.into_iter().filter_map(|log| Some(log.oldest()?.1.at_s)).min()
    }

    /// Outcomes to be stored and to be forgotten since this was last asked.
    pub(super) fn take_changes(&mut self) -> (Vec<(OutcomeKey, Arc<Outcome>)>, Vec<OutcomeKey>) {
        let put = std::mem::take(&mut self.put).into_iter();
        let put =
            put.filter_map(|key| Some((key, self.granted.by_key.get(&key)?.1.clone()))).collect();
        let mut removed: Vec<_> = std::mem::take(&mut self.removed).into_iter().collect();
        removed.sort_unstable();
        (put, removed)
    }

    fn log(&self, granted: bool) -> &Log {
        if granted { &self.granted } else { &self.refused }
    }

    fn forget_oldest(&mut self, granted: bool) {
        let log = if granted { &mut self.granted } else { &mut self.refused };
        if let Some(key) = log.pop_oldest().filter(|_| granted) {
            self.removed.insert(key);
        }
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
    fn granted_outcomes_are_stored_and_refusals_only_remembered() {
        let mut outcomes = Outcomes::default();
        outcomes.keep(key(1), outcome(Status::OK, 5));
        outcomes.keep(key(2), outcome(Status::SA_REQ_INVALID, 5));
        assert!(outcomes.find(&key(1), 5).is_some() && outcomes.find(&key(2), 5).is_some());
        let (put, removed) = outcomes.take_changes();
        assert_eq!((put.len(), removed.len()), (1, 0));
        assert_eq!(put[0].0, key(1));
        let restored = Outcomes::restore(put.iter().map(|(key, o)| (*key, (**o).clone())));
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
        assert_eq!(outcomes.take_changes(), (Vec::new(), vec![key(1)]));
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
