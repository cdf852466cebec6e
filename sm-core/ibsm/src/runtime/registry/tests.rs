use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ib_mad::transport::{Interest, wait};
use ib_mad::types::{Guid, PKey};
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::ServiceRecord;
use ib_mad::wire::record::service::component as svc;
use ib_mad::wire::sa::attribute;
use sa_proto::proto::registry as proto;
use sa_proto::snapshot::{FabricPlane, HistoryLimits, Subnet};
use tokio::sync::mpsc;

use super::durable::Write;
use super::shared::{Job, Origin, Outbound, ReplyTo, WRITES_MAX};
use super::thread::BATCH_MAX;
use super::*;
use crate::clock::HostClock;
use crate::publish::{EpochFile, PublishConfig};
use crate::runtime::store::etcd::EtcdStore;
use crate::runtime::store::etcd::model::{EtcdLink, EtcdModel};
use crate::runtime::store::etcd::testing::Cluster;
use crate::runtime::store::file::FileStore;
use sm_core::registry::testing::{gid, ports, request};
use sm_core::registry::{
    Attributes, OrderRefusal, PartitionAction, PartitionOrder, Request, WantedMember,
};

fn job(id: u64, outbound: &Outbound) -> Job {
    job_from(id, Origin { epoch: 0, connection: 1, outbound: outbound.clone() })
}

fn job_from(id: u64, origin: Origin) -> Job {
    Job { id, write: Write::Nothing, reply_to: ReplyTo::Responder(Arc::new(origin)) }
}

#[test]
fn writes_beyond_the_queue_are_dropped_and_counted() {
    let setup = RegistrySetup::new(1).unwrap();
    let (outbound, _inbound) = mpsc::channel(1);
    let shared = &setup.shared;
    shared.submit((0..WRITES_MAX as u64 + 5).map(|id| job(id, &outbound)).collect());
    assert_eq!(shared.inbox().writes.len(), WRITES_MAX);
    assert_eq!((shared.counters.overflow.get(), shared.counters.received.get()), {
        (5, WRITES_MAX as u64 + 5)
    });
}

fn handle(directory: &tempfile::TempDir) -> (RegistryHandle, Arc<Publisher>) {
    let config = PublishConfig {
        tls: None,
        local: Default::default(),
        listen: "127.0.0.1:0".parse().unwrap(),
        epochs: EpochFile::new(directory.path().to_owned()),
        history: HistoryLimits::default(),
    };
    let publisher = Arc::new(Publisher::start(config).unwrap());
    let setup = RegistrySetup::new(1).unwrap();
    let store = Box::new(FileStore::new(directory.path().to_owned()));
    (setup.start(store, publisher.clone(), SaDumpFile::default()).unwrap(), publisher)
}

/// Waits as the service loop does.
fn await_published(handle: &RegistryHandle, epoch: u64) {
    handle.session_begun();
    let end = Instant::now() + Duration::from_secs(60);
    while handle.published_epoch() < epoch {
        let mut interests = [Interest::read(handle.as_fd())];
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the registry was not published");
        wait(&mut interests, Some(left)).unwrap();
        handle.changed_membership();
    }
    handle.acknowledge_until(Some(end + Duration::from_secs(3600)));
}

/// Waits until this is so.
fn await_that(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A master in this session, with its connection.
fn master(
    directory: &tempfile::TempDir,
) -> (RegistryHandle, Arc<Publisher>, Outbound, mpsc::Receiver<Outcomes>) {
    let (handle, publisher) = handle(directory);
    let session = publisher.begin_session(Guid(1)).unwrap();
    handle.fabric_changed(ports(), Vec::new(), Issuer::default());
    await_published(&handle, session.epoch);
    let (outbound, inbound) = mpsc::channel(1024);
    (handle, publisher, outbound, inbound)
}

type Outcomes = Result<proto::Outcomes, tonic::Status>;

/// An order to make a partition with one member.
fn order(pkey: u16, guid: u64) -> PartitionOrder {
    let guid = Guid(guid);
    let member = WantedMember { guid, full: true, limited: false, first: false, host: None };
    let attributes = Attributes::default();
    let action = PartitionAction::Add { members: vec![member], attributes };
    PartitionOrder { pkey: PKey(pkey), action }
}

fn give(desk: &PartitionDesk, order: PartitionOrder) -> Result<GrantedAt, OrderFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(desk.give(order))
}

