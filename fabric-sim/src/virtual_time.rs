//! Virtual time: a clock that tests advance, and a queue of scheduled events.
//!
//! This module does not read the real clock. The caller passes the time with every call, so a test
//! can simulate hours in a microsecond, and a server passes the real time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// A clock that advances only on request.
#[derive(Clone, Debug)]
pub struct VirtualClock {
    now: Instant,
}

impl VirtualClock {
    /// A clock at an arbitrary instant.
    pub fn new() -> Self {
        Self { now: Instant::now() }
    }

    /// The current virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Advances the clock.
    pub fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    /// Advances the clock to `at`; never back.
    pub fn advance_to(&mut self, at: Instant) {
        self.now = self.now.max(at);
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

/// A queue of events by time, earliest first; equal times in order of insertion.
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    sequence: u64,
    limit: usize,
}

struct Entry<E> {
    at: Instant,
    sequence: u64,
    event: E,
}

impl<E> Agenda<E> {
    /// An agenda limited to `limit` events.
    pub(crate) fn new(limit: usize) -> Self {
        Self { heap: BinaryHeap::new(), sequence: 0, limit }
    }

    /// Schedules `event`; returns it if the agenda is full.
    pub(crate) fn push(&mut self, at: Instant, event: E) -> Result<(), E> {
        if self.heap.len() >= self.limit {
            return Err(event);
        }
        self.heap.push(Entry { at, sequence: self.sequence, event });
        self.sequence += 1;
        Ok(())
    }

    /// Removes and returns the earliest event that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, E)> {
        if self.heap.peek()?.at > now {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }

    /// Time of the earliest event.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Number of scheduled events.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed: `BinaryHeap` pops its greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_fall_due_in_order_and_ties_keep_theirs() {
        let start = VirtualClock::new().now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut agenda = Agenda::new(8);
        for (ms, name) in [(5, "c"), (1, "a"), (5, "d"), (2, "b")] {
            agenda.push(at(ms), name).unwrap();
        }
        assert_eq!(agenda.next_due(), Some(at(1)));
        assert_eq!(agenda.pop_due(at(0)), None);
        let order: Vec<_> = std::iter::from_fn(|| agenda.pop_due(at(9))).collect();
        assert_eq!(order, [(at(1), "a"), (at(2), "b"), (at(5), "c"), (at(5), "d")]);
    }

    #[test]
    fn a_full_agenda_gives_the_event_back() {
        let now = VirtualClock::new().now();
        let mut agenda = Agenda::new(1);
        assert_eq!(agenda.push(now, 1), Ok(()));
        assert_eq!(agenda.push(now, 2), Err(2));
        assert_eq!(agenda.len(), 1);
    }

    #[test]
    fn the_clock_never_goes_back() {
        let mut clock = VirtualClock::new();
        let start = clock.now();
        clock.advance(Duration::from_secs(3600));
        clock.advance_to(start);
        assert_eq!(clock.now() - start, Duration::from_secs(3600));
    }
}
