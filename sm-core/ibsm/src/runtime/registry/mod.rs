//! The registry's thread: it decides on writes, makes them durable and publishes them.
//!
//! Work arrives in an inbox ([`shared`]): writes of responders, which are bounded; the fabric and
//! the connected responders, of which only the latest state counts. The thread takes all of it at
//! once, so that the writes of a batch share one transaction, and hands outcomes to the connections
//! they came from without waiting for any. Notices are sent by the same thread, through the damper.
//!
//! - [`thread`]: [`RegistryThread`], the loop. [`RegistryHandle`] is the service loop's access to
//!   it.
//! - [`durable`]: [`DurableRegistry`], the state machine of sm-core with its store and publication.
//! - [`dump`]: [`SaDumpFile`], `opensm-sa.dump` for a migration from or to OpenSM.
//! - [`grpc`]: the services that responders call; [`orders`]: that of programs, which make
//!   partitions; [`writing`]: a stream of writes;
//!   [`notices`]: the events for them.

mod counters;
mod dump;
mod durable;
mod grpc;
mod notices;
mod orders;
mod shared;
mod synced;
mod thread;
mod writing;

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::types::Guid;
use sa_proto::snapshot::{RegistryPlane, RegistryVersion};
use tokio::sync::watch;
use tonic::service::Routes;
use tracing::error;

pub use super::store::StoreError;
pub use super::store::file::{Medium, rewrite};
use crate::front_door::{AnnouncedDoor, Spill};
use crate::partitions::Site;
use crate::publish::Publisher;
pub use dump::SaDumpFile;
use durable::DurableRegistry;
use notices::NOTICES_MAX;
pub use orders::{Given, GrantedAt, OrderFailure, PartitionDesk};
use shared::Shared;
use sm_config::Settings;
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::notice::{Event, Issuer};
use sm_core::registry::{GuidBlock, Ports, PredefinedGroup};
use sm_core::sweep::ImportedRegistry;
use sm_routing::multicast::Membership;
pub use thread::{Next, RegistryThread};
pub use writing::WriteStream;

use super::follow::Progress;
use super::metrics::Metric;
use super::store::Store;
#[cfg(feature = "etcd-model")]
use super::store::etcd::{SharedState, SimulatedStore};
use super::store::file::FileStore;
use super::vital::Vital;

/// See [`RegistrySetup::open_in_model`].
#[cfg(feature = "etcd-model")]
pub type WasRead = Box<dyn Fn() -> bool>;

/// A registry that is not started. It exists before the publisher, which serves its services.
pub struct RegistrySetup {
    shared: Arc<Shared>,
    wake: UnixStream,
}

impl RegistrySetup {
    /// `sa_key` makes a request trusted.
    pub fn new(sa_key: u64) -> io::Result<Self> {
        let (wake, bell) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        Ok(Self { shared: Arc::new(Shared::new(bell, sa_key)), wake })
    }

    /// Where programs give orders about partitions.
    pub fn desk(&self) -> PartitionDesk {
        PartitionDesk::new(self.shared.clone())
    }

    /// The services that responders call, and that of programs. Their streams end when `end` loses
    /// its sender.
    pub(super) fn services(&self, end: watch::Receiver<()>) -> Routes {
        grpc::services(self.shared.clone(), end)
    }

    /// Opens the registry in `store` and starts its thread. An empty registry is restored from
    /// `dump`.
    pub(super) fn start(
        self,
        store: Box<dyn Store>,
        publisher: Arc<Publisher>,
        dump: SaDumpFile,
    ) -> Result<RegistryHandle, super::RunError> {
        let (mut handle, thread) = self.open(store, publisher, dump)?;
        let thread = std::thread::Builder::new().name("registry".to_owned()).spawn(move || {
            let _vital = Vital("registry");
            thread.run();
        })?;
        handle.thread = Some(thread);
        Ok(handle)
    }

    /// Opens the registry in a file on `medium`, for a caller that does the work of the thread.
    pub fn open_on(
        self,
        medium: Arc<dyn Medium>,
        publisher: Arc<Publisher>,
        dump: SaDumpFile,
    ) -> Result<(RegistryHandle, RegistryThread), StoreError> {
        self.open(Box::new(FileStore::on(medium)), publisher, dump)
    }

