//! A real etcd of three members on loopback. Members reach each other through proxies, so that one
//! can be cut off from the others though its clients reach it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::sandbox::{Program, Sandbox, can_interoperate_with, free_address};

/// Number of members.
const MEMBERS: usize = 3;

/// Members of a cluster, which end with it.
pub struct Etcd {
    members: Vec<Program>,
    clients: Vec<SocketAddr>,
    arguments: Vec<Vec<String>>,
    network: Arc<Network>,
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

    /// The same, each with room for so many bytes.
    pub fn start_with_quota(bytes: usize) -> Option<Self> {
        Self::start_as(&std::env::temp_dir(), &[format!("--quota-backend-bytes={bytes}")])
    }

    /// The same with their data below this directory.
    pub fn start_in(directory: &Path) -> Option<Self> {
        Self::start_as(directory, &[])
    }

    fn start_as(directory: &Path, options: &[String]) -> Option<Self> {
        if !can_interoperate_with("etcd") {
            return None;
        }
        let data = tempfile::tempdir_in(directory).expect("a directory for etcd");
        let clients: Vec<_> = (0..MEMBERS).map(|_| free_address()).collect();
        let peers: Vec<_> = (0..MEMBERS).map(|_| free_address()).collect();
        let network = Arc::new(Network::default());
        let doors: Vec<_> = (0..).zip(&peers).map(|(at, peer)| network.door(at, *peer)).collect();
        let all = (0..).zip(&doors).map(|(at, peer)| format!("m{at}=http://{peer}"));
        let all = all.collect::<Vec<_>>().join(",");
        let arguments = (0..MEMBERS).map(|at| {
            let (client, peer, door) = (clients[at], peers[at], doors[at]);
            let mut argv = vec![
                "etcd".to_owned(),
                format!("--name=m{at}"),
                format!("--data-dir={}", data.path().join(format!("m{at}")).display()),
                format!("--listen-client-urls=http://{client}"),
                format!("--advertise-client-urls=http://{client}"),
                format!("--listen-peer-urls=http://{peer}"),
                format!("--initial-advertise-peer-urls=http://{door}"),
                format!("--initial-cluster={all}"),
                "--log-level=error".to_owned(),
            ];
            argv.extend_from_slice(options);
            argv
        });
        let arguments = arguments.collect();
        let sandbox = Sandbox::new("etcd");
        let members = Vec::new();
        let mut etcd = Self { members, clients, arguments, network, sandbox, _data: data };
        etcd.members = (0..MEMBERS).map(|at| etcd.run(at)).collect();
        Some(etcd)
    }

    fn run(&self, at: usize) -> Program {
        let argv: Vec<&str> = self.arguments[at].iter().map(String::as_str).collect();
        let member = self.sandbox.program(&format!("m{at}"), &argv);
        self.network.processes[at].store(member.pid(), Relaxed);
        member
    }

    /// Cuts a member off from the others, or ends that: what is sent meanwhile arrives then.
    pub fn cut_off(&self, at: usize, is_cut: bool) {
        self.network.is_cut[at].store(is_cut, Relaxed);
    }

    /// The member that leads, if one says so.
    pub fn leader(&self) -> Option<usize> {
        let number = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        (0..MEMBERS).find(|&at| {
            let status = post(self.clients[at], "maintenance/status", "{}");
            status.is_some_and(|status| {
                let leader = number(&status["leader"]);
                leader.is_some() && leader == number(&status["header"]["member_id"])
            })
        })
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

    /// Writes keys of half a megabyte until the quota is reached.
    pub fn fill(&self) {
        // Both are in Base64.
        let value = "A".repeat(700_000);
        for number in 1000.. {
            let body = format!("{{\"key\":\"{number}\",\"value\":\"{value}\"}}");
            let answer = post(self.clients[0], "kv/put", &body).expect("the member answers");
            if answer.get("error").is_some() {
                return;
            }
        }
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

/// What a member answers to a call of its gateway; `None` if it does not within some seconds.
fn post(client: SocketAddr, call: &str, body: &str) -> Option<serde_json::Value> {
    let mut connection = TcpStream::connect_timeout(&client, Duration::from_secs(1)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let request = format!(
        "POST /v3/{call} HTTP/1.0\r\nHost: {client}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).ok()?;
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    serde_json::from_slice(&answer[body..]).ok()
}

/// The network between the members.
#[derive(Default)]
struct Network {
    processes: [AtomicU32; MEMBERS],
    is_cut: [AtomicBool; MEMBERS],
}

impl Network {
    /// The address at which the others reach a member that listens at `peer`.
    fn door(self: &Arc<Self>, at: usize, peer: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let network = self.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // The kernel's table of sockets may skip one while others come and go. A connection
                // that could not be cut is closed: the member connects again.
                let Some(from) = network.member_at(&client) else { continue };
                let Ok(server) = TcpStream::connect(peer) else { continue };
                for (source, target) in [(&client, &server), (&server, &client)] {
                    let (source, target) = (source.try_clone(), target.try_clone());
                    let (Ok(source), Ok(target)) = (source, target) else { continue };
                    let network = network.clone();
                    thread::spawn(move || network.pass(source, target, [at, from]));
                }
            }
        });
        address
    }

    /// The member whose end of a connection this is connected to.
    fn member_at(&self, connection: &TcpStream) -> Option<usize> {
        let port = connection.peer_addr().ok()?.port();
        let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
        let inode = table.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let is_it = words.next()?.ends_with(&format!(":{port:04X}"));
            words.nth(7).filter(|_| is_it)
        })?;
        let socket = format!("socket:[{inode}]");
        (0..MEMBERS).find(|&at| {
            let process = self.processes[at].load(Relaxed);
            let files = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
            let mut links = files.flatten().filter_map(|file| file.path().read_link().ok());
            links.any(|link| link.as_os_str() == socket.as_str())
        })
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, members: [usize; 2]) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            while members.iter().any(|&at| self.is_cut[at].load(Relaxed)) {
                thread::sleep(Duration::from_millis(20));
            }
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}
