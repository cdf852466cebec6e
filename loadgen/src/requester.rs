//! One requester: what a [`Scenario`] asks goes out, and answers find their queries. A state machine
//! without I/O; [`driver`](crate::driver) has the transport and the clock.
//!
//! It treats requests and answers as Linux's `ib_sa` does: a request is repeated unchanged,
//! transaction id included, each time after the same time-out; an answer is whatever has the
//! class and the transaction id; any status is final.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ib_mad::transaction::{CAPACITY_MAX, Transactions};
use ib_mad::transport::Packet;
use ib_mad::wire::mad::MadHeader;

use crate::ask::{Ask, Judge, Kind, is_answer};
use crate::check::{Level, Verdict};
use crate::fabric::Fabric;
use crate::histogram::{Counts, Timings};
use crate::scenario::{Outcome, Query, Scenario, Summary};
use crate::table::{Progress, Tables, is_acknowledgement, is_segment};
use crate::workload::Workload;

/// Wrong answers that are told in words.
const EXAMPLES_MAX: usize = 5;

/// What one requester is to do.
pub struct RequesterOptions {
    /// What may be asked, and by whom.
    pub workload: Arc<Workload>,
    /// What is asked when.
    pub scenario: Box<dyn Scenario>,
    /// What answers are checked by, if it is known.
    pub fabric: Option<Arc<Fabric>>,
    /// How far answers are checked.
    pub level: Level,
    /// Paths to tell in words.
    pub show: usize,
    /// Makes transaction ids differ from those of other requesters: the upper half stands in them
    /// (ibsim overwrites some of it), the lower one is where the lower halves begin.
    pub tid_seed: u64,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To one of the responders: the one whose turn it is, counted on and on.
    Turn(usize),
    /// Where its address says: back to where an answer came from.
    Back(Option<SocketAddr>),
}

/// A query that waits for its answer.
struct Waiting {
    query: Query,
    /// When its first packet was sent.
    sent: Option<Instant>,
    /// The turn of its last packet.
    turn: Option<usize>,
    /// Times that it was sent on to another port.
    hops: u8,
}

/// See the [module](self).
pub struct Requester {
    options: RequesterOptions,
    table: Transactions<Waiting>,
    tables: Tables,
    counts: Counts,
    recent: Timings,
    shown: Vec<String>,
    examples: Vec<String>,
    last_answer: Option<Instant>,
    last_begun: Option<Instant>,
}

impl Requester {
    /// A requester that has not begun.
    pub fn new(options: RequesterOptions) -> Self {
        let capacity = options.scenario.capacity().clamp(1, CAPACITY_MAX);
        Self {
            table: Transactions::new(capacity, options.tid_seed as u32),
            tables: Tables::default(),
            counts: Counts::default(),
            recent: Timings::default(),
            shown: Vec::with_capacity(options.show),
            examples: Vec::with_capacity(EXAMPLES_MAX),
            last_answer: None,
            last_begun: None,
            options,
        }
    }

    /// What transaction ids were seeded with.
    pub fn tid_seed(&self) -> u64 {
        self.options.tid_seed
    }

    /// How often the query that `packet` answers was sent on already; `None` if it answers none.
    pub fn hops(&self, packet: &Packet) -> Option<u8> {
        if packet.address.undelivered != 0 || !is_answer(&packet.mad) {
            return None;
        }
        self.table.get(tid_of(packet)).map(|waiting| waiting.hops)
    }

    /// Asks once more what `packet` answers by sending us on; `false` if it answers nothing.
    pub fn ask_again(&mut self, now: Instant, packet: &Packet) -> bool {
        let Some(waiting) = self.table.handle_response(tid_of(packet)) else { return false };
        self.counts.redirected += 1;
        self.last_answer = Some(now);
        let patience = waiting.query.patience;
        let waiting = Waiting { hops: waiting.hops + 1, turn: None, ..waiting };
        if self.table.start(waiting, patience.timeout, patience.retries).is_err() {
            // Its own place in the table has just become free.
            self.counts.abandoned += 1;
        }
        true
    }

    /// Packets that repeated an earlier one.
    pub fn repeats(&self) -> u64 {
        self.table.counters().retried
    }

    /// Takes what was received.
    #[inline]
    pub fn handle(&mut self, now: Instant, packet: &Packet) {
        if packet.address.undelivered != 0 {
            // The kernel would not tell its clients: they wait, and ask again.
            self.counts.undelivered += 1;
            return;
        }
        let tid = tid_of(packet);
        let asked = self.table.get(tid).map(|waiting| waiting.query.ask);
        let is_garbage = matches!(asked, Some(Ask::Malformed { .. }));
        if !is_answer(&packet.mad) && !is_garbage {
            self.counts.strange += 1;
            return;
        }
        if is_garbage && is_acknowledgement(packet) {
            return; // The answer, if there is one, comes by itself.
        }
        if is_segment(packet) && !is_garbage {
            let is_expected = asked.is_some_and(|ask| ask.is_table());
            return match self.tables.handle(now, packet, is_expected) {
                Progress::Some => {}
                Progress::Whole(message) => self.complete(now, tid, &message),
            };
        }
        self.complete(now, tid, &packet.mad);
    }