#[test]
fn a_step_that_does_not_end_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, _publisher) = handle(&directory);
    await_that("it waits for work", || handle.busy_since().is_none());
    // The thread needs them at the end of each step.
    let held = handle.shared.decisions.lock().unwrap();
    let began = Instant::now();
    handle.session_begun();
    await_that("it is busy", || handle.busy_since().is_some_and(|since| since >= began));
    drop(held);
    await_that("it has ended", || handle.busy_since().is_none());
}

#[test]
fn an_order_of_a_program_is_published_when_it_is_answered_and_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, publisher, ..) = master(&directory);
    await_that("there are none", || {
        handle.api_partitions().is_some_and(|partitions| partitions.is_empty())
    });
    let desk = handle.desk();
    assert_eq!(give(&desk, order(5, 1)), Err(OrderFailure::NotMaster));
    handle.set_open(true);
    publisher.publish(FabricPlane::default()).unwrap();
    let granted = give(&desk, order(5, 1)).unwrap();
    assert_eq!(granted.epoch, publisher.session().unwrap().epoch);
    let published = handle.plane();
    assert!(published.sequence >= granted.sequence);
    assert_eq!(published.partition_members.len(), 1);
    let listed = crate::partitions::list::all(&desk.snapshot().unwrap(), &desk.site(), None, false);
    assert_eq!((listed[0].pkey, listed[0].members.len()), (5, 1));
    let none = OrderRefusal::BadPKey(PKey(0));
    assert_eq!(give(&desk, order(0, 1)), Err(OrderFailure::Refused(none)));
    await_that("the sweep gets it", || {
        handle.api_partitions().is_some_and(|partitions| !partitions.is_empty())
    });
    drop(handle);
    drop(publisher);
    let (handle, _publisher) = self::handle(&directory);
    let known = handle.api_partitions().unwrap();
    assert!(!known.is_empty(), "known before the first sweep");
}

/// Regression: after a restart or a takeover, lists were empty until the registry was published:
/// ib-kubernetes gave GUIDs of members to other pods.
#[test]
fn nothing_is_listed_before_the_fabric_and_the_registry_of_the_session_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, publisher, ..) = master(&directory);
    handle.set_open(true);
    give(&handle.desk(), order(5, 1)).unwrap();
    drop(handle);
    drop(publisher);

    let (handle, publisher) = self::handle(&directory);
    let desk = handle.desk();
    let listed = || desk.snapshot().map(|snapshot| snapshot.registry().partition_members.len());
    assert_eq!(listed(), Err(OrderFailure::NotMaster));
    publisher.begin_session(Guid(1)).unwrap();
    assert_eq!(listed(), Err(OrderFailure::NotKnown), "nothing is published");
    publisher.publish(FabricPlane::default()).unwrap();
    assert_eq!(listed(), Err(OrderFailure::NotKnown), "the registry is not");
    handle.fabric_changed(ports(), Vec::new(), Issuer::default());
    let known = || {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match listed() {
                Ok(count) => return count,
                Err(failure) => assert_eq!(failure, OrderFailure::NotKnown),
            }
            assert!(Instant::now() < end, "nothing is listed");
        }
    };
    assert_eq!(known(), 1);

    // In the next session the registry comes first.
    publisher.end_session();
    assert_eq!(listed(), Err(OrderFailure::NotMaster));
    let session = publisher.begin_session(Guid(1)).unwrap();
    assert_eq!(listed(), Err(OrderFailure::NotKnown), "what is published is of the last session");
    await_published(&handle, session.epoch);
    assert_eq!(listed(), Err(OrderFailure::NotKnown), "the fabric is not known");
    publisher.publish(FabricPlane::default()).unwrap();
    assert_eq!(known(), 1);
    // A session that is renewed has both at once.
    publisher.renew().unwrap();
    handle.session_begun();
    assert_eq!(known(), 1);
}

