//! Counters of ports, read by the performance manager beside `perfquery`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::ibsim::{Bed, await_end, example, signal};

/// A document of ibsm's HTTP server.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn await_text(what: &str, mut text: impl FnMut() -> String, found: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = text();
        if found(&seen) {
            return;
        }
        assert!(Instant::now() < deadline, "no {what}: {seen}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The manager of a test, which ends with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ctl(bed: &Bed, words: &[&str]) -> Output {
    let mut ibsmctl = Command::new(env!("CARGO_BIN_EXE_ibsmctl"));
    let url = format!("http://{}", bed.address("Hca1", "publish"));
    ibsmctl.args(["--sm", &url]).args(words).output().unwrap()
}

fn json(text: &str) -> Value {
    let body = text.split_once("\r\n\r\n").map_or(text, |(_, body)| body);
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Seconds since 1970, once what was read in that second is in the history.
fn kept_second() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let second = now() + 1;
    while now() < second + 3 {
        std::thread::sleep(Duration::from_millis(50));
    }
    second
}

#[test]
fn loads_of_an_earlier_time_are_shown_after_a_restart() {
    let Some(mut bed) = Bed::on_ibfabric(&example("net.2sw2path4hca2port")) else { return };
    let settings = bed.dir.path().join("ibsm.conf");
    // The history takes loads once a second: of readings as frequent it may miss one.
    std::fs::write(&settings, "perfmgr TRUE\nperfmgr_sweep_time_s 2\n").unwrap();
    let arguments = ["-F", settings.to_str().unwrap()];
    let mut ibsm = Running(bed.manage("Hca1", &arguments));
    // Half of what 4x SDR carries, in words of 4 bytes.
    bed.console(&["count-rate", "Hca2", "1", "PortXmitData", "125000000"]);
    let top = |bed: &Bed, words: &[&str]| -> Value {
        let output = ctl(bed, &[&["perf", "--top", "1", "--json"], words].concat());
        assert!(output.status.success(), "{output:?}");
        json(&String::from_utf8(output.stdout).unwrap())
    };
    let is_busy = |found: &Value| {
        let link = &found["links"][0];
        let percent = link["percent"].as_f64().unwrap_or(0.0);
        link["from"]["name"] == "Hca2" && (40.0..60.0).contains(&percent)
    };
    await_text("a busy link", || top(&bed, &[]).to_string(), |text| is_busy(&json(text)));
    let then = kept_second();
    bed.console(&["count-rate", "Hca2", "1", "PortXmitData", "0"]);
    await_text("a quiet link", || top(&bed, &[]).to_string(), |text| !is_busy(&json(text)));
    let later = kept_second();
    signal(&ibsm.0, libc::SIGTERM);
    await_end(&mut ibsm.0, "ibsm");

    let mut ibsm = Running(bed.manage("Hca1", &arguments));
    let at = format!("@{then}");
    let found = top(&bed, &["--at", &at]);
    assert!(is_busy(&found), "{found}");
    assert!(found["time_ms"].as_u64().unwrap() <= then * 1000, "{found}");
    assert!(found["links"][0]["from_errors_per_s"].is_null(), "{found}");
    assert!(!is_busy(&top(&bed, &["--at", &format!("@{later}")])));
    assert!(is_busy(&top(&bed, &["Hca2/1", "--at", &at])));
    assert_eq!(top(&bed, &["Hca2/2", "--at", &at])["links"], Value::Array(Vec::new()));
    let shown = String::from_utf8(ctl(&bed, &["perf", "--at", &at]).stdout).unwrap();
    assert!(shown.starts_with("read at 20") && shown.contains("'Hca2' port 1 > '"), "{shown}");
    let before = ctl(&bed, &["perf", "--at", &format!("@{}", then - 3600)]);
    assert!(!before.status.success(), "{before:?}");
    let http = bed.address("Hca1", "http");
    let then = |path: &str| get(&http, &format!("{path}?at_ms={}", then * 1000));
    let (map, load) = (json(&then("/api/v1/fabric")), json(&then("/api/v1/load")));
    assert_eq!(map["etag"], load["etag"]);
    let host = load["hosts"][0].as_u64().unwrap() as usize;
    assert_eq!(map["hosts"]["name"][host], "Hca2");
    let sent = load["hosts"][1].as_u64().unwrap();
    assert!((400..600).contains(&sent), "{load}");
    assert!(json(&then("/api/v1/links"))["links"][0]["from"]["name"] == "Hca2");
    signal(&ibsm.0, libc::SIGTERM);
    await_end(&mut ibsm.0, "ibsm");
}

