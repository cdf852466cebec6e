//! When to log that an SM cannot be reached: at once, then at growing intervals.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::time::{Duration, Instant};

/// Time from the first log line to the second; each pause is twice the previous one, up to
/// [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LAST_PAUSE: Duration = Duration::from_secs(640);

/// Logging state of an SM that is not connected.
#[derive(Clone, Debug, Default)]
pub(super) struct Outage {
    /// When to log next, and the pause after that; nothing was logged yet if `None`.
    next: Option<(Instant, Duration)>,
}

impl Outage {
    /// An outage that is logged now.
    pub(super) fn logged(now: Instant) -> Self {
        Self { next: Some((now + FIRST_PAUSE, FIRST_PAUSE * 2)) }
    }

    /// Whether to log a failed attempt; it counts as logged if so.
    pub(super) fn should_log(&mut self, now: Instant) -> bool {
        match self.next {
            None => *self = Self::logged(now),
            Some((due, pause)) if now >= due => {
                self.next = Some((now + pause, (pause * 2).min(LAST_PAUSE)));
            }
            Some(_) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_at_once_and_then_ever_more_rarely() {
        let start = Instant::now();
        let mut outage = Outage::default();
        let logged: Vec<u64> =
            (0..2000).filter(|&s| outage.should_log(start + Duration::from_secs(s))).collect();
        assert_eq!(logged, [0, 10, 30, 70, 150, 310, 630, 1270, 1910]);
    }

    #[test]
    fn a_lost_connection_is_reported_once() {
        let start = Instant::now();
        let mut outage = Outage::logged(start);
        assert!(!outage.should_log(start + FIRST_PAUSE / 2));
        assert!(outage.should_log(start + FIRST_PAUSE));
    }
}
