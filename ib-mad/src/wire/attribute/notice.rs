//! Notices, their traps and the traps' details.
//!
//! A Notice has 64 bytes in SM-class MADs, which have no room for more, and 80 bytes, with the
//! issuer's GID, in all others (IBA 13.4.8.2).

use super::capability::{CapabilityMask, CapabilityMask2, bit_set};
use crate::types::{Gid, Guid, Lid, PKey, PortNum, Qpn, Sl};
use crate::wire::field::{Layout, layout};
use crate::wire::mad::{AttributeId, Method, named_codes, open_code};

named_codes! {
    /// Type of a notice (IBA 13.4.8.2).
    pub struct NoticeType(u8);
    /// Fatal.
    FATAL = 0, "fatal";
    /// Urgent.
    URGENT = 1, "urgent";
    /// Security: a key violation.
    SECURITY = 2, "security";
    /// Subnet management.
    SUBNET_MANAGEMENT = 3, "subnet management";
    /// Informational.
    INFORMATIONAL = 4, "informational";
    /// Empty: no notice is queued.
    EMPTY = 0x7F, "empty";
}

named_codes! {
    /// Producer type of a generic notice (IBA 13.4.8.2).
    pub struct ProducerType(u32);
    /// Channel adapter.
    CA = 1, "CA";
    /// Switch.
    SWITCH = 2, "switch";
    /// Router.
    ROUTER = 3, "router";
    /// Class manager, such as a subnet manager.
    CLASS_MANAGER = 4, "class manager";
    /// In a subscription: all producers.
    ALL = 0x00FF_FFFF, "all";
}

named_codes! {
    /// Number of a generic trap (IBA 14.2.5.1), or device ID of a vendor-specific notice.
    pub struct TrapNumber(u16);
    /// An end port came into service.
    GID_IN_SERVICE = 64, "GID in service";
    /// An end port went out of service.
    GID_OUT_OF_SERVICE = 65, "GID out of service";
    /// A multicast group was created.
    MULTICAST_GROUP_CREATED = 66, "multicast group created";
    /// A multicast group was deleted.
    MULTICAST_GROUP_DELETED = 67, "multicast group deleted";
    /// A path is no longer valid.
    UNPATH = 68, "unpath";
    /// A path is valid again.
    REPATH = 69, "repath";
    /// Ports of a switch changed state.
    LINK_STATE_CHANGE = 128, "link state change";
    /// Local link integrity threshold reached.
    LOCAL_LINK_INTEGRITY = 129, "local link integrity";
    /// Excessive buffer overrun threshold reached.
    EXCESSIVE_BUFFER_OVERRUN = 130, "excessive buffer overrun";
    /// Flow control update watchdog expired.
    FLOW_CONTROL_UPDATE = 131, "flow control update watchdog";
    /// Capability mask or another local attribute changed.
    LOCAL_CHANGES = 144, "local changes";
    /// SystemImageGUID changed.
    SYSTEM_IMAGE_GUID_CHANGE = 145, "system image GUID change";
    /// An SMP had a wrong M_Key.
    BAD_MKEY = 256, "bad M_Key";
    /// A packet had a wrong P_Key.
    BAD_PKEY = 257, "bad P_Key";
    /// A packet had a wrong Q_Key.
    BAD_QKEY = 258, "bad Q_Key";
    /// A switch's external port received a wrong P_Key.
    BAD_PKEY_SWITCH_PORT = 259, "bad P_Key at switch port";
    /// In a subscription: all traps.
    ALL = 0xFFFF, "all";
}

layout! {
    /// Notice, 80 bytes, with its issuer (IBA 13.4.8.2).
    ///
    /// ```text
    ///  0 IsGeneric:1 Type:7    1 ProducerType or VendorID (3)   4 TrapNumber or DeviceID (2)
    ///  6 IssuerLID (2)         8 NoticeToggle:1 NoticeCount:15  10 DataDetails (54)
    /// 64 IssuerGID (16)
    /// ```
    pub struct Notice(NoticeRepr): "Notice", 80 bytes {
        /// Whether the notice is generic, rather than vendor-specific.
        is_generic: bool [0 .. 1],
        /// Type of the notice.
        notice_type: NoticeType [1 .. 8],
        /// Producer type, or vendor ID.
        producer_type: ProducerType [8 .. 32],
        /// Trap number, or device ID of a vendor-specific notice.
        trap_number: TrapNumber [32 .. 48],
        /// LID of the issuer; permissive if it has none.
        issuer_lid: Lid [48 .. 64],
        /// NoticeToggle: alternates with each notice read from the queue.
        notice_toggle: bool [64 .. 65],
        /// Notices in the queue.
        notice_count: u16 [65 .. 80],
        /// DataDetails of the trap, with the layout that [`details_layout`] returns.
        data_details: [u8; 54] [80 .. 512],
        /// GID of the issuer.
        issuer_gid: Gid [512 .. 640],
    }
}

