use ib_mad::types::{Gid, Guid, Lid, PKey};
use ib_mad::wire::attribute::{InformInfo, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::mc_member::component as mc;
use ib_mad::wire::record::service::component as svc;
use ib_mad::wire::record::{JoinState, McMemberRecord, ServiceRecord};
use ib_mad::wire::sa::{ComponentMask, attribute};
use sa_proto::snapshot::HistoryLimits;
use std::time::Instant;

use super::*;
use crate::publish::{EpochFile, PublishConfig};
use crate::runtime::store::faulty::{Fault, Faults, FaultyStore};
use crate::runtime::store::file::FileStore;
use sm_core::registry::testing::{NOW_S, gid, port, ports, request};
use sm_core::registry::{
    Attributes, OrderRefusal, PartitionAction, PartitionOrder, Presence, Request,
};

mod failing;
mod shared;

/// Clocks of a host that has run since 1970, on its first boot.
fn host(now_s: u64) -> HostTime {
    let now = Duration::from_secs(now_s);
    HostTime { boot: 1, since_boot: now, wall: now }
}

/// A host's clocks when a registry is opened.
struct At(HostTime);

impl Clock for At {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn host(&self) -> HostTime {
        self.0
    }
}

struct Bed {
    directory: tempfile::TempDir,
    publisher: Arc<Publisher>,
    counters: Arc<Counters>,
    faults: Faults,
}

impl DurableRegistry {
    /// A batch from its beginning to its end, with a store that is not slow.
    fn turn(&mut self, now_s: u64, work: Work) -> Vec<Verdict> {
        self.begin(now_s, work).expect("the store takes no time")
    }
}

impl Bed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = PublishConfig {
            tls: None,
            local: Default::default(),
            listen: "127.0.0.1:0".parse().unwrap(),
            epochs: EpochFile::new(directory.path().to_owned()),
            history: HistoryLimits::default(),
        };
        let publisher = Arc::new(Publisher::start(config).unwrap());
        Self { directory, publisher, counters: Arc::default(), faults: Faults::default() }
    }

    fn open(&self) -> DurableRegistry {
        self.open_at(host(NOW_S))
    }

    fn open_at(&self, now: HostTime) -> DurableRegistry {
        let file = Box::new(FileStore::new(self.directory.path().to_owned()));
        let store = Box::new(FaultyStore::new(file, &self.faults));
        let (publisher, counters) = (self.publisher.clone(), self.counters.clone());
        DurableRegistry::open(store, publisher, counters, Arc::new(At(now))).unwrap()
    }

    /// A durable of a master that has swept.
    fn master(&self) -> DurableRegistry {
        self.publisher.begin_session(Guid(1)).unwrap();
        let mut durable = self.open();
        durable.turn(NOW_S, Work { ports: Some(Arc::new(ports())), ..Work::default() });
        durable
    }

    fn published(&self) -> Arc<RegistryPlane> {
        self.publisher.reader().current().registry().clone()
    }
}

fn plane(durable: &DurableRegistry) -> RegistryPlane {
    durable.plane().expect("the file can be used")
}

fn service(id: u64, lease_s: u32) -> Request {
    let mut record = [0; 176];
    ServiceRecord::new(&mut record[..])
        .unwrap()
        .set_service_id(id)
        .set_service_gid(gid(1))
        .set_service_pkey(PKey::DEFAULT_FULL)
        .set_service_lease(lease_s);
    let mask = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY | svc::SERVICE_LEASE;
    request(1, Method::SET, attribute::SERVICE_RECORD, mask, &record)
}

fn forever(id: u64) -> Request {
    service(id, u32::MAX)
}

/// A request for a group whose MGID the SA chooses.
fn group() -> Request {
    let mut record = [0; 52];
    McMemberRecord::new(&mut record[..])
        .unwrap()
        .set_port_gid(gid(1))
        .set_pkey(PKey::DEFAULT_FULL)
        .set_scope(2)
        .set_join_state(JoinState::FULL_MEMBER);
    let mask = mc::MGID | mc::PORT_GID | mc::QKEY | mc::TCLASS | mc::PKEY | mc::FLOW_LABEL;
    let mask = mask | mc::SL | mc::SCOPE | mc::JOIN_STATE;
    request(1, Method::SET, attribute::MC_MEMBER_RECORD, mask, &record)
}