#[test]
fn an_order_waits_while_it_is_uncertain_that_this_manager_is_master() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, _publisher, ..) = master(&directory);
    handle.set_open(true);
    handle.acknowledge_until(None);
    await_that("sealed", || handle.is_sealed());
    let desk = handle.desk();
    let giving = std::thread::spawn(move || give(&desk, order(5, 1)));
    await_that("it waits", || !handle.shared.inbox().writes.is_empty());
    handle.set_open(false);
    assert_eq!(giving.join().unwrap(), Err(OrderFailure::Unknown));
    assert_eq!(handle.plane().partition_members.len(), 0);
}

/// Regression: writes were acknowledged until the moment of a handover, after the other manager had
/// received the registry.
#[test]
fn sealed_writes_wait_and_go_on_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, _publisher, outbound, mut inbound) = master(&directory);
    assert!(!handle.is_sealed());
    handle.acknowledge_until(None);
    await_that("sealed", || handle.is_sealed());
    handle.shared.submit(vec![job(1, &outbound)]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(inbound.try_recv().is_err(), "it waits");
    let later = Instant::now() + Duration::from_secs(3600);
    handle.acknowledge_until(Some(later));
    assert!(!handle.is_sealed());
    assert_eq!(inbound.blocking_recv().unwrap().unwrap().outcomes[0].id, 1);
}

/// Regression: a master whose service loop hung did not answer the manager that had replaced it,
/// which asked all clients to register again.
#[test]
fn a_new_master_is_answered_though_the_service_loop_hangs() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, publisher, outbound, mut inbound) = master(&directory);
    let progress = Arc::new(Progress::default());
    handle.keep_copy(&progress);
    let soon = Instant::now() + Duration::from_millis(300);
    handle.acknowledge_until(Some(soon));
    assert_eq!(progress.note_elected(Guid(2)), 1);
    await_that("sealed", || progress.sealed().is_some());
    assert!(Instant::now() >= soon, "not before");
    assert_eq!(progress.sealed(), Some((publisher.version(), 1)));
    // The loop goes on, and does not know of the election yet.
    let later = Some(Instant::now() + Duration::from_secs(3600));
    handle.acknowledge_until(later);
    handle.shared.submit(vec![job(1, &outbound)]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(inbound.try_recv().is_err(), "it waits");
    handle.acknowledge_until(None);
    handle.acknowledge_until(later);
    assert_eq!(inbound.blocking_recv().unwrap().unwrap().outcomes[0].id, 1);
    // It hangs again, and no other manager is elected.
    progress.set_sealed(None);
    handle.acknowledge_until(Some(Instant::now()));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(progress.sealed(), None);
}

/// Regression: a responder whose tables lacked the latest routes took answers to its barriers for
/// the proof that they were current, as these named the registry's state only.
#[test]
fn an_answer_names_the_generation_of_the_fabric_published_last_in_its_session() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, publisher, outbound, mut inbound) = master(&directory);
    let mut answered = |id| {
        handle.shared.submit(vec![job(id, &outbound)]);
        let outcome = inbound.blocking_recv().unwrap().unwrap().outcomes.remove(0);
        assert_eq!(outcome.id, id);
        (outcome.epoch, outcome.fabric_generation)
    };
    let epoch = publisher.session().unwrap().epoch;
    assert_eq!(answered(1), (epoch, 0), "no fabric is published yet");
    let published = |prefix| {
        let subnet = Subnet { prefix, ..Subnet::default() };
        let plane = FabricPlane { subnet, ..FabricPlane::default() };
        publisher.publish(plane).unwrap().fabric_generation
    };
    let first = published(1);
    assert_eq!((first, answered(2)), (1, (epoch, 1)));
    assert_eq!((published(2), answered(3)), (2, (epoch, 2)));
    let next = publisher.begin_session(Guid(1)).unwrap();
    await_published(&handle, next.epoch);
    assert_eq!(answered(4), (next.epoch, 0), "none in the next session yet");
}

