//! On the way of a Get() nothing is allocated: not by the responder, not by the worker around it.

#[path = "it/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use common::{Chain, SM_KEY, path_request, published, request};
use ib_mad::transport::{Packet, Transport};
use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, Qpn, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::PortInfo;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::{
    NodeRecord, PathRecord, ServiceRecord, mc_member, node, path, port_info, service,
    vl_arbitration,
};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, SaMad, attribute};
use sa_proto::snapshot::{
    IdMatch, Mft, MftBlock, MulticastGroup, MulticastMember, MulticastMemberRid, PortTables,
    PrefixRoute, QosLevel, QosRule, RegistryPlane, RuleOrigin, Service, ServiceRid, SubnetManager,
    Subscription, SubscriptionRid, Version,
};
use sa_server::serve::responder::{Responder, ResponderConfig};
use sa_server::serve::worker::{Next, Worker, WorkerConfig};
use sa_server::sm::peers::Peers;
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};

/// Counts this thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is the system allocator's, which fulfils the contract; counting touches a
// thread-local that needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Hands out the same batch again and again, and counts what is sent.
struct Loop {
    batch: Vec<Packet>,
    rounds: usize,
    sent: usize,
    refused: usize,
}

impl Transport for Loop {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        if self.rounds == 0 {
            return Ok(0);
        }
        self.rounds -= 1;
        let len = self.batch.len().min(batch.len());
        for (to, from) in batch.iter_mut().zip(&self.batch) {
            to.mad = from.mad;
            to.address.lid = from.address.lid;
            to.carrier = from.carrier;
        }
        Ok(len)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        self.sent += batch.len();
        let status = |packet: &&Packet| SaMad::new(&packet.mad).header().status() != Status::OK;
        self.refused += batch.iter().filter(status).count();
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn by_lid(attribute: AttributeId, component: ComponentMask) -> Packet {
    let mut packet = request(1, Method::GET, attribute, 1, component);
    NodeRecord::new(&mut packet.mad[56..]).unwrap().set_lid(Lid(7));
    packet
}

fn table_of(mut packet: Packet) -> Packet {
    SaMad::new(&mut packet.mad).header_mut().set_method(Method::GET_TABLE);
    packet
}

#[test]
fn gets_are_answered_without_allocating() {
    let publisher = published(&Chain { switches: 4, hosts_each: 8 }.plane(|_| {}));
    let stats = Arc::new(Stats::default());
    let responder = Responder::new(publisher.reader(), ResponderConfig::default(), stats);

    let path_by_lid = path::component::SLID | path::component::DLID;
    let mut path_lids = request(1, Method::GET, attribute::PATH_RECORD, 1, path_by_lid);
    PathRecord::new(&mut path_lids.mad[56..]).unwrap().set_slid(Lid(1)).set_dlid(Lid(30));
    let all_paths = request(1, Method::GET, attribute::PATH_RECORD, 1, ComponentMask::NONE);
    let info = request(1, Method::GET, AttributeId::CLASS_PORT_INFO, 1, ComponentMask::NONE);
    let batch = vec![
        path_request(1, 2, 31, 1),
        path_lids,
        all_paths,
        info,
        by_lid(attribute::NODE_RECORD, node::component::LID),
        by_lid(attribute::PORT_INFO_RECORD, port_info::component::LID),
        // Refused and dropped ones must not allocate either.
        request(1, Method::GET, attribute::MC_MEMBER_RECORD, 1, ComponentMask::NONE),
        request(1, Method::GET, attribute::NODE_RECORD, 1, ComponentMask::NONE),
        request(999, Method::GET, attribute::NODE_RECORD, 1, ComponentMask::NONE),
        request(1, Method(0x7F), attribute::NODE_RECORD, 1, ComponentMask::NONE),
        // One MAD is enough for a table of up to 200 bytes.
        table_of(path_request(1, 2, 31, 1)),
    ];
    assert_eq!(answered_without_allocating(responder, batch), (9, 2));
}

/// Each part of a split fabric has tables of its own, which the way of a request chooses.
#[test]
fn requests_are_answered_from_the_session_of_their_front_door_without_allocating() {
    let mut publisher = published(&Chain { switches: 4, hosts_each: 8 }.plane(|_| {}));
    let other = Chain { switches: 1, hosts_each: 8 }.plane(|_| {});
    let tables = Arc::new(Tables::build(&other, &RegistryPlane::default()));
    let other = Generation::new(Version::OFFLINE, tables, Arc::default());
    publisher.set(1, Some(Arc::new(other)));
    let doors: [SocketAddr; 3] = [1, 2, 3].map(|port| ([192, 0, 2, 1], port).into());
    let peers = Peers::default();
    peers.set_doors(0, [doors[0]], 0);
    peers.set_doors(1, [doors[1]], 0);
    let config = ResponderConfig { doors: peers, ..ResponderConfig::default() };
    let responder = Responder::new(publisher.reader(), config, Arc::new(Stats::default()));
    // The host with LID 31 is in the first part only.
    let through = |door: Option<SocketAddr>| {
        let mut packet = path_request(1, 2, 31, 1);
        packet.carrier.peer = door;
        packet
    };
    let [first, second, unknown] = doors.map(Some);
    let batch = [None, first, second, second, unknown, first, second].map(through);
    assert_eq!(answered_without_allocating(responder, batch.to_vec()), (7, 3));
}

/// Rules of every kind, ports that drop different SLs and a prefix route are no reason to allocate.
#[test]
fn policy_is_applied_without_allocating() {
    let mut plane = Chain { switches: 4, hosts_each: 8 }.plane(|_| {});
    plane.subnet.qos = true;
    plane.subnet.prefix_routes = vec![PrefixRoute { prefix: None, router: None }];
    plane.qos_levels = vec![Arc::new(QosLevel {
        index: 0,
        name: String::new(),
        sl: Some(Sl::from_low_bits(1)),
        mtu_limit: Some(Mtu::B1024),
        rate_limit: None,
        packet_life: None,
        pkeys: vec![(1, 0x7FFF)],
    })];
    let rule = |index: u32| QosRule {
        index,
        name: String::new(),
        origin: RuleOrigin::MatchRule,
        level: 0,
        sources: None,
        destinations: None,
        pkeys: None,
        qos_classes: None,
        // As many masks as no policy has: some are confirmed rule by rule.
        service_ids: Some(vec![IdMatch::Masked { value: 0, mask: 1 << (index % 60) | 1 << 63 }]),
    };
    plane.qos_rules = (0..500).map(|index| Arc::new(rule(index))).collect();
    let drops = |node| PortTables {
        node,
        sl_to_vl_maps: vec![[0x00, 0x0F, 0, 0, 0, 0, 0, 0]],
        sl_to_vl: vec![((1, 9), 0)],
        ..PortTables::default()
    };
    plane.port_tables = vec![Arc::new(drops(plane.lfts[0].switch))];
    let publisher = published(&plane);
    let stats = Arc::new(Stats::default());
    let responder = Responder::new(publisher.reader(), ResponderConfig::default(), stats);

    let mut by_service = path_request(1, 2, 31, 1);
    let mut mad = SaMad::new(&mut by_service.mad);
    let mask = path::component::SGID | path::component::DGID | path::component::SERVICE_ID;
    mad.sa_mut().set_component_mask(mask);
    PathRecord::new(&mut mad.data_mut()[..]).unwrap().set_service_id(0xFFFF_FFFF);
    let mut far = path_request(1, 2, 31, 1);
    let far_gid = Gid::new(0x2001 << 48, Guid(1));
    PathRecord::new(&mut far.mad[56..]).unwrap().set_dgid(far_gid);
    let batch = vec![by_service, path_request(1, 1, 31, 1), far];
    assert_eq!(answered_without_allocating(responder, batch), (3, 1));
}

/// Answers a batch a thousand times; how many of it are answered, and how many of those refused.
fn answered_without_allocating(responder: Responder, batch: Vec<Packet>) -> (usize, usize) {
    let transport = Loop { batch, rounds: 1, sent: 0, refused: 0 };
    let mut worker = Worker::new(transport, responder, WorkerConfig::default());
    // Time stands still: on a machine that is busy otherwise, packets would get old on the way.
    let now = Instant::now();
    let clock = || now;
    while worker.turn(clock).unwrap() == Next::Again {}

    worker.transport_mut().rounds = 1000;
    let before = ALLOCATIONS.with(Cell::get);
    while worker.transport_mut().rounds > 0 {
        worker.turn(clock).unwrap();
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    let balances = worker.responder().stats().balances();
    assert!(balances);
    let transport = worker.transport_mut();
    assert_eq!((transport.sent % 1001, transport.refused % 1001), (0, 0));
    (transport.sent / 1001, transport.refused / 1001)
}

/// A registry and tables of which every query below finds one record.
fn everything() -> Publisher {
    let chain = Chain { switches: 4, hosts_each: 8 };
    let mut plane = chain.plane(|port| {
        PortInfo::new(&mut port.info[..]).unwrap().set_guid_cap(8);
    });
    let switch = plane.lfts[0].switch;
    let blocks = vec![MftBlock { block: 0, position: 0, masks: [1; 64] }];
    plane.mfts.push(Arc::new(Mft { switch, blocks }));
    let (port_guid, lid) = (Chain::host_guid(1), Lid(1));
    plane.subnet_managers.push(Arc::new(SubnetManager { port_guid, lid, info: [1; 21] }));

    let mut registry = RegistryPlane::default();
    let mut record = [0; 52];
    record[..16].copy_from_slice(&MGID.0);
    registry.groups.insert(Arc::new(MulticastGroup { mgid: MGID, record, predefined: false }));
    let rid = MulticastMemberRid { mgid: MGID, port_gid: gid(1) };
    registry.members.insert(Arc::new(MulticastMember { rid, join_state: 1, proxy_join: false }));
    let rid = ServiceRid { service_id: 7, service_gid: gid(1), service_pkey: PKey(0) };
    let mut record = [0; 176];
    ServiceRecord::new(&mut record[..]).unwrap().set_service_id(7).set_service_name([b'n'; 64]);
    registry.services.insert(Arc::new(Service { rid, record, expires_s: None }));
    registry.subscriptions.insert(Arc::new(Subscription {
        rid: SubscriptionRid { subscriber_gid: gid(1), enumeration: 0 },
        inform_info: [1; 36],
        lid,
        qpn: Qpn(1),
        sl: Sl::default(),
        pkey: PKey::DEFAULT_FULL,
        grh: false,
        trusted: false,
        responder: 0,
    }));

    let tables = Arc::new(Tables::build(&plane, &registry));
    let mut publisher = Publisher::new();
    let generation = Generation::new(Version::OFFLINE, tables, Arc::new(registry));
    publisher.publish(Arc::new(generation));
    publisher
}

const MGID: Gid = Gid([0xFF; 16]);

fn gid(lid: u16) -> Gid {
    Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(lid))
}

/// A trusted Get() of `attribute` with these components, which `fill` writes.
fn get(
    attribute: AttributeId,
    components: ComponentMask,
    fill: impl FnOnce(&mut [u8; DATA_LEN]),
) -> Packet {
    let mut packet = request(1, Method::GET, attribute, 1, components);
    let mut mad = SaMad::new(&mut packet.mad);
    mad.sa_mut().set_sm_key(SM_KEY);
    fill(mad.data_mut());
    packet
}

#[test]
fn gets_of_tables_and_of_the_registry_are_answered_without_allocating() {
    let publisher = everything();
    let stats = Arc::new(Stats::default());
    let responder = Responder::new(publisher.reader(), ResponderConfig::default(), stats);

    let switch = Chain { switches: 4, hosts_each: 8 }.switch_lid(0);
    let lid =
        |lid: Lid| move |data: &mut [u8; DATA_LEN]| data[..2].copy_from_slice(&lid.0.to_be_bytes());
    let port_gid = |data: &mut [u8; DATA_LEN]| data[16..32].copy_from_slice(&gid(1).0);
    let by_lid = ComponentMask::component(0);
    let mut batch = vec![
        get(attribute::SWITCH_INFO_RECORD, by_lid, lid(switch)),
        get(attribute::SL_TO_VL_MAPPING_TABLE_RECORD, by_lid, lid(Lid(2))),
        get(
            attribute::VL_ARBITRATION_TABLE_RECORD,
            by_lid | vl_arbitration::component::BLOCK_NUM,
            |data| {
                (data[1], data[3]) = (2, 1);
            },
        ),
        get(attribute::PKEY_TABLE_RECORD, by_lid, lid(Lid(2))),
        get(attribute::LINEAR_FORWARDING_TABLE_RECORD, by_lid, lid(switch)),
        get(attribute::MULTICAST_FORWARDING_TABLE_RECORD, by_lid, lid(switch)),
        get(attribute::GUID_INFO_RECORD, by_lid, lid(Lid(2))),
        get(attribute::SM_INFO_RECORD, by_lid, lid(Lid(1))),
        get(attribute::INFORM_INFO_RECORD, ComponentMask::component(0), |data| {
            data[..16].copy_from_slice(&gid(1).0);
        }),
        get(attribute::SERVICE_RECORD, service::component::SERVICE_ID, |data| data[7] = 7),
        get(attribute::SERVICE_RECORD, service::component::SERVICE_NAME, |data| {
            data[48..112].fill(b'n');
        }),
        get(attribute::MC_MEMBER_RECORD, mc_member::component::MGID, |data| {
            data[..16].copy_from_slice(&MGID.0);
        }),
        get(attribute::MC_MEMBER_RECORD, mc_member::component::PORT_GID, port_gid),
        get(attribute::MC_MEMBER_RECORD, ComponentMask::NONE, |_| {}),
    ];
    let found = batch.len();
    batch.push(get(attribute::TRACE_RECORD, ComponentMask::NONE, |_| {}));
    assert_eq!(answered_without_allocating(responder, batch), (found + 1, 1));
}

/// The counter counts, so that zero above means something.
#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.with(Cell::get);
    std::hint::black_box(Box::new(7));
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 1);
}
