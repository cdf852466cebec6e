//! The publishing end of the snapshot feed: turns planes into snapshots, remembers how one led to
//! the next, and serves responders over gRPC.
//!
//! [`Publisher`] is called by the SM's own threads and never waits for a responder; a runtime of
//! its own serves them. What a sweep finds is not decided here, nor what a write does to the
//! registry; [`feed`] decides what a responder is sent.

mod asking;
mod batches;
mod feed;
mod observatory;
mod registered;
mod responders;
mod roles;
mod service;
mod session;
mod tls;
mod virtual_fabrics;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use ib_mad::types::Guid;
use sa_proto::proto::{admin, snapshot as proto};
use sa_proto::snapshot::cell::{self, Reader};
use sa_proto::snapshot::{
    BuildError, Delta, FabricPlane, History, HistoryLimits, Mft, RegistryChanges, RegistryPlane,
    Session, Snapshot, Version,
};
use sa_proto::trust::{TlsFiles, TrustError};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::service::Routes;
use tonic::transport::Server;

use crate::observe::moment::Moment;
use crate::observe::{Announcements, Observer, Sweeps};
use crate::sweep::Peer;
pub use observatory::Observatory;
pub use responders::{RESPONDERS_MAX, Responder, Responders};

/// How often a silent connection is probed, and how long an answer may take: a dead peer is
/// noticed after the sum of both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Largest message taken from a responder; a greeting has 33 KB.
const INBOUND_LEN_MAX: usize = 256 * 1024;
/// Threads that serve responders.
const THREADS: usize = 2;
/// How long feeds may take to end in order when the SM shuts down.
const CLOSING_TIME: Duration = Duration::from_secs(1);

/// How to publish.
#[derive(Clone, Debug)]
pub struct PublishConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// The SM's certificates; whoever connects must have one, too. Without, all may connect.
    pub tls: Option<TlsFiles>,
    /// Directory that keeps the epoch.
    pub state_dir: PathBuf,
    /// What to remember for responders that lag.
    pub history: HistoryLimits,
}

/// Why something cannot be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The address cannot be listened on.
    #[error("cannot listen for responders on {address}; choose another with --publish")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// The certificates cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The epoch cannot be kept.
    #[error("cannot keep the session's epoch in {}; choose another --state-dir", state_dir.display())]
    State {
        /// The directory.
        state_dir: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// No session has begun: this SM is not the master.
    #[error("no session: this SM is not the master")]
    NoSession,
    /// The planes are not what a snapshot promises.
    #[error("snapshot refused")]
    Build(#[from] BuildError),
    /// The registry went back.
    #[error("registry sequence {offered} is below {current}, published already")]
    StaleRegistry {
        /// The sequence published last.
        current: u64,
        /// The one refused.
        offered: u64,
    },
}

/// What responders hold of a session above ours means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// No responder has accepted our session: its epoch is too low, whoever took the higher one.
    /// [`Publisher::renew`] helps.
    Epoch,
    /// Responders had accepted our session, and one has another SM's since. Find out who is the
    /// master; if it is us, [`Publisher::renew`].
    Rival,
}

/// The publishing end of the feed. May be shared between threads; dropping it closes all feeds.
pub struct Publisher {
    shared: Arc<Shared>,
    writer: Mutex<Writer>,
    state_dir: PathBuf,
    address: SocketAddr,
    runtime: Option<Runtime>,
    /// Dropped to have all feeds ended.
    closing: Option<watch::Sender<()>>,
    /// Disconnected once they are.
    closed: Mutex<std::sync::mpsc::Receiver<()>>,
}

struct Writer {
    session: Option<Session>,
    /// The highest epoch taken so far, in this session or an earlier one.
    epoch: u64,
    cell: cell::Publisher<Snapshot>,
}

