//! Attributes of SMPs (IBA 14.2.5), and attributes common to all classes (IBA 13.4.8).
//!
//! SA records, which embed many of these, are in [`record`](super::record).

mod capability;
mod class_port_info;
mod device;
mod forwarding;
mod inform_info;
mod link;
mod link_end;
mod node;
mod notice;
mod port_info;
mod sm_info;
mod switch_info;
mod table;
mod virtual_port;

pub use capability::{CapabilityMask, CapabilityMask2};
pub use class_port_info::{ClassPortInfo, ClassPortInfoRepr};
pub use device::{
    LedInfo, LedInfoRepr, MlnxExtPortInfo, MlnxExtPortInfoRepr, RouterInfo, RouterInfoRepr,
    VendorDiag, VendorDiagRepr,
};
pub use forwarding::{
    LFT_BLOCK_LEN, LinearForwardingTable, LinearForwardingTableRepr, MFT_BLOCK_LEN,
    MFT_POSITION_PORTS, MulticastForwardingTable, MulticastForwardingTableRepr, PORT_NONE,
    RFT_BLOCK_LEN, RandomForwardingEntry, RandomForwardingTable, RandomForwardingTableRepr,
    multicast_forwarding_block, multicast_forwarding_modifier,
};
pub use inform_info::{InformInfo, InformInfoRepr};
pub use link::{ActiveLink, LinkSpeeds, LinkSpeedsExt, LinkSpeedsExt2, LinkWidths, MlnxLinkSpeeds};
pub use link_end::LinkEnd;
pub use node::{NodeDescription, NodeDescriptionRepr, NodeInfo, NodeInfoRepr, NodeType};
pub use notice::{
    BadKeyDetails, BadKeyDetailsRepr, BadMKeyDetails, BadMKeyDetailsRepr, BadPKeySwitchPortDetails,
    BadPKeySwitchPortDetailsRepr, GidDetails, GidDetailsRepr, LinkStateDetails,
    LinkStateDetailsRepr, LocalChanges, LocalChangesDetails, LocalChangesDetailsRepr, Notice,
    NoticeRepr, NoticeType, PortErrorDetails, PortErrorDetailsRepr, ProducerType, SmNotice,
    SmNoticeRepr, SystemImageGuidDetails, SystemImageGuidDetailsRepr, TrapNumber, details_layout,
};
pub use port_info::{PortInfo, PortInfoRepr, PortPhysState, PortState, data_vls};
pub use sm_info::{SmControl, SmInfo, SmInfoRepr, SmState};
pub use switch_info::{SwitchInfo, SwitchInfoRepr};
pub use table::{
    GUIDS_PER_BLOCK, GuidInfo, GuidInfoRepr, PKEYS_PER_BLOCK, PKeyTable, PKeyTableRepr,
    SlToVlMappingTable, SlToVlMappingTableRepr, VL_ARB_PER_BLOCK, VlArbBlock, VlArbEntry,
    VlArbitrationTable, VlArbitrationTableRepr, pkey_table_modifier, sl_to_vl_modifier,
    vl_arbitration_modifier,
};
pub use virtual_port::{
    VNodeDescription, VNodeDescriptionRepr, VNodeInfo, VNodeInfoRepr, VPKeyTable, VPKeyTableRepr,
    VPORT_STATES_PER_BLOCK, VPortCapabilityMask, VPortGuidInfo, VPortGuidInfoRepr, VPortInfo,
    VPortInfoRepr, VPortState, VPortStateRepr, VirtualizationInfo, VirtualizationInfoRepr,
    virtual_port_modifier,
};

use super::field::Layout;
use super::mad::AttributeId;

/// The layout of an attribute of SMPs; `None` if it is unknown.
pub fn layout_of(attribute: AttributeId) -> Option<Layout> {
    Some(match attribute {
        AttributeId::CLASS_PORT_INFO => ClassPortInfo::LAYOUT,
        AttributeId::NOTICE => SmNotice::LAYOUT,
        AttributeId::INFORM_INFO => InformInfo::LAYOUT,
        AttributeId::NODE_DESCRIPTION => NodeDescription::LAYOUT,
        AttributeId::NODE_INFO => NodeInfo::LAYOUT,
        AttributeId::SWITCH_INFO => SwitchInfo::LAYOUT,
        AttributeId::GUID_INFO => GuidInfo::LAYOUT,
        AttributeId::PORT_INFO => PortInfo::LAYOUT,
        AttributeId::PKEY_TABLE => PKeyTable::LAYOUT,
        AttributeId::SL_TO_VL_MAPPING_TABLE => SlToVlMappingTable::LAYOUT,
        AttributeId::VL_ARBITRATION_TABLE => VlArbitrationTable::LAYOUT,
        AttributeId::LINEAR_FORWARDING_TABLE => LinearForwardingTable::LAYOUT,
        AttributeId::RANDOM_FORWARDING_TABLE => RandomForwardingTable::LAYOUT,
        AttributeId::MULTICAST_FORWARDING_TABLE => MulticastForwardingTable::LAYOUT,
        AttributeId::SM_INFO => SmInfo::LAYOUT,
        AttributeId::VENDOR_DIAG => VendorDiag::LAYOUT,
        AttributeId::LED_INFO => LedInfo::LAYOUT,
        AttributeId::MLNX_EXT_PORT_INFO => MlnxExtPortInfo::LAYOUT,
        AttributeId::VIRTUALIZATION_INFO => VirtualizationInfo::LAYOUT,
        AttributeId::VPORT_INFO => VPortInfo::LAYOUT,
        AttributeId::VNODE_INFO => VNodeInfo::LAYOUT,
        AttributeId::VPORT_STATE => VPortState::LAYOUT,
        AttributeId::VNODE_DESCRIPTION => VNodeDescription::LAYOUT,
        AttributeId::VPORT_GUID_INFO => VPortGuidInfo::LAYOUT,
        AttributeId::VPKEY_TABLE => VPKeyTable::LAYOUT,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stay_within_their_layout_and_do_not_overlap() {
        let details = (0..=u16::MAX).filter_map(|trap| details_layout(TrapNumber(trap)));
        let attributes = (0..=u16::MAX).filter_map(|id| layout_of(AttributeId(id)));
        let mut layouts = 0;
        for layout in attributes.chain(details).chain([Notice::LAYOUT, RouterInfo::LAYOUT]) {
            let mut end = 0;
            for field in layout.fields {
                assert!(field.bit >= end, "{}.{}", layout.name, field.name);
                end = field.bit + field.width;
            }
            assert!(end <= layout.len * 8, "{}", layout.name);
            layouts += 1;
        }
        assert_eq!(layouts, 25 + 14 + 2);
    }
}
