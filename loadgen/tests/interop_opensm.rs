//! `ibstorm` against OpenSM's SA, on Debian's `ibsim`.

#[path = "../../ib-mad/tests/skip/mod.rs"]
mod skip;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use skip::skip;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
const PORTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/two_switches.ports");
const LIMIT: Duration = Duration::from_secs(120);

/// A child process, killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory removed with the test.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A fabric configured by OpenSM. Fields are dropped in their order.
struct Fabric {
    _opensm: Process,
    _ibsim: Process,
    directory: Directory,
    socket: String,
}

fn umad2sim() -> Option<PathBuf> {
    let libraries = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let candidates = libraries.map(|entry| entry.path().join("umad2sim/libumad2sim.so"));
    candidates.chain([PathBuf::from("/usr/lib/umad2sim/libumad2sim.so")]).find(|path| path.exists())
}

fn spawn(command: &mut Command) -> Option<Process> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()
        .map(Process)
}

fn start(directory: &Path, socket: &str) -> Option<(Process, Process)> {
    let preload = umad2sim()?;
    let ibsim = spawn(
        Command::new("ibsim")
            .args(["-s", "-n", &format!("{DATA}/two_switches.net")])
            .env("IBSIM_SOCKNAME", socket),
    )?;
    // The library waits for the simulator by itself.
    let opensm = spawn(
        Command::new("opensm")
            .arg("-f")
            .arg(directory.join("log"))
            // libumad2sim leaves a directory of files in its working directory.
            .current_dir(directory)
            .env("LD_PRELOAD", preload)
            .env("IBSIM_SOCKNAME", socket)
            .env("SIM_HOST", "H-0c42a10300000010")
            .env("OSM_CACHE_DIR", directory)
            .env("OSM_TMP_DIR", directory),
    )?;
    Some((opensm, ibsim))
}

/// Starts the fabric, or returns the reason to skip the test.
fn fabric() -> Option<Fabric> {
    let socket = format!("ibstorm-test-{}", std::process::id());
    let directory = Directory(std::env::temp_dir().join(&socket));
    std::fs::create_dir_all(&directory.0).unwrap();
    let Some((opensm, ibsim)) = start(&directory.0, &socket) else {
        skip("ibsim, its libumad2sim or opensm is not installed");
        return None;
    };
    let fabric = Fabric { _opensm: opensm, _ibsim: ibsim, directory, socket };
    // OpenSM's log is buffered; its first response shows that it is ready.
    let deadline = Instant::now() + LIMIT;
    while !storm(&fabric, PORTS, &["--queries", "50", "--json"]).status.success() {
        assert!(Instant::now() < deadline, "OpenSM does not bring the subnet up");
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(fabric)
}

fn storm(fabric: &Fabric, ports: impl AsRef<Path>, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ibstorm"))
        .args(["--transport", "ibsim", "--socket", &fabric.socket, "--quiet"])
        .args(["--node", "H-0c42a10300000040", "--ports"])
        .arg(ports.as_ref())
        .args(arguments)
        .output()
        .unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn opensm_withstands_a_small_storm() {
    let Some(fabric) = fabric() else { return };
    for by in ["gid", "gid-service"] {
        let arguments = ["--queries", "2000", "--timeout", "30s", "--show", "1000", "--json"];
        let output = storm(&fabric, PORTS, &[&arguments[..], &["--by", by]].concat());
        let report = json(&output);
        assert!(output.status.success(), "{report}");
        assert_eq!((&report["resolved"], &report["late"]), (&2000.into(), &0.into()));
        let paths = report["paths"].as_array().unwrap();
        let is_across = |path: &&str| path.starts_with("a LID") && path.contains("→ d LID");
        let across = paths.iter().filter_map(|path| path.as_str()).find(is_across);
        let across = across.expect("one in twelve is from a to d");
        assert!(across.contains("200 Gb/s, P_Key 0xffff"), "{across}");
    }

    // A nonexistent port is an error, and is reported.
    let ports = fabric.directory.0.join("ports");
    std::fs::write(&ports, "fe80::c42:a103:0:11 a\nfe80::dead nobody\n").unwrap();
    let output = storm(&fabric, &ports, &["--queries", "10"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("→ nobody: ERR_"), "{text}");
}
