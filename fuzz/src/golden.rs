//! Recorded conversations with OpenSM, as seeds.

use std::fs::File;

use flate2::read::GzDecoder;
use serde_json::Value;

/// The recording by which `ib-mad` tests its layouts.
pub fn recording() -> Value {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../ib-mad/tests/golden/random-default.json.gz");
    let file = File::open(path).expect("the golden file is in the repository");
    serde_json::from_reader(GzDecoder::new(file)).expect("the golden file is gzipped JSON")
}

/// Bytes of a hexadecimal text.
pub fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).expect("hexadecimal digits") as u8;
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Every recorded request, MAD by MAD.
pub fn requests() -> Vec<Vec<u8>> {
    let recording = recording();
    let cases = recording["cases"].as_array().expect("cases");
    cases
        .iter()
        .flat_map(|case| case["request"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .map(unhex)
        .collect()
}
