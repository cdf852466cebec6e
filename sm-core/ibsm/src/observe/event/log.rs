//! The last events, for all who read them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{Draft, Event, EventKind, Kinds};

/// Number of events kept in memory. A reader that is further behind misses some, unless a history
/// on disk has them.
pub const EVENTS_MAX: usize = 4096;
/// Events of one kind that may happen at once, and per second on average. Further ones are counted.
const BURST: u64 = 500;
const PER_SECOND: u64 = 10;

/// The last events. Clones share them. Appending waits for no reader.
#[derive(Clone, Debug)]
pub struct EventLog {
    ring: Arc<Mutex<Ring>>,
    /// The number of the next event.
    next: watch::Sender<u64>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    next: u64,
    budgets: BTreeMap<EventKind, Budget>,
}

/// How many events of a kind there were, and may be.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// Thousandths of events.
    left: u64,
    filled_ms: u64,
    noted: u64,
    suppressed: u64,
    /// Suppressed since the last one noted.
    skipped: u64,
}

/// Numbers of events of a kind since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Events with a number.
    pub noted: u64,
    /// Events that were only counted.
    pub suppressed: u64,
}

/// A part of the last events.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Consecutive events, oldest first.
    pub events: Vec<Arc<Event>>,
    /// The number to ask for next.
    pub next: u64,
    /// Events between the number that was asked for and the first of these that are not kept.
    pub missed: u64,
}

impl Default for EventLog {
    fn default() -> Self {
        let ring = Ring { events: VecDeque::new(), next: 1, budgets: BTreeMap::new() };
        Self { ring: Arc::new(Mutex::new(ring)), next: watch::Sender::new(1) }
    }
}

impl EventLog {
    /// Continues from events of earlier runs, ascending by number; the next will be `next`. What
    /// was noted in this run follows them under new numbers.
    pub fn restore(&self, earlier: Vec<Event>, next: u64) {
        let mut ring = self.ring();
        let follows = earlier.last().map_or(next, |last| last.number + 1);
        let noted = std::mem::take(&mut ring.events);
        ring.next = next.max(follows);
        // Numbers in memory are consecutive.
        let earlier = earlier.into_iter().filter(|_| follows >= next);
        ring.events = earlier.map(Arc::new).collect();
        for event in noted {
            let event = Event { number: ring.next, ..Event::clone(&event) };
            ring.push(event);
        }
        let excess = ring.events.len().saturating_sub(EVENTS_MAX);
        ring.events.drain(..excess);
        self.next.send_replace(ring.next);
    }

    /// Appends an event that happens at `time_ms`, milliseconds since 1970.
    pub fn note(&self, time_ms: u64, draft: Draft) {
        let mut ring = self.ring();
        let budget = ring.budgets.entry(draft.kind).or_insert_with(|| Budget::full(time_ms));
        let Some(skipped) = budget.spend(time_ms) else { return };
        let draft = match skipped {
            0 => draft,
            skipped => draft.with("suppressed_before", skipped),
        };
        let event = Event::of(ring.next, time_ms, draft);
        ring.push(event);
        self.next.send_replace(ring.next);
    }

    /// Up to `most` events from a number on. A number that was never given counts as the first that
    /// is kept: it is of a history that is gone.
    pub fn since(&self, number: u64, most: usize) -> Batch {
        let ring = self.ring();
        let first = ring.first();
        let from = if number > ring.next { first } else { number.max(first) };
        let skip = usize::try_from(from - first).unwrap_or(usize::MAX);
        let events: Vec<_> = ring.events.iter().skip(skip).take(most).cloned().collect();
        Batch {
            next: from + events.len() as u64,
            missed: if number > ring.next { 0 } else { from - number },
            events,
        }
    }

    /// The number of the first of the last `count` events that are of these kinds; of the first
    /// event kept if there are fewer.
    pub fn last(&self, count: u64, kinds: &Kinds) -> u64 {
        let ring = self.ring();
        let Some(before) = count.checked_sub(1) else { return ring.next };
        let before = usize::try_from(before).unwrap_or(usize::MAX);
        let mut events = ring.events.iter().rev().filter(|event| kinds.takes(&event.kind));
        events.nth(before).map_or(ring.first(), |event| event.number)
    }

    /// The number of the first event kept that happened at `time_ms` or later, or of the next one;
    /// `None` if earlier ones than the first kept may have, too.
    pub fn at(&self, time_ms: u64) -> Option<u64> {
        let ring = self.ring();
        match ring.events.iter().position(|event| event.time_ms >= time_ms) {
            Some(0) => None,
            Some(at) => Some(ring.events[at].number),
            None if ring.events.is_empty() => None,
            None => Some(ring.next),
        }
    }

    /// The number of the first event kept, or of the next one.
    pub fn first(&self) -> u64 {
        self.ring().first()
    }

    /// The number of the next event, which changes with each.
    pub fn next(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }

