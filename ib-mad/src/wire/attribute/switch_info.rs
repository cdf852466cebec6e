//! SwitchInfo: forwarding capabilities and state of a switch.

use crate::types::{Lid, Lifetime, PortNum};
use crate::wire::field::layout;

layout! {
    /// SwitchInfo, 20 bytes (IBA 14.2.5.4).
    ///
    /// ```text
    ///  0 LinearFDBCap (2)   2 RandomFDBCap (2)   4 MulticastFDBCap (2)   6 LinearFDBTop (2)
    ///  8 DefaultPort        9 DefaultMulticastPrimaryPort  10 DefaultMulticastNotPrimaryPort
    /// 11 LifeTimeValue:5 PortStateChange:1 OptimizedSLtoVLMappingProgramming:2
    /// 12 LIDsPerPort (2)   14 PartitionEnforcementCap (2)
    /// 16 InboundEnforcementCap:1 OutboundEnforcementCap:1 FilterRawInboundCap:1
    ///    FilterRawOutboundCap:1 EnhancedPort0:1 reserved:3
    /// 17 reserved          18 MulticastFDBTop (2)
    /// ```
    pub struct SwitchInfo(SwitchInfoRepr): "SwitchInfo", 20 bytes {
        /// Size of the linear table, in LIDs from 0; 0 if the switch has a random table.
        linear_fdb_cap: u16 [0 .. 16],
        /// Size of the random table.
        random_fdb_cap: u16 [16 .. 32],
        /// Size of the multicast table, in multicast LIDs from 0xC000.
        multicast_fdb_cap: u16 [32 .. 48],
        /// The highest LID that the linear table forwards; packets to higher ones are dropped.
        linear_fdb_top: Lid [48 .. 64],
        /// Output port for LIDs that are not in a random table.
        default_port: PortNum [64 .. 72],
        /// Output port for multicast LIDs that are not in the table, except packets that arrived
        /// there.
        default_multicast_primary_port: PortNum [72 .. 80],
        /// Output port for such packets that arrived by the primary port.
        default_multicast_not_primary_port: PortNum [80 .. 88],
        /// Maximum lifetime of a packet in the switch, 4.096 µs × 2^n; above 19 unlimited.
        life_time_value: Lifetime [88 .. 93],
        /// A port has changed state since this was cleared; writing 1 clears it.
        port_state_change: bool [93 .. 94],
        /// Support for programming SLtoVLMappingTable of many ports at once; 0 for none.
        optimized_sl_to_vl_mapping_programming: u8 [94 .. 96],
        /// LIDs per port with a random table.
        lids_per_port: u16 [96 .. 112],
        /// Entries of the P_KeyTable of each external port.
        partition_enforcement_cap: u16 [112 .. 128],
        /// Whether external ports support checking P_Keys of inbound packets.
        inbound_enforcement_cap: bool [128 .. 129],
        /// Whether external ports support checking P_Keys of outbound packets.
        outbound_enforcement_cap: bool [129 .. 130],
        /// Whether ports support dropping inbound raw packets.
        filter_raw_inbound_cap: bool [130 .. 131],
        /// Whether ports support dropping outbound raw packets.
        filter_raw_outbound_cap: bool [131 .. 132],
        /// Port 0 is a full end port, with a link layer, VLs and data traffic.
        enhanced_port0: bool [132 .. 133],
        /// The highest multicast LID that the table forwards; 0xBFFF for none, 0 if never set.
        /// Valid if port 0 has IsMulticastFDBTopSupported.
        multicast_fdb_top: Lid [144 .. 160],
    }
}
