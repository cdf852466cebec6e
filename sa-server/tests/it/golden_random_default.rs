//! A fabric with the default partition: every recorded request about the records that are served,
//! against what OpenSM answered.

use std::path::Path;

use crate::golden_support::Golden;
use crate::golden_support::compare::replay;

#[test]
fn answers_equal_those_recorded() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../ib-mad/tests/golden/random-default.json.gz");
    let golden = Golden::read(&path);
    let tables = golden.pkeys();
    let keys = |lid, port| tables.get(&(lid, port)).cloned().unwrap_or_default();
    replay(&golden, &[], keys, |_| {});
}
