//! Target for a write as a responder sends it to the SM: any message is parsed or rejected, and a
//! parsed one is decided without a panic.

use ib_mad::types::{Gid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::Method;
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sm_core::registry::{Ports, Registry, Request, Requester};

const SA_KEY: u64 = 0x1234;

/// The target: addressing in the first bytes, then the MAD, possibly truncated.
pub fn run(input: &[u8]) {
    let Some((head, rest)) = input.split_first_chunk::<10>() else { return };
    let mut mad = [0; MAD_LEN];
    let len = rest.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&rest[..len]);
    let requester = Requester {
        slid: Lid(u16::from_be_bytes([head[0], head[1]])),
        sgid: (head[2] & 1 == 1).then_some(Gid([head[3]; 16])),
        qpn: Qpn(u32::from_be_bytes([0, head[4], head[5], head[6]])),
        sl: Sl::from_low_bits(head[7].into()),
        pkey: PKey(u16::from_be_bytes([head[8], head[9]])),
    };
    let Ok(request) = Request::read(&mad, requester, SA_KEY) else { return };
    assert_eq!(request.trusted, SaMad::new(&mad).sa().sm_key() == SA_KEY);
    assert!([Method::SET, Method::DELETE, Method::GET].contains(&request.method));
    let mut registry = Registry::default();
    let first = registry.write(1_000, &Ports::default(), &request);
    // There are no ports, so nothing can be granted.
    assert!(registry.plane() == Default::default(), "{request:?} changed something");
    assert_eq!(registry.write(1_001, &Ports::default(), &request), first);
}

/// One request of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let ids = [
        attribute::MC_MEMBER_RECORD,
        attribute::SERVICE_RECORD,
        attribute::GUID_INFO_RECORD,
        attribute::INFORM_INFO_RECORD,
        ib_mad::wire::mad::AttributeId::INFORM_INFO,
    ];
    let methods = [Method::SET, Method::DELETE, Method::GET];
    let pairs = ids.into_iter().flat_map(|id| methods.map(|method| (id, method)));
    pairs
        .map(|(id, method)| {
            let mut mad = [0; MAD_LEN];
            SaMad::new(&mut mad).write_request(method, id, 7, ComponentMask(u64::MAX >> 1));
            [&[0, 1, 0, 0, 0, 0, 1, 0, 0xFF, 0xFF], &mad[..]].concat()
        })
        .collect()
}
