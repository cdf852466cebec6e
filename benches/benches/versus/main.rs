//! OpenSM, and ibsm with ibsa, on the same fabric in one run: CPU time per query without the
//! transport of either, the cost of a write, the time of a start, and whether answers arrive while
//! routes change.
//!
//! Both answer the same requests about the same hosts ([`books`]). Requests are passed in where the
//! transport would deliver them, and answers are checked where it would accept them: for `opensm`
//! at libibumad's interface ([`stock`]), for us at the interface of a worker's transport
//! ([`ours`]). The cost of feeding and checking is measured separately and subtracted. Writes need
//! our two programs, `ibsm` and `ibsa`, as they run ([`programs`]); there the transport is measured
//! by queries over the same path.
//!
//! `scripts/bench-vs-opensm.sh` builds and runs this; see its `--help`.

#![allow(clippy::print_stdout, reason = "figures are printed there")]

mod books;
mod measure;
mod ours;
mod programs;
mod rows;
mod scale_out;
mod stock;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::cpu::load_average;
use benches::etcd::Etcd;
use benches::fabrics::middle_cable;
use benches::published;
use benches::sandbox::{PATIENCE, Program, Sandbox, binary, can_interoperate};
use clap::Parser;
use fabric_sim::generate::{Common, FatTree, Shape, generate};
use ib_mad::netlist::{Net, NodeKind};
use umad_feed::order::Order;

use crate::books::{Host, Kind, SERVICES, policy};
use crate::measure::{Effort, Sa, checked, cost};
use crate::ours::Ours;
use crate::programs::{Programs, has_said, process_cpu};
use crate::rows::{Figure, Name, Processes, Side, print_processes, print_table, to_json};
use crate::stock::Stock;

/// Writes open at a time.
const WRITES_OPEN: u64 = 1024;
/// Milliseconds between queries while a link fails.
const PAUSE_MS: u32 = 1;

