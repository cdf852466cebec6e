//! How clients reach responders: by redirection, through the front door, past it on the way back,
//! and by MasterSMLID.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use benches::sandbox::{PATIENCE, Program, Sandbox, binary, can_interoperate, free_address};
use ib_mad::transport::ibsim::{Ibsim, IbsimOptions};
use serde_json::Value;

/// Hosts other than the SM's and the responders'.
const CLIENTS: std::ops::RangeInclusive<u32> = 4..=16;

/// A fat tree of 16 hosts with `ibfabric` and `ibsm`, the latter on the first.
struct Site {
    sandbox: Sandbox,
    publish: String,
    _fabric: Program,
}

/// A responder with its own port.
struct Responder {
    program: Program,
    lid: u16,
}

impl Site {
    fn new(name: &str) -> Self {
        let sandbox = Sandbox::new(name);
        let net = sandbox.fat_tree(8, 16);
        let fabric = sandbox.ibfabric(&net);
        Self { publish: free_address().to_string(), _fabric: fabric, sandbox }
    }

    fn ibsm(&self, more: &[&str]) -> Program {
        let state = self.sandbox.path("state");
        let mut args = vec!["--transport", "ibsim", "--socket", self.sandbox.socket()];
        args.extend(["--node", "node00001 HCA-1", "--publish", &self.publish]);
        args.extend(["--state-dir", state.to_str().expect("UTF-8")]);
        args.extend(more);
        let ibsm = self.sandbox.ours("ibsm", "ibsm", &args);
        ibsm.wait_for("SUBNET UP");
        ibsm
    }

    /// A responder at host `number`. Its identity is fixed, so that the distribution of clients
    /// never changes.
    fn ibsa(&self, number: u32, more: &[&str]) -> Responder {
        let cache = self.sandbox.path(&format!("cache-{number}"));
        fs::create_dir_all(&cache).expect("a scratch directory");
        fs::write(cache.join("responder-id"), format!("{}\n", 1000 + number)).expect("writable");
        let (url, name, node) = (self.url(), format!("ibsa-{number}"), node(number));
        let mut args = vec!["--sm", &url, "--name", &name, "--transport", "ibsim"];
        args.extend(["--node", &node, "--socket", self.sandbox.socket()]);
        args.extend(["--cache-dir", cache.to_str().expect("UTF-8")]);
        args.extend(more);
        let program = self.sandbox.ours("ibsa", &name, &args);
        program.wait_for("serving generation");
        let attached = program.wait_for("attached to the fabric");
        let lid = attached.split("lid=").nth(1).and_then(|lid| lid.trim().parse().ok());
        Responder { program, lid: lid.unwrap_or_else(|| panic!("no LID in '{attached}'")) }
    }

    fn url(&self) -> String {
        format!("http://{}", self.publish)
    }

    /// A storm from a host.
    fn storm(&self, number: u32, more: &[&str]) -> Program {
        let (url, node) = (self.url(), node(number));
        let mut args = vec!["--transport", "ibsim", "--socket", self.sandbox.socket()];
        args.extend(["--node", &node, "--sm", &url, "--json", "--quiet"]);
        args.extend(more);
        self.sandbox.ours("ibstorm", &format!("ibstorm-{number}"), &args)
    }

    /// The report of a short storm from a host, in which every query was resolved.
    fn ask(&self, number: u32, more: &[&str]) -> Value {
        let report = report(self.storm(number, &[&["--queries", "100"], more].concat()));
        assert_eq!(report["resolved"], 100, "{report}");
        report
    }

    /// The responder that each client finally uses, once all use one of `responders`.
    fn settled(&self, responders: &BTreeSet<u64>) -> Vec<u64> {
        let deadline = Instant::now() + PATIENCE;
        let mut settled = Vec::new();
        for client in CLIENTS {
            settled.push(loop {
                let report = self.ask(client, &[]);
                let last = report["asked_lids"].as_array().and_then(|lids| lids.last()?.as_u64());
                let last = last.unwrap_or_else(|| panic!("no responder was queried: {report}"));
                if responders.contains(&last) {
                    break last;
                }
                assert!(Instant::now() < deadline, "client {client} asks LID {last}");
                thread::sleep(Duration::from_millis(50));
            });
        }
        settled
    }

