//! Models of clients: which query is due when. Each is a state machine without I/O, driven by the
//! [`requester`](crate::requester), or by a test with virtual time.
//!
//! | module | model |
//! |---|---|
//! | [`closed`] | a constant number of outstanding queries |
//! | [`open`] | a schedule independent of answers; [`ramp`] raises its rate |
//! | [`linux_client`] | ports with a window each and Linux's retries |
//! | [`job_start`] | all ports query their peers at once |
//! | [`reboot`] | ports come up, join, subscribe, register, and leave again |
//! | [`acm`] | ibacm: a join, then paths one by one |
//! | [`srp`] | srp_daemon: subscriptions and searches for targets |
//! | [`malformed`] | malformed among valid queries |
//!
//! Models with many ports share [`fleet`], those with a schedule [`pace`].

pub mod acm;
pub mod closed;
pub mod fleet;
pub mod job_start;
pub mod linux_client;
pub mod malformed;
pub mod open;
pub mod pace;
pub mod ramp;
pub mod reboot;
pub mod srp;

use std::time::{Duration, Instant};

use ib_mad::wire::MAD_LEN;

use crate::ask::Ask;
use crate::ask::malformed::Form;
use crate::check::Verdict;
use crate::histogram::{Errors, Latencies};

/// A query that is due.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// The request.
    pub ask: Ask,
    /// Index of the requesting port.
    pub port: u32,
    /// Its scheduled time; latency counts from then.
    pub due: Instant,
    /// Timeout and retries.
    pub patience: Patience,
}

/// Timeout and number of retries of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time before each retry.
    pub timeout: Duration,
    /// Number of retries.
    pub retries: u32,
}

impl Patience {
    /// Linux's `ib_sa` with a caller's timeout of two seconds, as RDMA CM: a tenth of that before
    /// each retry.
    pub const RDMA_CM: Self = Self { timeout: Duration::from_millis(200), retries: 10 };
    /// Linux's `ib_sa` joining and leaving (`multicast.c`): three seconds.
    pub const JOIN: Self = Self { timeout: Duration::from_millis(300), retries: 10 };
    /// `ibacm` (`sa_timeout`, `sa_retries`).
    pub const ACM: Self = Self { timeout: Duration::from_secs(2), retries: 2 };
    /// `srp_daemon`: three attempts in all.
    pub const SRP: Self = Self { timeout: Duration::from_secs(5), retries: 2 };

    /// Retries for a caller that gives up after `deadline`: as many timeouts as fit into it, at
    /// least one.
    pub fn until(self, deadline: Option<Duration>) -> Self {
        let Some(deadline) = deadline else { return self };
        let tries = deadline.as_nanos().div_ceil(self.timeout.as_nanos().max(1)).max(1);
        let retries = u32::try_from(tries - 1).unwrap_or(u32::MAX);
        Self { retries: self.retries.min(retries), ..self }
    }
}

/// Result of a query.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// A response.
    Answered {
        /// The verdict on it.
        verdict: Verdict,
        /// Headers and data; for a table, all of it.
        message: &'a [u8],
    },
    /// No response, after all retries.
    Silent,
}

impl<'a> Outcome<'a> {
    /// Whether the query is settled: the client has the record, or knows that there is none.
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Answered { verdict: Verdict::Resolved | Verdict::NoPath, .. })
    }

    /// The single MAD of a correct response.
    pub fn mad(&self) -> Option<&'a [u8; MAD_LEN]> {
        match *self {
            Self::Answered { verdict: Verdict::Resolved, message } => message.try_into().ok(),
            _ => None,
        }
    }
}

/// A model of clients.
pub trait Scenario: Send {
    /// Starts and returns the next query that is due. Call until it returns `None`. `outstanding`
    /// is the number of queries started and not ended yet.
    fn poll_query(&mut self, now: Instant, outstanding: usize) -> Option<Query>;

    /// Handles the result of a query.
    fn handle_outcome(&mut self, now: Instant, query: &Query, outcome: &Outcome<'_>);

    /// When [`poll_query`](Self::poll_query) may next return a query, unless a result comes before.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Whether no further query will be due, unless the result of an outstanding one causes it.
    fn is_over(&self, now: Instant) -> bool;

    /// Limit of outstanding queries.
    fn capacity(&self) -> usize;

    /// The scenario's own counts.
    fn summary(&self) -> Summary {
        Summary::default()
    }
}

/// Counts of a scenario itself. Those of several threads are added.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Queries that were due and never sent: their clients waited in vain.
    pub unsent: u64,
    /// Times at which expected events occurred, from the start of the storm.
    pub milestones: Vec<Milestone>,
    /// Results of malformed requests.
    pub malformed: Vec<Malformed>,
}

/// Times of an event that is expected a known number of times.
#[derive(Clone, Debug)]
pub struct Milestone {
    /// Name, such as "paths resolved".
    pub name: &'static str,
    /// Expected number of events.
    pub expected: u64,
    /// Events that will not occur because the request was correctly refused.
    pub no_path: u64,
    /// Times of the events, from the start.
    pub at: Latencies,
}

impl Milestone {
    /// An event expected this number of times.
    pub fn new(name: &'static str, expected: usize) -> Self {
        Self { name, expected: expected as u64, no_path: 0, at: Latencies::default() }
    }

    /// Records one event, at this time from the start, unless it failed.
    pub fn record(&mut self, took: Duration, outcome: &Outcome<'_>) {
        match outcome {
            Outcome::Answered { verdict: Verdict::Resolved, .. } => self.at.record(took),
            Outcome::Answered { verdict: Verdict::NoPath, .. } => self.no_path += 1,
            _ => {}
        }
    }

