//! A real etcd of three members on loopback.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::sandbox::{Program, Sandbox, can_interoperate_with, free_address};

/// Number of members.
const MEMBERS: usize = 3;

/// Members of a cluster, which end with it.
pub struct Etcd {
    members: Vec<Program>,
    clients: Vec<SocketAddr>,
    arguments: Vec<Vec<String>>,
    sandbox: Sandbox,
    _data: tempfile::TempDir,
}

impl Etcd {
    /// Starts three members with their data in memory; `None`, with a printed reason, if etcd is
    /// not installed.
    pub fn start() -> Option<Self> {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Self::start_in(&directory)
    }

    /// The same with their data below this directory.
    pub fn start_in(directory: &Path) -> Option<Self> {
        if !can_interoperate_with("etcd") {
            return None;
        }
        let data = tempfile::tempdir_in(directory).expect("a directory for etcd");
        let clients: Vec<_> = (0..MEMBERS).map(|_| free_address()).collect();
        let peers: Vec<_> = (0..MEMBERS).map(|_| free_address()).collect();
        let all = (0..).zip(&peers).map(|(at, peer)| format!("m{at}=http://{peer}"));
        let all = all.collect::<Vec<_>>().join(",");
        let arguments = clients.iter().zip(&peers).enumerate().map(|(at, (client, peer))| {
            vec![
                "etcd".to_owned(),
                format!("--name=m{at}"),
                format!("--data-dir={}", data.path().join(format!("m{at}")).display()),
                format!("--listen-client-urls=http://{client}"),
                format!("--advertise-client-urls=http://{client}"),
                format!("--listen-peer-urls=http://{peer}"),
                format!("--initial-advertise-peer-urls=http://{peer}"),
                format!("--initial-cluster={all}"),
                "--log-level=error".to_owned(),
            ]
        });
        let arguments = arguments.collect();
        let sandbox = Sandbox::new("etcd");
        let mut etcd = Self { members: Vec::new(), clients, arguments, sandbox, _data: data };
        etcd.members = (0..MEMBERS).map(|at| etcd.run(at)).collect();
        Some(etcd)
    }

    fn run(&self, at: usize) -> Program {
        let argv: Vec<&str> = self.arguments[at].iter().map(String::as_str).collect();
        self.sandbox.program(&format!("m{at}"), &argv)
    }

    /// Kills a member as `kill -9` does.
    pub fn kill(&mut self, at: usize) {
        self.members[at].kill_and_wait();
    }

    /// Starts a member that was killed.
    pub fn start_again(&mut self, at: usize) {
        self.members[at] = self.run(at);
    }

    /// Sends a member a signal.
    pub fn signal(&self, at: usize, signal: i32) {
        self.members[at].signal(signal);
    }

    /// CPU time of all members so far.
    pub fn cpu(&self) -> Duration {
        self.members.iter().map(Program::cpu).sum()
    }

    /// The value of `ibsm --store`.
    pub fn url(&self) -> String {
        let members: Vec<String> = self.clients.iter().map(SocketAddr::to_string).collect();
        format!("etcd://{}/ibsm/test", members.join(","))
    }
}
