//! The gRPC service for agents: a thread with a runtime of its own for connections, and one that
//! finds paths ([`finder`](super::finder)).
//!
//! Each agent has a [`Task`].

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ib_mad::text::printable;
use ib_mad::types::Guid;
use sa_proto::crowd::Share;
use sa_proto::descriptors::Descriptors;
use sa_proto::log_limit::LogLimit;
use sa_proto::proto::node as proto;
use sa_proto::quota::{Full, Place, Places};
use sa_proto::serve::{
    Acceptor, Access, Call, Caller, Calls, Counters, Gate, Identity, Roles, accept,
};
use sa_proto::snapshot::{Session, Version};
use sa_proto::trust::local::LocalRoles;
use sa_proto::trust::{Role, TlsFiles, TrustError};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::finder::{Finder, Job};
use super::half::Halves;
use super::survey::source_of;
use super::task::Task;
use super::{CONTACT_MAX, Follower, HEARTBEAT, lock};
use crate::tables::cell::{Publisher, Reader};
use crate::tables::fabric::Tables;

/// Maximum number of agents at once.
pub const AGENTS_MAX: usize = 1024;
/// Agents of one other host at once: one for each port of a large host, with room.
const AGENTS_OF_HOST_MAX: usize = 32;
/// Messages that a connection has not taken yet.
const OUTBOUND_MAX: usize = 2;
/// Calls at once on one connection: an agent has one for each port of its host.
const CALLS_MAX: u32 = 64;
/// How long an agent may take to name its port.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest request, bytes: a name of a host with room.
const REQUEST_LEN_MAX: usize = 4 << 10;
/// How often a silent connection is probed, and how long an answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const CALLS: [Call; 1] = [("/ibsa.node.v1.NodePaths/", &[Role::Agent])];

/// Lines about agents: a few for each that may follow.
static LINES: LogLimit = LogLimit::new("agents", 4 * AGENTS_MAX as u32, Duration::from_secs(1));

const ACCESS: Access = Access {
    calls: &CALLS,
    server: "this responder",
    remedy: |_, _| "run it as root or as the user of ibsa, or use TLS".to_owned(),
};

/// Why agents cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// No socket, thread or runtime.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The certificates cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// Other hosts could follow paths without being known.
    #[error(
        "the address is open to other hosts and has no TLS; give --tls-ca, --tls-cert and \
         --tls-key, or say --insecure if the network is trusted"
    )]
    Exposed,
}

/// Counts agents and what they are sent.
#[derive(Debug, Default)]
pub struct AgentCounters {
    /// Whether agents are served at all.
    pub is_served: AtomicBool,
    /// Agents that follow paths now.
    pub following: AtomicU64,
    /// Whether the manager confirmed lately that the tables are its latest.
    pub confirmed: AtomicU64,
    /// Agents refused because there were too many, because the manager had confirmed nothing, or
    /// because they named no port.
    pub refused: AtomicU64,
    /// Agents refused because the snapshot does not have their port.
    pub unknown: AtomicU64,
    /// Agents disconnected because they did not read.
    pub slow: AtomicU64,
    /// Times that an agent still read when its turn was over.
    pub behind: AtomicU64,
    /// Times that an agent waited because others of its host or user had used up their part.
    pub held_back: AtomicU64,
    /// Times that the paths of a port were found, for the agents of all ports like it.
    pub surveys: AtomicU64,
    /// Agents brought up to date.
    pub updates: AtomicU64,
    /// Agents that a change of the fabric did not concern.
    pub spared: AtomicU64,
    /// Records sent.
    pub records: AtomicU64,
    /// Connections and calls that were refused.
    pub connections: Arc<Counters>,
}

/// The agents of this responder. They need to be notified of new generations.
#[derive(Clone)]
pub struct Agents {
    shared: Arc<Shared>,
}

/// When the manager of a session was asked, last, for the confirmation by which this responder's
/// tables of that session are its latest; `None` if it has given none.
pub type Contact = Arc<dyn Fn(Session) -> Option<Instant> + Send + Sync>;

/// The tables that were published last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Published {
    /// Counts publications of tables.
    pub(super) number: u64,
    /// The version of the snapshot.
    pub(super) version: Version,
}

pub(super) struct Shared {
    pub(super) publisher: Arc<Mutex<Publisher>>,
    pub(super) published: watch::Sender<Published>,
    pub(super) halves: Halves,
    /// The tables published last.
    tables: Mutex<Option<Arc<Tables>>>,
    pub(super) counters: Arc<AgentCounters>,
    places: Places<Share>,
    pub(super) jobs: mpsc::Sender<Job>,
    contact: Contact,
}

