//! The snapshot feed from end to end: a real publisher and real replicas over gRPC on loopback,
//! some with a relay between them that counts, corrupts or drops what passes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use ib_mad::types::{Gid, Guid, PKey, PortNum};
use ibsm::publish::{Challenge, EpochFile, PublishConfig, PublishError, Publisher};
use sa_proto::prost::Message as _;
use sa_proto::proto::admin::StatusRequest;
use sa_proto::proto::admin::admin_client::AdminClient;
use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::proto::snapshot::snapshot_feed_client::SnapshotFeedClient;
use sa_proto::proto::snapshot::snapshot_feed_server::{SnapshotFeed, SnapshotFeedServer};
use sa_proto::snapshot::{
    FabricPlane, HistoryLimits, Lft, MulticastGroup, Node, Port, RegistryChanges, RegistryPlane,
    Service, ServiceRid, Snapshot, Subnet, Version,
};
use sa_server::sm::replica::{self, CacheDir, Identity, ReplicaConfig, ReplicaStatus, Source};
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

/// How long a step may take before a test fails; none needs more than a second.
const PATIENCE: Duration = Duration::from_secs(60);
const SM_GUID: Guid = Guid(0x5AFE);

/// A chain of 200 switches with tables of 4096 LIDs: 800 KB.
fn fabric() -> FabricPlane {
    const SWITCHES: u64 = 200;
    let guid = |index: u64| Guid(0x1000 + index);
    let port = |index: u64, num: u8, peer: Option<(Guid, PortNum)>| Port {
        num: PortNum(num),
        guid: guid(index),
        info: std::array::from_fn(|at| if Port::M_KEY.contains(&at) { 0 } else { num }),
        pkeys: Arc::from([PKey::DEFAULT_FULL]),
        peer,
    };
    let node = |index: u64| {
        let left = (index > 0).then(|| (guid(index - 1), PortNum(2)));
        let right = (index + 1 < SWITCHES).then(|| (guid(index + 1), PortNum(1)));
        Arc::new(Node {
            guid: guid(index),
            info: [index as u8; 40],
            description: [b's'; 64],
            switch_info: Some([1; 20]),
            ports: vec![port(index, 1, left), port(index, 2, right)],
        })
    };
    let lft = |index: u64| {
        let ports = (0..4096u64).map(|lid| (lid * (index + 1) / 7 % 36) as u8).collect();
        Arc::new(Lft { switch: guid(index), ports })
    };
    FabricPlane {
        subnet: Subnet { sa_key: 0xC0FFEE, ..Subnet::default() },
        nodes: (0..SWITCHES).map(node).collect(),
        lfts: (0..SWITCHES).map(lft).collect(),
        ..FabricPlane::default()
    }
}

/// The fabric with one entry of one forwarding table set to `port`.
fn rerouted(port: u8) -> FabricPlane {
    let mut fabric = fabric();
    Arc::make_mut(&mut fabric.lfts[70]).ports[1234] = port;
    fabric
}

struct Sm {
    publisher: Publisher,
    state_dir: tempfile::TempDir,
}

impl Sm {
    fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap())
    }

    fn start_in(state_dir: tempfile::TempDir) -> Self {
        let publisher = Publisher::start(PublishConfig {
            tls: None,
            local: Default::default(),
            listen: "127.0.0.1:0".parse().unwrap(),
            epochs: EpochFile::new(state_dir.path().into()),
            history: HistoryLimits::default(),
        });
        let publisher = publisher.unwrap();
        publisher.begin_session(SM_GUID).unwrap();
        Self { publisher, state_dir }
    }

    /// Kills it and starts another with the same state directory.
    fn restart(self) -> Self {
        drop(self.publisher);
        Self::start_in(self.state_dir)
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.publisher.counters();
        counters.into_iter().find(|&(counter, ..)| counter == name).expect("a known counter").2
    }
}

