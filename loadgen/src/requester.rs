//! One requester: decides what is sent when, and takes the answers. A state machine without I/O;
//! [`driver`](crate::driver) has the transport and the clock.
//!
//! It repeats a request as Linux's `ib_sa` does: unchanged, transaction id included, each time
//! after the same time-out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::transaction::{CAPACITY_MAX, Transactions};
use ib_mad::transport::Packet;
use ib_mad::wire::mad::MadHeader;

use crate::check::{Checker, Level, Verdict, describe, is_path_answer};
use crate::fabric::Fabric;
use crate::histogram::{Counts, Latencies};
use crate::pace::{Load, Pace};
use crate::workload::{Pair, Workload};

/// Most queries outstanding in an open loop; those due beyond it wait, at the cost of their
/// latency.
const OUTSTANDING_MAX: usize = 1 << 17;
/// Wrong answers that are told in words.
const EXAMPLES_MAX: usize = 5;

/// What one requester is to do.
#[derive(Clone)]
pub struct RequesterOptions {
    /// What to ask.
    pub workload: Arc<Workload>,
    /// What answers are checked by, if it is known.
    pub fabric: Option<Arc<Fabric>>,
    /// How far answers are checked.
    pub level: Level,
    /// How long to wait for an answer before asking again.
    pub timeout: Duration,
    /// How often to ask again.
    pub retries: u32,
    /// What drives it; as in its pace.
    pub load: Load,
    /// Paths to tell in words.
    pub show: usize,
    /// Index of the first pair to ask for.
    pub first_pair: usize,
    /// Makes transaction ids differ from those of other requesters: the upper half stands in them
    /// (ibsim overwrites some of it), the lower one is where the lower halves begin.
    pub tid_seed: u64,
}

/// A query that waits for its answer.
struct Query {
    pair: u32,
    intended: Instant,
    /// The way its last packet took.
    way: Option<usize>,
    /// Times that it was sent on to another port.
    hops: u8,
}

/// See the [module](self).
pub struct Requester {
    options: RequesterOptions,
    pace: Pace,
    table: Transactions<Query>,
    next_pair: u32,
    counts: Counts,
    recent: Latencies,
    shown: Vec<String>,
    examples: Vec<String>,
    last_answer: Option<Instant>,
}

impl Requester {
    /// A requester that has not begun.
    pub fn new(options: RequesterOptions, pace: Pace) -> Self {
        let capacity = match options.load {
            Load::Closed(concurrency) => concurrency.min(CAPACITY_MAX),
            Load::Open(_) => OUTSTANDING_MAX,
        };
        Self {
            pace,
            table: Transactions::new(capacity, options.tid_seed as u32),
            next_pair: (options.first_pair % options.workload.len()) as u32,
            counts: Counts::default(),
            recent: Latencies::default(),
            shown: Vec::with_capacity(options.show),
            examples: Vec::with_capacity(EXAMPLES_MAX),
            last_answer: None,
            options,
        }
    }

    /// What transaction ids were seeded with.
    pub fn tid_seed(&self) -> u64 {
        self.options.tid_seed
    }

    /// How often the query that `packet` answers was sent on already; `None` if it answers none.
    pub fn hops(&self, packet: &Packet) -> Option<u8> {
        if packet.address.undelivered != 0 || !is_path_answer(&packet.mad) {
            return None;
        }
        let tid = MadHeader::new(&packet.mad[..]).expect("24 bytes of 256").tid();
        self.table.get(tid).map(|query| query.hops)
    }

