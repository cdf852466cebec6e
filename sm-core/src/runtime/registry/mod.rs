//! The registry's thread: the one that decides on writes, makes them durable and publishes them.
//!
//! Work arrives in an [`Inbox`]: writes of responders, bounded; what sweeps found and who is
//! connected, of which only the latest counts. The thread takes all of it at once, so that the writes
//! of a batch share one transaction ([`keeper`]), and hands outcomes to the connections they came
//! from without ever waiting for one. Notices leave by the same thread, through the damper.
//!
//! [`grpc`]: the services that responders call. [`store`]: the file.

mod counters;
mod dump;
mod grpc;
mod keeper;
mod log;
mod store;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ib_mad::transport::Packet;
use sa_proto::prost::bytes::Bytes;
use sa_proto::proto::registry as proto;
use sa_proto::snapshot::RegistryPlane;
use tokio::sync::{broadcast, mpsc, watch};
use tonic::service::Routes;
use tracing::error;

use crate::notice::{Damper, Event, Issuer};
use crate::publish::{Publisher, Responders};
use crate::registry::{
    self, AnswerRecord, GuidBlock, Ports, PredefinedGroup, RegistryEvent, Request,
};
use crate::routing::multicast::Membership;
use crate::sweep::ImportedRegistry;
use counters::Counters;
pub(super) use dump::DumpFile;
use keeper::{Keeper, Verdict, Work};
pub use store::StoreError;

use super::follow::{self, Following, Progress};
use super::metrics::Metric;

/// Writes that wait for the thread; more are dropped, and asked again.
const WRITES_MAX: usize = 1 << 14;
/// Writes of one transaction.
const BATCH_MAX: usize = 1024;
/// Writes of one turn from which on others are sure to follow at once.
const BUSY: usize = 16;
/// How long after a busy turn writes gather before the next: a commit costs the same for one write
/// as for hundreds, an fsync and a dozen wake-ups at either end.
const GATHERING: Duration = Duration::from_millis(2);
/// Relayed traps that wait for the loop.
const TRAPS_MAX: usize = 4096;
/// Notices that a responder may be behind before it misses some.
const NOTICES_MAX: usize = 1 << 14;
/// How long notices are kept for responders that were away: as long as a stream takes to come back
/// after a restart.
const NOTICES_KEPT: Duration = Duration::from_secs(10);
/// How often the list of responders is looked at.
const RESPONDERS_INTERVAL: Duration = Duration::from_millis(200);

/// How often at most the loop is told who belongs to which MLID: each time groups that changed are
/// gone through, and their trees planted, however few came and went.
const MEMBERS_INTERVAL: Duration = Duration::from_millis(100);

/// Least time from one look at what has run out to the next.
const BREATH: Duration = Duration::from_millis(20);

type Outbound = mpsc::Sender<Result<proto::Outcomes, tonic::Status>>;

/// A write of a responder.
struct Job {
    /// Its number in the connection.
    id: u64,
    /// `None` changes nothing.
    request: Option<Request>,
    /// Epoch of the session that the responder follows; 0 if it was not told.
    epoch: u64,
    /// The connection's number, and how it is answered.
    connection: u64,
    outbound: Outbound,
}

/// What waits for the thread.
#[derive(Default)]
struct Inbox {
    /// What another master's clients registered, if we follow one.
    followed: Option<Arc<Progress>>,
    writes: VecDeque<Job>,
    ports: Option<Arc<Ports>>,
    predefined: Option<Arc<[PredefinedGroup]>>,
    issuer: Option<Issuer>,
    events: Vec<Event>,
    /// Whether a session may have begun or ended.
    session: bool,
    stop: bool,
}

impl Inbox {
    fn has_work(&self) -> bool {
        !self.writes.is_empty()
            || self.ports.is_some()
            || self.predefined.is_some()
            || !self.events.is_empty()
            || self.session
            || self.followed.as_ref().is_some_and(|followed| followed.has_news())
            || self.stop
    }
}