impl Shared {
    /// No agents yet. Those that wait for paths will be sent through `jobs`.
    pub(super) fn new(
        publisher: Arc<Mutex<Publisher>>,
        counters: Arc<AgentCounters>,
        jobs: mpsc::Sender<Job>,
        contact: Contact,
    ) -> Self {
        Self {
            publisher,
            published: watch::Sender::new(Published::default()),
            halves: Halves::default(),
            tables: Mutex::new(None),
            counters,
            places: Places::new(AGENTS_MAX, AGENTS_OF_HOST_MAX),
            jobs,
            contact,
        }
    }

    /// Has agents follow the generation that was published last.
    pub(super) fn follow(&self) {
        let mut reader = self.reader();
        let current = reader.current();
        let version = current.map_or(Version::NONE, |generation| generation.version);
        let tables = current.map(|generation| Arc::clone(&generation.tables));
        drop(reader);
        let mut last = lock(&self.tables);
        let is_same = match (&*last, &tables) {
            (Some(last), Some(now)) => Arc::ptr_eq(last, now),
            (last, now) => last.is_none() && now.is_none(),
        };
        let number = if is_same {
            self.halves.number()
        } else {
            self.halves.advance(last.as_deref(), tables.as_deref())
        };
        *last = tables;
        // Agents are woken only for other tables.
        self.published.send_if_modified(|published| {
            let is_other = published.number != number;
            *published = Published { number, version };
            is_other
        });
    }

    /// What was published last, and when its manager was asked for the confirmation of it. What is
    /// confirmed has been published before, so that an agent that is current is confirmed, too.
    pub(super) fn confirmed(&self) -> (Published, Option<Instant>) {
        let session = self.published.borrow().version.session;
        let asked = (self.contact)(session);
        // After that: newer tables may be confirmed that agents do not have.
        let published = *self.published.borrow();
        (published, asked.filter(|_| published.version.session == session))
    }

    /// Reads the generation that queries are answered from.
    pub(super) fn reader(&self) -> Reader {
        lock(&self.publisher).reader()
    }

    /// Whether what was published last has a port, or nothing was published.
    fn may_know(&self, port: Guid) -> bool {
        let mut reader = self.reader();
        let known = |tables: &Tables| source_of(tables, port).is_some();
        reader.current().is_none_or(|generation| known(&generation.tables))
    }

    /// Whether the manager has confirmed lately what was published last.
    fn is_confirmed(&self) -> bool {
        let (_, asked) = self.confirmed();
        asked.is_some_and(|at| Instant::now().saturating_duration_since(at) < CONTACT_MAX)
    }
}

/// Where and how agents are served.
#[derive(Clone, Debug)]
pub struct AgentsConfig {
    /// The address (`--agents`).
    pub address: SocketAddr,
    /// Certificates, if connections have TLS.
    pub tls: Option<TlsFiles>,
    /// Whether other hosts may connect without TLS.
    pub insecure: bool,
}

