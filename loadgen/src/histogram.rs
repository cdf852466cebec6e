//! Latencies and counts: kept by each driver for itself, handed over now and then.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use ib_mad::wire::mad::Status;

use crate::check::Fault;

/// Latencies are told apart to three digits from here on, nanoseconds.
const LATENCY_MIN_NS: u64 = 100;
/// Longer ones count as this, nanoseconds.
const LATENCY_MAX_NS: u64 = 600_000_000_000;
const DIGITS: u8 = 3;

/// Error statuses told apart; others share the last entry's count.
const STATUSES_MAX: usize = 16;

/// What happened to queries and packets. At the end of a storm `queries` is the sum of `answered`,
/// `timed_out` and `abandoned`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Queries begun.
    pub queries: u64,
    /// Packets sent, retries included.
    pub sent: u64,
    /// Retries among them.
    pub retries: u64,
    /// Queries answered, rightly or wrongly.
    pub answered: u64,
    /// Queries without an answer after all retries.
    pub timed_out: u64,
    /// Queries outstanding when the storm was broken off.
    pub abandoned: u64,
    /// Answers with a path, right as far as was checked.
    pub resolved: u64,
    /// Answers that there is no path, rightly.
    pub no_path: u64,
    /// Answers with an error status, by status.
    pub errors: Errors,
    /// Wrong answers, by fault.
    pub wrong: [u64; Fault::ALL.len()],
    /// Answers to nobody: late, or twice.
    pub late: u64,
    /// Packets that are no answers to PathRecord queries.
    pub strange: u64,
    /// Requests that came back undelivered.
    pub undelivered: u64,
    /// Answers that said whom to ask instead, who was then asked.
    pub redirected: u64,
}

impl Counts {
    /// Wrong answers of every kind.
    pub fn wrong_total(&self) -> u64 {
        self.wrong.iter().sum()
    }

    /// Adds another driver's.
    pub fn add(&mut self, other: &Self) {
        let Self {
            queries,
            sent,
            retries,
            answered,
            timed_out,
            abandoned,
            resolved,
            no_path,
            errors,
            wrong,
            late,
            strange,
            undelivered,
            redirected,
        } = other;
        self.queries += queries;
        self.sent += sent;
        self.retries += retries;
        self.answered += answered;
        self.timed_out += timed_out;
        self.abandoned += abandoned;
        self.resolved += resolved;
        self.no_path += no_path;
        errors.iter().for_each(|(status, count)| self.errors.add(status, count));
        self.wrong.iter_mut().zip(wrong).for_each(|(sum, count)| *sum += count);
        self.late += late;
        self.strange += strange;
        self.undelivered += undelivered;
        self.redirected += redirected;
    }
}

/// Counts by error status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    entries: [(Status, u64); STATUSES_MAX],
}

impl Errors {
    /// Counts an error.
    pub fn add(&mut self, status: Status, count: u64) {
        let free = |entry: &(Status, u64)| entry.0 == status || entry.1 == 0;
        let at = self.entries.iter().position(free).unwrap_or(STATUSES_MAX - 1);
        if self.entries[at].1 == 0 {
            self.entries[at].0 = status;
        }
        self.entries[at].1 += count;
    }

    /// Statuses that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (Status, u64)> + '_ {
        self.entries.iter().copied().filter(|&(_, count)| count > 0)
    }

    /// Errors of every status.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }
}

/// Latencies, to three digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(LATENCY_MIN_NS, LATENCY_MAX_NS, DIGITS);
        Self(histogram.expect("constant bounds that fit"))
    }
}

impl Latencies {
    /// Takes one.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Takes all of another's.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latency that a share of `percentile` / 100 did not exceed.
    pub fn percentile(&self, percentile: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percentile))
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// The average.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }
}

/// Where drivers hand over what they counted, a few times a second.
#[derive(Default)]
pub struct Ledger(Mutex<Entry>);

/// What one driver has handed over.
#[derive(Clone, Default)]
pub struct Entry {
    /// Since the start.
    pub counts: Counts,
    /// Since they were last taken.
    pub recent: Latencies,
}

impl Ledger {
    /// Hands over: `counts` so far, and `recent` latencies, which are cleared. Does not allocate.
    pub fn hand_over(&self, counts: &Counts, recent: &mut Latencies) {
        let mut entry = self.lock();
        entry.counts = *counts;
        entry.recent.add(recent);
        drop(entry);
        recent.clear();
    }

    /// Adds what is there to `sum`, and clears the recent latencies.
    pub fn take_into(&self, sum: &mut Entry) {
        let mut entry = self.lock();
        sum.counts.add(&entry.counts);
        sum.recent.add(&entry.recent);
        entry.recent.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Entry> {
        // Counts are whole numbers whatever a panicking driver left undone.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_three_digits() {
        let mut latencies = Latencies::default();
        for us in 1..=10_000 {
            latencies.record(Duration::from_micros(us));
        }
        for (percentile, us) in [(50.0, 5_000.0), (99.0, 9_900.0), (99.9, 9_990.0)] {
            let got = latencies.percentile(percentile).as_secs_f64() * 1e6;
            assert!((got / us - 1.0).abs() < 2e-3, "p{percentile}: {got} µs");
        }
        assert!(latencies.max() >= Duration::from_micros(10_000));
        latencies.record(Duration::from_secs(10_000));
        assert_eq!(latencies.len(), 10_001, "those beyond the range count too");
    }

    #[test]
    fn a_driver_hands_over_totals_and_recent_latencies() {
        let (a, b) = (Ledger::default(), Ledger::default());
        let mut recent = Latencies::default();
        let mut counts = Counts { answered: 1, ..Counts::default() };
        counts.errors.add(Status::BUSY, 2);
        for ledger in [&a, &b, &b] {
            recent.record(Duration::from_millis(1));
            ledger.hand_over(&counts, &mut recent);
            assert!(recent.is_empty());
        }
        let mut sum = Entry::default();
        [&a, &b].iter().for_each(|ledger| ledger.take_into(&mut sum));
        assert_eq!((sum.counts.answered, sum.recent.len()), (2, 3));
        assert_eq!(sum.counts.errors.iter().collect::<Vec<_>>(), [(Status::BUSY, 4)]);
        let mut again = Entry::default();
        a.take_into(&mut again);
        assert_eq!((again.counts.answered, again.recent.len()), (1, 0));
    }

    #[test]
    fn more_statuses_than_expected_are_still_counted() {
        let mut errors = Errors::default();
        (1..=100).for_each(|status| errors.add(Status(status), 1));
        assert_eq!((errors.total(), errors.iter().count()), (100, STATUSES_MAX));
    }
}
