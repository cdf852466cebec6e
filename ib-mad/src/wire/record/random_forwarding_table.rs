//! RandomForwardingTableRecord: 16 entries of the table of a switch without a linear one.

use super::components;
use crate::types::Lid;
use crate::wire::field::layout;

layout! {
    /// RandomForwardingTableRecord, 72 bytes (IBA 15.2.5.7).
    ///
    /// ```text
    ///  0 LID (2)   2 BlockNum (2)   4 reserved (4)   8 RandomForwardingTable (64)
    /// ```
    pub struct RandomForwardingTableRecord(RandomForwardingTableRecordRepr):
        "RandomForwardingTableRecord", 72 bytes {
        /// LID of the switch's port 0.
        lid: Lid [0 .. 16],
        /// Block: entries 16 × n to 16 × n + 15.
        block_num: u16 [16 .. 32],
        /// RandomForwardingTable (IBA 14.2.5.11): entries of LID, Valid and LMC, port.
        random_forwarding_table: [u8; 64] [64 .. 576],
    }
}

components! {
    LID = 0, "LID";
    BLOCK_NUM = 1, "BlockNum";
}
