//! NodeRecord: NodeInfo and NodeDescription for an end port.

use super::components;
use crate::types::Lid;
use crate::wire::field::layout;

layout! {
    /// NodeRecord, 108 bytes (IBA 15.2.5.2).
    ///
    /// ```text
    ///  0 LID (2)   2 reserved (2)   4 NodeInfo (40)   44 NodeDescription (64)
    /// ```
    pub struct NodeRecord(NodeRecordRepr): "NodeRecord", 108 bytes {
        /// LID of the end port; in a request any of its LIDs.
        lid: Lid [0 .. 16],
        /// NodeInfo (IBA 14.2.5.3) with the PortGUID and LocalPortNum of this end port.
        node_info: [u8; 40] [32 .. 352],
        /// NodeDescription (IBA 14.2.5.2), zero-padded UTF-8.
        node_description: [u8; 64] [352 .. 864],
    }
}

components! {
    LID = 0, "LID";
    BASE_VERSION = 2, "BaseVersion";
    CLASS_VERSION = 3, "ClassVersion";
    NODE_TYPE = 4, "NodeType";
    NUM_PORTS = 5, "NumPorts";
    SYSTEM_IMAGE_GUID = 6, "SystemImageGUID";
    NODE_GUID = 7, "NodeGUID";
    PORT_GUID = 8, "PortGUID";
    PARTITION_CAP = 9, "PartitionCap";
    DEVICE_ID = 10, "DeviceID";
    REVISION = 11, "Revision";
    LOCAL_PORT_NUM = 12, "LocalPortNum";
    VENDOR_ID = 13, "VendorID";
    NODE_DESCRIPTION = 14, "NodeDescription";
}