fn subscribe() -> Request {
    let mut info = [0; 36];
    InformInfo::new(&mut info[..])
        .unwrap()
        .set_lid_range_begin(Lid::PERMISSIVE)
        .set_is_generic(1)
        .set_subscribe(1)
        .set_trap_number(TrapNumber(64));
    request(1, Method::SET, AttributeId::INFORM_INFO, ComponentMask::NONE, &info)
}

fn work(writes: impl IntoIterator<Item = Request>) -> Work {
    Work { writes: writes.into_iter().map(Write::Request).collect(), ..Work::default() }
}

fn statuses(verdicts: &[Verdict]) -> Vec<Option<Status>> {
    let status = |verdict: &Verdict| match verdict {
        Verdict::Answer { status, .. } => Some(*status),
        _ => None,
    };
    verdicts.iter().map(status).collect()
}

/// Regression: an empty registry was published like one that its manager does not know, and a
/// standby of such a manager was never in step.
#[test]
fn an_empty_registry_is_published_as_known() {
    let bed = Bed::new();
    let durable = bed.master();
    assert!(plane(&durable).counts().all(|(.., count)| count == 0));
    let version = bed.publisher.reader().current().version();
    assert!(version.has_registry(), "{version}");
    assert_eq!(durable.held(), version.registry(), "it is stored, too");
    drop(durable);
    assert_eq!(bed.open().held(), version.registry());
}

#[test]
fn a_batch_is_one_transaction_and_published_when_it_is_answered() {
    let bed = Bed::new();
    let mut durable = bed.master();
    let before = bed.counters.commits.get();
    let verdicts = durable.turn(NOW_S, work((1..=500).map(forever)));
    assert_eq!(bed.counters.commits.get() - before, 1);
    assert!(statuses(&verdicts).iter().all(|status| *status == Some(Status::OK)));
    let published = bed.published();
    assert_eq!(published.services.len(), 500);
    let Some(Verdict::Answer { epoch, sequence, .. }) = verdicts.last() else { panic!() };
    assert_eq!((*sequence, *epoch), (published.sequence, bed.publisher.session().unwrap().epoch));
    // Nothing to be stored: a repeat, a refusal, a look at the sequence number.
    let verdicts = durable.turn(NOW_S, Work { writes: vec![Write::Nothing], ..Work::default() });
    assert!(matches!(verdicts[..], [Verdict::Answer { sequence: 500.., .. }]), "{verdicts:?}");
    assert_eq!(bed.counters.commits.get() - before, 1);
}

#[test]
fn what_was_answered_is_there_after_a_restart_and_repeats_are_known() {
    let bed = Bed::new();
    let mut durable = bed.master();
    let create = group();
    let first = durable.turn(NOW_S, work([create.clone(), forever(1)]));
    let before = plane(&durable);
    drop(durable);
    let mut durable = bed.master();
    assert_eq!(plane(&durable), before);
    let again = durable.turn(NOW_S + 1, work([create]));
    let data = |verdicts: &[Verdict]| match &verdicts[0] {
        Verdict::Answer { data, .. } => data.clone(),
        _ => None,
    };
    assert_eq!(data(&again), data(&first));
    assert_eq!(plane(&durable).groups.len(), before.groups.len());
    let third = durable.turn(NOW_S + 1, work([forever(2)]));
    let Verdict::Answer { sequence, .. } = third[0] else { panic!() };
    assert!(sequence > before.sequence, "sequence numbers go on");
}

