//! The MADs of a client's requests.

use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, Qpn, Rate};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{InformInfo, ProducerType, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::record::guid_info::component as guid_info;
use ib_mad::wire::record::mc_member::component as mc;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::service::{LEASE_INDEFINITE, component as svc};
use ib_mad::wire::record::{
    GuidInfoRecord, JoinState, McMemberRecord, PathRecord, Selector, ServiceRecord,
};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, SaMad, attribute};

use super::{
    ALIAS, ALIAS_BASE, ALIAS_INDEX, Ask, CREATED, Client, GROUPS, LEASES_S, SERVICE_ID_BASE,
    SERVICES, SUBSCRIPTION, Slot, Value,
};

impl Client {
    pub(super) fn write(&self, ask: Ask, tid: u64, mad: &mut [u8; MAD_LEN]) {
        match ask {
            Ask::Put(slot, value) if slot < GROUPS || slot == CREATED => {
                self.write_member(self.mgid(slot), value, tid, mad);
            }
            Ask::Put(SUBSCRIPTION, value) => Self::write_subscription(value, tid, mad),
            Ask::Put(ALIAS, value) => self.write_alias(value, tid, mad),
            Ask::Put(slot, value) => {
                let method = if value.is_some() { Method::SET } else { Method::DELETE };
                self.write_service(slot, method, value.unwrap_or(0), tid, mad);
            }
            Ask::Get(slot) if slot < GROUPS || slot == CREATED => {
                let mask = mc::MGID | mc::PORT_GID;
                let data = request(mad, Method::GET, attribute::MC_MEMBER_RECORD, tid, mask);
                let mgid = self.mgid(slot).unwrap_or(Gid::ZERO);
                McMemberRecord::of_mut(data).set_mgid(mgid).set_port_gid(self.gid);
            }
            Ask::Get(ALIAS) => {
                let mask = guid_info::LID | guid_info::BLOCK_NUM;
                let data = request(mad, Method::GET, attribute::GUID_INFO_RECORD, tid, mask);
                GuidInfoRecord::of_mut(data).set_lid(self.lid).set_block_num(0);
            }
            Ask::Get(slot) => self.write_service(slot, Method::GET, 0, tid, mad),
            Ask::Path(to) => {
                self.write_path(Gid::new(self.gid.prefix(), to), None, tid, mad);
            }
            Ask::Inside(to, pkey) => {
                self.write_path(Gid::new(self.gid.prefix(), to), Some(pkey), tid, mad);
            }
            Ask::Reach(slot) => {
                self.write_path(self.mgid(slot).unwrap_or(Gid::ZERO), None, tid, mad);
            }
        }
    }

    fn write_path(&self, to: Gid, pkey: Option<PKey>, tid: u64, mad: &mut [u8; MAD_LEN]) {
        let mask = path::DGID | path::SGID;
        let mask = if pkey.is_some() { mask | path::PKEY } else { mask };
        let data = request(mad, Method::GET, attribute::PATH_RECORD, tid, mask);
        let pkey = pkey.unwrap_or(PKey(0));
        PathRecord::of_mut(data).set_dgid(to).set_sgid(self.gid).set_pkey(pkey);
    }

    /// Without an MGID the SA chooses one.
    fn write_member(&self, mgid: Option<Gid>, value: Value, tid: u64, mad: &mut [u8; MAD_LEN]) {
        let named = mc::MGID | mc::PORT_GID | mc::JOIN_STATE;
        let mgid = mgid.unwrap_or(Gid::ZERO);
        if value.is_none() {
            let data = request(mad, Method::DELETE, attribute::MC_MEMBER_RECORD, tid, named);
            McMemberRecord::of_mut(data)
                .set_mgid(mgid)
                .set_port_gid(self.gid)
                .set_join_state(JoinState::FULL_MEMBER);
            return;
        }
        let given = mc::QKEY | mc::MTU_SELECTOR | mc::MTU | mc::TCLASS | mc::RATE_SELECTOR;
        let given = given | mc::RATE | mc::SL | mc::FLOW_LABEL | mc::PKEY | mc::SCOPE;
        let data = request(mad, Method::SET, attribute::MC_MEMBER_RECORD, tid, named | given);
        McMemberRecord::of_mut(data)
            .set_mgid(mgid)
            .set_port_gid(self.gid)
            .set_pkey(PKey::DEFAULT_FULL)
            .set_join_state(JoinState::FULL_MEMBER)
            .set_qkey(0x8001_0000)
            .set_mtu_selector(Selector::Exactly)
            .set_mtu(Mtu::B2048)
            .set_rate_selector(Selector::Exactly)
            .set_rate(Rate::Gbps10)
            .set_scope(5);
    }

