//! Net files that belong to recorded responses.

#![cfg(feature = "netlist")]

use std::fs::File;
use std::path::Path;

use ib_mad::netlist::Net;

/// The net of the recorded OpenSM responses that other tests compare with.
#[test]
fn the_golden_net_is_accepted_and_written_back_alike() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let file = File::open(path.join("random-default.json.gz")).unwrap();
    let golden: serde_json::Value =
        serde_json::from_reader(flate2::read::GzDecoder::new(file)).unwrap();
    let text = golden["net"].as_str().unwrap();
    let net = Net::parse("net", text).unwrap();
    assert_eq!((net.nodes().len(), net.links().count()), (18, 21));
    let written = net.to_string();
    let lines = |text: &str| -> Vec<String> {
        let kept = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        kept.map(str::to_owned).collect()
    };
    assert_eq!(lines(&written), lines(text));
}