/// It is unknown whether a commit that failed is on disk: its outcome on disk shows it.
#[test]
fn a_commit_that_fails_is_tried_once_more_and_nothing_is_made_twice() {
    for fault in [Fault::Before, Fault::After] {
        let bed = Bed::new();
        let mut durable = bed.master();
        bed.faults.fail_next(fault);
        let verdicts = durable.turn(NOW_S, work([group(), forever(1)]));
        assert_eq!(statuses(&verdicts), [Some(Status::OK); 2]);
        assert_eq!(bed.counters.failures.get(), 1);
        let made: Vec<Gid> = plane(&durable).groups.iter().map(|group| group.mgid).collect();
        let Verdict::Answer { data: Some(data), .. } = &verdicts[0] else { panic!() };
        assert_eq!(made, [Gid(data.data()[..16].try_into().unwrap())], "{fault:?}");
        assert_eq!(*bed.published(), plane(&durable));
        drop(durable);
        assert_eq!(plane(&bed.open()), *bed.published(), "disk and memory are one");
    }
}

#[test]
fn orders_of_programs_are_decided_with_the_writes_of_clients_and_stored_with_them() {
    for fault in [None, Some(Fault::Before), Some(Fault::After)] {
        let bed = Bed::new();
        let mut durable = bed.master();
        fault.into_iter().for_each(|fault| bed.faults.fail_next(fault));
        let set = PartitionAction::Set {
            presence: Presence::Absent,
            attributes: Attributes { ipoib: Some(true), ..Attributes::default() },
        };
        let epoch = bed.publisher.session().unwrap().epoch;
        let order = |pkey| {
            let order = PartitionOrder { pkey: PKey(pkey), action: set.clone() };
            Write::Order { order, epoch }
        };
        let writes = vec![Write::Request(forever(1)), order(5), order(0)];
        let verdicts = durable.turn(NOW_S, Work { writes, ..Work::default() });
        let results: Vec<_> = verdicts
            .iter()
            .map(|verdict| match verdict {
                Verdict::Ordered { result, .. } => Some(*result),
                _ => None,
            })
            .collect();
        // One that was stored, although the commit seemed to fail, finds its effect.
        let made =
            if fault == Some(Fault::After) { Err(OrderRefusal::Exists(PKey(5))) } else { Ok(()) };
        assert_eq!(results, [None, Some(made), Some(Err(OrderRefusal::BadPKey(PKey(0))))]);
        drop(durable);
        assert_eq!(plane(&bed.open()), *bed.published());
        assert_eq!(bed.published().api_partitions.len(), 1);
    }
}

/// Regression: an order that was given before another manager took over was carried out when this
/// one was master again, in place of later orders to the other manager.
#[test]
fn an_order_of_an_earlier_session_changes_nothing() {
    let bed = Bed::new();
    let mut durable = bed.master();
    let epoch = bed.publisher.session().unwrap().epoch;
    let order = PartitionOrder { pkey: PKey(5), action: PartitionAction::Delete };
    let attributes = Attributes::default();
    let set = PartitionAction::Set { presence: Presence::Either, attributes };
    let make = PartitionOrder { action: set, ..order };
    let write = |order: &PartitionOrder, epoch| Work {
        writes: vec![Write::Order { order: order.clone(), epoch }],
        ..Work::default()
    };
    assert!(matches!(durable.turn(NOW_S, write(&make, epoch))[..], [Verdict::Ordered { .. }]));
    bed.publisher.end_session();
    bed.publisher.begin_session(Guid(1)).unwrap();
    assert_eq!(durable.turn(NOW_S, write(&order, epoch)), [Verdict::Superseded]);
    assert_eq!(bed.published().api_partitions.len(), 1);
    let epoch = bed.publisher.session().unwrap().epoch;
    assert!(matches!(durable.turn(NOW_S, write(&order, epoch))[..], [Verdict::Ordered { .. }]));
    assert_eq!(
        (bed.published().api_partitions.len(), bed.counters.superseded_orders.get()),
        (0, 1)
    );
}

