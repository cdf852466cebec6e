//! Queued and outstanding requests: a queue in front of the table of transactions.
//!
//! A request is 8 bytes; the MAD is encoded for every attempt from the current state of the fabric
//! and the plan. SMPs need no allocation.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ib_mad::transaction::Transactions;

use super::loss::Loss;
use super::request::{Kind, Request};

/// Timeouts, number of retries and window size.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Maximum number of outstanding requests, 1 to `sm_config::MAX_WIRE_SMPS_LIMIT`.
    pub window: usize,
    /// Response timeout.
    pub timeout: Duration,
    /// Response timeout of slow requests, such as one that sets all SL-to-VL maps of a switch.
    pub long_timeout: Duration,
    /// Number of retries.
    pub retries: u32,
}

/// Of so many places in the window, slow requests may have one.
const SLOW_PART: usize = 8;

/// Greatest window.
const WINDOW_MAX: usize = sm_config::MAX_WIRE_SMPS_LIMIT as usize;

/// A request to be sent now, with its TransactionID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The request.
    pub request: Request,
    /// The M_Key of the previous attempt, if there was one.
    pub m_key: Option<u64>,
    /// TransactionID. Its upper half is zero: simulators and kernels put their own there.
    pub tid: u64,
    /// Response timeout.
    pub timeout: Duration,
}

/// Counters of an exchange.
pub type Counters = ib_mad::transaction::Counters;

/// Counters of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Packets sent, retries included.
    pub sent: u64,
    /// Retries sent.
    pub repeated: u64,
    /// Requests answered.
    pub answered: u64,
    /// Requests given up after their last retry.
    pub given_up: u64,
}

/// A window of outstanding requests, and the queue of those waiting for room in it.
#[derive(Debug)]
pub struct Exchange {
    timing: Timing,
    /// Queued requests. A sweep queues all its requests at once; the limit is the fabric's
    /// size: 255 ports of 65,536 nodes at most, by a handful of attributes.
    queue: VecDeque<Request>,
    /// Those among them whose answers are expected to be slow.
    slow: VecDeque<Request>,
    window: Transactions<Sent>,
    /// Slow requests in the window.
    slow_outstanding: usize,
    /// Number of times all requests were cancelled.
    generation: u64,
    loss: Loss,
    passed: [Passed; Kind::ALL.len()],
}

/// A request in the window.
#[derive(Clone, Copy, Debug)]
struct Sent {
    request: Request,
    /// Attempts so far.
    attempts: u16,
    /// The M_Key of the last attempt.
    m_key: Option<u64>,
    /// Whether attempts used different M_Keys. Packets dropped for a wrong M_Key do not count as
    /// loss.
    m_keys_differ: bool,
    /// Time of the first attempt.
    since: Option<Instant>,
    /// Whether the answer is expected to be slow.
    is_slow: bool,
}

impl Exchange {
    /// An empty exchange. A different `seed` at each start keeps answers to an earlier run
    /// from matching.
    pub fn new(timing: Timing, seed: u32) -> Self {
        Self {
            window: Transactions::new(WINDOW_MAX, seed),
            timing,
            queue: VecDeque::new(),
            slow: VecDeque::new(),
            slow_outstanding: 0,
            generation: 0,
            loss: Loss::default(),
            passed: [Passed::default(); Kind::ALL.len()],
        }
    }

    /// Changes the maximum number of outstanding requests. With a smaller window nothing is sent
    /// until enough of those on the wire are answered or given up.
    pub fn set_window(&mut self, window: usize) {
        self.timing.window = window;
    }

    /// Counters so far.
    pub fn counters(&self) -> Counters {
        *self.window.counters()
    }

    /// Counters of one kind so far.
    pub fn passed(&self, kind: Kind) -> Passed {
        self.passed[kind as usize]
    }

    /// Queues a request.
    pub fn push(&mut self, request: Request) {
        self.queue.push_back(request);
    }

    /// Whether no request is queued or outstanding.
    pub fn is_idle(&self) -> bool {
        self.outstanding() == 0
    }

    /// Number of queued and outstanding requests.
    pub fn outstanding(&self) -> usize {
        self.queue.len() + self.slow.len() + self.window.outstanding()
    }

