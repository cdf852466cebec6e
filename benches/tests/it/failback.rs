//! Two subnet managers that follow each other: whichever is master, everything that was
//! acknowledged is there, or its client was asked to register again.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::pair::{Pair, Writer};
use benches::sandbox::PATIENCE;
use sa_proto::proto::admin::Counter;

/// Regression: the preferred manager returned and took over at once, and its outdated registry
/// replaced the current one: with a slow feed 1,500 of 2,250 acknowledged records were lost, and
/// 750 deleted ones came back.
#[test]
fn a_preferred_manager_that_returns_takes_over_with_everything_that_was_acknowledged() {
    let (pair, mut first, second) = Pair::in_step("failback");
    let mut writer = pair.copied_writer();
    first.kill_and_wait();
    pair.await_master(1);
    pair.runtime.block_on(writer.write(600));
    let asked = pair.subnet.sandbox.reregistrations();
    // The returning manager needs a while for its copy.
    pair.links[0].delay_ms.store(150, Relaxed);
    let first = pair.start(0);
    let deadline = Instant::now() + PATIENCE;
    // Writes go on until it is master.
    while pair.status(0).is_none_or(|status| !status.subnet_up) {
        pair.runtime.block_on(writer.write(30));
        assert!(Instant::now() < deadline, "{}", first.log());
    }
    pair.runtime.block_on(writer.write(30));
    assert_eq!(writer.differences(&pair.snapshot(0)), (0, 0), "{}", first.log());
    pair.await_status(1, "standby", |status| status.sm_state == "standby");
    assert_eq!(pair.subnet.sandbox.reregistrations(), asked, "{}", first.log());
    drop(second);
}

/// Regression: a master that was stopped continued its old session, requested the subnet back, and
/// replaced the registry of the one that had taken over.
#[test]
fn a_master_that_was_stopped_and_continues_brings_nothing_of_before_back() {
    let (pair, first, _second) = Pair::in_step("pause");
    let mut writer = pair.copied_writer();
    first.signal(libc::SIGSTOP);
    pair.await_master(1);
    let stopped = std::mem::replace(&mut writer.publish[0], pair.publish[1]);
    pair.runtime.block_on(writer.write(300));
    writer.publish[0] = stopped;
    first.signal(libc::SIGCONT);
    pair.runtime.block_on(writer.write(30));
    let deadline = Instant::now() + PATIENCE;
    while pair.status(1).is_none_or(|status| status.sm_state != "standby") {
        pair.runtime.block_on(writer.write(30));
        assert!(Instant::now() < deadline, "{}", first.log());
    }
    pair.await_master(0);
    pair.runtime.block_on(writer.write(30));
    assert_eq!(writer.differences(&pair.snapshot(0)), (0, 0), "{}", first.log());
}

/// Regression: Packets of the feed were dropped while the master continued, and died: the standby
/// claimed to know all registrations, and asked no client.
#[test]
fn a_standby_whose_feed_was_cut_off_asks_clients_to_register_again() {
    let (pair, mut first, _second) = Pair::in_step("black-hole");
    let mut writer = Writer::new(&pair, &pair.snapshot(0));
    pair.runtime.block_on(writer.write(10));
    let asked = pair.subnet.sandbox.reregistrations();
    pair.links[1].is_cut.store(true, Relaxed);
    let cut = Instant::now();
    while cut.elapsed() < Duration::from_secs(6) {
        pair.runtime.block_on(writer.write(1));
        thread::sleep(Duration::from_millis(500));
    }
    first.kill_and_wait();
    assert_eq!(pair.subnet.sandbox.reregistrations(), asked, "before the takeover");
    pair.await_master(1);
    pair.await_reregistrations(asked);
}

/// A responder has the writes that it acknowledged: its registry is fetched, and no client is
/// asked. Regression: rows of more than 256 KiB, from 1,400 services on, were never accepted.
#[test]
fn what_the_copy_lacks_is_fetched_from_a_responder() {
    let (pair, mut first, second) = Pair::in_step("recall");
    let responder = pair.responder();
    responder.wait_for("serving generation");
    let mut writer = Writer::new(&pair, &pair.snapshot(0));
    for _ in 0..3 {
        pair.runtime.block_on(writer.write(1000));
    }
    // The last writes reach the responder, not the standby.
    pair.links[1].is_cut.store(true, Relaxed);
    pair.runtime.block_on(writer.write(30));
    let deadline = Instant::now() + PATIENCE;
    let published = pair.snapshot(0).version().registry_sequence;
    while pair.status(0).is_some_and(|status| {
        status.responders.iter().any(|entry| entry.registry_sequence < published)
    }) {
        assert!(Instant::now() < deadline, "the responder lags");
    }
    let asked = pair.subnet.sandbox.reregistrations();
    first.kill_and_wait();
    pair.await_master(1);
    pair.await_status(1, "a registry fetched from a responder", |status| {
        let recalled = |counter: &&Counter| counter.name == "feed_registries_recalled";
        status.counters.iter().find(recalled).is_some_and(|counter| counter.value == 1)
    });
    assert_eq!(pair.subnet.sandbox.reregistrations(), asked, "{}", second.log());
    assert_eq!(writer.differences(&pair.snapshot(1)), (0, 0), "{}", second.log());
}