#[test]
fn groups_of_a_commit_that_succeeded_are_reported_once_that_is_known() {
    for (fault, readable) in
        [(Fault::Before, true), (Fault::After, true), (Fault::Before, false), (Fault::After, false)]
    {
        let bed = Bed::new();
        let mut durable = bed.master();
        bed.faults.fail_next(fault);
        bed.faults.set_unreadable(!readable);
        let create = group();
        durable.turn(NOW_S, work([create.clone()]));
        bed.faults.set_unreadable(false);
        assert_eq!(durable.events.is_empty(), !readable);
        durable.turn(NOW_S + 5, work([create]));
        let mgid = plane(&durable).groups.get(0).unwrap().mgid;
        let created = (RegistryEvent::GroupCreated(mgid), Some(PKey::DEFAULT_FULL));
        assert_eq!(durable.events(), [created], "{fault:?}");
    }
}

#[test]
fn totals_go_on_when_the_registry_is_read_back() {
    let bed = Bed::new();
    let mut durable = bed.master();
    let create = group();
    for repeats in 0..3 {
        durable.turn(NOW_S, work([create.clone()]));
        let counters = durable.registry_counters();
        assert_eq!((counters.granted, counters.repeated), (1, repeats));
        durable.recover(NOW_S);
        assert_eq!(durable.registry_counters(), counters);
    }
}

/// Subscriptions are spread over the connected responders, whenever those were reported.
#[test]
fn a_registry_that_is_read_back_knows_ports_groups_and_responders() {
    let responders = || Work { responders: Some(vec![7]), ..Work::default() };
    let bed = Bed::new();
    let mut early = bed.open();
    early.turn(NOW_S, responders());
    bed.publisher.begin_session(Guid(1)).unwrap();
    early.turn(NOW_S, Work { ports: Some(Arc::new(ports())), ..Work::default() });
    early.turn(NOW_S, work([subscribe()]));
    assert_eq!(plane(&early).subscriptions.get(0).unwrap().responder, 7);

    let bed = Bed::new();
    let mut durable = bed.master();
    durable.turn(NOW_S, responders());
    durable.recover(NOW_S);
    durable.turn(NOW_S, work([subscribe()]));
    assert_eq!(plane(&durable).subscriptions.get(0).unwrap().responder, 7);

    // The file comes back in a turn, and only that turn after the one in which it went.
    let bed = Bed::new();
    let mut durable = bed.master();
    durable.turn(NOW_S, responders());
    bed.faults.set_unreadable(true);
    durable.recover(NOW_S);
    bed.faults.set_unreadable(false);
    durable.turn(durable.due_s().unwrap(), work([subscribe()]));
    assert_eq!(plane(&durable).subscriptions.get(0).unwrap().responder, 7);
}

/// A port that left is remembered until it was asked to register again. If it was asked before it
/// left, in the same batch or in an earlier session, it is remembered all the same.
#[test]
fn ports_that_were_asked_are_no_longer_remembered() {
    let bed = Bed::new();
    let mut durable = bed.master();
    let lapsed = |durable: &DurableRegistry| {
        let plane = plane(durable);
        plane.lapsed_ports.iter().map(|row| row.port_guid).collect::<Vec<_>>()
    };
    let guid = port(1, &[]).guid;
    let without = || Ports::new(0, Guid(9), vec![port(2, &[0xFFFF])]);
    let asked = || Work { asked: vec![guid], ..Work::default() };
    durable.turn(NOW_S, work([group()]));
    durable.turn(NOW_S, Work { ports: Some(Arc::new(without())), ..asked() });
    assert_eq!(lapsed(&durable), [guid]);
    durable.turn(NOW_S, asked());
    assert_eq!(lapsed(&durable), []);
    durable.turn(NOW_S, Work { ports: Some(Arc::new(ports())), ..work([group()]) });
    bed.publisher.end_session();
    durable.turn(NOW_S, asked());
    bed.publisher.begin_session(Guid(1)).unwrap();
    durable.turn(NOW_S, Work { ports: Some(Arc::new(without())), ..Work::default() });
    durable.turn(NOW_S, Work::default());
    assert_eq!(lapsed(&durable), [guid]);
    durable.recover(NOW_S);
    durable.turn(NOW_S, Work::default());
    assert_eq!(lapsed(&durable), [guid]);
}

