//! How the answer rate grows with responders: 1, 2, 4 and 8 of them on this machine, queried
//! directly, each requester always at the same one, and through the front door; the CPU time of
//! each part; and a model for machines where responders have cores of their own.
//!
//! The model: `total(n) = min(n * r, d)`. `r` is the number of answers of a responder per second of
//! CPU time here, with a core to itself; `d` is what the front door forwards per second of the SM's
//! one thread, if clients send through it. `d` does not apply to clients that send to responders
//! directly (redirected or sharded). The model assumes that requesters are distributed evenly, that
//! a responder has a core like the one here, and that no link or switch is full.

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::published;
use benches::sandbox::{Program, Sandbox, free_address};
use ib_mad::netlist::{Net, NodeKind};
use ib_mad::transport::ibsim::{Ibsim, IbsimOptions, Role};
use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use ib_mad::types::{Lid, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::Status;
use ib_mad::wire::sa::SaMad;
use umad_feed::book::Book;
use umad_feed::session::{Next, Session};

use crate::books::{Host, Kind, hosts};
use crate::programs::process_cpu;

const RESPONDERS: [usize; 4] = [1, 2, 4, 8];
/// Open requests per responder, and per client at the front door.
const OPEN: u64 = 64;
const OPEN_AT_DOOR: u64 = 8;
/// Hosts that send through the front door.
const CLIENTS: usize = 8;
/// Maximum number of responders in the model.
const MODELLED: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The result of a number of responders.
struct Measured {
    responders: usize,
    /// Answers per second.
    rate: f64,
    /// CPU time per answer at the responders, and at the SM.
    responder_ns: f64,
    sm_ns: f64,
}

/// Measures each for `length` and prints the results.
pub(crate) fn report(net: &Net, sandbox: &Sandbox, length: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("an async runtime");
    let publish = free_address().to_string();
    let (url, state) = (format!("http://{publish}"), sandbox.path("state").display().to_string());
    let mut argv = vec!["--transport", "ibsim", "--socket", sandbox.socket()];
    argv.extend(["--publish", &publish, "--state-dir", &state]);
    let ibsm = sandbox.ours("ibsm", "ibsm", &argv);
    ibsm.wait_for("SUBNET UP");
    let hosts = hosts(&runtime.block_on(published::snapshot(&url)));
    let book = Arc::new(Kind::PathByGids.book(&hosts));

    let mut responders: Vec<(Program, SocketAddr)> = Vec::new();
    let (mut direct, mut door) = (Vec::new(), Vec::new());
    for count in RESPONDERS {
        eprintln!("{count} responders");
        while responders.len() < count {
            let before = process_cpu(&ibsm);
            responders.push(responder(sandbox, &url, responders.len()));
            let cost = (process_cpu(&ibsm) - before).as_secs_f64() * 1e3;
            println!(
                "responder {}: {cost:.1} ms of CPU time of ibsm until it serves",
                responders.len()
            );
        }
        direct.push(measure(&ibsm, &responders, || ask_directly(&responders, &book, length)));
        door.push(measure(&ibsm, &responders, || ask_at_door(net, sandbox, &book, &hosts, length)));
    }
    for (way, measured) in [("queried directly", &direct), ("through the front door", &door)] {
        println!("\n{way:<24} {:>12} {:>18} {:>12}", "answers/s", "CPU at responders", "at the SM");
        for Measured { responders, rate, responder_ns, sm_ns } in measured {
            println!("{responders:>24} {rate:>12.0} {responder_ns:>15.0} ns {sm_ns:>9.0} ns");
        }
    }
    model(&direct, &door);
    let ports = hosts.len() as f64;
    println!();
    for (name, program) in [("ibsm", &ibsm), ("ibsa", &responders[0].0)] {
        let kib = program.memory_kib().0 as f64;
        println!("memory of {name}: {:.1} MB, {:.2} KiB per host port", kib / 1024.0, kib / ports);
    }
}

fn responder(sandbox: &Sandbox, url: &str, number: usize) -> (Program, SocketAddr) {
    let (name, to) = (format!("r{number}"), free_address());
    let listen = to.to_string();
    let argv = ["--sm", url, "--name", &name, "--transport", "udp", "--listen", &listen];
    let program = sandbox.ours("ibsa", &name, &argv);
    program.wait_for("serving generation");
    (program, to)
}

fn measure(
    ibsm: &Program,
    responders: &[(Program, SocketAddr)],
    ask: impl FnOnce() -> (u64, Duration),
) -> Measured {
    let clocks = || {
        let responders = responders.iter().map(|(program, _)| process_cpu(program)).sum();
        [process_cpu(ibsm), responders]
    };
    let before: [Duration; 2] = clocks();
    let (answers, took) = ask();
    let after = clocks();
    let each = |i: usize| (after[i] - before[i]).as_nanos() as f64 / answers.max(1) as f64;
    let rate = answers as f64 / took.as_secs_f64();
    Measured { responders: responders.len(), rate, responder_ns: each(1), sm_ns: each(0) }
}

/// Each responder gets requests from requesters of its own. Returns answers and time.
fn ask_directly(
    responders: &[(Program, SocketAddr)],
    book: &Arc<Book>,
    length: Duration,
) -> (u64, Duration) {
    let share = |number: usize| {
        let of_it = book.0.iter().skip(number).step_by(responders.len()).cloned();
        Session::new(Arc::new(Book(of_it.collect())), number as u16, u64::MAX, OPEN)
    };
    let sessions: Vec<Session> = (0..responders.len()).map(share).collect();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut udp = Udp::bind(&UdpOptions::new(any)).expect("loopback has a free port");
    let mut batch = vec![Packet::default(); OPEN as usize];
    let begin = Instant::now();
    let mut moved = begin;
    while begin.elapsed() < length {
        for (session, (_, to)) in sessions.iter().zip(responders) {
            let mut filled = 0;
            while filled < batch.len() {
                let packet = &mut batch[filled];
                let Next::Fed(request) = session.next(&mut packet.mad) else { break };
                (packet.address.lid, packet.address.qpn) = (Lid(request.lid), Qpn(request.qpn));
                packet.carrier.peer = Some(*to);
                filled += 1;
            }
            let mut sent = 0;
            while sent < filled {
                sent += udp.send(&batch[sent..filled]).expect("loopback sends");
            }
        }
        let descriptor = udp.descriptor().expect("a socket");
        wait(&mut [Interest::read(descriptor)], Some(Duration::from_millis(100))).expect("polls");
        loop {
            let received = udp.receive(&mut batch).expect("loopback receives");
            for packet in &batch[..received] {
                let number = packet.mad[11]; // The last byte of a session's sign.
                sessions[usize::from(number)].take(&packet.mad, MAD_LEN);
                moved = Instant::now();
            }
            if received < batch.len() {
                break;
            }
        }
        assert!(moved.elapsed() < Duration::from_secs(10), "responders do not answer");
    }
    for session in &sessions {
        let tally = session.tally();
        assert_eq!(tally.failed, 0, "{}", tally.failure);
    }
    (sessions.iter().map(Session::done).sum(), begin.elapsed())
}

/// Some hosts send to the SM's port, over the simulated fabric. Returns answers and time.
fn ask_at_door(
    net: &Net,
    sandbox: &Sandbox,
    book: &Book,
    hosts: &[Host],
    length: Duration,
) -> (u64, Duration) {
    let nodes = net.nodes().iter().filter(|node| node.kind == NodeKind::Ca);
    let client = |node: &ib_mad::netlist::Node| {
        let socket = sandbox.socket().to_owned();
        let (node, role) = (Some(node.id.clone()), Role::Client);
        Ibsim::connect(&IbsimOptions { socket, node, role, ..IbsimOptions::default() })
            .expect("the simulated fabric accepts clients")
    };
    let mut clients: Vec<(Ibsim, u64)> =
        nodes.skip(1).take(CLIENTS).map(|node| (client(node), 0)).collect();
    let door = clients[0].0.local_port().expect("a port").sm_lid;
    assert!(hosts.iter().any(|host| host.lid == door), "the SM is at a host");
    let mut requests = book.0.iter().cycle();
    let (mut answers, mut tid, begin) = (0, 0u64, Instant::now());
    let mut batch = vec![Packet::default(); OPEN_AT_DOOR as usize];
    while begin.elapsed() < length {
        let mut is_idle = true;
        for (client, open) in &mut clients {
            let count = (OPEN_AT_DOOR - *open) as usize;
            for packet in &mut batch[..count] {
                packet.mad = requests.next().expect("a cycle").mad;
                tid += 1;
                SaMad::new(&mut packet.mad).header_mut().set_tid(tid);
                packet.address = ib_mad::transport::Address::gsi(door);
            }
            *open += client.send(&batch[..count]).expect("the fabric is there") as u64;
            let received = client.receive(&mut batch).expect("the fabric is there");
            for packet in &batch[..received] {
                let status = SaMad::new(&packet.mad).header().status();
                assert_eq!(status, Status::OK, "an answer through the front door");
            }
            *open = open.saturating_sub(received as u64);
            answers += received as u64;
            is_idle &= received == 0;
        }
        if is_idle {
            let descriptors = clients.iter().filter_map(|(client, _)| client.descriptor());
            let mut interests: Vec<_> = descriptors.map(Interest::read).collect();
            wait(&mut interests, Some(Duration::from_millis(100))).expect("polls");
        }
    }
    (answers, begin.elapsed())
}

/// The modelled answers of responders with cores of their own.
fn model(direct: &[Measured], door: &[Measured]) {
    let least = |of: &[Measured], cost: fn(&Measured) -> f64| {
        of.iter().map(cost).fold(f64::INFINITY, f64::min)
    };
    let responder = 1e9 / least(direct, |measured| measured.responder_ns);
    let passes = 1e9 / least(door, |measured| measured.sm_ns);
    println!("\nmodel, one core each: a responder {responder:.0}/s, the front door {passes:.0}/s");
    println!("{:>24} {:>18} {:>24}", "responders", "queried directly", "through the front door");
    for n in MODELLED {
        let all = f64::from(n) * responder;
        println!("{n:>24} {all:>18.0} {:>24.0}", all.min(passes));
    }
}
