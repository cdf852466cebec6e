//! Programs that may have few descriptors, while all of their listeners are full of connections:
//! what they have to do for the subnet still works.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use benches::sandbox::{PATIENCE, Program, Sandbox, binary, free_address};
use ib_mad::transport::Packet;
use ib_mad::types::PKey;
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::ServiceRecord;
use ib_mad::wire::record::service::component as svc;
use ib_mad::wire::sa::{SaMad, attribute};
use sa_proto::proto::admin;
use sa_proto::proto::admin::admin_client::AdminClient;
use sa_proto::proto::registry as proto;
use sa_proto::proto::registry::registry_client::RegistryClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::support::{Host, Subnet, hosts};

/// Descriptors that a program may have.
const LIMIT: usize = 256;
/// Of those, the least that no client can use.
const LEFT_MIN: usize = 24;

/// One of our programs that may have only so many descriptors, hard limit included.
fn limited(sandbox: &Sandbox, program: &str, args: &[&str]) -> Program {
    let script = format!("ulimit -n {LIMIT} && exec \"$0\" \"$@\"");
    let before = ["sh", "-c", &script].map(str::to_owned);
    sandbox.ours_below(&before, program, program, args)
}

fn open_descriptors(program: &Program) -> usize {
    fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap().count()
}

/// Connections to all of these addresses, each with the beginning of what is expected there. Opens
/// others in place of those that are closed, until it is dropped.
struct Crowds {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowds {
    fn at(listeners: &[(SocketAddr, &'static [u8])]) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let threads = listeners.iter().map(|&(address, hello)| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut held = std::collections::VecDeque::new();
                while !stop.load(Relaxed) {
                    // The server may be busy, or refuse it.
                    if let Ok(mut stream) = TcpStream::connect(address) {
                        let _ = stream.write_all(hello);
                        held.push_back(stream);
                    }
                    if held.len() > 2 * LIMIT {
                        held.pop_front();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        });
        Self { threads: threads.collect(), stop }
    }
}

impl Drop for Crowds {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// Begins a connection of HTTP/2 with empty settings, and a request of HTTP.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HTTP: &[u8] = b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A service of `host`.
fn register(host: Host, id: u64) -> proto::Write {
    let mut packet = Packet::default();
    let mut mad = SaMad::new(&mut packet.mad);
    let mask = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY;
    mad.write_request(Method::SET, attribute::SERVICE_RECORD, id, mask);
    ServiceRecord::new(&mut mad.data_mut()[..176])
        .unwrap()
        .set_service_id(id)
        .set_service_gid(host.gid)
        .set_service_pkey(PKey::DEFAULT_FULL);
    let requester = proto::Requester {
        lid: host.lid.0.into(),
        qpn: 1,
        pkey: PKey::DEFAULT_FULL.0.into(),
        ..Default::default()
    };
    let mad = packet.mad.to_vec().into();
    proto::Write { id, mad, requester: Some(requester), seen: u64::MAX }
}

/// Regression: with the default limits of many systems, connections used all descriptors, and the
/// state directory could not be written.
#[tokio::test(flavor = "multi_thread")]
async fn connections_leave_descriptors_for_the_state_directory() {
    let subnet = Subnet::new("descriptors");
    let [http, api, console] = [free_address(), free_address(), free_address()];
    let mut password = Command::new(binary("ibsmctl"))
        .args(["password", "op"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    password.stdin.take().unwrap().write_all(b"secret\n").unwrap();
    let users = subnet.sandbox.path("users");
    fs::write(&users, password.wait_with_output().unwrap().stdout).unwrap();
    let state = subnet.sandbox.path("state");
    let url = subnet.url();
    let publish = url.strip_prefix("http://").unwrap();
    let texts = [http, api].map(|address| address.to_string());
    let port = console.port().to_string();
    let mut args = vec!["--transport", "ibsim", "--socket", subnet.sandbox.socket()];
    args.extend(["--node", "node00001 HCA-1", "--publish", publish]);
    args.extend(["--state-dir", state.to_str().unwrap(), "--http", &texts[0]]);
    args.extend(["--api", &texts[1], "--api-users", users.to_str().unwrap()]);
    args.extend(["--console", "loopback", "-C", &port]);
    let ibsm = limited(&subnet.sandbox, "ibsm", &args);
    ibsm.wait_for("SUBNET UP");
    let host = hosts(&subnet.snapshot().await)[0];
    let mut admin = AdminClient::new(subnet.channel().await);
    let mut registry = RegistryClient::new(subnet.channel().await);
    let (say, said) = mpsc::channel(4);
    let mut outcomes = registry.write(ReceiverStream::new(said)).await.unwrap().into_inner();

    let before = open_descriptors(&ibsm);
    let publish = publish.parse().unwrap();
    let crowds = Crowds::at(&[(publish, HTTP2), (http, HTTP), (api, HTTP), (console, b"")]);
    let deadline = Instant::now() + PATIENCE;
    while open_descriptors(&ibsm) < before + LIMIT / 4 {
        assert!(Instant::now() < deadline, "the listeners do not fill");
        std::thread::sleep(Duration::from_millis(10));
    }
    for id in 1..=20 {
        let open = open_descriptors(&ibsm);
        assert!(open <= LIMIT - LEFT_MIN, "{open} descriptors are open");
        let writes = vec![register(host, id)];
        say.send(proto::Writes { responder_id: 0x51, writes, epoch: 0 }).await.unwrap();
        let message = tokio::time::timeout(PATIENCE, outcomes.message()).await.unwrap();
        let message = message.unwrap().expect("an outcome");
        assert_eq!(message.outcomes[0].status, 0, "it is registered");
        // A file that is opened for this.
        admin.take_baseline(admin::TakeBaselineRequest::default()).await.unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(crowds);
}

/// The same of a responder.
#[tokio::test(flavor = "multi_thread")]
async fn connections_leave_descriptors_to_a_responder() {
    let subnet = Subnet::new("descriptors_of_a_responder");
    let ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    let [http, agents] = [free_address(), free_address()];
    let texts = [http, agents].map(|address| address.to_string());
    let (url, cache) = (subnet.url(), subnet.sandbox.path("cache"));
    let mut args = vec!["--sm", &url, "--transport", "udp", "--listen", "127.0.0.1:0"];
    args.extend(["--cache-dir", cache.to_str().unwrap()]);
    args.extend(["--http", &texts[0], "--agents", &texts[1]]);
    let ibsa = limited(&subnet.sandbox, "ibsa", &args);
    ibsa.wait_for("serving generation");
    let before = open_descriptors(&ibsa);
    let crowds = Crowds::at(&[(agents, HTTP2), (http, b"GET /metrics HTTP/1.1\r\n")]);
    let deadline = Instant::now() + PATIENCE;
    while open_descriptors(&ibsa) < before + LIMIT / 4 {
        assert!(Instant::now() < deadline, "the listeners do not fill");
        std::thread::sleep(Duration::from_millis(10));
    }
    // It connects to a manager that starts again.
    ibsm.kill();
    let ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("responder serves");
    let open = open_descriptors(&ibsa);
    assert!(open <= LIMIT - LEFT_MIN, "{open} descriptors are open");
    drop(crowds);
}
