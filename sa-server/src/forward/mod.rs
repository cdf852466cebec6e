//! Requests that the SM has to decide: writes to the registry, and reads that found nothing there.
//!
//! A worker keeps such a request in [`OpenWrites`], hands a copy to the control plane through a
//! queue of fixed size and goes on. The control plane ([`client`]) passes it to the SM, and gives
//! the outcome back when this responder's own tables hold what the outcome tells of, so that
//! whoever asks next finds it. The worker then answers in the buffer that it kept.
//!
//! A write that repeats one still open is dropped: its answer is on the way. One that repeats an
//! answered write goes to the SM again, which knows what it said the first time.

mod client;
mod held;
mod in_flight;
mod open;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use ib_mad::transport::{Address, Packet};
use ib_mad::wire::mad::Status;
use sa_proto::prost::bytes::Bytes;
use tokio::sync::Notify;

pub use client::{Counters, Forwarding};
pub(crate) use open::{OpenWrites, Rejected};

/// Submissions of all workers that the control plane has not taken yet.
const SUBMISSIONS_MAX: usize = 8192;
/// Answers that a worker has not taken yet: as many as it can have open.
const ANSWERS_MAX: usize = OPEN_MAX;
/// Requests of one worker that wait for the SM.
pub(crate) const OPEN_MAX: usize = 4096;
/// How long a request waits for the SM: what RDMA CM's clients give a query in all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Reports that wait to be sent.
const REPORTS_MAX: usize = 1024;
/// Traps that wait for the way to the SM; agents repeat those beyond.
const TRAPS_MAX: usize = 1024;
/// Answers to reports that wait to be looked at.
const REPORT_ANSWERS_MAX: usize = 1024;

/// A request on its way to the SM. The top 16 bits of `id` name the worker.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub(crate) id: u64,
    /// When it was handed over; those whose clients have given up are not sent.
    pub(crate) at: Instant,
    /// The request; `None` asks only that everything acknowledged so far be held here.
    pub(crate) request: Option<Request>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) mad: Bytes,
    pub(crate) address: Address,
}

/// What became of a submission.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) id: u64,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// The request is answered with this status and record, which goes on with zeros; with its own
    /// if there is none.
    Reply(Status, Option<Bytes>),
    /// What there is to be found is in the tables now: look again.
    LookAgain,
    /// The request is not answered.
    Unheard,
}

/// What workers and the control plane share.
#[derive(Debug)]
pub struct Exchange {
    submissions: ArrayQueue<Submission>,
    submitted: Notify,
    /// Whether there is an SM to ask.
    reachable: AtomicBool,
    /// Reports to be sent.
    reports: ArrayQueue<Packet>,
    report_answers: ArrayQueue<Packet>,
    report_answered: Notify,
    /// Traps to be passed on to the SM.
    traps: ArrayQueue<Packet>,
    trap_arrived: Notify,
    lines: Vec<Line>,
    /// Answers that a worker had no room for; there is room for as many as it may have open.
    pub(crate) overflows: AtomicU64,
}

/// The way back to one worker.
#[derive(Debug)]
struct Line {
    answers: ArrayQueue<Answer>,
    bell: UnixDatagram,
    ear: UnixDatagram,
    /// Tables of open requests that this worker has had.
    tables: AtomicU32,
}

impl Exchange {
    /// An exchange for so many workers.
    pub fn new(workers: usize) -> io::Result<Arc<Self>> {
        let line = |_| {
            let (bell, ear) = UnixDatagram::pair()?;
            bell.set_nonblocking(true)?;
            ear.set_nonblocking(true)?;
            let answers = ArrayQueue::new(ANSWERS_MAX);
            Ok(Line { answers, bell, ear, tables: AtomicU32::new(0) })
        };
        Ok(Arc::new(Self {
            submissions: ArrayQueue::new(SUBMISSIONS_MAX),
            submitted: Notify::new(),
            reachable: AtomicBool::new(false),
            reports: ArrayQueue::new(REPORTS_MAX),
            report_answers: ArrayQueue::new(REPORT_ANSWERS_MAX),
            report_answered: Notify::new(),
            traps: ArrayQueue::new(TRAPS_MAX),
            trap_arrived: Notify::new(),
            lines: (0..workers).map(line).collect::<io::Result<_>>()?,
            overflows: AtomicU64::new(0),
        }))
    }

    /// The end of worker number `worker`, counted from 0.
    pub fn worker(self: &Arc<Self>, worker: usize) -> WorkerEnd {
        assert!(worker < self.lines.len(), "an exchange has a line for every worker");
        WorkerEnd { exchange: Arc::clone(self), worker }
    }

    /// Says whether there is an SM that takes writes: for whoever is the control plane.
    pub fn set_reachable(&self, reachable: bool) {
        self.reachable.store(reachable, Relaxed);
    }

    /// Takes the next submission.
    pub(crate) fn take_submission(&self) -> Option<Submission> {
        self.submissions.pop()
    }

    /// Returns once something may have been submitted.
    pub(crate) async fn submitted(&self) {
        self.submitted.notified().await;
    }

