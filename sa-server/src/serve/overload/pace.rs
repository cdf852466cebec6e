//! Limits how much is read when more arrives than can be answered.
//!
//! Packets in the transport's queue have no known age or source, so they must be read to be judged.
//! But where reading costs as much as answering, a worker that reads ten times what it can answer
//! has no time left to answer. So reading packets only to drop them may take a sixteenth of the
//! time; the rest is dropped by the transport's own queue. If one source has far more than its
//! share waiting, reading may take a third: drops in the transport hit all sources alike.

use std::time::{Duration, Instant};

use super::nanoseconds;

/// How often a transport is read until it is empty. As long as this succeeds, its packets are no
/// older than that.
const DRAIN_EVERY: Duration = Duration::from_millis(5);
/// Maximum time that counts as elapsed since the last read, so that an idle period earns no credit.
const SPENT_MAX: Duration = Duration::from_millis(20);
/// The share of time for reading packets that are dropped.
const SPARE_PART: u32 = 16;
/// Same while one source exceeds its share.
const SPARE_PART_HOG: u32 = 3;

/// During overload, the maximum age in a transport's queue; and how often the limit is recomputed.
const QUEUE_TIME: Duration = Duration::from_millis(50);
const LIMIT_EVERY: Duration = Duration::from_millis(100);
/// The least that a transport may hold.
const QUEUE_MIN: usize = 256;
/// Without overload for so long, a transport may hold what it can again.
const CALM_AFTER: Duration = Duration::from_secs(1);

/// When to read, and how much.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The transport held nothing older than this.
    drained: Instant,
    /// When it was last read at length.
    read: Instant,
    /// Requests that were taken out of the backlog since then.
    taken: usize,
    /// Remaining nanoseconds for reading packets that will be dropped; negative if exceeded.
    spare: i64,
    /// Packets received since the limit was looked at, and when that was.
    received: usize,
    looked: Instant,
    is_limited: bool,
}

/// How much may be read at one go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Packets in place of those that were taken out.
    pub(crate) packets: usize,
    /// And more, for so long.
    pub(crate) spare: Duration,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            drained: now,
            read: now,
            taken: 0,
            spare: 0,
            received: 0,
            looked: now,
            is_limited: false,
        }
    }

    /// Notes that the transport was empty at some time after `at`.
    pub(crate) fn note_drained(&mut self, at: Instant) {
        self.drained = at;
    }

    /// Whether the transport may hold requests that have been there for long.
    pub(crate) fn is_behind(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.drained) >= DRAIN_EVERY && self.is_due(now)
    }

    /// Whether it is time to read at length.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.read) >= DRAIN_EVERY
    }

    /// Notes that requests were taken out of the backlog.
    pub(crate) fn note_taken(&mut self, count: usize) {
        self.taken += count;
    }

    /// Notes that packets were received.
    pub(crate) fn note_received(&mut self, count: usize) {
        self.received += count;
    }

    /// How much may be read now. Report the result to [`note_read`](Self::note_read).
    pub(crate) fn allowance(&mut self, now: Instant, has_hog: bool) -> Allowance {
        let spent = now.saturating_duration_since(self.read).min(SPENT_MAX);
        let part = if has_hog { SPARE_PART_HOG } else { SPARE_PART };
        self.spare = (self.spare + nanoseconds(spent / part)).min(nanoseconds(SPENT_MAX / part));
        let spare = Duration::from_nanos(self.spare.max(0) as u64);
        Allowance { packets: std::mem::take(&mut self.taken), spare }
    }

    /// Records that reading ended at `now`, and how long it took beyond the packets that were
    /// taken.
    pub(crate) fn note_read(&mut self, now: Instant, beyond: Duration) {
        self.read = now;
        self.spare -= nanoseconds(beyond);
    }

    /// The new limit for the transport's own queue, if it changes.
    pub(crate) fn queue_limit(&mut self, now: Instant) -> Option<usize> {
        let time = now.saturating_duration_since(self.looked);
        if time < LIMIT_EVERY {
            return None;
        }
        let received = std::mem::take(&mut self.received);
        self.looked = now;
        // After a rest nothing is known yet.
        if time > LIMIT_EVERY * 2 {
            return None;
        }
        self.is_limited = true;
        let limit = received as f64 * QUEUE_TIME.as_secs_f64() / time.as_secs_f64();
        Some((limit as usize).max(QUEUE_MIN))
    }

    /// Whether to lift a limit, because there was no overload for a long time.
    pub(crate) fn lifts_limit(&mut self, now: Instant) -> bool {
        let lifts = self.is_limited && now.saturating_duration_since(self.looked) > CALM_AFTER;
        self.is_limited &= !lifts;
        lifts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn reading_what_is_dropped_takes_a_sixteenth_of_the_time_or_a_third() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(!pace.is_due(start + 4 * MS) && pace.is_due(start + 5 * MS));
        pace.note_taken(70);
        let allowance = pace.allowance(start + 16 * MS, false);
        assert_eq!((allowance.packets, allowance.spare), (70, MS));
        pace.note_read(start + 18 * MS, 2 * MS);
        // It took one too many, which it has not now.
        let allowance = pace.allowance(start + 24 * MS, true);
        assert_eq!((allowance.packets, allowance.spare), (0, MS));
        pace.note_read(start + 24 * MS, MS);
        let rested = pace.allowance(start + 1000 * MS, false);
        assert_eq!(rested.spare, SPENT_MAX / SPARE_PART);
    }

    #[test]
    fn a_transport_holds_what_is_read_in_50_ms_until_there_is_calm() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!(pace.queue_limit(start + 99 * MS), None);
        pace.note_received(3000);
        assert_eq!(pace.queue_limit(start + 100 * MS), Some(1500));
        assert_eq!(pace.queue_limit(start + 200 * MS), Some(QUEUE_MIN));
        assert!(!pace.lifts_limit(start + 1200 * MS));
        assert!(pace.lifts_limit(start + 1201 * MS) && !pace.lifts_limit(start + 1300 * MS));
        pace.note_received(3000);
        assert_eq!(pace.queue_limit(start + 1400 * MS), None, "3,000 in what time?");
    }
}
