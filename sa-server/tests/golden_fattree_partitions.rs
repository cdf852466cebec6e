//! A fabric with four partitions, full, limited and both: what each requester may see of it, and
//! by which P_Key ports reach each other.

mod golden_support;

use std::collections::BTreeMap;
use std::path::Path;

use golden_support::Golden;
use golden_support::compare::replay;
use ib_mad::types::PKey;

#[test]
fn answers_equal_those_recorded() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/fattree-partitions.json.gz");
    let golden = Golden::read(&path);
    // P_KeyTableRecords: LID, block, port, and 32 P_Keys from byte 8 on.
    let mut tables: BTreeMap<(u16, u8), Vec<PKey>> = BTreeMap::new();
    for record in golden.dump("porttables/P_KeyTableRecord/all-trusted") {
        let lid = u16::from_be_bytes([record[0], record[1]]);
        let keys = record[8..72].chunks_exact(2).map(|key| u16::from_be_bytes([key[0], key[1]]));
        tables.entry((lid, record[4])).or_default().extend(keys.map(PKey));
    }
    replay(&golden, |lid, port| tables.get(&(lid, port)).cloned().unwrap_or_default());
}
