//! PortInfo: addresses, capabilities, configuration and state of a port.

use std::fmt;

use super::capability::{CapabilityMask, CapabilityMask2};
use super::link::{ActiveLink, LinkSpeeds, LinkSpeedsExt, LinkSpeedsExt2, LinkWidths};
use crate::types::{Lid, Mtu, PortNum, Rate, Sl};
use crate::wire::field::{code_field, layout};

/// Logical state of a port (IBA 7.2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortState {
    /// In a Set(): no change.
    NoChange = 0,
    /// No link.
    Down = 1,
    /// Initialize: only SMPs pass; the subnet manager configures the port.
    Initialize = 2,
    /// Armed: configured; becomes active with its neighbour.
    Armed = 3,
    /// Active: all packets pass.
    Active = 4,
    /// ActiveDefer: active, in link error recovery; not reported in PortInfo by current devices.
    ActiveDefer = 5,
}

impl PortState {
    /// The state of a code; `None` if reserved.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::NoChange),
            1 => Some(Self::Down),
            2 => Some(Self::Initialize),
            3 => Some(Self::Armed),
            4 => Some(Self::Active),
            5 => Some(Self::ActiveDefer),
            _ => None,
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoChange => "no change",
            Self::Down => "Down",
            Self::Initialize => "Initialize",
            Self::Armed => "Armed",
            Self::Active => "Active",
            Self::ActiveDefer => "ActiveDefer",
        })
    }
}

/// Physical state of a port (IBA 14.2.5.6); also the state that a port enters when its link goes
/// down (`Sleep` or `Polling`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum PortPhysState {
    /// In a Set(): no change.
    NoChange = 0,
    /// Waits for its neighbour without transmitting.
    Sleep = 1,
    /// Polling for a neighbour.
    Polling = 2,
    /// Disabled.
    Disabled = 3,
    /// Negotiates width and speed.
    PortConfigurationTraining = 4,
    /// The link is up.
    LinkUp = 5,
    /// Recovers the link by retraining.
    LinkErrorRecovery = 6,
    /// Phy test.
    PhyTest = 7,
}

impl PortPhysState {
    /// The state of a code; `None` if reserved.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::NoChange),
            1 => Some(Self::Sleep),
            2 => Some(Self::Polling),
            3 => Some(Self::Disabled),
            4 => Some(Self::PortConfigurationTraining),
            5 => Some(Self::LinkUp),
            6 => Some(Self::LinkErrorRecovery),
            7 => Some(Self::PhyTest),
            _ => None,
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for PortPhysState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoChange => "no change",
            Self::Sleep => "Sleep",
            Self::Polling => "Polling",
            Self::Disabled => "Disabled",
            Self::PortConfigurationTraining => "PortConfigurationTraining",
            Self::LinkUp => "LinkUp",
            Self::LinkErrorRecovery => "LinkErrorRecovery",
            Self::PhyTest => "PhyTest",
        })
    }
}

code_field!(PortState, PortPhysState);

