//! How long an order to add a GUID to a partition takes until the responder answers by it, at 1,000
//! orders a second on 10,000 hosts, with the real programs. For figures, not for CI:
//!
//! ```text
//! cargo test --release -p benches --test it partition_latency -- --ignored --nocapture
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Host, Subnet, hosts, variable};
use benches::cpu::load_average;
use benches::sandbox::{PATIENCE, binary, free_address};
use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Address, Interest, Packet, Transport, wait};
use ib_mad::types::PKey;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::{PathRecord, path};
use ib_mad::wire::sa::{SaMad, attribute};

/// Orders a second, and connections that they are sent on.
const RATE: u64 = 1_000;
const CONNECTIONS: u64 = 8;
const PARTITIONS: u64 = 32;
/// One in so many orders is followed to the answer.
const SAMPLE: u64 = 10;
/// Time between two queries of an order.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// The full P_Key that the host with this number is added to.
fn pkey(host: u64) -> PKey {
    PKey(0x8010 + (host % PARTITIONS) as u16)
}

/// The user `op` with the password `secret`.
const AUTHORIZATION: &str = "Authorization: Basic b3A6c2VjcmV0";

/// A connection to the API.
struct Client(TcpStream);

impl Client {
    fn new(api: SocketAddr) -> Self {
        Self(TcpStream::connect(api).unwrap())
    }

    /// Adds a port to a partition.
    fn add(&mut self, host: Host, pkey: PKey) {
        let guid = u64::from_be_bytes(host.gid.0[8..].try_into().unwrap());
        let body = format!(
            r#"{{"pkey": "{:#x}", "guids": ["{guid:016x}"], "membership": "full"}}"#,
            pkey.base()
        );
        let len = body.len();
        let request = format!(
            "POST /ufmRest/resources/pkeys/ HTTP/1.1\r\nHost: localhost\r\n{AUTHORIZATION}\r\n\
             Content-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
        );
        self.0.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let read = self.0.read(&mut piece).unwrap();
            assert!(read > 0, "the API closed a connection");
            answer.extend_from_slice(&piece[..read]);
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let head = head.to_lowercase();
            let len = head.split_once("content-length: ").map_or("0", |(_, len)| len);
            let len: usize = len.lines().next().unwrap().parse().unwrap();
            if body.len() >= len {
                assert!(head.starts_with("http/1.1 200"), "{text}");
                return;
            }
        }
    }
}

/// A query for the path from `source`, sent from there.
fn query(tid: u64, source: Host, destination: Host, pkey: PKey, to: SocketAddr) -> Packet {
    use path::component;
    let mask = component::SGID
        | component::DGID
        | component::PKEY
        | component::REVERSIBLE
        | component::NUMB_PATH;
    let mut packet = Packet { address: Address::gsi(source.lid), ..Packet::default() };
    let mut mad = SaMad::new(&mut packet.mad);
    mad.write_request(Method::GET, attribute::PATH_RECORD, tid, mask);
    let mut record = PathRecord::of_mut(mad.data_mut());
    record.set_reversible(true).set_numb_path(1);
    record.set_dgid(destination.gid).set_sgid(source.gid).set_pkey(pkey);
    packet.carrier.peer = Some(to);
    packet
}

/// An order that is followed.
struct Order {
    host: u64,
    sent: Instant,
    next_query: Instant,
}

