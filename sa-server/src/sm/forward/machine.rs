//! Decides when writes are sent to the SM and when their outcomes reach the workers.
//!
//! This module never sends, waits or reads a clock. There is at most one stream to the SM. Writes
//! in flight when it breaks are sent again on the next one unless their clients have timed out. The
//! SM recognizes repeats, including those from another responder or connection.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ib_mad::transport::Address;
use ib_mad::wire::mad::Status;
use sa_proto::metrics::Histogram;
use sa_proto::proto::registry as proto;
use sa_proto::snapshot::Version;

use super::acknowledged::Permits;
use super::currency::{Confirmed, Currency, Reads};
use super::held::{Held, Point};
use super::in_flight::{InFlight, Sent};
use super::{Answer, Request, Submission, Verdict};

/// Writes in one message: as many as the SM commits at a time.
const BATCH_MAX: usize = 1024;
/// Outcomes that may still wait for the tables when expired writes are removed; if there are more,
/// all are discarded, as they belong to a session that was replaced.
const HELD_MAX: usize = 16_384;
/// Id of the submission that is a barrier of the machine's own. No worker has it.
const PROOF: u64 = u64::MAX;
/// Delay before a stream is opened again after the previous one broke.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Interval at which expired writes are removed.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(500);

/// Counters of forwarded writes.
#[derive(Debug, Default)]
pub struct Counters {
    /// Writes sent to the SM for the first time.
    pub sent: AtomicU64,
    /// Outcomes received.
    pub outcomes: AtomicU64,
    /// Writes sent again after a stream broke.
    pub resent: AtomicU64,
    /// Writes given up because no outcome came in time.
    pub given_up: AtomicU64,
    /// Outcomes discarded because too many waited for the tables, their session was replaced, or a
    /// manager that becomes master was promised that no more would be acknowledged.
    pub discarded: AtomicU64,
    /// Streams opened.
    pub streams: AtomicU64,
    /// Outcomes that wait for the tables now.
    pub held: AtomicU64,
    /// Writes that the SM has not answered now.
    pub in_flight: AtomicU64,
    /// Time from sending a write to its outcome.
    pub round_trip: Histogram,
}

/// Writes on their way to the SM, and their outcomes on the way back.
#[derive(Debug)]
pub struct Machine {
    responder_id: u64,
    /// How long clients wait; older submissions are not sent.
    patience: Duration,
    counters: Arc<Counters>,
    /// Epoch of the session that the tables belong to.
    epoch: u64,
    link: Link,
    in_flight: InFlight,
    /// Answers to return now, and the points from which the registry contains their rows.
    ready: VecDeque<(Point, Answer)>,
    held: Held,
    currency: Currency,
    /// When expired writes are removed next; `None` while there is nothing to expire.
    expiry: Option<Instant>,
}

/// The stream to the SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// No stream; one may be opened at `retry`, or now.
    Down { retry: Option<Instant> },
    /// A stream is open or being opened.
    Up,
}

impl Machine {
    /// No writes yet, and no stream.
    pub fn new(responder_id: u64, patience: Duration, counters: Arc<Counters>) -> Self {
        Self {
            responder_id,
            patience,
            counters,
            epoch: 0,
            link: Link::Down { retry: None },
            in_flight: InFlight::default(),
            ready: VecDeque::new(),
            held: Held::default(),
            currency: Currency::default(),
            expiry: None,
        }
    }

    /// Whether to open a stream now, if there is an SM.
    pub fn poll_connect(&self) -> bool {
        self.link == Link::Down { retry: None }
    }

    /// A stream is being opened; returns its first message: all writes in flight, oldest first, or
    /// an empty one, which the SM does not answer.
    pub fn handle_connect(&mut self, now: Instant) -> proto::Writes {
        self.link = Link::Up;
        self.currency.handle_connect(now);
        self.expire(now);
        self.in_flight.forget_messages();
        let sent = self.in_flight.iter();
        let writes: Vec<_> =
            sent.map(|(number, sent)| encode(number, sent.request.as_ref())).collect();
        self.counters.resent.fetch_add(writes.len() as u64, Relaxed);
        if !writes.is_empty() {
            self.in_flight.note_message(now);
        }
        self.message(writes)
    }

    /// The stream broke, or could not be opened.
    pub fn handle_disconnect(&mut self, now: Instant) {
        self.link = Link::Down { retry: Some(now + RETRY_DELAY) };
        self.currency.handle_disconnect();
    }

