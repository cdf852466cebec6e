//! PortCountersExtended: counters of 64 bits.

use crate::types::PortNum;
use crate::wire::field::layout;

layout! {
    /// PortCountersExtended, 184 bytes (IBA 16.1.4.11). A Set() writes the counters whose bit is
    /// set in CounterSelect or CounterSelect2, lowest bit for the first of each. Agents without
    /// [additional counters](super::IS_ADDITIONAL_PORT_COUNTERS_EXTENDED_SUPPORTED) leave those
    /// from byte 72 on at 0.
    ///
    /// ```text
    ///  1 PortSelect   2 CounterSelect (2)   4 CounterSelect2 (4)
    ///  8 PortXmitData (8)         16 PortRcvData (8)         24 PortXmitPkts (8)
    /// 32 PortRcvPkts (8)          40 PortUnicastXmitPkts (8) 48 PortUnicastRcvPkts (8)
    /// 56 PortMulticastXmitPkts (8)                           64 PortMulticastRcvPkts (8)
    /// 72 SymbolErrorCounter (8)  80 LinkErrorRecoveryCounter (8)  88 LinkDownedCounter (8)
    /// 96 PortRcvErrors (8)      104 PortRcvRemotePhysicalErrors (8)
    /// 112 PortRcvSwitchRelayErrors (8)                        120 PortXmitDiscards (8)
    /// 128 PortXmitConstraintErrors (8)                        136 PortRcvConstraintErrors (8)
    /// 144 LocalLinkIntegrityErrors (8)                        152 ExcessiveBufferOverrunErrors (8)
    /// 160 VL15Dropped (8)       168 PortXmitWait (8)          176 QP1Dropped (8)
    /// ```
    pub struct PortCountersExtended(PortCountersExtendedRepr):
        "PortCountersExtended", 184 bytes
    {
        /// The port to read or set.
        port_select: PortNum [8 .. 16],
        /// Counters that a Set() writes.
        counter_select: u16 [16 .. 32],
        /// Further counters that a Set() writes.
        counter_select2: u32 [32 .. 64],
        /// Words of 4 bytes sent.
        port_xmit_data: u64 [64 .. 128],
        /// Words of 4 bytes received.
        port_rcv_data: u64 [128 .. 192],
        /// Packets sent.
        port_xmit_pkts: u64 [192 .. 256],
        /// Packets received.
        port_rcv_pkts: u64 [256 .. 320],
        /// Unicast packets sent.
        port_unicast_xmit_pkts: u64 [320 .. 384],
        /// Unicast packets received.
        port_unicast_rcv_pkts: u64 [384 .. 448],
        /// Multicast packets sent.
        port_multicast_xmit_pkts: u64 [448 .. 512],
        /// Multicast packets received.
        port_multicast_rcv_pkts: u64 [512 .. 576],
        /// SymbolErrorCounter: errors on physical lanes.
        symbol_error_counter: u64 [576 .. 640],
        /// Successful link error recoveries.
        link_error_recovery_counter: u64 [640 .. 704],
        /// Times the link went down.
        link_downed_counter: u64 [704 .. 768],
        /// Packets received with errors.
        port_rcv_errors: u64 [768 .. 832],
        /// Packets received that were marked bad (EBP) by the sender.
        port_rcv_remote_physical_errors: u64 [832 .. 896],
        /// Packets received that the switch could not forward.
        port_rcv_switch_relay_errors: u64 [896 .. 960],
        /// Packets dropped because the port could not send them.
        port_xmit_discards: u64 [960 .. 1024],
        /// Packets not sent because of partition or raw filters.
        port_xmit_constraint_errors: u64 [1024 .. 1088],
        /// Packets dropped on arrival because of partition or raw filters.
        port_rcv_constraint_errors: u64 [1088 .. 1152],
        /// Times that the threshold of local physical errors was exceeded.
        local_link_integrity_errors: u64 [1152 .. 1216],
        /// Times that the threshold of buffer overruns was exceeded.
        excessive_buffer_overrun_errors: u64 [1216 .. 1280],
        /// Packets on VL15 dropped.
        vl15_dropped: u64 [1280 .. 1344],
        /// Ticks during which a packet waited for credits.
        port_xmit_wait: u64 [1344 .. 1408],
        /// Packets to QP1 dropped.
        qp1_dropped: u64 [1408 .. 1472],
    }
}
