//! `ibsm` and `ibsa` as they run, for rows that need both: writes, and answers while a link fails.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::sandbox::{Program, Sandbox, free_address};
use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use ib_mad::types::{Lid, Qpn};
use ib_mad::wire::MAD_LEN;
use umad_feed::book::Book;
use umad_feed::clock::{Of, cpu};
use umad_feed::order::Report;
use umad_feed::session::{Next, Session};

use crate::rows::Processes;

/// Threads of `ibsm` that handle a write. The others compute multicast trees and send SMPs.
const WRITE_THREADS: [&str; 2] = ["registry", "publish"];
/// Time after which a missing answer is a failure.
const PATIENCE_OF_CLIENTS: Duration = Duration::from_secs(20);

/// A manager and a responder.
pub(crate) struct Programs {
    pub(crate) ibsm: Program,
    pub(crate) ibsa: Program,
    pub(crate) up: Duration,
    /// CPU time of `ibsm` when the subnet was up.
    pub(crate) up_cpu: Duration,
    pub(crate) url: String,
    udp: Udp,
    to: SocketAddr,
    serial: u16,
}

impl Programs {
    /// Starts them and waits until queries are answered. `store`: where registrations are kept, if
    /// not in a file.
    pub(crate) fn start(sandbox: &Sandbox, policy: Option<&Path>, store: Option<&str>) -> Self {
        let (publish, to) = (free_address().to_string(), free_address());
        let url = format!("http://{publish}");
        let state = sandbox.path("state").display().to_string();
        let socket = sandbox.socket();
        let mut argv = vec!["--transport", "ibsim", "--socket", socket];
        argv.extend(["--publish", &publish, "--state-dir", &state]);
        let policy = policy.map(|policy| policy.display().to_string());
        if let Some(policy) = &policy {
            argv.extend(["-Q", "-Y", policy]);
        }
        argv.extend(store.iter().flat_map(|store| ["--store", store]));
        let begin = Instant::now();
        let ibsm = sandbox.ours("ibsm", "ibsm", &argv);
        ibsm.wait_for("SUBNET UP");
        let (up, up_cpu) = (begin.elapsed(), process_cpu(&ibsm));
        let listen = to.to_string();
        let argv = ["--sm", &url, "--transport", "udp", "--listen", &listen];
        let ibsa = sandbox.ours("ibsa", "ibsa", &argv);
        ibsa.wait_for("serving generation");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let udp = Udp::bind(&UdpOptions::new(any)).expect("loopback has a free port");
        Self { ibsm, ibsa, up, up_cpu, url, udp, to, serial: 0 }
    }

    /// Sends `total` requests of a book by UDP, with at most `window` open.
    pub(crate) fn run(
        &mut self,
        book: &Arc<Book>,
        total: u64,
        window: u64,
        pause: Duration,
    ) -> Asked {
        self.serial += 1;
        let session = Session::new(Arc::clone(book), self.serial, total, window);
        let before = self.clocks();
        let (begin, mut longest, mut moved) = (Instant::now(), Duration::ZERO, Instant::now());
        let mut batch = vec![Packet::default(); 64];
        let mut answers = batch.clone();
        while session.done() < total {
            let asked = Instant::now();
            // As many as may be open: fewer would share a commit, and wait for each other.
            loop {
                let mut filled = 0;
                while filled < batch.len() {
                    let packet = &mut batch[filled];
                    let Next::Fed(request) = session.next(&mut packet.mad) else { break };
                    packet.address.lid = Lid(request.lid);
                    packet.address.qpn = Qpn(request.qpn);
                    packet.carrier.peer = Some(self.to);
                    filled += 1;
                }
                let mut sent = 0;
                while sent < filled {
                    sent += self.udp.send(&batch[sent..filled]).expect("loopback sends");
                }
                if filled < batch.len() {
                    break;
                }
            }
            let descriptor = self.udp.descriptor().expect("a socket");
            wait(&mut [Interest::read(descriptor)], Some(Duration::from_secs(1))).expect("polls");
            loop {
                let received = self.udp.receive(&mut answers).expect("loopback receives");
                for packet in &answers[..received] {
                    session.take(&packet.mad, MAD_LEN);
                    moved = Instant::now();
                }
                if received < answers.len() {
                    break;
                }
            }
            assert!(moved.elapsed() < PATIENCE_OF_CLIENTS, "an answer is missing");
            if !pause.is_zero() {
                longest = longest.max(asked.elapsed());
                std::thread::sleep(pause);
            }
        }
        let after = self.clocks();
        let spent = std::array::from_fn(|i| after[i].saturating_sub(before[i]));
        let [ibsm, writing, ibsa]: [Duration; 3] = spent;
        let none = Duration::ZERO;
        let report = Report {
            tally: session.tally(),
            wall: begin.elapsed(),
            query_cpu: writing + ibsa,
            cpu: ibsm + ibsa,
            longest,
        };
        Asked { report, processes: Processes { writing, ibsm, ibsa, etcd: none } }
    }

    /// CPU time of ibsm, of its threads that handle writes, and of ibsa.
    fn clocks(&self) -> [Duration; 3] {
        let threads = threads_cpu(self.ibsm.pid());
        let writing = threads.iter().filter(|(name, _)| WRITE_THREADS.contains(&&**name));
        [process_cpu(&self.ibsm), writing.map(|(_, time)| *time).sum(), process_cpu(&self.ibsa)]
    }
}

/// The results of requests, and the CPU time of each program.
pub(crate) struct Asked {
    pub(crate) report: Report,
    pub(crate) processes: Processes<Duration>,
}

/// CPU time of a program, in nanoseconds.
pub(crate) fn process_cpu(program: &Program) -> Duration {
    cpu(Of::Process(program.pid() as libc::pid_t))
}

/// CPU time of the threads of a process, by name.
pub(crate) fn threads_cpu(pid: u32) -> Vec<(String, Duration)> {
    let time = |tid| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
    };
    let threads = umad_feed::clock::threads(pid).into_iter();
    threads.filter_map(|(tid, name)| Some((name, time(tid)?))).collect()
}

/// Waits until `program` has logged `text` that many times; returns whether it has.
pub(crate) fn has_said(program: &Program, text: &str, times: usize) -> bool {
    program.log().matches(text).count() >= times
}