    /// Opens the registry in a simulated etcd, for a caller that does the work of the thread, some
    /// times in ten milliseconds. `process` identifies this run of the manager; `progress` receives
    /// what others left there besides the registry. The function returned says whether that was
    /// read once, which a manager waits for at its start.
    #[cfg(feature = "etcd-model")]
    pub fn open_in_model(
        self,
        link: crate::runtime::EtcdLink,
        process: u64,
        progress: &Arc<Progress>,
        publisher: Arc<Publisher>,
        dump: SaDumpFile,
    ) -> Result<(RegistryHandle, RegistryThread, WasRead), StoreError> {
        let state = SharedState::new(publisher.state_board(), progress.clone(), false);
        let store = SimulatedStore::new(link, publisher.clock(), process, state.clone())?;
        let (handle, thread) = self.open(Box::new(store), publisher, dump)?;
        Ok((handle, thread, Box::new(move || state.await_first(std::time::Duration::ZERO))))
    }

    /// Opens the registry in `store`.
    fn open(
        self,
        mut store: Box<dyn Store>,
        publisher: Arc<Publisher>,
        dump: SaDumpFile,
    ) -> Result<(RegistryHandle, RegistryThread), StoreError> {
        let counters = self.shared.counters.clone();
        let waker = Arc::downgrade(&self.shared);
        store.set_waker(Box::new(move || {
            if let Some(shared) = waker.upgrade() {
                shared.note_store();
            }
        }));
        let clock = publisher.clock();
        let durable = DurableRegistry::open(store, publisher.clone(), counters, clock.clone())?;
        let responders = publisher.responders();
        let shared = self.shared.clone();
        if dump.is_named() && durable.is_fresh() {
            *shared.imported() = ImportedRegistry::Expected;
        }
        let is_known = durable.is_read() && !durable.is_fresh();
        let stored = is_known.then(|| durable.sequence());
        // Set once, as this is called once.
        let _ = shared.writers.set(publisher.writers());
        let hook = Arc::downgrade(&shared);
        let sync = publisher.sync_followers();
        sync.set_hook(move || {
            if let Some(shared) = hook.upgrade() {
                shared.note_stored();
            }
        });
        let _ = shared.publisher.set(Arc::downgrade(&publisher));
        let mut thread =
            RegistryThread::new(shared, durable, responders, sync, dump, clock.clone());
        // Before the first sweep.
        thread.report_partitions(clock.now());
        thread.report_held();
        let handle = RegistryHandle {
            shared: self.shared,
            wake: self.wake,
            publisher,
            stored,
            thread: None,
        };
        Ok((handle, thread))
    }
}

/// The service loop's access to the registry. Dropping it ends the thread.
pub struct RegistryHandle {
    shared: Arc<Shared>,
    wake: UnixStream,
    publisher: Arc<Publisher>,
    /// Sequence number on disk before this run; none if the registry was empty.
    stored: Option<u64>,
    thread: Option<JoinHandle<()>>,
}

impl RegistryHandle {
    /// Hands over the ports that a sweep found, and the groups of operators' files.
    pub(super) fn fabric_changed(
        &self,
        ports: Ports,
        predefined: Vec<PredefinedGroup>,
        issuer: Issuer,
    ) {
        if let Some(sa_key) = ports.settings.sa_key {
            self.shared.sa_key.store(sa_key, Relaxed);
        }
        let mut inbox = self.shared.inbox();
        inbox.ports = Some(Arc::new(ports));
        inbox.predefined = Some(predefined.into());
        inbox.issuer = Some(issuer);
        drop(inbox);
        self.shared.arrived.notify_one();
    }

    /// Hands over ports that were asked to register again, and have answered.
    pub(super) fn ports_asked(&self, ports: Vec<Guid>) {
        self.shared.inbox().asked.extend(ports);
        self.shared.arrived.notify_one();
    }

    /// Applies settings that were read again: whether `opensm-sa.dump` is written.
    pub(super) fn follow(&self, settings: &Settings) {
        self.shared.inbox().writes_dump = Some(settings.sa_db_dump);
        self.shared.arrived.notify_one();
    }

    /// Sets what operators' files say, as it is in force: partitions are listed with it.
    pub(crate) fn set_site(&self, site: Site) {
        *self.shared.site() = site;
    }

    /// Notes that the service loop does not hang. Several managers share a store on condition that
    /// this is called about every second.
    pub fn note_turn(&self) {
        self.shared.turns.fetch_add(1, Relaxed);
    }

    /// A session has begun: the registry must be published in it.
    pub(crate) fn session_begun(&self) {
        self.shared.inbox().session = true;
        self.shared.arrived.notify_one();
    }

    /// Epoch of the session in which the registry was published last; 0 if in none. The descriptor
    /// becomes readable when it changes.
    pub(super) fn published_epoch(&self) -> u64 {
        self.shared.published.load(Relaxed)
    }