layout! {
    /// Notice of the SM class, 64 bytes: as [`Notice`], without the issuer's GID.
    pub struct SmNotice(SmNoticeRepr): "Notice", 64 bytes {
        /// Whether the notice is generic, rather than vendor-specific.
        is_generic: bool [0 .. 1],
        /// Type of the notice.
        notice_type: NoticeType [1 .. 8],
        /// Producer type, or vendor ID.
        producer_type: ProducerType [8 .. 32],
        /// Trap number, or device ID of a vendor-specific notice.
        trap_number: TrapNumber [32 .. 48],
        /// LID of the issuer; permissive if it has none.
        issuer_lid: Lid [48 .. 64],
        /// NoticeToggle: alternates with each notice read from the queue.
        notice_toggle: bool [64 .. 65],
        /// Notices in the queue.
        notice_count: u16 [65 .. 80],
        /// DataDetails of the trap, with the layout that [`details_layout`] returns.
        data_details: [u8; 54] [80 .. 512],
    }
}

impl SmNoticeRepr {
    /// The notice in the form of the other classes, with the issuer's GID.
    pub fn issued_by(&self, issuer_gid: Gid) -> NoticeRepr {
        NoticeRepr {
            is_generic: self.is_generic,
            notice_type: self.notice_type,
            producer_type: self.producer_type,
            trap_number: self.trap_number,
            issuer_lid: self.issuer_lid,
            notice_toggle: self.notice_toggle,
            notice_count: self.notice_count,
            data_details: self.data_details,
            issuer_gid,
        }
    }
}

/// The layout of a generic trap's DataDetails; `None` if it is unknown.
pub fn details_layout(trap: TrapNumber) -> Option<Layout> {
    Some(match trap {
        TrapNumber::GID_IN_SERVICE
        | TrapNumber::GID_OUT_OF_SERVICE
        | TrapNumber::MULTICAST_GROUP_CREATED
        | TrapNumber::MULTICAST_GROUP_DELETED => GidDetails::LAYOUT,
        TrapNumber::LINK_STATE_CHANGE => LinkStateDetails::LAYOUT,
        TrapNumber::LOCAL_LINK_INTEGRITY
        | TrapNumber::EXCESSIVE_BUFFER_OVERRUN
        | TrapNumber::FLOW_CONTROL_UPDATE => PortErrorDetails::LAYOUT,
        TrapNumber::LOCAL_CHANGES => LocalChangesDetails::LAYOUT,
        TrapNumber::SYSTEM_IMAGE_GUID_CHANGE => SystemImageGuidDetails::LAYOUT,
        TrapNumber::BAD_MKEY => BadMKeyDetails::LAYOUT,
        TrapNumber::BAD_PKEY | TrapNumber::BAD_QKEY => BadKeyDetails::LAYOUT,
        TrapNumber::BAD_PKEY_SWITCH_PORT => BadPKeySwitchPortDetails::LAYOUT,
        _ => return None,
    })
}

layout! {
    /// Details of traps 64 to 67: a port came into or went out of service, or a multicast group was
    /// created or deleted.
    pub struct GidDetails(GidDetailsRepr): "details of traps 64-67", 54 bytes {
        /// GID of the port or group.
        gid: Gid [48 .. 176],
    }
}

layout! {
    /// Details of trap 128: ports of a switch changed state.
    pub struct LinkStateDetails(LinkStateDetailsRepr): "details of trap 128", 54 bytes {
        /// LID of the switch.
        lid: Lid [0 .. 16],
    }
}

layout! {
    /// Details of traps 129 to 131: a port's error threshold was reached.
    pub struct PortErrorDetails(PortErrorDetailsRepr): "details of traps 129-131", 54 bytes {
        /// LID of the node.
        lid: Lid [16 .. 32],
        /// Port number.
        port_num: PortNum [32 .. 40],
    }
}

