//! A fabric with the default partition: every recorded request about the records that are served,
//! against what OpenSM answered.

mod golden_support;

use std::path::Path;

use golden_support::Golden;
use golden_support::compare::replay;
use ib_mad::types::PKey;

#[test]
fn answers_equal_those_recorded() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../ib-mad/tests/golden/random-default.json.gz");
    replay(&Golden::read(&path), |_, _| vec![PKey::DEFAULT_FULL]);
}