    /// Opens a stream of writes of a responder in this process; `None` while writes are refused.
    pub fn open_writes(&self) -> Option<WriteStream> {
        let outbound = self.shared.open.borrow().then(|| self.shared.clone());
        outbound.map(WriteStream::new)
    }

    /// Keeps the copy of the master's registry that `progress` holds while standing by.
    pub fn keep_copy(&self, progress: &Arc<Progress>) {
        self.shared.inbox().followed = Some(progress.clone());
    }

    /// Wakes the registry's thread: a snapshot of the master has arrived.
    pub(super) fn waker(&self) -> impl Fn() + Clone + Send + use<> {
        let shared = self.shared.clone();
        move || shared.wake()
    }

    /// The copy has changed.
    pub fn followed_changed(&self) {
        self.shared.wake();
    }

    /// Age of the registry on disk.
    pub fn held(&self) -> RegistryVersion {
        *self.shared.held()
    }

    /// When the thread began what it has not ended; `None` while it waits for work.
    pub(super) fn busy_since(&self) -> Option<Instant> {
        *self.shared.step_began()
    }

    /// Whether the registry was read since this process started.
    pub(super) fn was_read(&self) -> bool {
        self.shared.was_read.load(Acquire)
    }

    /// Ports that have lost registrations, in the registry on disk or a later one.
    pub(super) fn lapsed_ports(&self) -> Arc<BTreeSet<Guid>> {
        self.shared.lapsed().clone()
    }

    /// Gives the right to commit to a shared store back, or takes it again.
    pub(super) fn yield_store(&self, yields: bool) {
        let mut inbox = self.shared.inbox();
        let before = std::mem::replace(&mut inbox.yields, yields);
        if before != yields {
            inbox.session = true;
            drop(inbox);
            self.shared.arrived.notify_one();
        }
    }

    /// Lets writes be acknowledged until this time; `None`: they wait.
    pub(super) fn acknowledge_until(&self, until: Option<Instant>) {
        let mut inbox = self.shared.inbox();
        let before = inbox.permit(until);
        let wakes = match inbox.acknowledge_until {
            Some(_) => {
                inbox.seal = false;
                self.shared.sealed.store(false, Relaxed);
                !inbox.writes.is_empty()
            }
            None => {
                inbox.seal |= before.is_some();
                inbox.seal
            }
        };
        drop(inbox);
        if wakes {
            self.shared.arrived.notify_one();
        }
    }

    /// Whether all writes wait.
    pub(super) fn is_sealed(&self) -> bool {
        self.shared.sealed.load(Relaxed)
    }

    /// State of the SA database that the registry is restored from.
    pub(super) fn imported(&self) -> ImportedRegistry {
        self.shared.imported().clone()
    }

    /// Sequence number on disk before this run; none if the registry was empty.
    pub fn stored(&self) -> Option<u64> {
        self.stored
    }

    /// Accepts writes from now on, or refuses them.
    pub(crate) fn set_open(&self, open: bool) {
        self.shared.open.send_if_modified(|is| std::mem::replace(is, open) != open);
        if !open {
            // They would wait until this SM is master again, long after their clients gave up.
            let dropped = std::mem::take(&mut self.shared.inbox().writes).len();
            self.shared.counters.not_master.add(dropped);
        }
    }

    /// Sets address and token of the front door, which are sent to responders.
    pub(super) fn set_front_door(&self, door: AnnouncedDoor) {
        self.shared.front_door.send_replace(door);
    }

    /// Sets which responder may pass on requests at the SM's port, and where to.
    pub(super) fn set_spill(&self, spill: Spill) {
        self.shared.spill.send_if_modified(|is| {
            let changes = *is != spill;
            *is = spill;
            changes
        });
    }

    /// Reports events to subscribers.
    pub(super) fn notify(&self, events: impl IntoIterator<Item = Event>) {
        let mut inbox = self.shared.inbox();
        inbox.events.extend(events);
        let room = NOTICES_MAX.saturating_mul(4);
        if inbox.events.len() > room {
            let excess = inbox.events.len() - room;
            inbox.events.drain(..excess);
            self.shared.counters.notices_dropped.add(excess);
        }
        drop(inbox);
        self.shared.arrived.notify_one();
    }

    /// Blocks of GUID tables that changed since the last call.
    pub(super) fn changed_guid_blocks(&self) -> Vec<GuidBlock> {
        std::mem::take(&mut *self.shared.guid_blocks())
    }

    /// Where programs give orders about partitions.
    pub fn desk(&self) -> PartitionDesk {
        PartitionDesk::new(self.shared.clone())
    }