/// A replica on a thread and runtime of its own.
struct Responder {
    snapshots: mpsc::Receiver<Arc<Snapshot>>,
    status: Arc<ReplicaStatus>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Responder {
    fn start(sms: &[SocketAddr], cache_dir: Option<&Path>) -> Self {
        Self::start_with(sms, cache_dir, |_| {})
    }

    fn start_with(
        sms: &[SocketAddr],
        cache_dir: Option<&Path>,
        mut build_tables: impl FnMut(&Snapshot) + Send + 'static,
    ) -> Self {
        let config = ReplicaConfig {
            sms: sms.iter().map(|sm| format!("http://{sm}").parse().unwrap()).collect(),
            identity: Identity {
                id: 0x1D,
                name: "responder under test".into(),
                front_door: vec!["0.0.0.0:4791".parse().unwrap()],
                front_door_token: 0,
                spill_from: None,
                spill_token: 0,
                port: Some((Guid(0xF00), ib_mad::types::Qpn(1))),
                port_use: Default::default(),
            },
            cache_dir: cache_dir.map(|path| CacheDir::open(path).unwrap()),
            cache_interval: Duration::ZERO,
        };
        let (installed, snapshots) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let status = Arc::new(ReplicaStatus::default());
        let shared = status.clone();
        let thread = std::thread::spawn(move || {
            let on_snapshot = move |snapshot: &Arc<Snapshot>| {
                build_tables(snapshot);
                let _ = installed.send(snapshot.clone());
            };
            let stats = || proto::Stats {
                counters: vec![proto::Counter { name: "queries".into(), value: 42 }],
                figures: None,
            };
            let stopped = async move {
                let _ = stopped.await;
            };
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(replica::run(config, shared, on_snapshot, stats, stopped));
        });
        Self { snapshots, status, stop: Some(stop), thread: Some(thread) }
    }

    fn next(&self) -> Arc<Snapshot> {
        self.snapshots.recv_timeout(PATIENCE).expect("a snapshot in time")
    }

    /// Waits for the snapshot of this version, and skips earlier ones.
    fn until(&self, version: Version) -> Arc<Snapshot> {
        std::iter::repeat_with(|| self.next()).find(|s| s.version() >= version).unwrap()
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.status.counters();
        counters.into_iter().find(|&(counter, ..)| counter == name).expect("a known counter").2
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A relay between replicas and a publisher.
struct Relay {
    address: SocketAddr,
    shared: Arc<RelayState>,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct RelayState {
    upstream: Mutex<Option<SocketAddr>>,
    /// Bytes of messages from the SM.
    bytes: AtomicU64,
    /// Corrupts the checksum of the next update.
    damage: AtomicBool,
    /// Drops the next update.
    drop_update: AtomicBool,
}

impl Relay {
    fn start(upstream: SocketAddr) -> Self {
        let shared = Arc::new(RelayState::default());
        *shared.upstream.lock().unwrap() = Some(upstream);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let service = SnapshotFeedServer::new(RelayService(shared.clone()));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
        );
        Self { address, shared, _runtime: runtime }
    }

    fn redirect(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().unwrap() = Some(upstream);
    }

    fn take_bytes(&self) -> u64 {
        self.shared.bytes.swap(0, SeqCst)
    }
}

struct RelayService(Arc<RelayState>);

#[tonic::async_trait]
impl SnapshotFeed for RelayService {
    type SubscribeStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<proto::FromSm, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<proto::FromResponder>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let upstream = self.0.upstream.lock().unwrap().expect("set at the start");
        let client = SnapshotFeedClient::connect(format!("http://{upstream}")).await;
        let mut client = client.map_err(|error| Status::unavailable(error.to_string()))?;
        let to_sm = request.into_inner().map_while(Result::ok);
        let from_sm = client.subscribe(to_sm).await?.into_inner();
        let shared = self.0.clone();
        let mut dropping = false;
        let relayed = from_sm.filter_map(move |message| {
            let mut message = match message {
                Ok(message) => message,
                Err(status) => return Some(Err(status)),
            };
            shared.bytes.fetch_add(message.encoded_len() as u64, SeqCst);
            match &mut message.message {
                Some(Message::Begin(_)) => dropping = shared.drop_update.swap(false, SeqCst),
                Some(Message::End(end)) if shared.damage.swap(false, SeqCst) => {
                    let wrong = proto::Checksum {
                        fabric: vec![7; 16].into(),
                        registry: vec![7; 16].into(),
                    };
                    end.checksum = Some(wrong);
                }
                _ => {}
            }
            (!dropping).then_some(Ok(message))
        });
        Ok(Response::new(Box::pin(relayed)))
    }
}

#[test]
fn a_full_then_deltas_bring_a_responder_up_to_date() {
    let sm = Sm::start();
    let responder = Responder::start(&[sm.publisher.address()], None);
    let first = sm.publisher.publish(fabric()).unwrap();
    let full = responder.next();
    assert_eq!(full.version(), first);
    assert!(**full.fabric() == fabric());

    let second = sm.publisher.publish(rerouted(9)).unwrap();
    assert_eq!(second.fabric_generation, first.fabric_generation + 1);
    let next = responder.next();
    assert_eq!(next.version(), second);
    assert!(**next.fabric() == rerouted(9));
    let shared = full.fabric().lfts.iter().zip(&next.fabric().lfts);
    assert_eq!(shared.filter(|(a, b)| !Arc::ptr_eq(a, b)).count(), 1, "all other rows shared");

    assert_eq!(sm.publisher.publish(rerouted(9)).unwrap(), second, "nothing changed");
    let registry = RegistryPlane { sequence: 5, ..RegistryPlane::default() };
    let third = sm.publisher.publish_registry(registry.clone()).unwrap();
    assert_eq!(responder.next().version(), third);
    assert_eq!((sm.counter("feed_full_updates"), sm.counter("feed_delta_updates")), (1, 2));

    let mgid = Gid::new(0xFF12_401B_FFFF_0000, Guid(1));
    let group = MulticastGroup { mgid, record: [7; 52], predefined: false };
    let mut changes = RegistryChanges { sequence: 6, ..RegistryChanges::default() };
    changes.groups.insert(mgid, Some(Arc::new(group)));
    let joined = changes.applied_to(&registry);
    let fourth = sm.publisher.publish_changes(joined, &changes).unwrap();
    let held = responder.next();
    assert_eq!((held.version(), held.registry().groups.len()), (fourth, 1));
    changes.sequence = 5;
    let stale = sm.publisher.publish_changes(registry, &changes).unwrap_err();
    assert!(matches!(stale, PublishError::StaleRegistry { current: 6, offered: 5 }), "{stale}");
}

#[test]
fn the_front_door_and_the_operator_see_who_serves_what() {
    let sm = Sm::start();
    let responders = sm.publisher.responders();
    let responder = Responder::start(&[sm.publisher.address()], None);
    let version = sm.publisher.publish(fabric()).unwrap();
    wait_until("serving", || responders.load().first().is_some_and(|r| r.serving == Some(version)));
    wait_until("a report", || responders.load().first().is_some_and(|r| !r.stats.is_empty()));
    let list = responders.load();
    assert_eq!(list.len(), 1);
    assert_eq!((list[0].id, &*list[0].name), (0x1D, "responder under test"));
    assert_eq!(
        *list[0].front_door,
        ["127.0.0.1:4791".parse().unwrap()],
        "the address of the connection"
    );
    assert_eq!(list[0].port, Some((Guid(0xF00), ib_mad::types::Qpn(1))));
    assert_eq!(list[0].stats[0], ("queries".to_owned(), 42));
    assert_eq!(responder.status.source(), Source::Sm(format!("http://{}", sm.publisher.address())));

    let url = format!("http://{}", sm.publisher.address());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = runtime.block_on(async {
        let mut client = AdminClient::connect(url).await.unwrap();
        client.get_status(StatusRequest {}).await.unwrap().into_inner()
    });
    assert_eq!((status.nodes, status.switches, status.ports), (200, 200, 400));
    assert_eq!((status.epoch, status.fabric_generation), (version.session.epoch, 1));
    assert_eq!((status.responders.len(), status.responders[0].current), (1, true));

    drop(responder);
    wait_until("leaving", || responders.load().is_empty());
}

#[test]
fn a_change_of_one_block_takes_less_than_a_kilobyte() {
    let sm = Sm::start();
    let relay = Relay::start(sm.publisher.address());
    let responder = Responder::start(&[relay.address], None);
    sm.publisher.publish(fabric()).unwrap();
    responder.next();
    assert!(relay.take_bytes() > 400_000, "the fabric is not small");
    let version = sm.publisher.publish(rerouted(9)).unwrap();
    assert_eq!(responder.next().version(), version);
    let bytes = relay.take_bytes();
    assert!(bytes < 1024, "{bytes} bytes");
}

#[test]
fn a_slow_responder_gets_what_it_missed_at_once() {
    let sm = Sm::start();
    let (open, gate) = mpsc::channel::<()>();
    let (enter, entered) = mpsc::channel();
    let slow = Responder::start_with(&[sm.publisher.address()], None, move |_| {
        let _ = enter.send(());
        let _ = gate.recv();
    });
    let quick = Responder::start(&[sm.publisher.address()], None);
    let first = sm.publisher.publish(fabric()).unwrap();
    // The slow replica has the first snapshot and does not acknowledge it while others are
    // published.
    entered.recv_timeout(PATIENCE).expect("the slow one has the first");
    let mut last = first;
    for port in 100..150 {
        last = sm.publisher.publish(rerouted(port)).unwrap();
        quick.until(last);
    }
    drop(open);
    assert_eq!(slow.next().version(), first);
    assert_eq!(slow.next().version(), last, "one step for fifty generations");
    assert_eq!(slow.counter("replica_resyncs"), 0);
}

#[test]
fn after_a_restart_of_the_sm_only_what_differs_is_sent() {
    let sm = Sm::start();
    let relay = Relay::start(sm.publisher.address());
    let responder = Responder::start(&[relay.address], None);
    let before = sm.publisher.publish(fabric()).unwrap();
    let held = responder.until(before);
    relay.take_bytes();

    let sm = sm.restart();
    relay.redirect(sm.publisher.address());
    let after = sm.publisher.publish(rerouted(9)).unwrap();
    assert!(after.session > before.session && after.fabric_generation == 1);
    let next = responder.until(after);
    assert!(**next.fabric() == rerouted(9));
    // The bucket of the table that differs contains a few other nodes and tables as well.
    let bytes = relay.take_bytes();
    assert!(bytes < 50_000, "{bytes} bytes of some 800,000");
    assert_eq!((sm.counter("feed_full_updates"), sm.counter("feed_bucket_updates")), (0, 1));
    let shared = held.fabric().lfts.iter().zip(&next.fabric().lfts);
    assert_eq!(shared.filter(|(a, b)| !Arc::ptr_eq(a, b)).count(), 1, "all other rows shared");
}

#[test]
fn a_damaged_update_is_noticed_and_repaired() {
    let sm = Sm::start();
    let relay = Relay::start(sm.publisher.address());
    let responder = Responder::start(&[relay.address], None);
    responder.until(sm.publisher.publish(fabric()).unwrap());
    relay.shared.damage.store(true, SeqCst);
    let version = sm.publisher.publish(rerouted(9)).unwrap();
    let repaired = responder.next();
    assert_eq!(repaired.version(), version);
    assert!(**repaired.fabric() == rerouted(9));
    assert_eq!(responder.counter("replica_resyncs"), 1);
    assert_eq!(sm.counter("feed_resyncs"), 1);
}

#[test]
fn a_lower_session_is_refused() {
    let old = Sm::start();
    let new = Sm::start();
    // Both started within about a second; the epoch of the second is raised so that it is higher
    // for certain.
    let first = old.publisher.begin_session(SM_GUID).unwrap();
    while new.publisher.begin_session(SM_GUID).unwrap() <= first {}
    let sms = [old.publisher.address(), new.publisher.address()];
    let responder = Responder::start(&sms, None);
    let version = new.publisher.publish(rerouted(9)).unwrap();
    responder.until(version);
    old.publisher.publish(fabric()).unwrap();
    wait_until("the refusal", || old.publisher.challenge().is_some());
    assert_eq!(responder.status.version(), version);
    let next = new.publisher.publish(rerouted(8)).unwrap();
    assert_eq!(responder.next().version(), next, "no update of the old SM came in between");
}

#[test]
fn a_restarted_responder_serves_its_cache_without_an_sm_and_without_secrets() {
    let sm = Sm::start();
    let cache = tempfile::tempdir().unwrap();
    let responder = Responder::start(&[sm.publisher.address()], Some(cache.path()));
    let mut record = [1; 176];
    record[Service::KEY].fill(0xEE);
    let gid = Gid::new(0xFE80_0000_0000_0000, Guid(1));
    let rid = ServiceRid { service_id: 3, service_gid: gid, service_pkey: PKey(0xFFFF) };
    let registry = RegistryPlane {
        sequence: 1,
        services: vec![Arc::new(Service { rid, record, expires_s: None })].into(),
        ..RegistryPlane::default()
    };
    sm.publisher.publish_registry(registry.clone()).unwrap();
    let version = sm.publisher.publish(fabric()).unwrap();
    responder.until(version);
    drop(responder);
    let sm = sm.restart();

    let nowhere = "127.0.0.1:1".parse().unwrap();
    let responder = Responder::start(&[nowhere, sm.publisher.address()], Some(cache.path()));
    let cached = responder.next();
    assert_eq!(cached.version(), version);
    assert!(cached.fabric().lfts == fabric().lfts);
    assert_eq!(cached.fabric().subnet.sa_key, 0, "no requester is trusted meanwhile");
    assert_eq!(cached.registry().services.get(0).unwrap().record[Service::KEY], [0; 16]);

    sm.publisher.publish_registry(registry.clone()).unwrap();
    let fresh = responder.until(sm.publisher.publish(fabric()).unwrap());
    assert_eq!(fresh.fabric().subnet.sa_key, 0xC0FFEE);
    assert_eq!(**fresh.registry(), registry);
    assert_eq!(sm.counter("feed_full_updates"), 0, "buckets repaired it");
}

#[test]
fn an_update_that_never_arrived_is_made_up_for_once_the_link_is_made_again() {
    let sm = Sm::start();
    let relay = Relay::start(sm.publisher.address());
    let responder = Responder::start(&[relay.address], None);
    responder.until(sm.publisher.publish(fabric()).unwrap());
    // It is not acknowledged, so nothing follows until the link breaks.
    relay.shared.drop_update.store(true, SeqCst);
    sm.publisher.publish(rerouted(9)).unwrap();
    wait_until("the update to be lost", || !relay.shared.drop_update.load(SeqCst));
    let sm = sm.restart();
    relay.redirect(sm.publisher.address());
    let version = sm.publisher.publish(rerouted(8)).unwrap();
    let next = responder.until(version);
    assert!(**next.fabric() == rerouted(8));
}

/// Passes bytes between a replica and an SM until it is switched to drop them, like a machine that
/// lost power.
fn black_hole(upstream: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let dead = Arc::new(AtomicBool::new(false));
    let shared = dead.clone();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(upstream).unwrap();
            for (mut from, mut to) in
                [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)]
            {
                let dead = shared.clone();
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(len @ 1..) = from.read(&mut buffer) {
                        if !dead.load(SeqCst) && to.write_all(&buffer[..len]).is_err() {
                            break;
                        }
                    }
                    if !dead.load(SeqCst) {
                        let _ = to.shutdown(std::net::Shutdown::Write);
                    }
                });
            }
        }
    });
    (address, dead)
}

