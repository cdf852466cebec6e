//! MADs of the congestion control class (IBA annex A10): how switches mark packets (FECN), and how
//! channel adapters slow down when they are informed of it (BECN).
//!
//! The CC_Key is in bytes 24 to 31. The attribute starts at byte 64 of the MAD, CongestionLog at
//! byte 32. Where OpenSM's headers and libibmad disagree about a layout, it is that of libibmad,
//! which follows later errata.

mod log;
mod setting;

use std::ops::Range;

pub use log::{
    CongestionLogCa, CongestionLogCaRepr, CongestionLogEventCa, CongestionLogEventCaRepr,
    CongestionLogEventSwitch, CongestionLogEventSwitchRepr, CongestionLogSwitch,
    CongestionLogSwitchRepr, LOG_DATA, LOG_EVENTS_CA, LOG_EVENTS_SWITCH, LOG_TYPE_CA,
    LOG_TYPE_SWITCH,
};
pub use setting::{
    CCT_BLOCK_LEN, CaCongestionEntry, CaCongestionEntryRepr, CaCongestionSetting,
    CaCongestionSettingRepr, CongestionControlTable, CongestionControlTableRepr,
    PORT_ELEMENTS_PER_BLOCK, SwitchCongestionSetting, SwitchCongestionSettingRepr,
    SwitchPortCongestionElement, SwitchPortCongestionElementRepr, SwitchPortCongestionSetting,
    SwitchPortCongestionSettingRepr, cct_entry, control_map,
};

use super::MAD_LEN;
use super::attribute::ClassPortInfo;
use super::field::{Layout, layout, part, part_mut};
use super::mad::{AttributeId, MgmtClass};
use crate::types::PortNum;

/// Position of the attribute in a MAD, for all but CongestionLog ([`LOG_DATA`]).
pub const DATA: Range<usize> = 64..MAD_LEN;
/// The class version this crate implements.
pub const CLASS_VERSION: u8 = 2;
/// CongestionInfo, congestion control class.
pub const CONGESTION_INFO: AttributeId = AttributeId(0x0011);
/// CongestionKeyInfo, congestion control class.
pub const CONGESTION_KEY_INFO: AttributeId = AttributeId(0x0012);
/// CongestionLog, congestion control class.
pub const CONGESTION_LOG: AttributeId = AttributeId(0x0013);
/// SwitchCongestionSetting, congestion control class.
pub const SWITCH_CONGESTION_SETTING: AttributeId = AttributeId(0x0014);
/// SwitchPortCongestionSetting, congestion control class. The modifier is the number of a block of
/// [`PORT_ELEMENTS_PER_BLOCK`] ports.
pub const SWITCH_PORT_CONGESTION_SETTING: AttributeId = AttributeId(0x0015);
/// CACongestionSetting, congestion control class.
pub const CA_CONGESTION_SETTING: AttributeId = AttributeId(0x0016);
/// CongestionControlTable, congestion control class. The modifier is the number of a block of
/// [`CCT_BLOCK_LEN`] entries.
pub const CONGESTION_CONTROL_TABLE: AttributeId = AttributeId(0x0017);
/// TimeStamp, congestion control class.
pub const TIME_STAMP: AttributeId = AttributeId(0x0018);

/// CongestionInfo: the switch supports credit starvation.
pub const CREDIT_STARVATION: u16 = 1;

/// The CC_Key of a MAD of this class, in bytes 24 to 31; 0 if there is none (IBA A10.4.1).
pub fn cc_key(mad: &[u8; MAD_LEN]) -> u64 {
    u64::from_be_bytes(*part::<24, 8, _>(mad))
}

/// Writes the CC_Key of a MAD of this class.
pub fn set_cc_key(mad: &mut [u8; MAD_LEN], key: u64) {
    *part_mut::<24, 8, _>(mad) = key.to_be_bytes();
}

/// The layout of an attribute of this class; `None` if it is unknown. CongestionLog has two, by its
/// first byte: here is that of switches.
pub fn layout_of(attribute: AttributeId) -> Option<Layout> {
    Some(match attribute {
        AttributeId::CLASS_PORT_INFO => ClassPortInfo::LAYOUT,
        CONGESTION_INFO => CongestionInfo::LAYOUT,
        CONGESTION_KEY_INFO => CongestionKeyInfo::LAYOUT,
        CONGESTION_LOG => CongestionLogSwitch::LAYOUT,
        SWITCH_CONGESTION_SETTING => SwitchCongestionSetting::LAYOUT,
        SWITCH_PORT_CONGESTION_SETTING => SwitchPortCongestionSetting::LAYOUT,
        CA_CONGESTION_SETTING => CaCongestionSetting::LAYOUT,
        CONGESTION_CONTROL_TABLE => CongestionControlTable::LAYOUT,
        TIME_STAMP => TimeStamp::LAYOUT,
        _ => return None,
    })
}

