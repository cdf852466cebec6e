//! A worker's loop: upkeep under continuous load, answers when a transport fails, and the modes for
//! measuring.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{Chain, path_request, published};
use ib_mad::transport::{Packet, Transport};
use ib_mad::types::Qpn;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::sa::SaMad;
use sa_proto::proto::event::SpillTarget;
use sa_server::serve::responder::{Responder, ResponderConfig};
use sa_server::serve::spill::Spill;
use sa_server::serve::worker::{Next, Worker, WorkerConfig};
use sa_server::sm::forward::Exchange;
use sa_server::stats::Stats;

/// A transport that has packets in each of a number of calls, and fails or is full on request.
#[derive(Default)]
struct Script {
    /// Number of calls that return two packets, and of the calls between them that return none.
    receives: u64,
    pause: u64,
    calls: u64,
    fails: bool,
    /// Packets that are taken before it fails.
    takes: usize,
    sent: Vec<Packet>,
    lost: u64,
    /// How often a wait was about to begin.
    waits: Arc<AtomicU64>,
}

impl Transport for Script {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        self.calls += 1;
        if self.receives == 0 || !self.calls.is_multiple_of(self.pause + 1) {
            return Ok(0);
        }
        self.receives -= 1;
        for (at, packet) in batch[..2].iter_mut().enumerate() {
            *packet = path_request(1, 1, 2, self.calls * 2 + at as u64);
        }
        Ok(2)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let taken = if self.fails { batch.len().min(self.takes) } else { batch.len() };
        if taken == 0 {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.takes = self.takes.saturating_sub(taken);
        self.sent.extend_from_slice(&batch[..taken]);
        Ok(taken)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.waits.fetch_add(1, Relaxed);
        None
    }

    fn overflowed(&mut self) -> u64 {
        self.lost
    }
}

fn worker(transport: Script, config: WorkerConfig, echo: bool) -> Worker<Script> {
    let publisher = published(&Chain { switches: 2, hosts_each: 2 }.plane(|_| {}));
    let responder = ResponderConfig { echo, ..ResponderConfig::default() };
    let responder = Responder::new(publisher.reader(), responder, Arc::new(Stats::default()));
    Worker::new(transport, responder, config)
}

fn methods(packets: &[Packet]) -> Vec<(Method, Status)> {
    let said = |packet: &Packet| {
        let mad = SaMad::new(&packet.mad);
        (mad.header().method(), mad.header().status())
    };
    packets.iter().map(said).collect()
}

/// Regression: Upkeep, and the count of lost packets, waited for an idle moment: under load, when
/// it matters, a port's tables were never read again.
#[test]
fn who_always_has_work_looks_around_all_the_same() {
    let script = Script { receives: u64::MAX, lost: 7, ..Script::default() };
    let waits = Arc::clone(&script.waits);
    let config = WorkerConfig { look_around: Duration::ZERO, ..WorkerConfig::default() };
    let mut worker = worker(script, config, false);
    let (stop, mut upkeeps) = (AtomicBool::new(false), 0);
    let upkeep = |script: &mut Script| {
        upkeeps += 1;
        script.sent.clear();
        stop.store(upkeeps == 3, Relaxed);
        Ok(())
    };
    worker.run(&stop, Duration::from_millis(1), upkeep).unwrap();
    assert_eq!((upkeeps, waits.load(Relaxed)), (3, 0));
    assert_eq!(worker.responder().stats().socket_overflow.get(), 7);
}

/// Regression: answers that a transport had not accepted when it failed were lost, though counted
/// as answered.
#[test]
fn answers_that_a_failed_transport_did_not_take_are_its_successors() {
    let script = Script { receives: 1, fails: true, takes: 1, ..Script::default() };
    let mut worker = worker(script, WorkerConfig::default(), false);
    assert!(worker.turn(Instant::now).is_err());
    let first = worker.transport_mut().sent.clone();
    assert!(worker.turn(Instant::now).is_err(), "it is tried again, and nothing is read meanwhile");

    worker.replace_transport(Script::default());
    while worker.turn(Instant::now).unwrap() == Next::Again {}
    let sent = [first, worker.transport_mut().sent.clone()].concat();
    let tids: Vec<u64> = sent.iter().map(|p| SaMad::new(&p.mad).header().tid()).collect();
    assert_eq!(tids, [2, 3]);
    assert_eq!(worker.responder().stats().responses(), 2);
    assert!(worker.responder().stats().balances());
}

