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
mod tests {
    use super::*;
    use crate::ask::malformed::Form;
    use crate::fabric;
    use crate::scenario::closed::Closed;
    use crate::scenario::malformed::Flood;
    use crate::scenario::open::Open;
    use crate::scenario::pace::{Arrivals, Bounds, Schedule};
    use crate::scenario::srp::{Listing, Srp, SrpOptions};
    use crate::scenario::{Part, Patience};
    use crate::workload::{By, Draw, WorkloadOptions};
    use ib_mad::types::{Lid, PKey};
    use ib_mad::wire::mad::{Method, Status};
    use ib_mad::wire::rmpp::{RmppFlags, RmppType};
    use ib_mad::wire::sa::SaMad;
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    const TWICE: Patience = Patience { timeout: Duration::from_millis(100), retries: 2 };

    fn bed(scenario: impl FnOnce(Arc<Workload>) -> Box<dyn Scenario>) -> Requester {
        let fabric = Fabric::new(Arc::new(fabric::tests::plane()));
        let options = WorkloadOptions {
            by: By::Gid,
            draw: Draw::Any(64),
            seed: 1,
            service_id: 0,
            pkey: PKey::DEFAULT_FULL,
            sample: 1.0,
        };
        let workload = Workload::draw(&options, fabric.ports().clone(), Some(&fabric)).unwrap();
        let workload = Arc::new(workload);
        Requester::new(RequesterOptions {
            scenario: scenario(Arc::clone(&workload)),
            workload,
            fabric: Some(Arc::new(fabric)),
            level: Level::Status,
            show: 2,
            tid_seed: 1,
        })
    }

    fn closed(concurrency: usize, limit: Option<u64>, start: Instant) -> Requester {
        bed(|workload| {
            let bounds = Bounds::new(start, None, limit);
            Box::new(Closed::new(workload, 0, concurrency, TWICE, bounds))
        })
    }

    fn open(rate: f64, limit: Option<u64>, start: Instant) -> Requester {
        bed(|workload| {
            let schedule = Schedule::new(Arrivals::Constant, rate, start, 1);
            Box::new(Open::new(workload, 0, schedule, TWICE, Bounds::new(start, None, limit)))
        })
    }

    fn transmitted(requester: &mut Requester, now: Instant) -> Vec<Packet> {
        let mut packet = Packet::default();
        std::iter::from_fn(|| requester.poll_transmit(now, 0, &mut packet).map(|_| packet.clone()))
            .collect()
    }

    fn answer(mut packet: Packet) -> Packet {
        SaMad::new(&mut packet.mad).make_response(Status::OK);
        packet
    }

    #[test]
    fn answers_make_room_for_further_queries() {
        let now = Instant::now();
        let mut requester = closed(2, Some(5), now);
        requester.advance(now);
        let mut sent = transmitted(&mut requester, now);
        assert_eq!(sent.len(), 2);
        assert_ne!(sent[0].address.lid, Lid::PERMISSIVE);
        let mut total = sent.len();
        while !sent.is_empty() {
            assert!(!requester.is_done(now));
            sent.into_iter().for_each(|packet| requester.handle(now + MS, &answer(packet)));
            requester.advance(now + MS);
            sent = transmitted(&mut requester, now + MS);
            total += sent.len();
        }
        assert!(requester.is_done(now));
        let counts = requester.counts();
        assert_eq!((total, counts.queries, counts.answered, counts.resolved), (5, 5, 5, 5));
        assert_eq!(requester.recent().due().max().as_millis(), 1);
        assert_eq!(requester.into_words().0.len(), 2, "as many as were to be shown");
    }

    #[test]
    fn a_silent_responder_is_asked_again_unchanged_and_then_given_up() {
        let start = Instant::now();
        let mut requester = closed(1, Some(1), start);
        requester.advance(start);
        let first = transmitted(&mut requester, start);
        for retry in 1..=2 {
            let due = start + 100 * MS * retry;
            assert_eq!(requester.next_due(), Some(due));
            requester.advance(due);
            let again = transmitted(&mut requester, due);
            assert_eq!((again.len(), again[0].mad), (1, first[0].mad));
        }
        requester.advance(start + 300 * MS);
        let counts = requester.counts();
        assert_eq!((counts.sent, counts.retries, counts.timed_out), (3, 2, 1));
        assert!(requester.is_done(start + 300 * MS));
        requester.handle(start + 301 * MS, &answer(first[0].clone()));
        assert_eq!((requester.counts().late, requester.counts().answered), (1, 0));
    }

    #[test]
    fn a_repeat_takes_the_next_way() {
        let start = Instant::now();
        let mut requester = closed(1, Some(1), start);
        requester.advance(start);
        let mut packet = Packet::default();
        assert_eq!(requester.poll_transmit(start, 5, &mut packet), Some(Way::Turn(5)));
        for (retry, turn) in [(1, 6), (2, 7)] {
            let due = start + 100 * MS * retry;
            requester.advance(due);
            assert_eq!(requester.poll_transmit(due, 6, &mut packet), Some(Way::Turn(turn)));
        }
    }

    /// What a stalled responder held up is charged to it: from when each query was due.
    #[test]
    fn latencies_count_from_when_queries_were_due() {
        let start = Instant::now();
        let mut requester = open(1000.0, Some(3), start);
        let now = start + 10 * MS;
        requester.advance(now);
        for packet in transmitted(&mut requester, now) {
            requester.handle(now, &answer(packet));
        }
        let latencies = requester.recent().due();
        assert_eq!((latencies.len(), latencies.max().as_millis()), (3, 10));
        assert_eq!(latencies.percentile(1.0).as_millis(), 8);
    }