    /// LIDs to which hosts send SA queries, from the simulator.
    fn asked_by(&self) -> Vec<u64> {
        let asked = CLIENTS.map(|client| {
            let port = self.attach(client).local_port();
            u64::from(port.expect("the simulator serves").sm_lid.0)
        });
        asked.collect()
    }

    fn attach(&self, number: u32) -> Ibsim {
        let options = IbsimOptions {
            socket: self.sandbox.socket().to_owned(),
            node: Some(node(number)),
            ..IbsimOptions::default()
        };
        Ibsim::connect(&options).expect("the simulator serves")
    }

    /// The same, once each host uses one of `responders`, all of these are used, and this is
    /// stable: the SM learns of the responders one by one.
    fn sharded(&self, responders: &BTreeSet<u64>) -> Vec<u64> {
        const LOOKS: usize = 10;
        let deadline = Instant::now() + PATIENCE;
        let (mut before, mut alike) = (Vec::new(), 0);
        while alike < LOOKS {
            let asked = self.asked_by();
            let is_whole = asked.iter().copied().collect::<BTreeSet<_>>() == *responders;
            alike = if is_whole && asked == before { alike + 1 } else { 0 };
            assert!(Instant::now() < deadline, "{asked:?} instead of {responders:?}");
            before = asked;
            thread::sleep(Duration::from_millis(50));
        }
        before
    }

    /// Sends the simulator a command.
    fn control(&self, words: &[&str]) -> String {
        let output = Command::new(binary("ibfabric"))
            .args(["ctl", "--socket", self.sandbox.socket()])
            .args(words)
            .output()
            .expect("ibfabric runs");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The output of a stock tool at a host.
    fn tool(&self, number: u32, words: &[&str]) -> (bool, String) {
        let output = Command::new(binary("ibfabric"))
            .args(["exec", "--socket", self.sandbox.socket(), "--node", &node(number), "--"])
            .args(words)
            .current_dir(self.sandbox.path(""))
            .output()
            .expect("ibfabric runs");
        let text = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.success(), text.concat())
    }
}

/// A counter of a program's, summed over its labels.
fn metric(address: &str, name: &str) -> u64 {
    let mut stream = TcpStream::connect(address).expect("metrics are served");
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").expect("metrics are served");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("metrics are served");
    let named = text.lines().filter(|line| !line.starts_with('#') && line.contains(name));
    named.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
}

fn node(number: u32) -> String {
    format!("node{number:05} HCA-1")
}

/// The report of a storm that ended successfully.
fn report(storm: Program) -> Value {
    let (status, log) = storm.wait();
    let report = serde_json::from_str(&log).unwrap_or_else(|error| panic!("{error} in:\n{log}"));
    assert!(status.success(), "{log}");
    report
}

fn lids(responders: &[&Responder]) -> BTreeSet<u64> {
    responders.iter().map(|responder| u64::from(responder.lid)).collect()
}

/// The clients that use another responder than before.
fn moved(before: &[u64], after: &[u64]) -> usize {
    before.iter().zip(after).filter(|(before, after)| before != after).count()
}

