//! Stock tools against `ibfabric serve`: they must report the same as under stock `ibsim`, and
//! OpenSM must configure the subnet, notice failed links, and route around them.

#[path = "../../ib-mad/tests/skip/mod.rs"]
mod skip;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use skip::skip;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

const NET: &str = "\
Switch 8 \"Switch1\"
[1] \"Hca1\"[1]
[2] \"Hca3\"[1]
[3] \"Switch2\"[3]
[5] \"Switch2\"[5]

Switch 8 \"Switch2\"
[1] \"Hca2\"[1]
[2] \"Hca4\"[1]
[3] \"Switch1\"[3]
[5] \"Switch1\"[5]

Hca 2 \"Hca1\"
[1] \"Switch1\"[1]

Hca 2 \"Hca2\"
[1] \"Switch2\"[1]

Hca 2 \"Hca3\"
[1] \"Switch1\"[2]

Hca 2 \"Hca4\"
[1] \"Switch2\"[2]
";

/// A child process, killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A served net and a directory for the tools' files.
struct Bed {
    dir: TempDir,
    socket: String,
    preload: PathBuf,
    _server: Running,
}

impl Bed {
    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, program: &str, args: &[&str], node: &str) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("LD_PRELOAD", &self.preload)
            .env("IBSIM_SOCKNAME", &self.socket)
            .env("SIM_HOST", node)
            .env("OSM_TMP_DIR", self.path())
            .env("OSM_CACHE_DIR", self.path())
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a tool as a client on `node`; returns its output once it has exited successfully.
    fn run(&self, program: &str, args: &[&str], node: &str) -> String {
        let output = self.try_run(program, args, node);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {text}{errors}");
        text
    }

    fn try_run(&self, program: &str, args: &[&str], node: &str) -> Output {
        let mut command = self.command(program, args, node);
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), program)
    }

    fn ctl(&self, words: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_ibfabric"))
            .args(["ctl", "--socket", &self.socket])
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn whole(&self) -> bool {
        self.ctl(&["check"]).contains("\"whole\":true")
    }

    /// Starts an OpenSM that sweeps when it receives a trap, and waits until the subnet is
    /// configured. OpenSM buffers its log, so the log cannot be used for that.
    fn start_opensm(&self) -> Running {
        let output = File::create(self.path().join("opensm.out")).unwrap();
        let log = self.path().join("opensm.log");
        let args = ["-s", "0", "-f", log.to_str().unwrap()];
        let mut command = self.command("opensm", &args, "Hca1");
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let opensm = Running(command.spawn().unwrap());
        await_that("a configured subnet", || self.whole());
        opensm
    }
}

