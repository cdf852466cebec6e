//! The registry's thread: the one that decides on writes, makes them durable and publishes them.
//!
//! Work arrives in an inbox ([`shared`]): writes of responders, bounded; what sweeps found and who is
//! connected, of which only the latest counts. The thread takes all of it at once, so that the writes
//! of a batch share one transaction ([`durable`]), and hands outcomes to the connections they came
//! from without ever waiting for one. Notices leave by the same thread, through the damper.
//!
//! [`thread`]: what it does. [`grpc`]: the services that responders call. [`store`]: the file.

mod counters;
mod dump;
mod durable;
mod grpc;
mod log;
mod shared;
mod store;
mod thread;

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use ib_mad::transport::Packet;
use sa_proto::snapshot::RegistryPlane;
use tokio::sync::watch;
use tonic::service::Routes;
use tracing::error;

use crate::notice::{Event, Issuer};
use crate::publish::Publisher;
use crate::registry::{GuidBlock, Ports, PredefinedGroup};
use crate::routing::multicast::Membership;
use crate::sweep::ImportedRegistry;
pub(super) use dump::DumpFile;
use durable::DurableRegistry;
use shared::Shared;
pub use store::StoreError;
use thread::Thread;

use super::follow::{self, Following, Progress};
use super::metrics::Metric;

/// Notices that a responder may be behind before it misses some.
const NOTICES_MAX: usize = 1 << 14;

/// The registry's end of the publisher: made before it, since it serves what this decides.
pub(super) struct RegistrySetup {
    shared: Arc<Shared>,
    wake: UnixStream,
}

impl RegistrySetup {
    /// `sa_key` makes a request trusted.
    pub(super) fn new(sa_key: u64) -> io::Result<Self> {
        let (wake, bell) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        Ok(Self { shared: Arc::new(Shared::new(bell, sa_key)), wake })
    }

    /// The services that responders call. They end what they do when `end` loses its sender.
    pub(super) fn services(&self, end: watch::Receiver<()>) -> Routes {
        grpc::services(self.shared.clone(), end)
    }

    /// Opens the registry in `directory` and starts its thread. `dump` is what it may begin with,
    /// and leaves for OpenSM.
    pub(super) fn start(
        self,
        directory: PathBuf,
        publisher: Arc<Publisher>,
        dump: DumpFile,
    ) -> Result<RegistryHandle, super::RunError> {
        let counters = self.shared.counters.clone();
        let durable = DurableRegistry::open(directory, publisher.clone(), counters)?;
        let responders = publisher.responders();
        let shared = self.shared.clone();
        if dump.is_named() && durable.is_fresh() {
            *shared.imported() = ImportedRegistry::Expected;
        }
        let stored = if durable.is_fresh() { None } else { Some(durable.sequence()) };
        let thread = Thread::new(shared, durable, responders, dump);
        let thread =
            std::thread::Builder::new().name("registry".to_owned()).spawn(move || thread.run())?;
        Ok(RegistryHandle {
            shared: self.shared,
            wake: self.wake,
            publisher,
            stored,
            thread: Some(thread),
        })
    }
}

/// The loop's end of the registry. Dropping it ends the thread.
pub(super) struct RegistryHandle {
    shared: Arc<Shared>,
    wake: UnixStream,
    publisher: Arc<Publisher>,
    /// Sequence number of what was stored before this run; none if nothing was.
    stored: Option<u64>,
    thread: Option<JoinHandle<()>>,
}

impl RegistryHandle {
    /// Hands over what a sweep left: the ports, and the groups of the site's files.
    pub(super) fn fabric_changed(
        &self,
        ports: Ports,
        predefined: Vec<PredefinedGroup>,
        issuer: Issuer,
    ) {
        let mut inbox = self.shared.inbox();
        inbox.ports = Some(Arc::new(ports));
        inbox.predefined = Some(predefined.into());
        inbox.issuer = Some(issuer);
        drop(inbox);
        self.shared.arrived.notify_one();
    }

    /// Tells that a session has begun: the registry is to be published in it.
    pub(super) fn session_begun(&self) {
        self.shared.inbox().session = true;
        self.shared.arrived.notify_one();
    }

