//! The registry's thread: takes waiting work, decides on all of it, and hands out the outcomes.
//!
//! [`RegistryThread::step`] never waits, and takes the time as an argument; [`RegistryThread::run`]
//! is the thread.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sa_proto::prost::bytes::Bytes;
use sa_proto::proto::registry as proto;
use sa_proto::snapshot::{LapsedPort, RegistryPlane, Rows};
use tracing::error;

use super::dump::{self, SaDumpFile};
use super::durable::{DurableRegistry, Verdict, Work};
use super::notices::{NOTICES_KEPT, NOTICES_MAX, numbered};
use super::shared::{Inbox, Job, Origin, ReplyTo, Shared, WRITES_MAX};
use super::synced::WaitingAnswers;
use crate::clock::Clock;
use crate::observe::{Responder, Responders};
use crate::publish::SyncFollowers;
use crate::runtime::follow::{News, Progress};
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::notice::{Damper, Event, Issuer};
use sm_core::registry::{AnswerRecord, Ports, RegistryEvent};
use sm_core::sweep::ImportedRegistry;

/// Writes of one transaction.
pub(super) const BATCH_MAX: usize = 1024;
/// A turn with this many writes is busy: more are expected at once.
const BUSY: usize = 16;
/// How long after a busy turn writes gather before the next: a commit costs the same for one write
/// as for hundreds, an fsync and a dozen wake-ups at either end.
const GATHERING: Duration = Duration::from_millis(2);
/// How often the list of responders is checked.
const RESPONDERS_INTERVAL: Duration = Duration::from_millis(200);

/// Least time between two reports of partitions to the service loop, for each member: a report
/// costs a pass over all of them.
const PARTITIONS_INTERVAL_PER_MEMBER: Duration = Duration::from_micros(1);
/// Bounds of that time.
const PARTITIONS_INTERVAL_MIN: Duration = Duration::from_millis(5);
const PARTITIONS_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Least time between two reports of multicast members to the service loop: each costs a pass over
/// the groups that changed, and new trees, however few members joined or left.
const MEMBERS_INTERVAL: Duration = Duration::from_millis(100);

/// How long writes wait for the store before they are dropped: their clients have repeated them.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// Least time between two checks for expired leases.
const EXPIRY_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// What to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next step, when it is due.
    Step,
    /// The same, but not before this time has passed: more writes are expected.
    Gather(Duration),
    /// The registry is closed.
    Stop,
}

/// The state of the thread.
pub struct RegistryThread {
    shared: Arc<Shared>,
    durable: DurableRegistry,
    responders: Responders,
    /// Responders that subscriptions were spread over last.
    known: Vec<u64>,
    responders_due: Instant,
    /// When multicast members may be reported next.
    members_due: Instant,
    /// When partitions may be reported next, whether they wait for it, and the rows that were
    /// reported last.
    partitions_due: Instant,
    partitions_wait: bool,
    partitions: Option<RegistryPlane>,
    /// Ports that have lost registrations, as they were reported last.
    lapsed: Rows<LapsedPort>,
    damper: Damper,
    followed: Option<Arc<Progress>>,
    /// Followers that answers wait for, the answers, and when to look again without news.
    sync: Arc<SyncFollowers>,
    waiting: WaitingAnswers,
    waiting_due: Option<Instant>,
    /// Writes of the batch that is open: the store has not ended its commit.
    deciding: Vec<Job>,
    /// Since when the store has taken no writes.
    busy_since: Option<Instant>,
    /// A snapshot of the master that could not be stored; tried again with each turn.
    unstored: Option<News>,
    /// Turns of the service loop that were seen.
    turns: u64,
    /// Until when the writes taken last may be acknowledged.
    acknowledge_until: Option<Instant>,
    issuer: Issuer,
    /// Number of the last notice.
    number: u64,
    dump: SaDumpFile,
    clock: Arc<dyn Clock>,
}

impl RegistryThread {
    /// A thread that has not started.
    pub(super) fn new(
        shared: Arc<Shared>,
        durable: DurableRegistry,
        responders: Responders,
        sync: Arc<SyncFollowers>,
        dump: SaDumpFile,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let now = clock.now();
        Self {
            shared,
            // Above those of the previous process, which sent fewer than a million a second.
            number: durable.now().time.as_secs() << 20,
            durable,
            responders,
            known: Vec::new(),
            responders_due: now,
            members_due: now,
            partitions_due: now,
            partitions_wait: false,
            partitions: None,
            lapsed: Rows::default(),
            damper: Damper::default(),
            followed: None,
            sync,
            waiting: WaitingAnswers::default(),
            waiting_due: None,
            deciding: Vec::new(),
            busy_since: None,
            unstored: None,
            turns: 0,
            acknowledge_until: None,
            issuer: Issuer::default(),
            dump,
            clock,
        }
    }