#[test]
fn both_ends_notice_within_seconds_that_the_other_is_dead() {
    let sm = Sm::start();
    let (address, dead) = black_hole(sm.publisher.address());
    let responder = Responder::start(&[address], None);
    let version = sm.publisher.publish(fabric()).unwrap();
    responder.until(version);
    let responders = sm.publisher.responders();
    wait_until("serving", || responders.load().first().is_some_and(|r| r.serving.is_some()));
    dead.store(true, SeqCst);
    wait_until("the SM to notice", || responders.load().is_empty());
    wait_until("the responder to notice", || responder.counter("replica_disconnects") > 0);
    assert_eq!(responder.status.version(), version, "it continues to answer");
}

#[test]
fn nothing_is_published_without_a_session_or_before_the_first_sweep() {
    let sm = Sm::start();
    let responder = Responder::start(&[sm.publisher.address()], None);
    sm.publisher.publish_registry(RegistryPlane { sequence: 3, ..Default::default() }).unwrap();
    let version = sm.publisher.publish(fabric()).unwrap();
    let first = responder.next();
    assert_eq!((first.version(), first.registry().sequence), (version, 3));
    sm.publisher.end_session();
    assert!(sm.publisher.publish(rerouted(9)).is_err());
    let registry = |sequence| RegistryPlane { sequence, ..Default::default() };
    sm.publisher.begin_session(SM_GUID).unwrap();
    let begun = sm.publisher.publish_registry(registry(2));
    assert!(begun.is_ok(), "a session may begin with another manager's registry");
    let stale = sm.publisher.publish_registry(registry(1));
    assert!(stale.is_err(), "the sequence number of a session does not decrease");
}