/// Queries for each order until it is in force; returns how long that took, sorted.
fn follow(orders: &mpsc::Receiver<Order>, hosts: &[Host], responder: SocketAddr) -> Vec<Duration> {
    let mut transport = Udp::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    let (mut open, mut took): (Vec<Order>, Vec<Duration>) = (Vec::new(), Vec::new());
    let mut batch = vec![Packet::default(); 64];
    let mut is_over = false;
    while !is_over || !open.is_empty() {
        loop {
            match orders.try_recv() {
                Ok(order) => open.push(order),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => {
                    is_over = true;
                    break;
                }
            }
        }
        let now = Instant::now();
        for order in open.iter_mut().filter(|order| order.next_query <= now) {
            assert!(order.sent.elapsed() < PATIENCE, "host {} has no path", order.host);
            order.next_query = now + POLL_INTERVAL;
            let destination = hosts[order.host as usize];
            let query = query(order.host, hosts[0], destination, pkey(order.host), responder);
            transport.send(&[query]).unwrap();
        }
        let descriptor = transport.descriptor().expect("a socket");
        wait(&mut [Interest::read(descriptor)], Some(Duration::from_millis(1))).unwrap();
        let received = transport.receive(&mut batch).unwrap();
        for packet in &batch[..received] {
            let header = SaMad::new(&packet.mad);
            if header.header().status() == Status::OK {
                let tid = header.header().tid();
                if let Some(at) = open.iter().position(|order| order.host == tid) {
                    took.push(open.swap_remove(at).sent.elapsed());
                }
            }
        }
    }
    took.sort_unstable();
    took
}

#[test]
#[ignore = "takes a minute; for figures"]
fn from_an_order_to_the_answer_by_it() {
    let subnet = Subnet::of("partition-latency", 144, variable("HOSTS", 10_000) as u32);
    let mut password = Command::new(binary("ibsmctl"))
        .args(["password", "op"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    password.stdin.take().unwrap().write_all(b"secret\n").unwrap();
    let users = subnet.sandbox.path("users");
    fs::write(&users, password.wait_with_output().unwrap().stdout).unwrap();
    let api = free_address();
    let ibsm =
        subnet.ibsm(&["--api", &api.to_string(), "--api-users", users.to_str().expect("UTF-8")]);
    ibsm.wait_for("SUBNET UP");
    let listen = free_address();
    let (url, listen_text) = (subnet.url(), listen.to_string());
    let args = ["--sm", &url, "--name", "r1", "--transport", "udp", "--listen", &listen_text];
    let ibsa = subnet.sandbox.ours("ibsa", "ibsa", &args);
    ibsa.wait_for("serving generation");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let hosts = hosts(&runtime.block_on(subnet.snapshot()));

    let mut client = Client::new(api);
    (0..PARTITIONS).for_each(|number| client.add(hosts[0], pkey(number)));
    let count = variable("ORDERS", hosts.len() as u64 - 1).min(hosts.len() as u64 - 1);
    let (send, orders) = mpsc::channel();
    let began = Instant::now() + Duration::from_secs(1);
    let before = (ibsm.cpu(), ibsa.cpu());
    let (mut answered, took) = thread::scope(|scope| {
        let senders: Vec<_> = (0..CONNECTIONS)
            .map(|connection| {
                let (send, hosts) = (send.clone(), &hosts);
                scope.spawn(move || {
                    let mut client = Client::new(api);
                    let mut answered = Vec::new();
                    for host in (1..=count).filter(|host| host % CONNECTIONS == connection) {
                        let due = began + Duration::from_micros(host * 1_000_000 / RATE);
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                        let sent = Instant::now();
                        client.add(hosts[host as usize], pkey(host));
                        answered.push(sent.elapsed());
                        if host % SAMPLE == 0 {
                            send.send(Order { host, sent, next_query: sent }).unwrap();
                        }
                    }
                    answered
                })
            })
            .collect();
        drop(send);
        let took = follow(&orders, &hosts, listen);
        let answered: Vec<Duration> =
            senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect();
        (answered, took)
    });
    let elapsed = began.elapsed();
    answered.sort_unstable();
    for (what, took) in [("acknowledged", &answered), ("answered by it", &took)] {
        let at = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e3;
        eprintln!(
            "{what}: {} orders, p50 {:.1} ms, p90 {:.1}, p99 {:.1}, at most {:.1}",
            took.len(),
            at(0.5),
            at(0.9),
            at(0.99),
            took[took.len() - 1].as_secs_f64() * 1e3
        );
    }
    eprintln!(
        "{count} orders in {elapsed:.1?}; CPU: ibsm {:.1?}, ibsa {:.1?}; load {:?}",
        ibsm.cpu() - before.0,
        ibsa.cpu() - before.1,
        load_average()
    );
}