    /// A rightful refusal was resolved by the count of its kind, and not by the sum.
    #[test]
    fn rightful_refusals_are_told_apart_in_the_sum_and_by_kind() {
        let start = Instant::now();
        let mut requester = bed(|_| {
            let bounds = Bounds::new(start, None, None);
            let options = SrpOptions {
                ports: 1,
                within: Duration::ZERO,
                listing: Listing::Targets,
                scans: 1,
                rescan: MS,
                patience: TWICE,
            };
            Box::new(Srp::new(Part::ALL, options, start, bounds, 1))
        });
        // Two subscriptions and ClassPortInfo, then a table that nothing is in.
        for status in [Status::OK, Status::OK, Status::OK, Status::SA_NO_RECORDS] {
            requester.advance(start);
            let mut packet = transmitted(&mut requester, start).remove(0);
            SaMad::new(&mut packet.mad).make_response(status);
            requester.handle(start, &packet);
        }
        let counts = requester.counts();
        assert_eq!((counts.resolved, counts.no_path, counts.settled()), (3, 1, 4));
        let table = counts.kinds[Kind::Targets as usize];
        assert_eq!((table.resolved, table.no_path, table.failed), (0, 1, 0));
    }

    #[test]
    fn what_is_no_answer_is_counted_and_leaves_the_query_waiting() {
        let now = Instant::now();
        let mut requester = closed(1, Some(1), now);
        requester.advance(now);
        let sent = transmitted(&mut requester, now).remove(0);
        requester.handle(now, &sent);
        let mut back = answer(sent.clone());
        back.address.undelivered = 110;
        requester.handle(now, &back);
        let mut report = answer(sent.clone());
        SaMad::new(&mut report.mad).header_mut().set_method(Method::REPORT);
        requester.handle(now, &report);
        let counts = requester.counts();
        assert_eq!((counts.strange, counts.undelivered, counts.answered), (2, 1, 0));
        requester.handle(now, &answer(sent));
        assert_eq!(requester.counts().answered, 1);
    }

    #[test]
    fn every_query_is_accounted_for() {
        let now = Instant::now();
        let mut requester = closed(8, None, now);
        requester.advance(now);
        for packet in transmitted(&mut requester, now).into_iter().take(3) {
            requester.handle(now, &answer(packet));
        }
        requester.abandon();
        let counts = requester.counts();
        assert_eq!(counts.queries, counts.answered + counts.timed_out + counts.abandoned);
        assert_eq!(counts.abandoned, 5);
    }

    /// Linux takes BUSY and REDIRECT for an answer, and does not ask again.
    #[test]
    fn any_status_is_final() {
        for status in [Status::BUSY, Status::REDIRECT, Status::SA_NO_RESOURCES] {
            let now = Instant::now();
            let mut requester = closed(1, Some(1), now);
            requester.advance(now);
            let mut packet = transmitted(&mut requester, now).remove(0);
            SaMad::new(&mut packet.mad).make_response(status);
            requester.handle(now, &packet);
            requester.advance(now + 200 * MS);
            assert!(requester.is_done(now) && transmitted(&mut requester, now).is_empty());
            assert_eq!(requester.counts().errors.iter().collect::<Vec<_>>(), [(status, 1)]);
        }
    }

    /// From when a query was due is one thing, from when it was sent another, and the difference
    /// is the generator's.
    #[test]
    fn what_the_generator_is_late_by_is_told_apart() {
        let start = Instant::now();
        let mut requester = open(1000.0, Some(1), start);
        let late = start + 5 * MS;
        requester.advance(late);
        for packet in transmitted(&mut requester, late) {
            requester.handle(late + 2 * MS, &answer(packet));
        }
        let timings = requester.recent();
        assert_eq!((timings.due().max().as_millis(), timings.service().max().as_millis()), (7, 2));
        assert_eq!(timings.lag.max().as_millis(), 5);
    }

    /// Whatever comes back under the transaction id of garbage is its answer; silence is none of
    /// the good queries' time-outs.
    #[test]
    fn garbage_is_counted_apart() {
        let start = Instant::now();
        let mut requester = bed(|workload| {
            let schedule = Schedule::new(Arrivals::Constant, 1000.0, start, 1);
            let bounds = Bounds::new(start, None, Some(2));
            let open = Open::new(workload, 0, schedule, TWICE, bounds);
            Box::new(Flood::new(open, 1.0, &[Form::Class], 1))
        });
        let now = start + MS;
        requester.advance(now);
        let sent = transmitted(&mut requester, now);
        assert_eq!(sent.len(), 2);
        // An acknowledgement has status 0: garbage that came by RMPP seemed to be answered OK.
        let mut ack = answer(sent[1].clone());
        let mut mad = SaMad::new(&mut ack.mad);
        mad.rmpp_mut().set_rmpp_type(RmppType::ACK).set_flags(RmppFlags::ACTIVE);
        requester.handle(now, &ack);
        requester.handle(now, &answer(sent[0].clone()));
        requester.advance(now + 500 * MS);
        let counts = requester.counts();
        assert_eq!((counts.answered, counts.answered_garbage, counts.silent_garbage), (1, 1, 1));
        assert_eq!((counts.resolved, counts.timed_out, counts.strange), (0, 0, 0));
    }
}