    /// Time by which a share of `percent` / 100 of the expected, not refused events had occurred;
    /// `None` if that was not reached before the storm ended.
    pub fn reached(&self, percent: f64) -> Option<Duration> {
        let there = self.at.len() as f64;
        let expected = self.expected.saturating_sub(self.no_path);
        let needed = (expected as f64 * percent / 100.0).ceil();
        (there >= needed && there > 0.0).then(|| self.at.percentile(100.0 * needed / there))
    }
}

/// Results of one kind of malformed requests.
#[derive(Clone, Debug)]
pub struct Malformed {
    /// The kind.
    pub form: Form,
    /// Sent.
    pub sent: u64,
    /// Answered with status 0.
    pub accepted: u64,
    /// Answered with other statuses.
    pub refused: Errors,
    /// Answered with an ABORT.
    pub aborted: u64,
    /// Queries that were not answered.
    pub silent: u64,
}

impl Summary {
    /// Adds the counts of another thread of the same scenario.
    pub fn add(&mut self, other: Self) {
        self.unsent += other.unsent;
        for milestone in other.milestones {
            match self.milestones.iter_mut().find(|mine| mine.name == milestone.name) {
                Some(mine) => {
                    mine.expected += milestone.expected;
                    mine.no_path += milestone.no_path;
                    mine.at.add(&milestone.at);
                }
                None => self.milestones.push(milestone),
            }
        }
        for theirs in other.malformed {
            match self.malformed.iter_mut().find(|mine| mine.form == theirs.form) {
                Some(mine) => {
                    mine.sent += theirs.sent;
                    mine.accepted += theirs.accepted;
                    mine.aborted += theirs.aborted;
                    mine.silent += theirs.silent;
                    theirs.refused.iter().for_each(|(status, n)| mine.refused.add(status, n));
                }
                None => self.malformed.push(theirs),
            }
        }
    }
}

/// The part of a storm that one thread runs.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Thread number, from 0.
    pub number: usize,
    /// Number of threads.
    pub of: usize,
}

impl Part {
    /// A single thread's part: everything.
    pub const ALL: Self = Self { number: 0, of: 1 };

    /// This thread's share of `all`, as evenly as possible.
    pub fn share(self, all: u64) -> u64 {
        let (number, of) = (self.number as u64, self.of as u64);
        all / of + u64::from(number < all % of)
    }

    /// This thread's ports, of the first `count`.
    pub fn ports(self, count: usize) -> impl Iterator<Item = u32> {
        (self.number..count).step_by(self.of).map(|port| port as u32)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ib_mad::wire::mad::Status;

    pub(crate) const MS: Duration = Duration::from_millis(1);

    pub(crate) const RESOLVED: Outcome<'static> =
        Outcome::Answered { verdict: Verdict::Resolved, message: &[] };
    pub(crate) const REFUSED: Outcome<'static> =
        Outcome::Answered { verdict: Verdict::Error(Status::BUSY), message: &[] };

    /// All queries that are due, without any responses in between.
    pub(crate) fn due(scenario: &mut dyn Scenario, now: Instant) -> Vec<Query> {
        let mut queries = Vec::new();
        while let Some(query) = scenario.poll_query(now, queries.len()) {
            assert!(query.due <= now, "none is begun before it is due");
            queries.push(query);
        }
        queries
    }

    #[test]
    fn a_deadline_leaves_as_many_tries_as_fit() {
        let linux = Patience::RDMA_CM;
        assert_eq!(linux.until(None).retries, 10);
        assert_eq!(linux.until(Some(Duration::from_secs(2))).retries, 9, "ten of 200 ms");
        assert_eq!(linux.until(Some(500 * MS)).retries, 2);
        assert_eq!(linux.until(Some(MS)).retries, 0);
        assert_eq!(linux.until(Some(Duration::from_secs(9))).retries, 10);
    }

    #[test]
    fn a_milestone_is_reached_when_so_much_of_what_is_expected_is_there() {
        let mut milestone = Milestone::new("", 10);
        for n in 1..=5 {
            milestone.at.record(n * 100 * MS);
        }
        let half = milestone.reached(50.0).unwrap().as_millis();
        assert!((500..=501).contains(&half), "{half}");
        assert_eq!(milestone.reached(60.0), None);
        assert!((300..=301).contains(&milestone.reached(30.0).unwrap().as_millis()));
    }

    /// Regression: a correct refusal was counted as a resolved path here, but not in the sum.
    #[test]
    fn what_is_rightly_refused_is_neither_reached_nor_waited_for() {
        let mut milestone = Milestone::new("", 3);
        let refused = Outcome::Answered { verdict: Verdict::NoPath, message: &[] };
        for (ms, outcome) in [(1, &RESOLVED), (2, &refused), (3, &REFUSED), (4, &Outcome::Silent)] {
            milestone.record(ms * MS, outcome);
        }
        assert_eq!((milestone.at.len(), milestone.no_path), (1, 1));
        assert_eq!(milestone.reached(100.0), None);
        milestone.record(5 * MS, &RESOLVED);
        assert_eq!(milestone.reached(100.0).unwrap().as_millis(), 5);
    }

    #[test]
    fn parts_make_up_the_whole() {
        for (all, of) in [(10, 3), (2, 4), (0, 2), (1_000_001, 7)] {
            let parts = (0..of).map(|number| Part { number, of });
            assert_eq!(parts.clone().map(|part| part.share(all)).sum::<u64>(), all);
            let mut ports: Vec<_> = parts.flat_map(|part| part.ports(13)).collect();
            ports.sort_unstable();
            assert_eq!(ports, (0..13).collect::<Vec<_>>());
        }
    }
}
