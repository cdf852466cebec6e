//! Does a new snapshot delay answers? Latency at half load, with and without 10,000-host tables
//! swapped every 100 ms, alternating within one run.
//!
//! - `quiet`: no swap.
//! - `swaps`: every 100 ms the next of four generations, built before, each with tables of its own.
//! - `builds`: the same, with each built at that time by two threads that yield to the worker, as
//!   in `ibsa`, on the worker's own core: the client, which never sleeps, has the other. A build
//!   may take longer than 100 ms: the number of swaps is reported.
//!
//! Half load is half of the rate that can be sent to the same worker on a schedule with almost no
//! loss, which is less than its rate in a closed loop, whose trains are always full. Latency is
//! measured at the client, from the send call to the receive call. It includes delays of the client
//! itself, which are the same in all three. `late` are answers after more than 1 ms.

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use benches::cpu::pin_to_core;
use benches::fabrics::{FAT_TREE_10000, middle_cable};
use benches::figures::{is_benchmark_run, report_load};
use benches::requests::{Draw, Kind, hosts};
use hdrhistogram::Histogram;
use ib_mad::transport::udp::{Engine, Udp, UdpOptions};
use ib_mad::transport::{Packet, Transport};
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{FabricPlane, RegistryPlane, Version};
use sa_server::host::placement::Builders;
use sa_server::serve::responder::{Responder, ResponderConfig};
use sa_server::serve::worker::{Worker, WorkerConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 6;
const ROUND: Duration = Duration::from_secs(2);
const SWAP: Duration = Duration::from_millis(100);
const REQUESTS: usize = 1 << 14;
const BATCH: usize = 64;
const LATE_NS: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Quiet,
    Swaps,
    Builds,
}

fn main() {
    if !is_benchmark_run() {
        return;
    }
    let mut managed = FAT_TREE_10000.managed();
    let whole = managed.plane();
    managed.cut(middle_cable(&FAT_TREE_10000.net()));
    let planes = [whole, managed.plane()];
    drop(managed);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .start_handler(|_| {
            pin_to_core(1);
            Builders::new().join();
        })
        .build()
        .expect("two threads");
    let (hosts, mut draw) = (hosts(&planes[0]), Draw::new());
    let requests: Vec<Packet> = (0..REQUESTS)
        .map(|tid| {
            let mut packet = Packet::default();
            let (source, destination) = (draw.host(&hosts), draw.host(&hosts));
            Kind::PathByGids.write(tid as u64, source, destination, &mut packet);
            packet
        })
        .collect();
    let ready: Vec<_> = (0..4).map(|i| generation(&planes[i % 2])).collect();
    let mut publisher = Publisher::new();
    publisher.publish(Arc::clone(&ready[0]));

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let bind = |engine| {
            let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let options = UdpOptions { engine, ..UdpOptions::new(listen) };
            Udp::bind(&options).expect("loopback has a port")
        };
        // The threads use the client one after the other.
        let (server, mut client) = (bind(Engine::Auto), bind(Engine::Mmsg));
        let peer = server.local_addr().expect("a bound socket has an address");
        let reader = publisher.reader();
        scope.spawn(|| {
            pin_to_core(1);
            let stats = Arc::new(Stats::default());
            let responder = Responder::new(reader, ResponderConfig::default(), stats);
            let mut worker = Worker::new(server, responder, WorkerConfig::default());
            worker.run(&stop, Duration::from_secs(60), |_| Ok(())).expect("loopback works");
        });
        let mut requests = requests;
        requests.iter_mut().for_each(|packet| packet.carrier.peer = Some(peer));
        // The client runs on core 0; the swapping thread runs on any core, as in a responder.
        let (closed, capacity) = thread::scope(|scope| {
            let measuring = scope.spawn(|| on_core(0, || capacity(&mut client, &requests)));
            measuring.join().expect("the client does not panic")
        });
        let rate = capacity / 2;
        println!(
            "closed loop: {closed} answers per second; on a schedule {capacity}; half load: {rate}"
        );

        let phases = [Phase::Quiet, Phase::Swaps, Phase::Builds];
        let mut seen: Vec<_> = phases.iter().map(|_| (histogram(), 0u64, 0u64)).collect();
        for _ in 0..ROUNDS {
            for (&phase, (latency, lost, swaps)) in phases.iter().zip(&mut seen) {
                let over = AtomicBool::new(false);
                thread::scope(|scope| {
                    let swapping =
                        scope.spawn(|| swap(phase, &mut publisher, &ready, &planes, &pool, &over));
                    *lost += scope
                        .spawn(|| {
                            on_core(0, || open_loop(&mut client, &requests, rate, ROUND, latency))
                        })
                        .join()
                        .expect("the client does not panic");
                    over.store(true, Relaxed);
                    *swaps += swapping.join().expect("the swapper does not panic");
                });
            }
        }
        stop.store(true, Relaxed);
        println!("                       p50      p99    p99.9      max µs    late   lost  swaps");
        for (name, (latency, lost, swaps)) in ["quiet", "swaps", "builds"].iter().zip(&seen) {
            let at = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
            let late = latency.len() - latency.count_between(0, LATE_NS);
            println!(
                "swap_latency/{name:<8} {:>7.1} {:>8.1} {:>8.1} {:>10.1} {:>7.4}% {lost:>5} \
                 {swaps:>6}",
                at(0.5),
                at(0.99),
                at(0.999),
                latency.max() as f64 / 1000.0,
                late as f64 * 100.0 / latency.len().max(1) as f64,
            );
        }
    });
    report_load();
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 10_000_000_000, 3).expect("the bounds are valid")
}

