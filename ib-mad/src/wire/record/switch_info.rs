//! SwitchInfoRecord: SwitchInfo of a switch.

use super::components;
use crate::types::Lid;
use crate::wire::field::layout;

layout! {
    /// SwitchInfoRecord, 24 bytes (IBA 15.2.5.5).
    ///
    /// ```text
    ///  0 LID (2)   2 reserved (2)   4 SwitchInfo (20)
    /// ```
    pub struct SwitchInfoRecord(SwitchInfoRecordRepr): "SwitchInfoRecord", 24 bytes {
        /// LID of the switch's port 0.
        lid: Lid [0 .. 16],
        /// SwitchInfo (IBA 14.2.5.4).
        switch_info: [u8; 20] [32 .. 192],
    }
}

components! {
    LID = 0, "LID";
    LINEAR_FDB_CAP = 2, "LinearFDBCap";
    RANDOM_FDB_CAP = 3, "RandomFDBCap";
    MULTICAST_FDB_CAP = 4, "MulticastFDBCap";
    LINEAR_FDB_TOP = 5, "LinearFDBTop";
    DEFAULT_PORT = 6, "DefaultPort";
    DEFAULT_MULTICAST_PRIMARY_PORT = 7, "DefaultMulticastPrimaryPort";
    DEFAULT_MULTICAST_NOT_PRIMARY_PORT = 8, "DefaultMulticastNotPrimaryPort";
    LIFE_TIME_VALUE = 9, "LifeTimeValue";
    PORT_STATE_CHANGE = 10, "PortStateChange";
    OPTIMIZED_SL_TO_VL_MAPPING_PROGRAMMING = 11, "OptimizedSLtoVLMappingProgramming";
    LIDS_PER_PORT = 12, "LIDsPerPort";
    PARTITION_ENFORCEMENT_CAP = 13, "PartitionEnforcementCap";
    INBOUND_ENFORCEMENT_CAP = 14, "InboundEnforcementCap";
    OUTBOUND_ENFORCEMENT_CAP = 15, "OutboundEnforcementCap";
    FILTER_RAW_INBOUND_CAP = 16, "FilterRawInboundCap";
    FILTER_RAW_OUTBOUND_CAP = 17, "FilterRawOutboundCap";
    ENHANCED_PORT_0 = 18, "EnhancedPort0";
}
