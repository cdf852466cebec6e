//! What do answers cost beyond the wire? A responder's worker beside the same worker as an echo.
//!
//! In one run and in turns, over each transport: a worker that sends every request back as its own
//! answer (`ibsa --echo`), and one that answers PathRecord queries by GID pair as RDMA CM asks
//! them, both asked by the same client, which checks every answer. Told are answers a second, the
//! worker's CPU time an answer, the ratio of both to the echo of the same round, and how much of a
//! CPU the client needed: near 1, the client is the limit.
//!
//! `datagrams` come one by one, as from many hosts; `trains` are how one generator's requests
//! travel where the kernel can (UDP_GRO and UDP_SEGMENT), which leaves little but our own work;
//! `shared_ring` has no kernel in the way. `-- uring trains` runs what has both words in its name.

#![allow(clippy::print_stdout, reason = "figures are told there")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use benches::cpu::{pin_to_core, thread_time};
use benches::fabrics::{FAT_TREE_10000, Stated};
use benches::figures::{Runs, is_benchmark_run, tell, tell_load};
use benches::requests::{Draw, Host, Kind, hosts};
use ib_mad::transport::ring::{RingClient, RingOptions, RingServer};
use ib_mad::transport::udp::{Engine, Udp, UdpOptions};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{RegistryPlane, Version};
use sa_server::cell::{Generation, Publisher};
use sa_server::responder::{Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::worker::{Worker, WorkerConfig};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(500);
const BATCH: usize = 64;
const REQUESTS: usize = 1 << 14;
/// Silence after which the client takes what is outstanding for lost.
const PATIENCE: Duration = Duration::from_millis(200);
const FABRIC: Stated = FAT_TREE_10000;
const KIND: Kind = Kind::PathByGids;

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
                println!("skipped: no {engine} here: {reason}");
                continue;
            }
            bench.run(&format!("{engine}/{mode}"), || {
                let server = bind().expect("it could be bound before");
                let peer = server.local_addr().expect("a bound socket has an address");
                (server, move || (bind().expect("it could be bound before"), Some(peer)))
            });
        }
    }
    let path = std::env::temp_dir().join(format!("ibsm-answer-{}", std::process::id()));
    bench.run("shared_ring", || {
        let server = RingServer::bind(&RingOptions::new(&path)).expect("a path of our own");
        let path = path.clone();
        (server, move || (RingClient::connect(&path).expect("it is served"), None))
    });
    tell_load();
}

/// What all rounds share.
struct Bench {
    requests: Vec<Packet>,
    /// Whom each request is about.
    destinations: Vec<Host>,
    publisher: Publisher,
}

/// What one round gave.
struct Round {
    /// Answers a second.
    rate: f64,
    /// The worker's CPU time an answer, µs.
    cpu_us: f64,
    /// CPUs that the client took.
    client: f64,
    /// Requests without answer.
    lost: u64,
}

impl Bench {
    fn new() -> Self {
        let plane = FABRIC.managed().plane();
        let (hosts, mut draw) = (hosts(&plane), Draw::new());
        let destinations: Vec<Host> = (0..REQUESTS).map(|_| draw.host(&hosts)).collect();
        let write = |(tid, destination): (usize, &Host)| {
            let mut packet = Packet::default();
            KIND.write(tid as u64, draw.host(&hosts), *destination, &mut packet);
            packet
        };
        let requests = destinations.iter().enumerate().map(write).collect();
        let registry = Arc::new(RegistryPlane::default());
        let tables = Arc::new(Tables::build(&plane, &registry));
        let mut publisher = Publisher::new();
        publisher.publish(Arc::new(Generation::new(Version::NONE, tables, registry)));
        Self { requests, destinations, publisher }
    }

    /// Measures over the transport that `open` opens: the server's end, and how the client, once
    /// the server runs, comes to its own.
    fn run<S, C, F>(&self, name: &str, open: impl Fn() -> (S, F))
    where
        S: Transport,
        C: Transport,
        F: FnOnce() -> (C, Option<SocketAddr>),
    {
        let wanted = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
        if !wanted.into_iter().all(|word| name.contains(&word)) {
            return;
        }
        // Few enough that default socket buffers hold them all.
        let window = if name.ends_with("datagrams") { 128 } else { 512 };
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
            tell(&title(server), format_args!("{rate:.0}"), "thousand a second");
            let cpu = runs(|round| round.cpu_us * 1000.0);
            tell(&title(&format!("{server}_cpu")), format_args!("{cpu:.0}"), "ns an answer");
            tell(&title(&format!("{server}_client")), runs(|round| round.client), "CPUs");
        }
        let ratio = |figure: fn(&Round) -> f64| {
            Runs::new(echo.iter().zip(&answer).map(|(e, a)| figure(a) / figure(e)).collect())
        };
        tell(&title("ratio_to_echo"), ratio(|round| round.rate), "of the echo's rate");
        tell(&title("ratio_to_echo_cpu"), ratio(|round| round.cpu_us), "times the echo's CPU");
        let lost: u64 = echo.iter().chain(&answer).map(|round| round.lost).sum();
        println!("    {ROUNDS} rounds each, {window} outstanding, {lost} requests lost");
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
                let config = ResponderConfig { echo: is_echo, ..ResponderConfig::default() };
                let reader = self.publisher.reader();
                let responder = Responder::new(reader, config, Arc::new(Stats::default()));
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

    /// Keeps `window` requests outstanding; answers, requests lost, and the time it took.
    fn storm(
        &self,
        client: &mut impl Transport,
        server: Option<SocketAddr>,
        window: usize,
        is_echo: bool,
    ) -> (u64, u64, Duration) {
        let mut outgoing = self.requests.clone();
        outgoing.iter_mut().for_each(|packet| packet.address.peer = server);
        let mut incoming = vec![Packet::default(); BATCH];
        let (mut outstanding, mut answers, mut lost, mut next) = (0, 0u64, 0u64, 0);
        let start = Instant::now();
        while start.elapsed() < ROUND {
            let mut sent = 0;
            // Whole batches, so that trains are long.
            while window - outstanding >= BATCH {
                let taken = client.send(&outgoing[next..next + BATCH]).expect("loopback sends");
                // A batch that was taken in part counts as taken: the rest is lost.
                lost += (BATCH - taken) as u64;
                outstanding += taken;
                sent += taken;
                next = (next + BATCH) % outgoing.len();
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

    fn check(&self, packet: &Packet, is_echo: bool) {
        let mad = SaMad::new(&packet.mad);
        let destination = self.destinations[mad.header().tid() as usize % REQUESTS];
        let is_right = match is_echo {
            true => mad.header().method().is_response(),
            false => KIND.is_answered(destination, packet),
        };
        assert!(is_right, "a wrong answer: {:02x?}", packet.mad);
    }
}

fn is_readable(transport: &impl Transport, timeout: Duration) -> bool {
    let descriptor = transport.descriptor().expect("it is no transport in memory");
    wait(&mut [Interest::read(descriptor)], Some(timeout)).expect("it can be polled") > 0
}
