//! Proof that the tables contain the current registrations, and the current fabric.
//!
//! The SM answers a barrier with the sequence number that contains all writes acknowledged before
//! the barrier was sent. Once the tables contain it, they were current at that time, however long
//! the barrier, its answer and the feed took. So a barrier is sent again and again, and a proof
//! counts from the time when its barrier was sent. While there is no recent proof, each read of
//! registrations sends its own barrier. An SM that does not answer barriers cannot be asked;
//! then reads are answered from the held snapshot.
//!
//! The answer also names the generation of the fabric that was published last. Tables that have
//! reached both are confirmed ([`Confirmed`]): for node agents, whose paths depend on both. Reads
//! of registrations do not wait for the fabric: it takes longer to build, and is not what they ask
//! for.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::held::Point;

/// How often proof is sought.
pub(super) const PROOF_INTERVAL: Duration = Duration::from_millis(250);
/// How long a proof counts: the longest time by which an answer about registrations can be
/// outdated while the SM answers.
pub(super) const PROOF_AGE_MAX: Duration = Duration::from_secs(1);
/// How long the SM may take to answer a barrier before it counts as unreachable for reads.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Answers of the SM that the tables have not reached; further ones prove nothing.
const PENDING_MAX: usize = 8;

/// The step that precedes a read of registered records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// No step: the SM does not answer, and reads use the held tables.
    AsHeld,
    /// Ask the SM for its sequence number.
    Ask,
    /// As `Ask`, from this time on; before it, no step is needed.
    AskFrom(Instant),
}

/// When the manager of a session was asked for the last proof that the tables, of its session, are
/// the latest that it has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// Epoch of the session.
    pub epoch: u64,
    /// When the barrier was sent.
    pub at: Instant,
}

/// The barriers sent for proof, and the last proofs.
#[derive(Debug, Default)]
pub(super) struct Currency {
    probe: Probe,
    /// That the tables contain all registrations.
    registry: Proofs,
    /// That they are the latest as a whole.
    whole: Proofs,
    /// State of the tables.
    tables: Point,
    /// Whether the SM did not answer the last barrier in time.
    is_silent: bool,
}

/// Proofs of one kind.
#[derive(Debug, Default)]
struct Proofs {
    /// Points that the tables have not reached, and when they were asked for.
    pending: VecDeque<(Point, Instant)>,
    /// When the tables are known to have been current.
    last: Option<Instant>,
}

impl Proofs {
    /// The SM, asked at `at`, was at `point`.
    fn handle(&mut self, tables: Point, point: Point, at: Instant) {
        if tables.contains(point) {
            self.prove(at);
        } else if self.pending.len() < PENDING_MAX {
            self.pending.push_back((point, at));
        }
    }

    /// The tables have reached this point.
    fn advance(&mut self, tables: Point) {
        self.pending.retain(|(pending, _)| !tables.replaces(*pending));
        while let Some(&(pending, at)) = self.pending.front()
            && tables.contains(pending)
        {
            self.pending.pop_front();
            self.prove(at);
        }
    }

