//! What does one write cost among 200,000 registered records?
//!
//! Microseconds for each step from the decision to the responder's snapshot, without disk and
//! network, among 1,000 and 200,000 services; the two should differ little. `compare_all` is the
//! cost of publishing if the changes are not known.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use benches::figures::is_benchmark_run;
use criterion::{BenchmarkId, Criterion};
use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, Qpn, Rate, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::NodeType;
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::ServiceRecord;
use ib_mad::wire::record::service::component as svc;
use ib_mad::wire::sa::{DATA_LEN, attribute};
use sa_proto::proto::snapshot::FromSm;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::snapshot::codec::{Decoder, Encoder};
use sa_proto::snapshot::{
    FabricPlane, RegistryPlane, Service, ServiceRid, Session, Snapshot, Version, delta,
};
use sm_core::registry::{EndPort, Ports, Registry, Request, Requester};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PORT: Guid = Guid(0xA1);

fn main() {
    if !is_benchmark_run() {
        return;
    }
    let mut criterion = Criterion::default()
        .without_plots()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(20)
        .configure_from_args();
    for services in [1_000, 200_000] {
        measure(&mut criterion, services);
    }
    criterion.final_summary();
}

fn gid() -> Gid {
    Gid::new(SUBNET_PREFIX_DEFAULT, PORT)
}

fn record(id: u64) -> [u8; 176] {
    let mut record = [0; 176];
    ServiceRecord::of_mut(&mut record)
        .set_service_id(id)
        .set_service_gid(gid())
        .set_service_pkey(PKey::DEFAULT_FULL);
    record
}

fn service(id: u64) -> Arc<Service> {
    let service_pkey = PKey::DEFAULT_FULL;
    let rid = ServiceRid { service_id: id, service_gid: gid(), service_pkey };
    Arc::new(Service { rid, record: record(id), expires_s: None })
}

fn ports() -> Ports {
    let port = EndPort {
        guid: PORT,
        lid: Lid(1),
        lmc: 0,
        mtu: Mtu::B4096,
        rate: Rate::Gbps100,
        pkeys: [PKey::DEFAULT_FULL].into(),
        node_type: NodeType::Ca,
        guid_cap: 32,
        active: true,
    };
    let mut ports = Ports::new(SUBNET_PREFIX_DEFAULT, PORT, vec![port]);
    // All services belong to one port here.
    ports.settings.services_per_port_max = usize::MAX;
    ports
}

fn request(id: u64, tid: u64) -> Request {
    let mut data = [0; DATA_LEN];
    data[..176].copy_from_slice(&record(id));
    Request {
        method: Method::SET,
        attribute: attribute::SERVICE_RECORD,
        modifier: 0,
        component_mask: svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY,
        data,
        tid,
        requester: Requester {
            slid: Lid(1),
            sgid: None,
            qpn: Qpn(1),
            sl: Sl::from_low_bits(0),
            pkey: PKey::DEFAULT_FULL,
        },
        seen: u64::MAX,
        trusted: false,
    }
}

fn measure(criterion: &mut Criterion, services: u64) {
    // Even IDs exist; odd ones are inserted between them.
    let plane = RegistryPlane {
        sequence: 1,
        services: (0..services).map(|n| service(n * 2)).collect(),
        ..RegistryPlane::default()
    };
    let session = Session { epoch: 1, sm_guid: PORT };
    let old = Snapshot::build(session, 1, FabricPlane::default(), plane.clone()).expect("a plane");
    let ports = ports();
    let mut registry = Registry::restore(&plane, []);
    let mut tid: u64 = 0;
    // The published plane shares the registry's rows, so that the next write copies some of them.
    let mut published = plane;
    let mut write = || {
        tid += 1;
        let id = tid.wrapping_mul(0x9E37_79B9) % services * 2 + 1;
        registry.write(tid / 1_000, &ports, &request(id, tid));
        published = registry.plane();
        (published.clone(), registry.take_changes().rows)
    };
    let (plane, changes) = write();
    let version = Version { registry_sequence: changes.sequence, ..old.version() };
    let (next, delta) = old.advance(version, plane.clone(), &changes);
    let delta = Arc::new(delta);
    let messages: Vec<FromSm> = Encoder::delta(Arc::clone(&delta)).collect();

    let mut group = criterion.benchmark_group("registry");
    let id = |name: &str| BenchmarkId::new(name, services);
    group.bench_function(id("decide"), |bencher| bencher.iter(&mut write));
    group.bench_function(id("publish"), |bencher| {
        bencher.iter(|| black_box(old.advance(version, plane.clone(), &changes)));
    });
    group.bench_function(id("encode"), |bencher| {
        bencher.iter(|| black_box(Encoder::delta(Arc::clone(&delta)).count()));
    });
    group.bench_function(id("decode_and_apply"), |bencher| {
        bencher.iter(|| black_box(decode(&messages, &old)));
    });
    group.bench_function(id("compare_all"), |bencher| {
        let rebuilt: RegistryPlane = RegistryPlane {
            services: next.registry().services.iter().cloned().collect(),
            ..(**next.registry()).clone()
        };
        bencher.iter(|| black_box(old.succeed(version, old.fabric(), &rebuilt)));
    });
    assert_eq!(delta::apply(&old, &delta).expect("it fits"), next);
    group.finish();
}

fn decode(messages: &[FromSm], held: &Snapshot) -> Snapshot {
    let mut decoder = None;
    for message in messages {
        match message.message.clone().expect("an encoder leaves none empty") {
            Message::Begin(begin) => decoder = Some(Decoder::new(begin).expect("our own message")),
            Message::Chunk(chunk) => {
                decoder.as_mut().expect("begun").chunk(&chunk).expect("our own message");
            }
            Message::End(end) => {
                return decoder.expect("begun").finish(end, held).expect("our own message");
            }
            _ => panic!("not of an update"),
        }
    }
    unreachable!("an encoder ends what it begins")
}
