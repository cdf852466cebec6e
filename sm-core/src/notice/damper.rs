//! What to tell of events that come faster than anybody wants to hear of them.
//!
//! The first event about a subject goes out at once. Those that follow within [`INTERVAL`] wait,
//! and each replaces the one before: when the interval is over the last goes out, so that nobody
//! is left with a state that is over.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::Event;

/// How long after an event others about its subject wait.
const INTERVAL: Duration = Duration::from_millis(500);
/// Subjects remembered. Beyond, the one heard of longest ago may be told of at once again.
const SUBJECTS_MAX: usize = 1 << 16;
/// Events that wait to be taken. Beyond, the oldest is dropped.
const READY_MAX: usize = 1 << 16;

/// Totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamperCounters {
    /// Events that another about the same subject replaced.
    pub superseded: u64,
    /// Events dropped since too many waited.
    pub dropped: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Damper {
    subjects: HashMap<u64, Subject>,
    /// When each subject's interval is over; ascending, since all intervals are equal.
    order: VecDeque<(Instant, u64)>,
    ready: VecDeque<Event>,
    counters: DamperCounters,
}

#[derive(Debug, Default)]
struct Subject {
    /// What waits for the end of the interval.
    held: Option<Event>,
}

impl Damper {
    /// Takes an event. One without key is never held back.
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

    /// Lets go of what has waited long enough. Spurious calls are allowed.
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

    /// The next event to tell of, oldest first.
    pub fn poll(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// Totals.
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

    fn told(damper: &mut Damper) -> Vec<(u64, u8)> {
        std::iter::from_fn(|| damper.poll()).map(|event| (event.key, event.notice[0])).collect()
    }

    #[test]
    fn the_first_goes_at_once_and_of_a_storm_the_last() {
        let (mut damper, now) = (Damper::default(), Instant::now());
        for state in 0..100 {
            damper.handle(now + Duration::from_millis(u64::from(state)), event(7, state));
        }
        assert_eq!(told(&mut damper), [(7, 0)]);
        damper.handle_timeout(now + INTERVAL - Duration::from_millis(1));
        assert_eq!(told(&mut damper), []);
        assert_eq!(damper.poll_timeout(), Some(now + INTERVAL));
        damper.handle_timeout(now + INTERVAL);
        assert_eq!(told(&mut damper), [(7, 99)]);
        assert_eq!(damper.counters(), DamperCounters { superseded: 98, dropped: 0 });
    }

    #[test]
    fn a_flap_that_goes_on_is_told_of_once_an_interval() {
        let (mut damper, start) = (Damper::default(), Instant::now());
        let mut count = 0;
        for ms in 0..5_000 {
            let now = start + Duration::from_millis(ms);
            damper.handle_timeout(now);
            damper.handle(now, event(7, (ms % 2) as u8));
            count += told(&mut damper).len();
        }
        assert_eq!(count, 10);
        damper.handle_timeout(start + Duration::from_secs(6));
        assert_eq!(told(&mut damper), [(7, 1)], "the last state is not lost");
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
        assert_eq!(told(&mut damper), [(1, 0), (2, 0), (0, 5), (0, 5)]);
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
        assert!(told(&mut damper).contains(&(1, 9)));
        assert_eq!(damper.subjects.len(), SUBJECTS_MAX);
    }

    #[test]
    fn events_nobody_takes_are_bounded_and_the_oldest_goes_first() {
        let (mut damper, now) = (Damper::default(), Instant::now());
        for n in 0..READY_MAX + 3 {
            damper.handle(now, Event { notice: [n as u8; 80], ..event(0, 0) });
        }
        assert_eq!(damper.counters().dropped, 3);
        assert_eq!(damper.poll().unwrap().notice[0], 3);
    }
}
