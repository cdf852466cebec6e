//! Events and the history of a manager on a simulated fabric, over a restart: what changed is found
//! by name and time.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ib_mad::netlist::{Net, NodeKind};
use serde_json::Value;

use crate::ibsim::{Bed, await_end, example, signal};

/// A manager, which ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `ibsmctl` prints.
fn ibsmctl(bed: &Bed, words: &[&str]) -> String {
    let url = format!("http://{}", bed.address("Hca1", "publish"));
    let mut ibsmctl = Command::new(env!("CARGO_BIN_EXE_ibsmctl"));
    let output = ibsmctl.args(["--sm", &url]).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The reason for which `ibsmctl` fails.
fn refused(bed: &Bed, words: &[&str]) -> String {
    let url = format!("http://{}", bed.address("Hca1", "publish"));
    let mut ibsmctl = Command::new(env!("CARGO_BIN_EXE_ibsmctl"));
    let output = ibsmctl.args(["--sm", &url]).args(words).output().unwrap();
    assert!(!output.status.success(), "{words:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["kind"] == kind).collect()
}

/// Seconds since 1970, once a second has begun in which the topology is in the history: it is
/// looked at once a second.
fn next_second() -> u64 {
    std::thread::sleep(Duration::from_millis(3500));
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// LID of a switch, and number of a port that leads to another one.
fn trunk(net: &Net) -> (u16, u8) {
    let is_switch = |node: u32| net.nodes()[node as usize].kind == NodeKind::Switch;
    let (a, _) = net.links().find(|(a, b)| is_switch(a.node) && is_switch(b.node)).unwrap();
    (net.nodes()[a.node as usize].port(0).unwrap().lid, a.port)
}

#[test]
fn what_happened_is_known_by_name_and_time_after_a_restart() {
    let Some(mut bed) = Bed::on_ibfabric(&example("net.2sw2path4hca")) else { return };
    let passed = bed.dir.path().join("passed");
    let conf = bed.dir.path().join("conf");
    let text = format!(
        "event_plugin_name exec:/usr/bin/tee -a\nevent_plugin_options {}\nsweep_interval 1\n",
        passed.display()
    );
    std::fs::write(&conf, text).unwrap();
    let arguments = ["-F", conf.to_str().unwrap()];
    let mut ibsm = Running(bed.manage("Hca1", &arguments));
    let first = events(&ibsmctl(&bed, &["events", "--json"]));
    for kind in ["started", "mastership", "sweep_start", "routing_done", "sweep_end", "subnet_up"] {
        assert!(!of_kind(&first, kind).is_empty(), "{kind}: {first:?}");
    }

    let net = ibsmctl(&bed, &["topology", "--ibnetdiscover"]);
    let (lid, port) = trunk(&Net::parse("topology", &net).unwrap());
    let before = next_second();
    bed.tool("Hca1", &["ibportstate", &lid.to_string(), &port.to_string(), "disable"]);
    let end = Instant::now() + Duration::from_secs(60);
    let went = loop {
        let since = format!("@{before}");
        let events = events(&ibsmctl(&bed, &["events", "--json", "--since", &since]));
        if let [went, ..] = of_kind(&events, "link_went")[..] {
            break went["text"].as_str().unwrap().to_owned();
        }
        assert!(Instant::now() < end, "{events:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let difference = || ibsmctl(&bed, &["diff", &format!("@{before}"), "now"]);
    let words = ["explain", "Hca1", "Hca2", "--at", &format!("@{before}"), "--json"];
    let then: Value = serde_json::from_str(&ibsmctl(&bed, &words)).unwrap();
    assert!(then["fewest_switches"].as_u64().is_some_and(|count| count >= 1), "{then}");
    assert!(then["path"].is_null() && then["path_unknown"].is_string(), "{then}");
    let link = went.strip_prefix("link ").and_then(|text| text.strip_suffix(" is down")).unwrap();
    assert!(difference().contains(&format!("missing link  {link}")), "{link}: {}", difference());

    signal(&ibsm.0, libc::SIGTERM);
    await_end(&mut ibsm.0, "the end");
    // The program has got every event, up to the last.
    let read = events(&std::fs::read_to_string(&passed).unwrap());
    assert_eq!(read.first().unwrap()["kind"], "started");
    assert_eq!(read.last().unwrap()["kind"], "stopped");
    let numbers = |events: &[Value]| -> Vec<u64> {
        events.iter().map(|event| event["number"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(&read), (1..=read.len() as u64).collect::<Vec<_>>());

    let mut ibsm = Running(bed.manage("Hca1", &arguments));
    let all = events(&ibsmctl(&bed, &["events", "--json", "--since", "1"]));
    assert_eq!(all[..read.len()], read, "as they were before the restart");
    assert_eq!(numbers(&all), (1..=all.len() as u64).collect::<Vec<_>>());
    assert_eq!(of_kind(&all, "started").len(), 2);
    let difference = ibsmctl(&bed, &["diff", &format!("@{before}"), "now"]);
    assert!(difference.contains(&format!("missing link  {link}")), "{difference}");
    let (near, _) = link.split_once(" - ").unwrap();
    let state = format!("other state   {near}: Down (");
    assert!(difference.contains(&state) && difference.contains("not Active"), "{difference}");
    the_ports_of_then_are_known(&bed, before, &Net::parse("topology", &net).unwrap());
    let list: Value = serde_json::from_str(&ibsmctl(&bed, &["history", "list", "--json"])).unwrap();
    assert_eq!((&list["kept"], &list["segments"][0]["first"]), (&true.into(), &1.into()));
    let since = |kind: &str| list["since_ms"][kind].as_u64();
    assert_eq!(since("events"), all[0]["time_ms"].as_u64());
    assert!(since("topology").is_some() && since("topology") == since("ports"), "{list}");
    assert_eq!(since("loads"), None, "counters are not read");
    let early = refused(&bed, &["diff", "@1", "now"]);
    assert!(early.contains("; the history has nodes and links since 20"), "{early}");
    let directory = bed.dir.path().join("state-Hca1/history");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(&directory.join("00000001.history"))), (0o700, 0o600));
    signal(&ibsm.0, libc::SIGTERM);
    await_end(&mut ibsm.0, "the end");
}

/// LIDs and states of ports of a time before the restart, when the fabric was `net`.
fn the_ports_of_then_are_known(bed: &Bed, at: u64, net: &Net) {
    let lid = |name: &str| {
        let host = net.nodes().iter().find(|node| node.description == name).unwrap();
        host.ports().map(|(_, port)| port.lid).find(|&lid| lid != 0).unwrap()
    };
    let (first, second) = (lid("Hca1"), lid("Hca2"));
    let at = format!("@{at}");
    let by_lid = ["explain", &first.to_string(), &second.to_string(), "--at", &at, "--json"];
    let then: Value = serde_json::from_str(&ibsmctl(bed, &by_lid)).unwrap();
    for (end, name, lid) in [("source", "Hca1", first), ("destination", "Hca2", second)] {
        let end = &then[end];
        assert_eq!((&end["name"], &end["lid"]), (&name.into(), &lid.into()), "{then}");
        let is_active = |port: &Value| port["state"] == "Active" && port["rate"].is_string();
        assert!(end["ports"].as_array().unwrap().iter().any(is_active), "{then}");
    }
    assert!(then["routing_engine"].is_string(), "{then}");
    let kept = ibsmctl(bed, &["topology", "--ibnetdiscover", "--at", &at]);
    let kept = Net::parse("the history", &kept).unwrap();
    let lids = |net: &Net| -> Vec<_> {
        let of_node = |node: &ib_mad::netlist::Node| {
            node.ports().map(|(_, port)| port.lid).filter(|&lid| lid != 0).collect::<Vec<_>>()
        };
        net.nodes().iter().map(|node| (node.guid, of_node(node))).collect()
    };
    assert_eq!(lids(&kept), lids(net));
}

#[test]
fn a_baseline_that_was_taken_is_compared_with_until_it_is_cleared() {
    let Some(mut bed) = Bed::on_ibfabric(&example("net.2sw2path4hca")) else { return };
    let conf = bed.dir.path().join("conf");
    std::fs::write(&conf, "sweep_interval 1\n").unwrap();
    let arguments = ["-F", conf.to_str().unwrap()];
    let mut ibsm = Running(bed.manage("Hca1", &arguments));
    assert!(refused(&bed, &["diff"]).contains("there is no baseline"));
    assert!(ibsmctl(&bed, &["baseline", "show"]).starts_with("no baseline"));
    let taken = ibsmctl(&bed, &["baseline", "take"]);
    assert!(taken.contains("2 switches, 4 hosts, 6 links"), "{taken}");
    let same = ibsmctl(&bed, &["diff"]);
    assert!(same.starts_with("no difference from the baseline of 20"), "{same}");
    let net = ibsmctl(&bed, &["baseline", "show", "--ibnetdiscover"]);
    assert_eq!(Net::parse("baseline", &net).unwrap().links().count(), 6);

    let now = Net::parse("now", &ibsmctl(&bed, &["topology", "--ibnetdiscover"])).unwrap();
    let (lid, port) = trunk(&now);
    bed.tool("Hca1", &["ibportstate", &lid.to_string(), &port.to_string(), "disable"]);
    let missing = |bed: &Bed| -> Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let problems = ibsmctl(bed, &["problems", "--json"]);
            let list: Value = serde_json::from_str(&problems).unwrap();
            let all = list.as_array().or(list["problems"].as_array()).unwrap();
            if let Some(one) = all.iter().find(|one| one["kind"] == "link_missing") {
                break one.clone();
            }
            assert!(Instant::now() < end, "{problems}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    assert_eq!(missing(&bed)["remedy"], "check the cable, or take another baseline");
    assert!(ibsmctl(&bed, &["diff"]).starts_with("missing link  "));
    signal(&ibsm.0, libc::SIGTERM);
    await_end(&mut ibsm.0, "the end");

    // The run that took it has ended, and this one has not seen the link.
    let mut ibsm = Running(bed.manage("Hca1", &arguments));
    missing(&bed);
    let shown: Value =
        serde_json::from_str(&ibsmctl(&bed, &["baseline", "show", "--json"])).unwrap();
    assert_eq!((&shown["source"], &shown["links"]), (&"command".into(), &6.into()));
    signal(&ibsm.0, libc::SIGTERM);
    await_end(&mut ibsm.0, "the end");

    let file = bed.dir.path().join("expected");
    std::fs::write(&file, now.to_string()).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let with_file = [&arguments[..], &["--expected-topology", &file]].concat();
    let mut ibsm = Running(bed.manage("Hca1", &with_file));
    for words in [["baseline", "take"], ["baseline", "clear"]] {
        let why = refused(&bed, &words);
        assert!(why.contains(&format!("--expected-topology {file}")), "{why}");
    }
    signal(&ibsm.0, libc::SIGTERM);
    await_end(&mut ibsm.0, "the end");

    let mut ibsm = Running(bed.manage("Hca1", &arguments));
    missing(&bed);
    assert_eq!(ibsmctl(&bed, &["baseline", "clear"]), "baseline removed\n");
    let end = Instant::now() + Duration::from_secs(20);
    while ibsmctl(&bed, &["problems"]).contains("link_missing") {
        assert!(Instant::now() < end, "{}", ibsmctl(&bed, &["problems"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    // Empty, for standbys that are not running now.
    assert_eq!(std::fs::read(bed.dir.path().join("state-Hca1/baseline")).unwrap(), b"");
    signal(&ibsm.0, libc::SIGTERM);
    await_end(&mut ibsm.0, "the end");
}
