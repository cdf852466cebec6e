//! The publishing end of the snapshot feed: turns planes into snapshots, keeps a history of deltas,
//! and serves responders over gRPC.
//!
//! [`Publisher`] is called by the SM's own threads and never waits for a responder; a tokio runtime
//! of its own serves them. [`feed`] decides which messages a responder gets. Not here: the contents
//! of the planes (`sweep`, `registry` of sm-core).

mod access;
mod admin_service;
pub(crate) mod answering;
mod asking;
mod baseline;
mod batches;
mod certificate_end;
mod computing;
mod error;
pub(crate) mod events;
mod explained;
mod feed;
mod feed_service;
mod heartbeat;
mod hung;
mod inquiry;
mod inspection;
mod long_work;
mod observatory;
mod orders;
mod outcomes;
pub(crate) mod past;
mod path_dump;
mod port_name;
mod quality;
mod registered;
mod server;
mod session;
mod shared;
mod state;
mod state_feed;
mod status;
mod subscription;
mod sync;
mod virtual_fabrics;
pub(crate) mod writers;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::descriptors::Descriptors;
use sa_proto::serve;
use sa_proto::snapshot::cell::{self, Reader};
use sa_proto::snapshot::{
    Delta, FabricPlane, HistoryLimits, Mft, RegistryChanges, RegistryPlane, Session, Snapshot,
    Version,
};
use sa_proto::state::StateVersion;
use sa_proto::trust::TlsFiles;
use sa_proto::trust::local::LocalRoles;
use sm_config::{NodeNames, Settings};
use sm_core::manage::quarantine::Expected;
use sm_core::registry::Changes;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::service::Routes;

use crate::clock::{Clock, HostClock};
use crate::congestion::CongestionBoard;
use crate::front_door::AnnouncedDoor;
use crate::history::Archive;
use crate::observe::event::EventLog;
use crate::observe::ports::KeptFabric;
use crate::observe::problem::Problems;
use crate::observe::topology::Topology;
use crate::observe::{Origin, Responders, SmStatus, Sweeps, give_names};
use crate::perf::PerfBoard;
pub use baseline::{Baseline, BaselineOrigin, BaselineStore};
pub use error::PublishError;
pub use observatory::Observatory;
pub use orders::Orders;
#[cfg(test)]
pub(crate) use quality::Routed;
pub(crate) use quality::of_message as quality_of_message;
pub use session::{Draft, EpochFile, Epochs};
use shared::Shared;
pub use state::StateBoard;
pub use subscription::{FeedEnd, Subscription};
pub use sync::{Acknowledged, SyncFollowers};
pub use writers::Writers;

/// How long a standby that follows counts as in step after it had stored all that was published.
pub const LEASE: Duration = Duration::from_secs(2);
/// Threads that serve responders.
const THREADS: usize = 2;
/// How long feeds may take to end in order when the SM shuts down.
const CLOSING_TIME: Duration = Duration::from_secs(1);

/// How to publish.
#[derive(Clone, Debug)]
pub struct PublishConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// The SM's certificates; clients need one, too. Without, the user decides on this host, and
    /// on others every client may connect.
    pub tls: Option<TlsFiles>,
    /// Roles of users of this host, where there are no certificates.
    pub local: LocalRoles,
    /// Where the epoch is kept.
    pub epochs: EpochFile,
    /// How much history to keep for responders that lag.
    pub history: HistoryLimits,
}

/// Why responders refuse this SM's session for a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// No responder has accepted our session: its epoch is too low. [`Publisher::renew`] begins one
    /// that is high enough.
    Epoch,
    /// Responders had accepted our session, and one follows another SM since. Find out which SM is
    /// master; if this one is, call [`Publisher::renew`].
    Rival,
}

/// The publishing end of the feed. May be shared between threads; dropping it closes all feeds.
pub struct Publisher {
    shared: Arc<Shared>,
    writer: Mutex<Writer>,
    epochs: Box<dyn Epochs>,
    server: Option<GrpcServer>,
}

