//! The queues between workers and the control plane. A worker never waits for them.
//!
//! What belongs to one session goes through the queues of its lane: its manager alone decides on
//! it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use ib_mad::transport::Packet;
use tokio::sync::Notify;

use super::{Answer, Confirmed, OPEN_MAX, Reads, Submission};

/// Submissions of all workers that the control plane has not taken yet.
const SUBMISSIONS_MAX: usize = 8192;
/// Answers that a worker has not taken yet: as many as it can have open requests.
const ANSWERS_MAX: usize = OPEN_MAX;
/// Reports that wait to be sent.
const REPORTS_MAX: usize = 1024;
/// Traps that wait to be relayed to the SM; agents repeat those that exceed it.
const TRAPS_MAX: usize = 1024;
/// Responses to Reports that wait to be processed.
const REPORT_ANSWERS_MAX: usize = 1024;

/// Time at which reads ask the SM if it cannot be asked.
const NEVER: u64 = u64::MAX;

/// Queues shared by the workers and the control plane.
#[derive(Debug)]
pub struct Exchange {
    lanes: Vec<Lane>,
    begin: Instant,
    /// Reports that the first worker sends.
    reports: ArrayQueue<Packet>,
    workers: Vec<WorkerQueue>,
    /// Answers discarded because a worker's queue was full.
    pub(crate) overflows: AtomicU64,
}

/// What goes to one session's manager.
#[derive(Debug)]
struct Lane {
    submissions: ArrayQueue<Submission>,
    submitted: Notify,
    /// Whether an SM accepts writes.
    reachable: AtomicBool,
    /// From when on reads of registered records ask the SM, ns since `begin`; [`NEVER`] if it
    /// cannot be asked.
    reads_ask_from: AtomicU64,
    /// The last proof that the tables are the latest. No worker locks it.
    confirmed: Mutex<Option<Confirmed>>,
    report_answers: ArrayQueue<Packet>,
    report_answered: Notify,
    /// Traps to relay to the SM.
    traps: ArrayQueue<Packet>,
    trap_arrived: Notify,
}

impl Lane {
    fn new() -> Self {
        Self {
            submissions: ArrayQueue::new(SUBMISSIONS_MAX),
            submitted: Notify::new(),
            reachable: AtomicBool::new(false),
            reads_ask_from: AtomicU64::new(NEVER),
            confirmed: Mutex::default(),
            report_answers: ArrayQueue::new(REPORT_ANSWERS_MAX),
            report_answered: Notify::new(),
            traps: ArrayQueue::new(TRAPS_MAX),
            trap_arrived: Notify::new(),
        }
    }
}

/// Answers for one worker, and the socket pair that wakes it.
#[derive(Debug)]
struct WorkerQueue {
    answers: ArrayQueue<Answer>,
    wake_sender: UnixDatagram,
    wake_receiver: UnixDatagram,
    /// Number of tables of open requests that this worker has had.
    tables: AtomicU32,
}

impl Exchange {
    /// An exchange for `workers` workers and one session.
    pub fn new(workers: usize) -> io::Result<Arc<Self>> {
        Self::with_lanes(workers, 1)
    }

    /// An exchange for `workers` workers and so many sessions at a time.
    pub fn with_lanes(workers: usize, lanes: usize) -> io::Result<Arc<Self>> {
        let queue = |_| {
            let (wake_sender, wake_receiver) = UnixDatagram::pair()?;
            wake_sender.set_nonblocking(true)?;
            wake_receiver.set_nonblocking(true)?;
            let answers = ArrayQueue::new(ANSWERS_MAX);
            Ok(WorkerQueue { answers, wake_sender, wake_receiver, tables: AtomicU32::new(0) })
        };
        Ok(Arc::new(Self {
            lanes: std::iter::repeat_with(Lane::new).take(lanes).collect(),
            begin: Instant::now(),
            reports: ArrayQueue::new(REPORTS_MAX),
            workers: (0..workers).map(queue).collect::<io::Result<_>>()?,
            overflows: AtomicU64::new(0),
        }))
    }

    /// How many sessions it is made for.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The end of worker `worker`, counted from 0.
    pub fn worker(self: &Arc<Self>, worker: usize) -> WorkerEnd {
        assert!(worker < self.workers.len(), "an exchange has a queue for every worker");
        WorkerEnd { exchange: Arc::clone(self), worker }
    }

    /// Sets whether the SM of a lane accepts writes.
    pub fn set_reachable(&self, lane: usize, reachable: bool) {
        self.lanes[lane].reachable.store(reachable, Relaxed);
        if !reachable {
            self.set_reads(lane, Reads::AsHeld);
        }
    }

    /// Sets the step that precedes a read of registered records in a lane.
    pub(crate) fn set_reads(&self, lane: usize, reads: Reads) {
        let ask_from = match reads {
            Reads::AsHeld => NEVER,
            Reads::Ask => 0,
            Reads::AskFrom(at) => self.since_begin(at),
        };
        self.lanes[lane].reads_ask_from.store(ask_from, Relaxed);
    }