    /// Restores an empty registry from the SA database that the settings name.
    fn import(&mut self, ports: &Ports) {
        if *self.shared.imported() != ImportedRegistry::Expected || !self.durable.is_settled() {
            return;
        }
        let mut imported = ImportedRegistry::None;
        if self.durable.is_fresh()
            && let Some(plane) = self.dump.read(self.durable.now(), ports)
        {
            let known = Arc::new(dump::registered_ports(&plane));
            let now_s = self.durable.advance(self.clock.host());
            if self.durable.begin_with(now_s, plane) {
                imported = ImportedRegistry::Read(known);
            }
        }
        let mut state = self.shared.imported();
        if *state == ImportedRegistry::Expected {
            *state = imported;
            drop(state);
            self.shared.ring();
        }
    }

    /// Works until it is stopped.
    pub(super) fn run(mut self) {
        loop {
            self.wait();
            let now = self.clock.now();
            *self.shared.step_began() = Some(now);
            let next = self.step(now);
            *self.shared.step_began() = None;
            match next {
                Next::Step => {}
                Next::Gather(time) => std::thread::sleep(time),
                Next::Stop => return,
            }
        }
    }

    /// Does all work that waits. Spurious calls are allowed.
    pub fn step(&mut self, now: Instant) -> Next {
        let (jobs, mut work, events, stop) = self.take_work(now);
        let now_s = self.durable.advance(self.clock.host());
        let turns = self.shared.turns.load(Relaxed);
        if std::mem::replace(&mut self.turns, turns) != turns {
            self.durable.note_alive();
        }
        self.durable.set_yields(self.shared.inbox().yields);
        self.durable.refresh(now_s);
        let ports = work.ports.as_ref().or_else(|| self.durable.ports()).cloned();
        if let Some(ports) = ports {
            self.import(&ports);
        }
        work.responders = self.changed_responders(now);
        let is_busy = jobs.len() >= BUSY;
        self.count(jobs.len());
        self.turn(now, jobs, work);
        *self.shared.decisions.lock().unwrap_or_else(PoisonError::into_inner) =
            self.durable.registry_counters();
        self.report_members(now);
        self.report_partitions(now);
        let blocks = self.durable.changed_guid_blocks();
        if !blocks.is_empty() {
            self.shared.guid_blocks().extend(blocks);
            self.shared.ring();
        }
        self.notify(now, events);
        self.seal_lapsed(now);
        // While the file cannot be read, the dump keeps its contents.
        if let Some(plane) = self.durable.plane() {
            let time = self.durable.now();
            self.dump.keep(now, time, self.durable.ports(), &plane, stop);
        }
        if stop {
            self.dump.finish();
            return Next::Stop;
        }
        if is_busy { Next::Gather(GATHERING) } else { Next::Step }
    }

    /// All rows as they are stored; `None` while the store cannot be used.
    pub fn rows(&self) -> Option<RegistryPlane> {
        self.durable.plane()
    }

    /// Whether clients may be acknowledged.
    pub fn acknowledges(&self, now: Instant) -> bool {
        let may = self.shared.inbox().acknowledge_until.is_some_and(|until| now < until);
        may && self.durable.is_settled()
    }

    /// Internal errors, after each of which the registry was reloaded.
    pub fn panics(&self) -> u64 {
        self.shared.counters.panics.get()
    }

    /// What writes wait for, for people.
    pub fn describe(&self, now: Instant) -> String {
        let (queued, until) = {
            let inbox = self.shared.inbox();
            (inbox.writes.len(), inbox.acknowledge_until)
        };
        format!(
            "writes: {queued} queued, {} being committed, {} decided; acknowledged for {:?} more; \
             standbys awaited and lost: {:?}",
            self.deciding.len(),
            self.waiting.len(),
            until.map(|until| until.saturating_duration_since(now)),
            self.sync.counts(),
        )
    }

    /// Whether work waits.
    pub fn has_work(&self, now: Instant) -> bool {
        self.inbox().has_work(now)
    }

