//! MADs of the performance management class (IBA 16.1): counters of a port.
//!
//! The attribute starts at byte 64 of the MAD.

use std::ops::Range;

use super::MAD_LEN;
use super::field::layout;
use super::mad::AttributeId;
use crate::types::PortNum;

/// Position of the attribute in a MAD.
pub const DATA: Range<usize> = 64..MAD_LEN;
/// The class version this crate implements.
pub const CLASS_VERSION: u8 = 1;
/// PortCounters, performance management class.
pub const PORT_COUNTERS: AttributeId = AttributeId(0x0012);
/// PortCountersExtended, performance management class.
pub const PORT_COUNTERS_EXTENDED: AttributeId = AttributeId(0x001D);
/// PortSelect for all ports at once, if ClassPortInfo reports support.
pub const ALL_PORTS: PortNum = PortNum(0xFF);

/// ClassPortInfo: PortSelect may be [`ALL_PORTS`].
pub const ALL_PORT_SELECT: u16 = 1 << 8;
/// ClassPortInfo: PortCountersExtended is supported.
pub const IS_EXTENDED_WIDTH_SUPPORTED: u16 = 1 << 9;

layout! {
    /// PortCounters, 44 bytes (IBA 16.1.3.5). Counters saturate. A Set() writes the counters whose
    /// bit is set in CounterSelect, lowest bit for the first.
    ///
    /// ```text
    ///  1 PortSelect                2 CounterSelect (2)
    ///  4 SymbolErrorCounter (2)    6 LinkErrorRecoveryCounter  7 LinkDownedCounter
    ///  8 PortRcvErrors (2)        10 PortRcvRemotePhysicalErrors (2)
    /// 12 PortRcvSwitchRelayErrors (2)                14 PortXmitDiscards (2)
    /// 16 PortXmitConstraintErrors 17 PortRcvConstraintErrors  18 CounterSelect2
    /// 19 LocalLinkIntegrityErrors:4 ExcessiveBufferOverrunErrors:4
    /// 20 QP1Dropped (2)           22 VL15Dropped (2)
    /// 24 PortXmitData (4)  28 PortRcvData (4)  32 PortXmitPkts (4)  36 PortRcvPkts (4)
    /// 40 PortXmitWait (4)
    /// ```
    pub struct PortCounters(PortCountersRepr): "PortCounters", 44 bytes {
        /// The port to read or set.
        port_select: PortNum [8 .. 16],
        /// Counters that a Set() writes.
        counter_select: u16 [16 .. 32],
        /// SymbolErrorCounter: errors on physical lanes.
        symbol_error_counter: u16 [32 .. 48],
        /// Successful link error recoveries.
        link_error_recovery_counter: u8 [48 .. 56],
        /// Times the link went down.
        link_downed_counter: u8 [56 .. 64],
        /// Packets received with errors.
        port_rcv_errors: u16 [64 .. 80],
        /// Packets received that were marked bad (EBP) by the sender.
        port_rcv_remote_physical_errors: u16 [80 .. 96],
        /// Packets received that the switch could not forward.
        port_rcv_switch_relay_errors: u16 [96 .. 112],
        /// Packets dropped because the port could not send them.
        port_xmit_discards: u16 [112 .. 128],
        /// Packets not sent because of partition or raw filters.
        port_xmit_constraint_errors: u8 [128 .. 136],
        /// Packets dropped on arrival because of partition or raw filters.
        port_rcv_constraint_errors: u8 [136 .. 144],
        /// Further counters that a Set() writes.
        counter_select2: u8 [144 .. 152],
        /// Times that the threshold of local physical errors was exceeded.
        local_link_integrity_errors: u8 [152 .. 156],
        /// Times that the threshold of buffer overruns was exceeded.
        excessive_buffer_overrun_errors: u8 [156 .. 160],
        /// Packets to QP1 dropped.
        qp1_dropped: u16 [160 .. 176],
        /// Packets on VL15 dropped.
        vl15_dropped: u16 [176 .. 192],
        /// Words of 4 bytes sent.
        port_xmit_data: u32 [192 .. 224],
        /// Words of 4 bytes received.
        port_rcv_data: u32 [224 .. 256],
        /// Packets sent.
        port_xmit_pkts: u32 [256 .. 288],
        /// Packets received.
        port_rcv_pkts: u32 [288 .. 320],
        /// Ticks during which a packet waited for credits.
        port_xmit_wait: u32 [320 .. 352],
    }
}

layout! {
    /// PortCountersExtended, 72 bytes (IBA 16.1.4.11).
    ///
    /// ```text
    ///  1 PortSelect   2 CounterSelect (2)   4 CounterSelect2 (4)
    ///  8 PortXmitData (8)         16 PortRcvData (8)         24 PortXmitPkts (8)
    /// 32 PortRcvPkts (8)          40 PortUnicastXmitPkts (8) 48 PortUnicastRcvPkts (8)
    /// 56 PortMulticastXmitPkts (8)                           64 PortMulticastRcvPkts (8)
    /// ```
    pub struct PortCountersExtended(PortCountersExtendedRepr):
        "PortCountersExtended", 72 bytes
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets from Linux's `struct ib_pma_portcounters` and `..._ext`. IBA 16.1.3.5, 16.1.4.11.
    #[test]
    fn counters_stand_where_devices_put_them() {
        let mut bytes = [0; 44];
        PortCounters::of_mut(&mut bytes)
            .set_port_xmit_discards(0x0102)
            .set_vl15_dropped(0x0304)
            .set_port_rcv_pkts(0x0506_0708);
        assert_eq!((&bytes[14..16], &bytes[22..24]), (&[1, 2][..], &[3, 4][..]));
        assert_eq!(bytes[36..40], [5, 6, 7, 8]);
        let mut bytes = [0; 72];
        PortCountersExtended::of_mut(&mut bytes).set_port_rcv_pkts(1);
        assert_eq!(bytes[32..40], [0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
