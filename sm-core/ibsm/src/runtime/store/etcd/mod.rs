//! A store shared by several managers: an etcd cluster (decision 47).
//!
//! One manager holds the fence and may commit; the others read. The fence is a key that hangs on a
//! lease: it is free once its holder revoked the lease or did not renew it for [`LEASE_S`], and is
//! never taken from a living one. A commit is one transaction that compares the fence, so that what
//! a former holder still sends has no effect.
//!
//! - [`EtcdStore`]: what the registry's thread sees; everything else runs on a thread of its own.
//! - [`layout`]: keys, values, transactions. [`image`]: the contents in memory.
//! - [`state`]: what is kept besides the registry.
//! - [`task`]: decides. [`life`]: whether the fence may be kept. [`read`]: reading.
//! - [`client`]: requests. [`status`]: for operators.

mod client;
mod failure;
mod image;
mod layout;
mod life;
#[cfg(any(test, feature = "etcd-model"))]
pub(crate) mod model;
mod read;
#[cfg(feature = "etcd-model")]
mod simulated;
mod state;
mod status;
mod task;
mod turn;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sa_proto::snapshot::Session;
use sm_core::registry::Changes;
use tokio::sync::mpsc as commands;

use super::{Event, Store, StoreError, Waker};
use crate::cli::EtcdLocation;
use crate::runtime::vital::Vital;
use client::Client;
use life::{Life, Pulse};
#[cfg(feature = "etcd-model")]
pub(in super::super) use simulated::SimulatedStore;
pub(in super::super) use state::SharedState;
pub(crate) use status::{EtcdStatus, Holder};
use task::{Command, Task};

/// Messages and client of etcd, by its field numbers (`proto/etcd.proto`).
#[allow(missing_docs, unreachable_pub, clippy::all, dead_code, reason = "generated code")]
mod proto {
    include!("../../../generated/etcdserverpb.rs");
}

/// Seconds after which the fence of a manager that died is free; etcd checks twice a second.
const LEASE_S: i64 = 3;
/// The log is taken into the tables when it is longer than they are, and than this, bytes.
const FOLD_LEN: usize = 4 << 20;
/// How long the end of this process waits for the fence to be given back.
const FAREWELL: Duration = Duration::from_secs(2);

/// The store of several managers.
pub(in super::super) struct EtcdStore {
    commands: commands::UnboundedSender<Command>,
    events: Receiver<(u64, Event)>,
    /// Number of the last `open`: events of before are of no interest.
    opening: u64,
    session: Option<Session>,
    waker: Arc<std::sync::OnceLock<Waker>>,
    status: Arc<EtcdStatus>,
    pulse: Pulse,
    /// What does the work; `None` in a simulation.
    thread: Option<JoinHandle<()>>,
}

/// Where a store is.
struct Place<'a> {
    client: Client,
    prefix: &'a str,
    fold_len: usize,
    /// Identity of this process among holders of the fence.
    process: u64,
    /// The state besides the registry, if it is kept.
    state: Option<Arc<SharedState>>,
}

impl EtcdStore {
    /// The store at this place. Connects when it is opened.
    pub(in super::super) fn start(
        location: &EtcdLocation,
        state: Option<Arc<SharedState>>,
    ) -> Result<Self, StoreError> {
        Self::start_with(location, FOLD_LEN, state)
    }