    /// Partitions that programs made; `None` until they are known.
    pub(super) fn api_partitions(&self) -> Option<Arc<ApiPartitions>> {
        self.shared.api_partitions().clone()
    }

    /// The MLIDs whose members changed since the last call, with their members; empty if none are
    /// left.
    pub(super) fn changed_membership(&self) -> Membership {
        // Cleared first: a wake-up after this is not lost. Without one there is nothing to read,
        // and this is called at every turn of the loop.
        if self.shared.rung.swap(false, Acquire) {
            let mut bells = [0; 64];
            while matches!((&self.wake).read(&mut bells), Ok(count) if count == bells.len()) {}
        }
        std::mem::take(&mut self.shared.membership())
    }

    /// The next trap that a responder relayed.
    pub(super) fn next_trap(&self) -> Option<Packet> {
        self.shared.traps.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Everything that is registered and published.
    pub fn plane(&self) -> Arc<RegistryPlane> {
        self.publisher.reader().current().registry().clone()
    }

    /// Its metrics.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.shared.counters.list();
        let decisions = self.shared.decisions();
        let counter = Metric::counter;
        metrics.extend([
            counter(
                "registry_repeats",
                "Repeated requests answered like the first",
                decisions.repeated,
            ),
            counter(
                "registry_repeats_overtaken",
                "Repeats dropped: their record was changed after they were received",
                decisions.overtaken,
            ),
            counter(
                "registry_outcomes_forgotten",
                "Stored outcomes evicted early because the table is full",
                decisions.outcomes_forgotten_early,
            ),
            counter(
                "registry_records_refused",
                "Records refused because the registry is full",
                decisions.records_refused,
            ),
            counter(
                "registry_quota_refused",
                "Records refused because their port has reached its limit",
                decisions.quota_refused,
            ),
            counter(
                "registry_mlids_exhausted",
                "Multicast groups refused because no MLID is free",
                decisions.mlids_exhausted,
            ),
            counter(
                "registry_partitions_refused",
                "Orders about partitions refused because a limit is reached",
                decisions.partitions_refused,
            ),
            counter(
                "registry_lapses_forgotten",
                "Ports that left with their registrations and are not remembered, for lack of room",
                decisions.lapses_forgotten,
            ),
        ]);
        let plane = self.plane();
        let queue = self.shared.inbox().writes.len();
        let gauge = |name, help, value: usize| Metric::gauge(name, help, value as f64);
        metrics.extend([
            gauge("registry_queue", "Writes queued", queue),
            gauge(
                "registry_batch_writes_max",
                "Writes in the largest batch so far",
                self.shared.counters.batch_max.get() as usize,
            ),
        ]);
        metrics.extend(plane.counts().map(|(metric, name, count)| gauge(metric, name, count)));
        metrics
    }
}

impl AsFd for RegistryHandle {
    /// Becomes readable when relayed traps wait, the members of multicast groups changed, or the
    /// registry was published in another session.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for RegistryHandle {
    fn drop(&mut self) {
        self.shared.open.send_replace(false);
        self.shared.inbox().stop = true;
        self.shared.arrived.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("the registry thread panicked");
        }
    }
}

/// A registry of a master, for tests of other modules.
#[cfg(test)]
pub(crate) fn master_in(directory: &std::path::Path) -> (RegistryHandle, Arc<Publisher>) {
    let config = crate::publish::PublishConfig {
        tls: None,
        local: Default::default(),
        listen: (std::net::Ipv4Addr::LOCALHOST, 0).into(),
        epochs: crate::publish::EpochFile::new(directory.to_owned()),
        history: sa_proto::snapshot::HistoryLimits::default(),
    };
    let publisher = Arc::new(Publisher::start(config).unwrap());
    let setup = RegistrySetup::new(1).unwrap();
    let store = Box::new(FileStore::new(directory.to_owned()));
    let handle = setup.start(store, publisher.clone(), SaDumpFile::default()).unwrap();
    let session = publisher.begin_session(ib_mad::types::Guid(1)).unwrap();
    let ports = sm_core::registry::testing::ports();
    handle.fabric_changed(ports, Vec::new(), Issuer::default());
    handle.session_begun();
    let end = Instant::now() + std::time::Duration::from_secs(60);
    while handle.published_epoch() < session.epoch {
        assert!(Instant::now() < end, "the registry was not published");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    handle.acknowledge_until(Some(end + std::time::Duration::from_secs(3600)));
    handle.set_open(true);
    (handle, publisher)
}

#[cfg(test)]
mod tests;