/// Regression: a responder that had been stopped forwarded writes of clients that had given up; a
/// withdrawal took back a registration that its client had been acknowledged since.
#[test]
fn packets_that_waited_while_the_process_was_stopped_are_dropped() {
    let script = Script { receives: 2, ..Script::default() };
    let mut worker = worker(script, WorkerConfig::default(), false);
    let start = Instant::now();
    worker.note_pause(start).unwrap();
    worker.note_pause(start + Duration::from_millis(1900)).unwrap();
    assert_eq!(worker.responder().stats().requests(), 0, "nothing was read");
    worker.note_pause(start + Duration::from_secs(4)).unwrap();
    while worker.turn(Instant::now).unwrap() == Next::Again {}
    let stats = worker.responder().stats();
    // A read that does not fill the batch does not show that nothing else has waited.
    assert_eq!((stats.requests(), stats.responses(), stats.dropped_total()), (4, 0, 4));
    assert!(stats.balances());
}

#[test]
fn an_echo_sends_requests_back_as_they_came_but_for_the_method() {
    let mut worker =
        worker(Script { receives: 1, ..Script::default() }, WorkerConfig::default(), true);
    while worker.turn(Instant::now).unwrap() == Next::Again {}
    let sent = &worker.transport_mut().sent;
    assert_eq!(methods(sent), [(Method::GET_RESP, Status::OK); 2]);
    for (packet, tid) in sent.iter().zip(2..) {
        let mut expected = path_request(1, 1, 2, tid);
        SaMad::new(&mut expected.mad).header_mut().set_method(Method::GET_RESP);
        assert_eq!((packet.mad, packet.origin()), (expected.mad, expected.origin()));
    }
    let stats = worker.responder().stats();
    assert_eq!((stats.requests(), stats.responses()), (2, 2));
}

/// The worker polls instead of waiting, and answers the packets that it finds.
#[test]
fn who_polls_busily_answers_without_having_waited() {
    for (busy_poll, waited) in [(Duration::from_secs(600), false), (Duration::ZERO, true)] {
        let script = Script { receives: 20, pause: 2, ..Script::default() };
        let waits = Arc::clone(&script.waits);
        let look_around = Duration::from_micros(1);
        let config = WorkerConfig { busy_poll, look_around, ..WorkerConfig::default() };
        let mut worker = worker(script, config, false);
        let stop = AtomicBool::new(false);
        let upkeep = |script: &mut Script| {
            stop.store(script.sent.len() == 40, Relaxed);
            Ok(())
        };
        worker.run(&stop, Duration::ZERO, upkeep).unwrap();
        let answers = methods(&worker.transport_mut().sent);
        assert_eq!(answers, [(Method::GET_RESP, Status::OK); 40]);
        assert_eq!(waits.load(Relaxed) > 0, waited);
    }
}

/// A transport that always has requests of many clients, and takes all answers.
#[derive(Default)]
struct Full {
    next: u64,
    sent: Vec<Packet>,
}

impl Transport for Full {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        for packet in &mut *batch {
            self.next += 1;
            *packet = path_request((self.next % 4 + 1) as u16, 1, 2, self.next);
            packet.address.qpn = Qpn(self.next as u32 & 0xFF_FFFF);
        }
        Ok(batch.len())
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        self.sent.extend_from_slice(batch);
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn a_worker_passes_queries_on_while_it_is_behind_and_sends_their_answers() {
    let publisher = published(&Chain { switches: 2, hosts_each: 2 }.plane(|_| {}));
    let exchange = Exchange::new(3).unwrap();
    let spill = Spill::new(1, "127.0.0.1:700".parse().unwrap(), exchange, 1, 2);
    let addresses = vec!["127.0.0.1:9000".to_owned()];
    spill.set_targets(0, &[SpillTarget { responder_id: 2, addresses, direct: false, token: 0 }]);
    let responder = Responder::new(publisher.reader(), ResponderConfig::default(), Arc::default());
    // The worker begins no earlier, however long this thread is interrupted.
    let time = std::cell::Cell::new(Instant::now());
    let worker = Worker::new(Full::default(), responder, WorkerConfig::default());
    let mut worker = worker.with_spill(Some(Arc::clone(&spill)));
    let passed = || spill.counters().passed.load(Relaxed);
    let clock = || time.replace(time.get() + Duration::from_micros(10));

    // It is not known yet whether it keeps up.
    worker.turn(clock).unwrap();
    assert_eq!(passed(), 0);
    // The transport has not been empty for a while.
    time.set(time.get() + Duration::from_millis(20));
    worker.turn(clock).unwrap();
    assert!(passed() > 0, "half of the clients are the other responder's");

    let mut query = vec![Packet::default(); 1];
    assert_eq!(spill.take_queries(&mut query), 1);
    let tid = SaMad::new(&query[0].mad).header().tid();
    SaMad::new(&mut query[0].mad).make_response(Status::OK);
    spill.handle_received(&query, |_| true);
    worker.turn(clock).unwrap();
    let sent = &worker.transport_mut().sent;
    assert!(sent.iter().any(|answer| SaMad::new(&answer.mad).header().tid() == tid));
    assert_eq!(spill.counters().answered.load(Relaxed), 1);
}
