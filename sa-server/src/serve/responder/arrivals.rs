//! What a write can have been sent before.
//!
//! A packet may wait unread, in the socket or in the backlog, while other writes are decided. A
//! late copy of a request that was answered meanwhile must not undo what its client did next. So a
//! write goes to the manager with the registry's sequence number as of the last moment at which
//! nothing waited to be read: every packet read later has arrived after that.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::sm::forward::PATIENCE;
use crate::tables::cell::{Reader, Sequences};

/// No packet waits for longer: a worker that is stopped for this time drops what has arrived, and
/// an overloaded one reads faster.
const WAIT_MAX: Duration = PATIENCE;
/// How often sequence numbers are noted while packets wait all the time.
const INTERVAL: Duration = Duration::from_millis(500);

/// As many as there are in [`WAIT_MAX`].
const NOTED_MAX: usize = 1 + (WAIT_MAX.as_millis() / INTERVAL.as_millis()) as usize;

/// See the module.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Whether turns are reported. Otherwise packets are handled as soon as they arrive.
    is_used: bool,
    /// When this turn began.
    at: Option<Instant>,
    /// At the beginning of this turn.
    now: Sequences,
    /// When all that had arrived was read.
    known: Sequences,
    /// Of earlier turns, while packets wait all the time: at most [`NOTED_MAX`].
    noted: VecDeque<(Instant, Sequences)>,
}

impl Default for Arrivals {
    fn default() -> Self {
        let (now, known) = Default::default();
        Self { is_used: false, at: None, now, known, noted: VecDeque::with_capacity(NOTED_MAX) }
    }
}

impl Arrivals {
    /// Packets are about to be read.
    pub(super) fn begin(&mut self, now: Instant, tables: &mut Reader) {
        (self.is_used, self.at) = (true, Some(now));
        tables.sequences(&mut self.now);
    }

    /// In this turn packets were read, or none waited. Where none are read they may wait for any
    /// time.
    pub(super) fn advance(&mut self) {
        let Some(now) = self.at.take() else { return };
        while self.noted.front().is_some_and(|(at, _)| now >= *at + WAIT_MAX) {
            self.known = self.noted.pop_front().map(|(_, then)| then).unwrap_or_default();
        }
        if self.noted.back().is_none_or(|(at, _)| now >= *at + INTERVAL) {
            self.noted.push_back((now, self.now.clone()));
        }
    }

    /// All packets that had arrived when they were read are answered.
    pub(super) fn end(&mut self) {
        self.known.clone_from(&self.now);
        self.noted.clear();
    }

    /// The sequence number of a lane's registry after which a packet has certainly arrived, if the
    /// registry has `current` now. One that is not known is 1: the packet may have arrived before
    /// anything that is.
    pub(super) fn seen(&self, lane: usize, current: u64) -> u64 {
        match self.is_used {
            true => self.known.of(lane).unwrap_or(1).min(current),
            false => current,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Version};

    use super::*;
    use crate::tables::Tables;
    use crate::tables::cell::{Generation, Publisher};

    fn publish(publisher: &mut Publisher, sequence: u64) {
        let registry = RegistryPlane { sequence, ..RegistryPlane::default() };
        let tables = Tables::build(&FabricPlane::default(), &registry);
        let generation = Generation::new(Version::NONE, Arc::new(tables), Arc::new(registry));
        publisher.publish(Arc::new(generation));
    }

    /// Regression: a copy of a deletion that waited unread while another copy was answered, and the
    /// record set again, was decided like a new request: an acknowledged registration was lost.
    #[test]
    fn a_packet_may_have_waited_since_all_that_had_arrived_was_read() {
        let (mut publisher, mut arrivals) = (Publisher::new(), Arrivals::default());
        let (mut tables, start) = (publisher.reader(), Instant::now());
        assert_eq!(arrivals.seen(0, 5), 5, "without a queue nothing waits");
        publish(&mut publisher, 5);
        arrivals.begin(start, &mut tables);
        assert_eq!(arrivals.seen(0, 5), 1);
        arrivals.end();
        for sequence in 6..9 {
            publish(&mut publisher, sequence);
            arrivals.begin(start, &mut tables);
            assert_eq!(arrivals.seen(0, sequence), 5, "more waited each time");
        }
        arrivals.end();
        arrivals.begin(start, &mut tables);
        assert_eq!((arrivals.seen(0, 8), arrivals.seen(1, 8)), (8, 1));
    }

    #[test]
    fn packets_wait_for_any_time_while_none_are_read() {
        let (mut publisher, mut arrivals) = (Publisher::new(), Arrivals::default());
        let (mut tables, start) = (publisher.reader(), Instant::now());
        publish(&mut publisher, 5);
        arrivals.begin(start, &mut tables);
        arrivals.advance();
        arrivals.end();
        for second in 1..60 {
            publish(&mut publisher, 5 + second);
            arrivals.begin(start + Duration::from_secs(second), &mut tables);
            assert_eq!(arrivals.seen(0, u64::MAX), 5, "{second}");
        }
    }

    #[test]
    fn no_packet_waits_for_longer_than_clients_wait_for_answers() {
        let (mut publisher, mut arrivals) = (Publisher::new(), Arrivals::default());
        let (mut tables, start) = (publisher.reader(), Instant::now());
        for turn in 0..1_000 {
            let now = start + Duration::from_millis(10) * turn;
            publish(&mut publisher, 1 + u64::from(turn));
            arrivals.begin(now, &mut tables);
            arrivals.advance();
            let behind = u64::from(turn) - (arrivals.seen(0, u64::MAX) - 1);
            let (least, most) = (WAIT_MAX.as_millis() / 10, (WAIT_MAX + INTERVAL).as_millis() / 10);
            if u128::from(turn) > most {
                assert!((least..=most).contains(&u128::from(behind)), "{turn}: {behind}");
            }
        }
        assert!(arrivals.noted.len() <= NOTED_MAX);
    }
}
