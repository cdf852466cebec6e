//! Values of options that hold a QoS table: VL arbitration and SL to VL.

use std::fmt::Write;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_tables_in_a_file_are_read_as_opensm_reads_them() {
        let arb = |text| <Option<VlArb>>::salvage(text).unwrap().unwrap().0;
        assert_eq!(arb("15:1,1:256"), [(0, 1), (1, 0)]);
        assert_eq!(arb("0:4;1:2 3:4"), [(0, 4), (1, 2), (3, 4)]);
        let vls = |text| <Option<SlToVl>>::salvage(text).unwrap().unwrap().0;
        assert_eq!(vls("17, 0x3 2"), [1, 3, 2]);
        assert_eq!(vls("0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7,9").len(), 16);
    }
}