    fn prove(&mut self, at: Instant) {
        self.last = self.last.max(Some(at));
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Probe {
    /// No stream to an SM is open.
    #[default]
    None,
    /// The next barrier is due at this time.
    Waiting(Instant),
    /// Due since this time: the next message will contain one.
    Due(Instant),
    /// Write `number` is a barrier, sent at this time.
    Sent { number: u64, at: Instant },
}

impl Currency {
    /// A stream is opened.
    pub(super) fn handle_connect(&mut self, now: Instant) {
        self.handle_disconnect();
        self.probe = Probe::Waiting(now);
    }

    /// The stream has ended.
    pub(super) fn handle_disconnect(&mut self) {
        self.probe = Probe::None;
        self.registry.pending.clear();
        self.whole.pending.clear();
        self.is_silent = false;
    }

    /// Whether the next message must contain a barrier.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.probe, Probe::Due(_))
    }

    /// Write `number` of a message sent now is a barrier.
    pub(super) fn handle_sent(&mut self, now: Instant, number: u64) {
        self.probe = Probe::Sent { number, at: now };
    }

    /// Write `number` has an outcome; `point` is that of a registry that decides, with the fabric
    /// that was published then.
    pub(super) fn handle_outcome(&mut self, now: Instant, number: u64, point: Option<Point>) {
        let Probe::Sent { number: sent, at } = self.probe else { return };
        if number != sent {
            return;
        }
        self.is_silent = false;
        self.probe = Probe::Waiting(now.max(at + PROOF_INTERVAL));
        let Some(point) = point else { return };
        self.registry.handle(self.tables, point.of_registry(), at);
        // Before the first fabric of a session there is nothing that could be confirmed.
        if point.fabric_generation > 0 {
            self.whole.handle(self.tables, point, at);
        }
    }

    /// The tables have reached `point`.
    pub(super) fn advance(&mut self, point: Point) {
        if point.epoch != self.tables.epoch {
            // What another session's manager confirmed was not these tables.
            self.whole.last = None;
        }
        self.tables = point;
        self.registry.advance(point);
        self.whole.advance(point);
    }

    /// The last proof that the tables are the latest as a whole.
    pub(super) fn confirmed(&self) -> Option<Confirmed> {
        Some(Confirmed { epoch: self.tables.epoch, at: self.whole.last? })
    }

    /// The step that precedes a read.
    pub(super) fn reads(&self) -> Reads {
        match self.registry.last {
            _ if self.is_silent || self.probe == Probe::None => Reads::AsHeld,
            Some(proven) => Reads::AskFrom(proven + PROOF_AGE_MAX),
            None => Reads::Ask,
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.probe {
            Probe::Waiting(due) => Some(due),
            Probe::Sent { at, .. } => Some(at + SILENCE_MAX),
            Probe::Due(since) if !self.is_silent => Some(since + SILENCE_MAX),
            Probe::None | Probe::Due(_) => None,
        }
    }

    /// Performs due work; returns whether the SM became silent. Spurious calls are allowed.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return false;
        }
        let was_silent = self.is_silent;
        self.is_silent |= !matches!(self.probe, Probe::Waiting(_));
        if !self.is_due() {
            self.probe = Probe::Due(now);
        }
        self.is_silent && !was_silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Connected, with tables at sequence number 10.
    fn connected(now: Instant) -> Currency {
        let mut currency = Currency::default();
        currency.advance(Point::new(1, 10));
        assert_eq!(currency.reads(), Reads::AsHeld, "there is no stream");
        currency.handle_connect(now);
        assert_eq!(currency.reads(), Reads::Ask, "nothing is proven");
        currency
    }

    fn probe(currency: &mut Currency, number: u64) -> Instant {
        let now = currency.poll_timeout().expect("a barrier is due");
        currency.handle_timeout(now);
        assert!(currency.is_due());
        currency.handle_sent(now, number);
        now
    }

    #[test]
    fn a_proof_counts_from_the_time_when_its_barrier_was_sent() {
        let start = Instant::now();
        let mut currency = connected(start);
        let sent = probe(&mut currency, 7);
        assert_eq!(sent, start, "at once");
        currency.handle_outcome(start + 100 * MS, 6, Some(Point::new(1, 10)));
        assert_eq!(currency.reads(), Reads::Ask, "that was another write");
        currency.handle_outcome(start + 100 * MS, 7, Some(Point::new(1, 12)));
        assert_eq!(currency.reads(), Reads::Ask, "the tables lack two changes");
        currency.advance(Point::new(1, 12));
        assert_eq!(currency.reads(), Reads::AskFrom(start + PROOF_AGE_MAX));
        let next = probe(&mut currency, 8);
        assert_eq!(next, start + PROOF_INTERVAL);
        currency.handle_outcome(next, 8, None);
        assert_eq!(currency.reads(), Reads::AskFrom(start + PROOF_AGE_MAX), "no registry decided");
    }

    #[test]
    fn a_feed_that_lags_by_less_than_the_bound_leaves_no_gap() {
        let start = Instant::now();
        let mut currency = connected(start);
        for (number, point) in (0..4).map(|number| (number, Point::new(1, 11 + number))) {
            let sent = probe(&mut currency, number);
            currency.handle_outcome(sent, number, Some(point));
        }
        assert_eq!(currency.reads(), Reads::Ask);
        currency.advance(Point::new(1, 12));
        assert_eq!(currency.reads(), Reads::AskFrom(start + PROOF_INTERVAL + PROOF_AGE_MAX));
    }

    fn point(epoch: u64, sequence: u64, fabric_generation: u64) -> Point {
        Point::new(epoch, sequence).with_fabric(fabric_generation)
    }

    /// Regression: a responder that went on with routes which the manager had replaced, because
    /// its feed was stuck or it could not build the new tables, passed on fresh confirmations to
    /// node agents: the registry had not changed.
    #[test]
    fn tables_are_confirmed_once_they_have_the_fabric_that_was_published_too() {
        let start = Instant::now();
        let mut currency = Currency::default();
        currency.advance(point(1, 10, 5));
        currency.handle_connect(start);
        let answered = |currency: &mut Currency, number, point| {
            let sent = probe(currency, number);
            currency.handle_outcome(sent, number, Some(point));
            (sent, currency.confirmed().map(|confirmed| confirmed.at))
        };
        let (first, confirmed) = answered(&mut currency, 1, point(1, 10, 5));
        assert_eq!(confirmed, Some(first));
        // A cable was cut: the manager has published other routes, which are not here yet.
        let (second, confirmed) = answered(&mut currency, 2, point(1, 10, 6));
        assert_eq!(confirmed, Some(first));
        assert_eq!(currency.reads(), Reads::AskFrom(second + PROOF_AGE_MAX), "not for reads");
        for number in 3..40 {
            assert_eq!(answered(&mut currency, number, point(1, 10, 6)).1, Some(first));
        }
        // The routes without the write that was acknowledged meanwhile, then both.
        let (last, _) = answered(&mut currency, 40, point(1, 11, 6));
        currency.advance(point(1, 10, 6));
        let pending = PENDING_MAX as u32;
        let at = currency.confirmed().map(|confirmed| confirmed.at);
        assert_eq!(at, Some(second + PROOF_INTERVAL * (pending - 1)), "those that were kept");
        currency.advance(point(1, 11, 6));
        let (next, confirmed) = answered(&mut currency, 41, point(1, 11, 6));
        assert!(last < next && confirmed == Some(next));
    }

    #[test]
    fn no_manager_confirms_the_tables_of_another_session() {
        let start = Instant::now();
        let mut currency = Currency::default();
        currency.advance(point(1, 10, 5));
        currency.handle_connect(start);
        let sent = probe(&mut currency, 1);
        currency.handle_outcome(sent, 1, Some(point(1, 10, 5)));
        assert_eq!(currency.confirmed(), Some(Confirmed { epoch: 1, at: sent }));
        currency.advance(point(2, 10, 1));
        assert_eq!(currency.confirmed(), None);
        let sent = probe(&mut currency, 2);
        currency.handle_outcome(sent, 2, Some(point(2, 10, 0)));
        assert_eq!(currency.confirmed(), None, "the session has published no fabric");
        let sent = probe(&mut currency, 3);
        currency.handle_outcome(sent, 3, Some(point(2, 10, 1)));
        assert_eq!(currency.confirmed(), Some(Confirmed { epoch: 2, at: sent }));
    }

    /// Regression: an answer from a session that was replaced while the stream stayed open was
    /// awaited for ever, with all later ones, so that each read asked the SM.
    #[test]
    fn an_answer_of_a_replaced_session_does_not_hold_up_later_ones() {
        let mut currency = connected(Instant::now());
        let sent = probe(&mut currency, 1);
        currency.handle_outcome(sent, 1, Some(Point::new(1, 12)));
        currency.advance(Point::new(2, 5));
        assert_eq!(currency.reads(), Reads::Ask, "that proves nothing about this session");
        let sent = probe(&mut currency, 2);
        currency.handle_outcome(sent, 2, Some(Point::new(2, 6)));
        currency.advance(Point::new(2, 6));
        assert_eq!(currency.reads(), Reads::AskFrom(sent + PROOF_AGE_MAX));
    }

    #[test]
    fn an_sm_that_does_not_answer_is_not_asked_until_it_does() {
        for gets_out in [true, false] {
            let start = Instant::now();
            let mut currency = connected(start);
            if gets_out {
                probe(&mut currency, 1);
            } else {
                currency.handle_timeout(start);
            }
            let due = currency.poll_timeout().unwrap();
            assert!(!currency.handle_timeout(due - MS) && currency.reads() == Reads::Ask);
            assert!(currency.handle_timeout(due));
            assert_eq!((due, currency.reads()), (start + SILENCE_MAX, Reads::AsHeld));
            assert!(currency.is_due(), "it is tried again");
            currency.handle_sent(due, 2);
            currency.handle_outcome(due + MS, 2, Some(Point::new(1, 10)));
            assert_eq!(currency.reads(), Reads::AskFrom(due + PROOF_AGE_MAX));
        }
    }

    #[test]
    fn what_a_stream_owed_is_forgotten_with_it() {
        let start = Instant::now();
        let mut currency = connected(start);
        let sent = probe(&mut currency, 1);
        currency.handle_outcome(sent, 1, Some(Point::new(1, 11)));
        currency.handle_disconnect();
        assert_eq!((currency.reads(), currency.poll_timeout()), (Reads::AsHeld, None));
        currency.handle_connect(sent + MS);
        currency.advance(Point::new(1, 11));
        assert_eq!(currency.reads(), Reads::Ask);
    }
}
