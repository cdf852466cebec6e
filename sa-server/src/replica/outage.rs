//! When to tell the operator that an SM cannot be reached: at once, and then ever more rarely.

use std::time::{Duration, Instant};

/// From the first line to the second; each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LAST_PAUSE: Duration = Duration::from_secs(640);

/// What was told of an SM that is not connected.
#[derive(Clone, Debug, Default)]
pub(super) struct Outage {
    /// When to tell next, and how long to be silent after that; nothing was told yet if `None`.
    next: Option<(Instant, Duration)>,
}

impl Outage {
    /// One that the operator was told of now.
    pub(super) fn told(now: Instant) -> Self {
        Self { next: Some((now + FIRST_PAUSE, FIRST_PAUSE * 2)) }
    }

    /// Whether to tell of a failed attempt; counts as told if so.
    pub(super) fn is_to_be_told(&mut self, now: Instant) -> bool {
        match self.next {
            None => *self = Self::told(now),
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
    fn an_outage_is_told_at_once_and_then_ever_more_rarely() {
        let start = Instant::now();
        let mut outage = Outage::default();
        let told: Vec<u64> =
            (0..2000).filter(|&s| outage.is_to_be_told(start + Duration::from_secs(s))).collect();
        assert_eq!(told, [0, 10, 30, 70, 150, 310, 630, 1270, 1910]);
    }

    #[test]
    fn a_lost_connection_was_told_already() {
        let start = Instant::now();
        let mut outage = Outage::told(start);
        assert!(!outage.is_to_be_told(start + FIRST_PAUSE / 2));
        assert!(outage.is_to_be_told(start + FIRST_PAUSE));
    }
}
