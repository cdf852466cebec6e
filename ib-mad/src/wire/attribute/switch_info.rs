//! What a switch's forwarding can hold: SwitchInfo.

use crate::types::{Lid, Lifetime, PortNum};
use crate::wire::field::layout;

layout! {
    /// SwitchInfo, 20 bytes (14.2.5.4).
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
        /// LIDs the linear table can hold, from 0; 0 if the switch has a random table.
        linear_fdb_cap: u16 [0 .. 16],
        /// Entries the random table can hold.
        random_fdb_cap: u16 [16 .. 32],
        /// Multicast LIDs the multicast table can hold, from 0xC000.
        multicast_fdb_cap: u16 [32 .. 48],
        /// The last LID that the linear table forwards; packets to higher ones are dropped.
        linear_fdb_top: Lid [48 .. 64],
        /// Where packets go that a random table does not know.
        default_port: PortNum [64 .. 72],
        /// Where multicast packets go that the table does not know, unless they came from there.
        default_multicast_primary_port: PortNum [72 .. 80],
        /// Where those go that came from the primary port.
        default_multicast_not_primary_port: PortNum [80 .. 88],
        /// How long a packet may live inside the switch, 4.096 µs × 2^n; above 19 for ever.
        life_time_value: Lifetime [88 .. 93],
        /// A port changed state since this was cleared; writing 1 clears it.
        port_state_change: bool [93 .. 94],
        /// How SLtoVLMappingTable may be programmed for many ports at once; 0 if it may not.
        optimized_sl_to_vl_mapping_programming: u8 [94 .. 96],
        /// LIDs that one port may have with a random table.
        lids_per_port: u16 [96 .. 112],
        /// Entries of the P_KeyTable of each external port.
        partition_enforcement_cap: u16 [112 .. 128],
        /// External ports can check P_Keys of packets coming in.
        inbound_enforcement_cap: bool [128 .. 129],
        /// External ports can check P_Keys of packets going out.
        outbound_enforcement_cap: bool [129 .. 130],
        /// Ports can drop raw packets coming in.
        filter_raw_inbound_cap: bool [130 .. 131],
        /// Ports can drop raw packets going out.
        filter_raw_outbound_cap: bool [131 .. 132],
        /// Port 0 is a full end port: it has a link layer, VLs and data traffic.
        enhanced_port0: bool [132 .. 133],
        /// The last multicast LID that the table forwards; 0xBFFF for none, 0 if it never was
        /// set. Meant if the port 0 has IsMulticastFDBTopSupported.
        multicast_fdb_top: Lid [144 .. 160],
    }
}
