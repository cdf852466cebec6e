//! Registrations: multicast joins as sent by IPoIB and ibacm, subscriptions as sent by srp_daemon,
//! services.

use ib_mad::types::{Gid, Lid, Lifetime, Mtu, PKey, Qpn, Rate, Sl};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{InformInfo, ProducerType, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::record::mc_member::component as mc;
use ib_mad::wire::record::service::{LEASE_INDEFINITE, component as svc};
use ib_mad::wire::record::{JoinState, McMemberRecord, Selector, ServiceRecord};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, SaMad, attribute};

use super::{fits, request};
use crate::ports::EndPort;

/// Trap 64, "GID in service"; srp_daemon subscribes to it.
pub const TRAP_GID_IN_SERVICE: u16 = 64;
/// Trap 144, "Local changes"; srp_daemon subscribes to it.
pub const TRAP_LOCAL_CHANGES: u16 = 144;

/// Q_Key of ibacm's groups.
const ACM_QKEY: u32 = 0x8001_0000;
/// Default MTU and rate of ibacm's groups: 2048 bytes, 10 Gb/s.
const ACM_MTU: Mtu = Mtu::B2048;
const ACM_RATE: Rate = Rate::Gbps10;
/// Scopes of a MGID.
const LINK_LOCAL: u8 = 2;
const SITE_LOCAL: u8 = 5;
/// The first of the service IDs that ports register.
const SERVICE_ID_BASE: u64 = 0x1000_0000_0000_0000;

/// A multicast group, as seen from a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// IPoIB's broadcast group, which the subnet manager creates.
    Broadcast,
    /// 224.0.0.1 in IPoIB.
    AllHosts,
    /// ff02::1 in IPoIB.
    AllNodes,
    /// The port's solicited-node group, ff02::1:ffXX:XXXX, in IPoIB: rarely shared with another
    /// port.
    SolicitedNode,
    /// The group by which ibacm resolves addresses.
    Acm,
}

/// Parameters that IPoIB groups inherit from the broadcast group (RFC 4391).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Like {
    qkey: u32,
    mtu: Mtu,
    rate: Rate,
    sl: Sl,
    tclass: u8,
    flow_label: u32,
    hop_limit: u8,
}

impl Like {
    /// The parameters in the response to a join; `None` if it contains reserved codes.
    pub fn of(mad: &[u8; MAD_LEN]) -> Option<Self> {
        let answer = SaMad::new(mad);
        let record = McMemberRecord::of(answer.data());
        Some(Self {
            qkey: record.qkey(),
            mtu: Mtu::from_code(record.mtu())?,
            rate: Rate::from_code(record.rate())?,
            sl: record.sl(),
            tclass: record.tclass(),
            flow_label: record.flow_label(),
            hop_limit: record.hop_limit(),
        })
    }
}

impl Group {
    /// MGID in the partition of `pkey`, for a port.
    fn mgid(self, port: &EndPort, pkey: PKey) -> Gid {
        let mut mgid = [0; 16];
        // The P_Key in the MGID has the full-member bit.
        let [high, low] = (pkey.0 | 0x8000).to_be_bytes();
        let (scope, signature) = match self {
            Self::Broadcast | Self::AllHosts => (LINK_LOCAL, [0x40, 0x1B]),
            Self::AllNodes | Self::SolicitedNode => (LINK_LOCAL, [0x60, 0x1B]),
            Self::Acm => (SITE_LOCAL, [0x40, 0x01]),
        };
        mgid[..2].copy_from_slice(&[0xFF, 0x10 | scope]);
        mgid[2..4].copy_from_slice(&signature);
        mgid[4..6].copy_from_slice(&[high, low]);
        match self {
            Self::Broadcast => mgid[12..].fill(0xFF),
            Self::AllHosts | Self::AllNodes => mgid[15] = 1,
            Self::SolicitedNode => {
                mgid[11..14].copy_from_slice(&[1, 0xFF, port.gid.0[13]]);
                mgid[14..].copy_from_slice(&port.gid.0[14..]);
            }
            Self::Acm => (mgid[7], mgid[8]) = (ACM_RATE.code(), ACM_MTU.code()),
        }
        Gid(mgid)
    }