    fn start_with(
        location: &EtcdLocation,
        fold_len: usize,
        state: Option<Arc<SharedState>>,
    ) -> Result<Self, StoreError> {
        let status = Arc::new(EtcdStatus::new(location.endpoints.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StoreError::Runtime)?;
        let client = {
            let _context = runtime.enter();
            Client::new(location, &status)?
        };
        let process = RandomState::new().hash_one(std::process::id());
        let place = Place { client, prefix: &location.prefix, fold_len, process, state };
        Self::start_at(place, status, runtime)
    }

    /// Starts the thread.
    fn start_at(
        place: Place<'_>,
        status: Arc<EtcdStatus>,
        runtime: tokio::runtime::Runtime,
    ) -> Result<Self, StoreError> {
        let (mut this, task) = Self::prepare(place, status);
        let thread = std::thread::Builder::new()
            .name("etcd".to_owned())
            .spawn(move || {
                let _vital = Vital("etcd");
                runtime.block_on(task.run());
            })
            .map_err(StoreError::Runtime)?;
        this.thread = Some(thread);
        Ok(this)
    }

    /// A store in a simulated cluster, on a thread.
    #[cfg(test)]
    fn start_on(
        link: model::EtcdLink,
        fold_len: usize,
        state: Option<Arc<SharedState>>,
    ) -> Result<Self, StoreError> {
        let status = Arc::new(EtcdStatus::new(vec!["model".to_owned()]));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(StoreError::Runtime)?;
        let process = RandomState::new().hash_one(0);
        let client = Client::Model(link);
        let place = Place { client, prefix: "/model", fold_len, process, state };
        Self::start_at(place, status, runtime)
    }

    /// A store in a simulated cluster, on a thread, without other state than the registry.
    #[cfg(test)]
    pub(in crate::runtime) fn at_link(link: model::EtcdLink) -> Result<Self, StoreError> {
        Self::start_on(link, FOLD_LEN, None)
    }

    /// The store, and the task that does its work.
    fn prepare(place: Place<'_>, status: Arc<EtcdStatus>) -> (Self, Task) {
        let (events_in, events) = channel();
        let (commands, commands_out) = commands::unbounded_channel();
        let waker: Arc<std::sync::OnceLock<Waker>> = Arc::default();
        let events_in = Events { sender: events_in, waker: waker.clone() };
        let pulse = Pulse::default();
        let life = Life::new(pulse.clone());
        let task = Task::new(place, commands_out, events_in, status.clone(), life);
        let (opening, session, thread) = (0, None, None);
        let this = Self { commands, events, opening, session, waker, status, pulse, thread };
        (this, task)
    }

    /// State of the cluster, for operators.
    pub(in super::super) fn status(&self) -> Arc<EtcdStatus> {
        self.status.clone()
    }

    fn send(&self, command: Command) {
        // The thread runs as long as this exists, unless it panicked: then nothing is ever stored,
        // and no write is answered.
        let _ = self.commands.send(command);
    }
}

impl Store for EtcdStore {
    fn open(&mut self) {
        self.opening += 1;
        self.send(Command::Open(self.opening));
    }

    fn lead(&mut self, session: Option<Session>) {
        if self.session != session {
            self.session = session;
            self.send(Command::Lead(session));
            if session.is_none() {
                // What was reported before no longer says that commits are accepted.
                self.open();
            }
        }
    }

    fn submit(&mut self, changes: &Arc<Changes>, session: Session) {
        self.send(Command::Submit(self.opening, changes.clone(), session));
    }

    fn poll(&mut self) -> Option<Event> {
        loop {
            let (opening, event) = self.events.try_recv().ok()?;
            if opening == self.opening {
                return Some(event);
            }
        }
    }

    fn poll_within(&mut self, patience: Duration) -> Option<Event> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (opening, event) = self.events.recv_timeout(left).ok()?;
            if opening == self.opening {
                return Some(event);
            }
        }
    }

    fn set_waker(&mut self, waker: Waker) {
        // Set once, by the registry's thread.
        let _ = self.waker.set(waker);
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn note_alive(&mut self) {
        self.pulse.beat();
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let (done, ended) = channel::<()>();
        self.send(Command::Close(done));
        // Nothing is ever sent: this returns when the thread drops its end.
        let _ = ended.recv_timeout(FAREWELL);
        if thread.is_finished() {
            // It cannot have panicked: that ends the process.
            let _ = thread.join();
        }
    }
}

/// Where events go.
struct Events {
    sender: Sender<(u64, Event)>,
    waker: Arc<std::sync::OnceLock<Waker>>,
}

impl Events {
    fn send(&self, opening: u64, event: Event) {
        // The receiver is gone when the store is being dropped.
        let _ = self.sender.send((opening, event));
        if let Some(wake) = self.waker.get() {
            wake();
        }
    }
}

#[cfg(test)]
pub(in crate::runtime) mod testing;
#[cfg(test)]
mod tests;
