//! QoS tables in `opensm.conf`: VL arbitration and SL-to-VL tables, by kind of port.

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::NodeType;

use super::qos_values::{SlToVl, VL_ARB_ENTRIES, VlArb};
use super::settings::Settings;

/// The tables of one kind of port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortQos {
    /// Limit of the high priority table in PortInfo.
    pub high_limit: u8,
    /// Entries of high priority.
    pub vlarb_high: [(u8, u8); VL_ARB_ENTRIES],
    /// Entries of low priority.
    pub vlarb_low: [(u8, u8); VL_ARB_ENTRIES],
    /// VL by SL.
    pub sl2vl: [u8; 16],
    /// Whether settings have the limit.
    pub has_high_limit: bool,
    /// Whether settings have entries of a priority.
    pub has_entries: bool,
}

/// The tables of all kinds of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosTables {
    /// Ports of channel adapters.
    pub ca: PortQos,
    /// Port 0 of switches.
    pub sw0: PortQos,
    /// External ports of switches.
    pub swe: PortQos,
    /// Ports of routers.
    pub rtr: PortQos,
}

macro_rules! port_qos {
    ($settings:ident, $high_limit:ident, $high:ident, $low:ident, $sl2vl:ident) => {
        PortQos {
            has_high_limit: $settings.$high_limit >= 0 || $settings.qos_high_limit >= 0,
            has_entries: [
                &$settings.$high,
                &$settings.$low,
                &$settings.qos_vlarb_high,
                &$settings.qos_vlarb_low,
            ]
            .into_iter()
            .any(Option::is_some),
            high_limit: u8::try_from($settings.$high_limit)
                .or(u8::try_from($settings.qos_high_limit))
                .unwrap_or(0),
            vlarb_high: $settings
                .$high
                .as_ref()
                .or($settings.qos_vlarb_high.as_ref())
                .map_or_else(default_high, VlArb::entries),
            vlarb_low: $settings
                .$low
                .as_ref()
                .or($settings.qos_vlarb_low.as_ref())
                .map_or_else(default_low, VlArb::entries),
            sl2vl: $settings
                .$sl2vl
                .as_ref()
                .or($settings.qos_sl2vl.as_ref())
                .map_or(DEFAULT_SL2VL, SlToVl::vls),
        }
    };
}

impl QosTables {
    /// The tables of port `num` of a node of this type.
    pub fn of_port(&self, kind: NodeType, num: PortNum) -> &PortQos {
        match (kind, num) {
            (NodeType::Switch, PortNum(0)) => &self.sw0,
            (NodeType::Switch, _) => &self.swe,
            (NodeType::Router, _) => &self.rtr,
            _ => &self.ca,
        }
    }

    /// The tables configured by settings: those of the kind of port, else the common ones, else
    /// OpenSM's.
    pub fn of(s: &Settings) -> Self {
        Self {
            ca: port_qos!(s, qos_ca_high_limit, qos_ca_vlarb_high, qos_ca_vlarb_low, qos_ca_sl2vl),
            sw0: port_qos!(
                s,
                qos_sw0_high_limit,
                qos_sw0_vlarb_high,
                qos_sw0_vlarb_low,
                qos_sw0_sl2vl
            ),
            swe: port_qos!(
                s,
                qos_swe_high_limit,
                qos_swe_vlarb_high,
                qos_swe_vlarb_low,
                qos_swe_sl2vl
            ),
            rtr: port_qos!(
                s,
                qos_rtr_high_limit,
                qos_rtr_vlarb_high,
                qos_rtr_vlarb_low,
                qos_rtr_sl2vl
            ),
        }
    }
}

/// VL 0 with weight 4, the others with weight 0.
fn default_high() -> [(u8, u8); VL_ARB_ENTRIES] {
    let mut entries = [(0, 0); VL_ARB_ENTRIES];
    for (vl, entry) in (0..15).zip(&mut entries) {
        *entry = (vl, if vl == 0 { 4 } else { 0 });
    }
    entries
}

/// All VLs but 0 with weight 4.
fn default_low() -> [(u8, u8); VL_ARB_ENTRIES] {
    let mut entries = [(0, 0); VL_ARB_ENTRIES];
    for (vl, entry) in (0..15).zip(&mut entries) {
        *entry = (vl, if vl == 0 { 0 } else { 4 });
    }
    entries
}

const DEFAULT_SL2VL: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 7];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_a_kind_of_port_go_before_the_common_ones() {
        let mut settings = Settings::default();
        assert_eq!(QosTables::of(&settings).ca.sl2vl[15], 7);
        assert!(settings.set("qos_sl2vl", "1,2,3").unwrap());
        assert!(settings.set("qos_ca_sl2vl", "5").unwrap());
        assert!(settings.set("qos_swe_vlarb_high", "0:64,3:255,").unwrap());
        assert!(settings.set("qos_high_limit", "9").unwrap());
        let tables = QosTables::of(&settings);
        assert_eq!((tables.ca.sl2vl[..2].to_vec(), tables.rtr.sl2vl[2]), (vec![5, 0], 3));
        assert_eq!(tables.swe.vlarb_high[..3], [(0, 64), (3, 255), (0, 0)]);
        assert_eq!((tables.ca.vlarb_high[0], tables.ca.vlarb_low[1]), ((0, 4), (1, 4)));
        assert_eq!(tables.sw0.high_limit, 9);
        assert_eq!([tables.ca.has_entries, tables.swe.has_entries], [false, true]);
        let default = QosTables::of(&Settings::default()).ca;
        assert_eq!([tables.rtr.has_high_limit, default.has_high_limit], [true, false]);
    }

    #[test]
    fn invalid_tables_are_rejected() {
        let mut settings = Settings::default();
        for (key, text) in [
            ("qos_sl2vl", "16"),
            ("qos_sl2vl", "0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7,0"),
            ("qos_vlarb_low", "15:1"),
            ("qos_vlarb_low", "1"),
            ("qos_vlarb_low", "1:256"),
        ] {
            assert!(settings.set(key, text).is_err(), "{key} {text}");
        }
    }
}