#[test]
fn what_another_left_is_begun_with_until_something_is_stored() {
    let bed = Bed::new();
    drop(bed.open());
    let mut durable = bed.open();
    assert!(durable.is_fresh(), "the process before ended too early");
    bed.publisher.begin_session(Guid(1)).unwrap();
    durable.turn(NOW_S, Work { responders: Some(vec![7]), ..Work::default() });
    let left = {
        let other = Bed::new();
        let mut durable = other.master();
        durable.turn(NOW_S, Work { responders: Some(vec![9]), ..Work::default() });
        durable.turn(NOW_S, work([subscribe(), forever(1)]));
        plane(&durable)
    };
    bed.faults.fail_next(Fault::Before);
    durable.begin_with(NOW_S, left);
    assert!(!durable.is_fresh());
    assert_eq!(plane(&durable).services.len(), 1, "tried once more");
    durable.turn(NOW_S, Work { ports: Some(Arc::new(ports())), ..Work::default() });
    assert_eq!(plane(&durable).subscriptions.get(0).unwrap().responder, 7);
    drop(durable);
    assert!(!bed.open().is_fresh());
}

#[test]
fn without_a_session_nothing_is_decided_and_nothing_said() {
    let bed = Bed::new();
    let mut durable = bed.master();
    bed.publisher.end_session();
    assert_eq!(durable.turn(NOW_S, work([forever(1)])), [Verdict::Silence]);
    assert_eq!(bed.counters.not_master.get(), 1);
    assert!(plane(&durable).services.is_empty());
    assert_eq!(durable.due_s(), None);
    bed.publisher.begin_session(Guid(1)).unwrap();
    assert_eq!(statuses(&durable.turn(NOW_S, work([forever(1)]))), [Some(Status::OK)]);
    assert_eq!(bed.published().services.len(), 1, "the new session has all of it");
}

#[test]
fn a_lease_is_over_when_its_time_is() {
    let bed = Bed::new();
    let mut durable = bed.master();
    durable.turn(NOW_S, work([service(1, 5)]));
    assert!(durable.due_s().unwrap() <= NOW_S + 6);
    // It may have begun late in its second, and lasts at least five.
    durable.turn(NOW_S + 5, Work::default());
    assert_eq!(bed.published().services.len(), 1);
    durable.turn(NOW_S + 6, Work::default());
    assert_eq!(bed.published().services.len(), 0);
    // Nothing is left that would wake the thread again and again.
    let due_s = durable.due_s();
    assert!(due_s.is_none_or(|due_s| due_s > NOW_S + 6), "{due_s:?}");
    durable.turn(NOW_S + 60, Work::default());
    assert_eq!(durable.due_s(), None);
}

/// The published services after a turn at this time of the host.
fn services_at(bed: &Bed, durable: &mut DurableRegistry, now: HostTime) -> usize {
    let now_s = durable.advance(now);
    durable.turn(now_s, Work { ports: Some(Arc::new(ports())), ..Work::default() });
    bed.published().services.len()
}

/// Regression: a step of the wall clock ended leases at a restart, or extended them, and kept
/// outcomes for as long as the step.
#[test]
fn registry_time_continues_over_a_restart_when_the_clock_was_set() {
    for wall_s in [NOW_S - 900, NOW_S + 3_600] {
        let bed = Bed::new();
        let mut durable = bed.master();
        let create = group();
        durable.turn(NOW_S, work([service(1, 60), create.clone()]));
        drop(durable);
        bed.publisher.end_session();
        bed.publisher.begin_session(Guid(1)).unwrap();
        let at = |passed| HostTime { wall: Duration::from_secs(wall_s), ..host(NOW_S + passed) };
        let mut durable = bed.open_at(at(20));
        assert_eq!(services_at(&bed, &mut durable, at(59)), 1);
        let now_s = durable.advance(at(59));
        durable.turn(now_s, work([create]));
        assert_eq!(durable.registry_counters().repeated, 0, "that is too long for a repeat");
        assert_eq!(services_at(&bed, &mut durable, at(60)), 1);
        assert_eq!(services_at(&bed, &mut durable, at(61)), 0);
    }
}

