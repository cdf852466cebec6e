//! With a store that several managers share.

use super::*;
use crate::clock::HostClock;
use crate::runtime::store::etcd::EtcdStore;
use crate::runtime::store::etcd::model::{EtcdLink, EtcdModel};
use ib_mad::wire::record::GuidInfoRecord;
use ib_mad::wire::record::guid_info::component as guid_info;

const PATIENCE: Duration = Duration::from_secs(20);

/// A master that shares an etcd cluster, and its link to it.
fn sharing(bed: &Bed) -> (DurableRegistry, EtcdLink) {
    let link = EtcdLink::new(&EtcdModel::new(Arc::new(HostClock::open())), Duration::ZERO, 1);
    let store = Box::new(EtcdStore::at_link(link.clone()).unwrap());
    bed.publisher.begin_session(Guid(1)).unwrap();
    let (publisher, counters) = (bed.publisher.clone(), bed.counters.clone());
    let clock = Arc::new(At(host(NOW_S)));
    let mut durable = DurableRegistry::open(store, publisher, counters, clock).unwrap();
    let ports = Some(Arc::new(ports()));
    durable.begin(NOW_S, Work { ports, ..Work::default() });
    await_open(&mut durable);
    (durable, link)
}

/// Takes news of the store until writes are taken and there is no batch.
fn await_open(durable: &mut DurableRegistry) {
    let end = Instant::now() + PATIENCE;
    while !durable.is_open() || durable.is_busy() {
        assert!(Instant::now() < end, "writes wait for the store");
        durable.begin(NOW_S, Work::default());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The verdicts on writes, when they are known.
fn verdicts(durable: &mut DurableRegistry, writes: Work) -> Vec<Verdict> {
    let end = Instant::now() + PATIENCE;
    let mut found = durable.begin(NOW_S, writes);
    while found.is_none() {
        assert!(Instant::now() < end, "the store does not answer");
        std::thread::sleep(Duration::from_millis(1));
        found = durable.begin(NOW_S, Work::default());
    }
    found.unwrap_or_default()
}

/// A request for an alias GUID.
fn alias(guid: u64) -> Request {
    let mut record = [0; GuidInfoRecord::LEN];
    GuidInfoRecord::new(&mut record[..]).unwrap().set_lid(Lid(1)).set_block_num(0);
    record[16..24].copy_from_slice(&guid.to_be_bytes());
    let mask = guid_info::LID | guid_info::BLOCK_NUM | guid_info::GUID_1;
    request(1, Method::SET, attribute::GUID_INFO_RECORD, mask, &record)
}

/// Regression: a manager that did not hear the fabric while etcd was slow gave back the fence, and
/// waited for the result of its commit, which never came: it took no writes until its mastership
/// ended. Alias GUIDs of such a commit, which nothing stored, do not reach ports.
#[test]
fn a_commit_that_is_under_way_as_the_fence_is_given_back_is_not_waited_for() {
    let bed = Bed::new();
    let (mut durable, link) = sharing(&bed);
    assert_eq!(statuses(&verdicts(&mut durable, work([forever(1)]))), [Some(Status::OK)]);

    link.set_cut(true);
    let writes = work([forever(2), alias(0x77)]);
    assert_eq!(durable.begin(NOW_S, writes), None, "the commit is under way");
    durable.set_yields(true);
    assert_eq!(durable.begin(NOW_S, Work::default()), Some(vec![Verdict::Dropped; 2]));
    assert_eq!(durable.changed_guid_blocks(), []);
    assert_eq!(plane(&durable).services.len(), 1, "as it was stored");

    link.set_cut(false);
    durable.set_yields(false);
    await_open(&mut durable);
    assert_eq!(statuses(&verdicts(&mut durable, work([forever(2)]))), [Some(Status::OK)]);
    assert_eq!(plane(&durable).services.len(), 2);
    assert_eq!(statuses(&verdicts(&mut durable, work([alias(0x77)]))), [Some(Status::OK)]);
    assert_eq!(durable.changed_guid_blocks()[0].guids[1], Guid(0x77));
}

/// A copy of the store, or a registry to which another manager may add, is not listed: a list that
/// lacks a member gives its GUID to another pod.
#[test]
fn what_is_published_is_certain_only_while_this_manager_alone_may_commit() {
    let bed = Bed::new();
    let (mut durable, link) = sharing(&bed);
    let session = bed.publisher.session();
    assert!(session.is_some() && durable.certain() == session);
    durable.set_yields(true);
    durable.begin(NOW_S, Work::default());
    let end = Instant::now() + PATIENCE;
    while durable.published() != session {
        assert!(Instant::now() < end, "the copy is not published");
        durable.begin(NOW_S, Work::default());
        durable.refresh(NOW_S);
        assert_eq!(durable.certain(), None);
    }
    durable.set_yields(false);
    await_open(&mut durable);
    assert_eq!(durable.certain(), session);
    drop(link);
}

/// Regression: the news that the fence was taken could arrive after it had been given back: the
/// next batch began, and its commit was ignored.
#[test]
fn a_fence_that_was_given_back_is_not_used_however_late_its_news_is_read() {
    let bed = Bed::new();
    let (mut durable, _link) = sharing(&bed);
    for n in 1..50 {
        // The task takes the fence in the time between these.
        durable.set_yields(true);
        durable.begin(NOW_S, Work::default());
        durable.set_yields(false);
        durable.begin(NOW_S, Work::default());
        std::thread::sleep(Duration::from_micros(100 * (n % 10)));
        durable.set_yields(true);
        durable.begin(NOW_S, Work::default());
        assert!(!durable.is_open());
        durable.set_yields(false);
    }
    await_open(&mut durable);
    assert_eq!(statuses(&verdicts(&mut durable, work([forever(1)]))), [Some(Status::OK)]);
}

/// Regression: a manager that stood by kept its time if it was ahead of that of the master, which
/// had been down for some seconds: leases ended early by that time after the next takeover.
#[test]
fn a_standby_takes_over_the_time_of_the_manager_that_commits() {
    let bed = Bed::new();
    let link = EtcdLink::new(&EtcdModel::new(Arc::new(HostClock::open())), Duration::ZERO, 1);
    let store = Box::new(EtcdStore::at_link(link).unwrap());
    let (publisher, counters) = (bed.publisher.clone(), bed.counters.clone());
    let clock = Arc::new(At(host(NOW_S)));
    let mut standby = DurableRegistry::open(store, publisher, counters, clock).unwrap();
    for time_s in [9_000, 9_100, 9_050] {
        let of_another = HostTime { boot: 2, ..host(time_s) };
        let stamp = Some(Stamp { time: Duration::from_secs(time_s), host: of_another });
        standby.adopt_copy(Stored { stamp, ..Stored::default() });
        assert_eq!(standby.now().time.as_secs(), time_s);
    }
}
