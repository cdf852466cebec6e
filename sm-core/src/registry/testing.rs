//! A small fabric and its requests, for tests of record families.

use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, Qpn, Rate, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::NodeType;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN};

use super::{EndPort, OutcomeKey, Ports, Registry, Reply, Request, Requester};

/// The current time in tests, seconds since 1970.
pub const NOW_S: u64 = 1_000;

/// GUIDs of three ports in one partition (LIDs 1 to 3), of which port 2 is also in partition 1,
/// and of a port (LID 4) in partition 1 only.
pub const GUIDS: [Guid; 4] = [Guid(0xA1), Guid(0xA2), Guid(0xA3), Guid(0xA4)];

/// An active port of a channel adapter: `number`, from 1, counts [`GUIDS`] and is the LID.
pub fn port(number: u16, pkeys: &[u16]) -> EndPort {
    EndPort {
        guid: GUIDS[usize::from(number) - 1],
        lid: Lid(number),
        lmc: 0,
        mtu: Mtu::B4096,
        rate: Rate::Gbps100,
        pkeys: pkeys.iter().copied().map(PKey).collect(),
        node_type: NodeType::Ca,
        guid_cap: 12,
        active: true,
    }
}

/// The end ports of [`GUIDS`].
pub fn end_ports() -> Vec<EndPort> {
    vec![port(1, &[0xFFFF]), port(2, &[0xFFFF, 0x8001]), port(3, &[0xFFFF]), port(4, &[0x8001])]
}

/// These ports as registry input.
pub fn ports() -> Ports {
    Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], end_ports())
}

/// The GID of a port by its LID.
pub fn gid(lid: u16) -> Gid {
    Gid::new(SUBNET_PREFIX_DEFAULT, GUIDS[usize::from(lid) - 1])
}

/// The key of a request with this TransactionID.
pub fn outcome_key(tid: u64) -> OutcomeKey {
    OutcomeKey {
        slid: Lid(3),
        sgid: Gid([9; 16]),
        qpn: Qpn::GSI,
        tid,
        attribute: AttributeId(0x31),
        method: Method::SET,
        digest: 77,
    }
}

/// A request of the port with LID `slid`, from QP1. Each has a new TransactionID.
pub fn request(
    slid: u16,
    method: Method,
    attribute: AttributeId,
    component_mask: ComponentMask,
    record: &[u8],
) -> Request {
    use std::sync::atomic::{AtomicU64, Ordering};
    static TID: AtomicU64 = AtomicU64::new(1);
    let mut data = [0; DATA_LEN];
    data[..record.len()].copy_from_slice(record);
    Request {
        method,
        attribute,
        modifier: 0,
        component_mask,
        data,
        tid: TID.fetch_add(1, Ordering::Relaxed),
        requester: Requester {
            slid: Lid(slid),
            sgid: None,
            qpn: Qpn::GSI,
            sl: Sl::from_low_bits(0),
            pkey: PKey::DEFAULT_FULL,
        },
        seen: u64::MAX,
        trusted: false,
    }
}

/// The request with the SM_Key.
pub fn trusted(request: Request) -> Request {
    Request { trusted: true, ..request }
}

/// The record in the answer to a request.
pub fn answered(registry: &mut Registry, request: &Request) -> [u8; DATA_LEN] {
    let reply = write(registry, request.clone());
    reply.data.map_or(request.data, |data| data.data())
}

/// The reply to a request on the fabric of [`ports`].
pub fn write(registry: &mut Registry, request: Request) -> Reply {
    registry.write(NOW_S, &ports(), &request)
}

/// The status of an answer; `None` if there was none.
pub fn status(registry: &mut Registry, request: Request) -> Option<Status> {
    let reply = write(registry, request);
    (!reply.dropped).then_some(reply.status)
}
