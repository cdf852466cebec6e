//! Registrations outlive the subnet manager: `kill -9` at any moment loses nothing that was
//! acknowledged, and duplicates nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::support::scrape::Scrape;
use crate::support::{Host, Subnet, hosts, next_packet};
use benches::sandbox::{PATIENCE, all_responders_are_current, await_status, free_address};
use ib_mad::transport::ibsim::{Ibsim, IbsimOptions, Role};
use ib_mad::transport::{Address, Packet, Transport};
use ib_mad::types::{Gid, Lid, PKey};
use ib_mad::wire::attribute::{InformInfo, Notice, ProducerType, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::mc_member::component as mc;
use ib_mad::wire::record::service::component as svc;
use ib_mad::wire::record::{JoinState, McMemberRecord, ServiceRecord};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::proto::event;
use sa_proto::proto::event::events_client::EventsClient;
use sa_proto::proto::registry as proto;
use sa_proto::proto::registry::registry_client::RegistryClient;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// Repeats get the answer of the first for this long, with a margin for clocks of one-second
/// resolution.
const RETRY_WINDOW: Duration = Duration::from_secs(8);

/// A group created by `host`, whose MGID the SA chooses.
fn create(host: Host, tid: u64) -> proto::Write {
    let mut bytes = [0; 256];
    let mut mad = SaMad::new(&mut bytes);
    let mask = mc::MGID | mc::PORT_GID | mc::QKEY | mc::TCLASS | mc::PKEY | mc::FLOW_LABEL;
    let mask = mask | mc::SL | mc::SCOPE | mc::JOIN_STATE;
    mad.write_request(Method::SET, attribute::MC_MEMBER_RECORD, tid, mask);
    McMemberRecord::new(&mut mad.data_mut()[..52])
        .unwrap()
        .set_port_gid(host.gid)
        .set_qkey(0xB1B)
        .set_pkey(PKey::DEFAULT_FULL)
        .set_scope(2)
        .set_join_state(JoinState::FULL_MEMBER);
    write(host, tid, &bytes)
}

/// A service of `host`.
fn register(host: Host, tid: u64) -> proto::Write {
    let mut bytes = [0; 256];
    let mut mad = SaMad::new(&mut bytes);
    let mask = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY;
    mad.write_request(Method::SET, attribute::SERVICE_RECORD, tid, mask);
    ServiceRecord::new(&mut mad.data_mut()[..176])
        .unwrap()
        .set_service_id(tid)
        .set_service_gid(host.gid)
        .set_service_pkey(PKey::DEFAULT_FULL);
    write(host, tid, &bytes)
}

fn write(host: Host, id: u64, mad: &[u8; 256]) -> proto::Write {
    let requester = proto::Requester {
        lid: host.lid.0.into(),
        qpn: 1,
        pkey: PKey::DEFAULT_FULL.0.into(),
        ..Default::default()
    };
    proto::Write { id, mad: mad.to_vec().into(), requester: Some(requester), seen: u64::MAX }
}

/// A client that repeats requests until they are answered.
struct Client {
    open: BTreeMap<u64, (proto::Write, Instant)>,
    /// The answers.
    answered: BTreeMap<u64, proto::Outcome>,
    /// Requests whose repeats may have arrived too late to be recognised.
    late: usize,
}

impl Client {
    fn new() -> Self {
        Self { open: BTreeMap::new(), answered: BTreeMap::new(), late: 0 }
    }

    /// Sends and receives until no request is open, or the SM is gone.
    async fn talk(&mut self, subnet: &Subnet) -> Result<(), tonic::Status> {
        let (say, said) = mpsc::channel(64);
        let writes = self.open.values().map(|(write, _)| write.clone()).collect();
        let _ = say.send(proto::Writes { responder_id: 0x51, writes, epoch: 0 }).await;
        let mut client = RegistryClient::new(subnet.channel().await);
        let mut outcomes = client.write(ReceiverStream::new(said)).await?.into_inner();
        while !self.open.is_empty() {
            let next = tokio::time::timeout(Duration::from_secs(1), outcomes.message()).await;
            let Ok(next) = next else { return Err(tonic::Status::aborted("no answer")) };
            let Some(message) = next? else { return Err(tonic::Status::aborted("end")) };
            for outcome in message.outcomes {
                assert!(!outcome.dropped, "{outcome:?}");
                let Some((_, since)) = self.open.remove(&outcome.id) else { continue };
                self.late += usize::from(since.elapsed() > RETRY_WINDOW);
                self.answered.insert(outcome.id, outcome);
            }
        }
        Ok(())
    }

    async fn ask(&mut self, subnet: &Subnet, writes: impl IntoIterator<Item = proto::Write>) {
        let now = Instant::now();
        self.open.extend(writes.into_iter().map(|write| (write.id, (write, now))));
        let deadline = Instant::now() + PATIENCE;
        while let Err(status) = self.talk(subnet).await {
            assert!(Instant::now() < deadline, "{status}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A client on the fabric that subscribes and acknowledges reports.
struct Subscriber {
    transport: Ibsim,
    sa: Address,
}

impl Subscriber {
    fn new(subnet: &Subnet, node: &str) -> Self {
        let options = IbsimOptions {
            socket: subnet.sandbox.socket().to_owned(),
            node: Some(node.to_owned()),
            role: Role::Responder,
            ..IbsimOptions::default()
        };
        let mut transport = Ibsim::connect(&options).expect("the simulator is there");
        let lid = transport.local_port().expect("a port").sm_lid;
        Self { transport, sa: Address::gsi(lid) }
    }

    /// Subscribes to everything, and repeats the request until it is answered.
    fn subscribe(&mut self) {
        let mut request = Packet::to(self.sa);
        let mut mad = SaMad::new(&mut request.mad);
        mad.write_request(Method::SET, AttributeId::INFORM_INFO, 0x51, ComponentMask(0));
        InformInfo::new(&mut mad.data_mut()[..36])
            .unwrap()
            .set_lid_range_begin(Lid(0xFFFF))
            .set_is_generic(1)
            .set_subscribe(1)
            .set_inform_type(0xFFFF)
            .set_trap_number(TrapNumber::ALL)
            .set_producer_type(ProducerType::ALL);
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.transport.send(&[request.clone()]).expect("the simulator is there");
            let until = Instant::now() + Duration::from_secs(1);
            while let Some(packet) = self.next(until) {
                let answer = SaMad::new(&packet.mad);
                if answer.header().method() == Method::GET_RESP {
                    assert_eq!(answer.header().status(), Status::OK);
                    return;
                }
            }
            assert!(Instant::now() < deadline, "no answer");
        }
    }

    /// The next packet that arrives until then.
    fn next(&mut self, until: Instant) -> Option<Packet> {
        next_packet(&mut self.transport, until)
    }

    /// Waits for a report of this trap about this GID, acknowledging all others.
    fn expect(&mut self, trap: TrapNumber, gid: Gid) {
        let deadline = Instant::now() + PATIENCE;
        let mut heard = Vec::new();
        while let Some(mut packet) = self.next(deadline) {
            let report = SaMad::new(&packet.mad);
            if report.header().method() != Method::REPORT {
                continue;
            }
            let notice = Notice::new(&report.data()[..80]).unwrap();
            let about = Gid(report.data()[16..32].try_into().unwrap());
            let is_it = notice.trap_number() == trap && about == gid;
            heard.push((notice.trap_number(), about));
            SaMad::new(&mut packet.mad).header_mut().set_method(Method::REPORT_RESP);
            self.transport.send(&[packet]).expect("the simulator is there");
            if is_it {
                return;
            }
        }
        panic!("no report of {trap} about {gid}, but {heard:?}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_made_twice_when_the_sm_is_killed() {
    const BATCHES: u64 = 30;
    let subnet = Subnet::new("registry-kill");
    let runtime = runtime();
    let ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    let before = runtime.block_on(subnet.snapshot());
    let hosts = hosts(&before);
    let groups_before = before.registry().groups.len();

    let (client, subnet) = std::thread::scope(|scope| {
        let killer_subnet = &subnet;
        let hosts = &hosts;
        let runtime = &runtime;
        let writer = scope.spawn(move || {
            let mut client = Client::new();
            for batch in 0..BATCHES {
                let writes = (1..=16).map(|n| {
                    let tid = batch * 16 + n;
                    let host = hosts[tid as usize % hosts.len()];
                    if n % 2 == 0 { create(host, tid) } else { register(host, tid) }
                });
                runtime.block_on(client.ask(killer_subnet, writes));
            }
            client
        });
        let mut ibsm = ibsm;
        let mut kills = 0;
        while !writer.is_finished() && kills < 6 {
            // Any moment is possible; these are distributed over start and work.
            std::thread::sleep(Duration::from_millis(150 + 170 * (kills * 7 % 5)));
            ibsm.kill_and_wait();
            ibsm = subnet.ibsm(&[]);
            kills += 1;
        }
        let client = writer.join().unwrap();
        assert!(kills > 0);
        ibsm.kill();
        (client, &subnet)
    });

    let _ibsm = subnet.ibsm(&[]);
    let after = runtime.block_on(subnet.snapshot());
    assert_eq!(client.answered.len() as u64, BATCHES * 16);
    let refused: Vec<_> = client.answered.values().filter(|outcome| outcome.status != 0).collect();
    assert!(refused.is_empty(), "{refused:?}");
    let mgid_of = |outcome: &proto::Outcome| Gid(outcome.data[..16].try_into().unwrap());
    let creates = || client.answered.iter().filter(|(tid, _)| *tid % 2 == 0);
    let mgids: BTreeSet<Gid> = creates().map(|(_, outcome)| mgid_of(outcome)).collect();
    assert_eq!(mgids.len(), creates().count(), "each create made a group of its own");
    let groups = &after.registry().groups;
    assert!(mgids.iter().all(|&mgid| groups.find(mgid).is_some()), "a group is lost");
    let extra = groups.len() - groups_before - mgids.len();
    assert!(extra <= client.late, "{extra} groups twice, {} repeats came late", client.late);
    let ids: BTreeSet<u64> =
        after.registry().services.iter().map(|service| service.rid.service_id).collect();
    let registered = client.answered.keys().filter(|tid| *tid % 2 == 1);
    assert!(registered.clone().all(|tid| ids.contains(tid)), "a service is lost");
    assert_eq!(ids.len(), registered.count());
    let last = client.answered.values().map(|outcome| outcome.sequence).max().unwrap();
    assert!(after.registry().sequence >= last);
}

#[test]
fn a_repeat_gets_the_answer_of_the_first_from_the_next_process() {
    let subnet = Subnet::new("registry-repeat");
    let runtime = runtime();
    let mut ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    let host = hosts(&runtime.block_on(subnet.snapshot()))[0];
    let began = Instant::now();
    let mut first = Client::new();
    runtime.block_on(first.ask(&subnet, [create(host, 7)]));
    ibsm.kill_and_wait();
    let _ibsm = subnet.ibsm(&[]);
    let mut again = Client::new();
    runtime.block_on(again.ask(&subnet, [create(host, 7)]));
    // On a machine that is too slow, the repeat counts as a new request.
    let in_time = began.elapsed() <= RETRY_WINDOW;
    let (first, again) = (&first.answered[&7], &again.answered[&7]);
    assert!(again.epoch > first.epoch && again.sequence >= first.sequence);
    assert!(first.data == again.data || !in_time, "within {:?}", began.elapsed());
    let mut other = Client::new();
    runtime.block_on(other.ask(&subnet, [create(host, 8)]));
    let other = &other.answered[&8];
    assert!(other.data != first.data && other.data != again.data);
    // Whenever the kill happened: each answer refers to an existing group.
    let snapshot = runtime.block_on(subnet.snapshot());
    for outcome in [first, again, other] {
        let mgid = Gid(outcome.data[..16].try_into().unwrap());
        assert!(snapshot.registry().groups.find(mgid).is_some(), "{mgid} is lost");
    }
}

/// Regression: each restart asked all clients to register again, although the registry was on disk.
#[test]
fn a_restart_asks_for_registrations_only_with_another_registry() {
    let subnet = Subnet::new("registry-restart");
    let state = subnet.sandbox.path("state");
    let await_tables = || {
        let deadline = Instant::now() + PATIENCE;
        while !state.join("tables").exists() {
            assert!(Instant::now() < deadline, "the hashes of the tables were not stored");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let http = free_address().to_string();
    // The last one: as after a crash between two starts.
    let runs =
        [(None, false), (None, true), (Some("registry.redb"), false), (Some("tables"), false)];
    for (lost, spared) in runs {
        if let Some(lost) = lost {
            std::fs::remove_file(state.join(lost)).unwrap();
        }
        let before = subnet.sandbox.reregistrations();
        let mut ibsm = subnet.ibsm(&["--http", &http]);
        ibsm.wait_for("SUBNET UP");
        let deadline = Instant::now() + PATIENCE;
        while Scrape::of(&http).sum("ibsm_clients_to_reregister") > 0 {
            assert!(Instant::now() < deadline, "clients still wait to be asked: {}", ibsm.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        let asked = || subnet.sandbox.reregistrations() - before;
        // The last requests may still be on their way.
        while !spared && asked() == 0 {
            assert!(Instant::now() < deadline, "no client was asked: {}", ibsm.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(asked() == 0, spared, "lost: {lost:?}; {}", ibsm.log());
        await_tables();
        ibsm.kill_and_wait();
    }
}

#[test]
fn new_members_are_reported_and_routed() {
    let subnet = Subnet::new("registry-events");
    let runtime = runtime();
    let ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    let hosts = hosts(&runtime.block_on(subnet.snapshot()));
    runtime.block_on(async {
        let mut events = EventsClient::new(subnet.channel().await);
        let request = event::FollowRequest { responder_id: 0x51, after: 0 };
        let mut notices = events.follow(request).await.unwrap().into_inner();
        let hello = notices.message().await.unwrap().unwrap();
        assert!(hello.front_door.parse::<std::net::SocketAddr>().is_ok(), "{hello:?}");
        let mut client = Client::new();
        client.ask(&subnet, [create(hosts[1], 7)]).await;
        let mgid = &client.answered[&7].data[..16];
        let message =
            tokio::time::timeout(PATIENCE, notices.next()).await.unwrap().unwrap().unwrap();
        let notice = &message.notices[0];
        assert_eq!((notice.notice.len(), &notice.notice[4..6]), (80, &[0, 66][..]));
        assert_eq!(&notice.notice[16..32], mgid);
        assert_eq!(notice.subject_pkeys, [0xFFFF]);
        assert!(!notice.trusted_only && notice.supersedes_key != 0);
    });
    // The switch of the only member must have an entry for the group.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let snapshot = runtime.block_on(subnet.snapshot());
        let blocks = snapshot.fabric().mfts.iter().flat_map(|mft| &mft.blocks);
        if blocks.clone().any(|block| block.masks != [0; 64]) {
            break;
        }
        assert!(Instant::now() < deadline, "no switch forwards the group");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn subscribers_hear_of_groups_and_ports_also_after_a_restart_of_the_sm() {
    let subnet = Subnet::new("registry-reports");
    let runtime = runtime();
    let mut ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    let _ibsa = subnet.ibsa();
    let mut subscriber = Subscriber::new(&subnet, "node00003 HCA-1");
    subscriber.subscribe();
    let before = runtime.block_on(subnet.snapshot());
    let hosts = hosts(&before);
    let mut client = Client::new();
    runtime.block_on(client.ask(&subnet, [create(hosts[1], 7)]));
    let mgid = |client: &Client, tid| Gid(client.answered[&tid].data[..16].try_into().unwrap());
    subscriber.expect(TrapNumber::MULTICAST_GROUP_CREATED, mgid(&client, 7));

    ibsm.kill_and_wait();
    let ibsm = subnet.ibsm(&[]);
    ibsm.wait_for("SUBNET UP");
    await_status(&subnet.url(), &[], "a current responder", all_responders_are_current);
    runtime.block_on(client.ask(&subnet, [create(hosts[1], 8)]));
    subscriber.expect(TrapNumber::MULTICAST_GROUP_CREATED, mgid(&client, 8));

    let far = hosts.last().unwrap().gid;
    let node = before
        .fabric()
        .nodes
        .iter()
        .find(|node| node.ports.iter().any(|port| port.guid == far.guid()));
    let name = format!("{:#018x}", node.unwrap().guid.0);
    subnet.control(&["link-down", &name, "1"]);
    subscriber.expect(TrapNumber::GID_OUT_OF_SERVICE, far);
    subnet.control(&["link-up", &name, "1"]);
    subscriber.expect(TrapNumber::GID_IN_SERVICE, far);
}
