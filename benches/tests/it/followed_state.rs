//! What a standby has of its master besides the registry: LIDs of hosts that are off, M_Keys, and
//! operators' files.

use std::fs;
use std::path::PathBuf;

use crate::support::pair::Pair;
use crate::support::{hosts, ibsmctl};
use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::Snapshot;

/// Names of hosts: one that is switched off, and one that is new.
const ABSENT: &str = "node00006 HCA-1";
const NEW: &str = "node00012 HCA-1";

/// GUID and LID of the port of a host; `None` if it is not there.
fn port_of(snapshot: &Snapshot, name: &str) -> Option<(Guid, Lid)> {
    let named = |node: &&std::sync::Arc<sa_proto::snapshot::Node>| {
        String::from_utf8_lossy(&node.description).starts_with(name)
    };
    let guid = snapshot.fabric().nodes.iter().find(named)?.ports.first()?.guid;
    let host = hosts(snapshot).into_iter().find(|host| host.gid.guid() == guid)?;
    Some((guid, host.lid))
}

/// Waits until the manager publishes the host, or publishes that it is gone; yields its LID.
fn await_host(pair: &Pair, at: usize, name: &str, is_there: bool) -> Option<Lid> {
    let found = || port_of(&pair.snapshot(at), name).map(|(_, lid)| lid);
    pair.await_status(at, name, |_| found().is_some() == is_there);
    found()
}

/// A configuration file that differs from that of both managers in this.
fn config(pair: &Pair, name: &str, more: &str) -> PathBuf {
    let path = pair.subnet.sandbox.path(name);
    let common = fs::read_to_string(pair.subnet.sandbox.path("ibsm.conf")).expect("it is there");
    fs::write(&path, format!("{common}{more}")).expect("the sandbox can be written");
    path
}

/// The standby knew LIDs of ports that were up alone: a new host got the LID of one that was off,
/// which came back with another.
#[test]
fn a_host_that_was_off_at_a_takeover_comes_back_with_its_lid() {
    keep_lid_of_absent_host(&Pair::new("absent-host"), false, |pair, _| pair.await_in_step(1));
}

/// The same with any store. With `late` the second manager is started when the host is off.
/// `await_copy` waits until it has the state of the first, in which the given GUID has a LID.
pub(crate) fn keep_lid_of_absent_host(pair: &Pair, late: bool, await_copy: impl Fn(&Pair, Guid)) {
    pair.subnet.control(&["link-down", NEW, "1"]);
    let mut first = pair.start_with(0, &[]);
    pair.await_master(0);
    let second = (!late).then(|| pair.start_with(1, &[]));
    let lid = await_host(pair, 0, ABSENT, true).expect("it is there");
    let (guid, _) = port_of(&pair.snapshot(0), ABSENT).expect("it is there");
    if !late {
        await_copy(pair, guid);
    }
    pair.subnet.control(&["link-down", ABSENT, "1"]);
    await_host(pair, 0, ABSENT, false);
    let second = second.unwrap_or_else(|| pair.start_with(1, &[]));
    await_copy(pair, guid);
    first.kill_and_wait();
    pair.await_master(1);

    pair.subnet.control(&["link-up", NEW, "1"]);
    let new = await_host(pair, 1, NEW, true);
    assert!(new.is_some_and(|new| new != lid), "{new:?}: that is the LID of a host that is off");
    pair.subnet.control(&["link-up", ABSENT, "1"]);
    assert_eq!(await_host(pair, 1, ABSENT, true), Some(lid), "{}", second.log());
}

/// Ports had the M_Key of the master, which the standby had forgotten when it was started again: it
/// reached none of them, and could not take over.
#[test]
fn a_standby_that_is_restarted_reaches_ports_with_the_m_key_of_the_master() {
    let pair = Pair::new("m-keys");
    let protected = "m_key_protection_level 2\nm_key_lease_period 0\n";
    let keyed = |name: &str, key: &str| {
        let path = config(&pair, name, &format!("m_key {key}\n{protected}"));
        path.to_str().expect("UTF-8").to_owned()
    };
    let (old, new) = (keyed("old.conf", "0xdeadbeef"), keyed("new.conf", "0x5ea1ed"));
    let mut first = pair.start_with(0, &["-F", &old]);
    pair.await_master(0);
    let mut second = pair.start_with(1, &["-F", &old]);
    pair.await_in_step(1);
    let there = hosts(&pair.snapshot(0)).len();
    // The master notes M_Keys after the sweep that has set them.
    let keys = pair.subnet.sandbox.path("state-1/guid2mkey");
    pair.await_status(1, "M_Keys of all hosts are copied", |_| {
        let keys = fs::read_to_string(&keys).unwrap_or_default();
        keys.matches("deadbeef").count() >= there
    });
    pair.await_in_step(1);
    second.kill_and_wait();

    let second = pair.start_with(1, &["-F", &new]);
    pair.await_in_step(1);
    first.kill_and_wait();
    pair.await_master(1);
    assert_eq!(hosts(&pair.snapshot(1)).len(), there, "{}", second.log());
    for log in [first.log(), second.log()] {
        assert!(!log.contains("deadbeef"), "a secret in a log: {log}");
    }
}