    /// The stream, if there is one, is closed in favour of another SM; connects without delay.
    pub fn handle_upstream(&mut self) {
        self.link = Link::Down { retry: None };
        self.currency.handle_disconnect();
    }

    /// The step that precedes a read of registered records.
    pub fn reads(&self) -> Reads {
        self.currency.reads()
    }

    /// The last proof that the tables are the latest, registry and fabric.
    pub fn confirmed(&self) -> Option<Confirmed> {
        self.currency.confirmed()
    }

    /// Queries are answered from `version` from now on. [`Version::NONE`] means from no version:
    /// no manager continues the session, and everything that waits is given up.
    pub fn handle_version(&mut self, version: Version) {
        if version == Version::NONE && self.epoch != 0 {
            self.counters.given_up.fetch_add(self.in_flight.len() as u64, Relaxed);
            self.counters.discarded.fetch_add(self.held.len() as u64, Relaxed);
            self.in_flight.clear();
            (self.held, self.currency) = (Held::default(), Currency::default());
            self.update_gauges();
        }
        self.epoch = version.session.epoch;
        let discarded = self.held.advance(version.into());
        self.counters.discarded.fetch_add(discarded as u64, Relaxed);
        self.currency.advance(version.into());
    }

    /// Takes outcomes from the SM. Those of writes that are not in flight are ignored.
    pub fn handle_outcomes(&mut self, now: Instant, outcomes: proto::Outcomes) {
        for outcome in outcomes.outcomes {
            let Some(sent) = self.in_flight.answered(outcome.id) else { continue };
            self.counters.outcomes.fetch_add(1, Relaxed);
            self.counters.round_trip.record(now.saturating_duration_since(sent.since), 1);
            let point = Point::new(outcome.epoch, outcome.sequence);
            if sent.request.is_none() {
                let decides = !outcome.dropped && outcome.status == u32::from(Status::OK.0);
                let point = decides.then(|| point.with_fabric(outcome.fabric_generation));
                self.currency.handle_outcome(now, outcome.id, point);
            }
            let verdict = verdict(&sent, outcome);
            for id in sent.others {
                self.deliver(point, Answer { id, verdict: verdict.clone() });
            }
            if sent.id != PROOF {
                self.deliver(point, Answer { id: sent.id, verdict });
            }
        }
        self.arm_expiry(now);
        self.update_gauges();
    }

    /// Passes on an answer once the tables contain the rows that it refers to.
    fn deliver(&mut self, point: Point, answer: Answer) {
        match answer.verdict {
            Verdict::NoReply => self.ready.push_back((point, answer)),
            Verdict::Reply(..) | Verdict::Requery if self.held.replaces(point) => {
                self.counters.discarded.fetch_add(1, Relaxed);
            }
            Verdict::Reply(..) | Verdict::Requery => {
                self.ready.extend(self.held.push(point, answer).map(|answer| (point, answer)));
            }
        }
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) would send a submission.
    pub fn may_send(&self) -> bool {
        self.link == Link::Up && self.in_flight.may_send()
    }