/// What the thread, the services and the loop have in common.
struct Shared {
    inbox: Mutex<Inbox>,
    /// Something is in the inbox.
    arrived: Condvar,
    /// Epoch of the session in which the registry is published; 0 if in none.
    published: AtomicU64,
    /// Whether writes are taken: a session is on.
    open: watch::Sender<bool>,
    notices: broadcast::Sender<Arc<grpc::Numbered>>,
    /// Those of the last seconds, for whoever begins to follow.
    recent: Mutex<VecDeque<(Instant, Arc<grpc::Numbered>)>>,
    /// Where the front door takes what responders send by it.
    front_door: watch::Sender<String>,
    /// Who belongs to MLIDs of which that changed, until the loop has taken it.
    membership: Mutex<Membership>,
    /// Blocks of GUID tables that changed, until the loop has taken them.
    guid_blocks: Mutex<Vec<GuidBlock>>,
    /// What the registry began with.
    imported: Mutex<ImportedRegistry>,
    /// Relayed traps, for the loop.
    traps: Mutex<VecDeque<Packet>>,
    counters: Arc<Counters>,
    /// What the registry itself counts.
    decisions: Mutex<registry::Counters>,
    connections: AtomicU64,
    /// Rings when relayed traps wait, multicast membership changed, or the registry was published in
    /// another session.
    bell: UnixStream,
    /// SM_Key that makes a request trusted.
    sa_key: u64,
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decisions(&self) -> registry::Counters {
        *self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guid_blocks(&self) -> MutexGuard<'_, Vec<GuidBlock>> {
        self.guid_blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn imported(&self) -> MutexGuard<'_, ImportedRegistry> {
        self.imported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> MutexGuard<'_, VecDeque<(Instant, Arc<grpc::Numbered>)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in writes as far as there is room.
    fn submit(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut inbox = self.inbox();
        for job in jobs {
            self.counters.received.add(1);
            if inbox.writes.len() >= WRITES_MAX {
                self.counters.overflow.add(1);
                continue;
            }
            inbox.writes.push_back(job);
        }
        drop(inbox);
        self.arrived.notify_one();
    }

    fn ring(&self) {
        // If it cannot be written, it has rung already.
        let _ = (&self.bell).write(&[0]);
    }
}

/// The registry's end of the publisher: made before it, since it serves what this decides.
pub(super) struct Entrance {
    shared: Arc<Shared>,
    wake: UnixStream,
}

impl Entrance {
    /// `sa_key` makes a request trusted.
    pub(super) fn new(sa_key: u64) -> io::Result<Self> {
        let (wake, bell) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let shared = Shared {
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            published: AtomicU64::new(0),
            open: watch::Sender::new(false),
            notices: broadcast::Sender::new(NOTICES_MAX),
            recent: Mutex::default(),
            front_door: watch::Sender::default(),
            membership: Mutex::default(),
            guid_blocks: Mutex::default(),
            imported: Mutex::default(),
            traps: Mutex::default(),
            counters: Arc::default(),
            decisions: Mutex::default(),
            connections: AtomicU64::new(0),
            bell,
            sa_key,
        };
        Ok(Self { shared: Arc::new(shared), wake })
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
    ) -> Result<Office, super::RunError> {
        let counters = self.shared.counters.clone();
        let keeper = Keeper::open(directory, publisher.clone(), counters)?;
        let responders = publisher.responders();
        let shared = self.shared.clone();
        if dump.is_named() && keeper.is_fresh() {
            *shared.imported() = ImportedRegistry::Expected;
        }
        let stored = if keeper.is_fresh() { None } else { Some(keeper.sequence()) };
        let thread = Thread {
            shared,
            keeper,
            responders,
            known: Vec::new(),
            responders_due: Instant::now(),
            members_due: Instant::now(),
            damper: Damper::default(),
            followed: None,
            issuer: Issuer::default(),
            // Above those of the process before, which did not tell a million a second.
            number: now_s() << 20,
            dump,
        };
        let thread =
            std::thread::Builder::new().name("registry".to_owned()).spawn(move || thread.run())?;
        Ok(Office { shared: self.shared, wake: self.wake, publisher, stored, thread: Some(thread) })
    }
}

/// The loop's end of the registry. Dropping it ends the thread.
pub(super) struct Office {
    shared: Arc<Shared>,
    wake: UnixStream,
    publisher: Arc<Publisher>,
    /// Sequence number of what was stored before this run; none if nothing was.
    stored: Option<u64>,
    thread: Option<JoinHandle<()>>,
}

impl Office {
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

impl AsFd for Office {
    /// Becomes readable when relayed traps wait, the members of multicast groups changed, or the
    /// registry was published in another session.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Office {
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

struct Thread {
    shared: Arc<Shared>,
    keeper: Keeper,
    responders: Responders,
    /// Responders that subscriptions were spread over last.
    known: Vec<u64>,
    responders_due: Instant,
    /// When the loop may be told next who belongs to which MLID.
    members_due: Instant,
    damper: Damper,
    followed: Option<Arc<Progress>>,
    issuer: Issuer,
    /// Number of the last notice.
    number: u64,
    dump: DumpFile,
}

impl Thread {
    /// Begins with the SA database that is named, if nothing was ever stored.
    fn import(&mut self, ports: &Ports) {
        let mut imported = ImportedRegistry::None;
        if self.keeper.is_fresh()
            && let Some(plane) = self.dump.read(now_s(), ports)
        {
            let known = Arc::new(dump::registered_ports(&plane));
            if self.keeper.begin_with(now_s(), plane) {
                imported = ImportedRegistry::Read(known);
            }
        }
        let mut told = self.shared.imported();
        if *told == ImportedRegistry::Expected {
            *told = imported;
            drop(told);
            self.shared.ring();
        }
    }

