//! Reports of ports that came and went, held until responders answer accordingly.
//!
//! A subscriber that learns of a port queries a path to it at once. OpenSM reports from the tables
//! that it answers from; here these are the responders', which need a moment to rebuild them.

use std::time::{Duration, Instant};

use sa_proto::snapshot::Version;

use crate::observe::Responder;
use sm_core::notice::Event;

/// How long events wait for the slowest responder. One whose workers have all CPUs busy waits a
/// second before it takes any from them for new tables.
const HELD_MAX: Duration = Duration::from_secs(3);
/// How often responders are checked meanwhile.
const INTERVAL: Duration = Duration::from_millis(5);

/// Events that wait, oldest first. There are no more than ports that came or went in
/// [`HELD_MAX`].
#[derive(Debug, Default)]
pub(super) struct HeldEvents {
    events: Vec<Event>,
    /// The version that responders must serve.
    version: Version,
    /// When they are reported in any case, and when to check next.
    due: Option<(Instant, Instant)>,
}

impl HeldEvents {
    /// Holds events until responders serve `version`, including those held already.
    pub(super) fn hold(&mut self, now: Instant, version: Version, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let last = self.due.map_or(now + HELD_MAX, |(last, _)| last);
        self.due = Some((last, now));
        self.version = version;
        self.events.extend(events);
    }

    /// The events, once every responder that serves at all serves their version, or they have
    /// waited too long.
    pub(super) fn release(&mut self, now: Instant, responders: &[Responder]) -> Vec<Event> {
        let Some((last, next)) = self.due else { return Vec::new() };
        if now < next {
            return Vec::new();
        }
        let behind = |responder: &Responder| {
            !responder.is_client()
                && responder.serving.is_some_and(|serving| serving < self.version)
        };
        if now < last && responders.iter().any(behind) {
            self.due = Some((last, now + INTERVAL));
            return Vec::new();
        }
        self.due = None;
        std::mem::take(&mut self.events)
    }

    /// All events: the program ends.
    pub(super) fn release_all(&mut self) -> Vec<Event> {
        std::mem::take(self).events
    }

    /// Discards the events: another subnet manager is master, and reports its own.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// When to check again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due.map(|(last, next)| last.min(next))
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use sa_proto::proto::snapshot::Hello;

    use super::*;
    use sm_core::notice::Issuer;

    fn generation(fabric_generation: u64) -> Version {
        Version { fabric_generation, ..Version::NONE }
    }

    fn responder(serving: Option<u64>, front_door: &[&str]) -> Responder {
        let front_door = front_door.iter().map(|text| (*text).to_owned()).collect();
        let hello = Hello { front_door, ..Hello::default() };
        Responder::new(&hello, serving.map(generation), None, Instant::now(), 1)
    }

    fn event(port: u64) -> Event {
        Issuer::default().port_in_service(Guid(port), &[])
    }

    #[test]
    fn events_wait_for_the_slowest_responder_and_keep_their_order() {
        let (mut held, start) = (HeldEvents::default(), Instant::now());
        held.hold(start, generation(2), vec![event(1)]);
        let slow = [responder(Some(2), &["127.0.0.1:1"]), responder(Some(1), &["127.0.0.1:2"])];
        assert_eq!(held.release(start, &slow), []);
        held.hold(start, generation(3), vec![event(2)]);
        let now = start + INTERVAL;
        assert_eq!(held.release(now, &[responder(Some(2), &["127.0.0.1:1"])]), []);
        assert_eq!(held.poll_timeout(), Some(now + INTERVAL));
        let now = now + INTERVAL;
        let served = [responder(Some(3), &["127.0.0.1:1"])];
        assert_eq!(held.release(now, &served), [event(1), event(2)]);
        assert_eq!((held.poll_timeout(), held.release(now, &served)), (None, vec![]));
    }

    /// Regression: Events that were still held at the end were lost.
    #[test]
    fn held_events_are_reported_at_the_end_and_discarded_under_another_master() {
        let (mut held, now) = (HeldEvents::default(), Instant::now());
        held.hold(now, generation(2), vec![event(1)]);
        assert_eq!((held.release_all(), held.poll_timeout()), (vec![event(1)], None));
        held.hold(now, generation(3), vec![event(2)]);
        held.clear();
        assert_eq!((held.release(now, &[]), held.poll_timeout()), (vec![], None));
    }

    #[test]
    fn only_responders_that_answer_clients_are_waited_for() {
        let (mut held, now) = (HeldEvents::default(), Instant::now());
        held.hold(now, generation(2), vec![event(1)]);
        let others = [responder(None, &["127.0.0.1:1"]), responder(Some(1), &[])];
        assert_eq!(held.release(now, &others), [event(1)]);
    }

    #[test]
    fn a_stuck_responder_delays_events_for_a_limited_time() {
        let (mut held, start) = (HeldEvents::default(), Instant::now());
        let stuck = [responder(Some(1), &["127.0.0.1:1"])];
        held.hold(start, generation(2), vec![event(1)]);
        assert_eq!(held.release(start + HELD_MAX / 2, &stuck), []);
        // Those that come later do not keep the first waiting.
        held.hold(start + HELD_MAX / 2, generation(3), vec![event(2)]);
        assert_eq!(held.release(start + HELD_MAX, &stuck), [event(1), event(2)]);
    }
}
