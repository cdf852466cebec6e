//! A real etcd of three members for tests, each behind a proxy that can cut it off.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::client::Client;
use super::proto::RangeRequest;
use super::{EtcdStatus, EtcdStore, SharedState};
use crate::cli::{EtcdLocation, EtcdTls};
use crate::runtime::store::Store;
use crate::runtime::store::conformance::Bed;
use crate::skip::skip;

const MEMBERS: usize = 3;
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Certificates of members, as files: CA, certificate, key.
pub(in crate::runtime) type CertificateFiles = [PathBuf; 3];

/// A cluster; its processes end with it.
pub(in crate::runtime) struct Cluster {
    members: Vec<Member>,
    /// How many connections a client gets through.
    proxies: Vec<Proxy>,
    data: tempfile::TempDir,
    tls: Option<(CertificateFiles, EtcdTls)>,
}

struct Member {
    arguments: Vec<String>,
    process: Option<Child>,
}

impl Cluster {
    /// Starts a cluster; `None`, with a printed reason, if etcd is not installed.
    pub(in crate::runtime) fn start() -> Option<Self> {
        Self::start_with(None)
    }

    /// Starts a cluster whose clients need certificates.
    pub(in crate::runtime) fn start_with(tls: Option<(CertificateFiles, EtcdTls)>) -> Option<Self> {
        let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        if found.is_err() {
            skip("etcd is not installed (Debian package etcd-server)");
            return None;
        }
        // In memory: what is tested is not the disk.
        let memory = PathBuf::from("/dev/shm");
        let data = match memory.is_dir() {
            true => tempfile::tempdir_in(memory).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        let ports: Vec<u16> = free_ports(2 * MEMBERS);
        let (client_ports, peer_ports) = ports.split_at(MEMBERS);
        let peers: Vec<String> = peer_ports
            .iter()
            .enumerate()
            .map(|(at, port)| format!("m{at}=http://127.0.0.1:{port}"))
            .collect();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut cluster = Self { members: Vec::new(), proxies: Vec::new(), data, tls };
        for (at, (client, peer)) in client_ports.iter().zip(peer_ports).enumerate() {
            let client = format!("{scheme}://127.0.0.1:{client}");
            let peer = format!("http://127.0.0.1:{peer}");
            let mut arguments: Vec<String> = vec![
                format!("--name=m{at}"),
                format!("--data-dir={}", cluster.data.path().join(format!("m{at}")).display()),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster={}", peers.join(",")),
                "--initial-cluster-state=new".to_owned(),
                "--log-level=error".to_owned(),
            ];
            if let Some(([ca, certificate, key], _)) = &cluster.tls {
                arguments.push(format!("--trusted-ca-file={}", ca.display()));
                arguments.push(format!("--cert-file={}", certificate.display()));
                arguments.push(format!("--key-file={}", key.display()));
                arguments.push("--client-cert-auth".to_owned());
            }
            cluster.members.push(Member { arguments, process: None });
            cluster.start_member(at);
        }
        for port in client_ports {
            cluster.proxies.push(Proxy::start(([127, 0, 0, 1], *port).into()));
        }
        cluster.await_leader();
        Some(cluster)
    }

    fn await_leader(&self) {
        let bed = Prefix { cluster: self, prefix: "/await".to_owned(), fold_len: 1 << 20 };
        let mut store = bed.store();
        store.open();
        assert!(store.poll_within(START_PATIENCE).is_some(), "etcd does not start");
    }

    /// Starts a member that does not run.
    pub(in crate::runtime) fn start_member(&mut self, at: usize) {
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.data.path().join(format!("m{at}.log")))
            .unwrap();
        let process = Command::new("etcd")
            .args(&self.members[at].arguments)
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.members[at].process = Some(process);
    }