layout! {
    /// PortInfo, 64 bytes (IBA 14.2.5.6). The modifier's low byte is the port number; 0 selects the
    /// port by which the request arrived on a channel adapter, and port 0 on a switch.
    ///
    /// ```text
    ///  0 M_Key (8)              8 GidPrefix (8)
    /// 16 LID (2)               18 MasterSMLID (2)         20 CapabilityMask (4)
    /// 24 DiagCode (2)          26 M_KeyLeasePeriod (2)    28 LocalPortNum
    /// 29 LinkWidthEnabled      30 LinkWidthSupported      31 LinkWidthActive
    /// 32 LinkSpeedSupported:4 PortState:4     33 PortPhysicalState:4 LinkDownDefaultState:4
    /// 34 M_KeyProtectBits:2 rsvd:3 LMC:3      35 LinkSpeedActive:4 LinkSpeedEnabled:4
    /// 36 NeighborMTU:4 MasterSMSL:4           37 VLCap:4 InitType:4
    /// 38 VLHighLimit           39 VLArbitrationHighCap    40 VLArbitrationLowCap
    /// 41 InitTypeReply:4 MTUCap:4             42 VLStallCount:3 HOQLife:5
    /// 43 OperationalVLs:4 PartitionEnforcementInbound:1 …Outbound:1 FilterRawInbound:1 …Outbound:1
    /// 44 M_KeyViolations (2)   46 P_KeyViolations (2)     48 Q_KeyViolations (2)   50 GUIDCap
    /// 51 ClientReregister:1 MulticastPKeyTrapSuppressionEnabled:2 SubnetTimeOut:5
    /// 52 rsvd:3 RespTimeValue:5               53 LocalPhyErrors:4 OverrunErrors:4
    /// 54 MaxCreditHint (2)
    /// 56 rsvd:1 LinkSpeedExtActive2:2 LinkSpeedExtSupported2:2 LinkSpeedExtEnabled2:3
    /// 57 LinkRoundTripLatency (3)
    /// 60 CapabilityMask2 (2)   62 LinkSpeedExtActive:4 LinkSpeedExtSupported:4
    /// 63 rsvd:3 LinkSpeedExtEnabled:5
    /// ```
    pub struct PortInfo(PortInfoRepr): "PortInfo", 64 bytes {
        /// M_Key; reads as 0 unless the requester knows it.
        m_key: u64 [0 .. 64],
        /// Subnet prefix of the port's GIDs.
        gid_prefix: u64 [64 .. 128],
        /// Base LID; 0 until one is assigned.
        base_lid: Lid [128 .. 144],
        /// MasterSMLID: where SA requests and traps are sent.
        master_sm_lid: Lid [144 .. 160],
        /// CapabilityMask of the port.
        capability_mask: CapabilityMask [160 .. 192],
        /// DiagCode; 0 if no fault was found.
        diag_code: u16 [192 .. 208],
        /// Seconds until the M_Key is released when its owner no longer answers; 0 for never.
        m_key_lease_period: u16 [208 .. 224],
        /// The port by which the request arrived.
        local_port_num: PortNum [224 .. 232],
        /// Enabled widths.
        link_width_enabled: LinkWidths [232 .. 240],
        /// Supported widths.
        link_width_supported: LinkWidths [240 .. 248],
        /// The active width.
        link_width_active: LinkWidths [248 .. 256],
        /// Supported speeds.
        link_speed_supported: LinkSpeeds [256 .. 260],
        /// Logical state.
        port_state: PortState [260 .. 264],
        /// Physical state.
        port_physical_state: PortPhysState [264 .. 268],
        /// Physical state to enter when the link goes down.
        link_down_default_state: PortPhysState [268 .. 272],
        /// Extent of M_Key protection.
        m_key_protect_bits: u8 [272 .. 274],
        /// LMC: the port has 2^LMC LIDs.
        lmc: u8 [277 .. 280],
        /// The active speed; none while an extended speed is active.
        link_speed_active: LinkSpeeds [280 .. 284],
        /// Enabled speeds.
        link_speed_enabled: LinkSpeeds [284 .. 288],
        /// MTU of the link, as set by the subnet manager.
        neighbor_mtu: Mtu [288 .. 292],
        /// MasterSMSL: service level of packets to the subnet manager.
        master_sm_sl: Sl [292 .. 296],
        /// Supported data VLs, as a code: see [`data_vls`].
        vl_cap: u8 [296 .. 300],
        /// How much of the port's state the subnet manager should preserve.
        init_type: u8 [300 .. 304],
        /// Limit of high-priority data before low priority is served, in units of 4 kB.
        vl_high_limit: u8 [304 .. 312],
        /// Size of the high-priority VLArbitrationTable.
        vl_arbitration_high_cap: u8 [312 .. 320],
        /// Size of the low-priority VLArbitrationTable.
        vl_arbitration_low_cap: u8 [320 .. 328],
        /// The state that the subnet manager preserved.
        init_type_reply: u8 [328 .. 332],
        /// Maximum supported MTU.
        mtu_cap: Mtu [332 .. 336],
        /// Packets dropped consecutively until a VL is considered stalled.
        vl_stall_count: u8 [336 .. 339],
        /// Head-of-queue lifetime limit, 4.096 µs × 2^n; above 19 unlimited.
        hoq_life: u8 [339 .. 344],
        /// Data VLs in use, as a code: see [`data_vls`]. 0 in a Set() leaves them unchanged.
        operational_vls: u8 [344 .. 348],
        /// Whether P_Keys of inbound packets are checked; switches only.
        partition_enforcement_inbound: bool [348 .. 349],
        /// Whether P_Keys of outbound packets are checked; switches only.
        partition_enforcement_outbound: bool [349 .. 350],
        /// Whether inbound raw packets are dropped; switches only.
        filter_raw_inbound: bool [350 .. 351],
        /// Whether outbound raw packets are dropped; switches only.
        filter_raw_outbound: bool [351 .. 352],
        /// Number of SMPs with a wrong M_Key.
        m_key_violations: u16 [352 .. 368],
        /// Number of packets with a wrong P_Key.
        p_key_violations: u16 [368 .. 384],
        /// Number of packets with a wrong Q_Key.
        q_key_violations: u16 [384 .. 400],
        /// Size of the GUID table (GUIDInfo).
        guid_cap: u8 [400 .. 408],
        /// Requests clients behind the port to reregister.
        client_reregister: bool [408 .. 409],
        /// Suppression of P_Key traps for multicast packets.
        multicast_pkey_trap_suppression_enabled: u8 [409 .. 411],
        /// Minimum time between two traps, and maximum packet time across the subnet, 4.096 µs ×
        /// 2^n.
        subnet_time_out: u8 [411 .. 416],
        /// Maximum response time to an SMP, 4.096 µs × 2^n.
        resp_time_value: u8 [419 .. 424],
        /// Threshold of local physical errors.
        local_phy_errors: u8 [424 .. 428],
        /// Threshold of buffer overruns.
        overrun_errors: u8 [428 .. 432],
        /// Recommended number of credits.
        max_credit_hint: u16 [432 .. 448],
        /// The active speed beyond NDR.
        link_speed_ext_active2: LinkSpeedsExt2 [449 .. 451],
        /// Supported speeds beyond NDR.
        link_speed_ext_supported2: LinkSpeedsExt2 [451 .. 453],
        /// Enabled speeds beyond NDR.
        link_speed_ext_enabled2: LinkSpeedsExt2 [453 .. 456],
        /// Round-trip time of the link, in units of 4 ns.
        link_round_trip_latency: u32 [456 .. 480],
        /// Further capabilities.
        capability_mask2: CapabilityMask2 [480 .. 496],
        /// The active extended speed.
        link_speed_ext_active: LinkSpeedsExt [496 .. 500],
        /// Supported extended speeds.
        link_speed_ext_supported: LinkSpeedsExt [500 .. 504],
        /// Enabled extended speeds.
        link_speed_ext_enabled: LinkSpeedsExt [507 .. 512],
    }
}

/// Number of data VLs for a code of VLCap or OperationalVLs; `None` if reserved.
pub const fn data_vls(code: u8) -> Option<u8> {
    match code {
        1 => Some(1),
        2 => Some(2),
        3 => Some(4),
        4 => Some(8),
        5 => Some(15),
        _ => None,
    }
}

impl<T: AsRef<[u8]>> PortInfo<T> {
    /// Active width and speed. `capability_mask` is the port's own, or port 0's for external ports
    /// of a switch: their own mask is reserved.
    pub fn active_link(&self, capability_mask: CapabilityMask) -> ActiveLink {
        let extended = capability_mask.contains(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED);
        ActiveLink {
            width: self.link_width_active(),
            speed: self.link_speed_active(),
            speed_ext: if extended { self.link_speed_ext_active() } else { LinkSpeedsExt::NONE },
            speed_ext2: if extended { self.link_speed_ext_active2() } else { LinkSpeedsExt2::NONE },
            ..ActiveLink::default()
        }
    }

    /// Rate of the link; see [`active_link`](Self::active_link) for `capability_mask`.
    pub fn active_rate(&self, capability_mask: CapabilityMask) -> Option<Rate> {
        self.active_link(capability_mask).rate()
    }
}