/// The server of connections, which listens until it is dropped.
struct GrpcServer {
    address: SocketAddr,
    runtime: Option<Runtime>,
    /// Dropped to end all feeds.
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

impl Publisher {
    /// Listens for responders. They get nothing before a session has begun and a fabric plane was
    /// published in it.
    pub fn start(config: PublishConfig) -> Result<Self, PublishError> {
        Self::start_with(config, |_| Routes::default())
    }

    /// Like [`start`](Self::start), with other services at the same address. They must end when the
    /// receiver that they are created with loses its sender.
    pub fn start_with(
        config: PublishConfig,
        services: impl FnOnce(watch::Receiver<()>) -> Routes,
    ) -> Result<Self, PublishError> {
        let listen = |error| PublishError::Listen { address: config.listen, error };
        let tls = config.tls.clone();
        let identity = config.tls.map(serve::Identity::load).transpose()?;
        let listener = TcpListener::bind(config.listen).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("publish")
            .enable_all()
            .build()
            .map_err(listen)?;
        let epochs = Box::new(config.epochs);
        let mut this = Self::in_process(Arc::new(HostClock::open()), epochs, config.history);
        let shared = this.shared.clone();
        runtime.spawn(observatory::run(Arc::downgrade(&shared), tls));
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(listen)?
        };
        let (closing, end) = watch::channel(());
        let (serving, closed) = std::sync::mpsc::channel();
        let services = services(end.clone());
        let gate = serve::Gate::new(Descriptors::of_process());
        let counters = shared.refused.clone();
        let acceptor = serve::Acceptor { identity, local: config.local, gate, counters };
        let served = server::serve(listener, acceptor, shared, services, end);
        runtime.spawn(async move {
            served.await;
            drop(serving);
        });
        let (runtime, closing, closed) = (Some(runtime), Some(closing), Mutex::new(closed));
        this.server = Some(GrpcServer { address, runtime, closing, closed });
        Ok(this)
    }

    /// A publisher that does not listen: responders [subscribe](Self::subscribe) in this process.
    pub fn in_process(
        clock: Arc<dyn Clock>,
        epochs: Box<dyn Epochs>,
        history: HistoryLimits,
    ) -> Self {
        let cell = cell::Publisher::new(Snapshot::empty());
        let shared = Arc::new(Shared::new(cell.current(), history, clock));
        let writer = Mutex::new(Writer { session: None, epoch: 0, cell });
        Self { shared, writer, epochs, server: None }
    }

    /// Begins the feed of a responder or a standby that has connected from `peer`.
    pub fn subscribe(&self, peer: Option<Origin>) -> Subscription {
        Subscription::new(self.shared.clone(), peer)
    }

