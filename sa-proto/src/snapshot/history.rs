//! What the publisher remembers, and how it brings a responder up to date.
//!
//! Only the latest snapshot matters to a responder. One that lags gets the deltas it missed
//! merged into one; one whose version is not remembered (it lagged for long, or comes from
//! another session) gets the buckets in which it differs; one that holds nothing gets everything.

use std::collections::VecDeque;
use std::sync::Arc;

use prost::bytes::Bytes;

use super::codec::Encoder;
use super::delta::{Delta, DeltaError, merge};
use super::digest::{BucketSet, Checksum};
use super::{Snapshot, Version};

/// What a history may keep. Beyond either limit the oldest deltas are forgotten; the newest one,
/// which everybody is waiting for, never is.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Deltas.
    pub deltas: usize,
    /// Bytes of all deltas, about.
    pub bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { deltas: 512, bytes: 32 << 20 }
    }
}

/// The latest snapshot and the deltas that led to it.
#[derive(Debug)]
pub struct History {
    latest: Arc<Snapshot>,
    /// Each with the bytes it takes; each starts where the one before it leads to.
    deltas: VecDeque<(Arc<Delta>, usize)>,
    /// What the oldest delta starts from.
    oldest: (Version, Checksum),
    bytes: usize,
    limits: HistoryLimits,
}

/// What a responder says it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Version.
    pub version: Version,
    /// Checksum over all rows.
    pub checksum: Checksum,
    /// Bucket sums, as [`Digest::to_bytes`](super::Digest::to_bytes) writes them; empty if the
    /// peer is known to hold exactly `version`.
    pub bucket_sums: Bytes,
}

/// What a responder has to be sent.
#[derive(Debug)]
pub enum Plan {
    /// Nothing: it is up to date.
    Nothing,
    /// These deltas, merged into one.
    Deltas(Vec<Arc<Delta>>),
    /// The rows of these buckets.
    Buckets(Arc<Snapshot>, Box<BucketSet>),
    /// Everything.
    Full(Arc<Snapshot>),
}

impl History {
    /// A history that begins with `latest`.
    pub fn new(latest: Arc<Snapshot>, limits: HistoryLimits) -> Self {
        let oldest = (latest.version(), latest.checksum());
        Self { latest, deltas: VecDeque::new(), oldest, bytes: 0, limits }
    }

    /// The latest snapshot.
    pub fn latest(&self) -> &Arc<Snapshot> {
        &self.latest
    }

    /// Deltas remembered.
    pub fn len(&self) -> usize {
        self.deltas.len()
    }

    /// Whether no delta is remembered.
    pub fn is_empty(&self) -> bool {
        self.deltas.is_empty()
    }

    /// Makes `next` the latest; `delta` leads to it from the one before.
    pub fn push(&mut self, delta: Arc<Delta>, next: Arc<Snapshot>) {
        debug_assert_eq!((delta.base(), delta.target()), (self.latest.version(), next.version()));
        let len = delta.footprint();
        self.bytes += len;
        self.deltas.push_back((delta, len));
        self.latest = next;
        while self.deltas.len() > self.limits.deltas.max(1)
            || (self.bytes > self.limits.bytes && self.deltas.len() > 1)
        {
            let Some((forgotten, len)) = self.deltas.pop_front() else { break };
            self.bytes -= len;
            self.oldest = (forgotten.target(), forgotten.checksum());
        }
    }

    /// How to bring a responder that holds `held` up to date.
    pub fn plan(&self, held: Option<&Held>) -> Plan {
        let Some(held) = held.filter(|held| held.version != Version::NONE) else {
            return Plan::Full(self.latest.clone());
        };
        if let Some(missed) = self.since(held) {
            return match missed {
                0 => Plan::Nothing,
                _ => Plan::Deltas(
                    self.deltas.range(self.deltas.len() - missed..).map(|d| d.0.clone()).collect(),
                ),
            };
        }
        match self.latest.digest().differing(&held.bucket_sums) {
            Some(set) => Plan::Buckets(self.latest.clone(), Box::new(set)),
            None => Plan::Full(self.latest.clone()),
        }
    }

    /// How many of the remembered deltas lead from `held` to the latest; `None` if that state was
    /// forgotten or never was.
    fn since(&self, held: &Held) -> Option<usize> {
        let state = (held.version, held.checksum);
        if state == self.oldest {
            return Some(self.deltas.len());
        }
        let newest_first = self.deltas.iter().rev();
        newest_first
            .map(|(delta, _)| (delta.target(), delta.checksum()))
            .position(|reached| reached == state)
    }
}

impl Plan {
    /// The messages that carry it out, for a responder that holds `held`; `None` for nothing.
    pub fn encode(self, held: Option<&Held>) -> Option<Encoder> {
        match self {
            Self::Nothing => None,
            Self::Deltas(deltas) => {
                let merged = merge_all(&deltas).expect("remembered deltas follow each other");
                merged.map(Encoder::delta)
            }
            Self::Buckets(snapshot, set) => {
                let (base, checksum) = held.map(|held| (held.version, held.checksum))?;
                Some(Encoder::buckets(snapshot, *set, base, checksum))
            }
            Self::Full(snapshot) => Some(Encoder::full(snapshot)),
        }
    }
}

