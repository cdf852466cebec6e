//! Formats fields that are not plain numbers: tables, texts, paths, and attributes inside records.

use std::fmt::{Arguments, Write};

use crate::types::{Guid, PKey};
use crate::wire::attribute::{
    GUIDS_PER_BLOCK, GuidInfo, InformInfo, LinearForwardingTable, MFT_BLOCK_LEN,
    MulticastForwardingTable, NodeDescription, NodeInfo, PKeyTable, PORT_NONE, PortInfo,
    RFT_BLOCK_LEN, RandomForwardingTable, SlToVlMappingTable, SmInfo, SwitchInfo, TrapNumber,
    VL_ARB_PER_BLOCK, VlArbEntry, VlArbitrationTable, details_layout,
};
use crate::wire::field::{FieldInfo, Layout, get_bits};

/// Appends one line.
pub(super) fn line(text: &mut String, depth: usize, what: Arguments<'_>) {
    let indent = depth * 2;
    writeln!(text, "{:indent$}{what}", "").expect("writing to a String does not fail");
}

/// Appends bytes as hexadecimal digits, 32 per line, without trailing zeros.
pub(super) fn hexadecimal(text: &mut String, depth: usize, bytes: &[u8]) {
    let shown = bytes.iter().rposition(|&byte| byte != 0).map_or(bytes.len().min(32), |i| i + 1);
    for (i, chunk) in bytes[..shown].chunks(32).enumerate() {
        let digits: String = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        line(text, depth, format_args!("{:02x}: {digits}", i * 32));
    }
}

/// The layout of a byte field's content, if it is an attribute or the details of a trap. `bytes`
/// are those of the whole layout that contains the field.
pub(super) fn inner_layout(outer: Layout, field: &FieldInfo, bytes: &[u8]) -> Option<Layout> {
    let inner = match field.name {
        "port_info" => PortInfo::LAYOUT,
        "node_info" => NodeInfo::LAYOUT,
        "node_description" => NodeDescription::LAYOUT,
        "switch_info" => SwitchInfo::LAYOUT,
        "sm_info" => SmInfo::LAYOUT,
        "guid_info" => GuidInfo::LAYOUT,
        "inform_info" => InformInfo::LAYOUT,
        "pkey_table" => PKeyTable::LAYOUT,
        "sl_to_vl_mapping_table" => SlToVlMappingTable::LAYOUT,
        "vl_arbitration_table" => VlArbitrationTable::LAYOUT,
        "linear_forwarding_table" => LinearForwardingTable::LAYOUT,
        "random_forwarding_table" => RandomForwardingTable::LAYOUT,
        "multicast_forwarding_table" => MulticastForwardingTable::LAYOUT,
        // Both layouts of a Notice begin the same way.
        "data_details" if outer.name == "Notice" && get_bits::<0, 1>(bytes) == 1 => {
            details_layout(TrapNumber(get_bits::<32, 16>(bytes) as u16))?
        }
        _ => return None,
    };
    (inner.len * 8 == field.width).then_some(inner)
}

/// Appends a byte field with a known name; false for other names.
pub(super) fn special(text: &mut String, depth: usize, name: &str, bytes: &[u8]) -> bool {
    let value = match name {
        "node_string" | "service_name" => words(bytes),
        "initial_path" | "return_path" => path(bytes),
        "guid_block" => entries(GuidInfo::new(bytes).ok().map(|table| {
            numbered(GUIDS_PER_BLOCK, move |i| table.guid(i), |guid| *guid != Guid(0))
        })),
        "pkey_block" => entries(PKeyTable::new(bytes).ok().map(|table| {
            numbered(table.pkeys().count(), move |i| table.pkey(i), |pkey| *pkey != PKey(0))
        })),
        "port_block" => {
            entries(Some(numbered(bytes.len(), |i| bytes[i], |&port| port != PORT_NONE.0)))
        }
        "vl_weight_block" => entries(VlArbitrationTable::new(bytes).ok().map(|table| {
            numbered(
                VL_ARB_PER_BLOCK,
                move |i| {
                    let VlArbEntry { vl, weight } = table.entry(i);
                    format!("VL{vl}×{weight}")
                },
                |entry| !entry.ends_with("×0"),
            )
        })),
        "port_mask_block" => entries(MulticastForwardingTable::new(bytes).ok().map(|table| {
            numbered(
                MFT_BLOCK_LEN,
                move |i| format!("{:#06x}", table.port_mask(i)),
                |mask| mask != "0x0000",
            )
        })),
        "entry_block" => entries(RandomForwardingTable::new(bytes).ok().map(|table| {
            (0..RFT_BLOCK_LEN)
                .map(|i| (i, table.entry(i)))
                .filter(|(_, entry)| entry.valid)
                .map(|(i, entry)| format!("{i}:LID {}/{}→{}", entry.lid, entry.lmc, entry.port))
                .collect()
        })),
        _ => return false,
    };
    line(text, depth, format_args!("{name}: {value}"));
    true
}

/// The entries in use, with their numbers.
fn numbered<T: ToString>(
    count: usize,
    entry: impl Fn(usize) -> T,
    in_use: impl Fn(&T) -> bool,
) -> Vec<String> {
    (0..count)
        .map(|i| (i, entry(i)))
        .filter(|(_, entry)| in_use(entry))
        .map(|(i, entry)| format!("{i}:{}", entry.to_string()))
        .collect()
}

fn entries(entries: Option<Vec<String>>) -> String {
    match entries {
        Some(entries) if !entries.is_empty() => entries.join(" "),
        _ => "nothing".to_owned(),
    }
}

fn words(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    format!("{:?}", String::from_utf8_lossy(&bytes[..end]))
}

/// Ports from entry 1 to the last non-zero one: a path does not contain its length.
fn path(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|&port| port != 0).map_or(1, |last| last + 1);
    let ports: Vec<_> = bytes[1..end.max(1)].iter().map(u8::to_string).collect();
    ports.join(",")
}
