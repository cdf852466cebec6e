//! A fabric with partitions and QoS on: what its ports are programmed with.

mod golden_support;

use std::path::Path;

use golden_support::Golden;
use golden_support::compare::{BEYOND_TABLE, replay};

/// Which paths there are is for the QoS policy to say, and not compared here.
const PATH_RECORD: &str = "0x0035";

/// That port has no link.
const DIFFERENT: &[(&str, &str)] = &[
    ("porttables/P_KeyTableRecord/sw-last/port-1,block-0/trusted/*", BEYOND_TABLE),
    ("porttables/P_KeyTableRecord/sw-last/port-1,block-1/trusted/*", BEYOND_TABLE),
];

#[test]
fn answers_equal_those_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/mesh-qos.json.gz");
    let golden = Golden::read(&path);
    let tables = golden.pkeys();
    replay(&golden, &[PATH_RECORD], DIFFERENT, |lid, port| {
        tables.get(&(lid, port)).cloned().unwrap_or_default()
    });
}
