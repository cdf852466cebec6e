//! What writes, restarts and a first synchronisation cost among 200,000 registered records, with
//! the real programs. For figures, not for CI:
//!
//! ```text
//! cargo test --release -p benches --test it registry_scale -- --ignored --nocapture
//! ```

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::chaos_support::request;
use crate::support::{Host, Subnet, hosts};
use benches::cpu::load_average;
use benches::sandbox::{PATIENCE, Program, free_address};
use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Address, Interest, Packet, Transport, wait};
use ib_mad::types::{Gid, PKey, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::sa::SaMad;

const SERVICES: u64 = 136_000;
/// Groups that all hosts join.
const GROUPS: u64 = 3_000;
/// Subscriptions of each host.
const SUBSCRIPTIONS: u64 = 1_000;
/// Writes whose latency is reported.
const WRITES: u64 = 3_000;
/// How long an answer may take before the request is repeated.
const TIMEOUT: Duration = Duration::from_secs(3);

struct Clients {
    transport: Udp,
    to: SocketAddr,
    tid: u64,
}

impl Clients {
    /// Sends a number of requests, a window of them open at a time; returns their durations,
    /// sorted.
    fn ask(
        &mut self,
        count: u64,
        window: usize,
        mut make: impl FnMut(u64, u64) -> (Host, [u8; MAD_LEN]),
    ) -> Vec<Duration> {
        let mut open: HashMap<u64, (Packet, Instant, Instant)> = HashMap::new();
        let (mut made, mut took) = (0, Vec::new());
        let mut batch = vec![Packet::default(); 256];
        while made < count || !open.is_empty() {
            let now = Instant::now();
            while made < count && open.len() < window {
                self.tid += 1;
                let (host, mad) = make(made, self.tid);
                let (qpn, pkey) = (Qpn(0x40 + (made % 64) as u32), PKey::DEFAULT_FULL);
                let address = Address { qpn, pkey, ..Address::gsi(host.lid) };
                let mut packet = Packet::new(mad, address);
                packet.carrier.peer = Some(self.to);
                self.transport.send(std::slice::from_ref(&packet)).unwrap();
                open.insert(self.tid, (packet, now, now));
                made += 1;
            }
            for (packet, first, sent) in open.values_mut() {
                assert!(first.elapsed() < PATIENCE, "no answer");
                if now > *sent + TIMEOUT {
                    *sent = now;
                    self.transport.send(std::slice::from_ref(packet)).unwrap();
                }
            }
            let descriptor = self.transport.descriptor().expect("a socket");
            wait(&mut [Interest::read(descriptor)], Some(Duration::from_millis(100))).unwrap();
            let received = self.transport.receive(&mut batch).unwrap();
            for packet in &batch[..received] {
                let header = SaMad::new(&packet.mad);
                let Some((_, first, _)) = open.remove(&header.header().tid()) else { continue };
                assert_eq!(header.header().status(), Status::OK);
                took.push(first.elapsed());
            }
        }
        took.sort_unstable();
        took
    }
}

fn report(what: &str, took: &[Duration], cpu: [(Duration, Duration); 2], all: Duration) {
    let at = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    let each = |(before, after): (Duration, Duration)| {
        (after - before).as_secs_f64() * 1e6 / took.len() as f64
    };
    eprintln!(
        "{what}: p50 {:.2} ms, p99 {:.2} ms; CPU a write {:.0} µs at ibsm, {:.0} µs at ibsa; \
         {:.0}/s",
        at(0.5),
        at(0.99),
        each(cpu[0]),
        each(cpu[1]),
        took.len() as f64 / all.as_secs_f64(),
    );
}

fn responder(subnet: &Subnet, name: &str, listen: SocketAddr) -> Program {
    let (sm, listen) = (subnet.url(), listen.to_string());
    let args = ["--sm", &sm, "--name", name, "--transport", "udp", "--listen", &listen];
    subnet.sandbox.ours("ibsa", name, &args)
}

#[test]
#[ignore = "takes minutes; for figures"]
fn what_a_registry_of_200_000_records_costs() {
    let subnet = Subnet::new("registry-scale");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    let listen = free_address();
    let ibsa = responder(&subnet, "ibsa-1", listen);
    ibsa.wait_for("serving generation");
    let hosts = hosts(&runtime.block_on(subnet.snapshot()));
    let host = |n: u64| hosts[(n % hosts.len() as u64) as usize];
    let count = hosts.len() as u64;
    let transport = Udp::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    let mut clients = Clients { transport, to: listen, tid: 0 };
    let mgid = |n: u64| {
        let mut mgid = [0; 16];
        (mgid[0], mgid[1]) = (0xFF, 0x12);
        mgid[8..].copy_from_slice(&(n + 1).to_be_bytes());
        Gid(mgid)
    };
    let set = |n: u64, tid| (host(n), request::service(Method::SET, host(n), tid, n, 0));

    let mut measured =
        |what: &str, writes, window, make: &dyn Fn(u64, u64) -> (Host, [u8; 256])| {
            let (began, before) = (Instant::now(), (ibsm.cpu(), ibsa.cpu()));
            let took = clients.ask(writes, window, make);
            let cpu = [(before.0, ibsm.cpu()), (before.1, ibsa.cpu())];
            report(what, &took, cpu, began.elapsed());
        };
    measured("services, few", 2_000, 1, &set);
    measured("services, 512 at a time", SERVICES, 512, &set);
    measured("members, 512 at a time", GROUPS * count, 512, &|n, tid| {
        let host = host(n);
        (host, request::join(host, tid, mgid(n / count), 1))
    });
    measured("subscriptions, 512 at a time", SUBSCRIPTIONS * count, 512, &|n, tid| {
        let trap = 1_000 + (n / count) as u16;
        // Each for another trap; the QP is the sender's.
        (host(n), request::subscribe(tid, trap, Qpn(1), true))
    });
    eprintln!("load {:?}; now one at a time among all of them", load_average());
    measured("services", WRITES, 1, &|n, tid| set(SERVICES + n, tid));
    measured("joins of new groups", WRITES, 1, &|n, tid| {
        (host(n), request::join(host(n), tid, mgid(GROUPS + n), 1))
    });
    measured("subscriptions again", WRITES, 1, &|n, tid| {
        (host(n), request::subscribe(tid, 1_000 + (n / count) as u16, Qpn(1), true))
    });
    measured("aliases", 200, 1, &|n, tid| {
        let alias = 0xA11A_0000 | n;
        (host(n), request::alias(Method::SET, host(n), tid, 1 + (n % 7) as u8, alias))
    });
    eprintln!(
        "memory in KiB, now and at most: ibsm {:?}, ibsa {:?}",
        ibsm.memory_kib(),
        ibsa.memory_kib()
    );

    let began = Instant::now();
    let other = responder(&subnet, "ibsa-2", free_address());
    other.wait_for("serving generation");
    eprintln!("first full sync: {:.2?}, CPU {:.2?}", began.elapsed(), other.cpu());

    let began = Instant::now();
    ibsm.kill_and_wait();
    ibsm = subnet.ibsm(&[]);
    let line = ibsm.wait_for("registry read");
    eprintln!("restart: read after {:.2?}", began.elapsed());
    ibsm.wait_for("SUBNET UP");
    eprintln!("restart: up after {:.2?}, CPU {:.2?}: {line}", began.elapsed(), ibsm.cpu());
    clients.ask(1, 1, |n, tid| set(SERVICES * 2 + n, tid));
    eprintln!("restart: a write answered after {:.2?}", began.elapsed());
    eprintln!("load {:?}", load_average());
}
