//! LinkRecord: the two ends of a link.

use super::components;
use crate::types::{Lid, PortNum};
use crate::wire::field::layout;

layout! {
    /// LinkRecord, 6 bytes (IBA 15.2.5.13).
    ///
    /// ```text
    ///  0 FromLID (2)   2 FromPort (1)   3 ToPort (1)   4 ToLID (2)
    /// ```
    pub struct LinkRecord(LinkRecordRepr): "LinkRecord", 6 bytes {
        /// LID of one end; of port 0 on a switch.
        from_lid: Lid [0 .. 16],
        /// Port number of that end.
        from_port: PortNum [16 .. 24],
        /// Port number of the other end.
        to_port: PortNum [24 .. 32],
        /// LID of the other end; of port 0 on a switch.
        to_lid: Lid [32 .. 48],
    }
}

components! {
    FROM_LID = 0, "FromLID";
    FROM_PORT = 1, "FromPort";
    TO_PORT = 2, "ToPort";
    TO_LID = 3, "ToLID";
}