/// Regression: registry time began at the last stamp, up to a second before the last writes: their
/// repeats were decided again for that time.
#[test]
fn registry_time_does_not_begin_before_what_was_decided_last() {
    let bed = Bed::new();
    let mut durable = bed.master();
    let after = |ms| {
        let now = Duration::from_secs(NOW_S) + Duration::from_millis(ms);
        HostTime { boot: 1, since_boot: now, wall: now }
    };
    let mut write = |ms, request: Request| {
        let now_s = durable.advance(after(ms));
        statuses(&durable.turn(now_s, work([request])))
    };
    assert_eq!(write(1_500, forever(1)), [Some(Status::OK)]);
    let last = forever(2);
    assert_eq!(write(2_200, last.clone()), [Some(Status::OK)], "without a stamp");
    drop(durable);
    let booted = HostTime { boot: 2, since_boot: Duration::ZERO, wall: Duration::ZERO };
    bed.publisher.end_session();
    bed.publisher.begin_session(Guid(1)).unwrap();
    let mut durable = bed.open_at(booted);
    let now_s = durable.advance(booted);
    assert_eq!(now_s, NOW_S + 2);
    durable.turn(now_s, Work { ports: Some(Arc::new(ports())), ..Work::default() });
    durable.turn(now_s, work([last]));
    assert_eq!(durable.registry_counters().repeated, 1);
}

/// Regression: the clocks of two managers differed by an hour: a takeover ended leases, or extended
/// them.
#[test]
fn leases_of_a_master_that_was_followed_last_as_long_as_there() {
    let (time, plane) = {
        let bed = Bed::new();
        let mut durable = bed.master();
        durable.turn(NOW_S, work([service(1, 60)]));
        (durable.now().time, plane(&durable))
    };
    for wall_s in [NOW_S - 900, NOW_S + 3_600] {
        let bed = Bed::new();
        let at = |passed| HostTime {
            boot: 2,
            since_boot: Duration::from_secs(7 + passed),
            wall: Duration::from_secs(wall_s + passed),
        };
        let mut durable = bed.open_at(at(0));
        durable.follow_time(OTHERS, time);
        // This one was sent before, and received after the standby was stopped for a while.
        durable.follow_time(OTHERS, time - Duration::from_secs(50));
        assert!(durable.follow(durable.now().time.as_secs(), OTHERS, &plane, &[]));
        drop(durable);
        // It is continued after a restart of the standby, too.
        let mut durable = bed.open_at(at(30));
        bed.publisher.begin_session(Guid(1)).unwrap();
        assert_eq!(services_at(&bed, &mut durable, at(60)), 1);
        durable.follow_time(OTHERS, Duration::ZERO);
        assert_eq!(services_at(&bed, &mut durable, at(61)), 0, "a master follows no other");
    }
}

#[test]
fn groups_that_come_and_go_are_reported_with_their_partition() {
    let bed = Bed::new();
    let mut durable = bed.master();
    let verdicts = durable.turn(NOW_S, work([group()]));
    let Verdict::Answer { data: Some(data), .. } = &verdicts[0] else { panic!() };
    let mgid = Gid(data.data()[..16].try_into().unwrap());
    let pkey = Some(PKey::DEFAULT_FULL);
    assert_eq!(durable.events(), [(RegistryEvent::GroupCreated(mgid), pkey)]);
    assert!(durable.changed_members().values().all(|heard| heard.ports.len() == 1));
    let mask = mc::MGID | mc::PORT_GID | mc::JOIN_STATE;
    let leave = request(1, Method::DELETE, attribute::MC_MEMBER_RECORD, mask, &data.data()[..52]);
    assert_eq!(statuses(&durable.turn(NOW_S, work([leave]))), [Some(Status::OK)]);
    assert_eq!(durable.events(), [(RegistryEvent::GroupDeleted(mgid), pkey)]);
    let changed = durable.changed_members();
    assert!(changed.len() == 1 && changed.values().all(|ports| ports.is_empty()));
    assert!(durable.changed_members().is_empty());
}

