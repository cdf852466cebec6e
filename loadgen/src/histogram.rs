//! Latencies and counts, recorded by each driver separately and handed over periodically.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ib_mad::wire::mad::Status;

use crate::ask::Kind;
use crate::check::Fault;

/// Smallest latency with a resolution of three digits, in nanoseconds.
const LATENCY_MIN_NS: u64 = 100;
/// Longer latencies are recorded as this value, in nanoseconds.
const LATENCY_MAX_NS: u64 = 600_000_000_000;
const DIGITS: u8 = 3;

/// Error statuses counted separately; others share the last entry.
const STATUSES_MAX: usize = 16;

/// Counts of queries and packets. At the end of a storm `queries` is the sum of `answered`,
/// `timed_out`, `silent_garbage` and `abandoned`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Queries started.
    pub queries: u64,
    /// Packets sent, retries included.
    pub sent: u64,
    /// Retries among the packets.
    pub retries: u64,
    /// Queries answered, correctly or not.
    pub answered: u64,
    /// Queries without a response after all retries.
    pub timed_out: u64,
    /// Queries outstanding when the storm was stopped.
    pub abandoned: u64,
    /// Responses with the requested record, correct as far as checked.
    pub resolved: u64,
    /// Correct responses without a path, and empty tables. Together with the resolved these are the
    /// goodput.
    pub no_path: u64,
    /// Responses with an error status, by status.
    pub errors: Errors,
    /// Faulty responses, by fault.
    pub wrong: [u64; Fault::ALL.len()],
    /// Responses that match no outstanding query: late, or duplicates.
    pub late: u64,
    /// Packets that are no responses of the SA class.
    pub strange: u64,
    /// Requests returned undelivered.
    pub undelivered: u64,
    /// Redirecting responses that were followed.
    pub redirected: u64,
    /// Tables dropped because too many were being received.
    pub dropped_tables: u64,
    /// Malformed requests that were answered, included in `answered`.
    pub answered_garbage: u64,
    /// Malformed requests that were not answered.
    pub silent_garbage: u64,
    /// Counts by kind of query.
    pub kinds: [KindCounts; Kind::ALL.len()],
}

/// Counts of one kind of query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Queries started.
    pub queries: u64,
    /// Packets sent for them, retries included.
    pub sent: u64,
    /// Responses with the requested record, correct as far as checked.
    pub resolved: u64,
    /// Correct responses without a path or record.
    pub no_path: u64,
    /// Responses with an error status or a fault.
    pub failed: u64,
    /// Queries without a response after all retries.
    pub timed_out: u64,
}

impl Counts {
    /// Faulty responses of all kinds.
    pub fn wrong_total(&self) -> u64 {
        self.wrong.iter().sum()
    }

    /// Queries settled for the client: resolved, or correctly answered that there is no path or
    /// record.
    pub fn settled(&self) -> u64 {
        self.resolved + self.no_path
    }

    /// Adds the counts of another driver.
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
            dropped_tables,
            answered_garbage,
            silent_garbage,
            kinds,
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
        self.dropped_tables += dropped_tables;
        self.answered_garbage += answered_garbage;
        self.silent_garbage += silent_garbage;
        for (mine, theirs) in self.kinds.iter_mut().zip(kinds) {
            mine.queries += theirs.queries;
            mine.sent += theirs.sent;
            mine.resolved += theirs.resolved;
            mine.no_path += theirs.no_path;
            mine.failed += theirs.failed;
            mine.timed_out += theirs.timed_out;
        }
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

    /// Errors of all statuses.
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
        Self(histogram.expect("the constant bounds are valid"))
    }
}

impl Latencies {
    /// Records one latency.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all latencies of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// Clears the histogram.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Number of latencies recorded.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether none was recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latency not exceeded by a share of `percentile` / 100.
    pub fn percentile(&self, percentile: f64) -> Duration {
        // A bucket counts as its upper bound, but never more than the maximum recorded.
        Duration::from_nanos(self.0.value_at_percentile(percentile).min(self.0.max()))
    }

    /// The maximum.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// The underlying histogram, in nanoseconds.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }

    /// The mean.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }
}

/// Latencies of one kind of query.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// From when queries were scheduled.
    pub due: Latencies,
    /// From when they were first sent.
    pub service: Latencies,
}

/// All latencies, by kind of query.
#[derive(Clone, Debug, Default)]
pub struct Timings {
    /// Created with the first latency of a kind.
    kinds: [Option<Box<Measured>>; Kind::ALL.len()],
    /// How late queries were sent, which is caused by the load generator.
    pub lag: Latencies,
}

impl Timings {
    /// Records the latency of an answered query, from its scheduled and from its send time.
    #[inline]
    pub fn record(&mut self, kind: Kind, due: Duration, service: Duration) {
        let measured = self.kinds[kind as usize].get_or_insert_default();
        measured.due.record(due);
        measured.service.record(service);
    }