    /// Asks once more what `packet` answers by sending us on; `false` if it answers nothing.
    pub fn ask_again(&mut self, now: Instant, packet: &Packet) -> bool {
        let tid = MadHeader::new(&packet.mad[..]).expect("24 bytes of 256").tid();
        let Some(query) = self.table.handle_response(tid) else { return false };
        self.counts.redirected += 1;
        self.last_answer = Some(now);
        let query = Query { hops: query.hops + 1, way: None, ..query };
        let (timeout, retries) = (self.options.timeout, self.options.retries);
        if self.table.start(query, timeout, retries).is_err() {
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
    pub fn handle(&mut self, now: Instant, packet: &Packet) {
        if packet.address.undelivered != 0 {
            // The kernel would not tell its clients: they wait, and ask again.
            self.counts.undelivered += 1;
            return;
        }
        if !is_path_answer(&packet.mad) {
            self.counts.strange += 1;
            return;
        }
        let tid = MadHeader::new(&packet.mad[..]).expect("24 bytes of 256").tid();
        let Some(query) = self.table.handle_response(tid) else {
            self.counts.late += 1;
            return;
        };
        self.counts.answered += 1;
        self.recent.record(now.saturating_duration_since(query.intended));
        self.last_answer = Some(now);
        let RequesterOptions { workload, fabric, level, .. } = &self.options;
        let pair = *workload.pair(query.pair);
        let checker = Checker { workload, fabric: fabric.as_deref(), level: *level };
        match checker.check(&pair, &packet.mad) {
            Verdict::Resolved => {
                self.counts.resolved += 1;
                if self.shown.len() < self.options.show {
                    self.shown.push(describe(workload, &pair, &packet.mad));
                }
            }
            Verdict::NoPath => self.counts.no_path += 1,
            Verdict::Error(status) => {
                self.counts.errors.add(status, 1);
                self.example(&pair, packet, "");
            }
            Verdict::Wrong(fault) => {
                self.counts.wrong[fault as usize] += 1;
                self.example(&pair, packet, &format!(" ({fault})"));
            }
        }
    }

    fn example(&mut self, pair: &Pair, packet: &Packet, why: &str) {
        if self.examples.len() < EXAMPLES_MAX {
            let told = describe(&self.options.workload, pair, &packet.mad);
            self.examples.push(format!("{told}{why}"));
        }
    }

    /// Lets time pass: gives up what has waited too long, begins what is due.
    pub fn advance(&mut self, now: Instant) {
        self.table.handle_timeout(now);
        while self.table.poll_expired().is_some() {
            self.counts.timed_out += 1;
        }
        while self.table.room() > 0
            && let Some(intended) = self.pace.take(now, self.table.outstanding())
        {
            let query = Query { pair: self.next_pair, intended, way: None, hops: 0 };
            self.next_pair = (self.next_pair + 1) % self.options.workload.len() as u32;
            let (timeout, retries) = (self.options.timeout, self.options.retries);
            if self.table.start(query, timeout, retries).is_err() {
                break;
            }
            self.counts.queries += 1;
        }
    }

    /// Writes the next packet to send, if there is one: its MAD, and as its LID that of the port
    /// that asks. Yields the way it is to take, where there are several: `way` at first, the next
    /// one with every repeat, so that a responder that has died is asked once only.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        way: usize,
        packet: &mut Packet,
    ) -> Option<usize> {
        let (tid, query) = self.table.poll_transmit(now)?;
        let way = query.way.map_or(way, |last| last.wrapping_add(1));
        query.way = Some(way);
        let workload = &self.options.workload;
        let pair = workload.pair(query.pair);
        let tid = self.options.tid_seed >> 32 << 32 | u64::from(tid);
        workload.write_request(pair, tid, &mut packet.mad);
        packet.address.lid = workload.ports().get(pair.source).lid;
        Some(way)
    }

    /// When [`advance`](Self::advance) has something to do, unless an answer comes first.
    pub fn next_due(&self) -> Option<Instant> {
        let query = self.pace.next_due().filter(|_| self.table.room() > 0);
        [self.table.poll_timeout(), query].into_iter().flatten().min()
    }

    /// Whether all is asked, and answered or given up.
    pub fn is_done(&self, now: Instant) -> bool {
        self.table.outstanding() == 0 && self.pace.is_over(now)
    }

    /// Gives up everything outstanding.
    pub fn abandon(&mut self) {
        self.counts.abandoned += self.table.cancel_all().count() as u64;
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        let table = self.table.counters();
        Counts { sent: table.transmitted, retries: table.retried, ..self.counts }
    }

    /// Latencies since they were last cleared.
    pub fn recent(&mut self) -> &mut Latencies {
        &mut self.recent
    }

    /// When the last answer came.
    pub fn last_answer(&self) -> Option<Instant> {
        self.last_answer
    }

    /// Paths, and wrong answers, in words.
    pub fn into_words(self) -> (Vec<String>, Vec<String>) {
        (self.shown, self.examples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric;
    use crate::workload::{Kind, WorkloadOptions};
    use ib_mad::types::{Lid, PKey};
    use ib_mad::wire::mad::{Method, Status};
    use ib_mad::wire::sa::SaMad;

    const MS: Duration = Duration::from_millis(1);

    fn requester(load: Load, limit: Option<u64>, start: Instant) -> Requester {
        let fabric = Fabric::new(Arc::new(fabric::tests::plane()));
        let options = WorkloadOptions {
            kind: Kind::Gid,
            pairs: 64,
            seed: 1,
            service_id: 0,
            pkey: PKey::DEFAULT_FULL,
        };
        let workload = Workload::draw(&options, fabric.ports().clone(), Some(&fabric)).unwrap();
        let options = RequesterOptions {
            workload: Arc::new(workload),
            fabric: Some(Arc::new(fabric)),
            level: Level::Status,
            timeout: 100 * MS,
            retries: 2,
            load,
            show: 2,
            first_pair: 0,
            tid_seed: 1,
        };
        Requester::new(options, Pace::new(load, start, None, limit))
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
        let mut requester = requester(Load::Closed(2), Some(5), now);
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
        assert_eq!(requester.recent().max().as_millis(), 1);
        assert_eq!(requester.into_words().0.len(), 2, "as many as were to be shown");
    }

    #[test]
    fn a_silent_responder_is_asked_again_unchanged_and_then_given_up() {
        let start = Instant::now();
        let mut requester = requester(Load::Closed(1), Some(1), start);
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
        let mut requester = requester(Load::Closed(1), Some(1), start);
        requester.advance(start);
        let mut packet = Packet::default();
        assert_eq!(requester.poll_transmit(start, 5, &mut packet), Some(5));
        for (retry, way) in [(1, 6), (2, 7)] {
            let due = start + 100 * MS * retry;
            requester.advance(due);
            assert_eq!(requester.poll_transmit(due, 6, &mut packet), Some(way));
        }
    }

    /// What a stalled responder held up is charged to it: from when each query was due.
    #[test]
    fn latencies_count_from_when_queries_were_due() {
        let start = Instant::now();
        let mut requester = requester(Load::Open(1000.0), Some(3), start);
        let now = start + 10 * MS;
        requester.advance(now);
        for packet in transmitted(&mut requester, now) {
            requester.handle(now, &answer(packet));
        }
        let latencies = requester.recent();
        assert_eq!((latencies.len(), latencies.max().as_millis()), (3, 10));
        assert_eq!(latencies.percentile(1.0).as_millis(), 8);
    }

    #[test]
    fn what_is_no_answer_is_counted_and_leaves_the_query_waiting() {
        let now = Instant::now();
        let mut requester = requester(Load::Closed(1), Some(1), now);
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
        let mut requester = requester(Load::Closed(8), None, now);
        requester.advance(now);
        for packet in transmitted(&mut requester, now).into_iter().take(3) {
            requester.handle(now, &answer(packet));
        }
        requester.abandon();
        let counts = requester.counts();
        assert_eq!(counts.queries, counts.answered + counts.timed_out + counts.abandoned);
        assert_eq!(counts.abandoned, 5);
    }
}
