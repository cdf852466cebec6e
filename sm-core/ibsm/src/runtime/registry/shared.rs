//! State shared by the registry's thread, the services of responders and the service loop.

use std::collections::{BTreeSet, VecDeque};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Release, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::types::Guid;
use sa_proto::proto::registry as proto;
use sa_proto::snapshot::RegistryVersion;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::counters::Counters;
use super::durable::{Verdict, Write};
use super::notices::{NOTICES_MAX, NumberedNotice};
use crate::front_door::{AnnouncedDoor, Spill};
use crate::partitions::Site;
use crate::publish::{Publisher, Writers};
use crate::runtime::follow::Progress;
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::notice::{Event, Issuer};
use sm_core::registry::{self, GuidBlock, Ports, PredefinedGroup};
use sm_core::sweep::ImportedRegistry;
use sm_routing::multicast::Membership;

/// Writes that wait for the thread; more are dropped, and retried by their clients.
pub(super) const WRITES_MAX: usize = 1 << 14;

pub(super) type Outbound = mpsc::Sender<Result<proto::Outcomes, tonic::Status>>;

/// A write of a responder, or of a program.
pub(super) struct Job {
    /// Its number in the connection.
    pub(super) id: u64,
    pub(super) write: Write,
    pub(super) reply_to: ReplyTo,
}

/// Who is answered.
pub(super) enum ReplyTo {
    /// The responder that sent it.
    Responder(Arc<Origin>),
    /// The program that ordered it.
    Program(oneshot::Sender<Verdict>),
}

/// Where the writes of a message came from.
#[derive(Debug)]
pub(super) struct Origin {
    /// Epoch of the session that the responder follows; 0 if it is unknown.
    pub(super) epoch: u64,
    /// The connection's number, and its queue of outcomes.
    pub(super) connection: u64,
    pub(super) outbound: Outbound,
}

/// Work for the thread.
#[derive(Default)]
pub(super) struct Inbox {
    /// The copy of the master's registry, with `--follow`.
    pub(super) followed: Option<Arc<Progress>>,
    pub(super) writes: VecDeque<Job>,
    pub(super) ports: Option<Arc<Ports>>,
    pub(super) predefined: Option<Arc<[PredefinedGroup]>>,
    /// Ports that were asked to register again.
    pub(super) asked: Vec<Guid>,
    pub(super) issuer: Option<Issuer>,
    pub(super) events: Vec<Event>,
    /// Whether a session may have begun or ended.
    pub(super) session: bool,
    /// Whether `opensm-sa.dump` is written, if the settings were read again.
    pub(super) writes_dump: Option<bool>,
    /// Until when writes may be acknowledged; `None` if not now. They wait.
    pub(super) acknowledge_until: Option<Instant>,
    /// Whether another manager may take the right to commit to a shared store.
    pub(super) yields: bool,
    /// Whether a follower that answers wait for has stored something.
    pub(super) stored: bool,
    /// Whether the store may have news.
    pub(super) store: bool,
    /// Whether the thread takes no writes: the store has not ended the last commit.
    pub(super) busy: bool,
    /// Whether that was withdrawn, and the thread has not noticed yet.
    pub(super) seal: bool,
    /// Elections of other managers that were known when writes were permitted last.
    pub(super) elections: u64,
    /// Whether another manager was notified that nothing is acknowledged, since `acknowledge_until`
    /// had passed: the service loop must notice that before it permits writes again.
    pub(super) has_lapsed: bool,
    pub(super) stop: bool,
}

impl Inbox {
    /// Whether writes may be acknowledged now.
    pub(super) fn may_acknowledge(&self, now: Instant) -> bool {
        self.acknowledge_until.is_some_and(|until| now < until)
    }

    /// Permits writes until this time, or makes them wait. Returns what was permitted before.
    pub(super) fn permit(&mut self, until: Option<Instant>) -> Option<Instant> {
        self.has_lapsed &= until.is_some();
        let until = until.filter(|_| !self.has_lapsed);
        if until.is_some() {
            self.elections = self.elections();
        }
        std::mem::replace(&mut self.acknowledge_until, until)
    }