#[test]
fn redirection_on_request_serves_other_clients_too() {
    let site = Site::new("advertise");
    let ibsm = site.ibsm(&["--redirect", "advertise"]);
    let (first, second) = (site.ibsa(2, &[]), site.ibsa(3, &[]));
    let both = lids(&[&first, &second]);
    let before = site.settled(&both);
    assert_eq!(before.iter().copied().collect::<BTreeSet<_>>(), both, "both are used");
    let kernel = site.ask(5, &["--redirects", "ignore"]);
    assert_eq!((&kernel["redirected"], &kernel["asked_lids"]), (&0.into(), &Value::Array(vec![])));
    if can_interoperate(&["saquery"]) {
        let storm = site.storm(6, &["--duration", "2s", "--rate", "200"]);
        let (success, text) = site.tool(7, &["saquery", "-p"]);
        assert!(success && text.matches("PathRecord dump").count() > 16, "{text}");
        let unharmed = report(storm);
        assert_eq!(unharmed["resolved"], unharmed["queries"], "{unharmed}");
    }

    // Clients of the responder that dies return to the front door, and from there reach the other;
    // no other client moves.
    let orphan = CLIENTS.zip(&before).find(|(_, lid)| **lid == u64::from(second.lid)).unwrap().0;
    let storm = site.storm(orphan, &["--duration", "5s", "--rate", "200"]);
    thread::sleep(Duration::from_secs(1));
    second.program.kill();
    let unharmed = report(storm);
    assert_eq!(unharmed["resolved"], unharmed["queries"], "{unharmed}");
    let after = site.settled(&lids(&[&first]));
    let orphans = before.iter().filter(|&&lid| lid == u64::from(second.lid)).count();
    assert_eq!(moved(&before, &after), orphans);
    drop(ibsm);
}

#[test]
fn clients_redirected_by_status_are_answered_by_the_target() {
    let site = Site::new("require");
    let _ibsm = site.ibsm(&["--redirect", "require"]);
    let (first, second) = (site.ibsa(2, &[]), site.ibsa(3, &[]));
    let both = lids(&[&first, &second]);
    let before = site.settled(&both);
    assert_eq!(before.iter().copied().collect::<BTreeSet<_>>(), both, "both are used");

    let strict = site.storm(5, &["--queries", "10", "--redirects", "ignore"]);
    let (status, log) = strict.wait();
    assert!(!status.success() && log.contains("REDIRECT"), "{log}");
    if can_interoperate(&["saquery"]) {
        let (_, text) = site.tool(7, &["saquery", "-p"]);
        assert!(text.contains("Redirect"), "{text}");
    }
}

#[test]
fn answers_of_one_packet_go_past_the_front_door_and_others_through_it() {
    let site = Site::new("direct");
    let (sm_http, http) = (free_address().to_string(), free_address().to_string());
    let _ibsm = site.ibsm(&["--front-door-return", "direct", "--http", &sm_http]);
    let ibsa = site.ibsa(2, &["--http", &http]);
    let deadline = Instant::now() + PATIENCE;
    while metric(&http, "direct_answers") == 0 {
        site.ask(4, &["--redirects", "ignore"]);
        assert!(Instant::now() < deadline, "{}", ibsa.program.log());
    }
    let before = (metric(&sm_http, "front_door_answers"), metric(&http, "direct_answers"));
    let storm = site.storm(5, &["--queries", "2000", "--redirects", "ignore"]);
    let unharmed = report(storm);
    assert_eq!(unharmed["resolved"], 2000, "{unharmed}");
    let sent = unharmed["sent"].as_u64().unwrap();
    assert!(metric(&http, "direct_answers") - before.1 >= 2000);
    assert!(metric(&sm_http, "front_door_answers") - before.0 <= sent - 2000, "{unharmed}");
    if can_interoperate(&["saquery"]) {
        let (success, text) = site.tool(7, &["saquery", "-p"]);
        assert!(success && text.matches("PathRecord dump").count() > 16, "{text}");
        let (success, text) = site.tool(8, &["saquery", "-p", "--src-to-dst", "1:4"]);
        assert!(success && text.contains("PathRecord dump"), "{text}");
    }
}