/// The registry of a master after each of some writes.
fn planes_of_a_master(writes: u64) -> Vec<RegistryPlane> {
    let bed = Bed::new();
    let mut durable = bed.master();
    durable.turn(NOW_S, work([group()]));
    let planes = (0..writes).map(|id| {
        durable.turn(NOW_S, work([forever(id)]));
        plane(&durable)
    });
    planes.collect()
}

/// Regression: with each batch of changes of the master, all indices of the registry were rebuilt.
#[test]
fn what_another_master_has_is_kept_row_by_row_until_it_is_our_turn() {
    let planes = planes_of_a_master(40);
    let last = planes.last().unwrap().clone();
    assert_eq!((last.services.len(), last.members.len()), (40, 1));
    let bed = Bed::new();
    let mut durable = bed.open();
    for plane in &planes {
        assert!(durable.follow(NOW_S, OTHERS, plane, &[]));
        assert!(durable.registry.plane().services.is_empty(), "nothing is made of it yet");
    }
    // Rows are the master's own, so that what stays is found to be the same at a glance.
    assert!(plane(&durable).services.is_same(&last.services));
    assert_eq!(durable.changed_members().len(), 1, "trees are computed from it");
    drop(durable);

    // It is on disk, and it is what the registry begins with.
    let mut durable = bed.open();
    assert_eq!(plane(&durable).services, last.services);
    let mut fewer = last.clone();
    let gone = fewer.services.iter().next().unwrap().rid;
    fewer.services.remove(gone);
    fewer.sequence += 1;
    assert!(durable.follow(NOW_S, OTHERS, &fewer, &[]));
    bed.publisher.begin_session(Guid(1)).unwrap();
    durable.turn(NOW_S, Work { ports: Some(Arc::new(ports())), ..Work::default() });
    assert!(durable.registry.plane().services.find(gone).is_none());
    assert_eq!(bed.published().services, fewer.services);
    assert_eq!(bed.published().members, last.members);
    assert!(!durable.follow(NOW_S, OTHERS, &last, &[]), "we are the master");
    // Regression: what had been received meanwhile replaced the newer registry afterwards.
    let own = bed.publisher.session().unwrap();
    bed.publisher.end_session();
    assert!(!durable.follow(NOW_S, OTHERS, &last, &[]), "we were, in a later session");
    let next = Session { epoch: own.epoch + 1, ..OTHERS };
    assert!(durable.follow(NOW_S, next, &last, &[]));
}

/// The session of another master.
const OTHERS: Session = Session { epoch: 5, sm_guid: Guid(9) };

/// Regression: a former master's registry counted as newer than its successor's, because its
/// sequence number in the old session was higher.
#[test]
fn the_age_of_a_registry_is_stored_with_it() {
    let planes = planes_of_a_master(3);
    let bed = Bed::new();
    let mut durable = bed.open();
    assert_eq!(durable.held(), RegistryVersion::default());
    assert!(durable.follow(NOW_S, OTHERS, &planes[2], &[]));
    let followed = RegistryVersion { session: OTHERS, sequence: planes[2].sequence };
    assert_eq!(durable.held(), followed);
    // The same rows, of the next master: that alone is news.
    let next = Session { epoch: 6, ..OTHERS };
    assert!(durable.follow(NOW_S, next, &planes[2], &[]));
    // Its numbers may be lower.
    assert!(durable.follow(NOW_S, next, &planes[1], &[]));
    let followed = RegistryVersion { session: next, sequence: planes[1].sequence };
    assert_eq!(durable.held(), followed);
    drop(durable);
    let mut durable = bed.open();
    assert_eq!(durable.held(), followed);

    // A session that begins is newer at once, and its numbers are far above the earlier ones.
    assert!(durable.follow(NOW_S, next, &planes[2], &[]));
    let session = bed.publisher.begin_session(Guid(1)).unwrap();
    durable.turn(NOW_S, Work { ports: Some(Arc::new(ports())), ..Work::default() });
    let begun = durable.held();
    assert_eq!(begun.session, session);
    assert!(begun.sequence > planes[2].sequence + 1_000_000);
    assert_eq!(bed.published().sequence, begun.sequence);
    drop(durable);
    assert_eq!(bed.open().held(), begun);
}

