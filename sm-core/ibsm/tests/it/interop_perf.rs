//! Counters of ports, read by the performance manager beside `perfquery`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

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
        let mut ibsmctl = Command::new(env!("CARGO_BIN_EXE_ibsmctl"));
        let url = format!("http://{}", bed.address("Hca1", "publish"));
        let output = ibsmctl.args(["--sm", &url]).args(words).output().unwrap();
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
