//! When the next query is due: as soon as an answer made room (closed loop), or by a schedule
//! whatever the answers do (open loop). Times come in as arguments.

use std::time::{Duration, Instant};

/// What drives the storm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// So many queries outstanding at any time.
    Closed(usize),
    /// So many queries a second.
    Open(f64),
}

/// Meters out the queries of one driver.
#[derive(Debug)]
pub struct Pace {
    load: Load,
    start: Instant,
    end: Option<Instant>,
    /// Queries handed out, and how many there will be.
    issued: u64,
    limit: u64,
}

impl Pace {
    /// Begins at `start`; ends after `duration` or `limit` queries, whichever comes first.
    pub fn new(load: Load, start: Instant, duration: Option<Duration>, limit: Option<u64>) -> Self {
        let end = duration.and_then(|duration| start.checked_add(duration));
        Self { load, start, end, issued: 0, limit: limit.unwrap_or(u64::MAX) }
    }

    /// Whether no query will be due any more.
    pub fn is_over(&self, now: Instant) -> bool {
        self.issued >= self.limit || self.end.is_some_and(|end| now >= end)
    }

    /// Takes the next query if one is due: the time at which it was meant to be sent, from which
    /// its latency counts. In an open loop that is its place in the schedule, however late it is
    /// taken, so that a responder that stalls is charged for every query it held up.
    pub fn take(&mut self, now: Instant, outstanding: usize) -> Option<Instant> {
        if self.is_over(now) {
            return None;
        }
        let intended = match self.load {
            Load::Closed(concurrency) if outstanding < concurrency => now,
            Load::Closed(_) => return None,
            Load::Open(rate) => self.scheduled(rate)?,
        };
        if intended > now {
            return None;
        }
        self.issued += 1;
        Some(intended)
    }

    /// When [`take`](Self::take) may next yield one without an answer coming first.
    pub fn next_due(&self) -> Option<Instant> {
        match self.load {
            Load::Closed(_) => None,
            Load::Open(rate) => self.scheduled(rate),
        }
    }

    fn scheduled(&self, rate: f64) -> Option<Instant> {
        let offset = Duration::try_from_secs_f64(self.issued as f64 / rate).ok()?;
        self.start.checked_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_closed_loop_keeps_its_queries_outstanding() {
        let start = Instant::now();
        let mut pace = Pace::new(Load::Closed(2), start, None, None);
        assert_eq!(pace.take(start, 0), Some(start));
        assert_eq!(pace.take(start + MS, 1), Some(start + MS), "meant to be sent at once");
        assert_eq!((pace.take(start + MS, 2), pace.next_due()), (None, None));
    }

    /// A stall of the responder, or of ourselves, does not shift the schedule.
    #[test]
    fn an_open_loop_keeps_its_schedule_whatever_happens() {
        let start = Instant::now();
        let mut pace = Pace::new(Load::Open(1000.0), start, None, None);
        assert_eq!(pace.take(start, 0), Some(start));
        assert_eq!(pace.take(start, 0), None);
        assert_eq!(pace.next_due(), Some(start + MS));
        let late = start + 3 * MS;
        let intended: Vec<_> = std::iter::from_fn(|| pace.take(late, 1_000_000)).collect();
        assert_eq!(intended, [start + MS, start + 2 * MS, start + 3 * MS]);
    }

    #[test]
    fn an_open_loop_does_not_drift() {
        let start = Instant::now();
        let mut pace = Pace::new(Load::Open(3.0), start, None, None);
        let later = start + Duration::from_secs(100);
        let taken = std::iter::from_fn(|| pace.take(later, 0)).count();
        assert_eq!(taken, 301);
    }

    #[test]
    fn it_ends_by_time_or_by_number() {
        let start = Instant::now();
        let mut by_number = Pace::new(Load::Closed(9), start, None, Some(2));
        assert_eq!(std::iter::from_fn(|| by_number.take(start, 0)).count(), 2);
        assert!(by_number.is_over(start));
        let mut by_time = Pace::new(Load::Closed(9), start, Some(MS), None);
        assert!(by_time.take(start, 0).is_some() && !by_time.is_over(start));
        assert!(by_time.is_over(start + MS) && by_time.take(start + MS, 0).is_none());
    }
}
