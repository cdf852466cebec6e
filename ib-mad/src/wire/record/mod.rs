//! SA records (IBA 15.2.5, C15-0.1.27): one module each, with the record's layout and its
//! component-mask bits.
//!
//! Attributes embedded in a record (NodeInfo in NodeRecord, …) are byte arrays here; their layouts
//! are in [`attribute`](super::attribute). Use views for requests, whose unmasked fields are
//! undefined, and the checked forms (`…Repr`) for responses. Which records answer a request is
//! decided elsewhere.

pub mod guid_info;
pub mod inform_info;
pub mod linear_forwarding_table;
pub mod link;
pub mod mc_member;
pub mod multi_path;
pub mod multicast_forwarding_table;
pub mod node;
pub mod path;
pub mod pkey_table;
pub mod port_info;
pub mod random_forwarding_table;
mod selector;
pub mod service;
pub mod service_association;
pub mod sl_to_vl;
pub mod sm_info;
pub mod switch_info;
pub mod trace;
pub mod vl_arbitration;

pub use guid_info::{GuidInfoRecord, GuidInfoRecordRepr};
pub use inform_info::{InformInfoRecord, InformInfoRecordRepr};
pub use linear_forwarding_table::{LinearForwardingTableRecord, LinearForwardingTableRecordRepr};
pub use link::{LinkRecord, LinkRecordRepr};
pub use mc_member::{JoinState, McMemberRecord, McMemberRecordRepr};
pub use multi_path::{MultiPathRecord, MultiPathRecordRepr};
pub use multicast_forwarding_table::{
    MulticastForwardingTableRecord, MulticastForwardingTableRecordRepr,
};
pub use node::{NodeRecord, NodeRecordRepr};
pub use path::{PathRecord, PathRecordRepr};
pub use pkey_table::{PKeyTableRecord, PKeyTableRecordRepr};
pub use port_info::{PortInfoRecord, PortInfoRecordRepr};
pub use random_forwarding_table::{RandomForwardingTableRecord, RandomForwardingTableRecordRepr};
pub use selector::Selector;
pub use service::{ServiceRecord, ServiceRecordRepr};
pub use service_association::{ServiceAssociationRecord, ServiceAssociationRecordRepr};
pub use sl_to_vl::{SlToVlMappingTableRecord, SlToVlMappingTableRecordRepr};
pub use sm_info::{SmInfoRecord, SmInfoRecordRepr};
pub use switch_info::{SwitchInfoRecord, SwitchInfoRecordRepr};
pub use trace::{TraceRecord, TraceRecordRepr};
pub use vl_arbitration::{VlArbitrationTableRecord, VlArbitrationTableRecordRepr};

use super::field::Layout;
use super::mad::AttributeId;
use super::sa::{ComponentMask, attribute};