    fn write_subscription(value: Value, tid: u64, mad: &mut [u8; MAD_LEN]) {
        let data = request(mad, Method::SET, AttributeId::INFORM_INFO, tid, ComponentMask(0));
        InformInfo::of_mut(data)
            .set_lid_range_begin(Lid(0xFFFF))
            .set_is_generic(1)
            .set_subscribe(value.is_some().into())
            .set_inform_type(0xFFFF)
            .set_trap_number(TrapNumber(64))
            .set_qpn(if value.is_some() { Qpn(0) } else { Qpn::GSI })
            .set_producer_type(ProducerType(0xFF_FFFF));
    }

    fn write_alias(&self, value: Value, tid: u64, mad: &mut [u8; MAD_LEN]) {
        let method = if value.is_some() { Method::SET } else { Method::DELETE };
        let mask = guid_info::LID | guid_info::BLOCK_NUM | guid_info::GUID_1;
        let data = request(mad, method, attribute::GUID_INFO_RECORD, tid, mask);
        let mut guids = [0; 64];
        let alias = value.map_or(0, |value| self.alias(value).0);
        guids[8 * ALIAS_INDEX..][..8].copy_from_slice(&alias.to_be_bytes());
        GuidInfoRecord::of_mut(data).set_lid(self.lid).set_block_num(0).set_guid_info(guids);
    }

    /// The MGID of the group in a slot, if it is known.
    pub(super) fn mgid(&self, slot: Slot) -> Option<Gid> {
        if slot == CREATED { self.created } else { Some(mgid(slot)) }
    }

    /// An alias GUID of its port.
    pub(super) fn alias(&self, value: u32) -> Guid {
        Guid(ALIAS_BASE | (self.index as u64) << 32 | u64::from(value))
    }

    fn write_service(
        &self,
        slot: Slot,
        method: Method,
        value: u32,
        tid: u64,
        mad: &mut [u8; MAD_LEN],
    ) {
        let key = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY;
        let mask = match method {
            Method::SET => key | svc::SERVICE_LEASE | svc::SERVICE_NAME,
            _ => key,
        };
        let data = request(mad, method, attribute::SERVICE_RECORD, tid, mask);
        let mut name = [0; 64];
        name[..4].copy_from_slice(&value.to_be_bytes());
        ServiceRecord::of_mut(data)
            .set_service_id(self.service_id(slot))
            .set_service_gid(self.gid)
            .set_service_pkey(PKey::DEFAULT_FULL)
            .set_service_lease(
                slot.checked_sub(GROUPS + SERVICES).map_or(LEASE_INDEFINITE, |at| LEASES_S[at]),
            )
            .set_service_name(name);
    }

    pub(super) fn service_id(&self, slot: Slot) -> u64 {
        SERVICE_ID_BASE + (self.index as u64) * 256 + slot as u64
    }
}

pub(super) fn mgid(slot: Slot) -> Gid {
    let mut mgid = [0; 16];
    mgid[..6].copy_from_slice(&[0xFF, 0x15, 0x40, 0x01, 0xFF, 0xFF]);
    mgid[15] = slot as u8 + 1;
    Gid(mgid)
}

fn request(
    mad: &mut [u8; MAD_LEN],
    method: Method,
    attribute: ib_mad::wire::mad::AttributeId,
    tid: u64,
    mask: ComponentMask,
) -> &mut [u8; DATA_LEN] {
    SaMad::new(&mut *mad).write_request(method, attribute, tid, mask);
    ib_mad::wire::field::part_mut::<{ ib_mad::wire::sa::HEADER_LEN }, _, _>(mad)
}