    /// How many elections of other managers there were when the time in which writes are permitted
    /// had passed, if there was one since they were permitted. They wait until the service loop has
    /// withdrawn the permission.
    pub(super) fn lapse(&mut self, now: Instant) -> Option<u64> {
        let has_passed = self.acknowledge_until.is_some_and(|until| now >= until);
        let elections = self.elections();
        if self.has_lapsed || !has_passed || elections == self.elections {
            return None;
        }
        self.has_lapsed = true;
        Some(elections)
    }

    fn elections(&self) -> u64 {
        self.followed.as_ref().map_or(0, |followed| followed.elections())
    }

    pub(super) fn has_work(&self, now: Instant) -> bool {
        (!self.writes.is_empty() && !self.busy && self.may_acknowledge(now))
            || self.seal
            || self.stored
            || self.store
            || self.ports.is_some()
            || self.predefined.is_some()
            || !self.asked.is_empty()
            || !self.events.is_empty()
            || self.session
            || self.writes_dump.is_some()
            || self.followed.as_ref().is_some_and(|followed| followed.has_news())
            || self.stop
    }
}

/// The shared state.
pub(super) struct Shared {
    pub(super) inbox: Mutex<Inbox>,
    /// Signals work in the inbox.
    pub(super) arrived: Condvar,
    /// Epoch of the session in which the registry is published; 0 if in none.
    pub(super) published: AtomicU64,
    /// Epoch of the session in which a registry was published that lacks nothing which any manager
    /// has acknowledged; 0 if in none. It may be a past one.
    pub(super) certain: AtomicU64,
    /// When the step began that the thread is in.
    pub(super) step_began: Mutex<Option<Instant>>,
    /// Turns of the service loop, which show that it does not hang.
    pub(super) turns: AtomicU64,
    /// Whether writes are accepted: there is a session.
    pub(super) open: watch::Sender<bool>,
    /// Whether the thread decides on no write until it is permitted again.
    pub(super) sealed: AtomicBool,
    /// Whether answers wait for followers.
    pub(super) answers_wait: AtomicBool,
    /// Age of the registry on disk.
    pub(super) held: Mutex<RegistryVersion>,
    /// Whether the registry was read since this process started.
    pub(super) was_read: AtomicBool,
    /// Ports that have lost registrations, in that registry or a later one.
    pub(super) lapsed: Mutex<Arc<BTreeSet<Guid>>>,
    /// The publisher's list of those that write, once there is one.
    pub(super) writers: OnceLock<Writers>,
    pub(super) notices: broadcast::Sender<Arc<NumberedNotice>>,
    /// Notices of the last seconds, for responders that reconnect.
    pub(super) recent: Mutex<VecDeque<(Instant, Arc<NumberedNotice>)>>,
    /// Where the front door's envelopes come from.
    pub(super) front_door: watch::Sender<AnnouncedDoor>,
    /// Who may pass on requests at the SM's port, and where to.
    pub(super) spill: watch::Sender<Spill>,
    /// Members of MLIDs whose members changed, until the service loop takes them.
    pub(super) membership: Mutex<Membership>,
    /// Blocks of GUID tables that changed, until the service loop takes them.
    pub(super) guid_blocks: Mutex<Vec<GuidBlock>>,
    /// Partitions that programs made, as they are stored; `None` until they are known.
    pub(super) api_partitions: Mutex<Option<Arc<ApiPartitions>>>,
    /// What operators' files say, as it is in force.
    pub(super) site: Mutex<Site>,
    /// The publisher, once there is one.
    pub(super) publisher: OnceLock<Weak<Publisher>>,
    /// State of the SA database that the registry is restored from.
    pub(super) imported: Mutex<ImportedRegistry>,
    /// Relayed traps, for the service loop.
    pub(super) traps: Mutex<VecDeque<Packet>>,
    pub(super) counters: Arc<Counters>,
    /// Counters of the registry's decisions.
    pub(super) decisions: Mutex<registry::Counters>,
    pub(super) connections: AtomicU64,
    /// Wakes the service loop when relayed traps wait, multicast membership changed, or the
    /// registry was published in another session.
    pub(super) bell: UnixStream,
    /// Whether the bell may have rung since it was silenced.
    pub(super) rung: AtomicBool,
    /// SM_Key that makes a request trusted.
    pub(super) sa_key: AtomicU64,
}