    /// Epoch of the session in which the registry was published last; 0 if in none. The descriptor
    /// becomes readable when it changes.
    pub(super) fn published(&self) -> u64 {
        self.shared.published.load(Relaxed)
    }

    /// Keeps what clients register with other masters while we are none; `progress` tells how far
    /// that is.
    pub(super) fn follow(&self, following: Following, progress: &Arc<Progress>) -> io::Result<()> {
        self.shared.inbox().followed = Some(progress.clone());
        let shared = self.shared.clone();
        follow::start(following, progress.clone(), move || {
            // Under the lock, lest the thread look just before and sleep right after.
            drop(shared.inbox());
            shared.arrived.notify_one();
        })
    }

    /// What is known of the SA database that the registry begins with.
    pub(super) fn imported(&self) -> ImportedRegistry {
        self.shared.imported().clone()
    }

    /// Sequence number of what an earlier run had stored; none if nothing was.
    pub(super) fn stored(&self) -> Option<u64> {
        self.stored
    }

    /// Takes writes from now on, or takes none.
    pub(super) fn set_open(&self, open: bool) {
        self.shared.open.send_if_modified(|is| std::mem::replace(is, open) != open);
    }

    /// Tells responders where the front door takes what they send.
    pub(super) fn set_front_door(&self, address: String) {
        self.shared.front_door.send_replace(address);
    }

    /// Tells of events.
    pub(super) fn tell(&self, events: impl IntoIterator<Item = Event>) {
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

    /// Blocks of GUID tables that changed since this was last asked.
    pub(super) fn changed_guid_blocks(&self) -> Vec<GuidBlock> {
        std::mem::take(&mut *self.shared.guid_blocks())
    }

    /// The MLIDs whose members are others than when last asked, with those; without if they have
    /// none any more.
    pub(super) fn changed_membership(&self) -> Membership {
        // Made silent first: a bell that rings after this brings the loop back here.
        let mut bells = [0; 64];
        let _ = (&self.wake).read(&mut bells);
        std::mem::take(&mut self.shared.membership())
    }

    /// The next trap that a responder relayed.
    pub(super) fn next_trap(&self) -> Option<Packet> {
        self.shared.traps.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Everything that is registered and published.
    pub(super) fn plane(&self) -> Arc<RegistryPlane> {
        self.publisher.reader().current().registry().clone()
    }

    /// What it counts.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.shared.counters.list();
        let decisions = self.shared.decisions();
        let counter = Metric::counter;
        metrics.extend([
            counter("registry_repeats", "Repeats answered like the first", decisions.repeated),
            counter(
                "registry_outcomes_forgotten",
                "Outcomes forgotten before their time, for lack of room",
                decisions.outcomes_forgotten_early,
            ),
            counter(
                "registry_records_refused",
                "Records refused for lack of room",
                decisions.records_refused,
            ),
            counter(
                "registry_quota_refused",
                "Records refused because their port has as many as it may have",
                decisions.quota_refused,
            ),
            counter(
                "registry_mlids_exhausted",
                "Groups refused since no MLID was left",
                decisions.mlids_exhausted,
            ),
        ]);
        let plane = self.plane();
        let queue = self.shared.inbox().writes.len();
        let gauge = |name, help, value: usize| Metric::gauge(name, help, value as f64);
        metrics.extend([
            gauge("registry_queue", "Writes that wait", queue),
            gauge(
                "registry_batch_writes_max",
                "Writes in the largest batch so far, each batch being at most one commit",
                self.shared.counters.batch_max.get() as usize,
            ),
            gauge("registry_groups", "Multicast groups", plane.groups.len()),
            gauge("registry_members", "Members of multicast groups", plane.members.len()),
            gauge("registry_services", "Services", plane.services.len()),
            gauge("registry_subscriptions", "Event subscriptions", plane.subscriptions.len()),
            gauge("registry_alias_guids", "Alias GUIDs", plane.alias_guids.len()),
        ]);
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
            error!("the registry's thread has panicked");
        }
    }
}

#[cfg(test)]
mod tests;