/// What the SM says of itself in `ibsmctl status`.
#[derive(Clone, Debug, Default)]
pub struct SmStatus {
    /// What it is doing: `discovering`, `master`, `standby`.
    pub state: String,
    /// Whether it is the master and the subnet is up.
    pub subnet_up: bool,
    /// Totals since it started.
    pub counters: Vec<(String, u64)>,
    /// What is wrong now and needs an operator, a line each.
    pub warnings: Vec<String>,
    /// Name of the engine whose routes are in force; empty if there are none.
    pub routing_engine: String,
    /// Why engines that are wanted before it are not used, a line each.
    pub engines_passed_over: Vec<String>,
    /// GUID of its port, once found.
    pub guid: Option<Guid>,
    /// Its priority among subnet managers.
    pub priority: u8,
    /// The other subnet managers that it knows of.
    pub peers: Vec<Peer>,
    /// How far it is with the registry of the master that it follows; empty if it follows none.
    pub following: String,
    /// How long it leaves a silent master to be master.
    pub takes_over_after: Duration,
    /// What it is doing in its own subnet: `idle`, or the phase of a sweep.
    pub phase: String,
    /// Light sweeps that found nothing changed.
    pub quiet_sweeps: u64,
    /// When the last of them ended, milliseconds since 1970.
    pub quiet_sweep_ms: Option<u64>,
}

/// What operators ask the SM to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// A heavy sweep.
    pub sweep: bool,
    /// All routes made anew.
    pub reroute: bool,
}

impl Publisher {
    /// Listens for responders. They get nothing before a session has begun and a fabric plane was
    /// published in it.
    pub fn start(config: PublishConfig) -> Result<Self, PublishError> {
        Self::start_with(config, |_| Routes::default())
    }

