//! Outcomes of requests, kept for managers that follow the registry: a client whose answer was lost
//! with its master repeats its request to the next one, and gets the same answer.

use std::collections::VecDeque;
use std::sync::Arc;

use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_sm;
use sa_proto::snapshot::{Session, Version};
use sm_core::registry::{Changes, OUTCOMES_MAX, outcome};

/// Outcomes in a message, at most: each has up to 256 bytes.
const PER_MESSAGE: usize = 1024;

/// What was decided in the current session within the time in which clients repeat requests. Holds
/// up to [`OUTCOMES_MAX`] outcomes and the last commit; the oldest are discarded first and counted.
#[derive(Debug)]
pub(super) struct OutcomeLog {
    session: Session,
    commits: VecDeque<Commit>,
    /// Number of the first of them.
    first: u64,
    /// Outcomes in them.
    len: usize,
}

/// A commit whose outcomes are kept.
#[derive(Debug)]
struct Commit {
    sequence: u64,
    /// Registry time of its last decision, seconds.
    last_s: u64,
    changes: Arc<Changes>,
}

/// How far a follower got what was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    session: Session,
    next: u64,
}

impl Default for Position {
    fn default() -> Self {
        Self { session: Version::NONE.session, next: 0 }
    }
}

impl Default for OutcomeLog {
    fn default() -> Self {
        Self { session: Version::NONE.session, commits: VecDeque::new(), first: 0, len: 0 }
    }
}

impl OutcomeLog {
    /// Logs the outcomes of a commit after which the registry has this sequence number. The first
    /// of a session replace those of the session before. Returns how many were discarded early.
    pub(super) fn push(
        &mut self,
        session: Session,
        sequence: u64,
        changes: &Arc<Changes>,
    ) -> usize {
        if session != self.session {
            *self = Self { session, ..Self::default() };
        }
        let since_s = changes.outcomes_since_s;
        while self.commits.front().is_some_and(|commit| commit.last_s < since_s) {
            self.pop();
        }
        let Some(last_s) = changes.outcomes_put.iter().map(|(_, outcome)| outcome.at_s).max()
        else {
            return 0;
        };
        self.len += changes.outcomes_put.len();
        self.commits.push_back(Commit { sequence, last_s, changes: changes.clone() });
        let mut forgotten = 0;
        while self.len > OUTCOMES_MAX && self.commits.len() > 1 {
            forgotten += self.pop();
        }
        forgotten
    }

    /// Discards the first commit; returns the number of its outcomes.
    fn pop(&mut self) -> usize {
        let Some(commit) = self.commits.pop_front() else { return 0 };
        self.first += 1;
        let count = commit.changes.outcomes_put.len();
        self.len -= count;
        count
    }

    /// Messages with what was logged since `position`, which moves to the end.
    pub(super) fn messages_since(&self, position: &mut Position) -> VecDeque<proto::FromSm> {
        let next = if position.session == self.session { position.next } else { 0 };
        let skipped = next.saturating_sub(self.first) as usize;
        let mut messages = VecDeque::new();
        for commit in self.commits.iter().skip(skipped) {
            let version = Version {
                session: self.session,
                fabric_generation: 0,
                registry_sequence: commit.sequence,
            };
            for outcomes in commit.changes.outcomes_put.chunks(PER_MESSAGE) {
                let entries = outcome::encoding::encode(outcomes).into();
                let outcomes = proto::Outcomes { version: Some(version.into()), entries };
                let message = Some(from_sm::Message::Outcomes(outcomes));
                messages.push_back(proto::FromSm { message });
            }
        }
        let next = self.first + self.commits.len() as u64;
        *position = Position { session: self.session, next };
        messages
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use ib_mad::wire::mad::Status;
    use sm_core::registry::Outcome;
    use sm_core::registry::testing::outcome_key;

    use super::*;

    fn session(epoch: u64) -> Session {
        Session { epoch, sm_guid: Guid(1) }
    }

    /// A commit with requests of these TransactionIDs, decided at `at_s`.
    fn commit(tids: std::ops::Range<u64>, at_s: u64, since_s: u64) -> Arc<Changes> {
        let outcome = |tid| (outcome_key(tid), Outcome { status: Status::OK, data: None, at_s });
        let outcomes_put = tids.map(outcome).collect();
        Arc::new(Changes { outcomes_put, outcomes_since_s: since_s, ..Changes::default() })
    }

    /// Sequence numbers and TransactionIDs of messages.
    fn read(messages: VecDeque<proto::FromSm>) -> Vec<(u64, Vec<u64>)> {
        let read = |message: proto::FromSm| {
            let Some(from_sm::Message::Outcomes(outcomes)) = message.message else { panic!() };
            let mut all = Vec::new();
            outcome::encoding::decode(&outcomes.entries, &mut all).unwrap();
            let version = Version::try_from(outcomes.version).unwrap();
            (version.registry_sequence, all.iter().map(|(key, _)| key.tid).collect())
        };
        messages.into_iter().map(read).collect()
    }

    #[test]
    fn each_outcome_is_sent_once_and_no_longer_than_clients_repeat() {
        let (mut log, mut position) = (OutcomeLog::default(), Position::default());
        log.push(session(1), 5, &commit(0..2, 100, 90));
        log.push(session(1), 6, &commit(2..3, 101, 91));
        assert_eq!(read(log.messages_since(&mut position)), [(5, vec![0, 1]), (6, vec![2])]);
        assert!(log.messages_since(&mut position).is_empty());
        log.push(session(1), 7, &commit(3..4, 111, 101));
        assert_eq!(read(log.messages_since(&mut position)), [(7, vec![3])]);
        let all = read(log.messages_since(&mut Position::default()));
        assert_eq!(all, [(6, vec![2]), (7, vec![3])], "the first has expired");
    }

    #[test]
    fn a_session_begins_with_what_its_master_knows() {
        let (mut log, mut position) = (OutcomeLog::default(), Position::default());
        log.push(session(1), 5, &commit(0..2, 100, 90));
        log.messages_since(&mut position);
        log.push(session(2), 9, &commit(1..2, 100, 0));
        assert_eq!(read(log.messages_since(&mut position)), [(9, vec![1])]);
    }

    #[test]
    fn the_oldest_beyond_the_limit_are_counted() {
        let mut log = OutcomeLog::default();
        let half = OUTCOMES_MAX as u64 / 2;
        let forgotten =
            [0, 1, 2].map(|number| log.push(session(1), number, &commit(0..half, 100, 90)));
        assert_eq!((forgotten, log.len), ([0, 0, half as usize], OUTCOMES_MAX));
        let messages = log.messages_since(&mut Position::default());
        assert_eq!(messages.len(), OUTCOMES_MAX / PER_MESSAGE, "none is longer than permitted");
    }
}