/// Regression: a client whose answer was lost with the master repeated its deletion, and the next
/// master answered ERR_NO_RECORDS; a repeated join created a second group.
#[test]
fn a_repeat_after_a_takeover_gets_the_answer_that_the_previous_master_gave() {
    let (first, second) = (Bed::new(), Bed::new());
    let mut master = first.master();
    let set = forever(1);
    let delete = Request { method: Method::DELETE, ..forever(1) };
    let join = group();
    let requests = [set, delete.clone(), join.clone()];
    let answers: Vec<_> =
        requests.iter().flat_map(|one| master.turn(NOW_S, work([one.clone()]))).collect();
    assert_eq!(statuses(&answers), [Some(Status::OK); 3]);

    let mut standby = second.open();
    let outcomes = master.registry.granted_outcomes();
    let rows = plane(&master);
    assert!(standby.follow(NOW_S, OTHERS, &rows, &outcomes[..2]));
    // Restarted meanwhile, it continues from what it had stored.
    drop(standby);
    let mut standby = second.open();
    assert!(standby.follow(NOW_S, OTHERS, &rows, &outcomes[2..]), "outcomes alone are news");
    for is_restarted in [false, true] {
        if is_restarted {
            drop(standby);
            standby = second.open();
        }
        second.publisher.begin_session(Guid(2)).unwrap();
        let ports = Work { ports: Some(Arc::new(ports())), ..Work::default() };
        standby.turn(NOW_S, ports);
        let repeats = standby.turn(NOW_S, work([delete.clone(), join.clone()]));
        assert_eq!(statuses(&repeats), [Some(Status::OK); 2], "restarted: {is_restarted}");
        assert_eq!(plane(&standby).groups, rows.groups, "restarted: {is_restarted}");
    }
    // Clients do not repeat a request for longer.
    let later = NOW_S + standby.registry.retry_window_s() + 1;
    assert_eq!(statuses(&standby.turn(later, work([delete]))), [Some(Status::SA_NO_RECORDS)]);
}

/// What a store that takes its time has not stored is seen by no one, and not answered.
#[test]
fn while_a_commit_is_under_way_the_state_before_it_is_what_others_see() {
    let bed = Bed::new();
    let mut durable = bed.master();
    durable.turn(NOW_S, work([forever(1)]));
    let before = (plane(&durable), durable.held());
    bed.faults.set_slow(true);
    assert_eq!(durable.begin(NOW_S, work([forever(2), group()])), None);
    assert!(durable.is_busy());
    assert_eq!(durable.due_s(), None, "the store wakes the thread");
    // What arrives meanwhile is not lost.
    let news = Work { responders: Some(vec![7]), ..Work::default() };
    assert_eq!(durable.begin(NOW_S, news), None);
    assert_eq!((plane(&durable), durable.held()), before);
    assert_eq!((bed.published().services.len(), durable.events()), (1, vec![]));
    assert!(durable.changed_members().is_empty());
    bed.faults.set_slow(false);
    let verdicts = durable.begin(NOW_S, Work::default()).unwrap();
    assert_eq!(statuses(&verdicts), [Some(Status::OK); 2]);
    assert_eq!((bed.published().services.len(), durable.events().len()), (2, 1));
    assert_eq!(durable.due_s(), Some(0), "the responders are still to be applied");
    durable.turn(NOW_S, Work::default());
    assert_ne!(durable.due_s(), Some(0));
    durable.turn(NOW_S, work([subscribe()]));
    assert_eq!(plane(&durable).subscriptions.get(0).unwrap().responder, 7);
}
