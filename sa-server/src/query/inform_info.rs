//! InformInfo, which clients write. Its records are registered rows: see `registered`.

use ib_mad::wire::mad::AttributeId;

use super::Family;

/// Answers carry the AttributeOffset that OpenSM gives them: 36 bytes in whole units of 8.
pub(super) const INFORM_INFO: Family =
    Family { record_len: 32, ..Family::unserved(AttributeId::INFORM_INFO).settable() };