/// A process that was stopped acknowledged writes as soon as it continued.
#[test]
fn nothing_is_acknowledged_once_the_time_that_was_vouched_for_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, _publisher, outbound, mut inbound) = master(&directory);
    handle.acknowledge_until(Some(Instant::now()));
    handle.shared.submit(vec![job(1, &outbound)]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(inbound.try_recv().is_err());
    handle.acknowledge_until(Some(Instant::now() + Duration::from_secs(3600)));
    assert_eq!(inbound.blocking_recv().unwrap().unwrap().outcomes[0].id, 1);
}

#[test]
fn an_answer_waits_for_a_follower_that_is_awaited() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, publisher, outbound, mut inbound) = master(&directory);
    let followers = publisher.sync_followers();
    followers.enable();
    let held = handle.held();
    followers.note_reply(Instant::now(), Guid(7), true, || held);
    let before = RegistryVersion::default();
    followers.note_stored(Guid(7), before);
    handle.shared.submit(vec![job(1, &outbound)]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(inbound.try_recv().is_err(), "it has not stored everything");
    followers.note_stored(Guid(7), held);
    assert_eq!(inbound.blocking_recv().unwrap().unwrap().outcomes[0].id, 1);
    // It falls silent, and the fabric is heard.
    let began = Instant::now();
    publisher.note_heard(began + Duration::from_secs(60));
    followers.note_stored(Guid(7), before);
    handle.shared.submit(vec![job(2, &outbound)]);
    assert_eq!(inbound.blocking_recv().unwrap().unwrap().outcomes[0].id, 2);
    assert!(began.elapsed() > Duration::from_secs(1), "not before its lease has ended");
    assert_eq!(followers.counts(), Some((0, 1)));
}

#[test]
fn queued_writes_are_answered_in_batches_and_a_full_connection_delays_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, publisher) = handle(&directory);
    let session = publisher.begin_session(Guid(1)).unwrap();
    handle.fabric_changed(ports(), Vec::new(), Issuer::default());
    await_published(&handle, session.epoch);
    let (slow, _slow_inbound) = mpsc::channel(1);
    let (quick, mut inbound) = mpsc::channel(1024);
    let slow = || Origin { epoch: 0, connection: 2, outbound: slow.clone() };
    let slow_job = |id| job_from(id, slow());
    handle.shared.submit((0..3_000).flat_map(|id| [job(id, &quick), slow_job(id)]).collect());
    let mut answered = 0;
    while answered < 3_000 {
        let message: proto::Outcomes = inbound.blocking_recv().unwrap().unwrap();
        assert!(message.outcomes.iter().all(|outcome| outcome.epoch == session.epoch));
        answered += message.outcomes.len();
    }
    let counters = &handle.shared.counters;
    assert!(counters.batch_max.get() > 1 && counters.batch_max.get() <= BATCH_MAX as u64);
    assert!(counters.batches.get() >= 6);
    drop(handle);
}

/// Writes that the other SM has accepted since would be missing here, and this write would be lost
/// there.
#[test]
fn writes_of_responders_that_follow_a_later_session_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, publisher) = handle(&directory);
    let session = publisher.begin_session(Guid(1)).unwrap();
    handle.fabric_changed(ports(), Vec::new(), Issuer::default());
    await_published(&handle, session.epoch);
    let (outbound, mut inbound) = mpsc::channel(16);
    // Unknown; of the session before, whose responders are about to follow ours; of ours; of a
    // later one.
    let epochs = [0, session.epoch - 1, session.epoch, session.epoch + 1];
    let origin = |epoch| Origin { epoch, connection: 1, outbound: outbound.clone() };
    let jobs = (0..).zip(epochs).map(|(id, epoch)| job_from(id, origin(epoch)));
    handle.shared.submit(jobs.collect());
    let mut dropped = [None; 4];
    while dropped.contains(&None) {
        for outcome in inbound.blocking_recv().unwrap().unwrap().outcomes {
            dropped[outcome.id as usize] = Some(outcome.dropped);
        }
    }
    assert_eq!(dropped, [false, false, false, true].map(Some));
    assert_eq!(handle.shared.counters.superseded_session.get(), 1);
}

