//! The traps that nodes send (IBA 14.2.5.1). The fabric decides when they are sent, and how often
//! until they are repressed.

use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{
    BadMKeyDetailsRepr, LinkStateDetailsRepr, LocalChanges, LocalChangesDetailsRepr, NodeType,
    NoticeType, PortErrorDetailsRepr, ProducerType, SmNoticeRepr, SystemImageGuidDetailsRepr,
    TrapNumber,
};
use ib_mad::wire::smp::Smp;

use crate::subnet::{Effect, NodeIndex, PortIndex, Subnet};

/// Trap 128: links of a switch came up or went down.
pub(crate) fn link_state_change(subnet: &mut Subnet, switch: NodeIndex) {
    let port = subnet.default_port(switch);
    let details = LinkStateDetailsRepr { lid: subnet.port_info(port).base_lid() };
    let number = TrapNumber::LINK_STATE_CHANGE;
    notify(subnet, port, NoticeType::URGENT, number, details.to_bytes());
}

/// Traps 129 to 131: an error threshold was reached at `port`.
pub(crate) fn port_error(subnet: &mut Subnet, port: PortIndex, trap: TrapNumber) {
    let sender = subnet.management_port(port);
    let details = PortErrorDetailsRepr {
        lid: subnet.port_info(sender).base_lid(),
        port_num: PortNum(subnet[port].number),
    };
    notify(subnet, sender, NoticeType::URGENT, trap, details.to_bytes());
}

/// Trap 144: the capability mask of `port` changed or, if `changes` has a bit, another attribute.
pub(crate) fn local_changes(subnet: &mut Subnet, port: PortIndex, changes: LocalChanges) {
    let sender = subnet.management_port(port);
    let info = subnet.port_info(sender);
    let details = LocalChangesDetailsRepr {
        lid: info.base_lid(),
        other_local_changes: changes != LocalChanges::NONE,
        capability_mask: info.capability_mask(),
        changes,
        capability_mask2: info.capability_mask2(),
    };
    let number = TrapNumber::LOCAL_CHANGES;
    notify(subnet, sender, NoticeType::INFORMATIONAL, number, details.to_bytes());
}

/// Trap 145: the system image GUID changed.
pub(crate) fn system_image_guid_change(subnet: &mut Subnet, node: NodeIndex, guid: Guid) {
    let port = subnet.default_port(node);
    let details = SystemImageGuidDetailsRepr {
        lid: subnet.port_info(port).base_lid(),
        system_image_guid: guid,
    };
    let number = TrapNumber::SYSTEM_IMAGE_GUID_CHANGE;
    notify(subnet, port, NoticeType::INFORMATIONAL, number, details.to_bytes());
}

/// Trap 256: a request with a wrong M_Key came from `slid`.
pub(super) fn bad_mkey(
    subnet: &mut Subnet,
    keeper: PortIndex,
    slid: Lid,
    request: &Smp<&[u8; MAD_LEN]>,
) {
    let directed = request.is_directed();
    let hops = request.hop_count();
    let mut path = [0; 30];
    if directed {
        let taken = usize::from(hops).min(path.len());
        path[..taken].copy_from_slice(&request.return_path()[1..=taken]);
    }
    let details = BadMKeyDetailsRepr {
        lid: slid,
        dr_slid: if directed { request.dr_slid() } else { Lid::NONE },
        method: request.method(),
        attribute_id: request.attribute_id(),
        attribute_modifier: request.attribute_modifier(),
        m_key: request.m_key(),
        dr_notice: directed,
        dr_path_truncated: directed && usize::from(hops) > path.len(),
        dr_hop_count: if directed { hops & 0x3F } else { 0 },
        dr_notice_return_path: path,
    };
    notify(subnet, keeper, NoticeType::SECURITY, TrapNumber::BAD_MKEY, details.to_bytes());
}

/// Queues a trap, if the port knows its destination.
fn notify(
    subnet: &mut Subnet,
    port: PortIndex,
    notice_type: NoticeType,
    trap_number: TrapNumber,
    data_details: [u8; 54],
) {
    let info = subnet.port_info(port);
    let (lid, manager) = (info.base_lid(), info.master_sm_lid());
    if lid == Lid::NONE || manager == Lid::NONE {
        return;
    }
    let producer_type = match subnet.node_of(port).node_type {
        NodeType::Switch => ProducerType::SWITCH,
        NodeType::Router => ProducerType::ROUTER,
        _ => ProducerType::CA,
    };
    let notice = SmNoticeRepr {
        is_generic: true,
        notice_type,
        producer_type,
        trap_number,
        issuer_lid: lid,
        notice_toggle: false,
        notice_count: 0,
        data_details,
    };
    subnet.effects.push(Effect::Trap(port, notice));
}
