//! A fabric with four partitions, with full, limited and both memberships: the records that each
//! requester may see, and the P_Keys of paths.

use std::path::Path;

use crate::golden_support::Golden;
use crate::golden_support::compare::replay;

#[test]
fn answers_equal_those_recorded() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/fattree-partitions.json.gz");
    let golden = Golden::read(&path);
    let tables = golden.pkeys();
    let keys = |lid, port| tables.get(&(lid, port)).cloned().unwrap_or_default();
    replay(&golden, &[], keys, |_| {});
}
