//! Component masks compared with those of OpenSM's header `ib_types.h` (Debian's `libopensm-dev`).
//!
//! The header abbreviates: components are considered the same if the letters of the header's name
//! occur in this order in the specification's name.

#[path = "skip/mod.rs"]
mod skip;

use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::record::components_of;
use ib_mad::wire::sa::attribute::*;
use skip::skip;

const HEADER: &str = "/usr/include/infiniband/iba/ib_types.h";

const PREFIXES: [(&str, AttributeId); 16] = [
    ("NR", NODE_RECORD),
    ("PIR", PORT_INFO_RECORD),
    ("SLVL", SL_TO_VL_MAPPING_TABLE_RECORD),
    ("SWIR", SWITCH_INFO_RECORD),
    ("LFTR", LINEAR_FORWARDING_TABLE_RECORD),
    ("MFTR", MULTICAST_FORWARDING_TABLE_RECORD),
    ("SMIR", SM_INFO_RECORD),
    ("LR", LINK_RECORD),
    ("GIR", GUID_INFO_RECORD),
    ("SR", SERVICE_RECORD),
    ("PKEY", PKEY_TABLE_RECORD),
    ("PR", PATH_RECORD),
    ("VLA", VL_ARBITRATION_TABLE_RECORD),
    ("MCR", MC_MEMBER_RECORD),
    ("MPR", MULTI_PATH_RECORD),
    ("IIR", INFORM_INFO_RECORD),
];

/// Alternative names of a bit, for vendor-specific notices.
const VENDOR_NAMES: [&str; 2] = ["IIR_DEVICEID", "IIR_VENDID"];

/// `#define IB_PR_COMPMASK_DGID (CL_HTON64(((uint64_t)1)<<2))` as ("PR", "DGID", 2).
fn parse(line: &str) -> Option<(&str, &str, u32)> {
    let mut words = line.strip_prefix("#define")?.split_whitespace();
    let (prefix, name) = words.next()?.strip_prefix("IB_")?.split_once("_COMPMASK_")?;
    let number = words.next()?.strip_prefix("(CL_HTON64(((uint64_t)1)<<")?;
    Some((prefix, name, number.trim_end_matches(')').parse().ok()?))
}

/// Letters of a name, without digits: the header counts ServiceData8 from 0, the specification from
/// 1.
fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphabetic).map(|c| c.to_ascii_uppercase()).collect()
}

fn abbreviates(short: &str, long: &str) -> bool {
    let mut rest = long.chars();
    short.chars().all(|letter| rest.any(|other| other == letter))
}

#[test]
fn components_have_the_numbers_of_the_header() {
    let Ok(header) = std::fs::read_to_string(HEADER) else {
        return skip(format_args!("{HEADER} is absent (Debian: libopensm-dev)"));
    };
    let mut compared = 0;
    for (prefix, name, number) in header.lines().filter_map(parse) {
        let reserved = name.starts_with("RES") && name != "RESPTIME";
        if reserved || VENDOR_NAMES.contains(&&*format!("{prefix}_{name}")) {
            continue;
        }
        let (_, id) = PREFIXES.iter().find(|known| known.0 == prefix).expect(prefix);
        let component = components_of(*id).iter().find(|component| component.1.0 == 1 << number);
        let (ours, _) = component.unwrap_or_else(|| panic!("{prefix}_{name} is missing"));
        assert!(abbreviates(&letters(name), &letters(ours)), "{prefix}_{name} is called {ours}");
        compared += 1;
    }
    assert!(compared >= 199, "{compared}");
}