/// Length of a record of `len` bytes in a table: the next multiple of 8.
#[inline]
pub const fn stride(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// AttributeOffset of a table of such records: their distance in units of 8 bytes.
#[inline]
pub const fn attribute_offset(len: usize) -> u16 {
    (stride(len) / 8) as u16
}

/// Name and bit of a component.
pub type Component = (&'static str, ComponentMask);

macro_rules! records {
    ($( $id:ident => $module:ident::$record:ident; )*) => {
        /// The layout of an attribute's record; `None` if the attribute is not a record. A response
        /// to MultiPathRecord contains PathRecords, under either attribute ID.
        pub const fn layout_of(id: AttributeId) -> Option<Layout> {
            match id {
                $( attribute::$id => Some($record::LAYOUT), )*
                _ => None,
            }
        }

        /// The components of an attribute's record; empty if the attribute is not a record.
        pub const fn components_of(id: AttributeId) -> &'static [Component] {
            match id {
                $( attribute::$id => $module::component::ALL, )*
                _ => &[],
            }
        }
    };
}

records! {
    NODE_RECORD => node::NodeRecord;
    PORT_INFO_RECORD => port_info::PortInfoRecord;
    SL_TO_VL_MAPPING_TABLE_RECORD => sl_to_vl::SlToVlMappingTableRecord;
    SWITCH_INFO_RECORD => switch_info::SwitchInfoRecord;
    LINEAR_FORWARDING_TABLE_RECORD => linear_forwarding_table::LinearForwardingTableRecord;
    RANDOM_FORWARDING_TABLE_RECORD => random_forwarding_table::RandomForwardingTableRecord;
    MULTICAST_FORWARDING_TABLE_RECORD =>
        multicast_forwarding_table::MulticastForwardingTableRecord;
    SM_INFO_RECORD => sm_info::SmInfoRecord;
    LINK_RECORD => link::LinkRecord;
    GUID_INFO_RECORD => guid_info::GuidInfoRecord;
    SERVICE_RECORD => service::ServiceRecord;
    PKEY_TABLE_RECORD => pkey_table::PKeyTableRecord;
    PATH_RECORD => path::PathRecord;
    VL_ARBITRATION_TABLE_RECORD => vl_arbitration::VlArbitrationTableRecord;
    MC_MEMBER_RECORD => mc_member::McMemberRecord;
    TRACE_RECORD => trace::TraceRecord;
    MULTI_PATH_RECORD => multi_path::MultiPathRecord;
    SERVICE_ASSOCIATION_RECORD => service_association::ServiceAssociationRecord;
    INFORM_INFO_RECORD => inform_info::InformInfoRecord;
}

/// Declares the component-mask bits of a record as `mod component`; after `=>` follow unions.
macro_rules! components {
    (
        $( $name:ident = $number:literal, $text:literal; )*
        $( => $(#[$doc:meta])* $union:ident = $first:ident $(| $other:ident)+; )*
    ) => {
        /// The bits of this record in a component mask.
        pub mod component {
            use $crate::wire::sa::ComponentMask;

            $(
                #[doc = concat!("Bit ", $number, ": ", $text, ".")]
                pub const $name: ComponentMask = ComponentMask::component($number);
            )*
            $( $(#[$doc])* pub const $union: ComponentMask = $first$(.union($other))+; )*

            /// All components by name, lowest bit first.
            pub const ALL: &[$crate::wire::record::Component] = &[$(($text, $name)),*];
        }
    };
}
use components;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_has_a_layout_and_distinct_ascending_components() {
        let mut records = 0;
        for id in (0..=u16::MAX).map(AttributeId) {
            let Some(layout) = layout_of(id) else {
                assert!(components_of(id).is_empty());
                continue;
            };
            records += 1;
            assert_eq!(attribute::name(id), Some(layout.name));
            let components = components_of(id);
            assert!(!components.is_empty(), "{}", layout.name);
            assert!(components.is_sorted_by(|a, b| a.1 < b.1), "{}", layout.name);
        }
        assert_eq!(records, 19);
    }

    #[test]
    fn fields_stay_within_their_record_and_do_not_overlap() {
        for id in (0..=0xFF).map(AttributeId) {
            let Some(layout) = layout_of(id) else { continue };
            let mut end = 0;
            for field in layout.fields {
                assert!(field.bit >= end, "{}.{}", layout.name, field.name);
                end = field.bit + field.width;
            }
            assert!(end <= layout.len * 8, "{}", layout.name);
        }
    }

    /// All named bits, as numbered by `ib_types.h` (IB_…_COMPMASK_…). IBA 15.2.5, C15-0.1.27.
    #[test]
    fn components_have_the_numbers_of_the_specification() {
        for (id, bits) in [
            (attribute::NODE_RECORD, 0x7FFD),
            (attribute::PORT_INFO_RECORD, 0x02F7_AFFF_FFF7_FFFF),
            (attribute::SL_TO_VL_MAPPING_TABLE_RECORD, 0x7),
            // The header ends at LID; the specification continues in SwitchInfo's order.
            (attribute::SWITCH_INFO_RECORD, 0x7_FFFD),
            (attribute::LINEAR_FORWARDING_TABLE_RECORD, 0x3),
            (attribute::RANDOM_FORWARDING_TABLE_RECORD, 0x3),
            (attribute::MULTICAST_FORWARDING_TABLE_RECORD, 0xB),
            (attribute::SM_INFO_RECORD, 0x7D),
            (attribute::LINK_RECORD, 0xF),
            (attribute::GUID_INFO_RECORD, 0xFF3),
            (attribute::SERVICE_RECORD, 0x1F_FFFF_FFF7),
            (attribute::PKEY_TABLE_RECORD, 0x7),
            // The header ends at PacketLifeTime; Preference follows.
            (attribute::PATH_RECORD, 0x7F_FF7F),
            (attribute::VL_ARBITRATION_TABLE_RECORD, 0x7),
            (attribute::MC_MEMBER_RECORD, 0x3_FFFF),
            (attribute::TRACE_RECORD, 0x3FB),
            (attribute::MULTI_PATH_RECORD, 0x3B_FFFD),
            (attribute::SERVICE_ASSOCIATION_RECORD, 0x3),
            (attribute::INFORM_INFO_RECORD, 0xAFBB),
        ] {
            let all = components_of(id).iter().fold(0, |all, component| all | component.1.0);
            assert_eq!(all, bits, "{:?}", attribute::name(id));
        }
        assert_eq!(path::component::SERVICE_ID.0, 0x3);
        assert_eq!(multi_path::component::SERVICE_ID.0, 0x21_0000);
    }

    /// Lengths as the SA writes them to AttributeOffset. IBA 15.2.1.1.
    #[test]
    fn tables_pad_records_to_eight_bytes() {
        assert_eq!(attribute_offset(NodeRecord::LEN), 14);
        assert_eq!(attribute_offset(PortInfoRecord::LEN), 9);
        assert_eq!(attribute_offset(PathRecord::LEN), 8);
        assert_eq!(attribute_offset(LinkRecord::LEN), 1);
        assert_eq!(attribute_offset(SmInfoRecord::LEN), 4);
        assert_eq!(attribute_offset(McMemberRecord::LEN), 7);
        assert_eq!(attribute_offset(ServiceRecord::LEN), 22);
        assert_eq!(attribute_offset(InformInfoRecord::LEN), 8);
    }
}
