//! Target for the agent of a compute node: datagrams as from the kernel, messages as from a
//! responder.
//!
//! For any input, each request for a path has one answer, which the kernel takes as a path or asks
//! the SA after; nothing else has one; and every path is one that the responder sent.

use std::time::{Duration, Instant};

use ib_mad::types::{Gid, Guid, PKey};
use ib_mad::wire::record::PathRecord;
use sa_proto::prost::Message;
use sa_proto::proto::node as proto;
use sa_proto::proto::node::update::Kind;
use sa_server::agent::host::{Host, Name};
use sa_server::agent::netlink::kernel::{self, Taken};
use sa_server::agent::netlink::{Messages, Operation, PathUse, Request};
use sa_server::agent::ping::Pings;
use sa_server::agent::port::Port;

const OWN: u64 = 0x10;
const PREFIX: u64 = 0xfe80 << 48;

/// The target. The input is a script of steps: a byte for the kind, 16 bits of length, and that
/// many bytes. Kinds: 0 a datagram, 1 a message, 2 a connection, 3 a pause of that many ms.
pub fn run(input: &[u8]) {
    let mut now = Instant::now();
    let name = Name { device: "mlx5_0".into(), port: 1 };
    let mut host = Host::new(vec![(name, Port::new(Guid(OWN)))]);
    let mut rest = input;
    while let Some((&[kind, high, low], after)) = rest.split_first_chunk() {
        let len = u16::from_be_bytes([high, low]);
        if kind % 4 == 3 {
            now += Duration::from_millis(len.into());
            rest = after;
            continue;
        }
        let (bytes, after) = after.split_at(usize::from(len).min(after.len()));
        rest = after;
        match kind % 4 {
            0 => ask(&mut host, now, bytes),
            1 => {
                let port = host.port_mut(0).expect("the host has a port");
                let Ok(message) = proto::Update::decode(bytes) else { continue };
                if port.handle_update(now, message).is_err() {
                    port.handle_disconnected();
                }
                let _ = port.poll_ping(now);
                assert!(port.table().bytes() <= input.len() + (64 << 10));
            }
            _ => host.port_mut(0).expect("the host has a port").handle_connected(now, now),
        }
    }
}

fn ask(host: &mut Host, now: Instant, datagram: &[u8]) {
    let is_for_path = |message: &sa_server::agent::netlink::Message<'_>| {
        message.is_request && message.operation == Operation::Resolve
    };
    let requests: Vec<_> = Messages::new(datagram).flatten().filter(is_for_path).collect();
    let before = host.counters().clone();
    let mut answers = Vec::new();
    host.answer(now, datagram, &mut answers);
    let after = host.counters();
    let (found, left) =
        (after.answered - before.answered, after.left_to_sa() - before.left_to_sa());
    assert_eq!(found + left, requests.len() as u64);
    let mut paths = 0;
    for (at, request) in requests.iter().enumerate() {
        let path_use = request.request().map_or(PathUse::Reversible, |asked| asked.path_use);
        let (sequence, taken) = kernel::take(&answers, path_use)[at];
        assert_eq!(sequence, request.sequence);
        match taken {
            Taken::AsksSa => {}
            Taken::Fails => panic!("a query would fail"),
            Taken::Path(record) => {
                let asked = request.request().expect("it was answered");
                let view = PathRecord::of(&record);
                assert_eq!((Some(view.sgid()), Some(view.pkey())), (asked.sgid, asked.pkey));
                assert_eq!(Some(view.dgid().guid()), asked.dgid.map(Gid::guid));
                paths += 1;
            }
        }
    }
    assert_eq!(paths, found);
}

fn step(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind], &(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn message(kind: Kind) -> Vec<u8> {
    step(1, &proto::Update { kind: Some(kind) }.encode_to_vec())
}

/// A port that becomes fresh, is asked, and grows stale; requests of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let asked = Request {
        device: b"mlx5_0",
        port: 1,
        path_use: PathUse::Reversible,
        service_id: Some(0x0106_0000),
        dgid: Some(Gid::new(PREFIX, Guid(0x20))),
        sgid: Some(Gid::new(PREFIX, Guid(OWN))),
        pkey: Some(PKey(0xffff)),
        qos_class: Some(3),
        tclass: Some(1),
    };
    let unidirectional = Request { path_use: PathUse::Unidirectional, service_id: None, ..asked };
    let unknown = Request { dgid: Some(Gid::new(PREFIX, Guid(0x21))), ..asked };
    let requests = [asked, unidirectional, unknown].map(|asked| kernel::request(1, &asked));
    let all = step(0, &[&requests.concat()[..], &kernel::other(4, 2)].concat());
    let mut record = [0; 64];
    PathRecord::of_mut(&mut record)
        .set_dgid(Gid::new(PREFIX, Guid(0x20)))
        .set_pkey(PKey(0xffff))
        .set_reversible(true);
    let terms = proto::Terms {
        subnet_prefix: PREFIX,
        sources: vec![OWN],
        service_ids: vec![proto::IdMatch { first: 1, last: 9, mask: 0 }],
        qos_classes: vec![proto::Range { first: 7, last: 8 }],
        lid: 40,
        switch_guid: 0x77,
    };
    let records = record.to_vec().into();
    let changes = proto::Changes { destinations: vec![0x20], records };
    let confirmation = Some(proto::Confirmation { ping: Pings::FIRST, after_ms: -9 });
    let current =
        proto::Current { session: 1, generation: 1, records: 1, is_known: true, confirmation };
    let fresh = [
        step(2, &[]),
        message(Kind::Terms(terms)),
        message(Kind::Changes(changes)),
        message(Kind::Current(current)),
    ]
    .concat();
    let confirmation = Some(proto::Confirmation { ping: 2, after_ms: 0 });
    let beat = proto::Heartbeat { session: 1, generation: 2, confirmation };
    let changing = message(Kind::Changing(proto::Changing {}));
    vec![
        all.clone(),
        [&fresh[..], &all].concat(),
        [&fresh[..], &changing, &all].concat(),
        [&fresh[..], &[3, 0xff, 0xff], &all].concat(),
        [&fresh[..], &message(Kind::Heartbeat(beat)), &all, &all].concat(),
    ]
}