    /// Hands answers to the workers that they are for, and wakes each of these once.
    pub(crate) fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        // Nearly all exchanges have fewer workers than bits; beyond, some are woken in vain.
        let mut concerned = 0u64;
        for answer in answers {
            let worker = (answer.id >> 48) as usize;
            let Some(line) = self.lines.get(worker) else { continue };
            concerned |= 1 << (worker % 64);
            if line.answers.push(answer).is_err() {
                self.overflows.fetch_add(1, Relaxed);
            }
        }
        let workers = (0..self.lines.len()).filter(|worker| concerned >> (worker % 64) & 1 == 1);
        workers.for_each(|worker| self.ring(worker));
    }

    /// Wakes a worker.
    pub(crate) fn ring(&self, worker: usize) {
        if let Some(line) = self.lines.get(worker) {
            // A full socket has rung already.
            let _ = line.bell.send(&[0]);
        }
    }

    /// Has the first worker send a report; `false` if too many wait.
    pub(crate) fn send_report(&self, packet: Packet) -> bool {
        let taken = self.reports.push(packet).is_ok();
        if let Some(line) = self.lines.first() {
            let _ = line.bell.send(&[0]);
        }
        taken
    }

    /// Takes the next answer to a report.
    pub(crate) fn take_report_answer(&self) -> Option<Packet> {
        self.report_answers.pop()
    }

    /// Takes the next trap for the SM.
    pub(crate) fn take_trap(&self) -> Option<Packet> {
        self.traps.pop()
    }

    /// Returns once a trap may have arrived.
    pub(crate) async fn trap_arrived(&self) {
        self.trap_arrived.notified().await;
    }

    /// Returns once a report may have been answered.
    pub(crate) async fn report_answered(&self) {
        self.report_answered.notified().await;
    }
}

/// A worker's end of the exchange. Nothing here waits.
#[derive(Clone, Debug)]
pub struct WorkerEnd {
    exchange: Arc<Exchange>,
    worker: usize,
}

impl WorkerEnd {
    /// Ids of this worker's submissions have this in their top bits.
    pub(crate) fn id_base(&self) -> u64 {
        (self.worker as u64) << 48
    }

    /// What the requests of a new table of this worker count from.
    pub(crate) fn first_serial(&self) -> u32 {
        self.exchange.lines[self.worker].tables.fetch_add(1, Relaxed) << 24
    }

    /// Whether there is an SM to ask.
    pub(crate) fn is_reachable(&self) -> bool {
        self.exchange.reachable.load(Relaxed)
    }

    /// Hands a request to the control plane; `false` if too many wait.
    pub(crate) fn submit(&self, submission: Submission) -> bool {
        let taken = self.exchange.submissions.push(submission).is_ok();
        self.exchange.submitted.notify_one();
        taken
    }

    pub(crate) fn take_answer(&self) -> Option<Answer> {
        self.exchange.lines[self.worker].answers.pop()
    }

    /// The next report to send. The first worker's transport is the one that reports go out by.
    pub(crate) fn take_report(&self) -> Option<Packet> {
        if self.worker == 0 { self.exchange.reports.pop() } else { None }
    }

    /// Passes a trap on to the SM; `false` if too many wait.
    pub(crate) fn give_trap(&self, packet: &Packet) -> bool {
        let taken = self.exchange.traps.push(packet.clone()).is_ok();
        self.exchange.trap_arrived.notify_one();
        taken
    }

    /// Passes on what came back for a report; `false` if too many wait.
    pub(crate) fn give_report_answer(&self, packet: &Packet) -> bool {
        let taken = self.exchange.report_answers.push(packet.clone()).is_ok();
        self.exchange.report_answered.notify_one();
        taken
    }

    /// Readable when there is something to take.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.exchange.lines[self.worker].ear.as_fd()
    }

    /// Makes the descriptor unreadable until the next ring. Call it before taking what there is.
    pub(crate) fn hush(&self) {
        let mut byte = [0];
        while self.exchange.lines[self.worker].ear.recv(&mut byte).is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(id: u64) -> Submission {
        Submission { id, at: Instant::now(), request: None }
    }

    #[test]
    fn answers_reach_the_worker_that_asked() {
        let exchange = Exchange::new(2).unwrap();
        let (first, second) = (exchange.worker(0), exchange.worker(1));
        assert!(second.submit(submission(second.id_base() | 7)));
        let taken = exchange.take_submission().unwrap();
        exchange.answer([Answer { id: taken.id, verdict: Verdict::LookAgain }]);
        assert!(first.take_answer().is_none());
        assert_eq!(second.take_answer().unwrap().id, second.id_base() | 7);
    }

    #[test]
    fn a_worker_that_sleeps_is_woken_by_an_answer() {
        use ib_mad::transport::{Interest, wait};
        use std::time::Duration;
        let exchange = Exchange::new(1).unwrap();
        let worker = exchange.worker(0);
        let ready = |worker: &WorkerEnd| {
            wait(&mut [Interest::read(worker.descriptor())], Some(Duration::ZERO)).unwrap()
        };
        assert_eq!(ready(&worker), 0);
        let answer = |id| Answer { id, verdict: Verdict::Unheard };
        exchange.answer([answer(1), answer(2)]);
        assert_eq!(ready(&worker), 1);
        worker.hush();
        assert_eq!(ready(&worker), 0);
        assert!(worker.take_answer().is_some() && worker.take_answer().is_some());
    }

    #[test]
    fn a_full_queue_refuses() {
        let exchange = Exchange::new(1).unwrap();
        let worker = exchange.worker(0);
        assert!((0..SUBMISSIONS_MAX as u64).all(|id| worker.submit(submission(id))));
        assert!(!worker.submit(submission(0)));
    }
}