    /// Kills a member.
    pub(in crate::runtime) fn kill_member(&mut self, at: usize) {
        if let Some(mut process) = self.members[at].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops a member, or lets it continue.
    pub(in crate::runtime) fn pause_member(&self, at: usize, paused: bool) {
        let process = self.members[at].process.as_ref().expect("it runs");
        let pid = Pid::from_child(process);
        kill_process(pid, if paused { Signal::STOP } else { Signal::CONT }).unwrap();
    }

    /// Where clients find it, without the proxies.
    pub(in crate::runtime) fn location(&self, prefix: &str) -> EtcdLocation {
        let endpoints = self.proxies.iter().map(|proxy| proxy.target.to_string()).collect();
        let tls = self.tls.as_ref().map(|(_, tls)| tls.clone());
        EtcdLocation { endpoints, prefix: prefix.to_owned(), tls }
    }

    /// A way to all members that can be cut, for one client.
    pub(in crate::runtime) fn link(&self) -> Vec<Proxy> {
        self.proxies.iter().map(|proxy| Proxy::start(proxy.target)).collect()
    }

    /// A bed whose stores have this prefix, and rewrite their tables early.
    pub(in crate::runtime) fn prefix(&self, prefix: &str) -> Prefix<'_> {
        Prefix { cluster: self, prefix: prefix.to_owned(), fold_len: 200_000 }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for at in 0..self.members.len() {
            self.kill_member(at);
        }
    }
}

/// A prefix of a cluster.
pub(in crate::runtime) struct Prefix<'a> {
    cluster: &'a Cluster,
    prefix: String,
    fold_len: usize,
}

impl Prefix<'_> {
    /// A store that reaches the cluster by this link.
    pub(in crate::runtime) fn store_by(&self, link: &[Proxy]) -> EtcdStore {
        let endpoints = link.iter().map(|proxy| proxy.address.to_string()).collect();
        let location = EtcdLocation { endpoints, ..self.cluster.location(&self.prefix) };
        EtcdStore::start_with(&location, self.fold_len, None).unwrap()
    }

    /// A store that keeps this state besides the registry.
    pub(in crate::runtime) fn store_of(&self, state: &Arc<SharedState>) -> EtcdStore {
        let location = self.cluster.location(&self.prefix);
        EtcdStore::start_with(&location, self.fold_len, Some(state.clone())).unwrap()
    }

    /// Number of pieces of texts.
    pub(in crate::runtime) fn text_keys(&self) -> usize {
        let location = self.cluster.location(&self.prefix);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let status = Arc::new(EtcdStatus::new(location.endpoints.clone()));
            let client = Client::new(&location, &status).unwrap();
            let key = format!("{}/document/", self.prefix).into();
            let range_end = format!("{}/document0", self.prefix).into();
            let request = RangeRequest { key, range_end, ..RangeRequest::default() };
            client.range(request).await.unwrap().kvs.len()
        })
    }
}

impl Bed for Prefix<'_> {
    fn store(&self) -> Box<dyn Store> {
        let location = self.cluster.location(&self.prefix);
        Box::new(EtcdStore::start_with(&location, self.fold_len, None).unwrap())
    }
}

/// Ports that are free now.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// Forwards connections to a member, unless it is cut.
pub(in crate::runtime) struct Proxy {
    address: SocketAddr,
    target: SocketAddr,
    shared: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    /// Nothing passes, and nothing is reset: a network that drops packets.
    cut: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

impl Proxy {
    fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(ProxyState::default());
        let state = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if state.ended.load(SeqCst) {
                    return;
                }
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(target) else { continue };
                let mut connections =
                    state.connections.lock().unwrap_or_else(PoisonError::into_inner);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    connections.push(from.try_clone().unwrap());
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let state = state.clone();
                    thread::spawn(move || forward(from, to, &state));
                }
            }
        });
        Self { address, target, shared }
    }

    /// Cuts the connection, or mends it: what was on its way is lost with its connection.
    pub(in crate::runtime) fn cut(&self, is: bool) {
        self.shared.cut.store(is, SeqCst);
        if !is {
            self.shared.end_connections();
        }
    }
}

impl ProxyState {
    fn end_connections(&self) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, state: &ProxyState) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            // Lost.
            Ok(_) if state.cut.load(SeqCst) => {}
            Ok(len) => {
                if to.write_all(&buffer[..len]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        self.shared.end_connections();
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
    }
}

/// Waits until this is so.
pub(in crate::runtime) fn await_that(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + START_PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}
