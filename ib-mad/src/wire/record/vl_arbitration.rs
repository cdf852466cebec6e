//! VLArbitrationTableRecord: half of one of a port's two VL arbitration tables.

use super::components;
use crate::types::{Lid, PortNum};
use crate::wire::field::layout;

layout! {
    /// VLArbitrationTableRecord, 72 bytes (IBA 15.2.5.9).
    ///
    /// ```text
    ///  0 LID (2)   2 OutputPortNum (1)   3 BlockNum (1)   4 reserved (4)
    ///  8 VLArbitrationTable (64)
    /// ```
    pub struct VlArbitrationTableRecord(VlArbitrationTableRecordRepr):
        "VLArbitrationTableRecord", 72 bytes {
        /// LID of the port; of port 0 for a switch.
        lid: Lid [0 .. 16],
        /// Port of a switch; reserved for CAs and routers.
        output_port_num: PortNum [16 .. 24],
        /// 1, 2: lower and upper half of the low-priority table; 3, 4: of the high-priority one.
        block_num: u8 [24 .. 32],
        /// VLArbitrationTable (IBA 14.2.5.9): 32 pairs of VL and weight.
        vl_arbitration_table: [u8; 64] [64 .. 576],
    }
}

components! {
    LID = 0, "LID";
    OUTPUT_PORT_NUM = 1, "OutputPortNum";
    BLOCK_NUM = 2, "BlockNum";
}
