//! The requests that clients send.

use ib_mad::types::{Gid, Lid, PKey, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{InformInfo, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::record::mc_member::component as mc;
use ib_mad::wire::record::service::component as svc;
use ib_mad::wire::record::{GuidInfoRecord, JoinState, McMemberRecord, ServiceRecord, guid_info};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};

use crate::support::Host;

type Mad = [u8; MAD_LEN];

fn mad(
    method: Method,
    attribute: AttributeId,
    tid: u64,
    mask: ComponentMask,
    fill: impl FnOnce(&mut [u8]),
) -> Mad {
    let mut bytes = [0; MAD_LEN];
    let mut mad = SaMad::new(&mut bytes);
    mad.write_request(method, attribute, tid, mask);
    fill(&mut mad.data_mut()[..]);
    bytes
}

/// Joins a group, which is created if it does not exist; the SA chooses the MGID if `mgid` is zero.
pub(crate) fn join(host: Host, tid: u64, mgid: Gid, state: u8) -> Mad {
    let mask = mc::MGID | mc::PORT_GID | mc::QKEY | mc::TCLASS | mc::PKEY | mc::FLOW_LABEL;
    let mask = mask | mc::SL | mc::SCOPE | mc::JOIN_STATE;
    mad(Method::SET, attribute::MC_MEMBER_RECORD, tid, mask, |data| {
        McMemberRecord::new(&mut data[..52])
            .unwrap()
            .set_mgid(mgid)
            .set_port_gid(host.gid)
            .set_qkey(0xB1B)
            .set_pkey(PKey::DEFAULT_FULL)
            .set_scope(2)
            .set_join_state(JoinState(state));
    })
}

/// Leaves a group with these kinds of membership.
pub(crate) fn leave(host: Host, tid: u64, mgid: Gid, state: u8) -> Mad {
    let mask = mc::MGID | mc::PORT_GID | mc::JOIN_STATE;
    mad(Method::DELETE, attribute::MC_MEMBER_RECORD, tid, mask, |data| {
        McMemberRecord::new(&mut data[..52])
            .unwrap()
            .set_mgid(mgid)
            .set_port_gid(host.gid)
            .set_join_state(JoinState(state));
    })
}

/// Sets, deletes or queries a service; `content` is the part that a client modifies.
pub(crate) fn service(method: Method, host: Host, tid: u64, id: u64, content: u8) -> Mad {
    let mask = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY;
    mad(method, attribute::SERVICE_RECORD, tid, mask, |data| {
        ServiceRecord::new(&mut data[..176])
            .unwrap()
            .set_service_id(id)
            .set_service_gid(host.gid)
            .set_service_pkey(PKey::DEFAULT_FULL);
        data[127] = content;
    })
}

/// Sets a service for so many seconds.
pub(crate) fn leased_service(host: Host, tid: u64, id: u64, content: u8, lease_s: u32) -> Mad {
    let mut bytes = service(Method::SET, host, tid, id, content);
    let mut mad = SaMad::new(&mut bytes);
    let mask = mad.sa().component_mask() | svc::SERVICE_LEASE;
    mad.sa_mut().set_component_mask(mask);
    ServiceRecord::new(&mut mad.data_mut()[..176]).unwrap().set_service_lease(lease_s);
    bytes
}

/// Subscribes to a trap of every port, or unsubscribes.
pub(crate) fn subscribe(tid: u64, trap: u16, qpn: Qpn, subscribe: bool) -> Mad {
    mad(Method::SET, AttributeId::INFORM_INFO, tid, ComponentMask::NONE, |data| {
        InformInfo::new(&mut data[..36])
            .unwrap()
            .set_lid_range_begin(Lid::PERMISSIVE)
            .set_is_generic(1)
            .set_subscribe(subscribe.into())
            .set_inform_type(u16::MAX)
            .set_trap_number(TrapNumber(trap))
            .set_qpn(qpn);
    })
}

/// Sets or deletes the alias at `entry` of a port's first block.
pub(crate) fn alias(method: Method, host: Host, tid: u64, entry: u8, guid: u64) -> Mad {
    let named = ComponentMask(guid_info::component::GUID_0.0 << entry);
    let mask = guid_info::component::LID | guid_info::component::BLOCK_NUM | named;
    mad(method, attribute::GUID_INFO_RECORD, tid, mask, |data| {
        GuidInfoRecord::new(&mut data[..72]).unwrap().set_lid(host.lid);
        data[8 + 8 * usize::from(entry)..][..8].copy_from_slice(&guid.to_be_bytes());
    })
}