    fn run(mut self) {
        loop {
            let (jobs, mut work, events, stop) = self.wait();
            if let Some(ports) = &work.ports {
                self.import(ports);
            }
            work.responders = self.changed_responders();
            let is_busy = jobs.len() >= BUSY;
            self.count(jobs.len());
            self.turn(jobs, work);
            *self.shared.decisions.lock().unwrap_or_else(PoisonError::into_inner) =
                self.keeper.registry_counters();
            self.tell_members();
            let blocks = self.keeper.changed_guid_blocks();
            if !blocks.is_empty() {
                self.shared.guid_blocks().extend(blocks);
                self.shared.ring();
            }
            self.tell(events);
            // What cannot be read back is not to be replaced by nothing.
            if let Some(plane) = self.keeper.plane() {
                self.dump.keep(Instant::now(), now_s(), self.keeper.ports(), &plane, stop);
            }
            if stop {
                self.dump.finish();
                return;
            }
            if is_busy {
                std::thread::sleep(GATHERING);
            }
        }
    }

    /// Tells the loop who belongs to which MLID, unless it was told a moment ago.
    fn tell_members(&mut self) {
        if !self.keeper.may_have_changed_members() || Instant::now() < self.members_due {
            return;
        }
        self.members_due = Instant::now() + MEMBERS_INTERVAL;
        let members = self.keeper.changed_members();
        if !members.is_empty() {
            self.shared.membership().extend(members);
            self.shared.ring();
        }
    }

    /// Waits until there is something to do, and takes it.
    fn wait(&mut self) -> (Vec<Job>, Work, Vec<Event>, bool) {
        let now = Instant::now();
        let expiry = self
            .keeper
            .due_s()
            .map(|due_s| now + Duration::from_secs(due_s.saturating_sub(now_s())).max(BREATH));
        let members = self.keeper.may_have_changed_members().then_some(self.members_due);
        let due = [expiry, members, self.damper.poll_timeout(), self.dump.due()];
        let due = due.into_iter().flatten().fold(self.responders_due, Instant::min);
        let patience = due.saturating_duration_since(now);
        let inbox = self.shared.inbox();
        let waited =
            self.shared.arrived.wait_timeout_while(inbox, patience, |inbox| !inbox.has_work());
        let (mut inbox, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let count = inbox.writes.len().min(BATCH_MAX);
        let jobs: Vec<_> = inbox.writes.drain(..count).collect();
        let (ports, predefined) = (inbox.ports.take(), inbox.predefined.take());
        let events = std::mem::take(&mut inbox.events);
        inbox.session = false;
        self.followed.clone_from(&inbox.followed);
        if let Some(issuer) = inbox.issuer.take() {
            self.issuer = issuer;
        }
        (jobs, Work { ports, predefined, ..Work::default() }, events, inbox.stop)
    }

    /// The responders that can report, if they are others than before: those that serve, or if none
    /// does, those that will.
    fn changed_responders(&mut self) -> Option<Vec<u64>> {
        self.responders_due = Instant::now() + RESPONDERS_INTERVAL;
        let list = self.responders.load();
        let ids = |serving: bool| -> Vec<u64> {
            let able = list.iter().filter(|entry| !entry.is_client());
            able.filter(|entry| !serving || entry.serving.is_some()).map(|entry| entry.id).collect()
        };
        let ids = Some(ids(true)).filter(|ids| !ids.is_empty()).unwrap_or_else(|| ids(false));
        (ids != self.known).then(|| {
            self.known.clone_from(&ids);
            ids
        })
    }

    fn count(&self, writes: usize) {
        if writes > 0 {
            self.shared.counters.batches.add(1);
            self.shared.counters.batch_max.raise(writes as u64);
        }
    }

    /// Keeps what came in of another master's registry.
    fn follow(&mut self, now_s: u64) {
        let Some(followed) = &self.followed else { return };
        if let Some(news) = followed.take()
            && self.keeper.follow(now_s, &news.plane)
        {
            followed.stored(news.version);
        }
    }

    /// Does the work, and answers.
    fn turn(&mut self, jobs: Vec<Job>, mut work: Work) {
        let (mut jobs, refused): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| !self.keeper.is_superseded_by(job.epoch));
        self.shared.counters.superseded_session.add(refused.len());
        let verdicts = vec![Verdict::Dropped; refused.len()];
        self.answer(refused, verdicts);
        work.writes = jobs.iter_mut().map(|job| job.request.take()).collect();
        let now_s = now_s();
        self.follow(now_s);
        let keeper = &mut self.keeper;
        let done = catch_unwind(AssertUnwindSafe(|| keeper.turn(now_s, work)));
        let verdicts = done.unwrap_or_else(|_| {
            self.shared.counters.panics.add(1);
            error!("internal error in the registry; it is read back from disk");
            self.keeper.recover(now_s);
            vec![Verdict::Silence; jobs.len()]
        });
        let epoch = self.keeper.published().map_or(0, |session| session.epoch);
        if self.shared.published.swap(epoch, Relaxed) != epoch {
            self.shared.ring();
        }
        self.answer(jobs, verdicts);
    }