    /// The same, with other services at the same address. What they do has to end when the
    /// receiver that they are made with loses its sender.
    pub fn start_with(
        config: PublishConfig,
        services: impl FnOnce(watch::Receiver<()>) -> Routes,
    ) -> Result<Self, PublishError> {
        let listen = |error| PublishError::Listen { address: config.listen, error };
        let identity = config.tls.map(tls::Identity::load).transpose()?;
        let listener = TcpListener::bind(config.listen).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("publish")
            .enable_all()
            .build()
            .map_err(listen)?;
        let cell = cell::Publisher::new(Snapshot::empty());
        let shared = Arc::new(Shared {
            history: Mutex::new(History::new(cell.current(), config.history)),
            announced: watch::Sender::new(Version::NONE),
            highest: Mutex::new(Version::NONE.session),
            accepted: AtomicU64::new(0),
            responders: Responders::default(),
            inboxes: asking::Inboxes::default(),
            connections: AtomicU64::new(0),
            counters: Counters::default(),
            sm: ArcSwap::default(),
            orders: Mutex::default(),
            announcements: Mutex::default(),
            observer: Mutex::new(Observer::new(Instant::now())),
            moments: watch::Sender::default(),
            sweeps: Sweeps::default(),
            started: Instant::now(),
        });
        runtime.spawn(observatory::run(Arc::downgrade(&shared)));
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(listen)?
        };
        let (closing, end) = watch::channel(());
        let (serving, closed) = std::sync::mpsc::channel();
        let services = services(end.clone());
        let served = serve(listener, identity, shared.clone(), services, end);
        runtime.spawn(async move {
            served.await;
            drop(serving);
        });
        let writer = Mutex::new(Writer { session: None, epoch: 0, cell });
        let (state_dir, runtime, closing) = (config.state_dir, Some(runtime), Some(closing));
        let closed = Mutex::new(closed);
        Ok(Self { shared, writer, state_dir, address, runtime, closing, closed })
    }

    /// The address listened on, with the port that was chosen if none was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins a session, above all that responders are known to hold: this SM, whose port has GUID
    /// `sm_guid`, is the master from now on. The snapshot published first is that of the new
    /// session.
    pub fn begin_session(&self, sm_guid: Guid) -> Result<Session, PublishError> {
        self.begin(&mut self.writer(), sm_guid)
    }

    fn begin(&self, writer: &mut Writer, sm_guid: Guid) -> Result<Session, PublishError> {
        let known = writer.epoch.max(self.shared.highest().epoch);
        let epoch = session::next_epoch(&self.state_dir, known, SystemTime::now())
            .map_err(|error| PublishError::State { state_dir: self.state_dir.clone(), error })?;
        let session = Session { epoch, sm_guid };
        writer.session = Some(session);
        writer.epoch = epoch;
        self.shared.announced.send_replace(Version::NONE);
        tracing::info!(%session, "session begun");
        Ok(session)
    }

    /// Ends the session: this SM is not the master any more. Responders keep what they have, and
    /// are sent nothing before another session.
    pub fn end_session(&self) {
        let mut writer = self.writer();
        if let Some(session) = writer.session.take() {
            self.shared.announced.send_replace(Version::NONE);
            tracing::info!(%session, "session ended");
        }
    }

    /// The session that is on, if one is.
    pub fn session(&self) -> Option<Session> {
        self.writer().session
    }

    /// What to make of responders that hold a session above ours, if there are any.
    pub fn challenge(&self) -> Option<Challenge> {
        let session = self.session()?;
        let accepted = self.shared.accepted.load(Relaxed) >= session.epoch;
        (self.shared.highest() > session).then_some(if accepted {
            Challenge::Rival
        } else {
            Challenge::Epoch
        })
    }

    /// Begins a session above all that responders hold, and publishes in it what was published in
    /// the one that it replaces.
    pub fn renew(&self) -> Result<(), PublishError> {
        let mut writer = self.writer();
        let before = writer.session.ok_or(PublishError::NoSession)?;
        tracing::warn!(
            ours = %before, highest = %self.shared.highest(),
            "responders hold a higher session than ours; we are the master and begin another"
        );
        let session = self.begin(&mut writer, before.sm_guid)?;
        let current = writer.cell.current();
        let version = current.version();
        if version.session == before {
            // A plane of the replaced session keeps its number, so that none yet stays none.
            let version = Version { session, ..version };
            self.succeed(&mut writer, &current, version, current.fabric(), current.registry());
        }
        Ok(())
    }

    /// Publishes what a sweep found. Rows need not be sorted. If nothing differs from the plane
    /// published last, its version is returned and nothing is sent.
    pub fn publish(&self, fabric: FabricPlane) -> Result<Version, PublishError> {
        let fabric = fabric.checked()?;
        let mut writer = self.writer();
        let session = writer.session.ok_or(PublishError::NoSession)?;
        let current = writer.cell.current();
        let before = current.version();
        let generation = if before.session == session { before.fabric_generation + 1 } else { 1 };
        let version = Version { session, fabric_generation: generation, ..before };
        if generation > 1 && *current.fabric().as_ref() == fabric {
            return Ok(before);
        }
        self.succeed(&mut writer, &current, version, &fabric, current.registry());
        Ok(version)
    }

    /// Publishes how switches forward multicast, ascending by switch, in a fabric that is otherwise
    /// the one published last. Before the first of a session nothing is published: it will be part
    /// of that. Unlike [`publish`](Self::publish) this compares nothing else and copies no row.
    pub fn publish_multicast(&self, mfts: &Vec<Arc<Mft>>) -> Result<Version, PublishError> {
        let mut writer = self.writer();
        let session = writer.session.ok_or(PublishError::NoSession)?;
        let current = writer.cell.current();
        let before = current.version();
        let is_first = before.session != session || before.fabric_generation == 0;
        if is_first || current.fabric().mfts == *mfts {
            return Ok(before);
        }
        let version = Version { fabric_generation: before.fabric_generation + 1, ..before };
        let (next, delta) = current.advance_multicast(version, mfts);
        self.put(&mut writer, &current, next, delta);
        Ok(version)
    }

    /// Publishes what clients registered, up to its sequence number, which must not go back. With
    /// the number of the plane published last, nothing is sent.
    pub fn publish_registry(&self, registry: RegistryPlane) -> Result<Version, PublishError> {
        let mut writer = self.writer();
        let session = writer.session.ok_or(PublishError::NoSession)?;
        let current = writer.cell.current();
        let before = current.version();
        let (known, offered) = (before.registry_sequence, registry.sequence);
        if offered < known {
            return Err(PublishError::StaleRegistry { current: known, offered });
        }
        if offered == known && before.session == session {
            return Ok(before);
        }
        let version = Version {
            session,
            // The session's first fabric plane is still to come.
            fabric_generation: if before.session == session { before.fabric_generation } else { 0 },
            registry_sequence: offered,
        };
        self.succeed(&mut writer, &current, version, current.fabric(), &registry);
        Ok(version)
    }

    /// Publishes what clients registered after a batch of writes that made `changes`, in time that
    /// goes with these. Before the first of a session, [`publish_registry`](Self::publish_registry)
    /// tells where they start from.
    pub fn publish_changes(
        &self,
        registry: RegistryPlane,
        changes: &RegistryChanges,
    ) -> Result<Version, PublishError> {
        let mut writer = self.writer();
        let session = writer.session.ok_or(PublishError::NoSession)?;
        let current = writer.cell.current();
        let before = current.version();
        let (known, offered) = (before.registry_sequence, changes.sequence);
        if offered < known {
            return Err(PublishError::StaleRegistry { current: known, offered });
        }
        if offered == known && before.session == session && changes.is_empty() {
            return Ok(before);
        }
        let version = Version {
            session,
            fabric_generation: if before.session == session { before.fabric_generation } else { 0 },
            registry_sequence: offered,
        };
        let (next, delta) = current.advance(version, registry, changes);
        self.put(&mut writer, &current, next, delta);
        Ok(version)
    }

    fn succeed(
        &self,
        writer: &mut Writer,
        current: &Snapshot,
        version: Version,
        fabric: &FabricPlane,
        registry: &RegistryPlane,
    ) {
        let (next, delta) = current.succeed(version, fabric, registry);
        self.put(writer, current, next, delta);
    }

    /// Makes `next` the current snapshot; `delta` leads there from `current`.
    fn put(&self, writer: &mut Writer, current: &Snapshot, next: Snapshot, delta: Delta) {
        let version = next.version();
        let next = Arc::new(next);
        writer
            .cell
            .publish(next.clone())
            .expect("epochs are above the last one taken, generations grow");
        let changes = delta.changes();
        if same_fabric(version, current.version()) {
            tracing::debug!(%version, changes, "registry published");
        } else {
            tracing::debug!(%version, changes, "snapshot published");
        }
        self.shared.history().push(Arc::new(delta), next);
        self.shared.announcements().note(version, Instant::now());
        self.shared.announced.send_replace(version);
    }

    /// The version published last.
    pub fn version(&self) -> Version {
        self.writer().cell.current().version()
    }

    /// A reading end of the snapshot published last.
    pub fn reader(&self) -> Reader<Snapshot> {
        self.writer().cell.reader()
    }

    /// The responders that are connected, for the front door.
    pub fn responders(&self) -> Responders {
        self.shared.responders.clone()
    }

    /// Sets what `ibsmctl status` shows of the SM itself.
    pub fn set_status(&self, status: SmStatus) {
        self.shared.sm.store(Arc::new(status));
    }

    /// What operators asked for since this was called last.
    pub fn take_orders(&self) -> Orders {
        std::mem::take(&mut *self.shared.orders())
    }

    /// What is going on, for whoever watches.
    pub fn observatory(&self) -> Observatory {
        Observatory::new(self.shared.clone())
    }

    /// The history of sweeps, to be written by whoever makes them.
    pub fn sweeps(&self) -> Sweeps {
        self.shared.sweeps.clone()
    }

    /// Counters of the feed, by name, with what they mean.
    pub fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.shared.counters.list()
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        drop(self.closing.take());
        // Nothing is ever sent: this returns when the feeds have ended, or took too long.
        let closed = self.closed.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = closed.recv_timeout(CLOSING_TIME);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether only registry writes lie between two versions: there are too many of them to log.
