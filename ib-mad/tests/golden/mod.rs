//! The golden file: requests to OpenSM's SA on a small simulated fabric, and its responses, as
//! bytes and decoded.

use std::io::Read;

use serde_json::Value;

/// All queries, in the order in which they were sent.
pub(crate) fn queries() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/random-default.json.gz");
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("golden file");
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    let mut golden: Value = serde_json::from_str(&text).expect("JSON");
    let Value::Array(mut cases) = golden["cases"].take() else { panic!("no cases") };
    cases.retain(|case| case["kind"] == "query");
    cases
}

/// Decodes a hexadecimal string.
pub(crate) fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("hex digits");
    let digit = |byte: u8| (byte as char).to_digit(16).expect("hex digit") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Decodes a list of MADs.
pub(crate) fn mads(list: &Value) -> Vec<[u8; 256]> {
    let list = list.as_array().expect("a list of MADs");
    list.iter().map(|mad| unhex(mad).try_into().expect("256 bytes")).collect()
}

/// Parses a hexadecimal number.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn hex_number(text: &Value) -> Option<u64> {
    u64::from_str_radix(text.as_str()?.strip_prefix("0x")?, 16).ok()
}