impl Agents {
    /// Serves agents from the generations of `publisher`, on threads that last as long as the
    /// process. Agents use them while `contact` is recent. Returns the address, too.
    pub fn serve(
        config: &AgentsConfig,
        publisher: Arc<Mutex<Publisher>>,
        counters: Arc<AgentCounters>,
        contact: Contact,
    ) -> Result<(Self, SocketAddr), ServeError> {
        let is_open = !config.address.ip().to_canonical().is_loopback();
        if is_open && config.tls.is_none() && !config.insecure {
            return Err(ServeError::Exposed);
        }
        let identity = config.tls.clone().map(Identity::load).transpose()?;
        let listener = TcpListener::bind(config.address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (jobs, queue) = mpsc::channel(AGENTS_MAX);
        let shared = Arc::new(Shared::new(publisher, Arc::clone(&counters), jobs, contact));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let finder = Finder::new(Arc::clone(&shared), runtime.handle().clone());
        std::thread::Builder::new()
            .name("ibsa-paths".to_owned())
            .spawn(move || finder.run(queue))?;
        let acceptor = Acceptor {
            identity,
            local: LocalRoles::default(),
            gate: Gate::new(Descriptors::of_process()),
            counters: Arc::clone(&counters.connections),
        };
        let service = Service { shared: Arc::clone(&shared) };
        let watched = Arc::clone(&shared);
        let serve = move || {
            runtime.spawn(watch_contact(watched));
            if let Err(error) = runtime.block_on(serve(listener, acceptor, service)) {
                tracing::error!(
                    "agents are not served until ibsa restarts: {}",
                    sa_proto::with_causes(&*error)
                );
            }
        };
        std::thread::Builder::new().name("ibsa-agents".to_owned()).spawn(serve)?;
        shared.counters.is_served.store(true, Relaxed);
        Ok((Self { shared }, address))
    }

    /// Has agents follow the generation that was published last, as far as their paths may differ
    /// from those of the one before. Must be called after each publication, and before a contact
    /// confirms it.
    pub fn follow(&self) {
        self.shared.follow();
    }
}

/// Logs when contact with the manager is lost and found.
async fn watch_contact(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(HEARTBEAT);
    let mut was_confirmed = false;
    loop {
        ticks.tick().await;
        let is_confirmed = shared.is_confirmed();
        shared.counters.confirmed.store(is_confirmed.into(), Relaxed);
        if was_confirmed && !is_confirmed {
            tracing::warn!(
                agents = shared.counters.following.load(Relaxed),
                "the SM has not confirmed for {} s that this responder is up to date: agents leave \
                 path queries to the SA",
                CONTACT_MAX.as_secs()
            );
        } else if is_confirmed && !was_confirmed {
            tracing::info!("the SM confirms that this responder is up to date: agents may answer");
        }
        was_confirmed = is_confirmed;
    }
}

async fn serve(
    listener: TcpListener,
    acceptor: Acceptor,
    service: Service,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let counters = Arc::clone(&acceptor.counters);
    let roles = Roles::new(ACCESS, Arc::clone(&counters));
    Server::builder()
        .layer(roles)
        .layer(Calls::new(counters))
        .max_concurrent_streams(CALLS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(
            proto::node_paths_server::NodePathsServer::new(service)
                .max_decoding_message_size(REQUEST_LEN_MAX),
        )
        .serve_with_incoming(accept(listener, acceptor))
        .await?;
    Ok(())
}

#[derive(Clone)]
struct Service {
    shared: Arc<Shared>,
}

#[tonic::async_trait]
impl proto::node_paths_server::NodePaths for Service {
    type FollowStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<proto::Update, Status>> + Send>>;

    async fn follow(
        &self,
        request: Request<Streaming<proto::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let counters = &self.shared.counters;
        if !self.shared.is_confirmed() {
            counters.refused.fetch_add(1, Relaxed);
            return Err(Status::unavailable(format!(
                "the SM has not confirmed for {} s that this responder is up to date",
                CONTACT_MAX.as_secs()
            )));
        }
        let caller = request.extensions().get::<Caller>();
        let peer = caller.map(|caller| caller.address);
        let places = &self.shared.places;
        let share = caller.map_or(Share::UNKNOWN, Caller::share);
        let place = match share {
            share @ Share::User(_) => places.enter_trusted(share),
            share @ Share::Host(_) => places.enter(share),
        };
        let place = place.map_err(|full| {
            counters.refused.fetch_add(1, Relaxed);
            Status::resource_exhausted(match full {
                Full::All => format!("this responder serves {AGENTS_MAX} agents already"),
                Full::Share => {
                    format!("it serves {AGENTS_OF_HOST_MAX} agents of this host already")
                }
            })
        })?;
        let place = Following::count(place, Arc::clone(counters));
        let mut requests = request.into_inner();
        let asked = timeout(FIRST_TIMEOUT, requests.message()).await;
        let Ok(Ok(Some(asked))) = asked else {
            counters.refused.fetch_add(1, Relaxed);
            return Err(Status::invalid_argument("no port was named"));
        };
        let ping = (asked.ping, Instant::now());
        let agent = printable(&asked.agent.chars().take(64).collect::<String>());
        let port = Guid(asked.port_guid);
        if !self.shared.may_know(port) {
            counters.unknown.fetch_add(1, Relaxed);
            return Err(Status::not_found(format!("the fabric has no port {port}")));
        }
        if LINES.permits() {
            tracing::info!(?peer, agent, port = %port, "an agent follows the paths of its port");
        }
        let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
        let task = Task::new(Arc::clone(&self.shared), share, outbound, ping, Box::pin(requests));
        tokio::spawn(async move {
            let end = task.run(Follower::new(port)).await;
            if LINES.permits() {
                tracing::info!(?peer, agent, port = %port, "an agent no longer follows: {end}");
            }
            drop(place);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

/// Place of an agent, freed when dropped.
struct Following {
    counters: Arc<AgentCounters>,
    _place: Place<Share>,
}

impl Following {
    fn count(place: Place<Share>, counters: Arc<AgentCounters>) -> Self {
        counters.following.fetch_add(1, Relaxed);
        Self { counters, _place: place }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.counters.following.fetch_sub(1, Relaxed);
    }
}
