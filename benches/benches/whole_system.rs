//! How long does a subnet take from the start of its programs to answered queries, and after a link
//! fails?
//!
//! The real programs on a served fabric: `ibsm` from its start to SUBNET UP and to the first
//! PathRecord that `ibsa` answers; then a cable between two switches is pulled, and the time counts
//! until tables without it are programmed and `ibsa` no longer lists the link. For comparison, in
//! the same run and on an equal fabric of its own, stock `opensm` to SUBNET UP.
//!
//! `scripts/bench.sh` builds and runs this; see its `--help`.

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use benches::cpu::load_average;
use benches::fabrics::middle_cable;
use benches::figures::Runs;
use benches::sandbox::{PATIENCE, Program, Sandbox, binary, can_interoperate, free_address};
use clap::Parser;
use fabric_sim::generate::{Common, FatTree, Shape, generate};
use ib_mad::netlist::{Net, NodeKind};
use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Interest, Packet, Transport, wait};
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::NodeInfo;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::{LinkRecord, NodeRecord, PathRecord, link, node, path};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use serde_json::{Value, json};

/// Interval of queries to the responder while waiting for an answer to change.
const PROBE_INTERVAL: Duration = Duration::from_millis(1);

/// Brings a simulated fabric up with ibsm and ibsa, and one with opensm for comparison, and prints
/// the time and the cost.
#[derive(Parser, Debug)]
#[command(name = "scripts/bench.sh", max_term_width = 100)]
struct Options {
    /// Hosts of the fat tree.
    #[arg(long, default_value_t = 10_000)]
    hosts: usize,
    /// Ports of its switches.
    #[arg(long, default_value_t = 40)]
    radix: u8,
    /// Number of runs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Do not run opensm.
    #[arg(long)]
    no_opensm: bool,
    /// Also write the figures to FILE.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    if !benches::figures::is_benchmark_run() {
        return;
    }
    let options = Options::parse();
    let shape =
        FatTree { levels: 3, radix: options.radix, hosts: options.hosts, oversubscription: (1, 1) };
    let net = match generate(&Shape::FatTree(shape), &Common { seed: 1, ..Common::default() }) {
        Ok(net) => net,
        Err(reason) => {
            eprintln!("{reason}");
            std::process::exit(2);
        }
    };
    let (hosts, switches) = (net.count(NodeKind::Ca), net.count(NodeKind::Switch));
    println!("fat tree, 3 levels, radix {}: {hosts} hosts, {switches} switches", options.radix);
    // Built before the load is read.
    binary("ibsm");
    let with_opensm = !options.no_opensm && can_interoperate(&["opensm"]);
    let load_before = load_average();
    let (mut ours, mut stock) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}: ibsm and ibsa", options.rounds);
        ours.push(run_ours(&net));
        if with_opensm {
            eprintln!("round {round} of {}: opensm", options.rounds);
            stock.push(run_opensm(&net));
        }
    }
    let load = format!("{load_before} before, {} after", load_average());
    print_table(&ours, &stock);
    println!("load average {load}; {} round(s), median and range", options.rounds);
    if let Some(file) = &options.json {
        let figures = json!({
            "fabric": { "hosts": hosts, "switches": switches, "radix": options.radix },
            "load_average": load,
            "ibsm": to_json(&ours),
            "opensm": to_json(&stock),
        });
        std::fs::write(file, format!("{figures:#}\n"))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

/// A figure: name, unit, value.
type Figures = Vec<(&'static str, &'static str, f64)>;

/// Cold start to SUBNET UP and the first answer, then a link cut.
fn run_ours(net: &Net) -> Figures {
    let sandbox = Sandbox::new("bench-ours");
    let file = write(net, &sandbox);
    let fabric = sandbox.ibfabric(&file);
    let (publish, listen) = (free_address().to_string(), free_address());
    let state = sandbox.path("state").display().to_string();
    let url = format!("http://{publish}");
    let listening = listen.to_string();
    let arguments = ["--sm", &url, "--transport", "udp", "--listen", &listening];
    let responder = sandbox.ours("ibsa", "ibsa", &arguments);
    responder.wait_for("ready for queries");

    let socket = sandbox.socket();
    let arguments =
        ["--transport", "ibsim", "--socket", socket, "--publish", &publish, "--state-dir", &state];
    let start = Instant::now();
    let manager = sandbox.ours("ibsm", "ibsm", &arguments);
    let mut probe = Probe::new(listen);
    // Queried continuously, so that the first answer is not missed.
    let first_answer = thread::spawn(move || {
        probe.until(Ask::Path, |status| status == Status::OK);
        (probe, Instant::now())
    });
    manager.wait_for("SUBNET UP");
    let up = start.elapsed();
    let mut figures = bring_up(up, &manager, &fabric, &sandbox);
    let (mut probe, answered) = first_answer.join().expect("the probe does not panic");
    figures.push(("first PathRecord answer", "s", (answered - start).as_secs_f64()));
    figures.push(("ibsa memory, peak", "MB", peak_megabytes(&responder)));

    let (node, port) = middle_cable(net);
    let switch = &net.nodes()[node.0 as usize];
    let lid = probe.lid_of(switch.guid);
    let ask = Ask::Link(lid, PortNum(port));
    probe.until(ask, |status| status == Status::OK);
    let (sent, cpu) = (packets(&sandbox), manager.cpu());
    let start = Instant::now();
    sandbox.control(&["link-down", &switch.id, &port.to_string()]);
    probe.until(ask, |status| status == Status::SA_NO_RECORDS);
    let served = start.elapsed();
    manager.wait_for_nth("SUBNET UP", 2);
    figures.push(("link cut until new tables are served", "s", served.as_secs_f64()));
    figures.push(("link cut, SMPs", "", packets(&sandbox) - sent));
    figures.push(("link cut, CPU", "s", (manager.cpu() - cpu).as_secs_f64()));
    figures
}

/// Cold start to SUBNET UP.
fn run_opensm(net: &Net) -> Figures {
    let sandbox = Sandbox::new("bench-opensm");
    let file = write(net, &sandbox);
    let fabric = sandbox.ibfabric(&file);
    let home = net.nodes().iter().find(|node| node.kind == NodeKind::Ca).expect("a host");
    let log = sandbox.path("opensm.out").display().to_string();
    let start = Instant::now();
    // -d 2: flush the log at every message, since the benchmark waits for SUBNET UP there.
    let manager = sandbox.umad_program("opensm", &home.id, &["opensm", "-f", &log, "-d", "2"]);
    let deadline = start + PATIENCE * 2;
    while !std::fs::read(&log).is_ok_and(|text| contains(&text, b"SUBNET UP")) {
        assert!(Instant::now() < deadline, "opensm did not log SUBNET UP:\n{}", manager.log());
        thread::sleep(Duration::from_millis(5));
    }
    bring_up(start.elapsed(), &manager, &fabric, &sandbox)
}

/// The figures by which both subnet managers are compared.
fn bring_up(up: Duration, manager: &Program, fabric: &Program, sandbox: &Sandbox) -> Figures {
    let (cpu, served) = (manager.cpu().as_secs_f64(), fabric.cpu().as_secs_f64());
    let smps = packets(sandbox);
    vec![
        ("cold start to SUBNET UP", "s", up.as_secs_f64()),
        ("CPU", "s", cpu),
        ("memory, peak", "MB", peak_megabytes(manager)),
        ("SMPs", "", smps),
        ("CPU a SMP", "µs", cpu * 1e6 / smps.max(1.0)),
        ("CPU of ibfabric", "s", served),
    ]
}

fn peak_megabytes(program: &Program) -> f64 {
    program.memory_kib().1 as f64 / 1024.0
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn write(net: &Net, sandbox: &Sandbox) -> PathBuf {
    let file = sandbox.path("net");
    std::fs::write(&file, net.to_string()).expect("the scratch directory is writable");
    file
}

/// Packets that clients have sent into the fabric: almost all are SMPs.
fn packets(sandbox: &Sandbox) -> f64 {
    let status: Value =
        serde_json::from_str(&sandbox.control(&["status"])).expect("status is JSON");
    status.pointer("/fabric/sent").and_then(Value::as_f64).expect("packets are counted")
}

/// The query of a probe.
#[derive(Clone, Copy)]
enum Ask {
    /// A path between the first two LIDs.
    Path,
    /// The link at a switch's port.
    Link(Lid, PortNum),
    /// A node by its GUID.
    Node(Guid),
}

impl Ask {
    fn write(self, tid: u64, packet: &mut Packet) {
        let mut mad = SaMad::new(&mut packet.mad);
        let mut get = |attribute: AttributeId, mask: ComponentMask| {
            mad.write_request(Method::GET, attribute, tid, mask);
        };
        match self {
            Self::Path => {
                use path::component;
                let always = component::REVERSIBLE | component::NUMB_PATH;
                get(attribute::PATH_RECORD, component::SLID | component::DLID | always);
                let mut record = PathRecord::of_mut(mad.data_mut());
                record.set_slid(Lid(1)).set_dlid(Lid(2)).set_reversible(true).set_numb_path(1);
            }
            Self::Link(lid, port) => {
                use link::component;
                get(attribute::LINK_RECORD, component::FROM_LID | component::FROM_PORT);
                let mut record = LinkRecord::of_mut(mad.data_mut());
                record.set_from_lid(lid).set_from_port(port);
            }
            Self::Node(guid) => {
                get(attribute::NODE_RECORD, node::component::NODE_GUID);
                let mut record = NodeRecord::of_mut(mad.data_mut());
                let mut info = [0; 40];
                NodeInfo::of_mut(&mut info).set_node_guid(guid);
                record.set_node_info(info);
            }
        }
    }
}

/// A client of the responder.
struct Probe {
    udp: Udp,
    responder: SocketAddr,
    tid: u64,
}

impl Probe {
    fn new(responder: SocketAddr) -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let udp = Udp::bind(&UdpOptions::new(any)).expect("loopback has a free port");
        Self { udp, responder, tid: 1 }
    }

    /// Repeats the query until the answer has the wanted status; returns that answer.
    fn until(&mut self, ask: Ask, wanted: impl Fn(Status) -> bool) -> Packet {
        let (first, deadline) = (self.tid, Instant::now() + PATIENCE * 2);
        loop {
            assert!(Instant::now() < deadline, "the responder does not answer as expected");
            self.ask(ask);
            while let Some(answer) = self.receive() {
                let mad = SaMad::new(&answer.mad);
                if mad.header().tid() >= first && wanted(mad.header().status()) {
                    return answer;
                }
            }
            thread::sleep(PROBE_INTERVAL);
        }
    }

    fn ask(&mut self, ask: Ask) {
        let mut packet = Packet::default();
        ask.write(self.tid, &mut packet);
        self.tid += 1;
        packet.address.lid = Lid(1);
        packet.carrier.peer = Some(self.responder);
        self.udp.send(std::slice::from_ref(&packet)).expect("loopback sends");
    }

    /// The next answer, waiting until the next query is due.
    fn receive(&mut self) -> Option<Packet> {
        let descriptor = self.udp.descriptor().expect("a socket");
        wait(&mut [Interest::read(descriptor)], Some(PROBE_INTERVAL)).expect("sockets poll");
        let mut packet = Packet::default();
        let received = self.udp.receive(std::slice::from_mut(&mut packet)).ok()?;
        (received == 1).then_some(packet)
    }

    fn lid_of(&mut self, guid: Guid) -> Lid {
        let answer = self.until(Ask::Node(guid), |status| status == Status::OK);
        let mad = SaMad::new(&answer.mad);
        NodeRecord::of(mad.data()).lid()
    }
}

fn print_table(ours: &[Figures], stock: &[Figures]) {
    println!("{:<40} {:>28} {:>28}", "", "ibsm", "opensm");
    for (row, &(name, unit, _)) in ours[0].iter().enumerate() {
        let cell = |rounds: &[Figures]| {
            let values: Vec<f64> =
                rounds.iter().filter_map(|figures| figures.get(row)).map(|f| f.2).collect();
            if values.is_empty() {
                return String::new();
            }
            let digits = if unit.is_empty() { 0 } else { 2 };
            format!("{:.digits$} {unit}", Runs::new(values))
        };
        println!("{name:<40} {:>28} {:>28}", cell(ours), cell(stock));
    }
}

fn row(name: &str, unit: &str, value: f64) -> Value {
    json!({ "figure": name, "unit": unit, "value": value })
}

fn to_json(rounds: &[Figures]) -> Value {
    let figure = |&(name, unit, value): &(&str, &str, f64)| row(name, unit, value);
    let round = |figures: &Figures| figures.iter().map(figure).collect::<Value>();
    rounds.iter().map(round).collect()
}
