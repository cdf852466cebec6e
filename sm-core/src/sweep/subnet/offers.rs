//! Handovers that other managers were offered and did not acknowledge: when they may be offered the
//! next one. Each costs a sweep the time of an unanswered request.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;

/// Managers remembered. While there are as many, others are not offered a handover.
const FAILED_MAX: usize = 256;
/// How long a manager is not offered a handover after the first that failed. The time doubles with
/// each that follows.
const FIRST_PAUSE: Duration = Duration::from_secs(15);
const PAUSE_MAX: Duration = Duration::from_secs(3_600);

/// Offers that failed.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Offers {
    /// By port GUID: how many in a row, and when the next may be made.
    failed: HashMap<Guid, (u32, Instant)>,
    /// When the next may be made to a manager that is not known to have been master: a port can
    /// show another GUID each time.
    next_to_unknown: Option<Instant>,
}

impl Offers {
    /// The manager at the port with this GUID did not answer in time.
    pub(in crate::sweep) fn note_failed(&mut self, now: Instant, guid: Guid) {
        self.failed.retain(|_, (_, next)| now < *next + PAUSE_MAX);
        let failures = self.failed.get(&guid).map_or(0, |(failures, _)| *failures);
        if failures > 0 || self.failed.len() < FAILED_MAX {
            self.failed.insert(guid, (failures + 1, now + pause_after(failures + 1)));
        }
        self.next_to_unknown = Some(now + FIRST_PAUSE);
    }

    /// How long the manager at the port with this GUID is not offered another.
    pub(in crate::sweep) fn pause(&self, now: Instant, guid: Guid) -> Duration {
        self.failed
            .get(&guid)
            .map_or(Duration::ZERO, |(_, next)| next.saturating_duration_since(now))
    }

    /// The manager at the port with this GUID acknowledged.
    pub(in crate::sweep) fn note_accepted(&mut self, guid: Guid) {
        self.failed.remove(&guid);
    }

    /// Whether the manager at the port with this GUID may be offered a handover. `is_proven`:
    /// whether it is known to have been master, or follows this one.
    pub(in crate::sweep) fn is_due(&self, now: Instant, guid: Guid, is_proven: bool) -> bool {
        match self.failed.get(&guid) {
            Some((_, next)) => now >= *next,
            None if is_proven => true,
            None => {
                self.failed.len() < FAILED_MAX
                    && self.next_to_unknown.is_none_or(|next| now >= next)
            }
        }
    }
}

fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_that_fail_become_rare() {
        let (mut offers, mut now) = (Offers::default(), Instant::now());
        let end = now + Duration::from_secs(86_400);
        let mut made = 0;
        while now < end {
            if offers.is_due(now, Guid(1), false) {
                offers.note_failed(now, Guid(1));
                made += 1;
            }
            now += Duration::from_secs(1);
        }
        assert!((25..40).contains(&made), "{made} in a day");
        // One that has been master is not delayed by another.
        assert!(offers.is_due(now, Guid(2), true));
        offers.note_accepted(Guid(1));
        assert!(offers.is_due(now, Guid(1), true));
    }

    #[test]
    fn a_port_with_another_guid_each_time_gains_little() {
        let (mut offers, start) = (Offers::default(), Instant::now());
        let mut made = 0;
        for second in 0..3_600 {
            let (now, guid) = (start + Duration::from_secs(second), Guid(second + 1));
            if offers.is_due(now, guid, false) {
                offers.note_failed(now, guid);
                made += 1;
            }
        }
        assert!((200..=256).contains(&made), "{made} in an hour");
    }
}
