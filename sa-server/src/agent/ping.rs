//! Pings: from what a responder says about its manager to a time of this host. No I/O.
//!
//! The responder states when its manager was asked, counted from the arrival of a ping. A ping
//! cannot arrive before it is sent. So the manager was not asked before the time at which the ping
//! was sent, and as much later as the responder says: this holds however long the ping and the
//! answer were on their way, or waited for a process that was stopped.

use std::time::{Duration, Instant};

use sa_proto::proto::node as proto;

/// How long a ping is counted from. The clocks of two hosts may differ by some milliseconds after
/// that; an update takes less.
pub const PING_AGE_MAX: Duration = Duration::from_secs(60);

/// The pings of one stream. There is at most one whose return is awaited.
#[derive(Debug)]
pub struct Pings {
    last: Ping,
    /// The one before; confirmations name it until the last has arrived.
    before: Option<Ping>,
    is_returned: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ping {
    number: u64,
    sent: Instant,
}

impl Pings {
    /// Number of the ping that the first request is.
    pub const FIRST: u64 = 1;

    /// The first request was sent then.
    pub fn new(sent: Instant) -> Self {
        let last = Ping { number: Self::FIRST, sent };
        Self { last, before: None, is_returned: false }
    }

    /// Number of a ping to send now, if the one before has returned.
    pub fn poll(&mut self, now: Instant) -> Option<u64> {
        if !std::mem::take(&mut self.is_returned) {
            return None;
        }
        self.before = Some(self.last);
        self.last = Ping { number: self.last.number + 1, sent: now };
        Some(self.last.number)
    }

    /// A time before which the manager was not asked, if that can be said.
    pub fn handle_confirmation(
        &mut self,
        now: Instant,
        confirmation: &proto::Confirmation,
    ) -> Option<Instant> {
        let is_last = confirmation.ping == self.last.number;
        if is_last {
            (self.is_returned, self.before) = (true, None);
        }
        let is_before = |ping: &Ping| ping.number == confirmation.ping;
        let ping = if is_last { self.last } else { self.before.filter(is_before)? };
        let after = Duration::from_millis(confirmation.after_ms.unsigned_abs());
        let asked = match confirmation.after_ms {
            0.. => ping.sent.checked_add(after),
            _ => ping.sent.checked_sub(after),
        };
        // In the future: the clock of one of the two stood still, as a suspended host's does.
        asked.filter(|asked| *asked <= now && now < ping.sent + PING_AGE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn said(ping: u64, after_ms: i64) -> proto::Confirmation {
        proto::Confirmation { ping, after_ms }
    }

    #[test]
    fn a_confirmation_counts_from_the_time_at_which_the_ping_was_sent() {
        let start = Instant::now();
        let mut pings = Pings::new(start);
        assert_eq!(pings.poll(start), None, "the first is on its way");
        let late = start + 900 * MS;
        assert_eq!(pings.handle_confirmation(late, &said(1, -200)), Some(start - 200 * MS));
        assert_eq!(pings.handle_confirmation(late, &said(1, 300)), Some(start + 300 * MS));
        assert_eq!(pings.poll(late), Some(2));
        assert_eq!(pings.poll(late), None, "one at a time");
        let later = late + 500 * MS;
        assert_eq!(pings.handle_confirmation(later, &said(1, 850)), Some(start + 850 * MS));
        assert_eq!(pings.handle_confirmation(later, &said(2, 0)), Some(late));
        assert_eq!(pings.handle_confirmation(later, &said(1, 850)), None, "it goes back");
        assert_eq!(pings.handle_confirmation(later, &said(3, 0)), None, "never sent");
    }

    #[test]
    fn what_cannot_be_is_not_used() {
        let start = Instant::now();
        let mut pings = Pings::new(start);
        for after_ms in [11, i64::MAX] {
            assert_eq!(pings.handle_confirmation(start + 10 * MS, &said(1, after_ms)), None);
        }
        assert_eq!(pings.handle_confirmation(start + 10 * MS, &said(1, 10)), Some(start + 10 * MS));
        let asked = pings.handle_confirmation(start, &said(1, i64::MIN));
        assert!(asked.is_none_or(|asked| asked < start));
        let late = start + PING_AGE_MAX;
        assert_eq!(pings.handle_confirmation(late, &said(1, 0)), None, "clocks have drifted");
        assert_eq!(pings.poll(late), Some(2), "it has returned, though");
    }
}
