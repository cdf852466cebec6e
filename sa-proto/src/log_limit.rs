//! Limits the log lines that peers can cause at will: by connecting and leaving, or by what is
//! refused. All programs limit such lines by this, so that one counter has all that are left out.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the log is real: its limits are in real time"
)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::rate_limit::RateLimit;

/// Lines left out by all limits of this process.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Lines left out since the start, by all limits.
pub fn left_out() -> u64 {
    LEFT_OUT.load(Relaxed)
}

/// A limit of lines of one kind: some in a row, then one in each interval. The first line after
/// some were left out is preceded by one that states how many.
#[derive(Debug)]
pub struct LogLimit {
    /// What the lines are about.
    about: &'static str,
    most: u32,
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    logged: RateLimit,
    left_out: u64,
}

impl LogLimit {
    /// `most` lines in a row, then one in each `interval`, about `about`, as in "12 lines about
    /// refused calls were left out".
    pub const fn new(about: &'static str, most: u32, interval: Duration) -> Self {
        let state = Mutex::new(State { logged: RateLimit::new(), left_out: 0 });
        Self { about, most, interval, state }
    }

    /// Whether a line may be logged now; otherwise it is counted.
    pub fn permits(&self) -> bool {
        let Some(left_out) = self.admit(Instant::now()) else {
            LEFT_OUT.fetch_add(1, Relaxed);
            return false;
        };
        if left_out > 0 {
            tracing::warn!("{left_out} lines about {} were left out", self.about);
        }
        true
    }

    /// How many lines were left out before one that may be logged now.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.logged.has_room(now, self.most, self.interval) {
            state.left_out += 1;
            return None;
        }
        state.logged.spend(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_lines_in_a_row_and_then_one_in_each_interval() {
        let limit = LogLimit::new("tests", 3, Duration::from_secs(1));
        let start = Instant::now();
        let at = |ms| limit.admit(start + Duration::from_millis(ms));
        assert_eq!([0, 10, 20, 30, 40].map(at), [Some(0), Some(0), Some(0), None, None]);
        assert_eq!([999, 1000, 1500].map(at), [None, Some(3), None]);
        assert_eq!([2000, 2001].map(at), [Some(1), None]);
        // After a rest there are as many as at first.
        assert_eq!([60_000, 60_000, 60_000, 60_000].map(at), [Some(1), Some(0), Some(0), None]);
    }

    /// Regression: what was left out was not counted anywhere.
    #[test]
    fn lines_that_are_left_out_are_counted() {
        let limit = LogLimit::new("tests", 1, Duration::from_secs(3600));
        let before = left_out();
        assert_eq!([(); 4].map(|()| limit.permits()), [true, false, false, false]);
        assert!(left_out() >= before + 3);
    }
}