    fn answer(&self, jobs: Vec<Job>, verdicts: Vec<Verdict>) {
        let mut by_connection: BTreeMap<u64, (Outbound, Vec<proto::Outcome>)> = BTreeMap::new();
        for (job, verdict) in jobs.into_iter().zip(verdicts) {
            let outcome = match verdict {
                Verdict::Silence => continue,
                Verdict::Dropped => {
                    proto::Outcome { id: job.id, dropped: true, ..Default::default() }
                }
                Verdict::Answer { status, data, epoch, sequence } => proto::Outcome {
                    id: job.id,
                    status: status.0.into(),
                    data: data.map(|data| told(&data)).unwrap_or_default(),
                    epoch,
                    sequence,
                    dropped: false,
                },
            };
            let entry = by_connection.entry(job.connection);
            entry.or_insert_with(|| (job.outbound, Vec::new())).1.push(outcome);
        }
        for (outbound, outcomes) in by_connection.into_values() {
            let count = outcomes.len();
            if outbound.try_send(Ok(proto::Outcomes { outcomes })).is_err() {
                self.shared.counters.undelivered.add(count);
            }
        }
    }

    /// Tells of what happened, as far as the damper lets it through.
    fn tell(&mut self, events: Vec<Event>) {
        let now = Instant::now();
        let before = self.damper.counters();
        for (event, pkey) in self.keeper.events() {
            let event = match event {
                RegistryEvent::GroupCreated(mgid) => self.issuer.group_created(mgid, pkey),
                RegistryEvent::GroupDeleted(mgid) => self.issuer.group_deleted(mgid, pkey),
            };
            self.damper.handle(now, event);
        }
        for event in events {
            self.damper.handle(now, event);
        }
        self.damper.handle_timeout(now);
        while let Some(event) = self.damper.poll() {
            self.number += 1;
            self.shared.counters.notices.add(1);
            let notice = Arc::new(grpc::numbered(self.number, &event));
            // Who begins to follow has it from one of the two.
            let mut recent = self.shared.recent();
            let _ = self.shared.notices.send(notice.clone());
            let old = |(since, _): &(Instant, _)| *since + NOTICES_KEPT < now;
            while recent.len() >= NOTICES_MAX || recent.front().is_some_and(old) {
                recent.pop_front();
            }
            recent.push_back((now, notice));
        }
        let after = self.damper.counters();
        self.shared.counters.superseded.add((after.superseded - before.superseded) as usize);
        self.shared.counters.notices_dropped.add((after.dropped - before.dropped) as usize);
    }
}

/// A record as it is sent: without the zeros at its end, but never empty, which would stand for the
/// request's.
fn told(record: &AnswerRecord) -> Bytes {
    match record.trimmed() {
        empty if empty.is_empty() => Bytes::from_static(&[0]),
        trimmed => trimmed.clone(),
    }
}

/// The time by which leases end and outcomes grow old, in seconds since 1970: the system's as this
/// process first saw it, and what has passed since. A clock that is set meanwhile ends no lease.
fn now_s() -> u64 {
    static BEGIN: OnceLock<(Instant, Duration)> = OnceLock::new();
    let (begin, then) = BEGIN.get_or_init(|| {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Instant::now(), since_1970)
    });
    (*then + begin.elapsed()).as_secs()
}

#[cfg(test)]
mod tests;