#[test]
fn queued_events_are_bounded() {
    let setup = RegistrySetup::new(1).unwrap();
    let event = Issuer::default().port_in_service(Guid(1), &[]);
    // No thread empties the queue.
    let shared = setup.shared.clone();
    let directory = tempfile::tempdir().unwrap();
    let (mut handle, _publisher) = handle(&directory);
    let own_shared = std::mem::replace(&mut handle.shared, shared.clone());
    handle.notify(std::iter::repeat_n(event, NOTICES_MAX * 4 + 7));
    assert_eq!(shared.inbox().events.len(), NOTICES_MAX * 4);
    assert_eq!(shared.counters.notices_dropped.get(), 7);
    handle.shared = own_shared;
}

/// A master of its own part of the fabric, with a client that keeps writing.
struct Half {
    handle: RegistryHandle,
    publisher: Arc<Publisher>,
    outbound: Outbound,
    inbound: mpsc::Receiver<Outcomes>,
    _directory: tempfile::TempDir,
    base: u64,
    next: u64,
    /// Writes without an outcome, and when they were sent.
    open: BTreeMap<u64, Instant>,
    acknowledged: Vec<(Instant, u64)>,
}

impl Half {
    fn new(store: EtcdStore, guid: Guid) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = PublishConfig {
            tls: None,
            local: Default::default(),
            listen: "127.0.0.1:0".parse().unwrap(),
            epochs: EpochFile::new(directory.path().to_owned()),
            history: HistoryLimits::default(),
        };
        let publisher = Arc::new(Publisher::start(config).unwrap());
        publisher.begin_session(guid).unwrap();
        let setup = RegistrySetup::new(1).unwrap();
        let handle =
            setup.start(Box::new(store), publisher.clone(), SaDumpFile::default()).unwrap();
        handle.fabric_changed(ports(), Vec::new(), Issuer::default());
        handle.acknowledge_until(Some(Instant::now() + Duration::from_secs(3600)));
        let (outbound, inbound) = mpsc::channel(4096);
        Self {
            handle,
            publisher,
            outbound,
            inbound,
            _directory: directory,
            base: guid.0 << 32,
            next: 0,
            open: BTreeMap::new(),
            acknowledged: Vec::new(),
        }
    }

    /// What the node does if another session is above ours.
    fn renew(&self) {
        if self.publisher.challenge().is_some() {
            self.publisher.renew().unwrap();
            self.handle.session_begun();
        }
    }

    /// Takes outcomes, and keeps some writes open.
    fn step(&mut self) {
        self.handle.note_turn();
        self.renew();
        while let Ok(message) = self.inbound.try_recv() {
            for outcome in message.unwrap().outcomes {
                let is_open = self.open.remove(&outcome.id).is_some();
                if is_open && !outcome.dropped && outcome.status == 0 {
                    self.acknowledged.push((Instant::now(), outcome.id));
                }
            }
        }
        self.open.retain(|_, since| since.elapsed() < Duration::from_secs(1));
        let more = 64 - self.open.len() as u64;
        let jobs = (self.next..self.next + more).map(|n| {
            // A port may register 16,384 services.
            let id = self.base + n % 6_000;
            Job { write: Write::Request(service(id)), ..job(id, &self.outbound) }
        });
        let jobs: Vec<_> = jobs.collect();
        self.next += more;
        self.open.extend(jobs.iter().map(|job| (job.id, Instant::now())));
        self.handle.shared.submit(jobs);
    }
}

fn service(id: u64) -> Request {
    let mut record = [0; 176];
    ServiceRecord::new(&mut record[..])
        .unwrap()
        .set_service_id(id)
        .set_service_gid(gid(1))
        .set_service_pkey(PKey::DEFAULT_FULL)
        .set_service_lease(u32::MAX);
    let mask = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY | svc::SERVICE_LEASE;
    request(1, Method::SET, attribute::SERVICE_RECORD, mask, &record)
}