    /// Numbers of events by kind, since the start.
    pub fn counts(&self) -> BTreeMap<EventKind, EventCounts> {
        let ring = self.ring();
        let of = |kind: &EventKind| {
            let budget = ring.budgets.get(kind);
            budget.map_or_else(EventCounts::default, |budget| EventCounts {
                noted: budget.noted,
                suppressed: budget.suppressed,
            })
        };
        let noted = EventKind::ALL.iter().filter(|kind| kind.group().is_none());
        noted.map(|kind| (*kind, of(kind))).collect()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn first(&self) -> u64 {
        self.next - self.events.len() as u64
    }

    fn push(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Arc::new(event));
        self.next += 1;
    }
}

impl Budget {
    fn full(time_ms: u64) -> Self {
        Self { left: BURST * 1000, filled_ms: time_ms, noted: 0, suppressed: 0, skipped: 0 }
    }

    /// Accepts an event and returns how many before it were not; `None` if this one is not.
    fn spend(&mut self, time_ms: u64) -> Option<u64> {
        // A clock that is set back fills nothing.
        let passed = time_ms.saturating_sub(self.filled_ms);
        self.filled_ms = time_ms;
        self.left = self.left.saturating_add(passed.saturating_mul(PER_SECOND)).min(BURST * 1000);
        match self.left.checked_sub(1000) {
            Some(left) => {
                self.left = left;
                self.noted += 1;
                Some(std::mem::take(&mut self.skipped))
            }
            None => {
                self.suppressed += 1;
                self.skipped += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::Value;

    fn draft(text: &str) -> Draft {
        Draft::new(EventKind::NodeCame, text)
    }

    fn numbers(batch: &Batch) -> Vec<u64> {
        batch.events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn the_last_events_are_kept_and_those_missed_are_counted() {
        let log = EventLog::default();
        let next = log.next();
        let all = EVENTS_MAX as u64 + 10;
        for second in 0..all {
            log.note(second * 1000, draft("x"));
        }
        assert_eq!(*next.borrow(), all + 1);
        let batch = log.since(1, 3);
        assert_eq!((numbers(&batch), batch.missed, batch.next), (vec![11, 12, 13], 10, 14));
        assert!(log.since(all + 1, 3).events.is_empty());
        let every = Kinds::of([]).unwrap();
        assert_eq!((log.last(2, &every), log.last(0, &every)), (all - 1, all + 1));
        assert_eq!(log.at(20_500), Some(22));
        assert_eq!((log.at(0), log.at(u64::MAX)), (None, Some(all + 1)));
    }

    /// Regression: `events -n 2 --kind trap` listed the traps among the last two events.
    #[test]
    fn the_last_events_are_counted_by_kind() {
        let log = EventLog::default();
        for kind in [EventKind::Trap, EventKind::NodeCame, EventKind::Trap, EventKind::NodeWent] {
            log.note(1, Draft::new(kind, "x"));
        }
        let traps = Kinds::of(["trap"]).unwrap();
        assert_eq!([1, 2, 3].map(|count| log.last(count, &traps)), [3, 1, 1]);
        assert_eq!(log.last(1, &Kinds::of(["node_came"]).unwrap()), 2);
    }

    /// A program that remembers a number of a history that was deleted gets what there is.
    #[test]
    fn a_number_from_the_future_is_of_another_history() {
        let log = EventLog::default();
        log.note(1, draft("x"));
        let batch = log.since(900, 10);
        assert_eq!((numbers(&batch), batch.missed, batch.next), (vec![1], 0, 2));
        assert_eq!(log.since(2, 10).next, 2);
    }

    #[test]
    fn numbers_continue_from_those_of_earlier_runs() {
        let log = EventLog::default();
        log.note(9, draft("new"));
        let earlier = [6, 7].map(|number| Event { number, ..Event::default() });
        log.restore(earlier.into(), 1);
        log.note(10, draft("newer"));
        assert_eq!(numbers(&log.since(0, 9)), [6, 7, 8, 9]);
        log.restore(Vec::new(), 100);
        assert_eq!(log.first(), 100, "what was kept follows under new numbers");
    }

    #[test]
    fn a_flood_of_one_kind_is_suppressed_and_counted() {
        let log = EventLog::default();
        for _ in 0..BURST + 70 {
            log.note(5000, draft("x"));
        }
        log.note(5000, Draft::new(EventKind::Mastership, "other kinds are not affected"));
        let counts = log.counts();
        let expected = EventCounts { noted: BURST, suppressed: 70 };
        assert_eq!(counts[&EventKind::NodeCame], expected);
        assert_eq!(counts[&EventKind::Mastership].noted, 1);
        log.note(5100, draft("later"));
        let last = log.since(log.last(1, &Kinds::of([]).unwrap()), 1).events[0].clone();
        assert_eq!(last.fields["suppressed_before"], Value::Number(70));
        // A clock that is set back stops nothing for ever.
        log.note(0, draft("earlier"));
        log.note(1000, draft("earlier"));
        assert_eq!(log.counts()[&EventKind::NodeCame].noted, BURST + 2);
    }
}