/// The name of an attribute of this class.
pub fn name(attribute: AttributeId) -> Option<&'static str> {
    match attribute {
        CONGESTION_LOG => Some("CongestionLog"),
        _ => layout_of(attribute).map(|layout| layout.name),
    }
}

/// The attribute of a MAD of this class, with its layout; `None` if the layout is unknown.
pub fn attribute_of(mad: &[u8; MAD_LEN]) -> Option<(Layout, &[u8])> {
    let attribute = super::mad::MadHeader::of(mad).attribute_id();
    let data = if attribute == CONGESTION_LOG { &mad[LOG_DATA] } else { &mad[DATA] };
    match attribute {
        CONGESTION_LOG if data[0] == LOG_TYPE_CA => Some((CongestionLogCa::LAYOUT, data)),
        _ => layout_of(attribute).map(|layout| (layout, data)),
    }
}

/// Whether a 256-bit map of ports has a port: bit 0 of the last byte is port 0 (IBA A10.4.3.5,
/// A10.4.3.6).
pub fn has_port(map: &[u8; 32], port: PortNum) -> bool {
    map[31 - usize::from(port.0 / 8)] & 1 << (port.0 % 8) != 0
}

/// Adds a port to a 256-bit map of ports.
pub fn add_port(map: &mut [u8; 32], port: PortNum) {
    map[31 - usize::from(port.0 / 8)] |= 1 << (port.0 % 8);
}

/// The management class of these MADs.
pub const CLASS: MgmtClass = MgmtClass::CONGESTION;

layout! {
    /// CongestionInfo, 4 bytes (IBA A10.4.3.3): what a node supports.
    ///
    /// ```text
    ///  0 CongestionInfo (2)   2 ControlTableCap   3 reserved
    /// ```
    pub struct CongestionInfo(CongestionInfoRepr): "CongestionInfo", 4 bytes {
        /// Capabilities, such as [`CREDIT_STARVATION`].
        congestion_info: u16 [0 .. 16],
        /// Blocks of 64 entries in the congestion control table of a channel adapter.
        control_table_cap: u8 [16 .. 24],
    }
}

layout! {
    /// CongestionKeyInfo, 16 bytes (IBA A10.4.3.4): the CC_Key and its protection.
    ///
    /// ```text
    ///  0 CC_Key (8)
    ///  8 CC_KeyProtectBit:1 reserved:15   10 CC_KeyLeasePeriod (2)
    /// 12 CC_KeyViolations (2)             14 reserved (2)
    /// ```
    pub struct CongestionKeyInfo(CongestionKeyInfoRepr): "CongestionKeyInfo", 16 bytes {
        /// The key that requests must show; 0 if any is accepted.
        cc_key: u64 [0 .. 64],
        /// Whether requests with another key read the key as 0.
        cc_key_protect: bool [64 .. 65],
        /// Seconds after a violation until the protection ends; 0 for never.
        cc_key_lease_period: u16 [80 .. 96],
        /// Requests with a wrong key, saturating.
        cc_key_violations: u16 [96 .. 112],
    }
}

