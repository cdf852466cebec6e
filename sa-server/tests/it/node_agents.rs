//! Agents of compute nodes and responders over gRPC, in one process: which responder an agent
//! follows, and while what it answers.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ib_mad::types::{Gid, Guid, PKey, SUBNET_PREFIX_DEFAULT};
use sa_proto::proto::node as proto;
use sa_proto::proto::node::node_paths_server::{NodePaths, NodePathsServer};
use sa_proto::proto::node::update::Kind;
use sa_proto::snapshot::{RegistryPlane, Session, Version};
use sa_proto::trust::ClientTrust;
use sa_server::agent::host::Name;
use sa_server::agent::netlink::kernel::{self, Taken};
use sa_server::agent::netlink::{PathUse, Request};
use sa_server::agent::runtime::{KernelSocket, SharedHost, Source, share, work};
use sa_server::node::{AgentCounters, Agents, AgentsConfig, CONTACT_MAX, Contact};
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Response, Status, Streaming};

use crate::common::Chain;

const CHAIN: Chain = Chain { switches: 2, hosts_each: 3 };
/// The host with the agent, and one that it asks for the path to.
const OWN: u16 = 2;
const OTHER: u16 = 5;
const SESSION: Session = Session { epoch: 4, sm_guid: Guid(1) };
const PATIENCE: Duration = Duration::from_secs(60);

/// A responder whose manager the test simulates.
struct Served {
    _agents: Agents,
    url: String,
    counters: Arc<AgentCounters>,
    /// Whether the manager confirms that it is up to date.
    is_confirmed: Arc<AtomicBool>,
}

impl Served {
    /// Without one of the hosts in its snapshot.
    fn start_without(gone: Option<u16>) -> Self {
        let mut plane = CHAIN.plane(|_| {});
        let gone = gone.map(Chain::host_guid);
        plane.nodes.retain(|node| !node.ports.iter().any(|port| Some(port.guid) == gone));
        let registry = Arc::new(RegistryPlane::default());
        let tables = Arc::new(Tables::build(&plane, &registry));
        let version = Version { session: SESSION, fabric_generation: 1, registry_sequence: 0 };
        let publisher = Arc::new(Mutex::new(Publisher::new()));
        let generation = Arc::new(Generation::new(version, tables, registry));
        publisher.lock().unwrap().publish(generation);
        let is_confirmed = Arc::new(AtomicBool::new(true));
        let of_manager = Arc::clone(&is_confirmed);
        let last = Mutex::new(None);
        let contact: Contact = Arc::new(move |session| {
            let mut last = last.lock().unwrap();
            if of_manager.load(Relaxed) {
                *last = Some(Instant::now());
            }
            last.filter(|_| session == SESSION)
        });
        let address = "127.0.0.1:0".parse().unwrap();
        let config = AgentsConfig { address, tls: None, insecure: false };
        let counters = Arc::<AgentCounters>::default();
        let served = Agents::serve(&config, publisher, Arc::clone(&counters), contact);
        let (agents, address) = served.unwrap();
        agents.follow();
        let url = format!("http://{address}");
        Self { _agents: agents, url, counters, is_confirmed }
    }
}

/// The agent on a thread, with the kernel's end of its socket.
struct Agent {
    kernel: UnixDatagram,
    host: SharedHost,
}