    /// Kinds with latencies.
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, &Measured)> {
        let kinds = Kind::ALL.into_iter().zip(&self.kinds);
        kinds.filter_map(|(kind, measured)| Some((kind, measured.as_deref()?)))
    }

    /// Latencies of all kinds except malformed, from when queries were scheduled.
    pub fn due(&self) -> Latencies {
        self.sum(|measured| &measured.due)
    }

    /// Latencies from the time when each query was first sent.
    pub fn service(&self) -> Latencies {
        self.sum(|measured| &measured.service)
    }

    fn sum(&self, which: impl Fn(&Measured) -> &Latencies) -> Latencies {
        let mut sum = Latencies::default();
        let good = self.kinds().filter(|&(kind, _)| kind != Kind::Malformed);
        good.for_each(|(_, measured)| sum.add(which(measured)));
        sum
    }

    /// Adds the latencies of another driver.
    pub fn add(&mut self, other: &Self) {
        for (kind, theirs) in other.kinds() {
            let mine = self.kinds[kind as usize].get_or_insert_default();
            mine.due.add(&theirs.due);
            mine.service.add(&theirs.service);
        }
        self.lag.add(&other.lag);
    }

    /// Clears all.
    pub fn clear(&mut self) {
        for measured in self.kinds.iter_mut().flatten().filter(|measured| !measured.due.is_empty())
        {
            measured.due.clear();
            measured.service.clear();
        }
        if !self.lag.is_empty() {
            self.lag.clear();
        }
    }

    /// Moves all latencies out of another, which is empty then.
    fn absorb(&mut self, other: &mut Self) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&mut other.kinds) {
            let Some(theirs) = theirs.as_mut().filter(|theirs| !theirs.due.is_empty()) else {
                continue;
            };
            let mine = mine.get_or_insert_default();
            if mine.due.is_empty() {
                std::mem::swap(mine, theirs);
            } else {
                mine.due.add(&theirs.due);
                mine.service.add(&theirs.service);
                theirs.due.clear();
                theirs.service.clear();
            }
        }
        if self.lag.is_empty() {
            std::mem::swap(&mut self.lag, &mut other.lag);
        } else if !other.lag.is_empty() {
            self.lag.add(&other.lag);
            other.lag.clear();
        }
    }
}

/// The counts that a driver hands over, a few times a second.
#[derive(Default)]
pub struct Ledger(Mutex<Entry>);

/// Counts and latencies handed over by one driver.
#[derive(Clone, Default)]
pub struct Entry {
    /// Counts since the start.
    pub counts: Counts,
    /// When they were handed over.
    pub at: Option<Instant>,
    /// Latencies since they were last taken.
    pub recent: Timings,
}

impl Ledger {
    /// Hands over the counts so far and the `recent` latencies, which are cleared.
    pub fn hand_over(&self, now: Instant, counts: &Counts, recent: &mut Timings) {
        let mut entry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entry.counts = *counts;
        entry.at = Some(now);
        entry.recent.absorb(recent);
    }

    /// Takes the ledger's content in exchange for `entry`, whose latencies must be empty. Swapping
    /// keeps the lock short: the driver may be waiting to hand over.
    pub fn take(&self, entry: &mut Entry) {
        // Counts are valid even if a driver panicked.
        let mut there = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut there.recent, &mut entry.recent);
        (entry.counts, entry.at) = (there.counts, there.at);
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

    /// Regression: queries sent at once were reported late by a median of 0.06 µs and a maximum of
    /// 0.
    #[test]
    fn no_percentile_is_above_the_maximum() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::ZERO);
        for ns in [0, 1, 70, 12_345, 3_600_000] {
            latencies.record(Duration::from_nanos(ns));
            for percentile in [0.0, 50.0, 99.0, 100.0] {
                assert!(latencies.percentile(percentile) <= latencies.max(), "{ns} ns");
            }
        }
    }

    #[test]
    fn a_driver_hands_over_totals_and_recent_timings() {
        let ledger = Ledger::default();
        let now = Instant::now();
        let (mut recent, mut entry) = (Timings::default(), Entry::default());
        let mut counts = Counts { answered: 1, ..Counts::default() };
        counts.errors.add(Status::BUSY, 2);
        let ms = Duration::from_millis(1);
        for round in 1..=3 {
            for _ in 0..2 {
                recent.record(Kind::Join, 3 * ms, 2 * ms);
                recent.lag.record(ms);
                ledger.hand_over(now, &counts, &mut recent);
                assert!(recent.due().is_empty() && recent.lag.is_empty());
            }
            ledger.take(&mut entry);
            let kinds: Vec<_> = entry.recent.kinds().map(|(kind, _)| kind).collect();
            assert_eq!((kinds, entry.recent.due().len()), (vec![Kind::Join], 2), "round {round}");
            assert_eq!((entry.recent.service().max().as_millis(), entry.recent.lag.len()), (2, 2));
            assert_eq!((entry.counts.answered, entry.at), (1, Some(now)));
            entry.recent.clear();
        }
        ledger.take(&mut entry);
        assert_eq!((entry.counts.answered, entry.recent.due().len()), (1, 0));
    }

    #[test]
    fn counts_of_several_drivers_are_added() {
        let mut counts = Counts { answered: 1, ..Counts::default() };
        counts.errors.add(Status::BUSY, 2);
        counts.kinds[Kind::Join as usize].queries = 3;
        let mut sum = counts;
        sum.add(&counts);
        assert_eq!((sum.answered, sum.kinds[Kind::Join as usize].queries), (2, 6));
        assert_eq!(sum.errors.iter().collect::<Vec<_>>(), [(Status::BUSY, 4)]);
    }

    #[test]
    fn more_statuses_than_expected_are_still_counted() {
        let mut errors = Errors::default();
        (1..=100).for_each(|status| errors.add(Status(status), 1));
        assert_eq!((errors.total(), errors.iter().count()), (100, STATUSES_MAX));
    }
}