    /// The join: IPoIB's (`ipoib_mcast_join`), with the parameters of the broadcast group in
    /// `like`, or ibacm's (`acmp_init_join`).
    pub(super) fn write_join(
        self,
        port: &EndPort,
        like: Option<Like>,
        pkey: PKey,
        tid: u64,
        mad: &mut [u8; MAD_LEN],
    ) {
        let named = mc::MGID | mc::PORT_GID | mc::PKEY | mc::JOIN_STATE;
        let given = mc::QKEY | mc::MTU_SELECTOR | mc::MTU | mc::TCLASS | mc::RATE_SELECTOR;
        let given = given | mc::RATE | mc::SL | mc::FLOW_LABEL;
        let mask = match (self, like) {
            (Self::Acm, _) => named | given | mc::SCOPE,
            (_, Some(_)) => named | given | mc::HOP_LIMIT,
            (_, None) => named,
        };
        let set = Method::SET;
        let data = request(mad, set, attribute::MC_MEMBER_RECORD, tid, mask);
        let mut record = McMemberRecord::of_mut(data);
        record
            .set_mgid(self.mgid(port, pkey))
            .set_port_gid(port.gid)
            .set_pkey(pkey)
            .set_join_state(JoinState::FULL_MEMBER);
        let acm = Like {
            qkey: ACM_QKEY,
            mtu: ACM_MTU,
            rate: ACM_RATE,
            sl: Sl::default(),
            tclass: 0,
            flow_label: 0,
            hop_limit: 0,
        };
        let like = if self == Self::Acm { Some(acm) } else { like };
        if let Some(like) = like {
            record
                .set_qkey(like.qkey)
                .set_mtu_selector(Selector::Exactly)
                .set_mtu(like.mtu)
                .set_tclass(like.tclass)
                .set_rate_selector(Selector::Exactly)
                .set_rate(like.rate)
                .set_packet_life_time(Lifetime::default())
                .set_sl(like.sl)
                .set_flow_label(like.flow_label)
                .set_hop_limit(like.hop_limit);
        }
        if self == Self::Acm {
            record.set_scope(SITE_LOCAL);
        }
    }

    /// The leave, as `ib_sa` sends it (`send_leave` in multicast.c).
    pub(super) fn write_leave(self, port: &EndPort, pkey: PKey, tid: u64, mad: &mut [u8; MAD_LEN]) {
        let mask = mc::MGID | mc::PORT_GID | mc::JOIN_STATE;
        let data = request(mad, Method::DELETE, attribute::MC_MEMBER_RECORD, tid, mask);
        McMemberRecord::of_mut(data)
            .set_mgid(self.mgid(port, pkey))
            .set_port_gid(port.gid)
            .set_join_state(JoinState::FULL_MEMBER);
    }

    /// Whether a response is for this group and port.
    pub(super) fn is_answer(self, port: &EndPort, pkey: PKey, data: &[u8; DATA_LEN]) -> bool {
        let record = McMemberRecord::of(data);
        record.mgid() == self.mgid(port, pkey) && fits(port, record.port_gid())
    }
}

/// The subscription of srp_daemon (`register_to_trap`), with its mask: components of InformInfo are
/// numbered by their position, from 0.
pub(super) fn write_inform(trap: u16, subscribe: bool, tid: u64, mad: &mut [u8; MAD_LEN]) {
    const LID_RANGE_BEGIN: u64 = 1 << 1;
    const IS_GENERIC: u64 = 1 << 4;
    const SUBSCRIBE: u64 = 1 << 5;
    const TRAP_TYPE: u64 = 1 << 6;
    const TRAP_NUMBER: u64 = 1 << 7;
    const QPN: u64 = 1 << 8;
    const PRODUCER: u64 = 1 << 12;
    let mask = LID_RANGE_BEGIN | IS_GENERIC | SUBSCRIBE | TRAP_TYPE | TRAP_NUMBER | PRODUCER;
    let mask = if subscribe { mask } else { mask | QPN };
    // Type "subnet management", producer class manager; type "informational", producer channel
    // adapter.
    let (inform_type, producer) = match trap {
        TRAP_LOCAL_CHANGES => (4, ProducerType::CA),
        _ => (3, ProducerType::CLASS_MANAGER),
    };
    let inform = AttributeId::INFORM_INFO;
    let data = request(mad, Method::SET, inform, tid, ComponentMask(mask));
    let mut info = InformInfo::of_mut(data);
    info.set_lid_range_begin(Lid::PERMISSIVE)
        .set_is_generic(1)
        .set_subscribe(subscribe.into())
        .set_inform_type(inform_type)
        .set_trap_number(TrapNumber(trap))
        .set_producer_type(producer);
    if !subscribe {
        // Reports go to the queue pair that sent the request.
        info.set_qpn(Qpn::GSI);
    }
}

