//! Paths to multicast groups, and who may see them.

use std::sync::Arc;

use crate::common::{Chain, SM_KEY};
use crate::golden_support::{Got, Sa};
use ib_mad::types::{Gid, Lid, Mtu, PKey, Rate, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::{McMemberRecord, PathRecord};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::snapshot::{MulticastGroup, MulticastMember, MulticastMemberRid, RegistryPlane};

const CHAIN: Chain = Chain { switches: 2, hosts_each: 2 };
const MLID: Lid = Lid(0xC005);

fn mgid() -> Gid {
    let mut mgid = [0; 16];
    (mgid[0], mgid[1], mgid[15]) = (0xFF, 0x12, 5);
    Gid(mgid)
}

fn gid(lid: u16) -> Gid {
    Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(lid))
}

/// A group of partition 5, which hosts 1 and 2 are in; host 2 has joined.
fn registry() -> RegistryPlane {
    let mut record = [0; McMemberRecord::LEN];
    McMemberRecord::new(&mut record[..])
        .unwrap()
        .set_mgid(mgid())
        .set_mlid(MLID)
        .set_pkey(PKey(0x8005))
        .set_mtu(Mtu::B2048)
        .set_rate(Rate::Gbps10);
    let rid = MulticastMemberRid { mgid: mgid(), port_gid: gid(2) };
    RegistryPlane {
        groups: [Arc::new(MulticastGroup { mgid: mgid(), record, predefined: false })]
            .into_iter()
            .collect(),
        members: [Arc::new(MulticastMember { rid, join_state: 1, proxy_join: false })]
            .into_iter()
            .collect(),
        ..RegistryPlane::default()
    }
}

/// Status and DLID of the path from host 2 to the group that `requester` gets.
fn asked(method: Method, requester: u16, mask: ComponentMask, sm_key: u64) -> (Status, Lid) {
    let plane = CHAIN.plane(|port| {
        let is_member = [1, 2].iter().any(|&lid| Chain::host_guid(lid) == port.guid);
        port.pkeys = vec![PKey(if is_member { 0x8005 } else { 0x8006 })].into();
    });
    let mut mad = [0; 256];
    let mut view = SaMad::new(&mut mad);
    view.write_request(method, attribute::PATH_RECORD, 7, path::DGID | mask);
    view.sa_mut().set_sm_key(sm_key);
    PathRecord::new(view.data_mut()).unwrap().set_dgid(mgid()).set_sgid(gid(2));
    let mut sa = Sa::new(&plane, &registry());
    let Got::Answer(answer) = sa.ask(Lid(requester), &[mad.to_vec()]) else { panic!("no answer") };
    let status = Status(u16::from_be_bytes([answer[4], answer[5]]));
    let record = answer.get(56..120).map(|record| PathRecord::new(record).unwrap().dlid());
    (status, record.filter(|_| status == Status::OK).unwrap_or_default())
}

/// Regression: a port of another partition got the path to any group, with its MLID and P_Key, and
/// learnt by an SGID who had joined, which MCMemberRecord hides from it.
#[test]
fn the_path_to_a_group_is_for_its_partition() {
    for mask in [ComponentMask::NONE, path::SGID] {
        assert_eq!(asked(Method::GET, 1, mask, 0), (Status::OK, MLID));
        for sm_key in [0, SM_KEY] {
            assert_eq!(asked(Method::GET, 3, mask, sm_key).0, Status::SA_NO_RECORDS);
            assert_eq!(asked(Method::GET_TABLE, 3, mask, sm_key).1, Lid::NONE);
        }
    }
}
