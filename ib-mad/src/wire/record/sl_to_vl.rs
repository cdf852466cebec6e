//! SLtoVLMappingTableRecord: an SL-to-VL table of a port.

use super::components;
use crate::types::{Lid, PortNum};
use crate::wire::field::layout;

layout! {
    /// SLtoVLMappingTableRecord, 16 bytes (IBA 15.2.5.4).
    ///
    /// ```text
    ///  0 LID (2)   2 InputPortNum (1)   3 OutputPortNum (1)   4 reserved (4)   8 SLtoVL (8)
    /// ```
    pub struct SlToVlMappingTableRecord(SlToVlMappingTableRecordRepr):
        "SLtoVLMappingTableRecord", 16 bytes {
        /// LID of the port; of port 0 for a switch.
        lid: Lid [0 .. 16],
        /// Port by which packets enter a switch; reserved for CAs and routers.
        input_port_num: PortNum [16 .. 24],
        /// Port by which they leave it; reserved for CAs and routers.
        output_port_num: PortNum [24 .. 32],
        /// SLtoVLMappingTable (IBA 14.2.5.8): a VL of 4 bits for each SL.
        sl_to_vl_mapping_table: [u8; 8] [64 .. 128],
    }
}

components! {
    LID = 0, "LID";
    INPUT_PORT_NUM = 1, "InputPortNum";
    OUTPUT_PORT_NUM = 2, "OutputPortNum";
}
