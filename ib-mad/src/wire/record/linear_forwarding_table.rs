//! LinearForwardingTableRecord: 64 entries of a switch's linear forwarding table.

use super::components;
use crate::types::Lid;
use crate::wire::field::layout;

layout! {
    /// LinearForwardingTableRecord, 72 bytes (IBA 15.2.5.6).
    ///
    /// ```text
    ///  0 LID (2)   2 BlockNum (2)   4 reserved (4)   8 LinearForwardingTable (64)
    /// ```
    pub struct LinearForwardingTableRecord(LinearForwardingTableRecordRepr):
        "LinearForwardingTableRecord", 72 bytes {
        /// LID of the switch's port 0.
        lid: Lid [0 .. 16],
        /// Block: entries 64 × n to 64 × n + 63.
        block_num: u16 [16 .. 32],
        /// LinearForwardingTable (IBA 14.2.5.10): an output port for each LID, 255 if none.
        linear_forwarding_table: [u8; 64] [64 .. 576],
    }
}

components! {
    LID = 0, "LID";
    BLOCK_NUM = 1, "BlockNum";
}
