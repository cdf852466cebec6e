//! When to sweep next, and why.

use std::time::{Duration, Instant};

use ib_mad::types::Lid;

use crate::config::Settings;

/// How long a trap waits for others of the same event: both ends of a link report its failure.
const TRAP_DELAY: Duration = Duration::from_millis(10);
/// Delay of the first repetition of a sweep that ended with errors; doubled for each further one.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Longest such delay.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);
/// Ports remembered whose trap asks for a look at them; more ask for a look at everything.
const ISSUERS_MAX: usize = 1024;

/// Why a sweep is due. Later ones are the stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The master is to be polled, in standby.
    Poll,
    /// The interval of light sweeps has passed.
    Timer,
    /// The port with this LID reported a change.
    Trap(Lid),
    /// The last sweep left something to be tried again.
    Retry(Scope),
    /// The operator wants it, or another subnet manager.
    Asked,
    /// We have just become master.
    TakeOver,
}

/// What is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// Links behind which nobody answered.
    Unanswered,
    /// Everything, since something could not be set.
    Everything,
}

/// The sweeps to come.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Option<Duration>,
    poll_interval: Duration,
    /// The strongest cause asked for, and when it is due.
    wanted: Option<(Instant, Cause)>,
    /// The next regular one.
    regular: Option<(Instant, Cause)>,
    issuers: Vec<Lid>,
}

impl Schedule {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            interval: (settings.sweep_interval > 0)
                .then(|| Duration::from_secs(u64::from(settings.sweep_interval))),
            poll_interval: Duration::from_millis(u64::from(settings.sminfo_polling_timeout)),
            wanted: None,
            regular: None,
            issuers: Vec::new(),
        }
    }

    /// Asks for a sweep: of several causes the strongest counts, and the earliest time.
    pub(super) fn request(&mut self, now: Instant, cause: Cause) {
        let due = match cause {
            Cause::Trap(issuer) => {
                if !self.issuers.contains(&issuer) {
                    self.issuers.push(issuer);
                }
                if self.issuers.len() > ISSUERS_MAX {
                    self.issuers.clear();
                    return self.request(now, Cause::Asked);
                }
                now + TRAP_DELAY
            }
            _ => now,
        };
        self.want(due, cause);
    }

    /// Asks for another try after the `failures`th failure in a row.
    pub(super) fn retry(&mut self, now: Instant, scope: Scope, failures: u32) {
        let delay = RETRY_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(16));
        self.want(now + delay.min(RETRY_DELAY_MAX), Cause::Retry(scope));
    }

    fn want(&mut self, due: Instant, cause: Cause) {
        self.wanted = Some(match self.wanted {
            Some((at, other)) => (at.min(due), other.max(cause)),
            None => (due, cause),
        });
    }

    /// Starts the interval to the next light sweep.
    pub(super) fn rearm(&mut self, now: Instant) {
        self.regular = self.interval.map(|interval| (now + interval, Cause::Timer));
    }

    /// Starts the interval to the next poll of the master.
    pub(super) fn rearm_poll(&mut self, now: Instant) {
        self.regular = Some((now + self.poll_interval, Cause::Poll));
    }

    /// When the next sweep is due.
    pub(super) fn next(&self) -> Option<Instant> {
        [self.wanted, self.regular].into_iter().flatten().map(|(due, _)| due).min()
    }

    /// Why a sweep is due now, if one is.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Cause> {
        for slot in [&mut self.wanted, &mut self.regular] {
            if let Some((due, cause)) = *slot
                && due <= now
            {
                *slot = None;
                return Some(cause);
            }
        }
        None
    }

    /// The ports whose traps ask for a look at them. They are forgotten.
    pub(super) fn take_issuers(&mut self) -> Vec<Lid> {
        std::mem::take(&mut self.issuers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traps_of_one_event_make_one_sweep() {
        let now = Instant::now();
        let mut schedule = Schedule::new(&Settings::default());
        schedule.request(now, Cause::Trap(Lid(3)));
        schedule.request(now + TRAP_DELAY / 2, Cause::Trap(Lid(4)));
        assert_eq!(schedule.take_due(now), None);
        assert_eq!(schedule.next(), Some(now + TRAP_DELAY));
        assert!(matches!(schedule.take_due(now + TRAP_DELAY), Some(Cause::Trap(_))));
        assert_eq!(schedule.take_issuers(), [Lid(3), Lid(4)]);
        assert_eq!(schedule.take_due(now + TRAP_DELAY * 9), None);
    }

    #[test]
    fn a_demand_is_not_lost_behind_a_trap() {
        let now = Instant::now();
        let mut schedule = Schedule::new(&Settings::default());
        schedule.request(now, Cause::Trap(Lid(3)));
        schedule.request(now, Cause::Asked);
        assert_eq!(schedule.take_due(now), Some(Cause::Asked));
    }

    #[test]
    fn failing_sweeps_are_repeated_ever_less_often() {
        let now = Instant::now();
        let mut schedule = Schedule::new(&Settings::default());
        schedule.retry(now, Scope::Unanswered, 3);
        assert_eq!(schedule.next(), Some(now + RETRY_DELAY * 4));
        assert_eq!(schedule.take_due(now + RETRY_DELAY * 4), Some(Cause::Retry(Scope::Unanswered)));
        schedule.retry(now, Scope::Everything, 40);
        assert_eq!(schedule.next(), Some(now + RETRY_DELAY_MAX));
    }
}
