//! Captures (`--capture`) read by tshark, an independent decoder.

use std::process::Command;

use crate::ibsim::{Bed, example, find, signal};
use crate::skip::skip;

#[test]
fn capture_and_log_have_every_mad_at_the_port() {
    if find("tshark").is_none() {
        return skip("tshark is not installed");
    }
    let Some(mut bed) = Bed::on_ibfabric(&example("net.2sw2path4hca2port")) else { return };
    let file = bed.dir.path().join("sm.pcap");
    let mut ibsm = bed.manage("Hca1", &["--capture", file.to_str().unwrap(), "-D", "0x23"]);
    let sent = bed.metric("Hca1", "ibsm_smps_total{attribute=\"NodeInfo\",method=\"get\"}");
    bed.await_metric("Hca1", "ibsm_capture_written_total", |written| written > 0.0);
    assert_eq!(bed.metric("Hca1", "ibsm_capture_left_out_total"), Some(0.0));
    signal(&ibsm, libc::SIGTERM);
    ibsm.wait().unwrap();

    // The log has the same MADs (log bit 0x20).
    let log = std::fs::read_to_string(bed.dir.path().join("ibsm-1.log")).unwrap();
    assert!(log.contains("QP0 to LID ") && log.contains(" NodeInfo tid "), "{log}");

    let mut tshark = Command::new(find("tshark").unwrap());
    let output = tshark.args(["-V", "-r"]).arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains("Malformed"), "{text}");
    let count = |line: &str| text.lines().filter(|each| each.trim() == line).count();
    let gets = count("SMP (Directed Route) SubnGet(NodeInfo)");
    assert!(gets as f64 >= sent.unwrap_or(1.0) && gets > 0, "{gets} of {sent:?}\n{text}");
    assert_eq!(count("SMP (Directed Route) SubnGetResp(NodeInfo)"), gets, "both directions");
    assert!(text.contains("SubnSet(PortInfo)") && text.contains("SubnSet(LinearForwardingTable)"));
}
