//! Attributes of the SA class that this responder does not serve: their requests are refused, as
//! the specification says (13.4.7, code 3), so that no client waits for an answer that will not
//! come.
//!
//! What the class does not define at all is not here and goes unanswered.

use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::sa::attribute;

use super::Family;

pub(super) const FAMILIES: [Family; 4] = [
    Family::unserved(AttributeId::NOTICE).refused(),
    Family::unserved(attribute::RANDOM_FORWARDING_TABLE_RECORD).refused(),
    Family::unserved(attribute::TRACE_RECORD).refused(),
    Family::unserved(attribute::SERVICE_ASSOCIATION_RECORD).refused(),
];
