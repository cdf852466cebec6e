//! SMInfoRecord: SMInfo of a port with a subnet manager.

use super::components;
use crate::types::Lid;
use crate::wire::field::layout;

layout! {
    /// SMInfoRecord, 25 bytes (IBA 15.2.5.10).
    ///
    /// ```text
    ///  0 LID (2)   2 reserved (2)   4 SMInfo (21)
    /// ```
    pub struct SmInfoRecord(SmInfoRecordRepr): "SMInfoRecord", 25 bytes {
        /// LID of the port on which the SM runs.
        lid: Lid [0 .. 16],
        /// SMInfo (IBA 14.2.5.13); the SM_Key only for trusted requesters.
        sm_info: [u8; 21] [32 .. 200],
    }
}

components! {
    LID = 0, "LID";
    GUID = 2, "GUID";
    SM_KEY = 3, "SM_Key";
    ACT_COUNT = 4, "ActCount";
    PRIORITY = 5, "Priority";
    SM_STATE = 6, "SMState";
}
