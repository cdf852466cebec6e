//! Counters that divide others by cause, and those of forward error correction (FEC).

use crate::types::PortNum;
use crate::wire::field::layout;

layout! {
    /// PortRcvErrorDetails, 16 bytes (IBA 16.1.4.2): the causes of PortRcvErrors. Counters
    /// saturate.
    ///
    /// ```text
    ///  1 PortSelect                 2 CounterSelect (2)
    ///  4 PortLocalPhysicalErrors (2)   6 PortMalformedPacketErrors (2)
    ///  8 PortBufferOverrunErrors (2)  10 PortDLIDMappingErrors (2)
    /// 12 PortVLMappingErrors (2)      14 PortLoopingErrors (2)
    /// ```
    pub struct PortRcvErrorDetails(PortRcvErrorDetailsRepr): "PortRcvErrorDetails", 16 bytes {
        /// The port to read or set.
        port_select: PortNum [8 .. 16],
        /// Counters that a Set() writes.
        counter_select: u16 [16 .. 32],
        /// Packets with CRC or other errors of the physical layer.
        port_local_physical_errors: u16 [32 .. 48],
        /// Packets with errors in length, VL or other header fields.
        port_malformed_packet_errors: u16 [48 .. 64],
        /// Packets for which no buffer was free.
        port_buffer_overrun_errors: u16 [64 .. 80],
        /// Packets with a DLID that the forwarding table does not map to a port.
        port_dlid_mapping_errors: u16 [80 .. 96],
        /// Packets with an SL that maps to no VL.
        port_vl_mapping_errors: u16 [96 .. 112],
        /// Packets whose output port is the one that they entered by.
        port_looping_errors: u16 [112 .. 128],
    }
}

layout! {
    /// PortXmitDiscardDetails, 12 bytes (IBA 16.1.4.3): the causes of PortXmitDiscards. Counters
    /// saturate.
    ///
    /// ```text
    ///  1 PortSelect                      2 CounterSelect (2)
    ///  4 PortInactiveDiscards (2)        6 PortNeighborMTUDiscards (2)
    ///  8 PortSwLifetimeLimitDiscards (2) 10 PortSwHOQLifetimeLimitDiscards (2)
    /// ```
    pub struct PortXmitDiscardDetails(PortXmitDiscardDetailsRepr):
        "PortXmitDiscardDetails", 12 bytes
    {
        /// The port to read or set.
        port_select: PortNum [8 .. 16],
        /// Counters that a Set() writes.
        counter_select: u16 [16 .. 32],
        /// Packets for a port that is not active.
        port_inactive_discards: u16 [32 .. 48],
        /// Packets longer than the neighbour's MTU.
        port_neighbor_mtu_discards: u16 [48 .. 64],
        /// Packets that stayed in the switch beyond their lifetime.
        port_sw_lifetime_limit_discards: u16 [64 .. 80],
        /// Packets that stayed at the head of a queue beyond HOQLife.
        port_sw_hoq_lifetime_limit_discards: u16 [80 .. 96],
    }
}

layout! {
    /// PortExtendedSpeedsCounters, 152 bytes (IBA 16.1.4.12): errors of 64b/66b encoding and of
    /// forward error correction, by lane and of the port. Counters saturate.
    ///
    /// Fire code FEC counts blocks by lane. RS-FEC counts corrected symbols by lane, in the place
    /// of corrected blocks, and blocks of the port.
    ///
    /// ```text
    ///   1 PortSelect                      8 CounterSelect (8)
    ///  16 SyncHeaderErrorCounter (2)     18 UnknownBlockCounter (2)
    ///  20 ErrorDetectionCounterLane (12 x 2)
    ///  44 FECCorrectableBlockCtrLane or FECCorrectableSymbolCtrLane (12 x 4)
    ///  92 FECUncorrectableBlockCtrLane (12 x 4)
    /// 140 PortFECCorrectableBlockCtr (4) 144 PortFECUncorrectableBlockCtr (4)
    /// 148 PortFECCorrectedSymbolCtr (4)
    /// ```
    pub struct PortExtendedSpeedsCounters(PortExtendedSpeedsCountersRepr):
        "PortExtendedSpeedsCounters", 152 bytes
    {
        /// The port to read or set.
        port_select: PortNum [8 .. 16],
        /// Counters that a Set() writes.
        counter_select: u64 [64 .. 128],
        /// Blocks with an invalid header.
        sync_header_error_counter: u16 [128 .. 144],
        /// Blocks with an unknown type.
        unknown_block_counter: u16 [144 .. 160],
        /// Errors by lane, 16 bits each.
        error_detection_by_lane: [u8; 24] [160 .. 352],
        /// Corrected blocks or symbols by lane, 32 bits each.
        fec_correctable_by_lane: [u8; 48] [352 .. 736],
        /// Blocks beyond correction by lane, 32 bits each.
        fec_uncorrectable_by_lane: [u8; 48] [736 .. 1120],
        /// RS-FEC: corrected blocks.
        port_fec_correctable_block_counter: u32 [1120 .. 1152],
        /// RS-FEC: blocks beyond correction.
        port_fec_uncorrectable_block_counter: u32 [1152 .. 1184],
        /// RS-FEC: corrected symbols.
        port_fec_corrected_symbol_counter: u32 [1184 .. 1216],
    }
}
