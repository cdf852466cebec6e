//! The publisher's deltas of recent versions, and the updates derived from them.
//!
//! A responder needs only the latest snapshot. A responder that lags receives the missed deltas,
//! merged into one. A responder whose version is no longer kept (it lagged for long, or follows
//! another session) receives the buckets that differ. A responder without a snapshot receives a
//! full one.

use std::collections::VecDeque;
use std::sync::Arc;

use prost::bytes::Bytes;

use super::codec::Encoder;
use super::delta::{Delta, DeltaError, merge};
use super::digest::{BucketSet, Checksum};
use super::state::Snapshot;
use super::version::Version;

/// Limits of a history. Beyond either one the oldest deltas are dropped; the newest delta, which
/// all responders need, is always kept.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Number of deltas.
    pub deltas: usize,
    /// Approximate size of all deltas in bytes.
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
    /// Each with its size; each starts from the result of the one before.
    deltas: VecDeque<(Arc<Delta>, usize)>,
    /// The version that the oldest delta starts from.
    oldest: (Version, Checksum),
    bytes: usize,
    limits: HistoryLimits,
}

/// The state that a responder reports to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Version.
    pub version: Version,
    /// Checksum over all rows.
    pub checksum: Checksum,
    /// Bucket sums in the format of [`Digest::to_bytes`](super::Digest::to_bytes); empty if the
    /// peer is known to hold exactly `version`.
    pub bucket_sums: Bytes,
}

/// The update that a responder needs.
#[derive(Debug)]
pub enum Plan {
    /// No update: the responder is up to date.
    Nothing,
    /// These deltas, merged into one.
    Deltas(Vec<Arc<Delta>>),
    /// The rows of these buckets.
    Buckets(Arc<Snapshot>, Box<BucketSet>),
    /// The full snapshot.
    Full(Arc<Snapshot>),
}

impl History {
    /// A history that starts with `latest`.
    pub fn new(latest: Arc<Snapshot>, limits: HistoryLimits) -> Self {
        let oldest = (latest.version(), latest.checksum());
        Self { latest, deltas: VecDeque::new(), oldest, bytes: 0, limits }
    }

    /// The latest snapshot.
    pub fn latest(&self) -> &Arc<Snapshot> {
        &self.latest
    }

    /// Number of deltas kept.
    pub fn len(&self) -> usize {
        self.deltas.len()
    }

    /// Whether no delta is kept.
    pub fn is_empty(&self) -> bool {
        self.deltas.is_empty()
    }

    /// Makes `next` the latest snapshot; `delta` leads to it from the previous one.
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

    /// The update for a responder that holds `held`.
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

    /// How many of the kept deltas lead from `held` to the latest snapshot; `None` if `held` is not
    /// among the kept versions.
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
    /// The messages of an update for a responder that holds `held`; `None` if there is nothing to
    /// send.
    pub fn encode(self, held: Option<&Held>) -> Option<Encoder> {
        match self {
            Self::Nothing => None,
            Self::Deltas(deltas) => {
                let merged = merge_all(&deltas).expect("stored deltas are consecutive");
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

/// Merges consecutive deltas; `None` if there are none.
fn merge_all(deltas: &[Arc<Delta>]) -> Result<Option<Arc<Delta>>, DeltaError> {
    // By halves, so that each change is copied only a logarithmic number of times.
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
