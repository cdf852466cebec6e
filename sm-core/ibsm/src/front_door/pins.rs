//! Which responder holds a transfer. Bounded in number and in time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{PINS_MAX, Transaction};

/// A pin that is unused for this long, or at most twice as long, is forgotten. RMPP transfers time
/// out earlier.
const LIFETIME: Duration = Duration::from_secs(20);

/// Pins in two generations: a pin used in the current period is in the younger one; the older one
/// is discarded when a period ends.
#[derive(Debug, Default)]
pub(super) struct Pins {
    young: HashMap<Transaction, SocketAddr>,
    old: HashMap<Transaction, SocketAddr>,
    period_ends: Option<Instant>,
}

impl Pins {
    /// The responder that holds the transfer.
    pub(super) fn get(&mut self, now: Instant, transaction: &Transaction) -> Option<SocketAddr> {
        if self.len() == 0 {
            return None;
        }
        self.turn(now);
        if let Some(peer) = self.young.get(transaction) {
            return Some(*peer);
        }
        let peer = self.old.remove(transaction)?;
        self.set(now, *transaction, peer);
        Some(peer)
    }

    /// Notes which responder holds a transfer.
    pub(super) fn set(&mut self, now: Instant, transaction: Transaction, peer: SocketAddr) {
        self.turn(now);
        if self.young.len() >= PINS_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(transaction, peer);
    }

    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn turn(&mut self, now: Instant) {
        let due = *self.period_ends.get_or_insert(now + LIFETIME);
        if now >= due {
            self.old = std::mem::take(&mut self.young);
            if now >= due + LIFETIME {
                self.old.clear();
            }
            self.period_ends = Some(now + LIFETIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::{Lid, Qpn};

    fn transaction(tid: u32) -> Transaction {
        Transaction { lid: Lid(4), qpn: Qpn(1), gid: None, tid }
    }

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_pin_lives_while_it_is_used() {
        let start = Instant::now();
        let mut pins = Pins::default();
        pins.set(start, transaction(1), peer(7));
        pins.set(start, transaction(2), peer(8));
        for i in 1..8 {
            assert_eq!(pins.get(start + LIFETIME / 2 * i, &transaction(1)), Some(peer(7)));
        }
        assert_eq!(pins.get(start + LIFETIME * 4, &transaction(2)), None);
        assert_eq!(pins.get(start + LIFETIME * 9, &transaction(1)), None);
    }

    #[test]
    fn there_are_never_more_than_the_limit() {
        let now = Instant::now();
        let mut pins = Pins::default();
        for tid in 0..PINS_MAX as u32 * 2 {
            pins.set(now, transaction(tid), peer(7));
            assert!(pins.len() <= PINS_MAX);
        }
        assert_eq!(pins.get(now, &transaction(0)), None);
        assert_eq!(pins.get(now, &transaction(PINS_MAX as u32 * 2 - 1)), Some(peer(7)));
    }
}
