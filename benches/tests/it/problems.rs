//! The list of problems, with real programs: a missing spine and a hung responder are in `ibsmctl
//! problems`, in the status, in metrics, in the page's document and in the log, and go with their
//! cause.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::scrape::Scrape;
use crate::support::{self, Subnet};
use benches::sandbox::{PATIENCE, all_responders_are_current, await_status, binary, free_address};
use sa_proto::snapshot::Node;
use serde_json::Value;

fn ibsmctl(subnet: &Subnet, words: &[&str]) -> String {
    support::ibsmctl(&subnet.url(), words)
}

/// Waits until exactly these kinds of problems are listed, notices aside.
fn await_kinds(subnet: &Subnet, kinds: &[&str]) -> Vec<Value> {
    await_list(subnet, &format!("{kinds:?}"), |listed| listed == kinds)
}

/// Waits until the kinds of problems that are listed, notices aside, are as expected.
fn await_list(subnet: &Subnet, expected: &str, is: impl Fn(&[&str]) -> bool) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = ibsmctl(subnet, &["problems", "--json"]);
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let all = json["problems"].as_array().expect("a list");
        let listed: Vec<Value> =
            all.iter().filter(|one| one["severity"] != "notice").cloned().collect();
        let kinds: Vec<&str> = listed.iter().map(|one| one["kind"].as_str().unwrap()).collect();
        if is(&kinds) {
            return listed;
        }
        assert!(Instant::now() < deadline, "not {expected}: {text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_missing_spine_and_a_hung_responder_are_shown_everywhere_until_they_are_back() {
    let subnet = Subnet::new("problems");
    let http = free_address().to_string();
    let ibsm = subnet.ibsm(&["--http", &http]);
    let ibsa = subnet.ibsa();
    await_status(&subnet.url(), &[], "a current responder", all_responders_are_current);
    await_kinds(&subnet, &[]);
    assert!(ibsmctl(&subnet, &["status"]).contains("subnet          up;"));

    ibsa.signal(libc::SIGSTOP);
    // Its connection is closed soon after it stopped to report. Regression: then it was only down.
    let is_hung =
        |kinds: &[&str]| kinds.contains(&"no_responder") && kinds.contains(&"responder_hung");
    await_list(&subnet, "responder_hung and no_responder", is_hung);
    ibsm.wait_for("no answer to keepalives");
    std::thread::sleep(Duration::from_secs(12));
    await_list(&subnet, "responder_hung and no_responder", |kinds| {
        is_hung(kinds) && !kinds.contains(&"responder_down")
    });
    assert!(ibsmctl(&subnet, &["status"]).contains("up, with critical problems"));
    ibsa.signal(libc::SIGCONT);
    await_kinds(&subnet, &[]);

    let spine = spine(&subnet);
    subnet.control(&["node-down", &spine]);
    let missing = await_kinds(&subnet, &["switch_missing"]);
    assert_eq!(missing[0]["name"], spine);
    let text = ibsmctl(&subnet, &["problems"]);
    assert!(text.contains(&format!("critical  '{spine}' 0x")), "{text}");
    assert!(ibsmctl(&subnet, &["status"]).contains("up, with critical problems"));
    let series = "ibsm_problems{kind=\"switch_missing\",severity=\"critical\"}";
    let deadline = Instant::now() + PATIENCE;
    while Scrape::of(&http).0[series] != 1.0 {
        assert!(Instant::now() < deadline, "{series} is not 1");
        std::thread::sleep(Duration::from_millis(100));
    }
    ibsm.wait_for(&format!("problem: '{spine}'"));

    subnet.control(&["node-up", &spine]);
    await_kinds(&subnet, &[]);
    ibsm.wait_for("over after");
}

/// A host that was moved waits for what belongs to its GUID, which the operator may end.
#[test]
fn a_moved_host_is_listed_until_it_is_admitted() {
    let subnet = Subnet::new("problems-moved");
    let ibsm = subnet.ibsm(&[]);
    let _ibsa = subnet.ibsa();
    await_status(&subnet.url(), &[], "a current responder", all_responders_are_current);
    let hosts = hosts(&subnet);
    let [other, moved] = &hosts[hosts.len() - 2..] else { panic!("two hosts") };
    let (guid, to) = (moved.ports[0].guid.to_string(), other.ports[0].peer.expect("a link"));
    let wrong = Command::new(binary("ibsmctl"))
        .args(["--sm", &subnet.url(), "admit", &guid])
        .output()
        .expect("ibsmctl runs");
    let text = String::from_utf8_lossy(&wrong.stderr);
    assert!(!wrong.status.success() && text.contains(&guid), "{wrong:?}");
    let (moved, other) = (moved.guid.to_string(), other.guid.to_string());
    subnet.control(&["unplug", &other, "1"]);
    subnet.control(&["unplug", &moved, "1"]);
    subnet.control(&["plug", &moved, "1", &to.0.to_string(), &to.1.to_string()]);
    ibsm.wait_for("which is away");
    let listed = await_moved(&subnet, true);
    assert!(listed.contains(&guid) && listed.contains("ibsmctl admit GUID"), "{listed}");
    let admitted = ibsmctl(&subnet, &["admit", &guid, "--json"]);
    let admitted: serde_json::Value = serde_json::from_str(&admitted).unwrap();
    assert_eq!(admitted["admitted"], serde_json::json!([guid]));
    ibsm.wait_for("has what belongs to its GUID from now on");
    await_moved(&subnet, false);
}

/// Waits until a moved GUID is listed, or none is; returns the list.
fn await_moved(subnet: &Subnet, listed: bool) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = ibsmctl(subnet, &["problems", "--json"]);
        if text.contains("guid_moved") == listed {
            return text;
        }
        assert!(Instant::now() < deadline, "guid_moved is not as expected: {text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// All hosts.
fn hosts(subnet: &Subnet) -> Vec<Node> {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let snapshot = runtime.block_on(subnet.snapshot());
    let nodes = snapshot.fabric().nodes.iter();
    nodes.filter(|node| node.switch_info.is_none()).map(|node| Node::clone(node)).collect()
}

/// The name of a switch without hosts.
fn spine(subnet: &Subnet) -> String {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let snapshot = runtime.block_on(subnet.snapshot());
    let nodes = &snapshot.fabric().nodes;
    let is_switch = |guid| nodes.iter().any(|node| node.guid == guid && node.switch_info.is_some());
    let spine = nodes.iter().find(|node| {
        let mut peers = node.ports.iter().filter_map(|port| port.peer);
        node.switch_info.is_some() && peers.all(|(guid, _)| is_switch(guid))
    });
    let description = &spine.expect("a fat tree").description;
    String::from_utf8_lossy(description).trim_end_matches('\0').to_owned()
}