    /// Sets the last proof that a lane's tables are the latest.
    pub(crate) fn set_confirmed(&self, lane: usize, confirmed: Option<Confirmed>) {
        *self.confirmed_of(lane) = confirmed;
    }

    /// The last proof that a lane's tables are the latest.
    pub(crate) fn confirmed(&self, lane: usize) -> Option<Confirmed> {
        *self.confirmed_of(lane)
    }

    /// Locked for moments.
    fn confirmed_of(&self, lane: usize) -> MutexGuard<'_, Option<Confirmed>> {
        self.lanes[lane].confirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn since_begin(&self, at: Instant) -> u64 {
        // NEVER is centuries away.
        at.saturating_duration_since(self.begin).as_nanos() as u64
    }

    /// Takes the next submission to a lane's SM.
    pub(crate) fn take_submission(&self, lane: usize) -> Option<Submission> {
        self.lanes[lane].submissions.pop()
    }

    /// Completes once something may have been submitted to a lane's SM.
    pub(crate) async fn submitted(&self, lane: usize) {
        self.lanes[lane].submitted.notified().await;
    }

    /// Queues answers for their workers, and wakes each of these once.
    pub(crate) fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        // One bit for each worker. Workers 64 apart share one, and wake together.
        let mut woken = 0u64;
        for answer in answers {
            let worker = (answer.id >> 48) as usize;
            let Some(queue) = self.workers.get(worker) else { continue };
            woken |= 1 << (worker % 64);
            if queue.answers.push(answer).is_err() {
                self.overflows.fetch_add(1, Relaxed);
            }
        }
        let workers = (0..self.workers.len()).filter(|worker| woken >> (worker % 64) & 1 == 1);
        workers.for_each(|worker| self.wake(worker));
    }

    /// Wakes a worker.
    pub(crate) fn wake(&self, worker: usize) {
        if let Some(queue) = self.workers.get(worker) {
            // A full socket is readable already.
            let _ = queue.wake_sender.send(&[0]);
        }
    }

    /// Queues a Report for the first worker to send; `false` if the queue is full.
    pub(crate) fn send_report(&self, packet: Packet) -> bool {
        let taken = self.reports.push(packet).is_ok();
        self.wake(0);
        taken
    }

    /// Takes the next response to a Report of a lane's events.
    pub(crate) fn take_report_answer(&self, lane: usize) -> Option<Packet> {
        self.lanes[lane].report_answers.pop()
    }

    /// Takes the next trap to relay to a lane's SM.
    pub(crate) fn take_trap(&self, lane: usize) -> Option<Packet> {
        self.lanes[lane].traps.pop()
    }

    /// Completes once a trap for a lane's SM may have arrived.
    pub(crate) async fn trap_arrived(&self, lane: usize) {
        self.lanes[lane].trap_arrived.notified().await;
    }

    /// Completes once a response to a Report of a lane's events may have arrived.
    pub(crate) async fn report_answered(&self, lane: usize) {
        self.lanes[lane].report_answered.notified().await;
    }
}

/// A worker's end of the exchange. No call blocks.
#[derive(Clone, Debug)]
pub struct WorkerEnd {
    exchange: Arc<Exchange>,
    worker: usize,
}

impl WorkerEnd {
    /// The top 16 bits of the ids of this worker's submissions.
    pub(crate) fn id_base(&self) -> u64 {
        (self.worker as u64) << 48
    }

    /// The first serial number for a new table of open requests of this worker.
    pub(crate) fn first_serial(&self) -> u32 {
        self.exchange.workers[self.worker].tables.fetch_add(1, Relaxed) << 24
    }

    /// Whether the SM of a lane accepts writes.
    pub(crate) fn is_reachable(&self, lane: usize) -> bool {
        self.exchange.lanes[lane].reachable.load(Relaxed)
    }

    /// Whether the SM of a lane can be asked for its sequence number.
    pub(crate) fn may_ask(&self, lane: usize) -> bool {
        self.exchange.lanes[lane].reads_ask_from.load(Relaxed) != NEVER
    }

    /// Whether reads of registered records must ask first: the lane's tables may be outdated.
    #[inline]
    pub(crate) fn must_ask(&self, lane: usize, now: Instant) -> bool {
        let ask_from = self.exchange.lanes[lane].reads_ask_from.load(Relaxed);
        ask_from != NEVER && self.exchange.since_begin(now) >= ask_from
    }

    /// Queues a request for the SM of a lane; `false` if the queue is full.
    pub(crate) fn submit(&self, lane: usize, submission: Submission) -> bool {
        let lane = &self.exchange.lanes[lane];
        let taken = lane.submissions.push(submission).is_ok();
        lane.submitted.notify_one();
        taken
    }

