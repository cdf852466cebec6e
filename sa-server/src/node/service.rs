//! The gRPC service for agents: a thread with a runtime of its own for connections, and one that
//! finds paths.
//!
//! Each agent has a task. It learns of a new generation at once, says so, has the thread find what
//! changed, and sends it. A generation is held while paths are found, not while they are sent. At
//! most [`TURNS`] agents at a time have changes in memory; one that does not read them is
//! disconnected.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ib_mad::text::printable;
use ib_mad::types::Guid;
use sa_proto::crowd::Share;
use sa_proto::descriptors::Descriptors;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;
use sa_proto::quota::{Full, Place, Places};
use sa_proto::serve::{
    Acceptor, Access, Call, Caller, Calls, Counters, Gate, Identity, Roles, accept,
};
use sa_proto::trust::local::LocalRoles;
use sa_proto::trust::{Role, TlsFiles, TrustError};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::HEARTBEAT;
use super::follower::{Follower, GuidList, update};
use crate::tables::cell::{Generation, Publisher, Reader};
use crate::tables::fabric::Tables;

/// Maximum number of agents at once.
pub const AGENTS_MAX: usize = 256;
/// Agents of one other host at once: one for each port of a large host, with room.
const AGENTS_OF_HOST_MAX: usize = 32;
/// Agents whose changes are in memory at once.
const TURNS: usize = 4;
/// Messages that a connection has not taken yet.
const OUTBOUND_MAX: usize = 2;
/// How long an agent may take to read a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// Calls at once on one connection: an agent has one for each port of its host.
const CALLS_MAX: u32 = 64;
/// How often a silent connection is probed, and how long an answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Added to the priority of the thread that finds paths: queries come first.
const NICENESS: i32 = 10;

const CALLS: [Call; 1] = [("/ibsa.node.v1.NodePaths/", &[Role::Agent])];

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
    /// Agents that follow paths now.
    pub following: AtomicU64,
    /// Agents refused because there were too many.
    pub refused: AtomicU64,
    /// Agents disconnected because they did not read.
    pub slow: AtomicU64,
    /// Times that the paths of an agent were found.
    pub surveys: AtomicU64,
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

struct Shared {
    publisher: Arc<Mutex<Publisher>>,
    /// Numbers the tables that were published.
    published: watch::Sender<u64>,
    /// The tables published last.
    tables: Mutex<Weak<Tables>>,
    counters: Arc<AgentCounters>,
    places: Places<Share>,
    turns: Semaphore,
    jobs: mpsc::Sender<Job>,
}

/// An agent whose paths are to be found.
struct Job {
    follower: Follower,
    done: oneshot::Sender<Found>,
}