/// Makes an SM take epochs far above those of the clock.
fn clock_ahead(state_dir: &Path) {
    std::fs::write(state_dir.join("epoch"), (1u64 << 31).to_string()).unwrap();
}

#[test]
fn a_new_master_whose_clock_is_behind_is_followed_at_once() {
    let state_dir = tempfile::tempdir().unwrap();
    clock_ahead(state_dir.path());
    let old = Sm::start_in(state_dir);
    let new = Sm::start();
    // Started before any responder reported its epoch, so that the new epoch depends on the clock
    // only.
    let behind = new.publisher.session().unwrap();
    let responder = Responder::start(&[old.publisher.address(), new.publisher.address()], None);
    let before = old.publisher.publish(fabric()).unwrap();
    responder.until(before);
    assert!(behind < before.session);
    drop(old);

    new.publisher.publish(rerouted(9)).unwrap();
    wait_until("the challenge", || new.publisher.challenge() == Some(Challenge::Epoch));
    let responders = new.publisher.responders();
    let since = responders.load()[0].since;
    new.publisher.renew().unwrap();
    let next = responder.next();
    assert_eq!(next.version().session.epoch, before.session.epoch + 1);
    assert!(**next.fabric() == rerouted(9));
    assert_eq!(responders.load()[0].since, since, "the refused feed stayed up");
    wait_until("acceptance", || new.publisher.challenge().is_none());
    let last = new.publisher.publish(rerouted(8)).unwrap();
    assert_eq!(responder.until(last).version().session, next.version().session);
}