fn generation(plane: &FabricPlane) -> Arc<Generation> {
    let registry = Arc::new(RegistryPlane::default());
    let tables = Arc::new(Tables::build(plane, &registry));
    Arc::new(Generation::new(Version::OFFLINE, tables, registry))
}

fn on_core<T>(core: usize, work: impl FnOnce() -> T) -> T {
    pin_to_core(core);
    work()
}

/// Publishes until the round ends; returns the number of publications.
fn swap(
    phase: Phase,
    publisher: &mut Publisher,
    ready: &[Arc<Generation>],
    planes: &[FabricPlane],
    pool: &rayon::ThreadPool,
    over: &AtomicBool,
) -> u64 {
    let mut swaps = 0;
    let mut due = Instant::now();
    while !over.load(Relaxed) {
        if phase == Phase::Quiet || Instant::now() < due {
            thread::sleep(Duration::from_millis(2));
            continue;
        }
        due = Instant::now() + SWAP;
        let next = match phase {
            Phase::Builds => pool.install(|| generation(&planes[swaps % planes.len()])),
            _ => Arc::clone(&ready[swaps % ready.len()]),
        };
        publisher.publish(next);
        swaps += 1;
    }
    publisher.reclaim();
    swaps as u64
}

/// Maximum answers per second in a closed loop, and on a schedule with at most one in a thousand
/// lost.
fn capacity(client: &mut Udp, requests: &[Packet]) -> (u64, u64) {
    let closed = (0..5).map(|_| closed_loop(client, requests)).max().unwrap_or(1);
    let mut rate = closed;
    loop {
        let round = Duration::from_millis(500);
        let lost = (0..3).map(|_| open_loop(client, requests, rate, round, &mut histogram()));
        if lost.min().is_some_and(|lost| lost <= rate / 2 / 1000) || rate < 1000 {
            return (closed, rate);
        }
        rate -= rate / 10;
    }
}

/// Answers per second with 128 requests outstanding at all times.
fn closed_loop(client: &mut Udp, requests: &[Packet]) -> u64 {
    let mut incoming = vec![Packet::default(); BATCH];
    let (mut outstanding, mut answers, mut next) = (0, 0, 0);
    let (start, mut last) = (Instant::now(), Instant::now());
    while start.elapsed() < Duration::from_secs(1) {
        if outstanding <= BATCH {
            outstanding += client.send(&requests[next..next + BATCH]).expect("loopback sends");
            next = (next + BATCH) % requests.len();
        }
        let received = client.receive(&mut incoming).expect("loopback receives");
        answers += received as u64;
        outstanding = outstanding.saturating_sub(received);
        if received > 0 {
            last = Instant::now();
        } else if last.elapsed() > Duration::from_millis(100) {
            outstanding = 0;
        }
    }
    (answers as f64 / start.elapsed().as_secs_f64()) as u64
}

/// Sends `rate` requests per second on a schedule for a `round`, as many at a time as are due; the
/// client never sleeps. Returns the number of requests without answer.
fn open_loop(
    client: &mut Udp,
    requests: &[Packet],
    rate: u64,
    round: Duration,
    latency: &mut Histogram<u64>,
) -> u64 {
    let mut incoming = vec![Packet::default(); BATCH];
    let mut sent_at = vec![None::<Instant>; requests.len()];
    let (mut sent, mut answers) = (0u64, 0u64);
    let start = Instant::now();
    loop {
        let now = Instant::now();
        let elapsed = now - start;
        if elapsed > round + Duration::from_millis(100) {
            return sent - answers;
        }
        let due = (elapsed.min(round).as_secs_f64() * rate as f64) as u64;
        let first = sent as usize % requests.len();
        let count = (due.saturating_sub(sent) as usize).min(BATCH).min(requests.len() - first);
        if count > 0 {
            sent_at[first..first + count].fill(Some(now));
            sent += client.send(&requests[first..first + count]).expect("loopback sends") as u64;
        }
        let received = client.receive(&mut incoming).expect("loopback receives");
        if received == 0 {
            continue;
        }
        let now = Instant::now();
        for packet in &incoming[..received] {
            let tid = SaMad::new(&packet.mad).header().tid() as usize % requests.len();
            if let Some(sent_at) = sent_at[tid].take() {
                latency.saturating_record((now - sent_at).as_nanos() as u64);
                answers += 1;
            }
        }
    }
}
