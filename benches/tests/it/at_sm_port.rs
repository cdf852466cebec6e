//! A responder at the subnet manager's own port (`ibsa --at-sm-port`): queries to the manager's LID
//! are answered whichever of the two programs is killed, stopped or replaced. The kernel is
//! simulated by the library of `ibfabric exec`, whose device files outlive the process that opened
//! them, as the kernel's do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::support::scrape::Scrape;
use crate::support::variable;
use benches::sandbox::{
    NET_EXAMPLES, PATIENCE, Program, Sandbox, await_status, binary, can_interoperate, free_address,
};
use ib_mad::transport::ibsim::{Ibsim, IbsimOptions};
use ib_mad::transport::{Address, Interest, Packet, Transport, wait};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::{PathRecord, path};
use ib_mad::wire::sa::{SaMad, attribute};

const NET: &str = "net.2sw2path4hca";
const CLIENT: &str = "Hca2";
/// Queries that must be answered in each state of the programs.
const ENOUGH: u64 = 200;

/// A fabric, and the addresses at which managers publish, by their nodes.
struct Site {
    sandbox: Sandbox,
    publish: BTreeMap<&'static str, String>,
    _fabric: Program,
}

impl Site {
    /// `None` where the net file is not installed.
    fn new(name: &str, managers: &[&'static str]) -> Option<Self> {
        let net = PathBuf::from(NET_EXAMPLES).join(NET);
        can_interoperate(&["saquery"]).then(|| Self::of(Sandbox::new(name), &net, managers))
    }

    fn of(sandbox: Sandbox, net: &Path, managers: &[&'static str]) -> Self {
        let fabric = sandbox.ibfabric(net);
        let settings = "sminfo_polling_timeout 200\npolling_retry_number 2\n";
        fs::write(sandbox.path("opensm.conf"), settings).expect("the file is written");
        let publish = managers.iter().map(|&node| (node, free_address().to_string())).collect();
        Self { sandbox, publish, _fabric: fabric }
    }

    fn text(&self, name: &str) -> String {
        self.sandbox.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// A manager at `node`.
    fn ibsm(&self, node: &str, more: &[&str]) -> Program {
        let (ibsm, state) = (binary("ibsm"), self.text(&format!("state-{node}")));
        let settings = self.text("opensm.conf");
        let mut argv = vec![ibsm.to_str().expect("UTF-8"), "--transport", "umad"];
        argv.extend(["--publish", &self.publish[node], "--state-dir", &state]);
        argv.extend(["-t", "100", "-F", &settings]);
        argv.extend(more);
        self.sandbox.exec_program(&format!("ibsm-{node}"), node, &argv)
    }

    /// A responder at the port of the manager at `node`.
    fn ibsa(&self, node: &str, name: &str, more: &[&str]) -> Program {
        let (ibsa, state) = (binary("ibsa"), self.text(&format!("state-{node}")));
        let mut argv = vec![ibsa.to_str().expect("UTF-8"), "--transport", "umad", "--at-sm-port"];
        argv.extend(["--sm-state-dir", &state, "--name", name, "--listen", "127.0.0.1:0"]);
        let urls = self.urls();
        argv.extend(urls.iter().flat_map(|url| ["--sm", url]));
        argv.extend(more);
        let program = self.sandbox.exec_program(name, node, &argv);
        program.wait_for("reading SA requests at the SM's port");
        program
    }

    /// A responder behind front doors.
    fn ibsa_behind(&self) -> Program {
        let urls = self.urls();
        let mut argv = vec!["--transport", "udp", "--listen", "127.0.0.1:0"];
        argv.extend(urls.iter().flat_map(|url| ["--sm", url]));
        let program = self.sandbox.ours("ibsa", "behind", &argv);
        program.wait_for("serving generation");
        program
    }

    fn urls(&self) -> Vec<String> {
        self.publish.keys().map(|node| self.url(node)).collect()
    }

    /// Where the manager at `node` publishes.
    fn url(&self, node: &str) -> String {
        format!("http://{}", self.publish[node])
    }

    /// What `ibsmctl status` prints for the manager at `node`, once that contains `text`.
    fn status(&self, node: &str, text: &str) -> String {
        self.status_where(node, text, |said| said.contains(text))
    }

    fn status_where(&self, node: &str, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let url = self.url(node);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (_, said) =
                self.sandbox.ours("ibsmctl", "ibsmctl", &["--sm", &url, "status"]).wait();
            if holds(&said) {
                return said;
            }
            assert!(Instant::now() < deadline, "no '{what}' in:\n{said}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn attach(&self, node: &str) -> Ibsim {
        let options = IbsimOptions {
            socket: self.sandbox.socket().to_owned(),
            node: Some(node.to_owned()),
            ..IbsimOptions::default()
        };
        Ibsim::connect(&options).expect("the simulator serves")
    }

    /// A storm of queries to the LID of `node`.
    fn storm(&self, node: &str, repeats: Repeats) -> Storm {
        let lid = self.attach(node).local_port().expect("a port").lid;
        Storm::start(self.attach(CLIENT), lid, repeats)
    }
}

/// Whether a client repeats a query that is not answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeats {
    /// Never: each packet is answered.
    Never,
    /// As RDMA CM does: what a responder had read is lost when it is killed.
    Soon,
}

/// Numbers of queries by result.
#[derive(Debug, Default)]
struct Tally {
    /// Those with an answer other than OK, by status.
    refused: BTreeMap<u16, u64>,
    unanswered: u64,
    longest: Duration,
}

/// A client that queries one LID, sixteen queries at a time.
struct Storm {
    answered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Tally>,
}

impl Storm {
    fn start(mut transport: Ibsim, sa: Lid, repeats: Repeats) -> Self {
        let (answered, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, stopped) = (Arc::clone(&answered), Arc::clone(&stop));
        let here = transport.local_port().expect("a port").lid;
        let thread = thread::spawn(move || {
            let (mut tally, mut tid) = (Tally::default(), 0);
            while !stopped.load(Relaxed) {
                let queries = [(); 16].map(|()| {
                    tid += 1;
                    query(sa, here, tid)
                });
                ask(&mut transport, &queries, repeats, &mut tally, &count);
            }
            tally
        });
        let storm = Self { answered, stop, thread };
        storm.pass();
        storm
    }

    /// Waits until [`ENOUGH`] further queries are answered.
    fn pass(&self) {
        let wanted = self.answered.load(Relaxed) + ENOUGH;
        let deadline = Instant::now() + PATIENCE;
        while self.answered.load(Relaxed) < wanted {
            assert!(Instant::now() < deadline, "queries are not answered any more");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it; every query must have been answered with OK.
    fn end(self) {
        self.pass();
        self.stop.store(true, Relaxed);
        let tally = self.thread.join().expect("the client does not fail");
        let answered = self.answered.load(Relaxed);
        let is_clean = tally.refused.is_empty() && tally.unanswered == 0;
        assert!(is_clean, "{answered} queries answered, {tally:?}");
    }
}

/// Get(PathRecord) between these LIDs.
fn query(sa: Lid, from: Lid, tid: u64) -> Packet {
    let mut packet = Packet::to(Address::gsi(sa));
    let mut mad = SaMad::new(&mut packet.mad);
    let mask = path::component::SLID | path::component::DLID;
    mad.write_request(Method::GET, attribute::PATH_RECORD, tid, mask);
    let mut record = PathRecord::new(&mut mad.data_mut()[..64]).expect("room for a record");
    record.set_slid(from).set_dlid(sa);
    packet
}

/// Sends queries and waits until all are answered, or 10 s.
fn ask(
    transport: &mut Ibsim,
    queries: &[Packet],
    repeats: Repeats,
    tally: &mut Tally,
    answered: &AtomicU64,
) {
    let tid_of = |packet: &Packet| SaMad::new(&packet.mad).header().tid() as u32;
    let begun = Instant::now();
    let mut open: BTreeMap<u32, &Packet> =
        queries.iter().map(|query| (tid_of(query), query)).collect();
    let mut sent = begun;
    transport.send(queries).expect("the simulator serves");
    let mut batch = vec![Packet::default(); 16];
    while !open.is_empty() && begun.elapsed() < Duration::from_secs(10) {
        let got = transport.receive(&mut batch).expect("the simulator serves");
        for packet in &batch[..got] {
            let mad = SaMad::new(&packet.mad);
            if open.remove(&tid_of(packet)).is_none() {
                continue;
            }
            let status = mad.header().status();
            if status == Status::OK {
                answered.fetch_add(1, Relaxed);
            } else {
                *tally.refused.entry(status.0).or_default() += 1;
            }
        }
        if got == 0 {
            let descriptor = transport.descriptor().expect("a socket");
            wait(&mut [Interest::read(descriptor)], Some(Duration::from_millis(20)))
                .expect("a socket can be waited for");
        }
        if repeats == Repeats::Soon && sent.elapsed() > Duration::from_millis(200) {
            sent = Instant::now();
            let again: Vec<Packet> = open.values().map(|query| (*query).clone()).collect();
            transport.send(&again).expect("the simulator serves");
        }
    }
    tally.unanswered += open.len() as u64;
    tally.longest = tally.longest.max(begun.elapsed());
}

/// Queries that are sent at a steady rate, whether or not earlier ones are answered.
#[derive(Debug, Default)]
struct Steady {
    /// Times from sending to the answer, in microseconds, in ascending order.
    latencies: Vec<u64>,
    /// Answers other than OK, by status.
    refused: BTreeMap<u16, u64>,
    unanswered: usize,
}

impl Steady {
    /// Sends `rate` queries a second until `stop` is set, and waits 5 s for the last answers.
    fn run(mut transport: Ibsim, sa: Lid, rate: u64, stop: &AtomicBool) -> Self {
        let here = transport.local_port().expect("a port").lid;
        let (mut all, mut open) = (Self::default(), BTreeMap::new());
        let begun = Instant::now();
        let (mut sent, mut last) = (0, begun);
        let mut batch = vec![Packet::default(); 16];
        while !stop.load(Relaxed) || (!open.is_empty() && last.elapsed() < Duration::from_secs(5)) {
            if !stop.load(Relaxed) {
                let due = begun.elapsed().as_micros() as u64 * rate / 1_000_000;
                for tid in sent + 1..=due {
                    last = Instant::now();
                    open.insert(tid, last);
                    transport.send(&[query(sa, here, tid)]).expect("the simulator serves");
                }
                sent = sent.max(due);
            }
            let got = transport.receive(&mut batch).expect("the simulator serves");
            for packet in &batch[..got] {
                let mad = SaMad::new(&packet.mad);
                let tid = mad.header().tid() & 0xFFFF_FFFF;
                let Some(since) = open.remove(&tid) else { continue };
                match mad.header().status() {
                    Status::OK => all.latencies.push(since.elapsed().as_micros() as u64),
                    other => *all.refused.entry(other.0).or_default() += 1,
                }
            }
            if got == 0 {
                let descriptor = transport.descriptor().expect("a socket");
                wait(&mut [Interest::read(descriptor)], Some(Duration::from_micros(200)))
                    .expect("a socket can be waited for");
            }
        }
        all.unanswered = open.len();
        all.latencies.sort_unstable();
        all
    }

    /// The latency that this share of answers does not exceed, milliseconds.
    fn percentile(&self, share: f64) -> f64 {
        let at = (self.latencies.len() as f64 * share).ceil() as usize;
        self.latencies.get(at.saturating_sub(1)).map_or(0.0, |us| *us as f64 / 1e3)
    }

    fn report(&self, what: &str) {
        let [p50, p9999, most] = [0.5, 0.9999, 1.0].map(|share| self.percentile(share));
        eprintln!(
            "{what}: {} answered, {} refused, {} unanswered; p50 {p50:.2} ms, p99.99 {p9999:.2} \
             ms, longest {most:.2} ms",
            self.latencies.len(),
            self.refused.values().sum::<u64>(),
            self.unanswered,
        );
        assert!(self.refused.is_empty() && self.unanswered == 0, "{what}: {:?}", self.refused);
    }
}

/// Every query at a steady rate is answered, with OK, however often the manager is killed. `KILLS`
/// (4) is how often, `KILLS_RATE` (1000) the queries a second; the latencies are printed, also of a
/// run of the same length without kills.
#[test]
fn a_steady_load_at_the_managers_port_is_answered_while_it_is_killed_again_and_again() {
    const NODE: &str = "Hca1";
    let (kills, rate) = (variable("KILLS", 4), variable("KILLS_RATE", 1000));
    let Some(site) = Site::new("at-port-steady", &[NODE]) else { return };
    let mut ibsm = site.ibsm(NODE, &[]);
    ibsm.wait_for("SUBNET UP");
    let _ibsa = site.ibsa(NODE, "r1", &[]);
    site.status(NODE, "SA at SM port   r1 (process ");
    let lid = site.attach(NODE).local_port().expect("a port").lid;
    let run = |act: &mut dyn FnMut()| {
        let (transport, stop) = (site.attach(CLIENT), Arc::<AtomicBool>::default());
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || Steady::run(transport, lid, rate, &stopped));
        let begun = Instant::now();
        act();
        let took = begun.elapsed();
        stop.store(true, Relaxed);
        (thread.join().expect("the client does not fail"), took)
    };
    let (killed, took) = run(&mut || {
        for _ in 0..kills {
            ibsm.kill_and_wait();
            ibsm = site.ibsm(NODE, &[]);
            pin_to_its_core(&ibsm);
            site.status(NODE, "SA at SM port   r1 (process ");
        }
    });
    let (quiet, _) = run(&mut || thread::sleep(took));
    quiet.report("without kills");
    killed.report(&format!("{kills} kills"));
}

/// With `KILLS_CPU`, the manager runs on that core alone.
fn pin_to_its_core(ibsm: &Program) {
    if let Ok(core) = std::env::var("KILLS_CPU") {
        let pid = ibsm.pid().to_string();
        let pinned = Command::new("taskset").args(["-acp", &core, &pid]).output();
        assert!(pinned.expect("taskset runs").status.success());
    }
}

/// Regression: when `ibsm` died, queries at its port were unanswered on a simulated fabric, and
/// answered with status 0x000c on Linux, until a manager ran again: the process that reads them was
/// the manager.
#[test]
fn queries_at_the_managers_port_are_answered_while_it_is_killed_and_restarted() {
    const NODE: &str = "Hca1";
    let Some(site) = Site::new("at-port-sm", &[NODE]) else { return };
    let mut ibsm = site.ibsm(NODE, &[]);
    ibsm.wait_for("SUBNET UP");
    let _ibsa = site.ibsa(NODE, "r1", &[]);
    site.status(NODE, "SA at SM port   r1 (process ");
    let storm = site.storm(NODE, Repeats::Never);
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGKILL] {
        ibsm.signal(signal);
        ibsm.wait();
        storm.pass();
        ibsm = site.ibsm(NODE, &[]);
        site.status(NODE, "SA at SM port   r1 (process ");
        ibsm.wait_for("SUBNET UP");
        storm.pass();
    }
    storm.end();
}

/// The port of a standby is served with data that its master publishes, so that it answers before
/// clients learn its LID.
#[test]
fn queries_are_answered_at_both_ports_through_a_failover() {
    const MASTER: &str = "Hca1";
    const STANDBY: &str = "Hca3";
    let Some(site) = Site::new("at-port-failover", &[MASTER, STANDBY]) else { return };
    let mut first = site.ibsm(MASTER, &["-p", "9"]);
    first.wait_for("SUBNET UP");
    let _r1 = site.ibsa(MASTER, "r1", &[]);
    let mut second = site.ibsm(STANDBY, &["-p", "5"]);
    await_status(&site.url(STANDBY), &[], "standby", |status| status["sm_state"] == "standby");
    let _r3 = site.ibsa(STANDBY, "r3", &[]);
    site.status(STANDBY, "SA at SM port   r3 (process ");
    let storms = [MASTER, STANDBY].map(|node| site.storm(node, Repeats::Never));
    let pass = || storms.iter().for_each(Storm::pass);

    // The standby dies and returns.
    second.kill_and_wait();
    pass();
    second = site.ibsm(STANDBY, &["-p", "5"]);
    site.status(STANDBY, "SA at SM port   r3 (process ");
    await_status(&site.url(STANDBY), &[], "standby", |status| status["sm_state"] == "standby");
    pass();

    // The master dies, the standby takes over, and the first one returns.
    first.kill_and_wait();
    second.wait_for("SUBNET UP");
    pass();
    first = site.ibsm(MASTER, &["-p", "9"]);
    first.wait_for("SUBNET UP");
    pass();
    first.signal(libc::SIGTERM);
    first.wait();
    pass();
    storms.into_iter().for_each(Storm::end);
}

#[test]
fn a_responder_at_the_managers_port_is_killed_stopped_and_replaced() {
    const NODE: &str = "Hca1";
    let Some(site) = Site::new("at-port-sa", &[NODE]) else { return };
    let ibsm = site.ibsm(NODE, &[]);
    ibsm.wait_for("SUBNET UP");
    let mut ibsa = site.ibsa(NODE, "r1", &[]);
    let storm = site.storm(NODE, Repeats::Soon);

    // No other responder could answer: the requests wait.
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        ibsa.signal(signal);
        ibsa.wait();
        ibsa = site.ibsa(NODE, "r1", &[]);
        storm.pass();
    }

    // The front door sends them to another responder.
    let _behind = site.ibsa_behind();
    ibsa.kill();
    storm.pass();
    site.status(NODE, "SA at SM port   ibsm");

    // The new version starts before the old one ends.
    let old = site.ibsa(NODE, "r2", &[]);
    storm.pass();
    let new = site.ibsa(NODE, "r3", &[]);
    old.wait_for("no longer reading SA requests");
    storm.pass();

    // It fails, and the old one goes on.
    new.kill();
    old.wait_for_nth("reason=\"named by ibsm\"", 2);
    storm.end();
}

/// Regression: nothing answered at the port while the responder there was stopped.
#[test]
fn another_responder_answers_while_the_one_at_the_managers_port_is_stopped() {
    const NODE: &str = "Hca1";
    let Some(site) = Site::new("at-port-stopped", &[NODE]) else { return };
    let ibsm = site.ibsm(NODE, &[]);
    ibsm.wait_for("SUBNET UP");
    let ibsa = site.ibsa(NODE, "r1", &[]);
    site.status(NODE, "SA at SM port   r1 (process ");
    let _behind = site.ibsa_behind();
    ibsa.signal(libc::SIGSTOP);
    site.status(NODE, "SA at SM port   ibsm");
    let storm = site.storm(NODE, Repeats::Soon);
    storm.pass();
    ibsa.signal(libc::SIGCONT);
    site.status(NODE, "SA at SM port   r1 (process ");
    storm.end();
}

#[test]
fn an_external_responder_has_the_port_and_the_manager_keeps_it_open() {
    const NODE: &str = "Hca1";
    let Some(site) = Site::new("at-port-external", &[NODE]) else { return };
    let mut ibsm = site.ibsm(NODE, &["--sa", "external"]);
    ibsm.wait_for("SUBNET UP");
    site.status(NODE, "no process answers SA requests at the SM's port");
    let ibsa = site.ibsa(NODE, "r1", &[]);
    ibsa.wait_for("opened QP1");
    site.status(NODE, "SA at SM port   r1 (process ");
    // The problem ends when the manager next looks.
    let solved = |said: &str| !said.contains("no process answers");
    site.status_where(NODE, "end of the problem", solved);
    let storm = site.storm(NODE, Repeats::Soon);
    ibsa.kill();
    let ibsa = site.ibsa(NODE, "r2", &[]);
    ibsa.wait_for("took over QP1");
    storm.pass();
    ibsm.kill_and_wait();
    storm.pass();
    let _again = site.ibsm(NODE, &["--sa", "external"]);
    site.status(NODE, "SA at SM port   r2 (process ");
    storm.end();
}

/// Queries of many clients that wait at the port are shared with another responder, whose answers
/// leave by the port.
#[test]
fn a_responder_at_the_managers_port_that_is_behind_passes_queries_to_another() {
    const NODE: &str = "node00001 HCA-1";
    const QUERIES: u64 = 40;
    let sandbox = Sandbox::new("at-port-spill");
    let net = sandbox.fat_tree(8, 16);
    let site = Site::of(sandbox, &net, &[NODE]);
    let ibsm = site.ibsm(NODE, &[]);
    ibsm.wait_for("SUBNET UP");
    let http = free_address().to_string();
    let ibsa = site.ibsa(NODE, "r1", &["--http", &http]);
    let _behind = site.ibsa_behind();
    site.status(NODE, "SA at SM port   r1 (process ");
    let sa = site.attach(NODE).local_port().expect("a port").lid;
    let mut clients: Vec<Ibsim> =
        (2..=16).map(|host| site.attach(&format!("node{host:05} HCA-1"))).collect();
    let passed = || Scrape::of(&http).sum("ibsa_spill_queries_total");
    let deadline = Instant::now() + PATIENCE;
    // It learns of the other responder soon.
    for round in 0.. {
        ibsa.signal(libc::SIGSTOP);
        thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(move || {
                    let here = client.local_port().expect("a port").lid;
                    let first = round * QUERIES;
                    let queries: Vec<Packet> =
                        (first..first + QUERIES).map(|tid| query(sa, here, tid + 1)).collect();
                    let mut tally = Tally::default();
                    ask(client, &queries, Repeats::Soon, &mut tally, &AtomicU64::new(0));
                    let is_clean = tally.refused.is_empty() && tally.unanswered == 0;
                    assert!(is_clean, "{tally:?}");
                });
            }
            thread::sleep(Duration::from_millis(100));
            ibsa.signal(libc::SIGCONT);
        });
        if passed() > 0 {
            break;
        }
        assert!(Instant::now() < deadline, "no query was passed on");
    }
    let scrape = Scrape::of(&http);
    assert!(scrape.sum("ibsa_spill_answers_total") > 0);
    assert_eq!(scrape.sum("ibsa_spill_strangers_total"), 0);
}