#[test]
fn a_standby_begins_its_session_above_what_its_responders_hold() {
    let state_dir = tempfile::tempdir().unwrap();
    clock_ahead(state_dir.path());
    let old = Sm::start_in(state_dir);
    let before = old.publisher.publish(fabric()).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let standby = Sm::start();
    standby.publisher.end_session();
    let responder = Responder::start(&[old.publisher.address()], Some(cache.path()));
    responder.until(before);
    drop((responder, old));
    let responder = Responder::start(&[standby.publisher.address()], Some(cache.path()));
    responder.until(before);
    let responders = standby.publisher.responders();
    wait_until("the greeting", || !responders.load().is_empty());
    let session = standby.publisher.begin_session(SM_GUID).unwrap();
    assert_eq!(session.epoch, before.session.epoch + 1);
    let version = standby.publisher.publish(rerouted(9)).unwrap();
    responder.until(version);
    assert_eq!(responder.counter("replica_updates_refused"), 0);
}

#[test]
fn a_master_is_notified_when_its_responders_leave() {
    let (first, second) = (Sm::start(), Sm::start());
    let sms = [first.publisher.address(), second.publisher.address()];
    let responder = Responder::start(&sms, None);
    let version = first.publisher.publish(fabric()).unwrap();
    responder.until(version);
    let responders = first.publisher.responders();
    wait_until("an ack", || responders.load().first().is_some_and(|r| r.serving == Some(version)));
    while second.publisher.begin_session(SM_GUID).unwrap() <= version.session {}
    let taken = second.publisher.publish(rerouted(9)).unwrap();
    responder.until(taken);
    first.publisher.publish(rerouted(8)).unwrap();
    wait_until("the challenge", || first.publisher.challenge() == Some(Challenge::Rival));
    assert_eq!(first.counter("feed_updates_refused"), 1);
    assert_eq!(responder.status.version(), taken);
    first.publisher.end_session();
    assert_eq!(first.publisher.challenge(), None, "it is no longer master");
}

