//! The registry's thread: takes what waits, decides on all of it, and hands out what came of that.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sa_proto::prost::bytes::Bytes;
use sa_proto::proto::registry as proto;
use tracing::error;

use super::dump::{self, DumpFile};
use super::durable::{DurableRegistry, Verdict, Work};
use super::shared::{Job, Outbound, Shared};
use super::{NOTICES_MAX, grpc};
use crate::notice::{Damper, Event, Issuer};
use crate::publish::Responders;
use crate::registry::{AnswerRecord, Ports, RegistryEvent};
use crate::runtime::follow::Progress;
use crate::sweep::ImportedRegistry;

/// Writes of one transaction.
pub(super) const BATCH_MAX: usize = 1024;
/// Writes of one turn from which on others are sure to follow at once.
const BUSY: usize = 16;
/// How long after a busy turn writes gather before the next: a commit costs the same for one write
/// as for hundreds, an fsync and a dozen wake-ups at either end.
const GATHERING: Duration = Duration::from_millis(2);
/// How long notices are kept for responders that were away: as long as a stream takes to come back
/// after a restart.
pub(super) const NOTICES_KEPT: Duration = Duration::from_secs(10);
/// How often the list of responders is looked at.
const RESPONDERS_INTERVAL: Duration = Duration::from_millis(200);

/// How often at most the loop is told who belongs to which MLID: each time groups that changed are
/// gone through, and their trees planted, however few came and went.
const MEMBERS_INTERVAL: Duration = Duration::from_millis(100);

/// Least time from one look at what has run out to the next.
const EXPIRY_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// The thread's own state.
pub(super) struct Thread {
    shared: Arc<Shared>,
    durable: DurableRegistry,
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
    /// A thread that has done nothing yet.
    pub(super) fn new(
        shared: Arc<Shared>,
        durable: DurableRegistry,
        responders: Responders,
        dump: DumpFile,
    ) -> Self {
        Self {
            shared,
            durable,
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
        }
    }

    /// Begins with the SA database that is named, if nothing was ever stored.
    fn import(&mut self, ports: &Ports) {
        let mut imported = ImportedRegistry::None;
        if self.durable.is_fresh()
            && let Some(plane) = self.dump.read(now_s(), ports)
        {
            let known = Arc::new(dump::registered_ports(&plane));
            if self.durable.begin_with(now_s(), plane) {
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

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
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
                self.durable.registry_counters();
            self.tell_members();
            let blocks = self.durable.changed_guid_blocks();
            if !blocks.is_empty() {
                self.shared.guid_blocks().extend(blocks);
                self.shared.ring();
            }
            self.tell(events);
            // What cannot be read back is not to be replaced by nothing.
            if let Some(plane) = self.durable.plane() {
                self.dump.keep(Instant::now(), now_s(), self.durable.ports(), &plane, stop);
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
        if !self.durable.may_have_changed_members() || Instant::now() < self.members_due {
            return;
        }
        self.members_due = Instant::now() + MEMBERS_INTERVAL;
        let members = self.durable.changed_members();
        if !members.is_empty() {
            self.shared.membership().extend(members);
            self.shared.ring();
        }
    }

    /// Waits until there is something to do, and takes it.
    fn wait(&mut self) -> (Vec<Job>, Work, Vec<Event>, bool) {
        let now = Instant::now();
        let expiry = self.durable.due_s().map(|due_s| {
            now + Duration::from_secs(due_s.saturating_sub(now_s())).max(EXPIRY_INTERVAL_MIN)
        });
        let members = self.durable.may_have_changed_members().then_some(self.members_due);
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
            && self.durable.follow(now_s, &news.plane)
        {
            followed.stored(news.version);
        }
    }

    /// Does the work, and answers.
    fn turn(&mut self, jobs: Vec<Job>, mut work: Work) {
        let (mut jobs, refused): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| !self.durable.is_superseded_by(job.epoch));
        self.shared.counters.superseded_session.add(refused.len());
        let verdicts = vec![Verdict::Dropped; refused.len()];
        self.answer(refused, verdicts);
        work.writes = jobs.iter_mut().map(|job| job.request.take()).collect();
        let now_s = now_s();
        self.follow(now_s);
        let durable = &mut self.durable;
        let done = catch_unwind(AssertUnwindSafe(|| durable.turn(now_s, work)));
        let verdicts = done.unwrap_or_else(|_| {
            self.shared.counters.panics.add(1);
            error!("internal error in the registry; it is read back from disk");
            self.durable.recover(now_s);
            vec![Verdict::Silence; jobs.len()]
        });
        let epoch = self.durable.published().map_or(0, |session| session.epoch);
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
pub(super) fn now_s() -> u64 {
    static BEGIN: OnceLock<(Instant, Duration)> = OnceLock::new();
    let (begin, then) = BEGIN.get_or_init(|| {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Instant::now(), since_1970)
    });
    (*then + begin.elapsed()).as_secs()
}
