//! Heartbeats to a subnet manager that follows the registry, and conclusions from its answers.
//!
//! A heartbeat has the published version and states which responders can have acknowledged writes,
//! so that the follower knows how old its knowledge is. This module decides; it never sends, waits
//! or reads a clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sa_proto::proto::snapshot as proto;
use sa_proto::snapshot::{RegistryVersion, Version};
use sa_proto::state::StateVersion;

use super::LEASE;

/// Time between two heartbeats.
const INTERVAL: Duration = Duration::from_millis(250);
/// Heartbeats remembered whose version the follower has not stored.
const REMEMBERED_MAX: usize = 64;

/// The heartbeats of one stream.
#[derive(Debug)]
pub(super) struct Heartbeats {
    due: Instant,
    number: u64,
    /// Number of the last one that was answered.
    confirmed: u64,
    /// Heartbeats with a version that the follower has not stored: when they were sent, and the
    /// versions of registry and state.
    unmatched: VecDeque<(Instant, RegistryVersion, StateVersion)>,
    /// The follower had stored all that was published at this time.
    current_at: Option<Instant>,
    /// The last list of responders that was sent.
    responders: Vec<u64>,
}

impl Heartbeats {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            due: now,
            number: 0,
            confirmed: 0,
            unmatched: VecDeque::new(),
            current_at: None,
            responders: Vec::new(),
        }
    }

    /// When to call [`poll`](Self::poll) next.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// The list of responders may have changed: the next heartbeat is due at once if it has.
    pub(super) fn handle_responders(&mut self, now: Instant, responders: &[u64]) {
        if self.responders != responders {
            self.due = now;
        }
    }

    /// Skips a heartbeat: this SM is not master.
    pub(super) fn skip(&mut self, now: Instant) {
        self.due = now + INTERVAL;
    }

    /// The next heartbeat, if it is due. `state`: the version published last, if the follower takes
    /// it.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        version: Version,
        state: Option<StateVersion>,
        responders: Vec<u64>,
        awaited: bool,
    ) -> Option<proto::Heartbeat> {
        if now < self.due {
            return None;
        }
        self.due = now + INTERVAL;
        self.number += 1;
        if self.unmatched.len() == REMEMBERED_MAX {
            self.unmatched.pop_front();
        }
        self.unmatched.push_back((now, version.registry(), state.unwrap_or_default()));
        self.responders.clone_from(&responders);
        Some(proto::Heartbeat {
            number: self.number,
            confirmed: self.confirmed,
            version: Some(version.into()),
            responders,
            awaited,
            state: state.map(Into::into),
        })
    }

    /// The follower has stored these versions, and received the heartbeat with this number unless
    /// that is 0. `state` is all zeros if it takes none.
    pub(super) fn handle_holding(
        &mut self,
        now: Instant,
        number: u64,
        held: RegistryVersion,
        state: StateVersion,
    ) {
        if self.confirmed == 0 && number != 0 {
            // The first contact is confirmed at once.
            self.due = now;
        }
        self.confirmed = self.confirmed.max(number.min(self.number));
        while let Some(&(sent, version, of_state)) = self.unmatched.front()
            && version <= held
            && of_state <= state
        {
            self.unmatched.pop_front();
            self.current_at = Some(sent);
        }
    }

    /// The last time at which the follower had stored everything published until then.
    pub(super) fn current_at(&self) -> Option<Instant> {
        self.current_at
    }

    /// Whether the follower is in step: it has stored everything published until recently.
    pub(super) fn is_in_step(&self, now: Instant) -> bool {
        self.current_at.is_some_and(|at| now <= at + LEASE)
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use sa_proto::snapshot::Session;

    use super::*;

    const NO_STATE: StateVersion =
        StateVersion { session: Session { epoch: 0, sm_guid: Guid(0) }, number: 0 };

    fn version(registry_sequence: u64) -> Version {
        let session = Session { epoch: 5, sm_guid: Guid(1) };
        Version { session, fabric_generation: 1, registry_sequence }
    }

    #[test]
    fn heartbeats_are_spaced_and_a_new_responder_is_announced_at_once() {
        let now = Instant::now();
        let mut beats = Heartbeats::new(now);
        let first = beats.poll(now, version(1), None, vec![7], false).unwrap();
        assert_eq!((first.number, first.confirmed, &*first.responders), (1, 0, &[7][..]));
        assert!(beats.poll(now, version(1), None, vec![7], false).is_none());
        beats.handle_responders(now, &[7]);
        assert_eq!(beats.poll_timeout(), now + INTERVAL);
        beats.handle_responders(now, &[7, 8]);
        beats.handle_holding(now, 1, version(1).registry(), NO_STATE);
        let second = beats.poll(now, version(1), None, vec![7, 8], true).unwrap();
        assert_eq!((second.number, second.confirmed, second.awaited), (2, 1, true));
    }

    #[test]
    fn a_follower_is_in_step_as_long_as_it_stores_what_is_published() {
        let start = Instant::now();
        let mut beats = Heartbeats::new(start);
        assert!(!beats.is_in_step(start));
        beats.poll(start, version(10), None, Vec::new(), false);
        beats.handle_holding(start, 1, version(9).registry(), NO_STATE);
        assert!(!beats.is_in_step(start), "it lacks a write");
        beats.handle_holding(start, 0, version(10).registry(), NO_STATE);
        assert!(beats.is_in_step(start));
        // It is a little late each time, as under load.
        let mut now = start;
        for sequence in 1..40 {
            now = start + INTERVAL * sequence;
            let number = u64::from(sequence);
            beats.poll(now, version(10 + 10 * number), None, Vec::new(), false);
            beats.handle_holding(now, number, version(5 + 10 * number).registry(), NO_STATE);
            assert!(beats.is_in_step(now), "{sequence}");
        }
        let silent = now + LEASE + INTERVAL;
        assert!(!beats.is_in_step(silent));
    }

    /// A host that was off at the takeover came back with other LIDs: the standby had counted as in
    /// step without them.
    #[test]
    fn a_follower_that_takes_the_state_is_in_step_only_with_it() {
        let now = Instant::now();
        let mut beats = Heartbeats::new(now);
        let state = |number| StateVersion { session: version(1).session, number };
        let beat = beats.poll(now, version(10), Some(state(3)), Vec::new(), false).unwrap();
        assert_eq!(beat.state.map(StateVersion::from), Some(state(3)));
        beats.handle_holding(now, 1, version(10).registry(), state(2));
        assert!(!beats.is_in_step(now));
        beats.handle_holding(now, 0, version(10).registry(), state(3));
        assert!(beats.is_in_step(now));
    }
}