    /// The next message for the stream, built from what `next` yields; `None` if it yields nothing,
    /// or if nothing may be sent now. Submissions stay in their queue until they can be sent.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        mut next: impl FnMut() -> Option<Submission>,
    ) -> Option<proto::Writes> {
        if !self.may_send() {
            return None;
        }
        let mut writes = Vec::new();
        let mut barrier = None;
        if self.currency.is_due() {
            let proof = Submission { id: PROOF, at: now, request: None };
            writes.extend(self.submit(now, proof, &mut barrier));
            barrier.into_iter().for_each(|number| self.currency.handle_sent(now, number));
        }
        while writes.len() < BATCH_MAX
            && let Some(submission) = next()
        {
            if now.saturating_duration_since(submission.at) > self.patience {
                self.counters.given_up.fetch_add(1, Relaxed);
            } else if let Some(write) = self.submit(now, submission, &mut barrier) {
                writes.push(write);
            }
        }
        self.counters.sent.fetch_add(writes.len() as u64, Relaxed);
        self.arm_expiry(now);
        self.update_gauges();
        if writes.is_empty() {
            return None;
        }
        self.in_flight.note_message(now);
        Some(self.message(writes))
    }

    /// Notes a submission as in flight. Barriers of one message share a single write, the number of
    /// which is in `barrier`.
    fn submit(
        &mut self,
        now: Instant,
        submission: Submission,
        barrier: &mut Option<u64>,
    ) -> Option<proto::Write> {
        let is_barrier = submission.request.is_none();
        if is_barrier
            && let Some(shared) = barrier.and_then(|number| self.in_flight.get_mut(number))
        {
            shared.others.push(submission.id);
            return None;
        }
        let mut write = encode(0, submission.request.as_ref());
        write.id = self.in_flight.note(now, submission);
        if is_barrier {
            *barrier = Some(write.id);
        }
        Some(write)
    }

    /// The next answer for a worker: none for the client of a write that `permits` does not permit
    /// to acknowledge. Call until it yields `None`.
    pub(super) fn poll_answer(&mut self, permits: &mut Permits<'_>) -> Option<Answer> {
        let next = self.ready.pop_front().or_else(|| self.held.pop());
        self.update_gauges();
        let (point, mut answer) = next?;
        if matches!(answer.verdict, Verdict::Reply(..)) && !permits.take(point) {
            self.counters.discarded.fetch_add(1, Relaxed);
            answer.verdict = Verdict::NoReply;
        }
        Some(answer)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due. Changes after any other `&mut self`
    /// call.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let link = match self.link {
            Link::Down { retry } => retry,
            Link::Up if self.in_flight.may_send() => None,
            Link::Up => self.in_flight.poll_stall(),
        };
        [link, self.expiry, self.currency.poll_timeout()].into_iter().flatten().min()
    }

    /// Performs due work: allows a new stream or message, removes expired writes, has the next
    /// message seek proof. Spurious calls are allowed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.currency.handle_timeout(now) {
            self.release_reads();
        }
        match self.link {
            Link::Down { retry: Some(due) } if due <= now => {
                self.link = Link::Down { retry: None };
            }
            Link::Up if !self.in_flight.may_send() => self.in_flight.handle_stall(now),
            _ => {}
        }
        if self.expiry.is_some_and(|due| due <= now) {
            self.expire(now);
            self.expiry = None;
            self.arm_expiry(now);
        }
    }

    /// The SM does not answer: reads that wait for it are answered from the held snapshot.
    fn release_reads(&mut self) {
        for number in self.in_flight.barriers() {
            let Some(sent) = self.in_flight.answered(number) else { continue };
            let ids = sent.others.into_iter().chain([sent.id]).filter(|id| *id != PROOF);
            let answers = ids.map(|id| Answer { id, verdict: Verdict::Requery });
            self.ready.extend(answers.map(|answer| (Point::default(), answer)));
        }
        self.update_gauges();
    }

    /// Removes writes whose clients have timed out; the workers have removed theirs.
    fn expire(&mut self, now: Instant) {
        if let Some(since) = now.checked_sub(self.patience) {
            let given_up = self.in_flight.remove_older(since);
            self.counters.given_up.fetch_add(given_up as u64, Relaxed);
        }
        if self.held.len() > HELD_MAX {
            self.counters.discarded.fetch_add(self.held.len() as u64, Relaxed);
            self.held.clear();
        }
        self.update_gauges();
    }

    fn arm_expiry(&mut self, now: Instant) {
        if self.expiry.is_none() && self.in_flight.len() + self.held.len() > 0 {
            self.expiry = Some(now + EXPIRY_INTERVAL);
        }
    }

    fn update_gauges(&self) {
        self.counters.in_flight.store(self.in_flight.len() as u64, Relaxed);
        self.counters.held.store(self.held.len() as u64, Relaxed);
    }

    fn message(&self, writes: Vec<proto::Write>) -> proto::Writes {
        proto::Writes { responder_id: self.responder_id, writes, epoch: self.epoch }
    }
}

fn verdict(sent: &Sent, outcome: proto::Outcome) -> Verdict {
    match (&sent.request, outcome.dropped) {
        (None, _) => Verdict::Requery,
        (Some(_), true) => Verdict::NoReply,
        (Some(_), false) => {
            let data = Some(outcome.data).filter(|data| !data.is_empty());
            Verdict::Reply(Status(outcome.status as u16), data)
        }
    }
}

fn encode(number: u64, request: Option<&Request>) -> proto::Write {
    proto::Write {
        id: number,
        mad: request.map(|request| request.mad.clone()).unwrap_or_default(),
        requester: request.map(|request| requester(&request.address)),
        seen: request.map_or(0, |request| request.seen),
    }
}

fn requester(address: &Address) -> proto::Requester {
    proto::Requester {
        lid: address.lid.0.into(),
        qpn: address.qpn.0,
        sl: address.sl.get().into(),
        pkey_index: 0,
        pkey: address.pkey.0.into(),
        gid: address.grh.map(|grh| grh.remote_gid.0.to_vec()).unwrap_or_default().into(),
    }
}

#[cfg(test)]
mod tests;
