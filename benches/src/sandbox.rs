//! A private fabric: programs started on a private simulator socket, with logs in a temporary
//! directory, all of them killed at the end.

#[path = "../../ib-mad/tests/skip/mod.rs"]
mod skip;

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use skip::skip;

/// How long a started program may take to log an expected line. Generous, because a test must not
/// depend on a quiet machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The library that makes libumad programs talk to a simulator.
const UMAD2SIM: &str = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so";

/// Net files that come with Debian's ibsim.
pub const NET_EXAMPLES: &str = "/usr/share/doc/ibsim-utils/net-examples";

/// A private simulator socket and a scratch directory.
pub struct Sandbox {
    dir: tempfile::TempDir,
    socket: String,
}

impl Sandbox {
    /// A new sandbox. `name` is part of the socket's name, which helps to analyse a hanging test.
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            dir: tempfile::tempdir().expect("a scratch directory"),
            socket: format!("{name}-{}-{count}", std::process::id()),
        }
    }

    /// The simulator socket's base name.
    pub fn socket(&self) -> &str {
        &self.socket
    }

    /// A path in the scratch directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Stock `ibsim` on `net`, ready for clients.
    pub fn ibsim(&self, net: &Path) -> Program {
        self.ibsim_with(net, &["-N", "4096", "-S", "1024", "-P", "65536", "-L", "16384"])
    }

    /// Stock `ibsim` on `net` with limits other than its defaults, ready for clients.
    pub fn ibsim_with(&self, net: &Path, limits: &[&str]) -> Program {
        let mut command = Command::new("ibsim");
        command.args(["-s", "-n"]).args(limits).arg(net);
        let program = self.start("ibsim", command);
        program.wait_for("Network simulator ready");
        program
    }

    /// The net file of a new fat tree of two levels.
    pub fn fat_tree(&self, radix: u8, hosts: u32) -> PathBuf {
        let net = self.path("fat-tree.net");
        let status = Command::new(binary("ibfabric"))
            .args(["generate", "fat-tree", "--levels", "2", "--radix", &radix.to_string()])
            .args(["--hosts", &hosts.to_string(), "-o"])
            .arg(&net)
            .status()
            .expect("ibfabric runs");
        assert!(status.success());
        net
    }

    /// Our `ibfabric serve` on `net`, ready for clients.
    pub fn ibfabric(&self, net: &Path) -> Program {
        let mut command = Command::new(binary("ibfabric"));
        command.arg("serve").arg(net).args(["--socket", &self.socket]);
        let program = self.start("ibfabric", command);
        program.wait_for("ready");
        program
    }

    /// One of our programs, started with `args`. `name` distinguishes instances.
    pub fn ours(&self, program: &str, name: &str, args: &[&str]) -> Program {
        self.ours_with(program, name, args, &[])
    }

    /// The same with these variables in its environment.
    pub fn ours_with(
        &self,
        program: &str,
        name: &str,
        args: &[&str],
        variables: &[(&str, PathBuf)],
    ) -> Program {
        let mut command = Command::new(binary(program));
        command.args(args).envs(variables.iter().map(|(name, value)| (name, value)));
        self.start(name, command)
    }

    /// The same by another program, which starts it: `before` is its command line.
    pub fn ours_below(
        &self,
        before: &[String],
        program: &str,
        name: &str,
        args: &[&str],
    ) -> Program {
        let mut command = Command::new(&before[0]);
        command.args(&before[1..]).arg(binary(program)).args(args);
        self.start(name, command)
    }

    /// Any program, started with this command line.
    pub fn program(&self, name: &str, argv: &[&str]) -> Program {
        let mut command = Command::new(argv[0]);
        command.args(&argv[1..]);
        self.start(name, command)
    }

    /// Any program on this fabric, at `node`, through Debian's umad emulation.
    pub fn umad_program(&self, name: &str, node: &str, argv: &[&str]) -> Program {
        let mut command = Command::new(argv[0]);
        command.args(&argv[1..]).env("LD_PRELOAD", UMAD2SIM).env("SIM_HOST", node);
        // opensm's state and dumps stay here, and it finds no state of an earlier run.
        command.env("OSM_CACHE_DIR", self.dir.path()).env("OSM_TMP_DIR", self.dir.path());
        self.start(name, command)
    }

    /// Runs a stock tool at `node` to its end, at most a minute; returns what it printed.
    pub fn tool(&self, node: &str, argv: &[&str]) -> ToolOutput {
        let output = Command::new("timeout")
            .arg("60")
            .args(argv)
            .env("LD_PRELOAD", UMAD2SIM)
            .env("IBSIM_SOCKNAME", &self.socket)
            .env("SIM_HOST", node)
            .current_dir(self.dir.path())
            .output()
            .expect("coreutils' timeout runs");
        ToolOutput::from(&output)
    }

    /// Any program on this fabric, at `node`, through our own libibumad (`ibfabric exec`).
    pub fn exec_program(&self, name: &str, node: &str, argv: &[&str]) -> Program {
        self.start(name, self.exec_command(node, argv))
    }

    /// Runs a program at `node` through our own libibumad to its end, at most two minutes; returns
    /// what it printed.
    pub fn exec(&self, node: &str, argv: &[&str]) -> ToolOutput {
        let exec = self.exec_command(node, argv);
        let mut command = Command::new("timeout");
        command.arg("120").arg(exec.get_program()).args(exec.get_args());
        command.env("OSM_CACHE_DIR", self.dir.path()).env("OSM_TMP_DIR", self.dir.path());
        command.env("IBSIM_SOCKNAME", &self.socket).current_dir(self.dir.path());
        let output = command.stdin(Stdio::null()).output().expect("coreutils' timeout runs");
        ToolOutput::from(&output)
    }

    fn exec_command(&self, node: &str, argv: &[&str]) -> Command {
        let mut command = Command::new(binary("ibfabric"));
        command.args(["exec", "--socket", &self.socket, "--node", node, "--"]).args(argv);
        command.env("OSM_CACHE_DIR", self.dir.path()).env("OSM_TMP_DIR", self.dir.path());
        command
    }

    /// Any program on this fabric, at `node`, with `libraries` before our own libibumad, and
    /// `variables` in its environment.
    pub fn preloaded_program(
        &self,
        name: &str,
        node: &str,
        libraries: &[&str],
        variables: &[(&str, &Path)],
        argv: &[&str],
    ) -> Program {
        let mut command = Command::new(argv[0]);
        let libraries = libraries.iter().chain(&["libumad_preload.so"]);
        let preload: Vec<String> =
            libraries.map(|file| library(file).display().to_string()).collect();
        command.args(&argv[1..]).env("LD_PRELOAD", preload.join(":")).env("SIM_HOST", node);
        command.env("OSM_CACHE_DIR", self.dir.path()).env("OSM_TMP_DIR", self.dir.path());
        command.envs(variables.iter().copied());
        self.start(name, command)
    }

    /// Sends the served fabric a command; returns its output.
    pub fn control(&self, words: &[&str]) -> String {
        let output = Command::new(binary("ibfabric"))
            .args(["ctl", "--socket", &self.socket])
            .args(words)
            .output()
            .expect("ibfabric runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// How many times a port of the served fabric was asked to register again: set requests with
    /// ClientReregister that its agents carried out.
    pub fn reregistrations(&self) -> u64 {
        let text = self.control(&["status"]);
        let status: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let count = &status["fabric"]["reregistrations"];
        count.as_u64().unwrap_or_else(|| panic!("no number of reregistrations in {status}"))
    }

    /// A node of the served fabric and its ports, as `ibfabric ctl node` prints them.
    pub fn node(&self, node: &str) -> Value {
        let text = self.control(&["node", node]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// How many times the clients at this node's ports were asked to register again.
    pub fn reregistrations_of(&self, node: &str) -> u64 {
        let view = self.node(node);
        let ports = view["ports"].as_array().map_or(&[][..], Vec::as_slice);
        ports.iter().filter_map(|port| port["reregistrations"].as_u64()).sum()
    }

    fn start(&self, name: &str, mut command: Command) -> Program {
        let log = self.path(&format!("{name}.log"));
        let file = fs::OpenOptions::new().create(true).append(true).open(&log);
        let file = file.expect("the log opens");
        let offset = file.metadata().expect("the log has a size").len();
        let stderr = file.try_clone().expect("the log is duplicated");
        command
            .env("IBSIM_SOCKNAME", &self.socket)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(stderr);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} did not start: {error}"));
        Program { name: name.to_owned(), child, log, offset }
    }
}

/// The status of the manager that publishes at `url`, as `ibsmctl status --json` prints it, once
/// `is` accepts it. `options` are further options of `ibsmctl`.
///
/// # Panics
///
/// If that takes longer than [`PATIENCE`]; `what` describes what was awaited.
pub fn await_status(url: &str, options: &[&str], what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = Command::new(binary("ibsmctl"))
            .args(["--sm", url])
            .args(options)
            .args(["status", "--json"])
            .output()
            .expect("ibsmctl runs");
        match serde_json::from_slice(&output.stdout) {
            Ok(status) if is(&status) => return status,
            _ => assert!(Instant::now() < deadline, "no status with {what}: {output:?}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Whether a status lists at least one responder, and all of them answer from the latest snapshot.
pub fn all_responders_are_current(status: &Value) -> bool {
    let responders = status["responders"].as_array().map_or(&[][..], Vec::as_slice);
    !responders.is_empty() && responders.iter().all(|responder| responder["current"] == true)
}

/// The output of a tool.
#[derive(Debug)]
pub struct ToolOutput {
    /// Whether it exited with 0.
    pub success: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<&std::process::Output> for ToolOutput {
    fn from(output: &std::process::Output) -> Self {
        Self {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A running program. Killed when dropped.
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
    offset: u64,
}

impl Program {
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has logged since it started.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().min(self.offset as usize)..]).into_owned()
    }

    /// Waits until it has logged a line containing `text`; returns that line. Panics with the log
    /// if it ends first, or after [`PATIENCE`].
    pub fn wait_for(&self, text: &str) -> String {
        self.wait_for_nth(text, 1)
    }

    /// Like [`wait_for`](Self::wait_for), for the `nth` such line.
    pub fn wait_for_nth(&self, text: &str, nth: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = self.log();
            if let Some(line) = log.lines().filter(|line| line.contains(text)).nth(nth - 1) {
                return line.to_owned();
            }
            let ended = !Path::new(&format!("/proc/{}/exe", self.pid())).exists();
            assert!(!ended, "{} ended before logging '{text}':\n{log}", self.name);
            assert!(Instant::now() < deadline, "{} did not log '{text}':\n{log}", self.name);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_some()
    }

    /// Waits until it ends.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return (status, self.log());
            }
            assert!(Instant::now() < deadline, "{} did not end:\n{}", self.name, self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it as `kill -9` does.
    pub fn kill(mut self) {
        self.kill_and_wait();
    }

    /// Like [`kill`](Self::kill), for a program that is a field of another type.
    pub fn kill_and_wait(&mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill() takes two integers; the pid is that of a child we have not reaped.
        let result = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// Resident memory now and at its peak, KiB.
    pub fn memory_kib(&self) -> (u64, u64) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        (field("VmRSS:").unwrap_or(0), field("VmHWM:").unwrap_or(0))
    }

    /// CPU time used so far, user and system together.
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 = after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|f| f.parse::<u64>().ok())
            .sum();
        Duration::from_millis(ticks * 10) // USER_HZ is 100 on every Linux we run on.
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- last lines of {}:", self.name);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of one of our programs, built first if necessary. `IBSM_PROGRAMS` names a directory with
/// programs to use as they are.
pub fn binary(name: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os("IBSM_PROGRAMS") {
        return Path::new(&directory).join(name);
    }
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let test = std::env::current_exe().expect("a running test has a path");
        let profile = test
            .ancestors()
            .find(|path| path.join(".fingerprint").exists())
            .expect("tests run from a Cargo target directory")
            .to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["build", "--quiet", "--workspace", "--bins"])
            .args(profile.ends_with("release").then_some("--release"))
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        // Some build scripts treat the variables that Cargo sets for a test as a change, and half
        // of the dependencies would be built again.
        let is_set =
            |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|p| name.starts_with(p));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_set)) {
            cargo.env_remove(name);
        }
        let status = cargo.status().expect("cargo runs");
        assert!(status.success(), "the programs build");
        profile
    });
    directory.join(name)
}

