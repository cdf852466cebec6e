//! Limits reports of one kind of trap to one an hour of each sender.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;

/// How long further traps of a sender are only counted.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Largest number of senders remembered; traps of further ones are only counted.
const SENDERS_MAX: usize = 1024;

/// The senders of the last hour, with the time of their report and the number of traps since.
#[derive(Debug, Default)]
pub struct HourlyLimit {
    senders: HashMap<Lid, (Instant, u64)>,
}

impl HourlyLimit {
    /// Counts a trap. Returns, if it may be reported, how many of its sender were not since the
    /// last report.
    pub fn admit(&mut self, now: Instant, sender: Lid) -> Option<u64> {
        let is_due = |since: Instant| now >= since + INTERVAL;
        if let Some((since, more)) = self.senders.get_mut(&sender) {
            if is_due(*since) {
                *since = now;
                return Some(std::mem::take(more));
            }
            *more += 1;
            return None;
        }
        if self.senders.len() >= SENDERS_MAX {
            self.senders.retain(|_, (since, _)| !is_due(*since));
        }
        if self.senders.len() >= SENDERS_MAX {
            return None;
        }
        self.senders.insert(sender, (now, 0));
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_report_an_hour_and_sender_has_the_number_of_those_left_out() {
        let (mut limit, start) = (HourlyLimit::default(), Instant::now());
        assert_eq!(limit.admit(start, Lid(1)), Some(0));
        assert_eq!([(); 3].map(|()| limit.admit(start, Lid(1))), [None; 3]);
        assert_eq!(limit.admit(start, Lid(2)), Some(0), "another sender");
        assert_eq!(limit.admit(start + INTERVAL, Lid(1)), Some(3));
        assert_eq!(limit.admit(start + INTERVAL, Lid(1)), None);
        let admitted = (10..9999).filter(|&lid| limit.admit(start, Lid(lid)).is_some()).count();
        assert_eq!(admitted, SENDERS_MAX - 2);
        assert_eq!(limit.admit(start + INTERVAL, Lid(9999)), Some(0), "others are forgotten");
    }
}
