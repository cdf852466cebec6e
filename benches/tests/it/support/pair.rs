//! Two subnet managers on one fabric that follow each other or share a store, and a client that
//! keeps what they acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::{Host, Subnet, hosts};
use benches::published;
use benches::sandbox::{PATIENCE, Program, free_address};
use ib_mad::types::PKey;
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::ServiceRecord;
use ib_mad::wire::record::service::component as svc;
use ib_mad::wire::sa::{SaMad, attribute};
use sa_proto::proto::admin::admin_client::AdminClient;
use sa_proto::proto::admin::{Status, StatusRequest};
use sa_proto::proto::registry as proto;
use sa_proto::proto::registry::registry_client::RegistryClient;
use sa_proto::snapshot::Snapshot;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// What the network between two programs does.
#[derive(Default)]
pub(crate) struct Link {
    /// Packets are dropped, and nothing shows it.
    pub(crate) is_cut: AtomicBool,
    pub(crate) delay_ms: AtomicU64,
    /// Open connections, both ends.
    connections: Mutex<Vec<TcpStream>>,
}

impl Link {
    /// Breaks all connections.
    pub(crate) fn reset(&self) {
        for connection in self.connections.lock().expect("no holder panics").drain(..) {
            // An error means that it is closed.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Passes connections on to `to`; returns the address to use instead.
pub(crate) fn proxy(to: SocketAddr) -> (SocketAddr, Arc<Link>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let (address, link) = (listener.local_addr().expect("it is bound"), Arc::new(Link::default()));
    let shared = link.clone();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // While packets are dropped, a connection is neither accepted nor refused.
            while shared.is_cut.load(Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
            let Ok(server) = TcpStream::connect(to) else { continue };
            let ends = [&client, &server].map(|end| end.try_clone().expect("a descriptor"));
            shared.connections.lock().expect("no holder panics").extend(ends);
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let link = shared.clone();
                thread::spawn(move || pass(from, to, &link));
            }
        }
    });
    (address, link)
}

