//! Stock tools under `ibfabric exec`, with stock OpenSM as manager and SA, all unmodified: on
//! `ibfabric serve` and on stock `ibsim`. Skipped with a message where the programs are missing.

#[path = "../../ib-mad/tests/skip/mod.rs"]
mod skip;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use skip::skip;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);

/// The node that OpenSM runs on.
const MANAGER: &str = "node00001 HCA-1";
/// The node of all other programs.
const CLIENT: &str = "node00002 HCA-1";
const OTHER: &str = "node00003 HCA-1";

/// A child process, terminated when the test ends.
struct Running(Child);

impl Running {
    /// Makes OpenSM sweep.
    fn sweep(&self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    }

    /// Terminates the program, and waits until it has exited.
    fn end(mut self) -> ExitStatus {
        Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        wait_for(&mut self.0, "a program that was asked to end")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(child: &mut Child, what: &str) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "{what} did not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The simulator.
#[derive(Clone, Copy, PartialEq)]
enum Simulator {
    Ibfabric,
    Ibsim,
}

/// A served fabric and a directory for the programs' files.
struct Bed {
    dir: TempDir,
    socket: String,
    nodes: usize,
    _server: Running,
}

fn ibfabric() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ibfabric"));
    command.stdin(Stdio::null()).env_remove("IBSIM_SOCKNAME").env_remove("SIM_HOST");
    command
}

impl Bed {
    /// A fat tree with this many hosts; `None` if the simulator or a program is not installed.
    fn new(simulator: Simulator, hosts: usize, programs: &[&str]) -> Option<Self> {
        let ibsim: &[&str] = if simulator == Simulator::Ibsim { &["ibsim"] } else { &[] };
        let is_missing = |program: &&&str| {
            Command::new(program).arg("--version").stdin(Stdio::null()).output().is_err()
        };
        if let Some(program) = programs.iter().chain(ibsim).find(is_missing) {
            skip(format_args!(
                "{program} is not installed (apt-get install ibsim-utils opensm infiniband-diags)"
            ));
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = format!("preload-test-{}-{count}", std::process::id());
        let dir = TempDir::new().unwrap();
        let net = dir.path().join("net");
        let hosts = hosts.to_string();
        let generated = ibfabric()
            .args(["generate", "fat-tree", "--levels", "2", "--radix", "16", "--hosts", &hosts])
            .arg("-o")
            .arg(&net)
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(generated.success());
        let text = std::fs::read_to_string(&net).unwrap();
        let is_node = |line: &&str| line.starts_with("Ca") || line.starts_with("Switch");
        let nodes = text.lines().filter(is_node).count();
        let server = match simulator {
            Simulator::Ibfabric => serve(&net, &socket),
            Simulator::Ibsim => serve_by_ibsim(&net, &socket),
        };
        Some(Self { dir, socket, nodes, _server: server })
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A program on a node, its output in a file, since a pipe could fill up.
    fn start(&self, node: &str, words: &[&str]) -> (Running, String) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let output = self.path(&format!("output-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let file = File::create(&output).unwrap();
        let child = ibfabric()
            .args(["exec", "--socket", &self.socket, "--node", node, "--"])
            .args(words)
            .env("OSM_TMP_DIR", self.dir.path())
            .env("OSM_CACHE_DIR", self.dir.path())
            .current_dir(self.dir.path())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        (Running(child), output)
    }

    /// Runs a program until it exits; returns whether it succeeded, and its output.
    fn try_run(&self, node: &str, words: &[&str]) -> (bool, String) {
        let (mut running, output) = self.start(node, words);
        let status = wait_for(&mut running.0, words[0]);
        let text = std::fs::read(output).unwrap();
        (status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn run(&self, words: &[&str]) -> String {
        let (succeeded, text) = self.try_run(CLIENT, words);
        assert!(succeeded, "{words:?}: {text}");
        text
    }

    /// Number of records that a query for all of them returns.
    fn count(&self, words: &[&str]) -> usize {
        let (_, text) = self.try_run(CLIENT, words);
        text.matches("Record dump:").count()
    }

    /// Starts OpenSM; returns when it answers for the whole subnet.
    fn start_opensm(&self) -> Running {
        let log = self.path("opensm.log");
        let (opensm, _) = self.start(MANAGER, &["opensm", "-s", "0", "-f", &log]);
        await_that("a subnet that is up", || {
            self.count(&["saquery", "NR"]) == self.nodes
                && self.count(&["saquery", "-p"]) == self.nodes * self.nodes
        });
        opensm
    }

    fn ctl(&self, words: &[&str]) -> String {
        let output =
            ibfabric().args(["ctl", "--socket", &self.socket]).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn osmtest(&self, node: &str, flow: &str) {
        let (log, inventory) =
            (self.path(&format!("osmtest-{flow}.log")), self.path("osmtest.dat"));
        let words = ["osmtest", "-f", flow, "-i", &inventory, "-l", &log, "-m", "0x80"];
        let (succeeded, text) = self.try_run(node, &words);
        assert!(succeeded && text.contains("PASS"), "flow {flow}: {text}");
    }
}

fn serve(net: &Path, socket: &str) -> Running {
    let mut child = ibfabric()
        .arg("serve")
        .arg(net)
        .args(["--socket", socket])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = child.stderr.take().unwrap();
    let server = Running(child);
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("ibfabric: ready")), "ibfabric is not ready");
    server
}

fn serve_by_ibsim(net: &Path, socket: &str) -> Running {
    let child = Command::new("ibsim")
        .args(["-s", "-n"])
        .arg(net)
        .env("IBSIM_SOCKNAME", socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let server = Running(child);
    let name = format!("@{socket}:ctl");
    await_that("ibsim", || std::fs::read_to_string("/proc/net/unix").unwrap().contains(&name));
    server
}

fn tools_see_the_whole_fabric(simulator: Simulator) {
    let programs = ["opensm", "saquery", "sminfo", "smpquery", "ibnetdiscover", "perfquery"];
    let Some(bed) = Bed::new(simulator, 104, &programs) else { return };
    let opensm = bed.start_opensm();
    let nodes = bed.nodes;
    assert!(nodes > 100);
    assert_eq!(bed.count(&["saquery", "-p"]), nodes * nodes);
    // OpenSM answers while its next sweep reads a port again, and omits that port. A port that did
    // not answer in time, on a busy machine, is omitted until another sweep.
    let mut swept = Instant::now();
    await_that("a record of each port", || {
        let is_whole = bed.count(&["saquery", "PIR"]) == 104 + (nodes - 104) * 17;
        if !is_whole && swept.elapsed() > Duration::from_secs(5) {
            opensm.sweep();
            swept = Instant::now();
        }
        is_whole
    });
    assert!(bed.run(&["sminfo"]).contains("SMINFO_MASTER"));
    assert!(bed.run(&["smpquery", "-D", "nodedesc", "0"]).contains(CLIENT));
    assert!(bed.run(&["perfquery"]).contains("PortXmitPkts"));
    assert!(bed.run(&["ibstat"]).contains("State: Active"));
    let net = bed.run(&["ibnetdiscover"]);
    let is_node = |line: &&str| line.starts_with("Ca\t") || line.starts_with("Switch\t");
    assert_eq!(net.lines().filter(is_node).count(), nodes);
}

#[test]
fn tools_see_the_whole_fabric_of_ibfabric() {
    tools_see_the_whole_fabric(Simulator::Ibfabric);
}

#[test]
fn tools_see_the_whole_fabric_of_ibsim() {
    tools_see_the_whole_fabric(Simulator::Ibsim);
}

/// A flow that osmtest does not complete against OpenSM, as the control, cannot be required of
/// another SA. Validation waits 8 s for responses that OpenSM does not send, services 10 s for a
/// lease to expire.
fn osmtest_passes(simulator: Simulator) {
    let Some(bed) = Bed::new(simulator, 12, &["opensm", "osmtest", "saquery"]) else { return };
    let _opensm = bed.start_opensm();
    bed.osmtest(CLIENT, "c");
    std::thread::scope(|scope| {
        scope.spawn(|| bed.osmtest(OTHER, "s"));
        bed.osmtest(CLIENT, "v");
    });
    // From the manager's own port too: two agents of one class on one port.
    for (node, flow) in [(CLIENT, "e"), (MANAGER, "e"), (CLIENT, "m"), (CLIENT, "q")] {
        bed.osmtest(node, flow);
    }
}

#[test]
fn osmtest_passes_on_ibfabric() {
    osmtest_passes(Simulator::Ibfabric);
}

#[test]
fn osmtest_passes_on_ibsim() {
    osmtest_passes(Simulator::Ibsim);
}

#[test]
fn a_table_arrives_whole_over_a_link_that_loses() {
    let Some(bed) = Bed::new(Simulator::Ibfabric, 104, &["opensm", "saquery"]) else { return };
    let _opensm = bed.start_opensm();
    bed.ctl(&["loss", "5%", CLIENT, "1"]);
    let lost = |bed: &Bed| -> u64 {
        let counters = bed.ctl(&["counters"]);
        let (_, after) = counters.split_once("\"lost\":").unwrap();
        after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    };
    // saquery sends once: repeat the call if the query is lost. The response is 66 segments, of
    // which a lost one is sent again after 2 s.
    let before = lost(&bed);
    await_that("a table of which something was lost", || {
        let whole = bed.count(&["saquery", "-t", "20000", "NR"]) == bed.nodes;
        whole && lost(&bed) > before
    });
}

/// The issm file, by which OpenSM declares itself a manager to the kernel, has no path of its own.
#[test]
fn a_port_shows_the_manager_as_long_as_it_runs() {
    let Some(bed) = Bed::new(Simulator::Ibfabric, 12, &["opensm", "saquery", "smpquery"]) else {
        return;
    };
    let is_sm = || {
        let (_, text) = bed.try_run(MANAGER, &["smpquery", "-D", "portinfo", "0", "1"]);
        text.lines().any(|line| line.trim() == "IsSM")
    };
    assert!(!is_sm());
    let opensm = bed.start_opensm();
    await_that("IsSM", is_sm);
    assert!(opensm.end().success());
    await_that("the end of IsSM", || !is_sm());
    assert!(bed.ctl(&["counters"]).contains("\"clients\":[]"), "all have detached");
}

#[test]
fn what_cannot_be_run_is_explained() {
    let Some(bed) = Bed::new(Simulator::Ibfabric, 12, &[]) else { return };
    let said = |words: &[&str]| {
        let output = ibfabric().arg("exec").args(words).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let socket = bed.socket.as_str();
    let text = said(&["--socket", "nobody-serves-this", "true"]);
    assert!(text.contains("no ibsim answers at socket 'nobody-serves-this'"), "{text}");
    let text = said(&["--socket", socket, "--node", "nowhere", "true"]);
    assert_eq!(text, "ibfabric: node 'nowhere' is not in the net file\n");
    let text = said(&["--socket", socket, "--library", "/nowhere.so", "true"]);
    assert!(text.contains("cannot preload /nowhere.so: No such file"), "{text}");
    let text = said(&["--socket", socket, "/nowhere/program"]);
    assert!(text.contains("cannot run /nowhere/program: No such file"), "{text}");
}
