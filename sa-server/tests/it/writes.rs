//! Writes: from a client's request through a responder to an SM that the test simulates, and back.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ib_mad::transport::{Interest, Packet, wait};
use ib_mad::types::{Gid, Guid, Lid, PKey};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::{PathRecord, ServiceRecord, path, service};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::proto::registry as proto;
use sa_proto::proto::registry::registry_server::{Registry, RegistryServer};
use sa_proto::snapshot::{RegistryPlane, Service, ServiceRid, Session, Version};
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::sm::forward::{Exchange, Forwarding};
use sa_server::sm::replica::Upstream;
use sa_server::stats::{DropReason, Stats};
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Streaming};

/// What the SM of a test does with a write.
type Decide = Box<dyn FnMut(&proto::Write) -> Option<proto::Outcome> + Send>;

struct Sm {
    decide: Arc<Mutex<Decide>>,
    seen: Arc<Mutex<Vec<proto::Write>>>,
}

#[tonic::async_trait]
impl Registry for Sm {
    type WriteStream = ReceiverStream<Result<proto::Outcomes, tonic::Status>>;

    async fn write(
        &self,
        request: Request<Streaming<proto::Writes>>,
    ) -> Result<Response<Self::WriteStream>, tonic::Status> {
        let mut writes = request.into_inner();
        let (sender, receiver) = mpsc::channel(64);
        let (decide, seen) = (Arc::clone(&self.decide), Arc::clone(&self.seen));
        tokio::spawn(async move {
            while let Some(Ok(message)) = writes.next().await {
                for write in message.writes {
                    seen.lock().unwrap().push(write.clone());
                    let outcome = decide.lock().unwrap()(&write);
                    match outcome {
                        Some(outcome) if outcome.id == u64::MAX => return,
                        Some(outcome) => {
                            let outcomes = proto::Outcomes { outcomes: vec![outcome] };
                            let _ = sender.send(Ok(outcomes)).await;
                        }
                        None => {}
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// A responder, its control plane and the SM that it follows.
struct Bed {
    responder: Responder,
    stats: Arc<Stats>,
    publisher: Publisher,
    versions: watch::Sender<Version>,
    upstream: watch::Sender<Option<Upstream>>,
    sm: Upstream,
    seen: Arc<Mutex<Vec<proto::Write>>>,
    runtime: tokio::runtime::Runtime,
}

fn version(epoch: u64, sequence: u64) -> Version {
    let session = Session { epoch, ..Session::default() };
    Version { session, fabric_generation: 1, registry_sequence: sequence }
}

impl Bed {
    fn new(
        patience: Duration,
        decide: impl FnMut(&proto::Write) -> Option<proto::Outcome> + Send + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sm = Sm { decide: Arc::new(Mutex::new(Box::new(decide))), seen: Arc::clone(&seen) };
        let address: SocketAddr = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let incoming = TcpListenerStream::new(listener);
            let server = Server::builder().add_service(RegistryServer::new(sm));
            tokio::spawn(server.serve_with_incoming(incoming));
            address
        });
        let url = format!("http://{address}");
        let channel =
            runtime.block_on(async { Channel::from_shared(url.clone()).unwrap().connect_lazy() });
        let sm = Upstream::new(url, channel);
        let stats = Arc::new(Stats::default());
        let publisher = Publisher::new();
        let exchange = Exchange::with_lanes(1, 2).unwrap();
        let responder =
            Responder::new(publisher.reader(), ResponderConfig::default(), Arc::clone(&stats))
                .with_exchange(exchange.worker(0));
        let upstream = watch::Sender::new(Some(sm.clone()));
        let versions = watch::Sender::new(Version::NONE);
        let forwarding = Forwarding { patience, ..Forwarding::new(5, exchange) };
        runtime.spawn(forwarding.run(upstream.subscribe(), versions.subscribe()));
        let mut bed = Self { responder, stats, publisher, versions, upstream, sm, seen, runtime };
        bed.serve(version(1, 10));
        bed
    }

    /// Makes queries be answered from this version.
    fn serve(&mut self, version: Version) {
        self.serve_registry(version, RegistryPlane::default());
    }

    /// The same, with these records.
    fn serve_registry(&mut self, version: Version, registry: RegistryPlane) {
        let fabric = crate::common::Chain { switches: 1, hosts_each: 8 }.plane(|_| {});
        let registry = Arc::new(RegistryPlane { sequence: version.registry_sequence, ..registry });
        let tables = Arc::new(Tables::build(&fabric, &registry));
        self.publisher.publish(Arc::new(Generation::new(version, tables, registry)));
        self.versions.send_replace(version);
    }

    fn hand_in(&mut self, packet: &Packet) -> Outcome {
        self.responder.handle(&mut packet.clone(), Instant::now())
    }

    /// The next answer; `None` if none comes within `patience`.
    fn answer(&mut self, patience: Duration) -> Option<Packet> {
        let until = Instant::now() + patience;
        let mut packet = Packet::default();
        loop {
            let now = Instant::now();
            if self.responder.poll_timeout().is_some_and(|due| due <= now) {
                self.responder.handle_timeout(now);
            }
            if self.responder.poll_transmit(now, &mut packet) {
                return Some(packet);
            }
            if now >= until {
                return None;
            }
            let descriptor = self.responder.descriptor().unwrap();
            wait(&mut [Interest::read(descriptor)], Some(Duration::from_millis(20))).unwrap();
            self.responder.clear_wakeup();
        }
    }

    /// Writes that the SM has received, without barriers.
    fn seen(&self) -> usize {
        self.seen.lock().unwrap().iter().filter(|write| !write.mad.is_empty()).count()
    }
}

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// Long enough for an unwanted message to arrive, unless the machine is busy.
const SHORT: Duration = Duration::from_millis(150);

fn request(method: Method, attribute: AttributeId, lid: u16, tid: u64) -> Packet {
    let mut packet = Packet::default();
    packet.address.lid = Lid(lid);
    SaMad::new(&mut packet.mad).write_request(method, attribute, tid, ComponentMask(3));
    packet
}

fn join(lid: u16, tid: u64) -> Packet {
    request(Method::SET, attribute::MC_MEMBER_RECORD, lid, tid)
}

fn done(write: &proto::Write, sequence: u64) -> Option<proto::Outcome> {
    Some(proto::Outcome {
        id: write.id,
        data: vec![0xAB; 52].into(),
        epoch: 1,
        sequence,
        ..proto::Outcome::default()
    })
}

#[test]
fn an_answer_waits_until_its_own_tables_hold_it() {
    let mut bed = Bed::new(LONG, |write| done(write, 11));
    assert_eq!(bed.hand_in(&join(3, 77)), Outcome::Nothing);
    assert!(bed.answer(SHORT).is_none());
    assert!(bed.stats.balances());
    assert_eq!(bed.stats.in_flight(), 1);
    bed.serve(version(1, 11));
    let answer = bed.answer(LONG).expect("the write was acknowledged");
    let mad = SaMad::new(&answer.mad);
    assert_eq!((mad.header().method(), mad.header().tid()), (Method::GET_RESP, 77));
    assert_eq!(
        (mad.header().status(), mad.data()[..53].to_vec()),
        (Status::OK, {
            let mut data = vec![0xAB; 52];
            data.push(0);
            data
        })
    );
    assert_eq!(answer.address.lid, Lid(3));
    let seen = bed.seen.lock().unwrap();
    let write = seen.iter().find(|write| !write.mad.is_empty()).unwrap();
    let requester = write.requester.as_ref().unwrap();
    assert_eq!((requester.lid, write.mad.len(), write.seen), (3, 256, 10));
    drop(seen);
    assert!(bed.stats.balances());
    assert_eq!((bed.stats.responses(), bed.stats.in_flight()), (1, 0));
}

/// The manager of its part of the fabric may have begun without the write.
#[test]
fn a_write_is_not_acknowledged_once_its_client_belongs_to_another_managers_session() {
    let mut bed = Bed::new(LONG, |write| done(write, 11));
    assert_eq!(bed.hand_in(&join(3, 77)), Outcome::Nothing);
    assert!(bed.answer(SHORT).is_none());
    let fabric = crate::common::Chain { switches: 1, hosts_each: 8 }.plane(|_| {});
    let tables = Arc::new(Tables::build(&fabric, &RegistryPlane::default()));
    let other = Arc::new(Generation::new(version(2, 5), tables, Arc::default()));
    bed.publisher.set(1, Some(other));
    bed.publisher.set_own(1);
    bed.serve(version(1, 11));
    let until = Instant::now() + LONG;
    while bed.stats.dropped(DropReason::WriteUnheard) == 0 {
        assert!(bed.answer(Duration::from_millis(20)).is_none());
        assert!(Instant::now() < until, "the outcome has not arrived");
    }
    assert!(bed.stats.balances());
}

#[test]
fn a_refusal_carries_the_request_back() {
    let mut bed = Bed::new(LONG, |write| {
        Some(proto::Outcome {
            id: write.id,
            status: Status::SA_REQ_INVALID.0.into(),
            epoch: 1,
            ..proto::Outcome::default()
        })
    });
    let mut packet = request(Method::DELETE, attribute::SERVICE_RECORD, 3, 5);
    SaMad::new(&mut packet.mad).data_mut()[7] = 9;
    bed.hand_in(&packet);
    let answer = bed.answer(LONG).expect("a refusal is an answer");
    let mad = SaMad::new(&answer.mad);
    assert_eq!(mad.header().method(), Method::DELETE_RESP);
    assert_eq!((mad.header().status(), mad.data()[7]), (Status::SA_REQ_INVALID, 9));
}

#[test]
fn a_repeat_of_an_open_write_is_dropped_and_one_of_an_answered_write_asked_again() {
    let mut bed = Bed::new(LONG, |write| done(write, 10));
    bed.hand_in(&join(3, 77));
    bed.hand_in(&join(3, 77));
    assert_eq!(bed.stats.dropped(DropReason::Duplicate), 1);
    assert!(bed.answer(LONG).is_some());
    assert!(bed.answer(SHORT).is_none());
    bed.hand_in(&join(3, 77));
    assert!(bed.answer(LONG).is_some());
    assert_eq!(bed.seen(), 2);
    assert!(bed.stats.balances());
}

#[test]
fn a_broken_stream_loses_nothing() {
    let mut breaks = 2;
    let mut bed = Bed::new(LONG, move |write| {
        if breaks > 0 {
            breaks -= 1;
            return Some(proto::Outcome { id: u64::MAX, ..proto::Outcome::default() });
        }
        done(write, 10)
    });
    for tid in 0..5 {
        bed.hand_in(&join(3 + tid as u16, tid));
    }
    let mut tids: Vec<u64> = (0..5)
        .map(|_| SaMad::new(&bed.answer(LONG).expect("sent again").mad).header().tid())
        .collect();
    tids.sort_unstable();
    assert_eq!(tids, [0, 1, 2, 3, 4]);
}

#[test]
fn without_an_sm_a_write_is_dropped_when_its_client_has_given_up() {
    let mut bed = Bed::new(LONG, |write| done(write, 10));
    bed.upstream.send_replace(None);
    // The control plane takes note by and by.
    while bed.responder.asks_sm_when_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    bed.hand_in(&join(3, 1));
    assert!(bed.answer(SHORT).is_none());
    let due = bed.responder.poll_timeout().expect("the write waits");
    bed.responder.handle_timeout(due);
    assert_eq!(bed.stats.dropped(DropReason::NoSm), 1);
    assert!(bed.stats.balances());
    // The next SM is asked what comes then.
    bed.upstream.send_replace(Some(bed.sm.clone()));
    bed.hand_in(&join(3, 2));
    let answer = bed.answer(LONG).expect("there is an SM again");
    let tid = SaMad::new(&answer.mad).header().tid();
    assert!(tid == 2, "the first was given up");
}

/// The SM cannot read its registry. That there is no record would be a guess.
#[test]
fn reads_of_an_unknown_registry_are_refused() {
    let mut bed = Bed::new(LONG, |write| done(write, 11));
    bed.serve(version(1, 0));
    for (method, attribute) in [
        (Method::GET, attribute::SERVICE_RECORD),
        (Method::GET_TABLE, attribute::MC_MEMBER_RECORD),
        (Method::GET_TABLE, attribute::INFORM_INFO_RECORD),
    ] {
        let mut read = request(method, attribute, 3, 9);
        assert_eq!(bed.responder.handle(&mut read, Instant::now()), Outcome::Send);
        assert_eq!(SaMad::new(&read.mad).header().status(), Status::SA_NO_RESOURCES);
    }
    let mut read = request(Method::GET_TABLE, attribute::NODE_RECORD, 3, 9);
    assert_eq!(bed.responder.handle(&mut read, Instant::now()), Outcome::Send);
    assert_eq!(SaMad::new(&read.mad).header().status(), Status::OK);
}

/// Regression: a repeat of a read that waited for the SM got "no records", and then the read was
/// answered.
#[test]
fn a_repeat_of_a_read_that_waits_is_dropped() {
    let mut bed = Bed::new(LONG, |write| done(write, 11));
    while !bed.responder.asks_sm_when_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let read = request(Method::GET, attribute::SERVICE_RECORD, 3, 9);
    assert_eq!(bed.hand_in(&read), Outcome::Nothing);
    assert_eq!(bed.hand_in(&read), Outcome::Nothing);
    assert_eq!(bed.stats.dropped(DropReason::Duplicate), 1);
    assert!(bed.answer(SHORT).is_none());
    bed.serve(version(1, 11));
    let answer = bed.answer(LONG).expect("the SM reported its progress");
    assert_eq!(SaMad::new(&answer.mad).header().status(), Status::SA_NO_RECORDS);
    assert!(bed.answer(SHORT).is_none());
    assert!(bed.stats.balances());
}

/// A registry with one service, at all GIDs.
fn with_service() -> RegistryPlane {
    let service_pkey = PKey::DEFAULT_FULL;
    let rid = ServiceRid { service_pkey, ..ServiceRid::default() };
    let mut record = [0; 176];
    ServiceRecord::new(&mut record[..]).unwrap().set_service_pkey(service_pkey);
    let mut registry = RegistryPlane::default();
    registry.services.insert(Arc::new(Service { rid, record, expires_s: None }));
    registry
}

fn read_service(tid: u64) -> Packet {
    let mut packet = request(Method::GET, attribute::SERVICE_RECORD, 3, tid);
    SaMad::new(&mut packet.mad).sa_mut().set_component_mask(service::component::SERVICE_ID);
    packet
}

fn path_to(dgid: Gid, tid: u64) -> Packet {
    let mut packet = request(Method::GET, attribute::PATH_RECORD, 3, tid);
    let mut mad = SaMad::new(&mut packet.mad);
    mad.sa_mut().set_component_mask(path::component::SLID | path::component::DGID);
    let mut record = PathRecord::new(mad.data_mut()).unwrap();
    record.set_slid(Lid(3)).set_dgid(dgid);
    packet
}

/// Regression: reads of records that had been changed or deleted through another responder returned
/// the old records while the feed was slow.
#[test]
fn a_read_of_what_is_registered_waits_until_the_tables_are_as_recent_as_the_sm() {
    // The SM is a change ahead of the tables: it has deleted the service.
    let mut bed = Bed::new(LONG, |write| done(write, 11));
    bed.serve_registry(version(1, 10), with_service());
    while !bed.responder.asks_sm_when_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bed.hand_in(&read_service(1)), Outcome::Nothing);
    let prefix = 0xFE80_0000_0000_0000;
    let host = crate::common::Chain::host_guid(4);
    assert_eq!(bed.hand_in(&path_to(Gid::new(prefix, host), 2)), Outcome::Send, "not registered");
    let mut group = [0; 16];
    group[..2].copy_from_slice(&[0xFF, 0x12]);
    assert_eq!(bed.hand_in(&path_to(Gid(group), 3)), Outcome::Nothing);
    let alias = Gid::new(prefix, Guid(0xA11A5));
    assert_eq!(bed.hand_in(&path_to(alias, 4)), Outcome::Nothing);
    assert!(bed.answer(SHORT).is_none());
    bed.serve(version(1, 11));
    for _ in 0..3 {
        let answer = bed.answer(LONG).expect("the tables are as recent as the SM");
        assert_eq!(SaMad::new(&answer.mad).header().status(), Status::SA_NO_RECORDS);
    }
    assert!(bed.stats.balances());
}

#[test]
fn a_read_of_what_is_registered_is_answered_at_once_if_proven_current_or_without_an_sm() {
    let mut bed = Bed::new(LONG, |write| done(write, 10));
    bed.serve_registry(version(1, 10), with_service());
    let until = Instant::now() + LONG;
    let mut tid = 1;
    // Until the first proof.
    while bed.hand_in(&read_service(tid)) != Outcome::Send {
        assert!(Instant::now() < until, "nothing was proven");
        bed.answer(SHORT);
        tid += 1;
    }
    bed.upstream.send_replace(None);
    while bed.responder.asks_sm_when_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bed.hand_in(&read_service(0)), Outcome::Send, "from what is held");
}

#[test]
fn what_the_sm_drops_is_not_answered() {
    let mut bed = Bed::new(LONG, |write| {
        Some(proto::Outcome { id: write.id, dropped: true, ..proto::Outcome::default() })
    });
    bed.hand_in(&join(3, 1));
    assert!(bed.answer(SHORT * 4).is_none());
    while bed.stats.dropped(DropReason::WriteUnheard) == 0 {
        assert!(bed.answer(SHORT).is_none());
    }
    assert!(bed.stats.balances());
}

#[test]
fn an_outcome_of_a_later_session_waits_for_it() {
    let mut outcomes: VecDeque<u64> = [2].into();
    let mut bed = Bed::new(LONG, move |write| {
        let is_barrier = write.mad.is_empty();
        let epoch = if is_barrier { None } else { outcomes.pop_front() }.unwrap_or(1);
        done(write, 10).map(|outcome| proto::Outcome { epoch, ..outcome })
    });
    bed.hand_in(&join(3, 1));
    assert!(bed.answer(SHORT).is_none());
    bed.serve(version(2, 10));
    assert!(bed.answer(LONG).is_some());
}

#[test]
fn one_source_cannot_have_all_the_room() {
    let mut bed = Bed::new(LONG, |_| None);
    for tid in 0..400 {
        bed.hand_in(&join(3, tid));
    }
    assert_eq!(bed.stats.dropped(DropReason::TooManyWrites), 400 - 256);
    assert_eq!(bed.hand_in(&join(4, 0)), Outcome::Nothing);
    assert_eq!(bed.stats.in_flight(), 257);
    assert!(bed.stats.balances());
    drop(bed.runtime);
}
