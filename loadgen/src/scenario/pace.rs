//! Schedules of queries, and the end of a storm. Times are passed as arguments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Limits of time and queries.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    end: Option<Instant>,
    left: u64,
}

impl Bounds {
    /// Ends after `duration` from `start` or after `limit` queries, whichever comes first.
    pub fn new(start: Instant, duration: Option<Duration>, limit: Option<u64>) -> Self {
        let end = duration.and_then(|duration| start.checked_add(duration));
        Self { end, left: limit.unwrap_or(u64::MAX) }
    }

    /// Whether the end is reached.
    #[inline]
    pub fn is_over(&self, now: Instant) -> bool {
        self.left == 0 || self.end.is_some_and(|end| now >= end)
    }

    /// Counts a query.
    #[inline]
    pub fn take(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}

/// A rate set by the main thread, in queries a second of all threads together.
#[derive(Debug, Default)]
pub struct Dial(AtomicU64);

impl Dial {
    /// Sets the rate.
    pub fn set(&self, rate: f64) {
        self.0.store(rate.to_bits(), Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// Distribution of queries over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// At equal intervals.
    #[default]
    Constant,
    /// At random, independently of each other, as from many clients.
    Poisson,
}

/// Scheduled times of queries.
#[derive(Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    /// Queries a second of this thread.
    rate: f64,
    /// The dial it follows, and this thread's share of that rate.
    dial: Option<(Arc<Dial>, f64)>,
    /// The dial's value when last read.
    seen: f64,
    /// Times at equal intervals are computed from here, so that they do not drift.
    base: Instant,
    since_base: u64,
    next: Option<Instant>,
    random: SmallRng,
}

impl Schedule {
    /// `rate` queries a second from `start` on. Random schedules differ by `seed`.
    pub fn new(arrivals: Arrivals, rate: f64, start: Instant, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        let mut schedule = Self {
            arrivals,
            rate,
            dial: None,
            seen: 0.0,
            base: start,
            since_base: 0,
            next: Some(start),
            random,
        };
        if arrivals == Arrivals::Poisson {
            schedule.step(start);
        }
        schedule
    }

    /// A schedule at a share of the dial's rate.
    pub fn following(
        dial: Arc<Dial>,
        share: f64,
        arrivals: Arrivals,
        start: Instant,
        seed: u64,
    ) -> Self {
        let seen = dial.get();
        let schedule = Self::new(arrivals, seen * share, start, seed);
        Self { dial: Some((dial, share)), seen, ..schedule }
    }

    /// Returns the next scheduled time, if it has passed. However late this is called, the time is
    /// unchanged, so that a stalled responder is charged for every query that it delayed.
    #[inline]
    pub fn take(&mut self, now: Instant) -> Option<Instant> {
        if let Some((dial, share)) = &self.dial
            && dial.get() != self.seen
        {
            self.seen = dial.get();
            self.rate = self.seen * share;
            (self.base, self.since_base, self.next) = (now, 0, Some(now));
        }
        let due = self.next.filter(|&due| due <= now)?;
        self.step(due);
        Some(due)
    }

    /// The next scheduled time.
    pub fn next_due(&self) -> Option<Instant> {
        self.next
    }

    fn step(&mut self, last: Instant) {
        self.since_base += 1;
        let (from, seconds) = match self.arrivals {
            Arrivals::Constant => (self.base, self.since_base as f64 / self.rate),
            // Intervals between independent events are exponentially distributed.
            Arrivals::Poisson => (last, -(1.0 - self.random.random::<f64>()).ln() / self.rate),
        };
        let offset = Duration::try_from_secs_f64(seconds).ok();
        self.next = offset.and_then(|offset| from.checked_add(offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::tests::MS;

    fn taken(schedule: &mut Schedule, now: Instant) -> Vec<Instant> {
        std::iter::from_fn(|| schedule.take(now)).collect()
    }

    /// A stall of the responder or of the generator does not shift the schedule.
    #[test]
    fn a_schedule_is_kept_whatever_happens() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Arrivals::Constant, 1000.0, start, 1);
        assert_eq!(schedule.take(start), Some(start));
        assert_eq!((schedule.take(start), schedule.next_due()), (None, Some(start + MS)));
        let late = start + 3 * MS;
        assert_eq!(taken(&mut schedule, late), [start + MS, start + 2 * MS, start + 3 * MS]);
    }

    #[test]
    fn a_schedule_does_not_drift() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Arrivals::Constant, 3.0, start, 1);
        assert_eq!(taken(&mut schedule, start + Duration::from_secs(100)).len(), 301);
    }

    /// Independent arrivals have the set rate, and the variance of their number in an interval
    /// equals its mean.
    #[test]
    fn poisson_arrivals_are_independent() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Arrivals::Poisson, 10_000.0, start, 1);
        let counts: Vec<f64> = (1..=1000)
            .map(|interval| taken(&mut schedule, start + interval * 10 * MS).len() as f64)
            .collect();
        let mean = counts.iter().sum::<f64>() / 1000.0;
        let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 1000.0;
        assert!((98.0..102.0).contains(&mean), "{mean}");
        assert!((85.0..115.0).contains(&variance), "{variance}");
    }

    #[test]
    fn a_dial_changes_the_rate_from_now_on() {
        let start = Instant::now();
        let dial = Arc::new(Dial::default());
        dial.set(2000.0);
        let followed = Arc::clone(&dial);
        let mut schedule = Schedule::following(followed, 0.5, Arrivals::Constant, start, 1);
        assert_eq!(taken(&mut schedule, start + 2 * MS).len(), 3);
        dial.set(8000.0);
        let later = start + 10 * MS;
        assert_eq!(taken(&mut schedule, later), [later], "what was not due before is not made up");
        assert_eq!(taken(&mut schedule, later + MS).len(), 4);
    }

    #[test]
    fn it_ends_by_time_or_by_number() {
        let start = Instant::now();
        let mut by_number = Bounds::new(start, None, Some(2));
        by_number.take();
        assert!(!by_number.is_over(start));
        by_number.take();
        assert!(by_number.is_over(start));
        let by_time = Bounds::new(start, Some(MS), None);
        assert!(!by_time.is_over(start) && by_time.is_over(start + MS));
    }
}
