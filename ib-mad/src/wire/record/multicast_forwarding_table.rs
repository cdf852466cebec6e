//! MulticastForwardingTableRecord: entries of a switch for 32 multicast LIDs and 16 ports.

use super::components;
use crate::types::Lid;
use crate::wire::field::layout;

layout! {
    /// MulticastForwardingTableRecord, 72 bytes (IBA 15.2.5.8).
    ///
    /// ```text
    ///  0 LID (2)   2 Position:4 reserved:3 BlockNum:9   4 reserved (4)
    ///  8 MulticastForwardingTable (64)
    /// ```
    pub struct MulticastForwardingTableRecord(MulticastForwardingTableRecordRepr):
        "MulticastForwardingTableRecord", 72 bytes {
        /// LID of the switch's port 0.
        lid: Lid [0 .. 16],
        /// Position: ports 16 × n to 16 × n + 15.
        position: u8 [16 .. 20],
        /// Block: multicast LIDs 32 × n to 32 × n + 31, from 0xC000.
        block_num: u16 [23 .. 32],
        /// MulticastForwardingTable (IBA 14.2.5.12): a mask of 16 ports for each LID.
        multicast_forwarding_table: [u8; 64] [64 .. 576],
    }
}

components! {
    LID = 0, "LID";
    POSITION = 1, "Position";
    BLOCK_NUM = 3, "BlockNum";
}