layout! {
    /// TimeStamp, 4 bytes (IBA A10.4.3.10): the node's clock, in the unit of the log's entries.
    ///
    /// ```text
    ///  0 Timestamp (4)
    /// ```
    pub struct TimeStamp(TimeStampRepr): "TimeStamp", 4 bytes {
        /// The present time, in 1.024 us.
        timestamp: u32 [0 .. 32],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Lid, Sl};

    /// Offsets in bits as in libibmad's table of fields. IBA A10.4.3.3 to A10.4.3.10.
    #[test]
    fn fields_stand_where_libibmad_expects_them() {
        let at = |layout: Layout, name: &str| {
            let field = layout.fields.iter().find(|field| field.name == name).expect(name);
            (field.bit, field.width)
        };
        assert_eq!(at(CongestionInfo::LAYOUT, "control_table_cap"), (16, 8));
        let key = CongestionKeyInfo::LAYOUT;
        assert_eq!(at(key, "cc_key_protect"), (64, 1));
        assert_eq!((at(key, "cc_key_lease_period").0, at(key, "cc_key_violations").0), (80, 96));
        let log = CongestionLogSwitch::LAYOUT;
        assert_eq!((at(log, "log_events_counter"), at(log, "port_map")), ((16, 16), (64, 256)));
        assert_eq!(at(log, "events").0, 40 * 8);
        assert_eq!(at(CongestionLogEventSwitch::LAYOUT, "sl"), (32, 4));
        assert_eq!(at(CongestionLogEventSwitch::LAYOUT, "timestamp"), (64, 32));
        let log = CongestionLogCa::LAYOUT;
        assert_eq!(at(log, "threshold_congestion_event_map"), (32, 16));
        assert_eq!((at(log, "current_time_stamp"), at(log, "events").0), ((64, 32), 12 * 8));
        let event = CongestionLogEventCa::LAYOUT;
        assert_eq!((at(event, "sl"), at(event, "service_type")), ((24, 4), (28, 4)));
        assert_eq!((at(event, "remote_qp"), at(event, "remote_lid")), ((32, 24), (80, 16)));
        let switch = SwitchCongestionSetting::LAYOUT;
        assert_eq!((at(switch, "victim_mask"), at(switch, "credit_mask").0), ((32, 256), 288));
        assert_eq!((at(switch, "threshold"), at(switch, "packet_size")), ((544, 4), (552, 8)));
        assert_eq!((at(switch, "cs_threshold"), at(switch, "marking_rate").0), ((560, 4), 592));
        let element = SwitchPortCongestionElement::LAYOUT;
        assert_eq!((at(element, "valid"), at(element, "control_type")), ((0, 1), (1, 1)));
        assert_eq!((at(element, "threshold"), at(element, "marking_rate")), ((4, 4), (16, 16)));
        let entry = CaCongestionEntry::LAYOUT;
        assert_eq!((at(entry, "ccti_timer"), at(entry, "ccti_increase")), ((0, 16), (16, 8)));
        assert_eq!((at(entry, "trigger_threshold").0, at(entry, "ccti_min").0), (24, 32));
        assert_eq!(at(CongestionControlTable::LAYOUT, "entries").0, 32);
    }

    #[test]
    fn fields_stay_within_their_layout_and_do_not_overlap() {
        let others = [CongestionLogCa::LAYOUT, CongestionLogEventCa::LAYOUT];
        let all = (0..=u16::MAX).filter_map(|id| layout_of(AttributeId(id))).chain(others);
        let mut layouts = 0;
        for layout in all {
            let mut end = 0;
            for field in layout.fields {
                assert!(field.bit >= end, "{}.{}", layout.name, field.name);
                end = field.bit + field.width;
            }
            assert!(end <= layout.len * 8 && layout.len <= LOG_DATA.len(), "{}", layout.name);
            layouts += 1;
        }
        assert_eq!(layouts, 11);
    }

    /// IBA A10.4.1.
    #[test]
    fn the_cc_key_stands_between_header_and_log() {
        let mut mad = [0; MAD_LEN];
        set_cc_key(&mut mad, 0x0102_0304_0506_0708);
        assert_eq!(mad[24..33], [1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert_eq!(cc_key(&mad), 0x0102_0304_0506_0708);
    }

    /// IBA A10.4.3.6: port 1 is the second bit from the right.
    #[test]
    fn a_port_is_a_bit_from_the_right() {
        let mut map = [0; 32];
        add_port(&mut map, PortNum(1));
        add_port(&mut map, PortNum(254));
        assert_eq!((map[31], map[0]), (0x02, 0x40));
        assert!(has_port(&map, PortNum(254)) && !has_port(&map, PortNum(2)));
    }

    #[test]
    fn a_log_lists_its_events() {
        let event = CongestionLogEventSwitchRepr {
            slid: Lid(5),
            dlid: Lid(9),
            sl: Sl::from_low_bits(3),
            timestamp: 77,
        };
        let mut log = CongestionLogSwitchRepr {
            log_type: LOG_TYPE_SWITCH,
            congestion_flags: 1,
            log_events_counter: 2,
            current_time_stamp: 80,
            port_map: [0; 32],
            events: [0; _],
        };
        log.events[..12].copy_from_slice(&event.to_bytes());
        let bytes = log.to_bytes();
        assert_eq!(bytes[40..52], [0, 5, 0, 9, 0x30, 0, 0, 0, 0, 0, 0, 77]);
        let view = CongestionLogSwitch::of(&bytes);
        assert_eq!(CongestionLogSwitchRepr::parse(&view), Ok(log));
        assert_eq!(view.list().collect::<Vec<_>>(), [event]);
    }

    #[test]
    fn a_delay_is_a_shift_and_a_multiplier() {
        assert_eq!(cct_entry(3, 0x1234), 0xD234);
        assert_eq!(cct_entry(4, 0x4001), 1, "what exceeds the fields is cut off");
    }
}
