//! Runs `ibsm` and stock `opensm` as peers on stock `ibsim`: the first one becomes master, and
//! nothing changes unnecessarily. Skipped with a message where the programs are missing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ibsim::{Bed, example, find, signal};
use crate::skip::skip;

/// A simulator of a small fabric; `None` if it or `opensm` is not installed.
fn bed() -> Option<Bed> {
    if find("opensm").is_none() {
        skip("opensm is not installed");
        return None;
    }
    Bed::new(&example("net.2sw2path4hca"))
}

/// A program that ends with the test, however the test ends.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub(crate) fn end(mut self) {
        signal(&self.0, libc::SIGTERM);
        self.0.wait().unwrap();
    }
}

pub(crate) fn dir_of(bed: &Bed, node: &str) -> PathBuf {
    bed.dir.path().join(format!("opensm-{node}"))
}

/// Starts `opensm` on `node`, with files of its own.
pub(crate) fn opensm(bed: &Bed, node: &str, arguments: &[&str]) -> Running {
    let dir = dir_of(bed, node);
    std::fs::create_dir_all(&dir).unwrap();
    // By default its log is written only when a page is full.
    let config = dir.join("opensm.conf");
    std::fs::write(&config, "force_log_flush TRUE\n").unwrap();
    let mut command = bed.command("ibsim-run");
    command.current_dir(&dir).env("SIM_HOST", node).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("OSM_CACHE_DIR", &dir).env("OSM_TMP_DIR", &dir);
    command.arg(find("opensm").unwrap()).arg("-f").arg(dir.join("opensm.log")).args(arguments);
    command.arg("-F").arg(config);
    Running(command.spawn().unwrap())
}

