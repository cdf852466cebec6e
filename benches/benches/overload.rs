//! Is a responder's goodput preserved when clients request ten times its capacity?
//!
//! A real `ibsa` over UDP, limited to a twentieth of a core so that one generator can overload it,
//! and `ibstorm`'s model of Linux clients: 16 outstanding per port, a repeat after 200 ms, ten
//! times, a deadline of 2 s. Each round first measures the capacity with a closed loop, and then
//! lets callers arrive at that rate, twice and ten times that rate. Reported are paths resolved
//! within their deadline per second, as a share of the peak (the maximum over all loads of the
//! round), and packets sent for each of them. `sa-server/tests/it/goodput.rs` proves the same in
//! virtual time, without a kernel in between.
//!
//! `cargo bench -p benches --bench overload -- --json FILE` also writes the figures of all rounds.
//! It needs root, to limit CPU time by a control group.

#![allow(clippy::print_stdout, reason = "figures are printed there")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use benches::figures::{Runs, is_benchmark_run, report_load};
use benches::sandbox::{Program, Sandbox, binary, free_address};
use serde_json::{Value, json};

const ROUNDS: usize = 3;
/// Callers' rates, as multiples of the capacity.
const LOADS: [f64; 3] = [1.0, 2.0, 10.0];
/// How long callers arrive at the capacity. Beyond it the same number arrives in less time, and
/// callers that found their port's window full are served afterwards.
const CALLERS_COME_MS: f64 = 12_000.0;
/// CPU time of the responder per period, µs. Pauses are far shorter than a client's timeout.
const QUOTA_US: u32 = 1_000;
const PERIOD_US: u32 = 20_000;
/// Enough hosts that their windows hold ten times the capacity.
const HOSTS: &str = "3000";
const RADIX: &str = "24";

fn main() {
    if !is_benchmark_run() {
        return;
    }
    let bed = Bed::new();
    let limit = match Limit::new(bed.ibsa.pid()) {
        Ok(limit) => limit,
        Err(reason) => {
            println!("skipped: CPU time cannot be limited here (cgroups, root): {reason}");
            return;
        }
    };
    let rounds: Vec<Round> = (0..ROUNDS).map(|_| bed.round()).collect();
    report(&rounds);
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--json") {
        let file = arguments.get(at + 1).expect("--json FILE");
        let rounds: Vec<Value> = rounds.iter().map(Round::json).collect();
        fs::write(file, format!("{:#}\n", json!({ "rounds": rounds })))
            .unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    drop(bed);
    drop(limit);
}

/// A manager on a simulated fat tree, and the responder under load.
struct Bed {
    sandbox: Sandbox,
    url: String,
    target: String,
    ibsa: Program,
    _fabric: Program,
    _ibsm: Program,
}

/// A capacity, and the results of the loads.
struct Round {
    capacity: f64,
    storms: Vec<Storm>,
}

/// The result of one load.
struct Storm {
    load: f64,
    offered: f64,
    sent: f64,
    goodput: f64,
    packets_each: f64,
    /// Why the generator may limit the figures.
    limit: Option<String>,
}

impl Bed {
    fn new() -> Self {
        let sandbox = Sandbox::new("overload");
        let net: PathBuf = sandbox.path("fat-tree.net");
        let status = Command::new(binary("ibfabric"))
            .args(["generate", "fat-tree", "--levels", "3", "--radix", RADIX, "--hosts", HOSTS])
            .arg("-o")
            .arg(&net)
            .status()
            .expect("ibfabric runs");
        assert!(status.success());
        let fabric = sandbox.ibfabric(&net);
        let (publish, target) = (free_address().to_string(), free_address().to_string());
        let (url, state) = (format!("http://{publish}"), sandbox.path("state"));
        let mut args = vec!["--transport", "ibsim", "--socket", sandbox.socket()];
        args.extend(["--publish", &publish, "--state-dir", state.to_str().expect("UTF-8")]);
        let ibsm = sandbox.ours("ibsm", "ibsm", &args);
        let mut args = vec!["--sm", &url, "--name", "r1", "--transport", "udp"];
        args.extend(["--listen", &target]);
        let ibsa = sandbox.ours("ibsa", "ibsa", &args);
        ibsa.wait_for("serving generation");
        Self { sandbox, url, target, ibsa, _fabric: fabric, _ibsm: ibsm }
    }

