//! TraceRecord: a node on a path, in the response to GetTraceTable().

use super::components;
use crate::types::PortNum;
use crate::wire::field::layout;

layout! {
    /// TraceRecord, 46 bytes (IBA 15.2.5.19).
    ///
    /// ```text
    ///  0 GIDPrefix (8)     8 IDGeneration (2)   10 reserved (1)    11 NodeType (1)
    /// 12 NodeID (8)       20 ChassisID (8)      28 EntryPortID (8)
    /// 36 ExitPortID (8)   44 EntryPort (1)      45 ExitPort (1)
    /// ```
    pub struct TraceRecord(TraceRecordRepr): "TraceRecord", 46 bytes {
        /// Subnet prefix of the node's subnet.
        gid_prefix: u64 [0 .. 64],
        /// Changes when IDs are reassigned; IDs are comparable only within a generation.
        id_generation: u16 [64 .. 80],
        /// NodeType as in NodeInfo.
        node_type: u8 [88 .. 96],
        /// ID of the node; opaque, not a GUID.
        node_id: u64 [96 .. 160],
        /// ID of its chassis; opaque.
        chassis_id: u64 [160 .. 224],
        /// ID of the port by which packets enter; opaque.
        entry_port_id: u64 [224 .. 288],
        /// ID of the port by which packets leave; opaque.
        exit_port_id: u64 [288 .. 352],
        /// Number of the entry port.
        entry_port: PortNum [352 .. 360],
        /// Number of the exit port.
        exit_port: PortNum [360 .. 368],
    }
}

components! {
    GID_PREFIX = 0, "GIDPrefix";
    ID_GENERATION = 1, "IDGeneration";
    NODE_TYPE = 3, "NodeType";
    NODE_ID = 4, "NodeID";
    CHASSIS_ID = 5, "ChassisID";
    ENTRY_PORT_ID = 6, "EntryPortID";
    EXIT_PORT_ID = 7, "ExitPortID";
    ENTRY_PORT = 8, "EntryPort";
    EXIT_PORT = 9, "ExitPort";
}