fn same_fabric(a: Version, b: Version) -> bool {
    (a.session, a.fabric_generation) == (b.session, b.fabric_generation)
}

/// What the publisher and the tasks of all connections have in common.
struct Shared {
    /// Locked for look-ups and for appending, both short.
    history: Mutex<History>,
    /// The version published last in the session that is on; none before the first of a session,
    /// nor while no session is on.
    announced: watch::Sender<Version>,
    /// The highest session that a responder was found to hold.
    highest: Mutex<Session>,
    /// The epoch of the last session of ours that a responder has accepted.
    accepted: AtomicU64,
    responders: Responders,
    /// Where responders are asked questions.
    inboxes: asking::Inboxes,
    /// Connections ever accepted; numbers them.
    connections: AtomicU64,
    counters: Counters,
    sm: ArcSwap<SmStatus>,
    /// What operators asked for and the SM has not taken yet.
    orders: Mutex<Orders>,
    /// When versions were announced. Locked for moments, as the others are.
    announcements: Mutex<Announcements>,
    observer: Mutex<Observer>,
    /// What the observer found last.
    moments: watch::Sender<Arc<Moment>>,
    sweeps: Sweeps,
    started: Instant,
}

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident => $label:literal),* $(,)?) => {
        #[derive(Default)]
        struct Counters {
            $(#[doc = $doc] $name: AtomicU64,)*
        }
        impl Counters {
            fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$(($label, $doc.trim_ascii(), self.$name.load(Relaxed))),*]
            }
        }
    };
}
counters! {
    /// Updates begun with everything
    fulls => "feed_full_updates",
    /// Updates begun with differing buckets
    buckets => "feed_bucket_updates",
    /// Empty updates, for responders that connected with the latest state
    confirmations => "feed_confirmations",
    /// Updates begun with a delta
    deltas => "feed_delta_updates",
    /// Bytes of all updates
    bytes => "feed_sent_bytes",
    /// Updates acknowledged
    acks => "feed_acks",
    /// Updates that a responder took and could make no tables of
    unusable => "feed_updates_unusable",
    /// Requests to send everything
    resyncs => "feed_resyncs",
    /// Updates refused, since the responder holds a higher session
    refusals => "feed_updates_refused",
    /// Responders that told of a session whose epoch no SM can have taken, and were turned away
    implausible => "feed_epochs_implausible",
    /// Responders whose feed was ended by us
    given_up => "feed_responders_given_up",
    /// Connections whose TLS handshake failed
    turned_away => "tls_connections_turned_away",
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announcements(&self) -> MutexGuard<'_, Announcements> {
        self.announcements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long ago `version` was announced.
    fn lag(&self, version: Version, now: Instant) -> Option<Duration> {
        self.announcements().at(version).map(|at| now.saturating_duration_since(at))
    }

    fn highest(&self) -> Session {
        *self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the session that a responder holds; `false` if no SM can have begun it.
    fn note_held(&self, session: Session) -> bool {
        if !session::is_plausible(session.epoch, SystemTime::now()) {
            self.counters.implausible.fetch_add(1, Relaxed);
            return false;
        }
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        *highest = session.max(*highest);
        true
    }

    fn status(&self) -> admin::Status {
        let latest = self.history().latest().clone();
        let (version, fabric) = (latest.version(), latest.fabric());
        let sm = self.sm.load();
        let counter = |(name, value): (&str, u64)| admin::Counter { name: name.into(), value };
        let named = |(name, value): &(String, u64)| counter((name, *value));
        let responders = self.responders.load();
        admin::Status {
            sm_state: sm.state.clone(),
            software: concat!("ibsm ", env!("CARGO_PKG_VERSION")).into(),
            sm_guid: sm.guid.unwrap_or(version.session.sm_guid).0,
            epoch: version.session.epoch,
            fabric_generation: version.fabric_generation,
            registry_sequence: version.registry_sequence,
            nodes: fabric.nodes.len() as u32,
            switches: fabric.nodes.iter().filter(|node| node.switch_info.is_some()).count() as u32,
            ports: fabric.nodes.iter().map(|node| node.ports.len() as u32).sum(),
            responders: responders
                .iter()
                .map(|responder| admin::Responder {
                    id: responder.id,
                    name: responder.name.to_string(),
                    software: responder.software.to_string(),
                    front_door: responder.front_door.iter().map(|a| a.to_string()).collect(),
                    port_guid: responder.port.map_or(0, |(guid, _)| guid.0),
                    qpn: responder.port.map_or(0, |(_, qpn)| qpn.0),
                    current: responder.serving == Some(version),
                    fabric_generation: responder.serving.map_or(0, |v| v.fabric_generation),
                    registry_sequence: responder.serving.map_or(0, |v| v.registry_sequence),
                    connected_s: responder.since.elapsed().as_secs(),
                    counters: responder.stats.iter().map(named).collect(),
                })
                .collect(),
            counters: sm
                .counters
                .iter()
                .map(named)
                .chain(
                    self.counters.list().into_iter().map(|(name, _, value)| counter((name, value))),
                )
                .collect(),
            uptime_s: self.started.elapsed().as_secs(),
            subnet_up: sm.subnet_up,
            warnings: sm.warnings.clone(),
            routing_engine: sm.routing_engine.clone(),
            engines_passed_over: sm.engines_passed_over.clone(),
            priority: sm.priority.into(),
            peers: sm.peers.iter().map(peer).collect(),
            following: sm.following.clone(),
            takes_over_after_ms: sm.takes_over_after.as_millis() as u64,
        }
    }
}

fn peer(peer: &Peer) -> admin::Peer {
    admin::Peer {
        port_guid: peer.port_guid.0,
        place: peer.place.clone(),
        lid: peer.lid.0.into(),
        sm_state: peer.state.to_string(),
        priority: peer.priority.into(),
        answered_ms: peer.answered.map(|ago| ago.as_millis() as u64),
    }
}

/// Connections that send at once what they are given. The server's own option does not reach
/// connections that it has not accepted itself, and then an outcome waits 40 ms for the delayed
/// acknowledgement of the delta before it.
fn accept(
    listener: tokio::net::TcpListener,
) -> impl Stream<Item = std::io::Result<tokio::net::TcpStream>> {
    TcpListenerStream::new(listener).map(|accepted| {
        accepted.inspect(|stream| {
            let _ = stream.set_nodelay(true);
        })
    })
}

/// Serves all connections until `end` loses its sender, and they have ended.
async fn serve(
    listener: tokio::net::TcpListener,
    identity: Option<tls::Identity>,
    shared: Arc<Shared>,
    services: Routes,
    mut end: watch::Receiver<()>,
) {
    let feed = service::FeedService { shared: shared.clone(), end: end.clone() };
    let feed = proto::snapshot_feed_server::SnapshotFeedServer::new(feed)
        .max_decoding_message_size(INBOUND_LEN_MAX);
    let admin = admin::admin_server::AdminServer::new(service::AdminService {
        shared: shared.clone(),
        end: end.clone(),
    });
    let server = Server::builder()
        .layer(roles::Roles { checked: identity.is_some() })
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_routes(services.add_service(feed).add_service(admin));
    let end = async move {
        let _ = end.changed().await;
    };
    let served = match identity {
        Some(identity) => {
            let accepted = tls::accept(listener, identity, shared);
            server.serve_with_incoming_shutdown(accepted, end).await
        }
        None => server.serve_with_incoming_shutdown(accept(listener), end).await,
    };
    if let Err(error) = served {
        tracing::error!(%error, "the feed is not served any more");
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::snapshot::MftBlock;

    use super::*;

    #[test]
    fn multicast_tables_are_published_alone_and_not_before_a_fabric_is() {
        let directory = tempfile::tempdir().unwrap();
        let publisher = Publisher::start(PublishConfig {
            tls: None,
            listen: "127.0.0.1:0".parse().unwrap(),
            state_dir: directory.path().to_owned(),
            history: HistoryLimits::default(),
        })
        .unwrap();
        let blocks = vec![MftBlock { block: 0, position: 0, masks: [1; 64] }];
        let mfts = vec![Arc::new(Mft { switch: Guid(5), blocks })];
        let refused = publisher.publish_multicast(&mfts);
        assert!(matches!(refused, Err(PublishError::NoSession)));
        publisher.begin_session(Guid(1)).unwrap();
        let early = publisher.publish_multicast(&mfts).unwrap();
        assert_eq!((early.fabric_generation, publisher.version()), (0, early));

        let first = publisher.publish(FabricPlane::default()).unwrap();
        let second = publisher.publish_multicast(&mfts).unwrap();
        assert_eq!(second.fabric_generation, first.fabric_generation + 1);
        assert_eq!(publisher.publish_multicast(&mfts).unwrap(), second, "nothing is new");
        let snapshot = publisher.reader().current().clone();
        assert_eq!((snapshot.version(), &snapshot.fabric().mfts), (second, &mfts));
    }

    /// Whoever could connect made us take the last epoch there is, and keep it.
    #[test]
    fn a_responder_that_tells_of_an_impossible_epoch_is_turned_away() {
        let directory = tempfile::tempdir().unwrap();
        let publisher = Publisher::start(PublishConfig {
            tls: None,
            listen: "127.0.0.1:0".parse().unwrap(),
            state_dir: directory.path().to_owned(),
            history: HistoryLimits::default(),
        })
        .unwrap();
        let ours = publisher.begin_session(Guid(1)).unwrap();
        let session = Session { epoch: u64::MAX - 1, sm_guid: Guid(2) };
        let (fabric, registry) = (FabricPlane::default(), RegistryPlane::default());
        let held = Snapshot::build(session, 1, fabric, registry).unwrap();
        let hello = proto::Hello {
            schema: sa_proto::snapshot::SCHEMA,
            responder_id: 7,
            held: Some(proto::Held {
                version: Some(held.version().into()),
                checksum: Some(held.checksum().into()),
                bucket_sums: held.digest().to_bytes().into(),
            }),
            ..Default::default()
        };
        let hello = proto::from_responder::Message::Hello(hello);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let refusal = runtime.block_on(async {
            let url = format!("http://{}", publisher.address());
            let mut client =
                proto::snapshot_feed_client::SnapshotFeedClient::connect(url).await.unwrap();
            let said = tokio_stream::once(proto::FromResponder { message: Some(hello) });
            let said = said.chain(tokio_stream::pending());
            let mut feed = client.subscribe(said).await.unwrap().into_inner();
            feed.message().await.unwrap_err()
        });
        assert!(refusal.message().contains("epoch"), "{refusal}");
        assert_eq!(publisher.challenge(), None);
        assert_eq!(publisher.begin_session(Guid(1)).unwrap().epoch, ours.epoch + 1);
        let counted =
            |(name, _, count): &(_, _, u64)| *name == "feed_epochs_implausible" && *count == 1;
        assert!(publisher.counters().iter().any(counted));
    }

    #[test]
    fn what_is_sent_to_responders_does_not_wait_for_acknowledgements() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut accepted = std::pin::pin!(accept(listener));
            let _client = tokio::net::TcpStream::connect(address).await.unwrap();
            let stream = accepted.next().await.unwrap().unwrap();
            assert!(stream.nodelay().unwrap());
        });
    }
}
