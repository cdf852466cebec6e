//! Two subnet managers that share a store in a real etcd of three members.

use std::time::{Duration, Instant};

use crate::followed_state::keep_lid_of_absent_host;
use crate::support::pair::{Pair, Writer};
use benches::etcd::Etcd;
use benches::sandbox::PATIENCE;
use sa_proto::proto::admin::Status;

/// Whether a manager accepts writes.
fn holds_fence(status: &Status) -> bool {
    status.store.contains("this manager holds the fence")
}

/// A master with a store, and a writer.
fn began(pair: &Pair) -> Writer {
    pair.await_status(0, "the master holds the fence", |status| {
        status.subnet_up && holds_fence(status)
    });
    Writer::new(pair, &pair.snapshot(0))
}

/// Killed, stopped in order, and returning: nothing acknowledged is lost, no deleted record comes
/// back, and no client is asked.
#[test]
fn a_failover_and_a_failback_lose_nothing_and_ask_no_one() {
    let Some(etcd) = Etcd::start() else { return };
    let pair = Pair::with_store("etcd-failover", &etcd.url());
    let mut first = pair.start(0);
    let mut writer = began(&pair);
    let second = pair.start(1);
    pair.await_status(1, "a standby that reads", |status| {
        status.sm_state == "standby" && status.store.contains("; read ")
    });
    pair.runtime.block_on(writer.write(600));
    let asked = pair.subnet.sandbox.reregistrations();
    let killed = Instant::now();
    first.kill_and_wait();
    pair.runtime.block_on(writer.write(30));
    let waited = killed.elapsed();
    assert!(waited < Duration::from_secs(20), "writes waited for {waited:?}");
    pair.await_status(1, "the standby took over", holds_fence);
    assert_eq!(writer.differences(&pair.snapshot(1)), (0, 0), "{}", second.log());
    // The preferred one returns, while writes go on.
    let first = pair.start(0);
    let deadline = Instant::now() + PATIENCE;
    while pair.status(0).is_none_or(|status| !(status.subnet_up && holds_fence(&status))) {
        pair.runtime.block_on(writer.write(30));
        assert!(Instant::now() < deadline, "{}", first.log());
    }
    pair.runtime.block_on(writer.write(300));
    assert_eq!(writer.differences(&pair.snapshot(0)), (0, 0), "{}", first.log());
    pair.await_status(1, "the other one stands by", |status| status.sm_state == "standby");
    let asked_now = pair.subnet.sandbox.reregistrations();
    assert_eq!(asked_now, asked, "no client is asked to register again: {}", first.log());
}

/// A master that is stopped for longer than its lease cannot commit when it continues.
#[test]
fn a_master_that_was_stopped_acknowledges_nothing_of_before() {
    let Some(etcd) = Etcd::start() else { return };
    let pair = Pair::with_store("etcd-pause", &etcd.url());
    let first = pair.start(0);
    let mut writer = began(&pair);
    let _second = pair.start(1);
    pair.await_status(1, "a standby", |status| status.sm_state == "standby");
    pair.runtime.block_on(writer.write(100));
    first.signal(libc::SIGSTOP);
    pair.await_status(1, "the standby took over", |status| status.subnet_up && holds_fence(status));
    let stopped = std::mem::replace(&mut writer.publish[0], pair.publish[1]);
    pair.runtime.block_on(writer.write(300));
    writer.publish[0] = stopped;
    first.signal(libc::SIGCONT);
    pair.runtime.block_on(writer.write(300));
    let deadline = Instant::now() + PATIENCE;
    while pair.status(0).is_none_or(|status| !(status.subnet_up && holds_fence(&status))) {
        pair.runtime.block_on(writer.write(30));
        assert!(Instant::now() < deadline, "{}", first.log());
    }
    pair.runtime.block_on(writer.write(30));
    assert_eq!(writer.differences(&pair.snapshot(0)), (0, 0), "{}", first.log());
}

/// The fabric is managed and queries are answered; writes wait, which is reported, and go on.
#[test]
fn while_etcd_is_out_of_reach_only_writes_wait() {
    let Some(mut etcd) = Etcd::start() else { return };
    let pair = Pair::with_store("etcd-outage", &etcd.url());
    let _first = pair.start(0);
    let mut writer = began(&pair);
    let responder = pair.responder();
    responder.wait_for("serving generation");
    pair.runtime.block_on(writer.write(60));
    // One member of three is no outage.
    etcd.kill(0);
    pair.runtime.block_on(writer.write(60));
    etcd.signal(1, libc::SIGSTOP);
    pair.await_status(0, "the outage is reported", |status| {
        status.warnings.iter().any(|warning| warning.contains("registrations are not acknowledged"))
    });
    let status = pair.status(0).expect("it runs");
    assert!(status.subnet_up && status.responders.iter().all(|entry| entry.current), "{status:?}");
    assert_eq!(writer.differences(&pair.snapshot(0)), (0, 0), "what is published stays");
    etcd.signal(1, libc::SIGCONT);
    pair.runtime.block_on(writer.write(60));
    pair.await_status(0, "no warning is left", |status| {
        status.warnings.iter().all(|warning| !warning.contains("not acknowledged"))
    });
    assert_eq!(writer.differences(&pair.snapshot(0)), (0, 0));
}

/// Regression: it was reported as out of reach, and all members were asked again and again.
#[test]
fn an_etcd_without_room_is_reported_as_that() {
    let Some(etcd) = Etcd::start_with_quota(4 << 20) else { return };
    let pair = Pair::with_store("etcd-full", &etcd.url());
    let _first = pair.start(0);
    let mut writer = began(&pair);
    pair.runtime.block_on(writer.write(30));
    etcd.fill();
    // It is not acknowledged.
    let write = async { tokio::time::timeout(Duration::from_secs(1), writer.write(1)).await };
    assert!(pair.runtime.block_on(write).is_err());
    pair.await_status(0, "the reason is shown", |status| {
        let is_it = |warning: &String| warning.contains("database space exceeded");
        status.subnet_up && status.warnings.iter().any(is_it)
    });
}

/// LIDs of ports that are off are in etcd, too, for a manager that never saw those ports.
#[test]
fn a_host_that_was_off_at_a_takeover_comes_back_with_its_lid() {
    let Some(etcd) = Etcd::start() else { return };
    let pair = Pair::with_store("etcd-absent-host", &etcd.url());
    keep_lid_of_absent_host(&pair, true, |pair, guid| {
        let file = pair.subnet.sandbox.path("state-1").join("guid2lid");
        let has_lid = || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            text.contains(&guid.to_string())
        };
        pair.await_status(1, "the standby has the LIDs", |_| has_lid());
    });
}

/// The member that leads, and each of the others, loses its peers but not its clients: writes wait
/// for another member.
#[test]
fn a_member_without_its_peers_keeps_no_write_waiting_for_long() {
    let Some(etcd) = Etcd::start() else { return };
    let pair = Pair::with_store("etcd-peers", &etcd.url());
    let first = pair.start(0);
    let mut writer = began(&pair);
    for member in 0..3 {
        let led = etcd.leader().expect("one leads");
        etcd.cut_off(member, true);
        let deadline = Instant::now() + PATIENCE;
        while member == led && etcd.leader().is_none_or(|now| now == led) {
            assert!(Instant::now() < deadline, "no other member leads");
            pair.runtime.block_on(writer.write(30));
        }
        pair.runtime.block_on(writer.write(300));
        etcd.cut_off(member, false);
    }
    assert_eq!(writer.differences(&pair.snapshot(0)), (0, 0), "{}", first.log());
}
