//! How many attempts a request is worth: told by how many those needed that were answered.
//!
//! With fixed retries a fabric that loses packets cannot come up once it is large enough: of so many
//! requests some always run out of attempts, and each sweep finds other nodes missing. Where many
//! answers came only after repetitions, silence says little: a request gets as many attempts as make
//! one in a thousand millions fail by chance. Where answers come at once, who is silent is silent.

use std::time::{Duration, Instant};

/// Failed attempts of answered requests, before they say anything.
const FAILURES_MIN: u32 = 3;
/// Share of attempts that fail, below which loss changes nothing.
const SHARE_MIN: f64 = 0.02;
/// Attempts after which the counts are halved, so that the past fades.
const FADE: u32 = 4096;
/// Natural logarithm of the chance by which a request with an answer may go without it: 1e-9.
const CHANCE_LN: f64 = -20.7;
/// Most attempts a request is worth.
const ATTEMPTS_MAX: u16 = 64;
/// Shortest time-out, and how many times the longest way to an answer it is at least.
const TIMEOUT_MIN: Duration = Duration::from_millis(16);
const TIMEOUT_MARGIN: u32 = 4;

/// What is known of loss on the way of our requests.
#[derive(Debug, Default)]
pub(super) struct Loss {
    /// Attempts of requests that were answered, and those requests.
    attempts: u32,
    answered: u32,
    /// Longest time from a request to the answer of its first attempt.
    longest: Duration,
}

impl Loss {
    /// Takes in that a request was answered after so many attempts, `took` after its first.
    pub(super) fn note(&mut self, attempts: u16, took: Duration) {
        self.attempts += u32::from(attempts);
        self.answered += 1;
        if attempts == 1 {
            self.longest = self.longest.max(took);
        }
        if self.attempts > FADE {
            self.attempts /= 2;
            self.answered /= 2;
        }
    }

    /// Share of attempts that fail, if it is worth mentioning.
    fn share(&self) -> Option<f64> {
        let failures = self.attempts.saturating_sub(self.answered);
        let share = f64::from(failures) / f64::from(self.attempts.max(1));
        (failures >= FAILURES_MIN && share >= SHARE_MIN).then_some(share)
    }

    /// How long to wait for an answer, `usual` unless much is lost: then what is lost is sent again
    /// as soon as nobody who ever answered could still do so.
    pub(super) fn timeout(&self, usual: Duration) -> Duration {
        if self.share().is_none() {
            return usual;
        }
        let enough = self.longest.saturating_mul(TIMEOUT_MARGIN).max(TIMEOUT_MIN);
        // Few different ones, of which a table of transactions can keep apart.
        let millis = enough.as_millis().try_into().unwrap_or(u32::MAX);
        let enough =
            Duration::from_millis(millis.checked_next_power_of_two().unwrap_or(millis).into());
        enough.min(usual)
    }

    /// Whether to ask again what was asked so many times, first at `since`, and would usually be
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
        let worth = (CHANCE_LN / share.ln()).ceil() as u16;
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