fn pass(mut from: TcpStream, mut to: TcpStream, link: &Link) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        thread::sleep(Duration::from_millis(link.delay_ms.load(Relaxed)));
        while link.is_cut.load(Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Two managers on one fabric, the first of which is preferred.
pub(crate) struct Pair {
    pub(crate) subnet: Subnet,
    pub(crate) publish: [SocketAddr; 2],
    /// The store that they share, instead of following each other.
    store: Option<String>,
    /// Where each follows the other, and what is between them.
    follow: [SocketAddr; 2],
    /// Whether they do.
    follows: bool,
    /// Numbers of their hosts.
    pub(crate) hosts: [usize; 2],
    /// The command line before that of a manager: of a program that starts it.
    pub(crate) before: Vec<String>,
    /// Variables in the environment of each.
    pub(crate) environment: [Vec<(&'static str, PathBuf)>; 2],
    pub(crate) links: [Arc<Link>; 2],
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl Pair {
    pub(crate) fn new(name: &str) -> Self {
        let subnet = Subnet::new(name);
        let publish = [free_address(), free_address()];
        let [(second, first_link), (first, second_link)] = [proxy(publish[1]), proxy(publish[0])];
        let config = subnet.sandbox.path("ibsm.conf");
        let text = "sminfo_polling_timeout 300\npolling_retry_number 3\nsweep_interval 2\n";
        std::fs::write(config, text).expect("the sandbox can be written");
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("threads");
        let (follow, links) = ([second, first], [first_link, second_link]);
        let (hosts, environment) = ([1, 2], Default::default());
        let (store, follows, before) = (None, true, Vec::new());
        Self { subnet, publish, store, follow, follows, hosts, before, environment, links, runtime }
    }

    /// Managers that know nothing of each other.
    pub(crate) fn strangers(name: &str) -> Self {
        Self { follows: false, ..Self::new(name) }
    }

    /// The same, with this store for both.
    pub(crate) fn with_store(name: &str, store: &str) -> Self {
        Self { store: Some(store.to_owned()), ..Self::new(name) }
    }

    /// A pair with both managers: the first is master, and the second in step with it.
    pub(crate) fn in_step(name: &str) -> (Self, Program, Program) {
        let pair = Self::new(name);
        let first = pair.start(0);
        pair.await_master(0);
        let second = pair.start(1);
        pair.await_in_step(1);
        (pair, first, second)
    }

    /// The state directory of a manager.
    pub(crate) fn state(&self, at: usize) -> PathBuf {
        self.subnet.sandbox.path(&format!("state-{at}"))
    }

    /// Where a manager publishes.
    pub(crate) fn url(&self, at: usize) -> String {
        format!("http://{}", self.publish[at])
    }

    pub(crate) fn start(&self, at: usize) -> Program {
        self.start_with(at, &[])
    }

    /// Starts a manager with more options; the last of equal ones counts.
    pub(crate) fn start_with(&self, at: usize, more: &[&str]) -> Program {
        let sandbox = &self.subnet.sandbox;
        let state = self.state(at);
        let config = sandbox.path("ibsm.conf");
        let publish = self.publish[at].to_string();
        let follow = format!("http://{}", self.follow[at]);
        let node = format!("node{:05} HCA-1", self.hosts[at]);
        let mut args = vec!["--transport", "ibsim", "--socket", sandbox.socket()];
        args.extend(["--node", &node, "--publish", &publish]);
        match &self.store {
            Some(store) => args.extend(["--store", store]),
            None if self.follows => args.extend(["--follow", &follow]),
            None => {}
        }
        args.extend(["--state-dir", state.to_str().expect("UTF-8")]);
        args.extend(["-F", config.to_str().expect("UTF-8"), "-p", ["9", "3"][at]]);
        args.extend(more);
        let name = format!("ibsm-{at}");
        match self.before.is_empty() {
            true => sandbox.ours_with("ibsm", &name, &args, &self.environment[at]),
            false => sandbox.ours_below(&self.before, "ibsm", &name, &args),
        }
    }

    pub(crate) fn responder(&self) -> Program {
        self.responder_at(1, ([127, 0, 0, 1], 0).into())
    }

    /// A responder of this number that listens there.
    pub(crate) fn responder_at(&self, number: usize, listen: SocketAddr) -> Program {
        let sandbox = &self.subnet.sandbox;
        let (name, listen) = (format!("r{number}"), listen.to_string());
        let cache = sandbox.path(&format!("cache-{number}"));
        let urls = self.publish.map(|address| format!("http://{address}"));
        let mut args = vec!["--sm", &urls[0], "--sm", &urls[1], "--name", &name];
        args.extend(["--transport", "udp", "--listen", &listen]);
        args.extend(["--cache-dir", cache.to_str().expect("UTF-8")]);
        sandbox.ours("ibsa", &format!("ibsa-{number}"), &args)
    }

    pub(crate) fn status(&self, at: usize) -> Option<Status> {
        self.runtime.block_on(async {
            let url = format!("http://{}", self.publish[at]);
            let channel = Channel::from_shared(url).unwrap().connect().await.ok()?;
            let answer = AdminClient::new(channel).get_status(StatusRequest {}).await;
            Some(answer.ok()?.into_inner())
        })
    }

    /// Waits until the manager `at` reports this.
    pub(crate) fn await_status(&self, at: usize, what: &str, is: impl Fn(&Status) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status(at);
            if status.as_ref().is_some_and(&is) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {status:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn await_in_step(&self, at: usize) {
        self.await_status(at, "in step", |status| {
            status.registry_copy.as_ref().is_some_and(|copy| copy.in_step)
        });
    }

    /// Waits until the ports were asked to register again since there were `before` requests.
    pub(crate) fn await_reregistrations(&self, before: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.subnet.sandbox.reregistrations() == before {
            assert!(Instant::now() < deadline, "no client was asked to register again");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn await_master(&self, at: usize) {
        self.await_status(at, "master", |status| status.subnet_up);
    }

    /// Waits until the manager at `at` has stored what the other one publishes.
    pub(crate) fn await_copy(&self, at: usize) {
        let published = self.snapshot(1 - at).registry().sequence;
        self.await_status(at, "a copy of all that is published", |status| {
            status.registry_copy.as_ref().is_some_and(|copy| copy.registry_sequence >= published)
        });
    }

    /// A client that has written 100 records, which the second manager has stored.
    pub(crate) fn copied_writer(&self) -> Writer {
        let mut writer = Writer::new(self, &self.snapshot(0));
        self.runtime.block_on(writer.write(100));
        self.await_copy(1);
        writer
    }

    pub(crate) fn snapshot(&self, at: usize) -> Snapshot {
        self.runtime.block_on(published::snapshot(&format!("http://{}", self.publish[at])))
    }
}

/// A client that writes to whichever manager accepts it, and keeps what was acknowledged.
pub(crate) struct Writer {
    pub(crate) publish: [SocketAddr; 2],
    host: Host,
    next: u64,
    /// Services acknowledged, and whether they are registered or deleted.
    pub(crate) acknowledged: BTreeMap<u64, bool>,
}

impl Writer {
    pub(crate) fn new(pair: &Pair, snapshot: &Snapshot) -> Self {
        let host = hosts(snapshot)[5];
        Self { publish: pair.publish, host, next: 1, acknowledged: BTreeMap::new() }
    }

    fn request(&self, service: u64, method: Method) -> proto::Write {
        let mut bytes = [0; 256];
        let mut mad = SaMad::new(&mut bytes);
        let mask = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY;
        let tid = service << 1 | u64::from(method == Method::DELETE);
        mad.write_request(method, attribute::SERVICE_RECORD, tid, mask);
        ServiceRecord::new(&mut mad.data_mut()[..176])
            .unwrap()
            .set_service_id(service)
            .set_service_gid(self.host.gid)
            .set_service_pkey(PKey::DEFAULT_FULL);
        let requester = proto::Requester {
            lid: self.host.lid.0.into(),
            qpn: 1,
            pkey: PKey::DEFAULT_FULL.0.into(),
            ..Default::default()
        };
        proto::Write { id: tid, mad: bytes.to_vec().into(), requester: Some(requester), seen: 0 }
    }

    /// Registers `count` services and deletes a third of them, until all is acknowledged.
    pub(crate) async fn write(&mut self, count: u64) {
        let services: Vec<u64> = (self.next..self.next + count).collect();
        self.next += count;
        let deleted: Vec<u64> = services.iter().copied().filter(|id| id % 3 == 0).collect();
        self.send(&services, Method::SET).await;
        self.send(&deleted, Method::DELETE).await;
        // A port may register 16,384 services.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    async fn send(&mut self, services: &[u64], method: Method) {
        // Until it is acknowledged, either state is right.
        for service in services {
            self.acknowledged.remove(service);
        }
        let requests = services.iter().map(|&service| self.request(service, method));
        let mut open: BTreeMap<u64, proto::Write> =
            requests.map(|write| (write.id, write)).collect();
        let deadline = Instant::now() + PATIENCE;
        for at in (0..2).cycle() {
            if open.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{} writes are unanswered", open.len());
            let url = format!("http://{}", self.publish[at]);
            let Ok(channel) = Channel::from_shared(url).unwrap().connect().await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let (say, said) = mpsc::channel(1);
            let writes = open.values().cloned().collect();
            let _ = say.send(proto::Writes { responder_id: 0x51, writes, epoch: 0 }).await;
            let mut client = RegistryClient::new(channel);
            let call = client.write(ReceiverStream::new(said));
            let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_secs(1), call).await else {
                continue;
            };
            let mut outcomes = answer.into_inner();
            while !open.is_empty() {
                let next = tokio::time::timeout(Duration::from_secs(1), outcomes.message()).await;
                let Ok(Ok(Some(message))) = next else { break };
                for outcome in message.outcomes {
                    let is_open = !outcome.dropped && open.remove(&outcome.id).is_some();
                    // A repeat at another manager is refused if the work is done.
                    if is_open && outcome.status == 0 {
                        self.acknowledged.insert(outcome.id >> 1, method == Method::SET);
                    }
                }
            }
        }
    }

    /// Acknowledged services that are not there, and deleted ones that are.
    pub(crate) fn differences(&self, snapshot: &Snapshot) -> (usize, usize) {
        let there: BTreeSet<u64> =
            snapshot.registry().services.iter().map(|service| service.rid.service_id).collect();
        let wrong = |is_registered: bool| {
            let wrong = |(id, registered): &(&u64, &bool)| {
                **registered == is_registered && there.contains(*id) != is_registered
            };
            self.acknowledged.iter().filter(wrong).count()
        };
        (wrong(true), wrong(false))
    }
}