/// The agent, and its messages; none if there is no generation.
type Found = (Follower, Option<Vec<proto::Update>>);

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
    /// process. Returns the address, too.
    pub fn serve(
        config: &AgentsConfig,
        publisher: Arc<Mutex<Publisher>>,
        counters: Arc<AgentCounters>,
    ) -> Result<(Self, SocketAddr), ServeError> {
        let is_open = !config.address.ip().to_canonical().is_loopback();
        if is_open && config.tls.is_none() && !config.insecure {
            return Err(ServeError::Exposed);
        }
        let identity = config.tls.clone().map(Identity::load).transpose()?;
        let listener = TcpListener::bind(config.address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (jobs, queue) = mpsc::channel(TURNS);
        let shared = Arc::new(Shared {
            publisher: Arc::clone(&publisher),
            published: watch::Sender::new(0),
            tables: Mutex::new(Weak::new()),
            counters: Arc::clone(&counters),
            places: Places::new(AGENTS_MAX, AGENTS_OF_HOST_MAX),
            turns: Semaphore::new(TURNS),
            jobs,
        });
        let finder = Finder { publisher, counters: Arc::clone(&counters), destinations: None };
        std::thread::Builder::new()
            .name("ibsa-paths".to_owned())
            .spawn(move || finder.run(queue))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let acceptor = Acceptor {
            identity,
            local: LocalRoles::default(),
            gate: Gate::new(Descriptors::of_process()),
            counters: Arc::clone(&counters.connections),
        };
        let service = Service { shared: Arc::clone(&shared) };
        let serve = move || {
            if let Err(error) = runtime.block_on(serve(listener, acceptor, service)) {
                tracing::error!(
                    "agents are not served until ibsa restarts: {}",
                    sa_proto::with_causes(&*error)
                );
            }
        };
        std::thread::Builder::new().name("ibsa-agents".to_owned()).spawn(serve)?;
        Ok((Self { shared }, address))
    }

    /// Has agents follow the generation that was published last, if its paths may differ from those
    /// of the one before. Must be called after each publication.
    pub fn follow(&self) {
        let mut reader = self.shared.reader();
        let tables = reader.current().map(|generation| Arc::downgrade(&generation.tables));
        drop(reader);
        let tables = tables.unwrap_or_default();
        let mut last = lock(&self.shared.tables);
        if !last.ptr_eq(&tables) {
            *last = tables;
            self.shared.published.send_modify(|number| *number += 1);
        }
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
        .add_service(proto::node_paths_server::NodePathsServer::new(service))
        .serve_with_incoming(accept(listener, acceptor))
        .await?;
    Ok(())
}

impl Shared {
    fn reader(&self) -> Reader {
        lock(&self.publisher).reader()
    }
}

/// Finds paths, for one agent at a time.
struct Finder {
    publisher: Arc<Mutex<Publisher>>,
    counters: Arc<AgentCounters>,
    /// All end ports of the tables that paths were found in last.
    destinations: Option<(Weak<Tables>, GuidList)>,
}

impl Finder {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        // Of the calling thread; without it, paths compete with queries.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        while let Some(Job { mut follower, done }) = jobs.blocking_recv() {
            if done.is_closed() {
                continue;
            }
            // A reader that lasted would keep a generation from being freed.
            let mut reader = lock(&self.publisher).reader();
            let messages = reader.current().map(|generation| {
                let destinations = self.destinations(generation);
                let messages = follower.update(generation, &destinations);
                self.counters.surveys.fetch_add(1, Relaxed);
                messages
            });
            drop(reader);
            // The agent may have left.
            let _ = done.send((follower, messages));
        }
    }

    /// All end ports of a generation; the same list for all agents.
    fn destinations(&mut self, generation: &Generation) -> GuidList {
        let tables = Arc::downgrade(&generation.tables);
        let before = self.destinations.take();
        let list = match &before {
            Some((of, list)) if of.ptr_eq(&tables) => Arc::clone(list),
            _ => Follower::destinations(generation, before.as_ref().map(|(_, list)| list)),
        };
        self.destinations = Some((tables, Arc::clone(&list)));
        list
    }
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
        request: Request<proto::FollowRequest>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let counters = &self.shared.counters;
        let caller = request.extensions().get::<Caller>();
        let peer = caller.map(|caller| caller.address);
        let places = &self.shared.places;
        let place = match caller.map_or(Share::UNKNOWN, Caller::share) {
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
        let asked = request.into_inner();
        let agent = printable(&asked.agent.chars().take(64).collect::<String>());
        let port = Guid(asked.port_guid);
        tracing::info!(?peer, agent, port = %port, "an agent follows the paths of its port");
        let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
        let task = Task { shared: Arc::clone(&self.shared), outbound };
        let published = self.shared.published.subscribe();
        tokio::spawn(async move {
            let end = task.run(Follower::new(port), published).await;
            tracing::info!(?peer, agent, port = %port, "an agent no longer follows: {end}");
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

/// Why an agent is not served any more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum End {
    #[error("it left")]
    Left,
    #[error("it read no message within {} s", PATIENCE.as_secs())]
    Slow,
    #[error("the thread that finds paths has ended")]
    NoFinder,
}

/// The task of one agent.
struct Task {
    shared: Arc<Shared>,
    outbound: mpsc::Sender<Result<proto::Update, Status>>,
}

impl Task {
    async fn run(self, mut follower: Follower, mut published: watch::Receiver<u64>) -> End {
        let mut heartbeats = interval(HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first generation is followed without a change.
        published.mark_changed();
        loop {
            loop {
                tokio::select! {
                    changed = published.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return End::NoFinder,
                    },
                    _ = heartbeats.tick() => self.beat(),
                    () = self.outbound.closed() => return End::Left,
                }
            }
            if let Err(end) = self.send(update(Kind::Changing(proto::Changing {}))).await {
                return end;
            }
            let found = self.find(follower, &mut published);
            let (turn, back, messages) = match self.beating(&mut heartbeats, found).await {
                Ok(found) => found,
                Err(end) => return end,
            };
            follower = back;
            for message in messages.unwrap_or_default() {
                if let Some(Kind::Changes(changes)) = &message.kind {
                    let records = changes.records.len() / 64;
                    self.shared.counters.records.fetch_add(records as u64, Relaxed);
                }
                // A newer generation is not current any more.
                let is_current = matches!(message.kind, Some(Kind::Current(_)));
                if is_current && published.has_changed().unwrap_or(true) {
                    break;
                }
                if let Err(end) = self.send(message).await {
                    return end;
                }
            }
            drop(turn);
        }
    }

    /// Has the messages for the latest generation made.
    async fn find(
        &self,
        follower: Follower,
        published: &mut watch::Receiver<u64>,
    ) -> Result<(SemaphorePermit<'_>, Follower, Option<Vec<proto::Update>>), End> {
        let turn = self.shared.turns.acquire().await.map_err(|_| End::NoFinder)?;
        // A change from now on is found after this one.
        published.mark_unchanged();
        let (done, found) = oneshot::channel();
        self.shared.jobs.send(Job { follower, done }).await.map_err(|_| End::NoFinder)?;
        let (follower, messages) = found.await.map_err(|_| End::NoFinder)?;
        Ok((turn, follower, messages))
    }

    /// Sends heartbeats while something is awaited.
    async fn beating<T>(
        &self,
        heartbeats: &mut Interval,
        awaited: impl Future<Output = Result<T, End>>,
    ) -> Result<T, End> {
        tokio::pin!(awaited);
        loop {
            tokio::select! {
                result = &mut awaited => return result,
                _ = heartbeats.tick() => self.beat(),
                () = self.outbound.closed() => return Err(End::Left),
            }
        }
    }

    /// Shows that the responder lives, unless messages under way do.
    fn beat(&self) {
        let _ = self.outbound.try_send(Ok(update(Kind::Heartbeat(proto::Heartbeat {}))));
    }

    async fn send(&self, message: proto::Update) -> Result<(), End> {
        match timeout(PATIENCE, self.outbound.send(Ok(message))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Left),
            Err(_) => {
                self.shared.counters.slow.fetch_add(1, Relaxed);
                Err(End::Slow)
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