impl Shared {
    /// The state at the start. `bell` wakes the service loop; `sa_key` makes a request trusted.
    pub(super) fn new(bell: UnixStream, sa_key: u64) -> Self {
        Self {
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            published: AtomicU64::new(0),
            certain: AtomicU64::new(0),
            step_began: Mutex::default(),
            turns: AtomicU64::new(0),
            open: watch::Sender::new(false),
            sealed: AtomicBool::new(false),
            answers_wait: AtomicBool::new(false),
            held: Mutex::default(),
            was_read: AtomicBool::new(false),
            lapsed: Mutex::default(),
            writers: OnceLock::new(),
            notices: broadcast::Sender::new(NOTICES_MAX),
            recent: Mutex::default(),
            front_door: watch::Sender::default(),
            spill: watch::Sender::default(),
            membership: Mutex::default(),
            guid_blocks: Mutex::default(),
            api_partitions: Mutex::default(),
            site: Mutex::default(),
            publisher: OnceLock::new(),
            imported: Mutex::default(),
            traps: Mutex::default(),
            counters: Arc::default(),
            decisions: Mutex::default(),
            connections: AtomicU64::new(0),
            bell,
            rung: AtomicBool::new(false),
            sa_key: AtomicU64::new(sa_key),
        }
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn decisions(&self) -> registry::Counters {
        *self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn guid_blocks(&self) -> MutexGuard<'_, Vec<GuidBlock>> {
        self.guid_blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn api_partitions(&self) -> MutexGuard<'_, Option<Arc<ApiPartitions>>> {
        self.api_partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn site(&self) -> MutexGuard<'_, Site> {
        self.site.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn imported(&self) -> MutexGuard<'_, ImportedRegistry> {
        self.imported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn step_began(&self) -> MutexGuard<'_, Option<Instant>> {
        self.step_began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn held(&self) -> MutexGuard<'_, RegistryVersion> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lapsed(&self) -> MutexGuard<'_, Arc<BTreeSet<Guid>>> {
        self.lapsed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn recent(&self) -> MutexGuard<'_, VecDeque<(Instant, Arc<NumberedNotice>)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues writes; those without room are dropped and counted.
    pub(super) fn submit(&self, mut jobs: Vec<Job>) {
        self.counters.received.add(jobs.len());
        let mut inbox = self.inbox();
        let room = WRITES_MAX.saturating_sub(inbox.writes.len());
        self.counters.overflow.add(jobs.len().saturating_sub(room));
        jobs.truncate(room);
        inbox.writes.extend(jobs);
        drop(inbox);
        self.arrived.notify_one();
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        // Under the lock: otherwise the thread might check just before and sleep right after.
        drop(self.inbox());
        self.arrived.notify_one();
    }

    /// A follower has stored something.
    pub(super) fn note_stored(&self) {
        if self.answers_wait.load(SeqCst) {
            self.inbox().stored = true;
            self.arrived.notify_one();
        }
    }

    /// The store has news.
    pub(super) fn note_store(&self) {
        self.inbox().store = true;
        self.arrived.notify_one();
    }

    pub(super) fn ring(&self) {
        // If the socket is full, the loop is awake already.
        let _ = (&self.bell).write(&[0]);
        // After the byte: a loop that finds the flag unset leaves the byte, and looks again.
        self.rung.store(true, Release);
    }
}