fn finish(mut child: Child, name: &str) -> Output {
    let deadline = Instant::now() + PATIENCE;
    // The output of these tools fits into a pipe; that of discovery does so here.
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{name} did not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The preload library of ibsim, if it and all `programs` are installed.
fn preload(programs: &[&str]) -> Option<PathBuf> {
    let missing = programs.iter().copied().find(|program| {
        let found = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        found.is_err()
    });
    let library = || {
        let places = std::fs::read_dir("/usr/lib").ok()?;
        let mut libraries = places
            .filter_map(|place| Some(place.ok()?.path().join("umad2sim/libumad2sim.so")))
            .chain([PathBuf::from("/usr/lib/umad2sim/libumad2sim.so")]);
        libraries.find(|library| library.exists())
    };
    let found = if missing.is_none() { library() } else { None };
    if found.is_none() {
        let what = missing.unwrap_or("libumad2sim.so");
        skip(format_args!(
            "{what} is not installed (apt-get install ibsim-utils opensm infiniband-diags)"
        ));
    }
    found
}

fn socket_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("ibfabric-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Writes and serves a net; returns once the server is ready.
fn serve(net: &str, preload: PathBuf) -> Bed {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("net");
    std::fs::write(&file, net).unwrap();
    let socket = socket_name();
    let mut server = Command::new(env!("CARGO_BIN_EXE_ibfabric"))
        .args(["serve", file.to_str().unwrap(), "--socket", &socket])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = server.stderr.take().unwrap();
    let server = Running(server);
    let ready = BufReader::new(stderr)
        .lines()
        .map_while(Result::ok)
        .any(|line| line.starts_with(&format!("ibfabric: ready, socket {socket}, ")));
    assert!(ready, "ibfabric ended before it was ready");
    Bed { dir, socket, preload, _server: server }
}

/// The same net served by stock ibsim.
fn serve_by_ibsim(bed: &Bed) -> (Running, Bed) {
    let net = bed.path().join("net");
    let socket = socket_name();
    let child = Command::new("ibsim")
        .args(["-s", "-n", net.to_str().unwrap()])
        .env("IBSIM_SOCKNAME", &socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let idle = Command::new("sleep").arg("600").spawn().unwrap();
    let dir = TempDir::new().unwrap();
    let preload = bed.preload.clone();
    (Running(child), Bed { dir, socket, preload, _server: Running(idle) })
}

fn discovered(bed: &Bed) -> String {
    let text = bed.run("ibnetdiscover", &[], "Hca1");
    text.lines()
        .filter(|line| !line.contains("generated on"))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn discovery_sees_what_it_sees_under_ibsim() {
    let Some(preload) = preload(&["ibsim", "ibnetdiscover", "smpquery"]) else { return };
    let bed = serve(NET, preload);
    let (_ibsim, reference) = serve_by_ibsim(&bed);
    let ours = discovered(&bed);
    assert_eq!(ours.matches("\nSwitch\t").count(), 2, "{ours}");
    assert_eq!(ours, discovered(&reference));
    for query in [&["nodeinfo", "-D", "0,1"][..], &["nodedesc", "-D", "0,1,3"]] {
        let (ours, theirs) =
            (bed.run("smpquery", query, "Hca1"), reference.run("smpquery", query, "Hca1"));
        let same = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.contains("PartCap")).map(str::to_owned).collect()
        };
        assert_eq!(same(&ours), same(&theirs), "{query:?}");
    }
}

#[test]
fn opensm_brings_the_subnet_up_once() {
    let Some(preload) = preload(&["opensm"]) else { return };
    let bed = serve(NET, preload);
    assert!(!bed.whole());
    let log = bed.path().join("opensm.log");
    bed.run("opensm", &["-o", "-f", log.to_str().unwrap()], "Hca1");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("SUBNET UP"), "{text}");
    assert!(!text.contains(" ERR "), "{text}");
    assert!(bed.whole(), "{}", bed.ctl(&["check"]));
    assert!(bed.ctl(&["status"]).contains("\"malformed\":0"));
}

#[test]
fn clients_of_a_running_opensm_are_answered_and_changes_noticed() {
    let tools = ["opensm", "saquery", "ibtracert", "sminfo", "perfquery"];
    let Some(preload) = preload(&tools) else { return };
    let bed = serve(NET, preload);
    let opensm = bed.start_opensm();

    let lid = |node: &str| -> String {
        let text = bed.ctl(&["node", node]);
        let after = text.split("\"lid\":").nth(1).unwrap();
        after.chars().take_while(char::is_ascii_digit).collect()
    };
    let (h1, h4, s1) = (lid("Hca1"), lid("Hca4"), lid("Switch1"));
    let paths = bed.run("saquery", &["-p"], "Hca3");
    assert!(paths.matches("dlid").count() >= 1, "{paths}");
    assert!(bed.run("sminfo", &[], "Hca4").contains("SMINFO_MASTER"));
    let trace = bed.run("ibtracert", &[&h1, &h4], "Hca3");
    assert!(trace.contains("Switch2") && trace.contains("To ca"), "{trace}");
    let counters = bed.run("perfquery", &[&s1, "3"], "Hca2");
    assert!(counters.contains("PortXmitPkts"), "{counters}");

    // Errors show in perfquery, whose -R clears them.
    bed.ctl(&["count", "Switch1", "3", "PortRcvErrors", "41"]);
    bed.ctl(&["count", "Switch1", "3", "PortLocalPhysicalErrors", "40"]);
    bed.ctl(&["count", "Switch1", "3", "PortFECCorrectedSymbolCtr", "39"]);
    let value = |options: &[&str], name: &str| -> u64 {
        let text = bed.run("perfquery", &[options, &[&s1, "3"]].concat(), "Hca2");
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line.rsplit('.').next().unwrap().parse().unwrap()
    };
    assert_eq!(value(&[], "PortRcvErrors"), 41);
    assert_eq!(value(&["-x"], "PortRcvErrors"), 41);
    assert_eq!(value(&["-E"], "PortLocalPhysicalErrors"), 40);
    bed.run("perfquery", &["-R", &s1, "3"], "Hca2");
    assert_eq!(value(&[], "PortRcvErrors"), 0);
    assert_eq!(value(&["-E"], "PortLocalPhysicalErrors"), 40);

    // Traffic to Hca4 crosses one of two links. Cut both in turn: the switches send traps to
    // OpenSM.
    for port in ["3", "5"] {
        assert_eq!(bed.ctl(&["link-down", "Switch1", port]), "ok\n");
        await_that("routes around the link", || bed.whole());
        let trace = bed.run("ibtracert", &[&h1, &h4], "Hca3");
        assert!(trace.contains("To ca"), "{trace}");
        assert_eq!(bed.ctl(&["link-up", "Switch1", port]), "ok\n");
        await_that("both links", || {
            let view = bed.ctl(&["node", "Switch1"]);
            view.matches("\"state\":\"Active\"").count() == 5
        });
    }

    bed.ctl(&["reboot", "Switch2"]);
    await_that("the switch configured again", || bed.whole());
    drop(opensm);
    // Killed, so it did not disconnect: its place on the node is free again.
    await_that("the dead client's detachment", || !bed.ctl(&["status"]).contains("\"number\""));
    let _opensm = bed.start_opensm();
}

#[test]
fn a_taken_socket_name_and_a_missing_server_are_explained() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("net");
    std::fs::write(&file, NET).unwrap();
    let socket = socket_name();
    let ibfabric = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ibfabric"))
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = ibfabric(&["ctl", "--socket", &socket, "status"]);
    assert!(text.contains("is served at socket name"), "{text}");
    let bed = serve(NET, PathBuf::new());
    let text = ibfabric(&["serve", file.to_str().unwrap(), "--socket", &bed.socket]);
    assert!(text.contains("is in use"), "{text}");
    let text = ibfabric(&["ctl", "--socket", &bed.socket, "link-down", "Switch1", "9"]);
    assert_eq!(text, "ibfabric: node 'Switch1' has no port 9\n");
    let text = ibfabric(&["ctl", "--socket", &bed.socket, "link-down", "Switch1", "4"]);
    assert_eq!(text, "ibfabric: port 4 of node 'Switch1' has no cable\n");
}
