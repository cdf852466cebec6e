//! ClassPortInfo of the SA: capabilities and redirection.

use ib_mad::types::{Gid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::attribute::{ClassPortInfo, ClassPortInfoRepr};
use ib_mad::wire::mad::{AttributeId, Status};
use ib_mad::wire::sa::CLASS_VERSION;

use super::{Family, Found, Query, Refusal};

/// Not a record of the SA class: it has no table, and its answer no AttributeOffset.
pub(super) const FAMILY: Family = Family {
    is_record: false,
    get_only: true,
    otherwise: Status::SA_REQ_INVALID,
    ..Family::readable(AttributeId::CLASS_PORT_INFO, ClassPortInfo::LEN, find)
};

/// The well-known Q_Key of QP1.
const GSI_QKEY: u32 = 0x8001_0000;

/// IsSubnGetSetNoticeSup is set although the SA has no Notice attribute, because clients know
/// OpenSM's answer. IsUDMulticastSupported, IsMultiPathSupported and
/// IsPortInfoCapMaskMatchSupported are set as well.
const CAPABILITY_MASK: u16 = 0x2602;

/// Full PortInfoRecords, extended link speeds, alias GUIDs, multicast service records,
/// CapabilityMask2 matching, SendOnlyFullMember, 2x link width and HDR.
const CAPABILITY_MASK2: u32 = 0x0B5E8;

/// In CapabilityMask2: a QoS policy decides over paths.
const IS_QOS_SUPPORTED: u32 = 0x2;

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let subnet = &query.tables.subnet;
    let mut answer = ClassPortInfoRepr {
        base_version: 1,
        class_version: CLASS_VERSION,
        capability_mask: CAPABILITY_MASK,
        capability_mask2: CAPABILITY_MASK2 | if subnet.qos { IS_QOS_SUPPORTED } else { 0 },
        resp_time_value: subnet.response_time.code(),
        redirect_gid: Gid::ZERO,
        redirect_tc: 0,
        redirect_sl: Sl::default(),
        redirect_fl: 0,
        redirect_lid: Lid::NONE,
        redirect_pkey: PKey(0),
        redirect_qp: Qpn::GSI,
        redirect_qkey: GSI_QKEY,
        trap_gid: Gid::ZERO,
        trap_tc: 0,
        trap_sl: Sl::default(),
        trap_fl: 0,
        trap_lid: Lid::NONE,
        trap_pkey: PKey(0),
        trap_hl: 0,
        trap_qp: Qpn(0),
        trap_qkey: GSI_QKEY,
    };
    if let Some(target) = query.redirection.target(query.slid) {
        answer.redirect_lid = target.lid;
        answer.redirect_gid = target.gid;
        answer.redirect_pkey = target.pkey;
        answer.redirect_qp = target.qpn;
        answer.redirect_sl = target.sl;
    }
    let _ = found.push(&answer.to_bytes());
    Ok(())
}