/// Both hold themselves for the master of a fabric that is split, and lose etcd in turn; members of
/// the cluster fail, too.
#[test]
fn of_two_registries_on_one_etcd_one_acknowledges_and_nothing_is_lost() {
    let Some(mut cluster) = Cluster::start() else { return };
    let links = [cluster.link(), cluster.link()];
    let [first, second] =
        [0, 1].map(|at: usize| cluster.prefix("/registries").store_by(&links[at]));
    let mut first = Half::new(first, Guid(1));
    let start = Instant::now();
    while first.acknowledged.len() < 500 {
        first.step();
        std::thread::sleep(Duration::from_millis(2));
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", first.acknowledged.len());
    }
    let mut halves = [first, Half::new(second, Guid(2))];
    let run_until = |halves: &mut [Half; 2], of: usize, what: &str| {
        let (start, count) = (Instant::now(), halves[of].acknowledged.len());
        while halves[of].acknowledged.len() < count + 500 {
            halves.iter_mut().for_each(Half::step);
            std::thread::sleep(Duration::from_millis(2));
            assert!(start.elapsed() < Duration::from_secs(40), "{what}");
        }
    };
    run_until(&mut halves, 0, "the holder goes on beside another master");
    assert!(halves[1].acknowledged.is_empty(), "the fence is never taken from a living holder");
    for (from, to) in [(0, 1), (1, 0)] {
        links[from].iter().for_each(|proxy| proxy.cut(true));
        run_until(&mut halves, to, "the other half takes over");
        links[from].iter().for_each(|proxy| proxy.cut(false));
        cluster.kill_member(from);
        run_until(&mut halves, to, "a member is dead");
        cluster.start_member(from);
        cluster.pause_member(2, true);
        run_until(&mut halves, to, "a member is stopped");
        cluster.pause_member(2, false);
    }
    let mut all: Vec<_> = halves
        .iter()
        .enumerate()
        .flat_map(|(half, of)| of.acknowledged.iter().map(move |(at, id)| (*at, half, *id)))
        .collect();
    all.sort_unstable();
    let changes = all.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    assert_eq!(changes, 2, "they acknowledged in turn");
    let dropped: u64 = halves.iter().map(|half| half.handle.shared.counters.store_late.get()).sum();
    assert!(dropped > 0, "writes that wait too long are dropped and counted");
    drop(halves);
    let last = Half::new(cluster.prefix("/registries").store_by(&links[0]), Guid(3));
    await_that("everything is read", || {
        last.renew();
        last.handle.published_epoch() > 0
    });
    let plane = last.publisher.reader().current().registry().clone();
    let there: BTreeSet<u64> = plane.services.iter().map(|row| row.rid.service_id).collect();
    let lost = all.iter().filter(|(_, _, id)| !there.contains(id)).count();
    assert_eq!(lost, 0, "of {}", all.len());
}

/// Regression: a process whose service loop hung kept the fence, so that the manager that had
/// replaced it in the fabric could store nothing.
#[test]
fn a_manager_whose_service_loop_hangs_gives_the_fence_back() {
    let model = EtcdModel::new(Arc::new(HostClock::open()));
    let [mut hanging, mut other] = [1, 2].map(|number| {
        let link = EtcdLink::new(&model, Duration::ZERO, number);
        Half::new(EtcdStore::at_link(link).unwrap(), Guid(number))
    });
    let acknowledge = |half: &mut Half, what: &str| {
        let end = Instant::now() + Duration::from_secs(30);
        while half.acknowledged.is_empty() {
            half.step();
            std::thread::sleep(Duration::from_millis(2));
            assert!(Instant::now() < end, "{what}");
        }
    };
    acknowledge(&mut hanging, "the first one takes the fence");
    acknowledge(&mut other, "the other one takes the fence of a hanging manager");
}

#[test]
fn one_look_silences_the_bell_however_often_it_rang() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, _publisher) = handle(&directory);
    let rings = || {
        let mut interests = [Interest::read(handle.as_fd())];
        wait(&mut interests, Some(Duration::ZERO)).unwrap();
        interests[0].is_readable()
    };
    handle.changed_membership();
    for count in [1, 64, 200] {
        (0..count).for_each(|_| handle.shared.ring());
        assert!(rings(), "{count}");
        handle.changed_membership();
        assert!(!rings(), "{count}");
    }
}