    /// The inbox, with whether writes can be taken now.
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        let mut inbox = self.shared.inbox();
        inbox.busy = self.durable.is_busy();
        inbox
    }

    /// When [`step`](Self::step) is due if no work arrives before.
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        let time = self.durable.now().time;
        let expiry = self.durable.due_s().map(|due_s| {
            now + Duration::from_secs(due_s).saturating_sub(time).max(EXPIRY_INTERVAL_MIN)
        });
        let members = self.durable.may_have_changed_members().then_some(self.members_due);
        let partitions = self.partitions_wait.then_some(self.partitions_due);
        let due = [
            expiry,
            members,
            partitions,
            self.damper.poll_timeout(),
            self.dump.due(),
            self.waiting_due,
        ];
        due.into_iter().flatten().fold(self.responders_due, Instant::min)
    }

    /// Reports changed multicast members to the service loop, if that is due.
    fn report_members(&mut self, now: Instant) {
        if !self.durable.may_have_changed_members() || now < self.members_due {
            return;
        }
        self.members_due = now + MEMBERS_INTERVAL;
        let members = self.durable.changed_members();
        if !members.is_empty() {
            self.shared.membership().extend(members);
            self.shared.ring();
        }
    }

    /// Reports partitions of programs to the service loop, if they changed and that is due.
    /// Standbys do so, too: a new master needs them in its first sweep.
    pub(super) fn report_partitions(&mut self, now: Instant) {
        // While the store cannot be read, those that are known stay in force.
        let Some(plane) = self.durable.plane() else { return };
        let known = self.partitions.as_ref();
        if known.is_some_and(|known| ApiPartitions::are_same(known, &plane)) {
            self.partitions_wait = false;
            return;
        }
        self.partitions_wait = now < self.partitions_due;
        if self.partitions_wait {
            return;
        }
        let members = u32::try_from(plane.partition_members.len()).unwrap_or(u32::MAX);
        self.partitions_due = now
            + (PARTITIONS_INTERVAL_PER_MEMBER * members)
                .clamp(PARTITIONS_INTERVAL_MIN, PARTITIONS_INTERVAL_MAX);
        *self.shared.api_partitions() = Some(Arc::new(ApiPartitions::of(&plane)));
        self.partitions = Some(plane);
        self.shared.ring();
    }

    /// Reports the registry on disk to the service loop.
    pub(super) fn report_held(&mut self) {
        if let Some(plane) = self.durable.plane()
            && !plane.lapsed_ports.is_same(&self.lapsed)
        {
            let ports = plane.lapsed_ports.iter().map(|row| row.port_guid);
            *self.shared.lapsed() = Arc::new(ports.collect());
            self.lapsed = plane.lapsed_ports;
        }
        // A service loop that sees this version sees those ports.
        *self.shared.held() = self.durable.held();
        if self.durable.is_read() && !self.shared.was_read.swap(true, AcqRel) {
            self.shared.ring();
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let now = self.clock.now();
        let patience = self.poll_timeout(now).saturating_duration_since(now);
        let inbox = self.inbox();
        let is_idle = |inbox: &mut Inbox| !inbox.has_work(self.clock.now());
        drop(self.shared.arrived.wait_timeout_while(inbox, patience, is_idle));
    }

    /// Takes what there is to do.
    fn take_work(&mut self, now: Instant) -> (Vec<Job>, Work, Vec<Event>, bool) {
        let mut inbox = self.shared.inbox();
        inbox.busy = self.durable.is_busy();
        // Writes taken before are decided and published.
        if std::mem::take(&mut inbox.seal) {
            self.shared.sealed.store(true, Relaxed);
            self.shared.ring();
        }
        (inbox.stored, inbox.store) = (false, false);
        if let Some(writes) = inbox.writes_dump.take() {
            self.dump.set_writes(writes);
        }
        let may_take = !inbox.busy && inbox.may_acknowledge(now) && self.waiting.len() < WRITES_MAX;
        self.acknowledge_until = inbox.acknowledge_until;
        let count = if may_take { inbox.writes.len().min(BATCH_MAX) } else { 0 };
        let jobs: Vec<_> = inbox.writes.drain(..count).collect();
        self.busy_since = inbox.busy.then(|| self.busy_since.unwrap_or(now));
        let is_late = self.busy_since.is_some_and(|since| now >= since + STORE_PATIENCE);
        let late = if is_late { std::mem::take(&mut inbox.writes) } else { VecDeque::new() };
        let (ports, predefined) = (inbox.ports.take(), inbox.predefined.take());
        let asked = std::mem::take(&mut inbox.asked);
        let events = std::mem::take(&mut inbox.events);
        inbox.session = false;
        self.followed.clone_from(&inbox.followed);
        if let Some(issuer) = inbox.issuer.take() {
            self.issuer = issuer;
        }
        let stop = inbox.stop;
        drop(inbox);
        self.shared.counters.store_late.add(late.len());
        let verdicts = vec![Verdict::Dropped; late.len()];
        self.answer(late.into(), verdicts);
        (jobs, Work { ports, predefined, asked, ..Work::default() }, events, stop)
    }

    /// The responders that can send reports, if they changed: those that serve this SM's session,
    /// or if none does, those that will.
    fn changed_responders(&mut self, now: Instant) -> Option<Vec<u64>> {
        self.responders_due = now + RESPONDERS_INTERVAL;
        let list = self.responders.load();
        let epoch = self.shared.published.load(Relaxed);
        let serves =
            |entry: &Responder| entry.serving.is_some_and(|serving| serving.session.epoch == epoch);
        let ids = |serving: bool| -> Vec<u64> {
            let able = list.iter().filter(|entry| !entry.is_client());
            able.filter(|entry| !serving || serves(entry)).map(|entry| entry.id).collect()
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

    /// Stores the copy of the master's registry, if there is a newer one.
    fn follow(&mut self, now_s: u64) {
        let Some(followed) = &self.followed else { return };
        if let Some(news) = self.unstored.take() {
            followed.put_back(news);
        }
        if let Some((session, time)) = followed.take_registry_time() {
            self.durable.follow_time(session, time);
        }
        let Some(news) = followed.take() else { return };
        self.shared.counters.uncopied.add(news.outcomes_discarded);
        if self.durable.follow(now_s, news.version.session, &news.plane, &news.outcomes) {
            let followed = followed.clone();
            self.report_held();
            followed.stored(news.version);
        } else {
            // While this SM is master, or the file cannot be written.
            self.unstored = Some(news);
        }
    }

    /// A session of this SM has begun: what arrived before is outdated.
    fn discard_followed(&mut self) {
        self.unstored = None;
        if let Some(followed) = &self.followed {
            followed.begin_term();
        }
    }

    /// Does the work, and answers.
    fn turn(&mut self, now: Instant, jobs: Vec<Job>, mut work: Work) {
        // What a program no longer waits for it orders again, or orders otherwise.
        let mut jobs = jobs;
        let is_left =
            |job: &mut Job| matches!(&job.reply_to, ReplyTo::Program(it) if it.is_closed());
        let left = jobs.extract_if(.., is_left).count();
        self.shared.counters.superseded_orders.add(left);
        if let Some(session) = self.durable.session() {
            // A responder that follows a later session than this SM's: then another SM is master.
            // One with an earlier epoch is about to follow this SM's, and is answered from it.
            let follows_later = |job: &mut Job| match &job.reply_to {
                ReplyTo::Responder(origin) => origin.epoch > session.epoch,
                ReplyTo::Program(_) => false,
            };
            let refused: Vec<_> = jobs.extract_if(.., follows_later).collect();
            self.shared.counters.superseded_session.add(refused.len());
            let verdicts = vec![Verdict::Dropped; refused.len()];
            self.answer(refused, verdicts);
        }
        work.writes = jobs.iter_mut().map(|job| std::mem::take(&mut job.write)).collect();
        self.follow(self.durable.now().time.as_secs());
        let now_s = self.durable.now().time.as_secs();
        let durable = &mut self.durable;
        let done = catch_unwind(AssertUnwindSafe(|| durable.begin(now_s, work)));
        self.deciding.extend(jobs);
        let verdicts = done.unwrap_or_else(|_| {
            self.shared.counters.panics.add(1);
            error!("internal error in the registry; reloading it");
            self.durable.recover(now_s);
            Some(vec![Verdict::Silence; self.deciding.len()])
        });
        self.report_held();
        // Before any answer: who gets one sees its effect.
        let certain = self.durable.certain().map_or(0, |session| session.epoch);
        self.shared.certain.store(certain, Release);
        let epoch = self.durable.published().map_or(0, |session| session.epoch);
        if self.shared.published.swap(epoch, Relaxed) != epoch {
            self.shared.ring();
            if epoch != 0 {
                self.discard_followed();
            }
        }
        if let Some(verdicts) = verdicts
            && !self.deciding.is_empty()
        {
            let jobs = std::mem::take(&mut self.deciding);
            self.waiting.push(self.durable.held(), (jobs, verdicts));
        }
        self.answer_waiting(now);
    }

    /// Answers writes that followers have stored, while it is certain that this SM is master.
    fn answer_waiting(&mut self, taken_at: Instant) {
        self.waiting_due = None;
        if self.waiting.len() == 0 {
            return;
        }
        let dropped = self.waiting.drop_before(self.durable.held());
        self.shared.counters.unvouched.add(dropped);
        // This process may have been stopped since they were taken, and another SM be master.
        let now = self.clock.now().max(taken_at);
        let is_late = self.acknowledge_until.is_none_or(|until| now >= until);
        if is_late {
            return;
        }
        // In this order: a follower that stores something in between wakes this thread.
        self.shared.answers_wait.store(true, SeqCst);
        let acknowledged = self.sync.acknowledged(now);
        while let Some((jobs, verdicts)) = self.waiting.pop(acknowledged) {
            self.answer(jobs, verdicts);
        }
        if self.waiting.len() == 0 {
            self.shared.answers_wait.store(false, SeqCst);
        } else {
            self.waiting_due = acknowledged.due;
        }
    }

    /// Notifies a manager that was elected, in place of a service loop that hangs, that nothing is
    /// acknowledged any more: the time for which that loop vouched has passed.
    fn seal_lapsed(&self, now: Instant) {
        let Some(followed) = &self.followed else { return };
        if let Some(elections) = self.shared.inbox().lapse(now) {
            followed.set_sealed(Some((self.durable.published_version(), elections)));
        }
    }

    fn answer(&self, jobs: Vec<Job>, verdicts: Vec<Verdict>) {
        // The records of all answers, in memory that these share.
        let mut records = Vec::new();
        let mut answers = Vec::with_capacity(jobs.len());
        let published = self.durable.published_version();
        for (job, verdict) in jobs.into_iter().zip(verdicts) {
            let begin = records.len();
            let origin = match job.reply_to {
                ReplyTo::Responder(origin) => origin,
                ReplyTo::Program(program) => {
                    // One that no longer waits orders it again.
                    let _ = program.send(verdict);
                    continue;
                }
            };
            let outcome = match verdict {
                // Responders give no orders.
                Verdict::Silence | Verdict::Ordered { .. } | Verdict::Superseded => continue,
                Verdict::Dropped => {
                    proto::Outcome { id: job.id, dropped: true, ..Default::default() }
                }
                Verdict::Answer { status, data, epoch, sequence } => {
                    if let Some(data) = data {
                        records.extend_from_slice(record_bytes(&data));
                    }
                    let is_of_session = published.session.epoch == epoch;
                    let fabric_generation =
                        if is_of_session { published.fabric_generation } else { 0 };
                    proto::Outcome {
                        id: job.id,
                        status: status.0.into(),
                        epoch,
                        sequence,
                        fabric_generation,
                        ..Default::default()
                    }
                }
            };
            answers.push((origin, outcome, begin..records.len()));
        }
        let records = Bytes::from(records);
        // Few messages make a batch, and the answers to each are adjacent.
        let mut by_connection: BTreeMap<u64, (Arc<Origin>, Vec<proto::Outcome>)> = BTreeMap::new();
        let mut answers = answers.into_iter().peekable();
        while let Some((origin, ..)) = answers.peek() {
            let origin = origin.clone();
            // Nearly always all are of one connection.
            let room = if by_connection.is_empty() { answers.len() } else { 0 };
            let of = by_connection.entry(origin.connection);
            let (_, outcomes) = of.or_insert_with(|| (origin.clone(), Vec::with_capacity(room)));
            while let Some((_, mut outcome, record)) =
                answers.next_if(|(other, ..)| Arc::ptr_eq(other, &origin))
            {
                if !record.is_empty() {
                    outcome.data = records.slice(record);
                }
                outcomes.push(outcome);
            }
        }
        for (origin, outcomes) in by_connection.into_values() {
            let count = outcomes.len();
            if origin.outbound.try_send(Ok(proto::Outcomes { outcomes })).is_err() {
                self.shared.counters.undelivered.add(count);
            }
        }
    }

    /// Sends notices of events, as far as the damper permits.
    fn notify(&mut self, now: Instant, events: Vec<Event>) {
        let before = self.damper.counters();
        for (event, pkey) in self.durable.events() {
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
            let notice = Arc::new(numbered(self.number, &event));
            // A new subscriber gets it from one of the two.
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

/// A record as sent: without trailing zeros, but never empty, since empty means the record of the
/// request.
fn record_bytes(record: &AnswerRecord) -> &[u8] {
    match record.trimmed() {
        [] => &[0],
        trimmed => trimmed,
    }
}