bit_set! {
    /// Other local changes, in trap 144.
    pub struct LocalChanges(u16);
    /// NodeDescription.
    NODE_DESCRIPTION = 0, "NodeDescription";
    /// LinkWidthEnabled.
    LINK_WIDTH_ENABLED = 1, "LinkWidthEnabled";
    /// LinkSpeedEnabled.
    LINK_SPEED_ENABLED = 2, "LinkSpeedEnabled";
    /// Priority of the subnet manager.
    SM_PRIORITY = 3, "SMPriority";
    /// HierarchyInfo.
    HIERARCHY_INFO = 4, "HierarchyInfo";
    /// CapabilityMask2.
    CAPABILITY_MASK2 = 5, "CapabilityMask2";
}

layout! {
    /// Details of trap 144: the capability mask or another local attribute changed.
    pub struct LocalChangesDetails(LocalChangesDetailsRepr): "details of trap 144", 54 bytes {
        /// LID of the port.
        lid: Lid [16 .. 32],
        /// OtherLocalChanges: an attribute other than the capability mask changed, and `changes` is
        /// valid.
        other_local_changes: bool [47 .. 48],
        /// The new CapabilityMask.
        capability_mask: CapabilityMask [48 .. 80],
        /// The other changes.
        changes: LocalChanges [80 .. 96],
        /// The new CapabilityMask2.
        capability_mask2: CapabilityMask2 [96 .. 112],
    }
}

layout! {
    /// Details of trap 145: the system image GUID changed.
    pub struct SystemImageGuidDetails(SystemImageGuidDetailsRepr): "details of trap 145", 54 bytes {
        /// LID of the port.
        lid: Lid [16 .. 32],
        /// The new system image GUID.
        system_image_guid: Guid [48 .. 112],
    }
}

layout! {
    /// Details of trap 256: an SMP had a wrong M_Key.
    pub struct BadMKeyDetails(BadMKeyDetailsRepr): "details of trap 256", 54 bytes {
        /// Source LID of the SMP.
        lid: Lid [16 .. 32],
        /// DrSLID of a directed-route SMP.
        dr_slid: Lid [32 .. 48],
        /// Method of the SMP.
        method: Method [48 .. 56],
        /// Attribute of the SMP.
        attribute_id: AttributeId [64 .. 80],
        /// AttributeModifier of the SMP.
        attribute_modifier: u32 [80 .. 112],
        /// The wrong M_Key.
        m_key: u64 [112 .. 176],
        /// Whether the SMP was directed-route.
        dr_notice: bool [184 .. 185],
        /// Whether the return path was truncated.
        dr_path_truncated: bool [185 .. 186],
        /// Number of hops of the return path.
        dr_hop_count: u8 [186 .. 192],
        /// The return path, as much as fits.
        dr_notice_return_path: [u8; 30] [192 .. 432],
    }
}

layout! {
    /// Details of traps 257 and 258: a packet had a wrong P_Key or Q_Key.
    pub struct BadKeyDetails(BadKeyDetailsRepr): "details of traps 257-258", 54 bytes {
        /// Source LID of the packet.
        lid1: Lid [16 .. 32],
        /// Destination LID of the packet.
        lid2: Lid [32 .. 48],
        /// The wrong key; a P_Key is in the low 16 bits.
        key: u32 [48 .. 80],
        /// Service level of the packet.
        sl: Sl [80 .. 84],
        /// Source QP of the packet.
        qp1: Qpn [88 .. 112],
        /// Destination QP of the packet.
        qp2: Qpn [120 .. 144],
        /// Source GID of the packet, if it had one.
        gid1: Gid [144 .. 272],
        /// Destination GID of the packet, if it had one.
        gid2: Gid [272 .. 400],
    }
}