/// Runs OpenSM, and ibsm with ibsa, on equal simulated fabrics and prints the cost of each row.
///
/// The ratio is how many times less ibsm and ibsa need, or how many times more they do.
#[derive(Parser, Debug)]
#[command(name = "scripts/bench-vs-opensm.sh", max_term_width = 100)]
struct Options {
    /// Hosts of the fat tree, three levels of switches.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..=45_000))]
    hosts: u32,
    /// Ports of its switches [default: 8, 16, 40 or 60, the first that is enough].
    #[arg(long)]
    radix: Option<u8>,
    /// Measure instead how the answer rate grows with the number of ibsa responders.
    #[arg(long, conflicts_with = "json")]
    scale_out: bool,
    /// Measure only writes.
    #[arg(long, conflicts_with = "scale_out")]
    writes: bool,
    /// Measure only the writes of ibsm and ibsa, by process; opensm need not be installed.
    #[arg(long, conflicts_with_all = ["scale_out", "writes", "json"])]
    our_writes: bool,
    /// With --our-writes: the number of writes open at a time.
    #[arg(long, default_value_t = WRITES_OPEN, value_name = "N", requires = "our_writes")]
    open: u64,
    /// With --our-writes: keep registrations in an etcd of three members, with their data below DIR
    /// (/dev/shm is in memory).
    #[arg(long, value_name = "DIR", requires = "our_writes")]
    etcd: Option<PathBuf>,
    /// Measure for seconds instead of minutes, as a test; the figures are not usable.
    #[arg(long)]
    quick: bool,
    /// Also write the rows to FILE as JSON.
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
    if !options.scale_out && !options.our_writes && !can_interoperate(&["opensm"]) {
        eprintln!("opensm is not installed: apt-get install opensm ibsim-utils infiniband-diags");
        std::process::exit(1);
    }
    let net = match fat_tree(&options) {
        Ok(net) => net,
        Err(reason) => {
            eprintln!("{reason}");
            std::process::exit(2);
        }
    };
    // Built before anything is measured.
    binary("ibsm");
    let before = load_average();
    let effort = if options.quick {
        Effort { run: Duration::from_millis(5), runs: 1 }
    } else {
        Effort { run: Duration::from_millis(60), runs: 6 }
    };
    let writes_only = options.writes || options.our_writes;
    let etcd = options.etcd.as_ref().map(|directory| Etcd::start_in(directory));
    let Ok(etcd) = etcd.map(|started| started.ok_or(())).transpose() else {
        std::process::exit(1);
    };
    let compared = Compared { net, effort, writes_only, open: options.open, etcd };
    if options.scale_out {
        let (sandbox, _fabric) = compared.fabric("scale-out");
        return scale_out::report(&compared.net, &sandbox, effort.run * 50);
    }
    let (ours, hosts) = compared.ours();
    if options.our_writes {
        print_processes(&ours);
        println!("load average {before} before, {} after", load_average());
        return;
    }
    let stock = compared.stock(&hosts);
    let (switches, hosts) = (compared.net.count(NodeKind::Switch), hosts.len());
    println!("fat tree of {hosts} hosts and {switches} switches");
    print_table(&ours, &stock);
    print_processes(&ours);
    println!("load average {before} before, {} after", load_average());
    if let Some(file) = &options.json {
        std::fs::write(file, format!("{:#}\n", to_json(&ours, &stock)))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

fn fat_tree(options: &Options) -> Result<Net, String> {
    let hosts = options.hosts as usize;
    let most = |radix: u8| usize::from(radix).pow(3) / 4;
    let radix = options.radix.or([8, 16, 40].into_iter().find(|&radix| most(radix) >= hosts));
    let radix = radix.unwrap_or(60);
    let shape = FatTree { levels: 3, radix, hosts, oversubscription: (1, 1) };
    let common = Common { seed: 1, ..Common::default() };
    generate(&Shape::FatTree(shape), &common).map_err(|reason| reason.to_string())
}

/// The fabric and the effort, the same for both.
struct Compared {
    net: Net,
    effort: Effort,
    writes_only: bool,
    /// Writes open at a time.
    open: u64,
    /// Where registrations are kept, if not in a file.
    etcd: Option<Etcd>,
}

/// The rows that are only queries, except the one under a policy.
const QUERIES: [(Name, Kind); 7] = [
    (Name::PathByGids, Kind::PathByGids),
    (Name::PathByLids, Kind::PathByLids),
    (Name::PathsOfSource, Kind::PathsOfSource),
    (Name::MultiPath, Kind::MultiPath),
    (Name::NodeByLid, Kind::NodeByLid),
    (Name::NodeByGuid, Kind::NodeByGuid),
    (Name::AllHosts, Kind::AllHosts),
];

impl Compared {
    /// A simulated fabric of its own.
    fn fabric(&self, name: &str) -> (Sandbox, Program) {
        let sandbox = Sandbox::new(name);
        let file = sandbox.path("net");
        std::fs::write(&file, self.net.to_string()).expect("the scratch directory is writable");
        let program = sandbox.ibfabric(&file);
        (sandbox, program)
    }

    fn home(&self) -> &str {
        let mut nodes = self.net.nodes().iter();
        &nodes.find(|node| node.kind == NodeKind::Ca).expect("a host").id
    }

    fn queries(&self, who: &str, sa: &mut impl Sa, hosts: &[Host], side: &mut Side) {
        for (name, kind) in QUERIES {
            eprintln!("{who}: {}", name.text());
            self.query(name, kind, sa, hosts, side);
        }
    }

    fn query(&self, name: Name, kind: Kind, sa: &mut impl Sa, hosts: &[Host], side: &mut Side) {
        let cost = cost(sa, &kind.book(hosts), 1, kind.is_table(), self.effort);
        let value = if kind.is_table() { cost.records_per_second() } else { cost.query_ns };
        side.report(name, Figure { value, stand_in: cost.stand_in_ns, ..Figure::default() });
    }

    /// Pulls a cable between two switches.
    fn cut(&self, sandbox: &Sandbox) {
        let (node, port) = middle_cable(&self.net);
        let switch = &self.net.nodes()[node.0 as usize];
        sandbox.control(&["link-down", &switch.id, &port.to_string()]);
    }

    /// The number of joins and leaves in one turn.
    fn turn(hosts: &[Host]) -> u64 {
        Kind::Members.book(hosts).0.len() as u64
    }

    fn ours(&self) -> (Side, Vec<Host>) {
        let mut side = Side::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("an async runtime");
        let (sandbox, _fabric) = self.fabric("versus-ours");
        eprintln!("ours: start");
        let store = self.etcd.as_ref().map(Etcd::url);
        let mut programs = Programs::start(&sandbox, None, store.as_deref());
        side.start(programs.up, programs.up_cpu, &programs.ibsm);
        let snapshot = runtime.block_on(published::snapshot(&programs.url));
        let hosts = books::hosts(&snapshot);
        let mut responder = Ours::new(&snapshot);
        if !self.writes_only {
            self.queries("ours", &mut responder, &hosts, &mut side);
        }
        self.our_writes(&mut programs, &mut responder, &hosts, &mut side);
        if self.writes_only {
            return (side, hosts);
        }

        eprintln!("ours: a link fails");
        let book = Arc::new(Kind::PathByGids.book(&hosts));
        let pause = Duration::from_millis(PAUSE_MS.into());
        let mut longest = Duration::ZERO;
        self.cut(&sandbox);
        let deadline = Instant::now() + PATIENCE;
        while !has_said(&programs.ibsm, "SUBNET UP", 2) {
            assert!(Instant::now() < deadline, "ibsm did not route around the failed link");
            let asked = programs.run(&book, 200, 1, pause);
            longest = longest.max(checked(asked.report, 200).longest);
        }
        side.report(Name::LinkFails, Figure::plain(longest.as_secs_f64() * 1e3));
        drop(programs);

        eprintln!("ours: {}", Name::PathUnderRules.text());
        let (sandbox, _fabric) = self.fabric("versus-ours-rules");
        let programs = Programs::start(&sandbox, Some(&write_policy(&sandbox, &hosts)), None);
        let snapshot = runtime.block_on(published::snapshot(&programs.url));
        let mut responder = Ours::new(&snapshot);
        let under_rules = books::hosts(&snapshot);
        let (name, kind) = (Name::PathUnderRules, Kind::PathByGids);
        self.query(name, kind, &mut responder, &under_rules, &mut side);
        (side, hosts)
    }

    /// Writes, by UDP and durable; the transport's share is measured by queries over the same path.
    fn our_writes(
        &self,
        programs: &mut Programs,
        responder: &mut Ours,
        hosts: &[Host],
        side: &mut Side,
    ) {
        let query = Kind::NodeByLid.book(hosts);
        let in_process = cost(responder, &query, 1, false, self.effort).query_ns;
        let (query, none) = (Arc::new(query), Duration::ZERO);
        let runs = self.effort.runs.max(2);
        let count = if self.effort.runs > 1 { 50_000 } else { 5_000 };
        let each = |time: Duration, total: u64| time.as_nanos() as f64 / total as f64;
        let by_udp = (0..runs)
            .map(|_| {
                let asked = programs.run(&query, count, WRITES_OPEN, none);
                checked(asked.report, count);
                each(asked.processes.ibsa, count)
            })
            .fold(f64::INFINITY, f64::min);
        let transport = (by_udp - in_process).max(0.0);

        let first = Arc::new(Kind::FirstMember.book(hosts));
        checked(programs.run(&first, 1, 1, none).report, 1);
        let services = Kind::Services.book(hosts);
        for (name, book, turn) in [
            (Name::Members, Kind::Members.book(hosts), Self::turn(hosts)),
            (Name::Services, services, SERVICES * 2),
        ] {
            eprintln!("ours: {}", name.text());
            let book = Arc::new(book);
            let open = (turn / 4).clamp(1, self.open);
            let total = count.div_ceil(turn) * turn;
            // The first run registers.
            let asked = (0..=runs).map(|_| {
                let before = self.etcd.as_ref().map(Etcd::cpu);
                let asked = programs.run(&book, total, open, none);
                let etcd = self.etcd.as_ref().map(Etcd::cpu);
                let etcd = etcd.unwrap_or_default() - before.unwrap_or_default();
                (Processes { etcd, ..asked.processes }, checked(asked.report, total))
            });
            let asked: Vec<_> = asked.skip(1).collect();
            let least = |of: fn(&Processes<Duration>) -> Duration| {
                let times = asked.iter().map(|(processes, _)| of(processes));
                each(times.min().expect("a run"), total)
            };
            side.report_processes(
                name,
                Processes {
                    writing: least(|spent| spent.writing),
                    ibsm: least(|spent| spent.ibsm),
                    ibsa: least(|spent| spent.ibsa),
                    etcd: least(|spent| spent.etcd),
                },
                asked.iter().map(|(_, report)| total as f64 / report.wall.as_secs_f64()),
            );
            let reports = asked.iter().map(|(_, report)| report);
            let best = reports.min_by_key(|report| report.query_cpu).expect("a run");
            let value = each(best.query_cpu, total) - transport;
            side.report(
                name,
                Figure { value: value.max(1.0), stand_in: transport, whole: each(best.cpu, total) },
            );
        }
    }

    fn stock(&self, hosts: &[Host]) -> Side {
        let mut side = Side::default();
        let (sandbox, _fabric) = self.fabric("versus-opensm");
        eprintln!("opensm: start");
        let mut stock = Stock::start(&sandbox, self.home(), None);
        side.start(stock.up, process_cpu(&stock.program), &stock.program);
        let with_lids = stock.hosts(hosts);
        if !self.writes_only {
            self.queries("opensm", &mut stock, &with_lids, &mut side);
        }

        let first = stock.load(&Kind::FirstMember.book(&with_lids));
        checked(stock.run(&first, 1, 1), 1);
        for (name, kind, turn) in [
            (Name::Members, Kind::Members, Self::turn(hosts)),
            (Name::Services, Kind::Services, SERVICES * 2),
        ] {
            eprintln!("opensm: {}", name.text());
            let book = kind.book(&with_lids);
            let loaded = stock.load(&book);
            checked(stock.run(&loaded, turn, (turn / 4).clamp(1, WRITES_OPEN)), turn);
            let cost = cost(&mut stock, &book, turn, false, self.effort);
            let figure =
                Figure { value: cost.query_ns, stand_in: cost.stand_in_ns, ..Figure::default() };
            side.report(name, figure);
        }

        if self.writes_only {
            return side;
        }
        eprintln!("opensm: a link fails");
        let book = stock.load(&Kind::PathByGids.book(&with_lids));
        let (mut longest, mut refused) = (Duration::ZERO, 0);
        self.cut(&sandbox);
        let deadline = Instant::now() + PATIENCE * 3;
        while !stock.has_been_up(2) {
            assert!(Instant::now() < deadline, "opensm did not route around the failed link");
            let (total, window, pause_ms) = (200, 1, PAUSE_MS);
            let (fabric, echo, book) = (true, false, book.clone());
            stock.order(&Order { total, window, fabric, pause_ms, echo, book });
            let report = stock.report();
            longest = longest.max(report.longest);
            refused += report.tally.failed;
        }
        if refused > 0 {
            // It uses incomplete routes for a moment, and reports this.
            eprintln!("opensm: {refused} paths were refused while it routed around the link");
        }
        side.report(Name::LinkFails, Figure::plain(longest.as_secs_f64() * 1e3));
        drop(stock);

        eprintln!("opensm: {}", Name::PathUnderRules.text());
        let (sandbox, _fabric) = self.fabric("versus-opensm-rules");
        let policy = write_policy(&sandbox, hosts);
        let mut stock = Stock::start(&sandbox, self.home(), Some(&policy));
        let with_lids = stock.hosts(hosts);
        let (name, kind) = (Name::PathUnderRules, Kind::PathByGids);
        self.query(name, kind, &mut stock, &with_lids, &mut side);
        side
    }
}

fn write_policy(sandbox: &Sandbox, hosts: &[Host]) -> PathBuf {
    let file = sandbox.path("qos-policy.conf");
    std::fs::write(&file, policy(hosts)).expect("the scratch directory is writable");
    file
}