#[test]
fn a_lost_epoch_file_and_a_clock_set_back_do_no_harm() {
    let state_dir = tempfile::tempdir().unwrap();
    clock_ahead(state_dir.path());
    let sm = Sm::start_in(state_dir);
    let before = sm.publisher.publish(fabric()).unwrap();
    sm.publisher.end_session();
    std::fs::remove_file(sm.state_dir.path().join("epoch")).unwrap();
    let session = sm.publisher.begin_session(SM_GUID).unwrap();
    assert_eq!(session.epoch, before.session.epoch + 1);
    sm.publisher.publish(fabric()).unwrap();
}

#[test]
fn an_sm_without_a_session_serves_no_responder() {
    let sm = Sm::start();
    let last = sm.publisher.publish(fabric()).unwrap();
    sm.publisher.end_session();
    let responder = Responder::start(&[sm.publisher.address()], None);
    let responders = sm.publisher.responders();
    wait_until("two reports", || responders.load().first().is_some_and(|r| !r.stats.is_empty()));
    assert_eq!(sm.counter("feed_full_updates"), 0);
    assert!(responder.snapshots.try_recv().is_err());
    sm.publisher.begin_session(SM_GUID).unwrap();
    let version = sm.publisher.publish(fabric()).unwrap();
    assert!(version.session > last.session);
    assert_eq!(responder.next().version(), version);
}

#[test]
fn a_shutdown_ends_feeds_in_order() {
    let sm = Sm::start();
    let url = format!("http://{}", sm.publisher.address());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ending = runtime.block_on(async {
        let (greeting, messages) = tokio::sync::mpsc::channel(1);
        let hello = proto::from_responder::Message::Hello(proto::Hello {
            schema: sa_proto::snapshot::SCHEMA,
            responder_id: 1,
            ..Default::default()
        });
        greeting.send(proto::FromResponder { message: Some(hello) }).await.unwrap();
        let mut client = SnapshotFeedClient::connect(url).await.unwrap();
        let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
        let mut inbound = client.subscribe(messages).await.unwrap().into_inner();
        let shutdown = std::thread::spawn(move || {
            drop(sm.publisher);
        });
        let ending = inbound.message().await.unwrap_err();
        drop((greeting, inbound, client));
        tokio::task::spawn_blocking(|| shutdown.join().unwrap()).await.unwrap();
        ending
    });
    assert_eq!(ending.code(), tonic::Code::Unavailable);
    assert_eq!(ending.message(), "the SM is shutting down");
}
