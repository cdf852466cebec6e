//! Attributes of the SA class that this responder does not support. Their requests are refused as
//! the specification requires (IBA 13.4.7, code 3), so that clients do not wait for an answer.
//!
//! Attributes that the class does not define are not listed here and get no answer.

use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::sa::attribute;

use super::Family;

pub(super) const FAMILIES: [Family; 4] = [
    Family::unserved(AttributeId::NOTICE).refused(),
    Family::unserved(attribute::RANDOM_FORWARDING_TABLE_RECORD).refused(),
    Family::unserved(attribute::TRACE_RECORD).refused(),
    Family::unserved(attribute::SERVICE_ASSOCIATION_RECORD).refused(),
];
