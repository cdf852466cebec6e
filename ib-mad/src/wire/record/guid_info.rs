//! GUIDInfoRecord: eight entries of a port's GUID table, which include alias GUIDs.

use super::components;
use crate::types::Lid;
use crate::wire::field::layout;

layout! {
    /// GUIDInfoRecord, 72 bytes (IBA 15.2.5.18).
    ///
    /// ```text
    ///  0 LID (2)   2 BlockNum (1)   3 reserved (5)   8 GUIDInfo (64)
    /// ```
    pub struct GuidInfoRecord(GuidInfoRecordRepr): "GUIDInfoRecord", 72 bytes {
        /// LID of the port; of port 0 for a switch.
        lid: Lid [0 .. 16],
        /// Block: GUIDs 8 × n to 8 × n + 7.
        block_num: u8 [16 .. 24],
        /// GUIDInfo (IBA 14.2.5.5): eight GUIDs; the first of block 0 is the port GUID.
        guid_info: [u8; 64] [64 .. 576],
    }
}

components! {
    LID = 0, "LID";
    BLOCK_NUM = 1, "BlockNum";
    GUID_0 = 4, "GUID 0";
    GUID_1 = 5, "GUID 1";
    GUID_2 = 6, "GUID 2";
    GUID_3 = 7, "GUID 3";
    GUID_4 = 8, "GUID 4";
    GUID_5 = 9, "GUID 5";
    GUID_6 = 10, "GUID 6";
    GUID_7 = 11, "GUID 7";
}