/// Path of one of our libraries to preload: in Cargo's target directory, or an installation.
fn library(name: &str) -> PathBuf {
    let programs = binary("ibfabric");
    let beside = programs.parent().expect("programs are in a directory");
    let places = ["deps", ".", "../lib"].map(|place| beside.join(place).join(name));
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    found.unwrap_or_else(|| panic!("{name} not found in {places:?}"))
}

/// An address on loopback whose port is free for TCP and UDP. It is below the range of ports that
/// the system assigns, and is returned only once per process, so that it stays free until it is
/// used, and while its user restarts.
pub fn free_address() -> SocketAddr {
    const PORTS: Range<u32> = 10_000..32_000;
    static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(std::process::id() * 61));
    let addresses = PORTS.map(|_| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS.len() as u32;
        SocketAddr::from((Ipv4Addr::LOCALHOST, (PORTS.start + next) as u16))
    });
    let is_free = |at: &SocketAddr| TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok();
    addresses.into_iter().find(is_free).expect("loopback has a free port")
}

/// Whether an interop test can run here. If not, prints the reason, or panics if the environment
/// requires all of them (`IBSM_REQUIRE_INTEROP`).
pub fn can_interoperate(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = |program: &&&str| {
        std::env::split_paths(&path)
            .any(|d| d.join(program).exists() || Path::new("/usr/sbin").join(program).exists())
    };
    let missing: Vec<_> = programs.iter().filter(|p| !on_path(p)).collect();
    if missing.is_empty() && File::open(UMAD2SIM).is_ok() {
        return true;
    }
    skip(format_args!("not installed: {missing:?} (Debian: ibsim-utils infiniband-diags opensm)"));
    false
}

/// Whether `program`, which needs no simulator, can run. If not, prints the reason, or panics as
/// [`can_interoperate`] does.
pub fn can_interoperate_with(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|directory| directory.join(program).exists()) {
        return true;
    }
    skip(format_args!("not installed: {program}"));
    false
}