/// Whether a response is for this trap.
pub(super) fn is_inform_answer(trap: u16, data: &[u8; DATA_LEN]) -> bool {
    let info = InformInfo::of(data);
    info.trap_number() == TrapNumber(trap)
}

/// A service of the port, with an infinite lease, as `ib_sa` registers one.
pub(super) fn write_service(
    method: Method,
    number: u16,
    port: &EndPort,
    pkey: PKey,
    tid: u64,
    mad: &mut [u8; MAD_LEN],
) {
    let key = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY;
    let mask = match method {
        Method::DELETE => key,
        _ => key | svc::SERVICE_LEASE | svc::SERVICE_NAME,
    };
    let data = request(mad, method, attribute::SERVICE_RECORD, tid, mask);
    let mut name = [0; 64];
    let text = format!("ibstorm service {number}");
    name[..text.len()].copy_from_slice(text.as_bytes());
    ServiceRecord::of_mut(data)
        .set_service_id(SERVICE_ID_BASE + u64::from(number))
        .set_service_gid(port.gid)
        .set_service_pkey(pkey)
        .set_service_lease(LEASE_INDEFINITE)
        .set_service_name(name);
}

/// Whether a response is for this service of this port.
pub(super) fn is_service_answer(number: u16, port: &EndPort, data: &[u8; DATA_LEN]) -> bool {
    let record = ServiceRecord::of(data);
    record.service_id() == SERVICE_ID_BASE + u64::from(number) && fits(port, record.service_gid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Ask;
    use crate::ask::tests::workload;
    use crate::workload::{By, Draw};
    use ib_mad::wire::mad::Status;

    fn written(ask: Ask) -> [u8; MAD_LEN] {
        let mut mad = [0xA5; MAD_LEN];
        ask.write(1, &workload(By::Gid, Draw::Any(1)), 9, &mut mad);
        mad
    }

    fn head(mad: &[u8; MAD_LEN]) -> (Method, AttributeId, u64) {
        let mad = SaMad::new(mad);
        let mask = mad.sa().component_mask().0;
        (mad.header().method(), mad.header().attribute_id(), mask)
    }

    /// The bytes that Linux's IPoIB sends, field by field as in `ipoib_mcast_join`.
    #[test]
    fn the_broadcast_group_is_joined_as_ipoib_does() {
        let mad = written(Ask::Join(Group::Broadcast, None));
        let member = attribute::MC_MEMBER_RECORD;
        assert_eq!(head(&mad), (Method::SET, member, 0x1_0083));
        let mut expected = [0; 200];
        expected[..16].copy_from_slice(b"\xff\x12\x40\x1b\xff\xff\0\0\0\0\0\0\xff\xff\xff\xff");
        expected[16..32].copy_from_slice(b"\xfe\x80\0\0\0\0\0\0\x02\xc9\x03\0\0\xab\xcd\x02");
        expected[40..42].copy_from_slice(b"\xff\xff");
        expected[48] = 1;
        assert_eq!(mad[56..], expected);
    }

    /// Further groups use the parameters of the broadcast group (RFC 4391).
    #[test]
    fn other_groups_are_joined_with_the_parameters_of_the_first() {
        let mut answer = written(Ask::Join(Group::Broadcast, None));
        SaMad::new(&mut answer).make_response(Status::OK);
        McMemberRecord::new(&mut answer[56..])
            .unwrap()
            .set_qkey(0xB1B)
            .set_mtu(Mtu::B2048)
            .set_rate(Rate::Gbps10)
            .set_tclass(3)
            .set_sl(Sl::from_low_bits(2))
            .set_flow_label(0x12345)
            .set_hop_limit(6);
        let like = Like::of(&answer);
        let mad = written(Ask::Join(Group::SolicitedNode, like));
        assert_eq!(head(&mad).2, 0x1_73F7);
        let mut expected = [0; 52];
        expected[..16].copy_from_slice(b"\xff\x12\x60\x1b\xff\xff\0\0\0\0\0\x01\xff\xab\xcd\x02");
        expected[16..32].copy_from_slice(b"\xfe\x80\0\0\0\0\0\0\x02\xc9\x03\0\0\xab\xcd\x02");
        expected[32..36].copy_from_slice(b"\0\0\x0b\x1b");
        expected[38..40].copy_from_slice(&[0x84, 3]);
        expected[40..44].copy_from_slice(&[0xFF, 0xFF, 0x83, 0]);
        expected[44..49].copy_from_slice(&[0x21, 0x23, 0x45, 6, 1]);
        assert_eq!(mad[56..108], expected);
    }

    /// `acmp_init_join`: all components needed to create the group.
    #[test]
    fn ibacm_joins_a_group_that_it_makes() {
        let mad = written(Ask::Join(Group::Acm, None));
        assert_eq!(head(&mad).2, 0x1_B3F7);
        let record = McMemberRecord::new(&mad[56..]).unwrap();
        assert_eq!(record.mgid().0, *b"\xff\x15\x40\x01\xff\xff\0\x03\x04\0\0\0\0\0\0\0");
        assert_eq!((record.qkey(), record.scope()), (0x8001_0000, 5));
    }

    #[test]
    fn a_leave_names_group_port_and_state_only() {
        let mad = written(Ask::Leave(Group::AllHosts));
        let member = attribute::MC_MEMBER_RECORD;
        assert_eq!(head(&mad), (Method::DELETE, member, 0x1_0003));
        let record = McMemberRecord::new(&mad[56..]).unwrap();
        assert_eq!(record.mgid().0, *b"\xff\x12\x40\x1b\xff\xff\0\0\0\0\0\0\0\0\0\x01");
        assert_eq!(record.join_state(), JoinState::FULL_MEMBER);
    }

    /// `register_to_trap` in srp_handle_traps.c.
    #[test]
    fn subscriptions_are_those_of_srp_daemon() {
        let mad = written(Ask::Subscribe(TRAP_GID_IN_SERVICE));
        assert_eq!(head(&mad), (Method::SET, AttributeId::INFORM_INFO, 0x10F2));
        let mut expected = [0; 36];
        expected[16..18].copy_from_slice(&[0xFF; 2]);
        expected[22..28].copy_from_slice(&[1, 1, 0, 3, 0, 64]);
        expected[35] = 4;
        assert_eq!(mad[56..92], expected);
        let mad = written(Ask::Unsubscribe(TRAP_LOCAL_CHANGES));
        assert_eq!(head(&mad).2, 0x11F2);
        expected[23..28].copy_from_slice(&[0, 0, 4, 0, 144]);
        (expected[30], expected[35]) = (1, 1);
        assert_eq!(mad[56..92], expected);
    }

    #[test]
    fn a_service_is_leased_without_end_and_withdrawn_by_its_key() {
        let mad = written(Ask::SetService(3));
        assert_eq!(head(&mad), (Method::SET, attribute::SERVICE_RECORD, 0x57));
        let data = mad[56..].first_chunk().unwrap();
        let record = ServiceRecord::of(data);
        assert_eq!(record.service_lease(), LEASE_INDEFINITE);
        assert!(record.service_name().starts_with(b"ibstorm service 3\0"));
        assert!(is_service_answer(3, &workload(By::Gid, Draw::Any(1)).ports().ends()[1], data));
        assert!(!is_service_answer(3, &workload(By::Gid, Draw::Any(1)).ports().ends()[0], data));
        assert_eq!(head(&written(Ask::DeleteService(3))).2, 7);
    }
}
