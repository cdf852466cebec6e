//! P_KeyTableRecord: 32 entries of a port's P_Key table.

use super::components;
use crate::types::{Lid, PortNum};
use crate::wire::field::layout;

layout! {
    /// P_KeyTableRecord, 72 bytes (IBA 15.2.5.11).
    ///
    /// ```text
    ///  0 LID (2)   2 BlockNum (2)   4 PortNum (1)   5 reserved (3)   8 P_KeyTable (64)
    /// ```
    pub struct PKeyTableRecord(PKeyTableRecordRepr): "P_KeyTableRecord", 72 bytes {
        /// LID of the port; of port 0 for a switch.
        lid: Lid [0 .. 16],
        /// Block: P_Keys 32 × n to 32 × n + 31.
        block_num: u16 [16 .. 32],
        /// Port of a switch; reserved for CAs and routers.
        port_num: PortNum [32 .. 40],
        /// P_KeyTable (IBA 14.2.5.7): 32 P_Keys, 0 for unused entries.
        pkey_table: [u8; 64] [64 .. 576],
    }
}

components! {
    LID = 0, "LID";
    BLOCK_NUM = 1, "BlockNum";
    PORT_NUM = 2, "PortNum";
}
