//! A limit in rate: some actions in a row, then one in each interval.

use std::time::{Duration, Instant};

/// Actions that were taken and are not yet made up for.
#[derive(Debug, Default)]
pub struct RateLimit {
    spent: u32,
    /// Since when one is made up for.
    since: Option<Instant>,
}

impl RateLimit {
    /// With no action taken.
    pub const fn new() -> Self {
        Self { spent: 0, since: None }
    }

    /// Whether one more action may be taken: `most` in a row, then one in each `interval`.
    pub fn has_room(&mut self, now: Instant, most: u32, interval: Duration) -> bool {
        while let Some(since) = self.since.filter(|since| now >= *since + interval) {
            self.spent -= 1;
            self.since = (self.spent > 0).then_some(since + interval);
        }
        self.spent < most
    }

    /// An action was taken.
    pub fn spend(&mut self, now: Instant) {
        self.spent += 1;
        self.since.get_or_insert(now);
    }
}