layout! {
    /// Details of trap 259: a switch's external port received a wrong P_Key.
    pub struct BadPKeySwitchPortDetails(BadPKeySwitchPortDetailsRepr):
        "details of trap 259", 54 bytes
    {
        /// DataValid: which of the following fields are valid, the first one in the lowest bit.
        data_valid: u16 [0 .. 16],
        /// Source LID of the packet.
        lid1: Lid [16 .. 32],
        /// Destination LID of the packet.
        lid2: Lid [32 .. 48],
        /// The wrong P_Key.
        pkey: PKey [48 .. 64],
        /// Service level of the packet.
        sl: Sl [64 .. 68],
        /// Source QP of the packet.
        qp1: Qpn [72 .. 96],
        /// Destination QP of the packet.
        qp2: Qpn [104 .. 128],
        /// Source GID of the packet, if it had one.
        gid1: Gid [128 .. 256],
        /// Destination GID of the packet, if it had one.
        gid2: Gid [256 .. 384],
        /// LID of the switch.
        switch_lid: Lid [384 .. 400],
        /// Port of the switch.
        port_num: PortNum [400 .. 408],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(fill: impl FnOnce(&mut [u8])) -> Vec<(usize, u8)> {
        let mut bytes = [0; 54];
        fill(&mut bytes);
        bytes.into_iter().enumerate().filter(|&(_, byte)| byte != 0).collect()
    }

    /// Offsets as in OpenSM's `ib_mad_notice_attr_t`.
    /// IBA 14.2.5.1.
    #[test]
    fn details_lie_where_others_read_them() {
        let lid = Lid(0x0102);
        let link = details(|bytes| {
            LinkStateDetails::new(bytes).unwrap().set_lid(lid);
        });
        assert_eq!(link, [(0, 1), (1, 2)]);
        let error = details(|bytes| {
            PortErrorDetails::new(bytes).unwrap().set_lid(lid).set_port_num(PortNum(3));
        });
        assert_eq!(error, [(2, 1), (3, 2), (4, 3)]);
        let local = details(|bytes| {
            LocalChangesDetails::new(bytes)
                .unwrap()
                .set_lid(lid)
                .set_other_local_changes(true)
                .set_capability_mask(CapabilityMask(4))
                .set_changes(LocalChanges::NODE_DESCRIPTION)
                .set_capability_mask2(CapabilityMask2(6));
        });
        assert_eq!(local, [(2, 1), (3, 2), (5, 1), (9, 4), (11, 1), (13, 6)]);
        let image = details(|bytes| {
            SystemImageGuidDetails::new(bytes).unwrap().set_lid(lid).set_system_image_guid(Guid(9));
        });
        assert_eq!(image, [(2, 1), (3, 2), (13, 9)]);
        let mkey = details(|bytes| {
            BadMKeyDetails::new(bytes)
                .unwrap()
                .set_dr_slid(lid)
                .set_method(Method::SET)
                .set_attribute_id(AttributeId::PORT_INFO)
                .set_attribute_modifier(7)
                .set_m_key(8)
                .set_dr_notice(true)
                .set_dr_hop_count(5);
        });
        assert_eq!(mkey, [(4, 1), (5, 2), (6, 2), (9, 0x15), (13, 7), (21, 8), (23, 0x85)]);
        let key = details(|bytes| {
            BadKeyDetails::new(bytes)
                .unwrap()
                .set_lid1(lid)
                .set_key(3)
                .set_sl(Sl::from_low_bits(4))
                .set_qp1(Qpn(5))
                .set_qp2(Qpn(6))
                .set_gid2(Gid([7; 16]));
        });
        assert_eq!(key[..6], [(2, 1), (3, 2), (9, 3), (10, 0x40), (13, 5), (17, 6)]);
        assert_eq!((key[6], key.last()), ((34, 7), Some(&(49, 7))));
        let port = details(|bytes| {
            BadPKeySwitchPortDetails::new(bytes)
                .unwrap()
                .set_pkey(PKey(3))
                .set_qp1(Qpn(5))
                .set_qp2(Qpn(6))
                .set_switch_lid(lid)
                .set_port_num(PortNum(9));
        });
        assert_eq!(port, [(7, 3), (11, 5), (15, 6), (48, 1), (49, 2), (50, 9)]);
    }

    #[test]
    fn a_notice_of_an_smp_gains_its_issuer() {
        let mut bytes = [0; 64];
        bytes[..10].copy_from_slice(&[0x81, 0, 0, 2, 0, 128, 0, 5, 0x80, 1]);
        let sm_notice = SmNoticeRepr::parse(&SmNotice::new(bytes).unwrap()).unwrap();
        let gid = Gid([0xFE; 16]);
        let notice = sm_notice.issued_by(gid);
        assert_eq!(notice.trap_number, TrapNumber::LINK_STATE_CHANGE);
        assert_eq!(notice.notice_type, NoticeType::URGENT);
        assert_eq!(notice.to_bytes()[..64], bytes);
        assert_eq!(notice.to_bytes()[64..], [0xFE; 16]);
    }
}
