//! The layouts of attributes compared with responses of OpenSM's SA: every field of every record in
//! the golden file, bit by bit.

use std::io::Read;

use ib_mad::types::{PortNum, Sl};
use ib_mad::wire::attribute::*;
use ib_mad::wire::field::Layout;
use serde_json::Value;

const HEADER_LEN: usize = 56;

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/random-default.json.gz");
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("golden file");
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    serde_json::from_str(&text).expect("JSON")
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |b: u8| (b as char).to_digit(16).expect("hex") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// A row of a golden record: its bytes and its decoded columns.
struct Row<'a> {
    bytes: &'a [u8],
    columns: &'a [Value],
    values: &'a [Value],
}

impl Row<'_> {
    /// The value of a numbered column, such as `pkey17`.
    fn numbered(&self, name: &str, number: usize) -> u64 {
        let name = format!("{name}{number}");
        let index = self.columns.iter().position(|column| column == &name).expect("column");
        self.values[index].as_u64().expect("number")
    }
}

/// Calls `check` with every row of every response with records of `record`; returns their number.
fn rows(golden: &Value, record: &str, mut check: impl FnMut(Row<'_>)) -> usize {
    let mut count = 0;
    for case in golden["cases"].as_array().expect("cases") {
        let records = &case["records"];
        if records["type"] != record {
            continue;
        }
        let answer = unhex(case["answer"].as_str().expect("answer"));
        let stride = case["header"]["attr_offset"].as_u64().expect("attr_offset") as usize * 8;
        for (i, values) in records["rows"].as_array().expect("rows").iter().enumerate() {
            let bytes = &answer[HEADER_LEN + i * stride..];
            let columns = records["columns"].as_array().expect("columns");
            check(Row { bytes, columns, values: values.as_array().expect("row") });
            count += 1;
        }
    }
    count
}

/// The bits of one field, in the golden file's notation.
fn golden_text(bytes: &[u8], bit: usize, width: usize) -> String {
    if width > 128 {
        let text = &bytes[bit / 8..(bit + width) / 8];
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        return String::from_utf8_lossy(&text[..end]).into_owned();
    }
    let value = (bit..bit + width)
        .fold(0u128, |value, bit| value << 1 | u128::from(bytes[bit / 8] >> (7 - bit % 8) & 1));
    if width > 64 { format!("{value:032x}") } else { value.to_string() }
}

/// Checks that the fields of `layouts`, consecutive from `offset`, match the columns that follow
/// the first `key_columns`. Reserved columns have no field; fields newer than OpenSM's decoder, in
/// `newer`, have no column.
fn check_fields(
    record: &str,
    key_columns: usize,
    offset: usize,
    layouts: &[Layout],
    newer: &[&str],
) {
    let golden = golden();
    let count = rows(&golden, record, |row| {
        let mut fields = Vec::new();
        let mut base = offset;
        for layout in layouts {
            for field in layout.fields.iter().filter(|field| !newer.contains(&field.name)) {
                fields
                    .push((field.name, golden_text(row.bytes, base * 8 + field.bit, field.width)));
            }
            base += layout.len;
        }
        let columns: Vec<_> = row
            .columns
            .iter()
            .zip(row.values)
            .skip(key_columns)
            .filter(|(name, _)| !name.as_str().expect("name").starts_with("reserved"))
            .map(|(name, value)| {
                (
                    name.as_str().expect("name"),
                    value.as_str().map_or(value.to_string(), str::to_owned),
                )
            })
            .collect();
        assert_eq!(fields.len(), columns.len(), "{fields:?}\n{columns:?}");
        for ((field, ours), (column, theirs)) in fields.iter().zip(&columns) {
            assert_eq!(ours, theirs, "{record}: {field}, which OpenSM's decoder calls {column}");
        }
    });
    assert!(count > 0, "no {record} in the golden file");
}

/// IBA 14.2.5.6.
#[test]
fn port_info_has_its_fields_where_opensm_put_them() {
    let newer = [
        "multicast_pkey_trap_suppression_enabled",
        "link_speed_ext_active2",
        "link_speed_ext_supported2",
        "link_speed_ext_enabled2",
    ];
    check_fields("PortInfoRecord", 3, 4, &[PortInfo::LAYOUT], &newer);
}

/// IBA 14.2.5.4.
#[test]
fn switch_info_has_its_fields_where_opensm_put_them() {
    check_fields("SwitchInfoRecord", 2, 4, &[SwitchInfo::LAYOUT], &[]);
}

/// IBA 14.2.5.2, 14.2.5.3.
#[test]
fn node_info_and_description_have_their_fields_where_opensm_put_them() {
    check_fields("NodeRecord", 2, 4, &[NodeInfo::LAYOUT, NodeDescription::LAYOUT], &[]);
}

/// IBA 14.2.5.13.
#[test]
fn sm_info_has_its_fields_where_opensm_put_them() {
    check_fields("SMInfoRecord", 2, 4, &[SmInfo::LAYOUT], &[]);
}

/// IBA 13.4.8.1.
#[test]
fn class_port_info_has_its_fields_where_opensm_put_them() {
    check_fields("ClassPortInfo", 0, 0, &[ClassPortInfo::LAYOUT], &[]);
}

/// IBA 13.4.8.3.
#[test]
fn inform_info_has_its_fields_where_opensm_put_them() {
    check_fields("InformInfo", 0, 0, &[InformInfo::LAYOUT], &[]);
    check_fields("InformInfoRecord", 3, 24, &[InformInfo::LAYOUT], &[]);
}

#[test]
fn table_entries_are_read_in_order() {
    let golden = golden();
    let checked = [
        rows(&golden, "P_KeyTableRecord", |row| {
            let table = PKeyTable::new(&row.bytes[8..]).unwrap();
            for (i, pkey) in table.pkeys().enumerate() {
                assert_eq!(u64::from(pkey.0), row.numbered("pkey", i));
                assert_eq!(table.pkey(i), pkey);
            }
        }),
        rows(&golden, "GUIDInfoRecord", |row| {
            let table = GuidInfo::new(&row.bytes[8..]).unwrap();
            for i in 0..GUIDS_PER_BLOCK {
                assert_eq!(table.guid(i).0, row.numbered("guid", i));
            }
        }),
        rows(&golden, "SLtoVLMappingTableRecord", |row| {
            let table = SlToVlMappingTable::new(&row.bytes[8..]).unwrap();
            for i in 0..16 {
                let vl = table.vl(Sl::from_low_bits(i));
                assert_eq!(u64::from(vl.get()), row.numbered("sl_vl", usize::from(i)));
            }
        }),
        rows(&golden, "VLArbitrationTableRecord", |row| {
            let table = VlArbitrationTable::new(&row.bytes[8..]).unwrap();
            for i in 0..VL_ARB_PER_BLOCK {
                let entry = table.entry(i);
                assert_eq!(u64::from(entry.vl.get()), row.numbered("vl", i));
                assert_eq!(u64::from(entry.weight), row.numbered("weight", i));
            }
        }),
        rows(&golden, "LinearForwardingTableRecord", |row| {
            let table = LinearForwardingTable::new(&row.bytes[8..]).unwrap();
            for i in 0..LFT_BLOCK_LEN {
                let port = PortNum(table.port_block()[i]);
                assert_eq!(u64::from(port.0), row.numbered("port", i));
            }
        }),
        rows(&golden, "MulticastForwardingTableRecord", |row| {
            let table = MulticastForwardingTable::new(&row.bytes[8..]).unwrap();
            for i in 0..MFT_BLOCK_LEN {
                assert_eq!(u64::from(table.port_mask(i)), row.numbered("mask", i));
            }
        }),
    ];
    assert!(checked.iter().all(|&count| count > 0), "{checked:?}");
}

/// IBA 13.4.8.2, 14.2.5.1.
#[test]
fn notices_say_what_opensm_reported() {
    let golden = golden();
    let mut seen = std::collections::BTreeSet::new();
    for case in golden["cases"].as_array().expect("cases") {
        for report in case["reports"].as_array().into_iter().flatten() {
            let packet = unhex(report["packet"].as_str().expect("packet"));
            let notice = Notice::new(&packet[HEADER_LEN..]).unwrap();
            let expected = &report["notice"];
            let number = |name: &str| expected[name].as_u64().expect("number");
            assert_eq!(u64::from(notice.is_generic()), number("is_generic"));
            assert_eq!(u64::from(notice.notice_type().0), number("type"));
            assert_eq!(u64::from(notice.producer_type().0), number("producer"));
            assert_eq!(u64::from(notice.trap_number().0), number("trap_num"));
            assert_eq!(u64::from(notice.issuer_lid().0), number("issuer_lid"));
            assert_eq!(u64::from(notice.notice_toggle()), number("toggle"));
            assert_eq!(u64::from(notice.notice_count()), number("count"));
            let gid = |text: &Value| unhex(text.as_str().expect("GID"));
            assert_eq!(notice.issuer_gid().0[..], gid(&expected["issuer_gid"])[..]);
            if (64..=67).contains(&notice.trap_number().0) {
                let details = notice.data_details();
                let details = GidDetails::of(&details);
                assert_eq!(details.gid().0[..], gid(&report["data"]["gid"])[..]);
            }
            seen.insert(notice.trap_number());
        }
    }
    assert!(seen.contains(&TrapNumber::MULTICAST_GROUP_CREATED), "{seen:?}");
}
