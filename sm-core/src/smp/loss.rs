//! The number of attempts per request, derived from the loss rate seen so far.
//!
//! With a fixed number of retries, a large fabric that loses packets cannot come up: among so many
//! requests some always run out of attempts, and each sweep misses different nodes. When many
//! answers needed retries, a missing answer means little: a request gets enough attempts that only
//! one in 10^9 fails by chance. When answers come at the first attempt, a node that does not answer
//! is down.

use std::time::{Duration, Instant};

/// Failed attempts of answered requests needed for an estimate.
const FAILURES_MIN: u32 = 3;
/// Loss rate (failed attempts per attempt) below which nothing changes.
const LOSS_RATE_MIN: f64 = 0.02;
/// Attempts after which the counts are halved, so that old samples decay.
const DECAY_ATTEMPTS: u32 = 4096;
/// Natural logarithm of the accepted probability, 1e-9, that all attempts of a request are lost.
const FAILURE_PROBABILITY_LN: f64 = -20.7;
/// Maximum number of attempts per request.
const ATTEMPTS_MAX: u16 = 64;
/// Shortest timeout, and its minimum as a multiple of the longest response time.
const TIMEOUT_MIN: Duration = Duration::from_millis(16);
const TIMEOUT_MARGIN: u32 = 4;

/// Loss statistics of SMPs.
#[derive(Debug, Default)]
pub(super) struct Loss {
    /// Attempts of answered requests, and the number of these requests.
    attempts: u32,
    answered: u32,
    /// Longest response time of first attempts.
    longest: Duration,
}

impl Loss {
    /// Records that a request was answered after so many attempts, `took` after the first.
    pub(super) fn note(&mut self, attempts: u16, took: Duration) {
        self.attempts += u32::from(attempts);
        self.answered += 1;
        if attempts == 1 {
            self.longest = self.longest.max(took);
        }
        if self.attempts > DECAY_ATTEMPTS {
            self.attempts /= 2;
            self.answered /= 2;
        }
    }

    /// The loss rate, if it is significant.
    fn share(&self) -> Option<f64> {
        let failures = self.attempts.saturating_sub(self.answered);
        let share = f64::from(failures) / f64::from(self.attempts.max(1));
        (failures >= FAILURES_MIN && share >= LOSS_RATE_MIN).then_some(share)
    }

    /// The response timeout: `usual`, unless loss is heavy. Then requests are repeated
    /// after a small multiple ([`TIMEOUT_MARGIN`]) of the longest response time seen.
    pub(super) fn timeout(&self, usual: Duration) -> Duration {
        if self.share().is_none() {
            return usual;
        }
        let enough = self.longest.saturating_mul(TIMEOUT_MARGIN).max(TIMEOUT_MIN);
        // Rounded, because the table of transactions supports few distinct timeouts.
        let millis = enough.as_millis().try_into().unwrap_or(u32::MAX);
        let enough =
            Duration::from_millis(millis.checked_next_power_of_two().unwrap_or(millis).into());
        enough.min(usual)
    }

    /// Whether to retry a request with so many attempts, the first at `since`, that is normally
    /// given up after `patience`.
    pub(super) fn is_worth_another(
        &self,
        now: Instant,
        attempts: u16,
        since: Instant,
        patience: Duration,
    ) -> bool {
        let Some(share) = self.share() else {
            return false;
        };
        let worth = (FAILURE_PROBABILITY_LN / share.ln()).ceil() as u16;
        attempts < worth.min(ATTEMPTS_MAX) || now < since + patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(800);

    fn after(answers: &[(u16, u32)]) -> Loss {
        let mut loss = Loss::default();
        for &(attempts, times) in answers {
            (0..times).for_each(|_| loss.note(attempts, Duration::from_millis(1)));
        }
        loss
    }

    #[test]
    fn where_all_answer_at_once_silence_means_what_it_did() {
        for loss in [after(&[]), after(&[(1, 1000)]), after(&[(1, 1000), (2, 7)])] {
            let now = Instant::now();
            assert!(!loss.is_worth_another(now, 4, now - PATIENCE, PATIENCE));
            assert_eq!(loss.timeout(PATIENCE), PATIENCE);
        }
    }

    #[test]
    fn where_half_is_lost_a_request_is_worth_thirty_attempts() {
        let loss = after(&[(1, 50), (2, 25), (3, 13), (4, 12)]);
        let (now, worth) = (Instant::now(), |attempts, now| {
            loss.is_worth_another(now, attempts, now - PATIENCE, PATIENCE)
        });
        assert!(worth(25, now) && !worth(35, now));
        assert!(loss.is_worth_another(now, 64, now, PATIENCE), "patience is as it was");
        assert_eq!(loss.timeout(Duration::from_millis(200)), TIMEOUT_MIN);
    }

    #[test]
    fn the_past_fades() {
        let mut loss = after(&[(2, 2000)]);
        assert!(loss.share().is_some());
        (0..100_000).for_each(|_| loss.note(1, Duration::ZERO));
        assert!(loss.share().is_none());
    }
}
