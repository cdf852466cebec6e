//! One requester: sends the queries of a [`Scenario`] and matches responses to them. A state
//! machine without I/O; [`driver`](crate::driver) has the transport and the clock.
//!
//! It handles requests and responses as Linux's `ib_sa` does: a request is repeated unchanged,
//! transaction id included, at equal intervals; a response is any packet with the class and the
//! transaction id; any status is final.

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

/// Limit of faulty responses kept as text.
const EXAMPLES_MAX: usize = 5;

/// Parameters of a requester.
pub struct RequesterOptions {
    /// The queries and their senders.
    pub workload: Arc<Workload>,
    /// The model that decides which query is due.
    pub scenario: Box<dyn Scenario>,
    /// The fabric to check responses by, if known.
    pub fabric: Option<Arc<Fabric>>,
    /// How thoroughly responses are checked.
    pub level: Level,
    /// Paths to print.
    pub show: usize,
    /// Distinguishes transaction ids from those of other requesters: all have its upper half (ibsim
    /// overwrites a part of that), and their lower halves start at its lower half.
    pub tid_seed: u64,
}

/// Destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One of the responders, selected by this running number.
    Turn(usize),
    /// The packet's address: back to the sender of a response.
    Back(Option<SocketAddr>),
}

/// A query awaiting its response.
struct Waiting {
    query: Query,
    /// When its first packet was sent.
    sent: Option<Instant>,
    /// Running number of its last packet.
    turn: Option<usize>,
    /// Times that it was redirected.
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
    /// A requester that has not started.
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

    /// The seed of transaction ids.
    pub fn tid_seed(&self) -> u64 {
        self.options.tid_seed
    }

    /// How often the query that `packet` answers was redirected; `None` if the packet matches no
    /// query.
    pub fn hops(&self, packet: &Packet) -> Option<u8> {
        if packet.carrier.undelivered != 0 || !is_answer(&packet.mad) {
            return None;
        }
        self.table.get(tid_of(packet)).map(|waiting| waiting.hops)
    }

    /// Sends again the query that `packet` redirected; `false` if the packet matches none.
    pub fn ask_again(&mut self, now: Instant, packet: &Packet) -> bool {
        let Some(waiting) = self.table.handle_response(tid_of(packet)) else { return false };
        self.counts.redirected += 1;
        self.last_answer = Some(now);
        let patience = waiting.query.patience;
        let waiting = Waiting { hops: waiting.hops + 1, turn: None, ..waiting };
        if self.table.start(waiting, patience.timeout, patience.retries).is_err() {
            // Its own slot in the table has just become free.
            self.counts.abandoned += 1;
        }
        true
    }

    /// Retries sent.
    pub fn repeats(&self) -> u64 {
        self.table.counters().retried
    }

    /// Handles a received packet.
    #[inline]
    pub fn handle(&mut self, now: Instant, packet: &Packet) {
        if packet.carrier.undelivered != 0 {
            // The kernel does not report this to clients: they wait and retry.
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
            return; // The response, if there is one, arrives by itself.
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

    /// Handles a complete response.
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
            // A response to a malformed request resolves nothing.
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
                    let answer = judge.describe(&query.ask, query.port, message);
                    self.examples.push(format!("{answer} ({fault})"));
                }
            }
        }
        let outcome = Outcome::Answered { verdict, message };
        self.options.scenario.handle_outcome(now, &query, &outcome);
    }

    /// Handles timeouts, and starts queries that are due.
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

    /// Writes the next packet to send, if any: its MAD, and the LID of the requesting port as its
    /// LID unless it is a reply. `turn` selects the responder of new queries; each retry goes to
    /// the next one, so that a dead responder receives each query at most once.
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        turn: usize,
        packet: &mut Packet,
    ) -> Option<Route> {
        if self.tables.poll_transmit(packet) {
            return Some(Route::Back(packet.carrier.peer));
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
        Some(Route::Turn(turn))
    }

    /// When [`advance`](Self::advance) is due, unless a response arrives before.
    pub fn next_due(&self) -> Option<Instant> {
        let query = self.options.scenario.poll_timeout().filter(|_| self.table.room() > 0);
        let times = [self.table.poll_timeout(), self.tables.poll_timeout(), query];
        times.into_iter().flatten().min()
    }

    /// Whether all queries are sent, and answered or timed out.
    pub fn is_done(&self, now: Instant) -> bool {
        self.table.outstanding() == 0 && self.options.scenario.is_over(now)
    }

    /// Abandons all outstanding queries.
    pub fn abandon(&mut self) {
        self.counts.abandoned += self.table.cancel_all().count() as u64;
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        let table = self.table.counters();
        Counts {
            sent: table.transmitted,
            retries: table.retried,
            dropped_tables: self.tables.dropped(),
            ..self.counts
        }
    }

    /// Latencies since they were last cleared.
    pub fn recent(&mut self) -> &mut Timings {
        &mut self.recent
    }

    /// Time of the last response.
    pub fn last_answer(&self) -> Option<Instant> {
        self.last_answer
    }

    /// Time the last query was started.
    pub fn last_begun(&self) -> Option<Instant> {
        self.last_begun
    }

    /// The scenario's own counts.
    pub fn summary(&self) -> Summary {
        self.options.scenario.summary()
    }

    /// Paths and faulty responses, as text.
    pub fn into_words(self) -> (Vec<String>, Vec<String>) {
        (self.shown, self.examples)
    }
}

#[inline]
fn tid_of(packet: &Packet) -> u64 {
    MadHeader::of(&packet.mad).tid()
}

#[cfg(test)]
mod tests;
