//! MADs of the performance management class (IBA 16.1): counters of a port.
//!
//! The attribute starts at byte 64 of the MAD.

mod details;
mod extended;

use std::ops::Range;

pub use details::{
    PortExtendedSpeedsCounters, PortExtendedSpeedsCountersRepr, PortRcvErrorDetails,
    PortRcvErrorDetailsRepr, PortXmitDiscardDetails, PortXmitDiscardDetailsRepr,
};
pub use extended::{PortCountersExtended, PortCountersExtendedRepr};

use super::MAD_LEN;
use super::attribute::ClassPortInfo;
use super::field::{Layout, layout, part, part_mut};
use super::mad::AttributeId;
use crate::types::PortNum;

/// Position of the attribute in a MAD.
pub const DATA: Range<usize> = 64..MAD_LEN;
/// The class version this crate implements.
pub const CLASS_VERSION: u8 = 1;
/// PortCounters, performance management class.
pub const PORT_COUNTERS: AttributeId = AttributeId(0x0012);
/// PortRcvErrorDetails, performance management class.
pub const PORT_RCV_ERROR_DETAILS: AttributeId = AttributeId(0x0015);
/// PortXmitDiscardDetails, performance management class.
pub const PORT_XMIT_DISCARD_DETAILS: AttributeId = AttributeId(0x0016);
/// PortCountersExtended, performance management class.
pub const PORT_COUNTERS_EXTENDED: AttributeId = AttributeId(0x001D);
/// PortExtendedSpeedsCounters, performance management class.
pub const PORT_EXTENDED_SPEEDS_COUNTERS: AttributeId = AttributeId(0x001F);
/// PortSelect for all ports at once, if ClassPortInfo reports support.
pub const ALL_PORTS: PortNum = PortNum(0xFF);

/// ClassPortInfo: PortSelect may be [`ALL_PORTS`].
pub const ALL_PORT_SELECT: u16 = 1 << 8;
/// ClassPortInfo: PortCountersExtended is supported.
pub const IS_EXTENDED_WIDTH_SUPPORTED: u16 = 1 << 9;
/// ClassPortInfo: PortCountersExtended is supported, without counters of unicast and multicast.
pub const IS_EXTENDED_WIDTH_SUPPORTED_NO_IETF: u16 = 1 << 10;
/// ClassPortInfo: PortCounters has PortXmitWait.
pub const IS_PORT_XMIT_WAIT_SUPPORTED: u16 = 1 << 12;
/// ClassPortInfo: PortCounters has QP1Dropped.
pub const IS_QP1_DROPPED_SUPPORTED: u16 = 1 << 15;
/// ClassPortInfo, CapabilityMask2: requests must show the PM_Key.
pub const IS_PM_KEY_SUPPORTED: u32 = 1 << 0;
/// ClassPortInfo, CapabilityMask2: PortCountersExtended has error counters of 64 bits.
pub const IS_ADDITIONAL_PORT_COUNTERS_EXTENDED_SUPPORTED: u32 = 1 << 1;

/// The PM_Key of a MAD of this class, in bytes 24 to 31; 0 if there is none (IBA 16.1.2).
pub fn pm_key(mad: &[u8; MAD_LEN]) -> u64 {
    u64::from_be_bytes(*part::<24, 8, _>(mad))
}

/// Writes the PM_Key of a MAD of this class.
pub fn set_pm_key(mad: &mut [u8; MAD_LEN], key: u64) {
    *part_mut::<24, 8, _>(mad) = key.to_be_bytes();
}

/// The layout of an attribute of this class; `None` if it is unknown.
pub fn layout_of(attribute: AttributeId) -> Option<Layout> {
    Some(match attribute {
        AttributeId::CLASS_PORT_INFO => ClassPortInfo::LAYOUT,
        PORT_COUNTERS => PortCounters::LAYOUT,
        PORT_RCV_ERROR_DETAILS => PortRcvErrorDetails::LAYOUT,
        PORT_XMIT_DISCARD_DETAILS => PortXmitDiscardDetails::LAYOUT,
        PORT_COUNTERS_EXTENDED => PortCountersExtended::LAYOUT,
        PORT_EXTENDED_SPEEDS_COUNTERS => PortExtendedSpeedsCounters::LAYOUT,
        _ => return None,
    })
}

/// The name of an attribute of this class.
pub fn name(attribute: AttributeId) -> Option<&'static str> {
    layout_of(attribute).map(|layout| layout.name)
}

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
        let mut bytes = [0; 184];
        PortCountersExtended::of_mut(&mut bytes).set_port_rcv_pkts(1);
        assert_eq!(bytes[32..40], [0, 0, 0, 0, 0, 0, 0, 1]);
    }

    /// Offsets in bits as in libibmad's table of fields. IBA 16.1.4.2, 16.1.4.3, 16.1.4.11.
    #[test]
    fn fields_stand_where_libibmad_expects_them() {
        let at = |layout: Layout, name: &str| {
            let field = layout.fields.iter().find(|field| field.name == name).expect(name);
            (field.bit, field.width)
        };
        let extended = PortCountersExtended::LAYOUT;
        assert_eq!(at(extended, "symbol_error_counter"), (576, 64));
        assert_eq!(at(extended, "port_xmit_discards"), (960, 64));
        assert_eq!(at(extended, "vl15_dropped"), (1280, 64));
        assert_eq!(at(extended, "port_xmit_wait"), (1344, 64));
        assert_eq!(at(extended, "qp1_dropped"), (1408, 64));
        let errors = PortRcvErrorDetails::LAYOUT;
        assert_eq!(at(errors, "port_local_physical_errors"), (32, 16));
        assert_eq!(at(errors, "port_looping_errors"), (112, 16));
        let discards = PortXmitDiscardDetails::LAYOUT;
        assert_eq!(at(discards, "port_inactive_discards"), (32, 16));
        assert_eq!(at(discards, "port_sw_hoq_lifetime_limit_discards"), (80, 16));
        let speeds = PortExtendedSpeedsCounters::LAYOUT;
        assert_eq!(at(speeds, "counter_select"), (64, 64));
        assert_eq!(at(speeds, "fec_correctable_by_lane"), (352, 384));
        assert_eq!(at(speeds, "fec_uncorrectable_by_lane"), (736, 384));
        assert_eq!(at(speeds, "port_fec_correctable_block_counter"), (1120, 32));
        assert_eq!(at(speeds, "port_fec_uncorrectable_block_counter"), (1152, 32));
        assert_eq!(at(speeds, "port_fec_corrected_symbol_counter"), (1184, 32));
    }

    #[test]
    fn fields_stay_within_their_layout_and_do_not_overlap() {
        let mut layouts = 0;
        for layout in (0..=u16::MAX).filter_map(|id| layout_of(AttributeId(id))) {
            let mut end = 0;
            for field in layout.fields {
                assert!(field.bit >= end, "{}.{}", layout.name, field.name);
                end = field.bit + field.width;
            }
            assert!(end <= layout.len * 8 && layout.len <= DATA.len(), "{}", layout.name);
            layouts += 1;
        }
        assert_eq!(layouts, 6);
    }

    /// IBA 16.1.2.
    #[test]
    fn the_pm_key_stands_between_header_and_attribute() {
        let mut mad = [0; MAD_LEN];
        set_pm_key(&mut mad, 0x0102_0304_0506_0708);
        assert_eq!(mad[24..33], [1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert_eq!(pm_key(&mad), 0x0102_0304_0506_0708);
    }
}
