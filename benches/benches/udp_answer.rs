//! What do answers cost beyond the transport? Compares a responder's worker with the same worker as
//! an echo.
//!
//! In one run, alternating, over each transport: a worker that returns every request as its own
//! answer (`ibsa --echo`), and one that answers PathRecord queries by GID pair as RDMA CM sends
//! them. The same client sends to both and checks every answer. Reported are answers per second,
//! the worker's CPU time per answer, the ratio of both to the echo of the same round, and how much
//! of a CPU the client needed: near 1, the client is the limit.
//!
//! `alone`: the worker and its client alternate on one core, echo and answering window by window,
//! and only the worker's turns are timed. This measures the worker's own cost, also on a machine
//! with other load, where two cores wait for each other most of the time. `pair` is the rest.
//!
//! `datagrams` arrive one by one, as from many hosts; `trains` are how one generator's requests
//! travel where the kernel supports it (UDP_GRO and UDP_SEGMENT), which leaves little but our own
//! work; `shared_ring` bypasses the kernel. `-- uring trains` runs the benchmarks whose names
//! contain both words, such as `pair/uring/trains`.

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use benches::cpu::{pin_to_core, thread_time};
use benches::fabrics::{FAT_TREE_10000, Stated};
use benches::figures::{Runs, is_benchmark_run, report_figure, report_load};
use benches::requests::{Draw, Host, Kind, hosts};
use ib_mad::transport::ring::{RingClient, RingOptions, RingServer};
use ib_mad::transport::udp::{Engine, Udp, UdpOptions};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use ib_mad::types::Lid;
use ib_mad::wire::field::part;
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{RegistryPlane, Version};
use sa_server::serve::responder::{Responder, ResponderConfig};
use sa_server::serve::worker::{Worker, WorkerConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(500);
/// How long echo and worker alternate on one core.
const ALONE: Duration = Duration::from_secs(2);
const BATCH: usize = 64;
const REQUESTS: usize = 1 << 14;
const _: () = assert!(REQUESTS.is_multiple_of(BATCH));
/// Silence after which the client counts outstanding requests as lost.
const PATIENCE: Duration = Duration::from_millis(200);
const FABRIC: Stated = FAT_TREE_10000;
const KIND: Kind = Kind::PathByGids;
const RECORD_LEN: usize = 64;

fn main() {
    if !is_benchmark_run() {
        return;
    }
    let bench = Bench::new();
    for engine in [Engine::Mmsg, Engine::Uring] {
        for (mode, trains) in [("datagrams", false), ("trains", true)] {
            let bind = || {
                let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                Udp::bind(&UdpOptions { engine, trains, ..UdpOptions::new(listen) })
            };
            if let Err(reason) = bind() {
                println!("skipped: {engine} is not available: {reason}");
                continue;
            }
            bench.run(&format!("{engine}/{mode}"), || {
                let server = bind().expect("it could be bound before");
                let peer = server.local_addr().expect("a bound socket has an address");
                (server, move || (bind().expect("it could be bound before"), Some(peer)))
            });
        }
    }
    let opened = Cell::new(0);
    bench.run("shared_ring", || {
        opened.set(opened.get() + 1);
        let name = format!("ibsm-answer-{}-{}", std::process::id(), opened.get());
        let path = std::env::temp_dir().join(name);
        let server = RingServer::bind(&RingOptions::new(&path)).expect("a path of our own");
        (server, move || (RingClient::connect(&path).expect("it is served"), None))
    });
    report_load();
}

/// The state that all rounds share.
struct Bench {
    requests: Vec<Request>,
    publisher: Publisher,
}

/// The part in which requests differ, stored separately from the common part, so that the client
/// does not wait for memory when it writes them.
struct Request {
    source: Lid,
    /// The beginning of the record, which contains all its set fields.
    record: [u8; RECORD_LEN],
    /// The host that it is about.
    destination: Host,
}

/// The result of one round.
struct Round {
    /// Answers per second.
    rate: f64,
    /// The worker's CPU time per answer, µs.
    cpu_us: f64,
    /// CPUs that the client used.
    client: f64,
    /// Requests without an answer.
    lost: u64,
}

impl Bench {
    fn new() -> Self {
        let plane = FABRIC.managed().plane();
        let (hosts, mut draw) = (hosts(&plane), Draw::new());
        let mut packet = Packet::default();
        let mut draw = || {
            let (source, destination) = (draw.host(&hosts), draw.host(&hosts));
            KIND.write(0, source, destination, &mut packet);
            let record = *part::<0, _, _>(SaMad::new(&packet.mad).data());
            Request { source: source.lid, record, destination }
        };
        let requests = (0..REQUESTS).map(|_| draw()).collect();
        let registry = Arc::new(RegistryPlane::default());
        let tables = Arc::new(Tables::build(&plane, &registry));
        let mut publisher = Publisher::new();
        publisher.publish(Arc::new(Generation::new(Version::OFFLINE, tables, registry)));
        Self { requests, publisher }
    }

    /// Measures over the transport that `open` opens: it returns the server's end, and a function
    /// that opens the client's end once the server runs.
    fn run<S, C, F>(&self, name: &str, open: impl Fn() -> (S, F))
    where
        S: Transport,
        C: Transport,
        F: FnOnce() -> (C, Option<SocketAddr>) + Send,
    {
        // Few enough to fit into default socket buffers.
        let window = if name.ends_with("datagrams") { 128 } else { 512 };
        if is_wanted(&format!("alone/{name}")) {
            self.alone(name, window, &open);
        }
        if !is_wanted(&format!("pair/{name}")) {
            return;
        }
        let (mut echo, mut answer) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            for (is_echo, rounds) in [(true, &mut echo), (false, &mut answer)] {
                let (server, connect) = open();
                rounds.push(self.round(is_echo, window, server, connect));
            }
        }
        let title = |figure: &str| format!("answer/{name}/{figure}/{}", FABRIC.name);
        for (server, rounds) in [("echo", &echo), ("ibsa", &answer)] {
            let runs = |figure: fn(&Round) -> f64| Runs::new(rounds.iter().map(figure).collect());
            let rate = runs(|round| round.rate / 1000.0);
            report_figure(&title(server), format_args!("{rate:.0}"), "thousand per second");
            let cpu = runs(|round| round.cpu_us * 1000.0);
            report_figure(
                &title(&format!("{server}_cpu")),
                format_args!("{cpu:.0}"),
                "ns per answer",
            );
            report_figure(&title(&format!("{server}_client")), runs(|round| round.client), "CPUs");
        }
        let ratio = |figure: fn(&Round) -> f64| {
            Runs::new(echo.iter().zip(&answer).map(|(e, a)| figure(a) / figure(e)).collect())
        };
        report_figure(&title("ratio_to_echo"), ratio(|round| round.rate), "of the echo's rate");
        report_figure(
            &title("ratio_to_echo_cpu"),
            ratio(|round| round.cpu_us),
            "times the echo's CPU",
        );
        let lost: u64 = echo.iter().chain(&answer).map(|round| round.lost).sum();
        println!("    {ROUNDS} rounds each, {window} outstanding, {lost} requests lost");
    }

    /// Alternates an echo, an answering worker and their clients on this core.
    fn alone<S, C, F>(&self, name: &str, window: usize, open: impl Fn() -> (S, F))
    where
        S: Transport,
        C: Transport,
        F: FnOnce() -> (C, Option<SocketAddr>) + Send,
    {
        let mut ends = [true, false].map(|is_echo| {
            let (mut server, connect) = open();
            let (client, peer) = thread::scope(|scope| {
                let connecting = scope.spawn(connect);
                // Some servers accept clients only while they poll.
                while !connecting.is_finished() {
                    let _ = server.descriptor();
                    server.receive(&mut []).expect("loopback receives");
                }
                connecting.join().expect("it connects")
            });
            let worker = Worker::new(server, self.responder(is_echo), WorkerConfig::default());
            (is_echo, worker, client, peer, Vec::with_capacity(1 << 16))
        });
        pin_to_core(1);
        let (mut incoming, mut next, mut lost) = (vec![Packet::default(); BATCH], 0, 0);
        let start = Instant::now();
        while start.elapsed() < ALONE {
            for (is_echo, worker, client, peer, times) in &mut ends {
                let mut outgoing = self.outgoing(*peer);
                for first in (next..next + window).step_by(BATCH) {
                    self.send(client, &mut outgoing, first % REQUESTS);
                }
                let (begin, goal) = (Instant::now(), worker.responder().stats().requests());
                let goal = goal + window as u64;
                while worker.responder().stats().requests() < goal && begin.elapsed() < PATIENCE {
                    worker.turn(Instant::now).expect("loopback works");
                }
                times.push(begin.elapsed().as_nanos() as f64 / window as f64);
                let (mut answers, end) = (0, Instant::now() + PATIENCE);
                while answers < window && Instant::now() < end {
                    let received = client.receive(&mut incoming).expect("loopback receives");
                    incoming[..received].iter().for_each(|packet| self.check(packet, *is_echo));
                    answers += received;
                }
                lost += window - answers;
            }
            next = (next + window) % REQUESTS;
        }
        let [echo, answer] = ends.map(|(.., times)| times);
        let ratios = echo.iter().zip(&answer).map(|(echo, answer)| answer / echo).collect();
        let [echo, answer, ratios] = [echo, answer, ratios].map(Runs::new);
        let title = |figure: &str| format!("answer/alone/{name}/{figure}/{}", FABRIC.name);
        for (server, times) in [("echo", &echo), ("ibsa", &answer)] {
            let (least, usual) = (times.min(), times.median());
            let figure = format_args!("{least:.1} at best, {usual:.1} in the middle");
            report_figure(&title(server), figure, "ns per answer");
        }
        let (best, usual) = (answer.min() / echo.min(), ratios.median());
        let figure = format_args!("{best:.2} at best, {usual:.2} in the middle");
        report_figure(&title("ratio_to_echo"), figure, "times the echo's time");
        println!("    windows of {window}, {lost} requests lost");
    }

    fn responder(&self, echo: bool) -> Responder {
        let config = ResponderConfig { echo, ..ResponderConfig::default() };
        Responder::new(self.publisher.reader(), config, Arc::new(Stats::default()))
    }

    /// Runs a worker and a client, each on a core of its own.
    fn round<S: Transport, C: Transport>(
        &self,
        is_echo: bool,
        window: usize,
        server: S,
        connect: impl FnOnce() -> (C, Option<SocketAddr>),
    ) -> Round {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                pin_to_core(1);
                let start = thread_time();
                let responder = self.responder(is_echo);
                let mut worker = Worker::new(server, responder, WorkerConfig::default());
                worker.run(&stop, Duration::from_secs(60), |_| Ok(())).expect("loopback works");
                thread_time() - start
            });
            pin_to_core(0);
            let start = thread_time();
            let (mut client, peer) = connect();
            let (answers, lost, elapsed) = self.storm(&mut client, peer, window, is_echo);
            let client = (thread_time() - start).as_secs_f64() / elapsed.as_secs_f64();
            stop.store(true, Relaxed);
            let cpu = worker.join().expect("the worker does not panic");
            Round {
                rate: answers as f64 / elapsed.as_secs_f64(),
                cpu_us: cpu.as_secs_f64() * 1e6 / answers as f64,
                client,
                lost,
            }
        })
    }

    /// Keeps `window` requests outstanding; returns answers, lost requests, and the time.
    fn storm(
        &self,
        client: &mut impl Transport,
        server: Option<SocketAddr>,
        window: usize,
        is_echo: bool,
    ) -> (u64, u64, Duration) {
        let mut outgoing = self.outgoing(server);
        let mut incoming = vec![Packet::default(); BATCH];
        let (mut outstanding, mut answers, mut lost, mut next) = (0, 0u64, 0u64, 0);
        let start = Instant::now();
        while start.elapsed() < ROUND {
            let mut sent = 0;
            // Whole batches, so that trains are long.
            while window - outstanding >= BATCH {
                let taken = self.send(client, &mut outgoing, next);
                // A batch that was sent in part counts as sent; the rest is lost.
                lost += (BATCH - taken) as u64;
                outstanding += taken;
                sent += taken;
                next = (next + BATCH) % REQUESTS;
            }
            let received = client.receive(&mut incoming).expect("loopback receives");
            for packet in &incoming[..received] {
                self.check(packet, is_echo);
            }
            answers += received as u64;
            outstanding = outstanding.saturating_sub(received);
            if received == 0 && sent == 0 && !is_readable(client, PATIENCE) {
                lost += outstanding as u64;
                outstanding = 0;
            }
        }
        (answers, lost, start.elapsed())
    }

    /// A batch of requests to `server`, identical until they are written.
    fn outgoing(&self, server: Option<SocketAddr>) -> Vec<Packet> {
        let (mut pattern, any) = (Packet::default(), self.requests[0].destination);
        KIND.write(0, any, any, &mut pattern);
        pattern.carrier.peer = server;
        vec![pattern; BATCH]
    }

    /// Sends the batch of requests from `first` on; returns how many were accepted.
    fn send(&self, client: &mut impl Transport, outgoing: &mut [Packet], first: usize) -> usize {
        for (packet, tid) in outgoing.iter_mut().zip(first..) {
            self.requests[tid].write(tid as u64, packet);
        }
        client.send(outgoing).expect("loopback sends")
    }

    fn check(&self, packet: &Packet, is_echo: bool) {
        let mad = SaMad::new(&packet.mad);
        let destination = self.requests[mad.header().tid() as usize % REQUESTS].destination;
        let is_right = match is_echo {
            true => mad.header().method().is_response(),
            false => KIND.is_answered(destination, packet),
        };
        assert!(is_right, "wrong answer: {:02x?}", packet.mad);
    }
}

/// Whether a benchmark's name contains all words of the command line.
fn is_wanted(name: &str) -> bool {
    std::env::args().skip(1).filter(|word| !word.starts_with('-')).all(|word| name.contains(&word))
}

impl Request {
    /// Turns a packet with another request of this kind into this request.
    fn write(&self, tid: u64, packet: &mut Packet) {
        packet.address.lid = self.source;
        let mut mad = SaMad::new(&mut packet.mad);
        mad.header_mut().set_tid(tid);
        mad.data_mut()[..RECORD_LEN].copy_from_slice(&self.record);
    }
}

fn is_readable(transport: &impl Transport, timeout: Duration) -> bool {
    let descriptor = transport.descriptor().expect("the transport has a descriptor");
    wait(&mut [Interest::read(descriptor)], Some(timeout)).expect("it can be polled") > 0
}