    fn round(&self) -> Round {
        let closed =
            self.storm(&["--by", "gid-service", "--concurrency", "1024", "--duration", "4s"]);
        let capacity = number(&closed, "goodput_per_s");
        let storms = LOADS.map(|load| {
            let rate = format!("rate={}", (capacity * load) as u64);
            let mut args = vec!["--profile", "linux-client", "--set", &rate];
            let duration = format!("duration={}ms", (CALLERS_COME_MS / load) as u64);
            args.extend(["--set", "destinations=16", "--set", &duration]);
            let report = self.storm(&args);
            Storm {
                load,
                offered: capacity * load,
                sent: number(&report, "sent") / number(&report, "elapsed_s"),
                goodput: number(&report, "goodput_per_s"),
                packets_each: number(&report, "packets_per_resolved"),
                limit: report["generator"]["limit"].as_str().map(str::to_owned),
            }
        });
        Round { capacity, storms: storms.into() }
    }

    /// The report of a storm; every answer is checked.
    fn storm(&self, what: &[&str]) -> Value {
        let mut args = vec!["--sm", &self.url, "--target", &self.target, "--no-trains"];
        args.extend(["--check-sample", "0.1", "--json", "--quiet"]);
        args.extend(what);
        let (_, log) = self.sandbox.ours("ibstorm", "ibstorm", &args).wait();
        let report: Value =
            serde_json::from_str(&log).unwrap_or_else(|error| panic!("{error}: {log}"));
        assert_eq!(report["wrong"], json!({}), "{report:#}");
        report
    }
}

impl Round {
    /// The maximum resolved per second.
    fn peak(&self) -> f64 {
        self.storms.iter().map(|storm| storm.goodput).fold(self.capacity, f64::max)
    }

    fn json(&self) -> Value {
        let storms = self.storms.iter().map(|storm| {
            json!({
                "load": storm.load,
                "offered_per_s": storm.offered,
                "sent_per_s": storm.sent,
                "goodput_per_s": storm.goodput,
                "of_peak": storm.goodput / self.peak(),
                "packets_per_resolved": storm.packets_each,
                "generator_limit": storm.limit,
            })
        });
        json!({ "capacity_per_s": self.capacity, "loads": storms.collect::<Vec<_>>() })
    }
}

fn number(report: &Value, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("no {field} in {report:#}"))
}

/// Medians of all rounds, and their ranges.
fn report(rounds: &[Round]) {
    let capacity = Runs::new(rounds.iter().map(|round| round.capacity).collect());
    println!("capacity, 1,024 outstanding: {capacity:.0} answers per second");
    for (nth, load) in LOADS.iter().enumerate() {
        let runs = |of: &dyn Fn(&Round, &Storm) -> f64| {
            Runs::new(rounds.iter().map(|round| of(round, &round.storms[nth])).collect())
        };
        let offered = runs(&|_, storm| storm.offered);
        let sent = runs(&|_, storm| storm.sent);
        println!("{load}x: {offered:.0} callers and {sent:.0} packets per second");
        let goodput = runs(&|_, storm| storm.goodput);
        let share = runs(&|round, storm| storm.goodput / round.peak());
        println!("    goodput {goodput:.0} per second, {share:.2} of the peak");
        let each = runs(&|_, storm| storm.packets_each);
        println!("    packets per resolved path {each:.2}");
        let limits = rounds.iter().filter_map(|round| round.storms[nth].limit.as_deref());
        limits.for_each(|limit| println!("    the generator may be the limit: {limit}"));
    }
    report_load();
}

/// A control group that gets a share of the CPU's time.
struct Limit(PathBuf);

impl Limit {
    /// Moves a process into a group of its own.
    fn new(pid: u32) -> io::Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let is_unified = root.join("cgroup.controllers").exists();
        let parent = if is_unified { root.to_owned() } else { root.join("cpu") };
        if is_unified {
            fs::write(root.join("cgroup.subtree_control"), "+cpu")?;
        }
        let group = parent.join(format!("ibsm-overload-{pid}"));
        fs::create_dir(&group)?;
        let limit = Self(group);
        if is_unified {
            fs::write(limit.0.join("cpu.max"), format!("{QUOTA_US} {PERIOD_US}"))?;
        } else {
            fs::write(limit.0.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(limit.0.join("cpu.cfs_quota_us"), QUOTA_US.to_string())?;
        }
        fs::write(limit.0.join("cgroup.procs"), pid.to_string())?;
        Ok(limit)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The process has ended by now; if not, the group remains and will be empty later.
        let _ = fs::remove_dir(&self.0);
    }
}