    /// Where the publisher takes the time from.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.shared.clock.clone()
    }

    /// The address listened on, with the port that the system chose if the configured one is 0;
    /// 0.0.0.0:0 if the publisher does not listen.
    pub fn address(&self) -> SocketAddr {
        let server = self.server.as_ref();
        server.map_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), |server| server.address)
    }

    /// Begins a session, above all that responders are known to hold: this SM, whose port has GUID
    /// `sm_guid`, is master from now on. The next snapshot published belongs to the new session.
    pub fn begin_session(&self, sm_guid: Guid) -> Result<Session, PublishError> {
        self.begin(&mut self.writer(), sm_guid)
    }

    fn begin(&self, writer: &mut Writer, sm_guid: Guid) -> Result<Session, PublishError> {
        let known = writer.epoch.max(self.shared.highest().epoch);
        let now = self.shared.clock.time_of_day();
        let epoch = session::next_epoch(&*self.epochs, known, now).map_err(|error| {
            PublishError::State { state_dir: self.epochs.directory().to_owned(), error }
        })?;
        let session = Session { epoch, sm_guid };
        writer.session = Some(session);
        writer.epoch = epoch;
        self.shared.inquiries.end();
        self.shared.announced.send_replace(Version::NONE);
        tracing::info!(%session, "publishing session begun");
        Ok(session)
    }

    /// Ends the session: this SM is no longer master. Responders keep their snapshot and are sent
    /// nothing until another session begins.
    pub fn end_session(&self) {
        let mut writer = self.writer();
        self.shared.inquiries.end();
        if let Some(session) = writer.session.take() {
            self.shared.sync.clear();
            self.shared.announced.send_replace(Version::NONE);
            tracing::info!(%session, "publishing session ended: this SM is no longer master");
        }
    }

    /// The current session, if one has begun.
    pub fn session(&self) -> Option<Session> {
        self.writer().session
    }

    /// Why responders refuse this SM's session for a higher one, if any does. A responder that
    /// holds a higher one beside ours refuses nothing: that is of another part of the fabric.
    pub fn challenge(&self) -> Option<Challenge> {
        let session = self.session()?;
        let accepted = self.shared.accepted.load(Relaxed) >= session.epoch;
        (self.shared.rival() > session).then_some(if accepted {
            Challenge::Rival
        } else {
            Challenge::Epoch
        })
    }

    /// Begins a session above all that responders hold, and publishes the current snapshot again in
    /// it.
    pub fn renew(&self) -> Result<Session, PublishError> {
        let mut writer = self.writer();
        let before = writer.session.ok_or(PublishError::NoSession)?;
        tracing::warn!(
            ours = %before, highest = %self.shared.highest(),
            "responders hold a session with a higher epoch, but this SM is master; beginning a new \
             session above it"
        );
        let session = self.begin(&mut writer, before.sm_guid)?;
        let current = writer.cell.current();
        let version = current.version();
        if version.session == before {
            // A plane of the replaced session keeps its number, so that 0 (none yet) stays 0.
            let version = Version { session, ..version };
            self.succeed(&mut writer, &current, version, current.fabric(), current.registry());
        }
        Ok(session)
    }

    /// Publishes the fabric as a sweep found it. Rows need not be sorted. If the plane equals the
    /// one published last, returns its version and sends nothing. If the registry was not published
    /// in this session before, it is published as unknown: without rows, with sequence number 0.
    pub fn publish(&self, fabric: FabricPlane) -> Result<Version, PublishError> {
        let mut writer = self.writer();
        let session = writer.session.ok_or(PublishError::NoSession)?;
        let current = writer.cell.current();
        let fabric = fabric.checked_since(current.fabric())?;
        let before = current.version();
        if before.session != session {
            let version = Version { session, fabric_generation: 1, registry_sequence: 0 };
            self.succeed(&mut writer, &current, version, &fabric, &RegistryPlane::default());
            return Ok(version);
        }
        if before.fabric_generation > 0 && *current.fabric().as_ref() == fabric {
            return Ok(before);
        }
        let version = Version { fabric_generation: before.fabric_generation + 1, ..before };
        self.succeed(&mut writer, &current, version, &fabric, current.registry());
        Ok(version)
    }

    /// Publishes multicast tables, ascending by switch, of a fabric that otherwise equals the one
    /// published last. Before the first plane of a session nothing is published: they will be part
    /// of it. Unlike [`publish`](Self::publish) this compares nothing else and copies no row.
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

    /// Publishes the registry. Within a session its sequence number must not go back; if it is that
    /// of the plane published last, nothing is sent.
    pub fn publish_registry(&self, registry: RegistryPlane) -> Result<Version, PublishError> {
        let mut writer = self.writer();
        let session = writer.session.ok_or(PublishError::NoSession)?;
        let current = writer.cell.current();
        let before = current.version();
        let (known, offered) = (before.registry_sequence, registry.sequence);
        if offered < known && before.session == session {
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

    /// Publishes the registry after a batch of writes that made `changes`, in time proportional to
    /// these. In each session, [`publish_registry`](Self::publish_registry) must come first.
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
        if offered < known && before.session == session {
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

    /// Keeps the outcomes of a commit for followers, before the registry with this sequence number
    /// is published. The first commit of a session has all that are known.
    pub fn log_outcomes(&self, session: Session, sequence: u64, changes: &Arc<Changes>) {
        let forgotten = self.shared.outcomes().push(session, sequence, changes);
        self.shared.counters.outcomes_forgotten.fetch_add(forgotten as u64, Relaxed);
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
        writer.cell.publish(next.clone()).expect("epochs and generations only increase");
        let changes = delta.changes();
        if same_fabric(version, current.version()) {
            tracing::debug!(%version, changes, "registry published");
        } else {
            tracing::debug!(%version, changes, "snapshot published");
            self.shared.fabric.send_replace(next.fabric().clone());
        }
        self.shared.history().push(Arc::new(delta), next);
        self.shared.announcements().note(version, self.shared.clock.now());
        self.shared.announced.send_replace(version);
    }

    /// Sets registry time: followers continue it, and the time left of leases is computed from it.
    pub fn set_registry_time(&self, time: Duration) {
        let mut set = self.shared.registry_time.lock().unwrap_or_else(PoisonError::into_inner);
        *set = Some((self.shared.clock.now(), time));
    }

    /// The version published last.
    pub fn version(&self) -> Version {
        self.writer().cell.current().version()
    }

    /// The snapshot published last, if it is of the current session and has both the fabric and the
    /// registry. Another one lacks rows that are there: nothing may be listed from it.
    pub fn whole(&self) -> Option<Arc<Snapshot>> {
        let writer = self.writer();
        let current = writer.cell.current();
        let version = current.version();
        let is_of_session = Some(version.session) == writer.session;
        let is_whole = is_of_session && version.fabric_generation > 0 && version.has_registry();
        is_whole.then_some(current)
    }

    /// A reading end of the snapshot published last.
    pub fn reader(&self) -> Reader<Snapshot> {
        self.writer().cell.reader()
    }

    /// Records that another manager published in this session. The next session of this SM will be
    /// above it.
    pub fn note_session(&self, session: Session) {
        self.shared.note_held(session);
    }

    /// Records that the registry's store holds what was committed in this session. A session of
    /// this SM below it is [challenged](Self::challenge) as if responders refused it.
    pub fn note_stored_session(&self, session: Session) {
        self.shared.note_rival(session);
    }

    /// Sets where the front door's envelopes come from, for responders.
    pub fn set_front_door(&self, door: AnnouncedDoor) {
        self.shared.front_door.store(Arc::new(door));
    }

    /// The connected responders.
    pub fn responders(&self) -> Responders {
        self.shared.responders.clone()
    }

    /// The state of this SM besides the registry, for followers.
    pub fn state_board(&self) -> Arc<StateBoard> {
        self.shared.state.clone()
    }

    /// The version of the state that is published; zeros without a session.
    pub fn state_version(&self) -> StateVersion {
        let session = self.session();
        session.map_or_else(StateVersion::default, |session| StateVersion {
            session,
            number: self.shared.state.number(),
        })
    }

    /// Something arrived from the fabric at this time.
    pub fn note_heard(&self, heard: Instant) {
        self.shared.sync.note_heard(heard);
    }

    /// Asks all responders which registry they hold, and the one with identity `rows_from` for its
    /// rows. Returns the number of the question, by which the answers are known
    /// ([`responders`](Self::responders)).
    pub fn inquire(&self, rows_from: Option<u64>) -> u64 {
        self.shared.inquiries.ask(rows_from)
    }

    /// The registry that a responder was asked for, once it is there; the fabric plane is empty.
    pub fn take_recalled(&self) -> Option<Arc<Snapshot>> {
        self.shared.inquiries.take()
    }

    /// The followers that writes wait for.
    pub fn sync_followers(&self) -> Arc<SyncFollowers> {
        self.shared.sync.clone()
    }

    /// The list of responders that write; the service that they call maintains it.
    pub fn writers(&self) -> Writers {
        self.shared.writers.clone()
    }

    /// Sets the state of this SM for `ibsmctl status`.
    pub fn set_status(&self, status: SmStatus) {
        self.shared.sm.store(Arc::new(status));
        let at = self.shared.started.elapsed().as_millis() as u64;
        self.shared.sm_stated_ms.store(at, Relaxed);
    }

    /// Sets operators' names of nodes, for reports.
    pub fn set_node_names(&self, names: NodeNames) {
        give_names(names.clone());
        self.shared.names.store(Arc::new(names));
    }

    /// Sets the settings in force, for operators.
    pub fn set_settings(&self, settings: Settings) {
        self.shared.settings.store(Arc::new(settings));
    }

    /// Reports as problems how the fabric differs from this baseline, from now on. Nothing is
    /// written.
    pub fn set_baseline(&self, baseline: Baseline) {
        self.shared.set_baseline(Some(baseline));
    }

    /// Reports what is missing of all that was known before a restart, unless there is a baseline.
    /// `last`: the fabric of then, and since when it was so, milliseconds since 1970.
    pub(crate) fn resume_from(&self, known: Topology, last: (u64, KeptFabric)) {
        let mut observer = self.shared.observer.lock().unwrap_or_else(PoisonError::into_inner);
        observer.resume_from(Instant::now(), known, last);
    }

    /// Has the baseline in force, or that there is none, passed to the subnet manager.
    pub fn pass_baseline(&self) {
        self.shared.baseline_changed();
    }

    /// The nodes and links of the baseline in force; `None` without one.
    pub fn expected(&self) -> Option<Arc<Expected>> {
        let topology = self.shared.baseline.current()?.topology.clone();
        let links = topology.links.iter().map(|(&near, link)| (near, link.far));
        let nodes = topology.nodes.iter().map(|(&guid, node)| (guid, node.is_switch));
        Some(Arc::new(Expected::new(nodes, links)))
    }

    /// Puts the baseline that another master has in force, as a standby, or removes it if the text
    /// is empty; not while one of a file is in force. On another thread, since it may be long.
    pub fn follow_baseline(&self, text: Vec<u8>) {
        let shared = self.shared.clone();
        let work = move || shared.follow_baseline(&text);
        let runtime = self.server.as_ref().and_then(|server| server.runtime.as_ref());
        match runtime {
            Some(runtime) => drop(runtime.spawn_blocking(work)),
            None => work(),
        }
    }

    /// Where baselines that operators take are kept. Without, none can be taken.
    pub fn set_baseline_store(&self, store: Arc<dyn BaselineStore>) {
        self.shared.baseline.set_store(store);
    }

    /// The list of problems.
    pub fn problems(&self) -> Arc<Problems> {
        self.shared.problems.load_full()
    }

    /// Gives an order of an operator to the SM, and waits, for seconds at most, until it is carried
    /// out and the status shows it. For threads that run no tasks.
    pub fn order(&self, give: impl FnOnce(&mut Orders)) {
        let receipt = self.shared.order(give);
        if let Some(runtime) = self.server.as_ref().and_then(|server| server.runtime.as_ref()) {
            runtime.block_on(receipt.carried_out());
        }
    }

    /// Calls this when there is an order: [`take_orders`](Self::take_orders) is due.
    pub fn set_order_bell(&self, bell: impl Fn() + Send + Sync + 'static) {
        self.shared.orders.set_bell(bell);
    }

    /// Orders of operators since the last call, if there are any.
    pub fn take_orders(&self) -> Option<Orders> {
        self.shared.orders.take()
    }

    /// All orders taken so far are carried out, and the status shows it.
    pub fn orders_done(&self) {
        self.shared.orders.note_done();
    }

    /// The live state, for the web page and `ibsmctl top`.
    pub fn observatory(&self) -> Observatory {
        Observatory::new(self.shared.clone())
    }

    /// The counters of ports.
    pub fn perf(&self) -> Arc<PerfBoard> {
        self.shared.perf.clone()
    }

    /// Congestion control.
    pub fn congestion(&self) -> Arc<CongestionBoard> {
        self.shared.congestion.clone()
    }

    /// The history of sweeps, which the service loop appends to.
    pub fn sweeps(&self) -> Sweeps {
        self.shared.sweeps.clone()
    }

    /// The last events, which all parts of the program append to.
    pub fn events(&self) -> EventLog {
        self.shared.events.clone()
    }

    /// Answers questions about the past from this archive.
    pub fn set_archive(&self, archive: Arc<dyn Archive>) {
        // Set once, at the start.
        let _ = self.shared.archive.set(archive);
    }

    /// Counters of the feed: name, help text, value.
    pub fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.shared.counted()
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GrpcServer {
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

#[cfg(test)]
mod tests;