    /// Takes the next answer for this worker.
    pub(crate) fn take_answer(&self) -> Option<Answer> {
        self.exchange.workers[self.worker].answers.pop()
    }

    /// Takes the next Report to send. Only the first worker sends Reports.
    pub(crate) fn take_report(&self) -> Option<Packet> {
        if self.worker == 0 { self.exchange.reports.pop() } else { None }
    }

    /// Queues a trap to relay to the SM of a lane; `false` if the queue is full.
    pub(crate) fn submit_trap(&self, lane: usize, packet: &Packet) -> bool {
        let lane = &self.exchange.lanes[lane];
        let taken = lane.traps.push(packet.clone()).is_ok();
        lane.trap_arrived.notify_one();
        taken
    }

    /// Queues a response to a Report of a lane's events; `false` if the queue is full.
    pub(crate) fn submit_report_answer(&self, lane: usize, packet: &Packet) -> bool {
        let lane = &self.exchange.lanes[lane];
        let taken = lane.report_answers.push(packet.clone()).is_ok();
        lane.report_answered.notify_one();
        taken
    }

    /// Readable when an answer or a Report may be queued.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.exchange.workers[self.worker].wake_receiver.as_fd()
    }

    /// Makes the descriptor unreadable until the next wakeup. Call it before taking answers.
    pub(crate) fn clear_wakeup(&self) {
        let mut byte = [0];
        while self.exchange.workers[self.worker].wake_receiver.recv(&mut byte).is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ib_mad::transport::{Interest, wait};

    use super::*;
    use crate::sm::forward::Verdict;

    fn submission(id: u64) -> Submission {
        Submission { id, at: Instant::now(), request: None }
    }

    #[test]
    fn answers_reach_the_worker_that_asked() {
        let exchange = Exchange::new(2).unwrap();
        let (first, second) = (exchange.worker(0), exchange.worker(1));
        assert!(second.submit(0, submission(second.id_base() | 7)));
        let taken = exchange.take_submission(0).unwrap();
        exchange.answer([Answer { id: taken.id, verdict: Verdict::Requery }]);
        assert!(first.take_answer().is_none());
        assert_eq!(second.take_answer().unwrap().id, second.id_base() | 7);
    }

    #[test]
    fn a_worker_that_sleeps_is_woken_by_an_answer() {
        let exchange = Exchange::new(1).unwrap();
        let worker = exchange.worker(0);
        let ready = |worker: &WorkerEnd| {
            wait(&mut [Interest::read(worker.descriptor())], Some(Duration::ZERO)).unwrap()
        };
        assert_eq!(ready(&worker), 0);
        let answer = |id| Answer { id, verdict: Verdict::NoReply };
        exchange.answer([answer(1), answer(2)]);
        assert_eq!(ready(&worker), 1);
        worker.clear_wakeup();
        assert_eq!(ready(&worker), 0);
        assert!(worker.take_answer().is_some() && worker.take_answer().is_some());
    }

    #[test]
    fn reads_ask_from_the_time_set_and_only_an_sm_that_answers() {
        let exchange = Exchange::new(1).unwrap();
        let (worker, now) = (exchange.worker(0), Instant::now());
        let asks = |reads| {
            exchange.set_reads(0, reads);
            let at = |ms| now + Duration::from_millis(ms);
            (worker.may_ask(0), worker.must_ask(0, at(0)), worker.must_ask(0, at(10)))
        };
        assert_eq!(asks(Reads::AsHeld), (false, false, false));
        assert_eq!(asks(Reads::Ask), (true, true, true));
        assert_eq!(asks(Reads::AskFrom(now + Duration::from_millis(10))), (true, false, true));
        exchange.set_reachable(0, false);
        assert!(!worker.may_ask(0) && !worker.must_ask(0, now + Duration::from_secs(9)));
    }

    #[test]
    fn a_full_queue_refuses() {
        let exchange = Exchange::new(1).unwrap();
        let worker = exchange.worker(0);
        assert!((0..SUBMISSIONS_MAX as u64).all(|id| worker.submit(0, submission(id))));
        assert!(!worker.submit(0, submission(0)));
    }

    #[test]
    fn what_is_for_one_sessions_manager_reaches_no_other_one() {
        let exchange = Exchange::with_lanes(1, 2).unwrap();
        let worker = exchange.worker(0);
        exchange.set_reachable(1, true);
        exchange.set_reads(1, Reads::Ask);
        assert!(worker.is_reachable(1) && !worker.is_reachable(0));
        assert!(worker.may_ask(1) && !worker.may_ask(0));
        assert!(worker.submit(1, submission(7)) && worker.submit_trap(1, &Packet::default()));
        assert!(exchange.take_submission(0).is_none() && exchange.take_trap(0).is_none());
        assert!(exchange.take_submission(1).is_some() && exchange.take_trap(1).is_some());
    }
}
