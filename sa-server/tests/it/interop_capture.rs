//! Captures of `ibsa --capture` read by tshark, an independent decoder.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Packet, Transport};
use ib_mad::wire::mad::Method;
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};

use crate::operation::{logged, ready, start};
use crate::skip::skip;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_capture_has_requests_and_answers() {
    if let Err(error) = Command::new("tshark").arg("-v").output() {
        return skip(format_args!("tshark does not run: {error}"));
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sa.pcap");
    // Without an SM it answers nothing, but returns queries with --echo.
    let (_child, log) = start(&["--echo", "--capture", file.to_str().unwrap()]);
    let (text, _log) = ready(log);
    let door: SocketAddr = logged(&text, "front_door=").parse().unwrap();
    let mut client = Udp::bind(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let mut packet = Packet::default();
    let mut mad = SaMad::new(&mut packet.mad);
    mad.write_request(Method::GET, attribute::PATH_RECORD, 0x77, ComponentMask(0));
    packet.carrier.peer = Some(door);
    assert_eq!(client.send(&[packet]).unwrap(), 1);
    let end = Instant::now() + PATIENCE;
    let dissected = || {
        let output = Command::new("tshark").arg("-V").arg("-r").arg(&file).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // A worker that is idle shows readers what it wrote.
    let mut text = dissected();
    while !text.contains("Frame 2:") {
        assert!(Instant::now() < end, "{text}");
        std::thread::sleep(Duration::from_millis(50));
        text = dissected();
    }
    assert!(!text.contains("Malformed"), "{text}");
    for method in ["SubnAdmGet", "SubnAdmGetResp"] {
        let line = format!("SA {method}(PathRecord)");
        assert_eq!(text.lines().filter(|each| each.trim() == line).count(), 1, "{line}: {text}");
    }
}