    /// The next request to send, if the window has room. It counts as sent. Requests that
    /// `is_slow` says are answered slowly get an eighth of the window at most, so that they do not
    /// hold up others.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        is_slow: impl Fn(Request) -> bool,
    ) -> Option<Transmit> {
        if self.window.outstanding() < self.timing.window
            && let Some((request, is_slow)) = self.next(is_slow)
        {
            let sent = Sent {
                request,
                attempts: 0,
                since: None,
                m_key: None,
                m_keys_differ: false,
                is_slow,
            };
            let timeout = self.timeout_of(request);
            if self.window.start(sent, timeout, self.timing.retries).is_ok() {
                self.slow_outstanding += usize::from(is_slow);
            } else if is_slow {
                self.slow.push_front(request);
            } else {
                self.queue.push_front(request);
            }
        }
        let (tid, sent) = self.window.poll_transmit(now)?;
        let tid = u64::from(tid);
        sent.attempts = sent.attempts.saturating_add(1);
        sent.since.get_or_insert(now);
        let (request, m_key, is_repeat) = (sent.request, sent.m_key, sent.attempts > 1);
        let passed = &mut self.passed[request.kind as usize];
        passed.sent += 1;
        passed.repeated += u64::from(is_repeat);
        let timeout = self.window.timeout(tid).unwrap_or(self.timing.timeout);
        Some(Transmit { request, m_key, tid, timeout })
    }

    /// The next queued request that may be sent, and whether it is slow.
    fn next(&mut self, is_slow: impl Fn(Request) -> bool) -> Option<(Request, bool)> {
        let room = (self.timing.window / SLOW_PART).max(1);
        let has_room = self.slow_outstanding < room;
        if has_room && let Some(request) = self.slow.pop_front() {
            return Some((request, true));
        }
        while let Some(request) = self.queue.pop_front() {
            match is_slow(request) {
                false => return Some((request, false)),
                true if has_room => return Some((request, true)),
                true => self.slow.push_back(request),
            }
        }
        None
    }

    /// Notes that a request is no longer in the window.
    fn removed(&mut self, sent: Sent) {
        self.slow_outstanding -= usize::from(sent.is_slow);
    }

    /// Response timeout of a request.
    fn timeout_of(&self, request: Request) -> Duration {
        let Timing { timeout, long_timeout, .. } = self.timing;
        self.loss.timeout(if request.is_for_all_ports() { long_timeout } else { timeout })
    }

    /// Records the M_Key with which a request is being sent.
    pub fn set_m_key(&mut self, tid: u64, m_key: u64) {
        if let Some(sent) = self.window.get_mut(tid) {
            sent.m_keys_differ |= sent.m_key.is_some_and(|last| last != m_key);
            sent.m_key = Some(m_key);
        }
    }

    /// The outstanding request with this TransactionID, and the M_Key of its last attempt.
    pub fn peek(&self, tid: u64) -> Option<(Request, Option<u64>)> {
        self.window.get(tid).map(|sent| (sent.request, sent.m_key))
    }

    /// Time since the first attempt of an outstanding request; `None` if it was not sent.
    pub fn waited(&self, now: Instant, tid: u64) -> Option<Duration> {
        let since = self.window.get(tid)?.since?;
        Some(now.saturating_duration_since(since))
    }

    /// How long an unanswered request takes until it is given up, unless many are lost.
    pub fn patience(&self) -> Duration {
        self.timing.timeout.saturating_mul(self.timing.retries.saturating_add(1))
    }

    /// Matches an answer: removes and returns its request, or `None` if there is none.
    pub fn handle_answer(&mut self, now: Instant, tid: u64) -> Option<Request> {
        let sent = self.window.handle_response(tid)?;
        self.removed(sent);
        let Sent { request, attempts, since, .. } = sent;
        if !sent.m_keys_differ {
            self.loss.note(attempts, now.saturating_duration_since(since.unwrap_or(now)));
        }
        self.passed[request.kind as usize].answered += 1;
        Some(request)
    }

    /// Removes a request that turned out not to need sending.
    pub fn cancel(&mut self, tid: u64) {
        if let Some(sent) = self.window.cancel(tid) {
            self.removed(sent);
        }
    }

    /// Requests that were sent and are not answered yet, with their TransactionIDs.
    pub fn in_flight(&self) -> impl Iterator<Item = (u64, Request)> {
        let sent = self.window.iter().filter(|(_, sent)| sent.attempts > 0);
        sent.map(|(tid, sent)| (tid.into(), sent.request))
    }

    /// Queues requests that were sent before all others, as if they were new: what was sent cannot
    /// arrive. An answer to it is ignored, and it does not count as lost.
    pub fn send_again(&mut self, tids: &[u64]) {
        for &tid in tids.iter().rev() {
            if let Some(sent) = self.window.cancel(tid) {
                self.removed(sent);
                self.queue.push_front(sent.request);
            }
        }
    }

    /// Drops all requests, outstanding ones included.
    pub fn cancel_all(&mut self) {
        self.generation += 1;
        self.queue.clear();
        self.slow.clear();
        self.slow_outstanding = 0;
        self.window.cancel_all().for_each(drop);
    }

    /// Changes with every cancellation: MADs encoded before it and not yet sent must not be sent.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.window.poll_timeout()
    }

    /// Expires attempts whose timeout has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.window.handle_timeout(now);
    }

    /// A request that was given up, and the M_Key of its last attempt; each is yielded once. Under
    /// heavy loss requests get more attempts first.
    pub fn poll_given_up(&mut self, now: Instant) -> Option<(Request, Option<u64>)> {
        let patience = self.patience();
        loop {
            let (_, sent) = self.window.poll_expired()?;
            let since = sent.since.unwrap_or(now);
            let goes_on = self.loss.is_worth_another(now, sent.attempts, since, patience)
                && self.window.start(sent, self.timeout_of(sent.request), 0).is_ok();
            if !goes_on {
                self.removed(sent);
                self.passed[sent.request.kind as usize].given_up += 1;
                return Some((sent.request, sent.m_key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::PortIndex;
    use crate::smp::{ALL_OUT_PORTS, Kind};

    fn request(n: u32) -> Request {
        Request::new(Kind::PortInfo, PortIndex::from_bits(n))
    }

    #[test]
    fn no_more_than_the_window_is_on_the_wire() {
        let now = Instant::now();
        let timeout = Duration::from_millis(200);
        let timing = Timing { window: 2, timeout, long_timeout: timeout, retries: 1 };
        let mut exchange = Exchange::new(timing, 7);
        (0..3).for_each(|n| exchange.push(request(n)));
        let first = exchange.poll_transmit(now, |_| false).unwrap();
        exchange.poll_transmit(now, |_| false).unwrap();
        assert_eq!(exchange.poll_transmit(now, |_| false), None);
        assert_eq!(exchange.outstanding(), 3);
        assert_eq!(exchange.handle_answer(now, first.tid), Some(request(0)));
        assert_eq!(exchange.poll_transmit(now, |_| false).map(|t| t.request), Some(request(2)));
    }

    #[test]
    fn the_window_may_change_while_requests_are_on_the_wire() {
        let now = Instant::now();
        let timeout = Duration::from_millis(200);
        let timing = Timing { window: 1, timeout, long_timeout: timeout, retries: 1 };
        let mut exchange = Exchange::new(timing, 7);
        (0..5).for_each(|n| exchange.push(request(n)));
        let mut sent = vec![exchange.poll_transmit(now, |_| false).unwrap().tid];
        assert_eq!(exchange.poll_transmit(now, |_| false), None);
        exchange.set_window(3);
        sent.extend([0, 1].map(|_| exchange.poll_transmit(now, |_| false).unwrap().tid));
        assert_eq!(exchange.poll_transmit(now, |_| false), None);
        exchange.set_window(2);
        assert!(exchange.handle_answer(now, sent[0]).is_some());
        assert_eq!(exchange.poll_transmit(now, |_| false), None, "two are on the wire");
        assert!(exchange.handle_answer(now, sent[1]).is_some());
        assert!(exchange.poll_transmit(now, |_| false).is_some());
        assert_eq!(exchange.poll_transmit(now, |_| false), None);
    }

    /// The kernel's own response timeout must be longer for slow requests.
    #[test]
    fn a_request_is_sent_with_the_time_that_its_answer_is_waited_for() {
        let now = Instant::now();
        let [timeout, long_timeout] = [200, 1000].map(Duration::from_millis);
        let mut exchange =
            Exchange::new(Timing { window: 2, timeout, long_timeout, retries: 0 }, 7);
        let port = PortIndex::from_bits(1);
        exchange.push(Request::block(Kind::SetSlToVl, port, ALL_OUT_PORTS));
        exchange.push(request(0));
        let timeouts = [0, 1].map(|_| exchange.poll_transmit(now, |_| false).unwrap().timeout);
        assert_eq!(timeouts, [long_timeout, timeout]);
        exchange.handle_timeout(now + timeout);
        assert_eq!(
            exchange.poll_given_up(now + timeout),
            Some((request(0), None)),
            "the request with the long timeout is still in flight"
        );
    }

    /// Regression: ports drop requests with an M_Key other than theirs: in a fabric where all ports
    /// did, this counted as loss of half of all packets, and requests were repeated after 16 ms.
    #[test]
    fn what_is_dropped_for_its_m_key_is_not_lost() {
        let timeout = Duration::from_millis(200);
        for (second, expected) in [(2, timeout), (1, Duration::from_millis(16))] {
            let mut now = Instant::now();
            let timing = Timing { window: 1, timeout, long_timeout: timeout, retries: 1 };
            let mut exchange = Exchange::new(timing, 7);
            for n in 0..10 {
                exchange.push(request(n));
                let tid = exchange.poll_transmit(now, |_| false).unwrap().tid;
                exchange.set_m_key(tid, 1);
                now += timeout;
                exchange.handle_timeout(now);
                assert_eq!(exchange.poll_transmit(now, |_| false).unwrap().tid, tid);
                exchange.set_m_key(tid, second);
                assert!(exchange.handle_answer(now, tid).is_some());
            }
            exchange.push(request(99));
            assert_eq!(exchange.poll_transmit(now, |_| false).unwrap().timeout, expected);
        }
    }

    /// What was sent over a link that is gone must not be waited for, nor count as lost.
    #[test]
    fn what_is_sent_again_is_a_new_request() {
        let now = Instant::now();
        let timeout = Duration::from_millis(200);
        let timing = Timing { window: 2, timeout, long_timeout: timeout, retries: 0 };
        let mut exchange = Exchange::new(timing, 7);
        (0..3).for_each(|n| exchange.push(request(n)));
        let [first, second] = [0, 1].map(|_| exchange.poll_transmit(now, |_| false).unwrap());
        assert_eq!(exchange.in_flight().count(), 2);
        exchange.send_again(&[first.tid, second.tid]);
        assert_eq!((exchange.in_flight().count(), exchange.outstanding()), (0, 3));
        assert_eq!(exchange.handle_answer(now, first.tid), None);
        let later = now + timeout / 2;
        let again = [0, 1].map(|_| exchange.poll_transmit(later, |_| false).unwrap());
        assert_eq!(again.map(|sent| sent.request), [request(0), request(1)]);
        exchange.handle_timeout(now + timeout);
        assert_eq!(exchange.poll_given_up(now + timeout), None, "they were sent later");
        assert_eq!(exchange.passed(Kind::PortInfo).repeated, 0);
    }

    #[test]
    fn slow_requests_get_a_part_of_the_window() {
        let now = Instant::now();
        let timeout = Duration::from_millis(200);
        let timing = Timing { window: 16, timeout, long_timeout: timeout, retries: 0 };
        let mut exchange = Exchange::new(timing, 7);
        (0..40).for_each(|n| exchange.push(request(n)));
        let is_slow = |asked: Request| asked.port().get() < 20;
        let sent: Vec<Transmit> =
            std::iter::from_fn(|| exchange.poll_transmit(now, is_slow)).collect();
        let slow = |sent: &[Transmit]| sent.iter().filter(|sent| is_slow(sent.request)).count();
        assert_eq!((sent.len(), slow(&sent)), (16, 2));
        // Each that ends, by any way, makes room for another one.
        exchange.handle_answer(now, sent[0].tid);
        exchange.cancel(sent[1].tid);
        let next: Vec<Transmit> =
            std::iter::from_fn(|| exchange.poll_transmit(now, is_slow)).collect();
        assert_eq!((next.len(), slow(&next)), (2, 2));
        exchange.handle_timeout(now + timeout);
        while exchange.poll_given_up(now + timeout).is_some() {}
        exchange.send_again(&[]);
        let rest: Vec<Transmit> =
            std::iter::from_fn(|| exchange.poll_transmit(now, is_slow)).collect();
        assert_eq!((rest.len(), slow(&rest)), (8, 2), "six others were left");
        exchange.cancel_all();
        assert!(exchange.is_idle() && exchange.poll_transmit(now, is_slow).is_none());
    }

    /// A repetition must not wait for room in the window, which its own request takes up.
    #[test]
    fn a_full_window_repeats_what_it_holds() {
        let now = Instant::now();
        let timeout = Duration::from_millis(200);
        let mut exchange =
            Exchange::new(Timing { window: 1, timeout, long_timeout: timeout, retries: 1 }, 7);
        (0..2).for_each(|n| exchange.push(request(n)));
        let first = exchange.poll_transmit(now, |_| false).unwrap();
        exchange.handle_timeout(now + timeout);
        assert_eq!(exchange.poll_transmit(now + timeout, |_| false), Some(first));
        exchange.handle_timeout(now + timeout * 2);
        assert_eq!(exchange.poll_given_up(now + timeout * 2), Some((request(0), None)));
        let next = exchange.poll_transmit(now + timeout * 2, |_| false).unwrap();
        assert_eq!(next.request, request(1));
        assert_eq!(exchange.handle_answer(now + timeout * 2, next.tid), Some(request(1)));
        assert!(exchange.is_idle());
        let passed = Passed { sent: 3, repeated: 1, answered: 1, given_up: 1 };
        assert_eq!(exchange.passed(Kind::PortInfo), passed);
    }
}
