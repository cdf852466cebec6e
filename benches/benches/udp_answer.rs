//! What do answers cost beyond the wire? A responder's worker beside a plain echo.
//!
//! In one run and in turns: a loop that sends back what it receives, and the responder's worker
//! answering PathRecord queries, both on the same UDP transport and asked by the same client with
//! the same number of requests outstanding. Told are answers a second, the server's CPU time an
//! answer, and the ratio of both to the echo of the same round.
//!
//! `datagrams` come one by one, as from many hosts; `trains` are how one generator's requests
//! travel where the kernel can (UDP_GRO and UDP_SEGMENT), which leaves little but our own work.

#![allow(clippy::print_stdout, reason = "figures are told there")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use benches::cpu::{pin_to_core, thread_time};
use benches::fabrics::{FAT_TREE_10000, Stated};
use benches::figures::{Runs, is_benchmark_run, tell, tell_load};
use benches::requests::{Draw, Kind, hosts};
use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use sa_proto::snapshot::{RegistryPlane, Version};
use sa_server::cell::{Generation, Publisher};
use sa_server::responder::{Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::worker::{Worker, WorkerConfig};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_secs(1);
/// Requests outstanding: few enough that default socket buffers hold them all.
const WINDOW: usize = 128;
const BATCH: usize = 64;
const REQUESTS: usize = 1 << 16;
/// Silence after which the client takes what is outstanding for lost.
const PATIENCE: Duration = Duration::from_millis(200);
const FABRIC: Stated = FAT_TREE_10000;

fn main() {
    if !is_benchmark_run() {
        return;
    }
    let plane = FABRIC.managed().plane();
    let (hosts, mut draw) = (hosts(&plane), Draw::new());
    let requests: Vec<Packet> = (0..REQUESTS)
        .map(|tid| {
            let mut packet = Packet::default();
            let (source, destination) = (draw.host(&hosts), draw.host(&hosts));
            Kind::PathByGids.write(tid as u64, source, destination, &mut packet);
            packet
        })
        .collect();
    let registry = Arc::new(RegistryPlane::default());
    let tables = Arc::new(Tables::build(&plane, &registry));
    let mut publisher = Publisher::new();
    publisher.publish(Arc::new(Generation::new(Version::NONE, tables, registry)));

    for (mode, trains) in [("datagrams", false), ("trains", true)] {
        let (mut echo, mut answer) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            echo.push(round(&requests, trains, serve_echo));
            let worker = |udp, stop: &AtomicBool| serve_answers(udp, stop, &publisher);
            answer.push(round(&requests, trains, worker));
        }
        let name = |figure: &str| format!("udp_answer/{mode}/{figure}/{}", FABRIC.name);
        for (server, rounds) in [("echo", &echo), ("ibsa", &answer)] {
            let rate = rounds.iter().map(|round| round.rate / 1000.0).collect();
            let cpu = rounds.iter().map(|round| round.cpu_us).collect();
            tell(&name(server), format_args!("{:.0}", Runs::new(rate)), "thousand a second");
            tell(&name(&format!("{server}_cpu")), Runs::new(cpu), "µs an answer");
        }
        let ratio = |figure: fn(&Round) -> f64| {
            Runs::new(echo.iter().zip(&answer).map(|(e, a)| figure(a) / figure(e)).collect())
        };
        tell(&name("ratio_to_echo"), ratio(|round| round.rate), "of the echo's rate");
        tell(&name("ratio_to_echo_cpu"), ratio(|round| round.cpu_us), "times the echo's CPU");
        let lost: u64 = echo.iter().chain(&answer).map(|round| round.lost).sum();
        println!("    {ROUNDS} rounds each, {WINDOW} outstanding, {lost} requests lost");
    }
    tell_load();
}

/// What one round gave.
struct Round {
    /// Answers a second.
    rate: f64,
    /// The server's CPU time an answer, µs.
    cpu_us: f64,
    /// Requests without answer.
    lost: u64,
}

/// Runs a server and a client, each on a core of its own.
fn round(requests: &[Packet], trains: bool, serve: impl FnOnce(Udp, &AtomicBool) + Send) -> Round {
    let bind = || {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Udp::bind(&UdpOptions { listen, share_port: false, trains }).expect("loopback has a port")
    };
    let (server, mut client) = (bind(), bind());
    let address = server.local_addr().expect("a bound socket has an address");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            pin_to_core(1);
            let start = thread_time();
            serve(server, &stop);
            thread_time() - start
        });
        pin_to_core(0);
        let (answers, lost, elapsed) = storm(&mut client, address, requests);
        stop.store(true, Relaxed);
        let cpu = server.join().expect("the server does not panic");
        Round {
            rate: answers as f64 / elapsed.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / answers as f64,
            lost,
        }
    })
}

/// Keeps [`WINDOW`] requests outstanding; answers, requests lost, and the time it took.
fn storm(client: &mut Udp, server: SocketAddr, requests: &[Packet]) -> (u64, u64, Duration) {
    let mut outgoing = vec![Packet::default(); BATCH];
    let mut incoming = vec![Packet::default(); BATCH];
    let (mut outstanding, mut answers, mut lost, mut next) = (0, 0u64, 0u64, 0);
    let start = Instant::now();
    while start.elapsed() < ROUND {
        while outstanding < WINDOW {
            let count = (WINDOW - outstanding).min(BATCH);
            for packet in &mut outgoing[..count] {
                packet.clone_from(&requests[next]);
                packet.address.peer = Some(server);
                next = (next + 1) % requests.len();
            }
            outstanding += client.send(&outgoing[..count]).expect("loopback sends");
        }
        let received = client.receive(&mut incoming).expect("loopback receives");
        answers += received as u64;
        outstanding = outstanding.saturating_sub(received);
        if received == 0 && !is_readable(client, PATIENCE) {
            lost += outstanding as u64;
            outstanding = 0;
        }
    }
    (answers, lost, start.elapsed())
}

fn is_readable(udp: &Udp, timeout: Duration) -> bool {
    let descriptor = udp.descriptor().expect("a socket");
    wait(&mut [Interest::read(descriptor)], Some(timeout)).expect("sockets can be polled") > 0
}

fn serve_echo(mut udp: Udp, stop: &AtomicBool) {
    let mut batch = vec![Packet::default(); BATCH];
    while !stop.load(Relaxed) {
        let received = udp.receive(&mut batch).expect("loopback receives");
        let mut sent = 0;
        while sent < received {
            sent += udp.send(&batch[sent..received]).expect("loopback sends");
        }
        if received == 0 {
            is_readable(&udp, PATIENCE);
        }
    }
}

fn serve_answers(udp: Udp, stop: &AtomicBool, publisher: &Publisher) {
    let stats = Arc::new(Stats::default());
    let responder = Responder::new(publisher.reader(), ResponderConfig::default(), stats);
    let mut worker = Worker::new(udp, responder, WorkerConfig::default());
    worker.run(stop, Duration::from_secs(60), |_| Ok(())).expect("loopback works");
}