/// A standby whose operator forgot to copy a file took over with other partitions, and nothing had
/// shown that.
#[test]
fn files_that_differ_are_shown_and_with_follow_config_the_masters_are_used() {
    let pair = Pair::new("files");
    let partitions = |name: &str, text: &str| {
        let path = pair.subnet.sandbox.path(name);
        fs::write(&path, text).expect("the sandbox can be written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let right = partitions("right.conf", "Default=0x7fff,ipoib: ALL=full;\nblue=0x0b: ALL;\n");
    let wrong = partitions("wrong.conf", "Default=0x7fff,ipoib: ALL=full;\n");
    let mut first = pair.start_with(0, &["-P", &right, "--subnet_prefix", "0xfe80000000000001"]);
    pair.await_master(0);
    let mut second = pair.start_with(1, &["-P", &wrong]);
    let different = ["partition_config_file", "settings"];
    pair.await_status(1, "the standby shows it", |status| {
        let files = status.registry_copy.as_ref().and_then(|copy| copy.files.as_ref());
        files.is_some_and(|files| files.different == different)
    });
    let is_shown = |expected: &[&str]| {
        let expected = expected.to_vec();
        pair.await_status(0, "the master shows it", |status| {
            let files = status.followers.first().and_then(|follower| follower.files.as_ref());
            files.is_some_and(|files| files.different == expected)
        });
    };
    is_shown(&different);
    second.kill_and_wait();

    let follow = ["-P", &wrong, "--follow-config"];
    // The prefix is read at the start only.
    let mut second = pair.start_with(1, &follow);
    is_shown(&["settings"]);
    second.kill_and_wait();
    let second = pair.start_with(1, &follow);
    is_shown(&[]);
    pair.await_in_step(1);
    first.kill_and_wait();
    pair.await_master(1);
    let snapshot = pair.snapshot(1);
    assert_eq!(snapshot.fabric().subnet.prefix, 0xfe80_0000_0000_0001, "{}", second.log());
    let has = |name: &str| snapshot.fabric().partitions.iter().any(|entry| entry.name == name);
    assert!(has("blue"), "{}", second.log());

    // What its operator edits from now on counts.
    fs::write(&wrong, "Default=0x7fff,ipoib: ALL=full;\nred=0x0c: ALL;\n").expect("writable");
    second.signal(libc::SIGHUP);
    pair.await_status(1, "its own partitions", |_| {
        let snapshot = pair.snapshot(1);
        snapshot.fabric().partitions.iter().any(|entry| entry.name == "red")
    });
}

/// After a failover, what was missing from a baseline that was taken at the first manager was no
/// problem any more: the other had none.
#[test]
fn what_is_missing_from_the_baseline_is_missing_after_a_failover() {
    let pair = Pair::new("baseline");
    let mut first = pair.start_with(0, &[]);
    pair.await_master(0);
    let second = pair.start_with(1, &[]);
    pair.await_in_step(1);
    ibsmctl(&pair.url(0), &["baseline", "take"]);
    let copied = pair.subnet.sandbox.path("state-1/baseline");
    pair.await_status(1, "the baseline is copied", |_| copied.exists());
    pair.await_in_step(1);
    pair.subnet.control(&["link-down", ABSENT, "1"]);
    await_host(&pair, 0, ABSENT, false);
    let is_missing =
        |at: usize| ibsmctl(&pair.url(at), &["problems", "--json"]).contains("host_missing");
    pair.await_status(0, "it is missing", |_| is_missing(0));
    first.kill_and_wait();
    pair.await_master(1);
    pair.await_status(1, "it is still missing", |_| is_missing(1));
    let differs = ibsmctl(&pair.url(1), &["diff"]);
    assert!(differs.contains(&format!("missing node  '{ABSENT}'")), "{differs}");

    // Removed at the new master, it does not come back from the old one's directory.
    ibsmctl(&pair.url(1), &["baseline", "clear"]);
    let _first = pair.start_with(0, &[]);
    pair.await_status(0, "it follows the end", |_| {
        ibsmctl(&pair.url(0), &["baseline", "show"]).starts_with("no baseline")
    });
    drop(second);
}