    /// Takes a whole answer.
    #[inline]
    fn complete(&mut self, now: Instant, tid: u64, message: &[u8]) {
        let Some(Waiting { query, sent, .. }) = self.table.handle_response(tid) else {
            self.counts.late += 1;
            return;
        };
        self.counts.answered += 1;
        self.last_answer = Some(now);
        let kind = query.ask.kind();
        let due = now.saturating_duration_since(query.due);
        let service = now.saturating_duration_since(sent.unwrap_or(query.due));
        self.recent.record(kind, due, service);
        let RequesterOptions { workload, fabric, level, .. } = &self.options;
        let judge = Judge { workload, fabric: fabric.as_deref(), level: *level };
        let verdict = judge.judge(&query.ask, query.port, message);
        let counts = &mut self.counts.kinds[kind as usize];
        match verdict {
            Verdict::Resolved => counts.resolved += 1,
            Verdict::NoPath => counts.no_path += 1,
            Verdict::Error(_) | Verdict::Wrong(_) => counts.failed += 1,
        }
        match verdict {
            // What is answered to garbage is nothing that was asked for.
            Verdict::Resolved if kind == Kind::Malformed => self.counts.answered_garbage += 1,
            Verdict::Resolved => {
                self.counts.resolved += 1;
                if self.shown.len() < self.options.show {
                    self.shown.push(judge.describe(&query.ask, query.port, message));
                }
            }
            Verdict::NoPath => self.counts.no_path += 1,
            Verdict::Error(status) => {
                self.counts.errors.add(status, 1);
                if self.examples.len() < EXAMPLES_MAX {
                    self.examples.push(judge.describe(&query.ask, query.port, message));
                }
            }
            Verdict::Wrong(fault) => {
                self.counts.wrong[fault as usize] += 1;
                if self.examples.len() < EXAMPLES_MAX {
                    let told = judge.describe(&query.ask, query.port, message);
                    self.examples.push(format!("{told} ({fault})"));
                }
            }
        }
        let outcome = Outcome::Answered { verdict, message };
        self.options.scenario.handle_outcome(now, &query, &outcome);
    }

    /// Lets time pass: gives up what has waited too long, begins what is due.
    pub fn advance(&mut self, now: Instant) {
        self.table.handle_timeout(now);
        while let Some((_, Waiting { query, .. })) = self.table.poll_expired() {
            let kind = query.ask.kind();
            self.counts.kinds[kind as usize].timed_out += 1;
            match kind {
                Kind::Malformed => self.counts.silent_garbage += 1,
                _ => self.counts.timed_out += 1,
            }
            self.options.scenario.handle_outcome(now, &query, &Outcome::Silent);
        }
        self.tables.handle_timeout(now);
        while self.table.room() > 0
            && let Some(query) = self.options.scenario.poll_query(now, self.table.outstanding())
        {
            let patience = query.patience;
            let waiting = Waiting { query, sent: None, turn: None, hops: 0 };
            if self.table.start(waiting, patience.timeout, patience.retries).is_err() {
                break;
            }
            self.counts.queries += 1;
            self.counts.kinds[query.ask.kind() as usize].queries += 1;
            self.last_begun = Some(now);
        }
    }

    /// Writes the next packet to send, if there is one: its MAD, and as its LID that of the port
    /// that asks, unless it goes back. Queries take the turn `turn` at first, the next one with
    /// every repeat, so that a responder that has died is asked once only.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant, turn: usize, packet: &mut Packet) -> Option<Way> {
        if self.tables.poll_transmit(packet) {
            return Some(Way::Back(packet.address.peer));
        }
        let (tid, waiting) = self.table.poll_transmit(now)?;
        let turn = waiting.turn.map_or(turn, |last| last.wrapping_add(1));
        waiting.turn = Some(turn);
        let query = &waiting.query;
        self.counts.kinds[query.ask.kind() as usize].sent += 1;
        if waiting.sent.is_none() {
            waiting.sent = Some(now);
            self.recent.lag.record(now.saturating_duration_since(query.due));
        }
        let workload = &self.options.workload;
        let tid = self.options.tid_seed >> 32 << 32 | u64::from(tid);
        query.ask.write(query.port, workload, tid, &mut packet.mad);
        packet.address.lid = workload.ports().get(query.port).lid;
        Some(Way::Turn(turn))
    }

    /// When [`advance`](Self::advance) has something to do, unless an answer comes first.
    pub fn next_due(&self) -> Option<Instant> {
        let query = self.options.scenario.poll_timeout().filter(|_| self.table.room() > 0);
        let times = [self.table.poll_timeout(), self.tables.poll_timeout(), query];
        times.into_iter().flatten().min()
    }

    /// Whether all is asked, and answered or given up.
    pub fn is_done(&self, now: Instant) -> bool {
        self.table.outstanding() == 0 && self.options.scenario.is_over(now)
    }

    /// Gives up everything outstanding.
    pub fn abandon(&mut self) {
        self.counts.abandoned += self.table.cancel_all().count() as u64;
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        let table = self.table.counters();
        Counts {
            sent: table.transmitted,
            retries: table.retried,
            dropped_tables: self.tables.dropped(),
            ..self.counts
        }
    }

    /// Timings since they were last cleared.
    pub fn recent(&mut self) -> &mut Timings {
        &mut self.recent
    }

    /// When the last answer came.
    pub fn last_answer(&self) -> Option<Instant> {
        self.last_answer
    }

    /// When the last query was begun.
    pub fn last_begun(&self) -> Option<Instant> {
        self.last_begun
    }

    /// What the scenario counted.
    pub fn summary(&self) -> Summary {
        self.options.scenario.summary()
    }

    /// Paths, and wrong answers, in words.
    pub fn into_words(self) -> (Vec<String>, Vec<String>) {
        (self.shown, self.examples)
    }
}

#[inline]
fn tid_of(packet: &Packet) -> u64 {
    MadHeader::new(&packet.mad[..]).expect("24 bytes of 256").tid()
}

#[cfg(test)]
mod tests;
