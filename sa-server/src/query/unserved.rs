//! Attributes of the SA class that this responder does not serve: their requests are refused, so
//! that no client waits for an answer that will not come.
//!
//! What the class does not define at all is not here and goes unanswered, as it does with OpenSM.

use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::sa::attribute;

use super::Family;

pub(super) const FAMILIES: [Family; 13] = [
    Family::unserved(AttributeId::INFORM_INFO).writable(),
    Family::unserved(attribute::SL_TO_VL_MAPPING_TABLE_RECORD),
    Family::unserved(attribute::SWITCH_INFO_RECORD),
    Family::unserved(attribute::LINEAR_FORWARDING_TABLE_RECORD),
    Family::unserved(attribute::MULTICAST_FORWARDING_TABLE_RECORD),
    Family::unserved(attribute::SM_INFO_RECORD),
    Family::unserved(attribute::GUID_INFO_RECORD).writable().of_registry(),
    Family::unserved(attribute::SERVICE_RECORD).writable().of_registry(),
    Family::unserved(attribute::PKEY_TABLE_RECORD),
    Family::unserved(attribute::VL_ARBITRATION_TABLE_RECORD),
    Family::unserved(attribute::MC_MEMBER_RECORD).writable().of_registry(),
    Family::unserved(attribute::MULTI_PATH_RECORD),
    Family::unserved(attribute::INFORM_INFO_RECORD).of_registry(),
];
