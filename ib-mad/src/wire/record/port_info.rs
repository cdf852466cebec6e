//! PortInfoRecord: PortInfo of any port, including external ports of switches.

use super::components;
use crate::types::{Lid, PortNum};
use crate::wire::field::layout;

layout! {
    /// PortInfoRecord, 68 bytes (IBA 15.2.5.3).
    ///
    /// ```text
    ///  0 LID (2)   2 EndportNum (1)   3 Options (1)   4 PortInfo (64)
    /// ```
    pub struct PortInfoRecord(PortInfoRecordRepr): "PortInfoRecord", 68 bytes {
        /// LID of the port; of port 0 for a switch.
        lid: Lid [0 .. 16],
        /// Number of the port; 0 for port 0 of a switch.
        port_num: PortNum [16 .. 24],
        /// Bit 7 requests PortInfoExtended instead of PortInfo.
        options: u8 [24 .. 32],
        /// PortInfo (IBA 14.2.5.6).
        port_info: [u8; 64] [32 .. 544],
    }
}

components! {
    LID = 0, "LID";
    PORT_NUM = 1, "PortNum";
    OPTIONS = 2, "Options";
    M_KEY = 3, "M_Key";
    GID_PREFIX = 4, "GidPrefix";
    BASE_LID = 5, "BaseLID";
    MASTER_SM_LID = 6, "MasterSMLID";
    CAPABILITY_MASK = 7, "CapabilityMask";
    DIAG_CODE = 8, "DiagCode";
    M_KEY_LEASE_PERIOD = 9, "M_KeyLeasePeriod";
    LOCAL_PORT_NUM = 10, "LocalPortNum";
    LINK_WIDTH_ENABLED = 11, "LinkWidthEnabled";
    LINK_WIDTH_SUPPORTED = 12, "LinkWidthSupported";
    LINK_WIDTH_ACTIVE = 13, "LinkWidthActive";
    LINK_SPEED_SUPPORTED = 14, "LinkSpeedSupported";
    PORT_STATE = 15, "PortState";
    PORT_PHYSICAL_STATE = 16, "PortPhysicalState";
    LINK_DOWN_DEFAULT_STATE = 17, "LinkDownDefaultState";
    M_KEY_PROTECT_BITS = 18, "M_KeyProtectBits";
    LMC = 20, "LMC";
    LINK_SPEED_ACTIVE = 21, "LinkSpeedActive";
    LINK_SPEED_ENABLED = 22, "LinkSpeedEnabled";
    NEIGHBOR_MTU = 23, "NeighborMTU";
    MASTER_SM_SL = 24, "MasterSMSL";
    VL_CAP = 25, "VLCap";
    INIT_TYPE = 26, "InitType";
    VL_HIGH_LIMIT = 27, "VLHighLimit";
    VL_ARBITRATION_HIGH_CAP = 28, "VLArbitrationHighCap";
    VL_ARBITRATION_LOW_CAP = 29, "VLArbitrationLowCap";
    INIT_TYPE_REPLY = 30, "InitTypeReply";
    MTU_CAP = 31, "MTUCap";
    VL_STALL_COUNT = 32, "VLStallCount";
    HOQ_LIFE = 33, "HOQLife";
    OPERATIONAL_VLS = 34, "OperationalVLs";
    PARTITION_ENFORCEMENT_INBOUND = 35, "PartitionEnforcementInbound";
    PARTITION_ENFORCEMENT_OUTBOUND = 36, "PartitionEnforcementOutbound";
    FILTER_RAW_INBOUND = 37, "FilterRawInbound";
    FILTER_RAW_OUTBOUND = 38, "FilterRawOutbound";
    M_KEY_VIOLATIONS = 39, "M_KeyViolations";
    P_KEY_VIOLATIONS = 40, "P_KeyViolations";
    Q_KEY_VIOLATIONS = 41, "Q_KeyViolations";
    GUID_CAP = 42, "GUIDCap";
    CLIENT_REREGISTER = 43, "ClientReregister";
    SUBNET_TIMEOUT = 45, "SubnetTimeOut";
    RESP_TIME_VALUE = 47, "RespTimeValue";
    LOCAL_PHY_ERRORS = 48, "LocalPhyErrors";
    OVERRUN_ERRORS = 49, "OverrunErrors";
    MAX_CREDIT_HINT = 50, "MaxCreditHint";
    LINK_ROUND_TRIP_LATENCY = 52, "LinkRoundTripLatency";
    CAPABILITY_MASK_2 = 53, "CapabilityMask2";
    LINK_SPEED_EXT_ACTIVE = 54, "LinkSpeedExtActive";
    LINK_SPEED_EXT_SUPPORTED = 55, "LinkSpeedExtSupported";
    LINK_SPEED_EXT_ENABLED = 57, "LinkSpeedExtEnabled";
}

/// AttributeModifier bit of a request: any set bit of its CapabilityMask suffices for a match,
/// instead of all of them (IsPortInfoCapMaskMatchSupported, IBA 15.2.5.3).
pub const CAPABILITY_MASK_MATCH_ANY: u32 = 1 << 31;
