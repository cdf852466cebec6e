//! A test bed on stock `ibsim`: the simulator, and programs that run against it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fabric_sim::serve::Server;
use fabric_sim::{Fabric, Options};
use ib_mad::netlist::Net;
use serde_json::Value;

use crate::skip::skip;

const EXAMPLES: &str = "/usr/share/doc/ibsim-utils/net-examples";
const PROGRAMS: [&str; 6] =
    ["ibsim", "ibsim-run", "ibnetdiscover", "iblinkinfo", "ibroute", "ibtracert"];

/// A simulator and the programs that run against it; all end with it.
pub(crate) struct Bed {
    pub(crate) socket: String,
    pub(crate) dir: tempfile::TempDir,
    children: Vec<Child>,
    /// Number of managers started so far; each has a separate log.
    managers: usize,
    /// Addresses of managers, by node and purpose.
    addresses: RefCell<BTreeMap<(String, &'static str), String>>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Bed {
    /// Starts a simulator of `net`; `None` if the programs are not installed.
    pub(crate) fn new(net: &Path) -> Option<Self> {
        let mut bed = Self::without_simulator(net)?;
        let log = File::create(bed.dir.path().join("ibsim.log")).unwrap();
        let mut ibsim = bed.command("ibsim");
        ibsim.args(["-s", "-n"]).arg(net).stdout(log.try_clone().unwrap()).stderr(log);
        bed.children.push(ibsim.spawn().unwrap());
        bed.await_socket();
        Some(bed)
    }

    /// Starts this project's simulator instead, which routes traps and their repression as fabrics
    /// do. It serves until the process ends.
    pub(crate) fn on_ibfabric(net: &Path) -> Option<Self> {
        let bed = Self::without_simulator(net)?;
        let net = Net::read(net).unwrap();
        let fabric = Fabric::new(&net, Options::default());
        let mut server = Server::bind(fabric, &bed.socket).unwrap();
        std::thread::spawn(move || server.run());
        bed.await_socket();
        Some(bed)
    }

    fn without_simulator(net: &Path) -> Option<Self> {
        let missing = PROGRAMS.iter().find(|name| find(name).is_none());
        if let Some(name) = missing {
            skip(format_args!("{name} is not installed (ibsim-utils, infiniband-diags)"));
            return None;
        }
        if !net.exists() {
            skip(format_args!("{} is not there", net.display()));
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Some(Self {
            socket: format!("sm-core-{}-{number}", std::process::id()),
            dir: tempfile::tempdir().unwrap(),
            children: Vec::new(),
            managers: 0,
            addresses: RefCell::default(),
        })
    }

    /// What this project's simulator answers to a command.
    pub(crate) fn console(&self, words: &[&str]) -> String {
        let address = SocketAddr::from_abstract_name(format!("{}:console\0", self.socket)).unwrap();
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.write_all(format!("{}\n", words.join(" ")).as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(!text.starts_with("error"), "{words:?}: {text}");
        text
    }

    pub(crate) fn await_socket(&self) {
        let name = format!("@{}:ctl", self.socket);
        let end = Instant::now() + Duration::from_secs(20);
        while !std::fs::read_to_string("/proc/net/unix").unwrap().contains(&name) {
            assert!(Instant::now() < end, "ibsim did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
        // libumad2sim leaves a directory of files in the working directory.
        command.current_dir(self.dir.path());
        command.env("IBSIM_SOCKNAME", &self.socket).stdin(Stdio::null());
        command
    }

    /// `ibsm` on `node`, with a state directory of that name, and addresses of its own.
    pub(crate) fn ibsm(&self, node: &str) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_ibsm"));
        let state = self.dir.path().join(format!("state-{node}"));
        let (publish, http) = (self.address(node, "publish"), self.address(node, "http"));
        command.args(["--transport", "ibsim", "--publish", &publish, "--http", &http]);
        command.args(["--node", node]);
        command.arg("--state-dir").arg(state).env_remove("RUST_LOG").env_remove("OSM_TMP_DIR");
        command
    }

    /// Starts `ibsm` on `node` and waits until the subnet is up. Returns its process.
    pub(crate) fn manage(&mut self, node: &str, arguments: &[&str]) -> Child {
        self.managers += 1;
        let log = self.dir.path().join(format!("ibsm-{}.log", self.managers));
        let mut ibsm = self.ibsm(node);
        ibsm.args(arguments).arg("-f").arg(&log).stdout(Stdio::null());
        let child = ibsm.spawn().unwrap();
        self.await_line(&log, "SUBNET UP");
        child
    }

    /// Where the `ibsm` on `node` listens for `purpose`.
    pub(crate) fn address(&self, node: &str, purpose: &'static str) -> String {
        let mut addresses = self.addresses.borrow_mut();
        addresses.entry((node.to_owned(), purpose)).or_insert_with(free_address).clone()
    }

    /// What `ibsmctl`, with these options and words, prints as JSON about the `ibsm` on `node`.
    fn ask(&self, node: &str, options: &[String], words: &[&str]) -> Option<Value> {
        let scheme = if options.is_empty() { "http" } else { "https" };
        let url = format!("{scheme}://{}", self.address(node, "publish"));
        let mut ibsmctl = Command::new(env!("CARGO_BIN_EXE_ibsmctl"));
        let output = ibsmctl.args(options).args(["--sm", &url]).args(words).output().unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The status of the `ibsm` on `node`, once `is` accepts it. `tls` are the TLS options of an
    /// operator, if it needs any.
    pub(crate) fn await_status(
        &self,
        node: &str,
        tls: &[String],
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.ask(node, tls, &["status", "--json"]);
            match status {
                Some(status) if is(&status) => return status,
                _ => assert!(Instant::now() < end, "no status with {what}: {status:?}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A sample of the metrics of the `ibsm` on `node`, by its series; `None` while it serves none.
    pub(crate) fn metric(&self, node: &str, series: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(self.address(node, "http")).ok()?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let mut samples = text.lines().filter_map(|line| line.rsplit_once(' '));
        let (_, value) = samples.find(|(name, _)| *name == series)?;
        value.parse().ok()
    }

    /// Waits until a metric has a value that `is` accepts.
    pub(crate) fn await_metric(&self, node: &str, series: &str, is: impl Fn(f64) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let value = self.metric(node, series);
            if value.is_some_and(&is) {
                return;
            }
            assert!(Instant::now() < end, "{series} is {value:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn await_line(&self, log: &Path, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            if log.contains(text) {
                return;
            }
            assert!(Instant::now() < end, "no '{text}' in:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a stock tool on `node`; returns its output.
    pub(crate) fn tool(&self, node: &str, words: &[&str]) -> String {
        let mut command = self.command("ibsim-run");
        let program = find(words[0]).unwrap();
        let output = command.arg(program).args(&words[1..]).env("SIM_HOST", node).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// An address on loopback whose port is free. It is below the range of ports that the system
/// assigns, and is returned only once per process, so that it stays free until it is used, and
/// while its user restarts.
fn free_address() -> String {
    const PORTS: std::ops::Range<u32> = 10_000..32_000;
    static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(std::process::id() * 67));
    let addresses = PORTS.map(|_| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS.len() as u32;
        format!("127.0.0.1:{}", PORTS.start + next)
    });
    let is_free = |address: &String| TcpListener::bind(address).is_ok();
    addresses.into_iter().find(is_free).expect("loopback has a free port")
}

/// Finds a program on the usual paths; the tools are in /usr/sbin, which may not be in PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/sbin", "/usr/bin", "/sbin"]);
    places.map(|place| Path::new(place).join(program)).find(|path| path.is_file())
}

pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(EXAMPLES).join(name)
}

/// Sends a signal to a program that still runs.
pub(crate) fn signal(child: &Child, signal: i32) {
    // SAFETY: kill accepts any process id; this one is a child process that has not been waited
    // for.
    unsafe { libc::kill(child.id() as libc::pid_t, signal) };
}

/// Waits until a program has ended; kills it and panics if that takes longer than a minute.
pub(crate) fn await_end(child: &mut Child, what: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{what} does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