/// Merges deltas that follow each other; `None` of none.
fn merge_all(deltas: &[Arc<Delta>]) -> Result<Option<Arc<Delta>>, DeltaError> {
    // By halves, so that a change is copied as often as the logarithm of their number.
    match deltas {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        _ => {
            let (first, second) = deltas.split_at(deltas.len() / 2);
            Ok(match (merge_all(first)?, merge_all(second)?) {
                (Some(first), Some(second)) => Some(Arc::new(merge(&first, &second)?)),
                (first, second) => first.or(second),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::registry::{AliasGuid, RegistryPlane};
    use super::super::testing::SESSION;
    use super::super::{FabricPlane, Session, delta};
    use super::*;
    use ib_mad::types::Guid;

    /// A registry with as many alias GUIDs as its sequence number.
    fn state(session: Session, sequence: u64) -> Arc<Snapshot> {
        let alias_guids = (0..sequence)
            .map(|n| Arc::new(AliasGuid { alias: Guid(n), port_guid: Guid(1), index: 1 }))
            .collect();
        let registry = RegistryPlane { sequence, alias_guids, ..RegistryPlane::default() };
        Arc::new(Snapshot::build(session, 1, FabricPlane::default(), registry).unwrap())
    }

    fn history(from: u64, to: u64, limits: HistoryLimits) -> History {
        let mut history = History::new(state(SESSION, from), limits);
        for sequence in from + 1..=to {
            let next = state(SESSION, sequence);
            let delta = Arc::new(delta::construct(history.latest(), &next));
            history.push(delta, next);
        }
        history
    }

    fn held(snapshot: &Snapshot) -> Held {
        Held {
            version: snapshot.version(),
            checksum: snapshot.checksum(),
            bucket_sums: snapshot.digest().to_bytes().into(),
        }
    }

    #[test]
    fn who_lags_gets_what_it_missed_as_one_delta() {
        let history = history(1, 40, HistoryLimits::default());
        let old = state(SESSION, 7);
        let Plan::Deltas(deltas) = history.plan(Some(&held(&old))) else { panic!() };
        assert_eq!(deltas.len(), 33);
        let merged = merge_all(&deltas).unwrap().unwrap();
        assert_eq!(delta::apply(&old, &merged).unwrap(), **history.latest());
    }

    #[test]
    fn who_is_up_to_date_gets_nothing_and_who_has_nothing_gets_all() {
        let history = history(1, 3, HistoryLimits::default());
        assert!(matches!(history.plan(Some(&held(history.latest()))), Plan::Nothing));
        assert!(matches!(history.plan(None), Plan::Full(_)));
        assert!(matches!(history.plan(Some(&held(&Snapshot::empty()))), Plan::Full(_)));
    }

    #[test]
    fn who_comes_from_another_session_gets_differing_buckets() {
        let history = history(30, 40, HistoryLimits::default());
        let before = Session { epoch: SESSION.epoch - 1, ..SESSION };
        let Plan::Buckets(_, set) = history.plan(Some(&held(&state(before, 39)))) else { panic!() };
        assert_eq!(set.len(), 1, "one row more, so one bucket");
        let Plan::Buckets(_, set) = history.plan(Some(&held(&state(before, 40)))) else { panic!() };
        assert!(set.is_empty(), "the same rows under another version");
    }

    #[test]
    fn another_state_under_a_known_version_is_not_trusted() {
        let history = history(1, 5, HistoryLimits::default());
        let mut astray = held(&state(SESSION, 3));
        astray.checksum.registry ^= 1;
        assert!(matches!(history.plan(Some(&astray)), Plan::Buckets(..)));
        astray.bucket_sums = Bytes::new();
        assert!(matches!(history.plan(Some(&astray)), Plan::Full(_)));
    }

    #[test]
    fn the_oldest_deltas_are_forgotten() {
        let few = history(1, 20, HistoryLimits { deltas: 4, bytes: 1 << 20 });
        assert_eq!(few.len(), 4);
        assert!(matches!(few.plan(Some(&held(&state(SESSION, 16)))), Plan::Deltas(_)));
        assert!(matches!(few.plan(Some(&held(&state(SESSION, 15)))), Plan::Buckets(..)));
        let small = history(1, 20, HistoryLimits { deltas: 100, bytes: 5 });
        assert_eq!(small.len(), 1);
        assert!(matches!(small.plan(Some(&held(&state(SESSION, 19)))), Plan::Deltas(_)));
        assert!(matches!(small.plan(Some(&held(&state(SESSION, 18)))), Plan::Buckets(..)));
        assert!(matches!(small.plan(Some(&held(small.latest()))), Plan::Nothing));
    }
}