/// Unmodified clients: they send to the LID in their port's PortInfo.
#[test]
fn clients_ask_the_responder_that_their_port_names_and_few_move_when_one_comes_or_goes() {
    let site = Site::new("shard");
    let (sm_http, http) = (free_address().to_string(), free_address().to_string());
    let ibsm = site.ibsm(&["--shard", "--http", &sm_http]);
    let (first, second) = (site.ibsa(2, &["--http", &http]), site.ibsa(3, &[]));
    let both = lids(&[&first, &second]);
    let before = site.sharded(&both);
    let through = metric(&sm_http, "front_door_requests");
    for client in CLIENTS {
        site.ask(client, &["--redirects", "ignore"]);
    }
    assert_eq!(metric(&sm_http, "front_door_requests"), through, "the SM gets no query");

    // Packets that clients send to the SM still reach it.
    let client = CLIENTS.zip(&before).find(|(_, lid)| **lid == u64::from(first.lid)).unwrap().0;
    let id = site.attach(client).node().to_owned();
    site.control(&["trap", "129", &id, "1"]);
    let deadline = Instant::now() + PATIENCE;
    while metric(&sm_http, "traps_relayed") == 0 {
        assert!(Instant::now() < deadline, "no trap was relayed: {}", first.program.log());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(metric(&http, "ibsa_traps") > 0);
    if can_interoperate(&["saquery", "sminfo"]) {
        let (success, text) = site.tool(client, &["sminfo"]);
        assert!(success && text.contains("SMINFO_MASTER"), "{text}");
        assert!(text.contains(&format!("sm lid {}", first.lid)), "by proxy: {text}");
        let (success, text) = site.tool(client, &["saquery", "-p"]);
        assert!(success && text.matches("PathRecord dump").count() > 16, "{text}");
    }

    second.program.kill();
    let after = site.sharded(&lids(&[&first]));
    let orphans = before.iter().filter(|&&lid| lid == u64::from(second.lid)).count();
    assert_eq!(moved(&before, &after), orphans);
    let second = site.ibsa(3, &[]);
    assert_eq!(lids(&[&first, &second]), both, "LIDs are kept");
    let deadline = Instant::now() + PATIENCE;
    while site.asked_by() != before {
        assert!(Instant::now() < deadline, "{}", ibsm.log());
        thread::sleep(Duration::from_millis(50));
    }
}

/// All adapters may have virtual functions, as most new ones may: they are led to responders whose
/// ports took the GUID that these ask.
#[test]
fn adapters_with_virtual_functions_are_led_to_responders_by_default() {
    let site = Site::new("shard-virtual");
    for number in 1..=16 {
        let id = site.attach(number).node().to_owned();
        site.control(&["virtual-ports", &id, "2"]);
    }
    let http = free_address().to_string();
    let ibsm = site.ibsm(&["--shard", "--http", &http]);
    let (first, second) = (site.ibsa(2, &[]), site.ibsa(3, &[]));
    site.sharded(&lids(&[&first, &second]));
    assert_eq!(ibsm.log().matches("answers virtual functions").count(), 2, "{}", ibsm.log());
    let deadline = Instant::now() + PATIENCE;
    while metric(&http, "ibsm_responder_sa_guid") != 2 {
        assert!(Instant::now() < deadline, "{}", ibsm.log());
        thread::sleep(Duration::from_millis(50));
    }
    let through = metric(&http, "front_door_requests");
    for client in CLIENTS {
        site.ask(client, &["--redirects", "ignore"]);
    }
    assert_eq!(metric(&http, "front_door_requests"), through, "the SM gets no query");
    second.program.kill();
    site.sharded(&lids(&[&first]));
}

#[test]
fn a_spare_takes_the_lid_of_a_responder_that_died_and_clients_ask_on() {
    let site = Site::new("takeover");
    let ibsm = site.ibsm(&["--shard", "--lid-takeover"]);
    let first = site.ibsa(2, &["--port-use", "dedicated"]);
    let _spare = site.ibsa(3, &["--port-use", "spare"]);
    let before = site.sharded(&lids(&[&first]));
    let storm = site.storm(
        5,
        &[
            "--redirects",
            "ignore",
            "--duration",
            "12s",
            "--check=none",
            "--rate",
            "100",
            "--retries",
            "40",
        ],
    );
    thread::sleep(Duration::from_secs(1));
    first.program.kill();
    ibsm.wait_for("took over the LID");
    let unharmed = report(storm);
    assert_eq!(unharmed["resolved"], unharmed["queries"], "{unharmed}");
    assert_eq!(site.asked_by(), before, "no client was moved");
    // The dead responder's port got another LID; after its return it is the spare of its successor.
    let back = site.ibsa(2, &["--port-use", "dedicated"]);
    assert_ne!(back.lid, first.lid);
    assert_eq!(site.ask(6, &["--redirects", "ignore"])["resolved"], 100);
}