/// The output of `sminfo`, once it contains `text`.
fn await_master(bed: &Bed, text: &str) -> String {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let info = bed.tool("Hca3", &["sminfo"]);
        if info.contains(text) && info.contains("SMINFO_MASTER") {
            return info;
        }
        assert!(Instant::now() < end, "no '{text}' in {info}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A group whose members are the ports of Hca2, Hca3 and Hca4, in the format of opensm-sa.dump.
const GROUP: &str = "MC Group 0xc005 : mgid=0xff12401bffff0000:0x00000000deadbeef \
    port_gid=0x0000000000000000:0x0000000000000000 qkey=0x00000b1b mlid=0xc005 mtu=0x84 \
    tclass=0x00 pkey=0xffff rate=0x83 pkt_life=0x92 sl_flow_hop=0x00000000 scope_state=0x20 \
    proxy_join=0x0\n\n";

fn dump() -> String {
    let member = |guid: u32| {
        format!(
            "mcm_port: port_gid=0xfe80000000000000:0x{guid:016x} scope_state=0x21 \
             proxy_join=0x0\n\n"
        )
    };
    GROUP.to_owned() + &[0x10_0004, 0x10_0007, 0x10_000a].map(member).concat()
}

/// The unicast and multicast forwarding entries of both switches, and the LID of each port. The
/// range that `ibroute` prints is left out.
fn tables(bed: &Bed) -> Vec<String> {
    let lids = lids(bed);
    let mut lines: Vec<String> = lids.iter().cloned().collect();
    for line in lids.iter().filter(|line| line.starts_with("Switch")) {
        let (_, rest) = line.split_once(" lid ").unwrap();
        let lid = rest.split_whitespace().next().unwrap();
        for words in [vec!["ibroute", lid], vec!["ibroute", "-M", lid]] {
            let shown = bed.tool("Hca3", &words);
            lines.extend(shown.lines().filter(|line| line.starts_with("0x")).map(str::to_owned));
        }
    }
    assert_eq!(lines.iter().filter(|line| line.starts_with("0xc005")).count(), 2, "{lines:#?}");
    lines
}

/// A live opensm hands over to ibsm and gets the subnet back: nothing in the switches changes, and
/// each group keeps its MLID.
#[test]
fn opensm_hands_over_and_gets_the_subnet_back_unchanged() {
    if find("opensm").is_none() || find("ibroute").is_none() {
        return skip("opensm or ibroute is not installed");
    }
    let Some(bed) = Bed::on_ibfabric(&example("net.2sw2path4hca")) else { return };
    let file = |name: &str| bed.dir.path().join(name);
    let (sa_dump, config, log) = (file("sa.dump"), file("ibsm.conf"), file("ibsm.log"));
    std::fs::write(&sa_dump, dump()).unwrap();
    let dump = sa_dump.to_str().unwrap();
    let first = opensm(&bed, "Hca1", &["-p", "3", "-S", dump]);
    await_master(&bed, "priority 3 ");
    let theirs = dir_of(&bed, "Hca1").join("opensm.log");
    bed.await_line(&theirs, "SUBNET UP");
    let before = tables(&bed);

    std::fs::write(&config, "sm_priority 9\nsminfo_polling_timeout 500\n").unwrap();
    let mut ibsm = bed.ibsm("Hca2");
    ibsm.args(["-S", dump, "-F"]).arg(&config).arg("-f").arg(&log).stdout(Stdio::null());
    let ibsm = Running(ibsm.spawn().unwrap());
    bed.await_status("Hca2", &[], "the subnet up", |status| status["subnet_up"] == true);
    bed.await_line(&theirs, "Entering STANDBY state");
    await_master(&bed, "priority 9 ");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(tables(&bed), before, "after the takeover by ibsm");

    std::fs::write(&config, "sm_priority 1\nsminfo_polling_timeout 500\n").unwrap();
    signal(&ibsm.0, libc::SIGHUP);
    bed.await_status("Hca2", &[], "standby", |status| status["sm_state"] == "standby");
    await_master(&bed, "priority 3 ");
    bed.await_line(&theirs, "Entering MASTER state");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(tables(&bed), before, "after handing back to opensm");
    ibsm.end();
    first.end();
}

/// The LIDs of ports, as a stock tool shows them.
fn lids(bed: &Bed) -> BTreeSet<String> {
    let topology = bed.tool("Hca3", &["ibnetdiscover"]);
    let lids: BTreeSet<String> =
        topology.lines().filter(|line| line.contains(" lid ")).map(str::to_owned).collect();
    assert!(lids.len() >= 6, "{topology}");
    lids
}

/// A live opensm hands over to an ibsm of higher priority. Stock ibsim does not permit more: a
/// standby opensm that started earlier sends a trap whose repression ibsim drops, and does nothing
/// else until that arrives.
#[test]
fn opensm_hands_over_to_us_with_its_lids() {
    let Some(mut bed) = bed() else { return };
    let first = opensm(&bed, "Hca1", &["-p", "3"]);
    await_master(&bed, "priority 3 ");
    bed.await_line(&dir_of(&bed, "Hca1").join("opensm.log"), "SUBNET UP");
    let before = lids(&bed);
    let ibsm = Running(bed.manage("Hca2", &["-p", "9"]));
    await_master(&bed, "priority 9 ");
    bed.await_line(&dir_of(&bed, "Hca1").join("opensm.log"), "Entering STANDBY state");
    assert_eq!(lids(&bed), before, "every port has the LID that opensm gave it");
    for program in [first, ibsm] {
        program.end();
    }
}

/// The standby keeps the LIDs that a killed opensm assigned.
#[test]
fn a_standby_of_opensm_takes_over_with_its_lids() {
    let Some(bed) = bed() else { return };
    let first = opensm(&bed, "Hca1", &["-p", "9"]);
    await_master(&bed, "priority 9 ");
    bed.await_line(&dir_of(&bed, "Hca1").join("opensm.log"), "SUBNET UP");
    let before = lids(&bed);
    let config = bed.dir.path().join("ibsm.conf");
    std::fs::write(&config, "sminfo_polling_timeout 200\npolling_retry_number 2\n").unwrap();
    // LIDs that this ibsm assigned itself in the past do not count.
    let state = bed.dir.path().join("state-Hca2");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("guid2lid"), "0x0000000000100001 0x0014 0x0014\n").unwrap();
    let log = bed.dir.path().join("ibsm.log");
    let mut ibsm = bed.ibsm("Hca2");
    ibsm.args(["-p", "3", "-F"]).arg(&config).arg("-f").arg(&log).stdout(Stdio::null());
    let ibsm = Running(ibsm.spawn().unwrap());
    bed.await_status("Hca2", &[], "standby", |status| status["sm_state"] == "standby");
    first.end();
    bed.await_line(&log, "SUBNET UP");
    assert_eq!(lids(&bed), before);
    ibsm.end();
}

/// As between two instances of OpenSM, neither accepts the other: OpenSM ignores ibsm (ERR 2F18). A
/// defect that this test reproduces: ibsm obeyed the other SM's requests with any SM_Key.
#[test]
fn an_opensm_with_another_key_is_ignored_and_ignores_us() {
    let Some(mut bed) = bed() else { return };
    let ibsm = Running(bed.manage("Hca1", &["-p", "3"]));
    // The session begins after the subnet is up.
    let is_master = |status: &Value| {
        status["sm_state"] == "master" && status["subnet_up"] == true && status["epoch"] != 0
    };
    let before = bed.await_status("Hca1", &[], "a master", is_master);
    let stranger = opensm(&bed, "Hca2", &["-p", "15", "-k", "0xBAD"]);
    bed.await_line(&dir_of(&bed, "Hca2").join("opensm.log"), "ERR 2F18");
    signal(&ibsm.0, libc::SIGHUP);
    bed.await_metric("Hca1", "ibsm_foreign_sms", |count| count == 1.0);
    let after = bed.await_status("Hca1", &[], "the same master", is_master);
    // It was master all the time: each time it becomes master it begins a session.
    assert_eq!(after["epoch"], before["epoch"]);
    stranger.end();
    ibsm.end();
}
