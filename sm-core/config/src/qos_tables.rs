//! QoS tables in `opensm.conf`: VL arbitration and SL-to-VL tables, by kind of port.

use std::fmt::Write;

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::NodeType;

use super::settings::Settings;
use super::value::{Value, parse_number};
use sm_routing::text::leading_number;

/// Number of entries of a VL arbitration table of two blocks.
pub const VL_ARB_ENTRIES: usize = 64;

/// A VL arbitration table, `VL:weight` separated by commas; missing entries have weight 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlArb(Vec<(u8, u8)>);

impl VlArb {
    /// VL and weight of every entry.
    pub fn entries(&self) -> [(u8, u8); VL_ARB_ENTRIES] {
        let mut entries = [(0, 0); VL_ARB_ENTRIES];
        entries[..self.0.len()].copy_from_slice(&self.0);
        entries
    }
}

/// VLs by SL, 16 numbers separated by commas; missing entries are VL 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlToVl(Vec<u8>);

impl SlToVl {
    /// The VL of every SL.
    pub fn vls(&self) -> [u8; 16] {
        let mut vls = [0; 16];
        vls[..self.0.len()].copy_from_slice(&self.0);
        vls
    }
}

impl Value for Option<VlArb> {
    const EXPECTED: &'static str =
        "up to 64 pairs of a VL (0 to 14) and a weight (0 to 255), such as 0:4,1:0,2:0";
    fn parse(text: &str) -> Option<Self> {
        if ["", "(null)"].contains(&text) {
            return Some(None);
        }
        let entry = |text: &str| {
            let (vl, weight) = text.trim().split_once(':')?;
            let vl = u8::try_from(parse_number(vl)?).ok().filter(|vl| *vl < 15)?;
            Some((vl, u8::try_from(parse_number(weight)?).ok()?))
        };
        let entries: Vec<_> =
            text.trim_end_matches(',').split(',').map(entry).collect::<Option<_>>()?;
        (entries.len() <= VL_ARB_ENTRIES).then_some(Some(VlArb(entries)))
    }
    /// Parses numbers with any separators: VLs modulo 15, the low bits of weights.
    fn salvage(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut entries = Vec::new();
        while !rest.is_empty() && entries.len() < VL_ARB_ENTRIES {
            // Both are truncated to their fields, as in C.
            let vl = (next_number(&mut rest) % 15) as u8;
            entries.push((vl, next_number(&mut rest) as u8));
        }
        Some(Some(VlArb(entries)))
    }
    fn reading(text: &str) -> Option<&'static str> {
        text.is_empty().then_some(NO_TABLE)
    }
    fn render(&self) -> String {
        let Some(table) = self else { return "(null)".to_owned() };
        let mut text = String::new();
        for (i, (vl, weight)) in table.0.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}{vl}:{weight}", if i > 0 { "," } else { "" });
        }
        text
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

impl Value for Option<SlToVl> {
    const EXPECTED: &'static str = "up to 16 VLs (0 to 15) by SL, such as 0,1,2,3,4,5,6,7";
    fn parse(text: &str) -> Option<Self> {
        if ["", "(null)"].contains(&text) {
            return Some(None);
        }
        let vl = |text: &str| u8::try_from(parse_number(text.trim())?).ok().filter(|vl| *vl < 16);
        let vls: Vec<u8> = text.trim_end_matches(',').split(',').map(vl).collect::<Option<_>>()?;
        (vls.len() <= 16).then_some(Some(SlToVl(vls)))
    }
    /// Parses numbers with any separators, by their low 4 bits.
    fn salvage(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut vls = Vec::new();
        while !rest.is_empty() && vls.len() < 16 {
            vls.push((next_number(&mut rest) & 15) as u8);
        }
        Some(Some(SlToVl(vls)))
    }
    fn reading(text: &str) -> Option<&'static str> {
        let count = text.trim_end_matches(',').split(',').count();
        match text {
            "" => Some(NO_TABLE),
            "(null)" => None,
            _ => (count < 16).then_some("has fewer than 16 VLs; SLs left out go to VL 0"),
        }
    }
    fn render(&self) -> String {
        let Some(table) = self else { return "(null)".to_owned() };
        table.0.iter().map(u8::to_string).collect::<Vec<_>>().join(",")
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// Used where OpenSM would program a table of zeros, with which no data VL may send.
const NO_TABLE: &str = "is read as (null), the default";

/// Parses the number at the start of `text`, and removes it together with the next character.
fn next_number(text: &mut &str) -> u64 {
    let (number, rest) = leading_number(text);
    let mut rest = rest.chars();
    rest.next();
    *text = rest.as_str();
    number.unwrap_or(u64::MAX)
}

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
    }

    #[test]
    fn invalid_tables_in_a_file_are_read_as_opensm_reads_them() {
        let arb = |text| <Option<VlArb>>::salvage(text).unwrap().unwrap().0;
        assert_eq!(arb("15:1,1:256"), [(0, 1), (1, 0)]);
        assert_eq!(arb("0:4;1:2 3:4"), [(0, 4), (1, 2), (3, 4)]);
        let vls = |text| <Option<SlToVl>>::salvage(text).unwrap().unwrap().0;
        assert_eq!(vls("17, 0x3 2"), [1, 3, 2]);
        assert_eq!(vls("0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7,9").len(), 16);
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