impl Agent {
    fn start(urls: &[&str]) -> Self {
        let trust = ClientTrust::default();
        let sources: Vec<Source> =
            urls.iter().map(|url| Source::new(url, &trust).unwrap()).collect();
        let (kernel, own) = UnixDatagram::pair().unwrap();
        kernel.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = Name { device: "mlx5_0".into(), port: 1 };
        let host = share(vec![(name, Chain::host_guid(OWN))]);
        let shared = SharedHost::clone(&host);
        std::thread::spawn(move || -> io::Error {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                work(KernelSocket::of(own.into()).unwrap(), &sources, &shared).await
            })
        });
        Self { kernel, host }
    }

    fn is_answered(&self) -> bool {
        let gid = |lid| Some(Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(lid)));
        let asked = Request {
            device: b"mlx5_0",
            port: 1,
            path_use: PathUse::Reversible,
            service_id: None,
            dgid: gid(OTHER),
            sgid: gid(OWN),
            pkey: Some(PKey::DEFAULT_FULL),
            qos_class: None,
            tclass: None,
        };
        self.kernel.send(&kernel::request(7, &asked)).unwrap();
        let mut buffer = [0; 4096];
        let len = self.kernel.recv(&mut buffer).unwrap();
        matches!(kernel::take(&buffer[..len], PathUse::Reversible)[0].1, Taken::Path(_))
    }

    /// Waits until requests are answered, or are not.
    fn await_answered(&self, is_answered: bool) {
        let deadline = Instant::now() + PATIENCE;
        while self.is_answered() != is_answered {
            assert!(Instant::now() < deadline, "answered: {}", !is_answered);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Regression: in a split fabric an agent followed the responder of the other part, which did not
/// have its port, and tried no other.
#[test]
fn a_port_follows_a_responder_that_has_it() {
    // Which of two is preferred depends on their addresses: each attempt has new ones.
    let mut unknown = 0;
    for lacks in (0..2).cycle().take(64) {
        let served = [0, 1].map(|at| Served::start_without((at == lacks).then_some(OWN)));
        let agent = Agent::start(&[&served[0].url, &served[1].url]);
        agent.await_answered(true);
        assert_eq!(served[lacks].counters.following.load(Relaxed), 0);
        unknown += served[lacks].counters.unknown.load(Relaxed);
        if unknown > 0 {
            return;
        }
    }
    panic!("the one without the port was never preferred");
}

#[test]
fn an_agent_answers_while_the_manager_confirms_and_goes_on_with_what_it_holds() {
    let served = Served::start_without(None);
    let agent = Agent::start(&[&served.url]);
    agent.await_answered(true);
    let sent = served.counters.records.load(Relaxed);
    let stopped = Instant::now();
    served.is_confirmed.store(false, Relaxed);
    agent.await_answered(false);
    // Not at once: heartbeats state the age of the last confirmation.
    assert!(stopped.elapsed() > CONTACT_MAX / 2, "{:?}", stopped.elapsed());
    served.is_confirmed.store(true, Relaxed);
    agent.await_answered(true);
    assert_eq!(served.counters.records.load(Relaxed), sent, "nothing is sent again");
    assert_eq!(served.counters.updates.load(Relaxed), 1);
    let host = agent.host.lock().unwrap();
    assert_eq!(host.ports()[0].1.version(), (SESSION.epoch, 1));
}

/// A responder without paths that returns pings, and the greatest that arrived.
#[derive(Clone, Default)]
struct Echo {
    ping: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl NodePaths for Echo {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<proto::Update, Status>> + Send>>;

    async fn follow(
        &self,
        request: tonic::Request<Streaming<proto::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let mut requests = request.into_inner();
        let (sender, messages) = mpsc::channel(4);
        let highest = Arc::clone(&self.ping);
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                highest.fetch_max(request.ping, Relaxed);
                let confirmation = Some(proto::Confirmation { ping: request.ping, after_ms: 0 });
                let beat = proto::Heartbeat { session: 1, generation: 1, confirmation };
                let beat = proto::Update { kind: Some(Kind::Heartbeat(beat)) };
                if sender.send(Ok(beat)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

#[tokio::test]
async fn an_agent_pings_again_when_a_ping_has_returned() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let echo = Echo::default();
    let service = NodePathsServer::new(echo.clone());
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let _agent = Agent::start(&[&url]);
    let deadline = Instant::now() + PATIENCE;
    while echo.ping.load(Relaxed) < 5 {
        assert!(Instant::now() < deadline, "{}", echo.ping.load(Relaxed));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