#[test]
fn counters_are_added_up_also_when_perfquery_clears_them() {
    let Some(mut bed) = Bed::on_ibfabric(&example("net.2sw2path4hca2port")) else { return };
    let dump = bed.dir.path().join("counters.log");
    let settings = bed.dir.path().join("ibsm.conf");
    let text =
        format!("perfmgr TRUE\nperfmgr_sweep_time_s 1\nevent_db_dump_file {}\n", dump.display());
    std::fs::write(&settings, text).unwrap();
    let mut ibsm = bed.manage("Hca1", &["-F", settings.to_str().unwrap()]);
    let http = bed.address("Hca1", "http");
    let errors = |value: u64| {
        move |text: &str| {
            let mut lines = text.lines().filter(|at| at.contains("port=\"3\",switch=\"Switch1\""));
            lines.any(|at| {
                at.starts_with("infiniband_switch_port_receive_errors_total")
                    && at.ends_with(&format!(" {value}"))
            })
        }
    };
    let ports = || get(&http, "/metrics/ports?nodes=Switch1&errors=1");
    let all = || get(&http, "/metrics/ports");
    await_text("counters", all, |text| text.contains("infiniband_hca_port_transmit_packets_total"));
    bed.console(&["count", "Switch1", "3", "PortRcvErrors", "41"]);
    await_text("errors", ports, errors(41));
    let node = bed.console(&["node", "Switch1"]);
    let lid: String =
        node.split("\"lid\":").nth(1).unwrap().chars().take_while(char::is_ascii_digit).collect();
    bed.tool("Hca2", &["perfquery", "-R", &lid, "3"]);
    bed.console(&["count", "Switch1", "3", "PortRcvErrors", "2"]);
    await_text("errors after a clear", ports, errors(43));
    let read_dump = || std::fs::read_to_string(&dump).unwrap_or_default();
    await_text("a dump", read_dump, |text| text.contains("Switch1\t") && text.contains("\t43\t"));

    let ctl = |words: &[&str]| {
        let output = ctl(&bed, words);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = ctl(&["perf", "Switch1/3"]);
    assert!(shown.contains("rcv_err 43"), "{shown}");
    await_text(
        "a problem",
        || ctl(&["problems"]),
        |text| text.contains("port_errors") || !text.is_empty(),
    );
    assert!(ctl(&["perf", "clear", "Switch1"]).contains("set to 0"));
    assert!(!ctl(&["perf", "Switch1/3"]).contains("rcv_err 43"));
    let top = || {
        bed.console(&["count", "Switch1", "3", "PortRcvErrors", "1"]);
        ctl(&["perf", "--top", "1", "--errors", "--json"])
    };
    await_text("a link with errors", top, |text| {
        text.contains("Switch1") && text.contains("\"to_errors_per_s\"")
    });
    signal(&ibsm, libc::SIGTERM);
    await_end(&mut ibsm, "ibsm");
}

/// A switch with two hosts, of links with forward error correction.
const FAST: &str = "\
Switch 4 \"Switch1\"
[1] \"Hca1\"[1] # \"Hca1\" lid 0 4xHDR
[2] \"Hca2\"[1] # \"Hca2\" lid 0 4xHDR

Hca 1 \"Hca1\"
[1] \"Switch1\"[1] # lid 0 lmc 0 \"Switch1\" lid 0 4xHDR

Hca 1 \"Hca2\"
[1] \"Switch1\"[2] # lid 0 lmc 0 \"Switch1\" lid 0 4xHDR
";

/// Names in `ibfabric ctl` and in `ibsmctl perf`. Details come first: they are read when the sum
/// that they are part of has grown.
const COUNTERS: [(&str, &str); 33] = [
    ("PortLocalPhysicalErrors", "local_physical_err"),
    ("PortMalformedPacketErrors", "malformed_packet_err"),
    ("PortBufferOverrunErrors", "buffer_overrun_err"),
    ("PortDLIDMappingErrors", "dlid_mapping_err"),
    ("PortVLMappingErrors", "vl_mapping_err"),
    ("PortLoopingErrors", "looping_err"),
    ("PortInactiveDiscards", "inactive_discards"),
    ("PortNeighborMTUDiscards", "neighbor_mtu_discards"),
    ("PortSwLifetimeLimitDiscards", "sw_lifetime_limit_discards"),
    ("PortSwHOQLifetimeLimitDiscards", "sw_hoq_lifetime_limit_discards"),
    ("PortFECCorrectableBlockCtr", "fec_corrected_blocks"),
    ("PortFECUncorrectableBlockCtr", "fec_uncorrectable_blocks"),
    ("PortFECCorrectedSymbolCtr", "fec_corrected_symbols"),
    ("PortXmitData", "xmit_data"),
    ("PortRcvData", "rcv_data"),
    ("PortXmitPkts", "xmit_pkts"),
    ("PortRcvPkts", "rcv_pkts"),
    ("PortMulticastXmitPkts", "multicast_xmit_pkts"),
    ("PortMulticastRcvPkts", "multicast_rcv_pkts"),
    ("SymbolErrorCounter", "symbol_err_cnt"),
    ("LinkErrorRecoveryCounter", "link_err_recover"),
    ("LinkDownedCounter", "link_downed"),
    ("PortRcvErrors", "rcv_err"),
    ("PortRcvRemotePhysicalErrors", "rcv_rem_phys_err"),
    ("PortRcvSwitchRelayErrors", "rcv_switch_relay_err"),
    ("PortXmitDiscards", "xmit_discards"),
    ("PortXmitConstraintErrors", "xmit_constraint_err"),
    ("PortRcvConstraintErrors", "rcv_constraint_err"),
    ("LocalLinkIntegrityErrors", "link_int_err"),
    ("ExcessiveBufferOverrunErrors", "buf_overrun_err"),
    ("VL15Dropped", "vl15_dropped"),
    ("PortXmitWait", "xmit_wait"),
    ("QP1Dropped", "qp1_dropped"),
];

/// What is counted while a reader follows is in its events, all of it and once.
fn growth_is_an_event_for_those_that_follow_it(bed: &Bed) {
    let url = format!("http://{}", bed.address("Hca1", "publish"));
    let words = ["events", "--follow", "--last", "0", "--kind", "port_errors", "--json"];
    let mut reader = Command::new(env!("CARGO_BIN_EXE_ibsmctl"));
    let reader = reader.args(["--sm", &url]).args(words).stdout(Stdio::piped());
    let mut reader = Running(reader.spawn().unwrap());
    let mut lines = BufReader::new(reader.0.stdout.take().unwrap()).lines();
    // It is connected some time from now: then it gets what is counted.
    let (mut counted, mut read) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    let growths = || get(&bed.address("Hca1", "http"), "/metrics/ports");
    while growths().contains("ibsm_perf_growth_events_total 0\n") {
        assert!(Instant::now() < deadline, "no event");
        bed.console(&["count", "Hca2", "1", "SymbolErrorCounter", "3"]);
        std::thread::sleep(Duration::from_millis(1100));
    }
    let event = json(&lines.next().unwrap().unwrap());
    assert_eq!((&event["kind"], &event["number"]), (&"port_errors".into(), &0.into()));
    assert_eq!((&event["name"], &event["port"]), (&"Hca2".into(), &1.into()), "{event}");
    assert!(event["fields"]["symbol_err_cnt"].as_u64().is_some_and(|by| by % 3 == 0), "{event}");
    for by in [5, 7, 11] {
        bed.console(&["count", "Switch1", "2", "PortXmitDiscards", &by.to_string()]);
        counted += by;
    }
    while read < counted {
        let event = json(&lines.next().unwrap().unwrap());
        if event["name"] == "Switch1" {
            read += event["fields"]["xmit_discards"].as_u64().unwrap();
            assert!((1..=3).contains(&event["fields"]["seconds"].as_u64().unwrap()), "{event}");
        }
    }
    assert_eq!(read, counted);
}

/// Every value that `ibsmctl perf` shows is between what the simulator has counted before and
/// after: those that only commands change are equal.
#[test]
fn every_counter_is_what_the_simulator_counted_and_a_moved_cable_is_found() {
    let net = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(net.path(), FAST).unwrap();
    let Some(mut bed) = Bed::on_ibfabric(net.path()) else { return };
    bed.console(&["counting", "additional"]);
    let settings = bed.dir.path().join("ibsm.conf");
    std::fs::write(&settings, "perfmgr TRUE\nperfmgr_sweep_time_s 1\n").unwrap();
    let ibsm = Running(bed.manage("Hca1", &["-F", settings.to_str().unwrap()]));
    let totals = |bed: &Bed, port: &str| -> Value {
        let output = ctl(bed, &["perf", port, "--json"]);
        if !output.status.success() {
            // Nothing was read yet.
            return Value::Null;
        }
        json(&String::from_utf8(output.stdout).unwrap())[0]["totals"].clone()
    };
    let truth = |bed: &Bed, node: &str, port: &str| -> Value {
        json(&bed.console(&["counters", node, port]))["ports"][port].clone()
    };
    await_text(
        "a first reading",
        || totals(&bed, "Switch1/2").to_string(),
        |text| json(text)["xmit_pkts"].as_u64().is_some_and(|count| count > 0),
    );
    for (node, port) in [("Hca2", "1"), ("Switch1", "2")] {
        for (at, (counter, _)) in COUNTERS.iter().enumerate() {
            bed.console(&["count", node, port, counter, &(100 + at).to_string()]);
        }
        let place = format!("{node}/{port}");
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let before = truth(&bed, node, port);
            std::thread::sleep(Duration::from_secs(3));
            let shown = totals(&bed, &place);
            let after = truth(&bed, node, port);
            let wrong: Vec<_> = COUNTERS
                .iter()
                .enumerate()
                .filter(|(at, (counter, name))| {
                    let shown = shown[*name].as_u64().unwrap_or(0);
                    let (least, most) = (before[*counter].as_u64(), after[*counter].as_u64());
                    shown < 100 + *at as u64 || Some(shown) < least || Some(shown) > most
                })
                .collect();
            if wrong.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{place}: {wrong:?}\n{shown}\n{after}");
        }
    }
    growth_is_an_event_for_those_that_follow_it(&bed);
    bed.console(&["move", "Switch1", "2", "Switch1", "4"]);
    let moved = || {
        let output = ctl(&bed, &["events", "--kind", "link_changed", "--kind", "link_came"]);
        String::from_utf8(output.stdout).unwrap()
    };
    let is_found = |text: &str| text.contains("'Switch1' port 4") && text.contains("'Hca2' port 1");
    await_text("the cable at its new port", moved, is_found);
    drop(ibsm);
}
