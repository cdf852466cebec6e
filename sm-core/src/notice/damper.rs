//! Rate limiting of events about the same subject.
//!
//! The first event about a subject is forwarded at once. Later ones within [`INTERVAL`] are held
//! back, and each replaces the one before: when the interval ends, the last is forwarded, so that
//! no subscriber is left with an outdated state.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::Event;

/// How long further events about a subject are held back.
const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of subjects tracked. Beyond it the oldest is no longer rate limited.
const SUBJECTS_MAX: usize = 1 << 16;
/// Maximum number of queued events. Beyond it the oldest is dropped.
const READY_MAX: usize = 1 << 16;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamperCounters {
    /// Events replaced by a later one about the same subject.
    pub superseded: u64,
    /// Events dropped because the queue was full.
    pub dropped: u64,
}

/// The rate limiter; see the module.
#[derive(Debug, Default)]
pub struct Damper {
    subjects: HashMap<u64, Subject>,
    /// When each subject's interval ends; ascending, since all intervals are equal.
    order: VecDeque<(Instant, u64)>,
    ready: VecDeque<Event>,
    counters: DamperCounters,
}

#[derive(Debug, Default)]
struct Subject {
    /// The event held back until the interval ends.
    held: Option<Event>,
}

impl Damper {
    /// Adds an event. An event without a key is never held back.
    pub fn handle(&mut self, now: Instant, event: Event) {
        if event.key == 0 {
            return self.release(event);
        }
        if let Some(subject) = self.subjects.get_mut(&event.key) {
            let before = subject.held.replace(event);
            self.counters.superseded += u64::from(before.is_some());
            return;
        }
        if self.subjects.len() >= SUBJECTS_MAX
            && let Some((_, key)) = self.order.pop_front()
            && let Some(oldest) = self.subjects.remove(&key)
        {
            oldest.held.into_iter().for_each(|event| self.release(event));
        }
        self.subjects.insert(event.key, Subject::default());
        self.order.push_back((now + INTERVAL, event.key));
        self.release(event);
    }

    /// Forwards events whose interval ended. Spurious calls are allowed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.order.front().is_some_and(|&(over, _)| over <= now) {
            let Some((_, key)) = self.order.pop_front() else { return };
            let Some(subject) = self.subjects.get_mut(&key) else { continue };
            match subject.held.take() {
                Some(event) => {
                    self.order.push_back((now + INTERVAL, key));
                    self.release(event);
                }
                None => drop(self.subjects.remove(&key)),
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.order.front().map(|&(over, _)| over)
    }

    /// The next event to forward, oldest first.
    pub fn poll(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// Counters since the start.
    pub fn counters(&self) -> DamperCounters {
        self.counters
    }

    fn release(&mut self, event: Event) {
        if self.ready.len() >= READY_MAX {
            self.ready.pop_front();
            self.counters.dropped += 1;
        }
        self.ready.push_back(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: u64, state: u8) -> Event {
        Event {
            notice: [state; 80],
            trusted_only: false,
            subject: None,
            subject_pkeys: Vec::new(),
            key,
        }
    }

    fn forwarded(damper: &mut Damper) -> Vec<(u64, u8)> {
        std::iter::from_fn(|| damper.poll()).map(|event| (event.key, event.notice[0])).collect()
    }

    #[test]
    fn the_first_goes_at_once_and_of_a_storm_the_last() {
        let (mut damper, now) = (Damper::default(), Instant::now());
        for state in 0..100 {
            damper.handle(now + Duration::from_millis(u64::from(state)), event(7, state));
        }
        assert_eq!(forwarded(&mut damper), [(7, 0)]);
        damper.handle_timeout(now + INTERVAL - Duration::from_millis(1));
        assert_eq!(forwarded(&mut damper), []);
        assert_eq!(damper.poll_timeout(), Some(now + INTERVAL));
        damper.handle_timeout(now + INTERVAL);
        assert_eq!(forwarded(&mut damper), [(7, 99)]);
        assert_eq!(damper.counters(), DamperCounters { superseded: 98, dropped: 0 });
    }

    #[test]
    fn a_continuing_flap_is_reported_once_an_interval() {
        let (mut damper, start) = (Damper::default(), Instant::now());
        let mut count = 0;
        for ms in 0..5_000 {
            let now = start + Duration::from_millis(ms);
            damper.handle_timeout(now);
            damper.handle(now, event(7, (ms % 2) as u8));
            count += forwarded(&mut damper).len();
        }
        assert_eq!(count, 10);
        damper.handle_timeout(start + Duration::from_secs(6));
        assert_eq!(forwarded(&mut damper), [(7, 1)], "the last state is not lost");
        damper.handle_timeout(start + Duration::from_secs(7));
        assert_eq!(damper.poll_timeout(), None, "and then all is forgotten");
    }

    #[test]
    fn subjects_do_not_wait_for_each_other() {
        let (mut damper, now) = (Damper::default(), Instant::now());
        damper.handle(now, event(1, 0));
        damper.handle(now, event(2, 0));
        damper.handle(now, event(0, 5));
        damper.handle(now, event(0, 5));
        assert_eq!(forwarded(&mut damper), [(1, 0), (2, 0), (0, 5), (0, 5)]);
    }

    #[test]
    fn more_subjects_than_are_remembered_lose_nothing() {
        let (mut damper, now) = (Damper::default(), Instant::now());
        damper.handle(now, event(1, 0));
        damper.handle(now, event(1, 9));
        for key in 2..SUBJECTS_MAX as u64 + 10 {
            damper.handle(now, event(key, 0));
            if key % 1_000 == 0 {
                damper.poll();
            }
        }
        assert!(forwarded(&mut damper).contains(&(1, 9)));
        assert_eq!(damper.subjects.len(), SUBJECTS_MAX);
    }

    #[test]
    fn pending_events_are_bounded_and_the_oldest_is_dropped_first() {
        let (mut damper, now) = (Damper::default(), Instant::now());
        for n in 0..READY_MAX + 3 {
            damper.handle(now, Event { notice: [n as u8; 80], ..event(0, 0) });
        }
        assert_eq!(damper.counters().dropped, 3);
        assert_eq!(damper.poll().unwrap().notice[0], 3);
    }
}
