//! A manager that is killed at each system call by which it changes a file, one after the other.
//! `ROUNDS_CALLS` is how many are tried.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::faults::{Fault, Mode};
use super::{Site, env};
use crate::support::pair::Pair;
use crate::support::variable;
use benches::sandbox::PATIENCE;
use benches::system_calls::{can_kill_at_calls, killed_at};

/// Files of a state directory that each run writes.
const FILES: [&str; 10] = [
    "registry.redb",
    "guid2lid",
    "guid2mkey",
    "neighbors",
    "tables",
    "routing",
    "identity",
    "ibsm-client",
    "epoch",
    "cut-ports",
];
/// What a log has of a file that a run before has damaged.
const DAMAGE: [&str; 5] = ["damaged", "refused", "ignored", "cannot", "panicked"];

impl Site {
    /// Has a client write once, and kills the manager at this call of the commit; returns whether
    /// the commit has as many.
    fn commit_killed_at(&mut self, nth: u32) -> bool {
        let tracer = self.attach(nth);
        self.clients.begin_one();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.managers[0].as_mut().expect("it runs").has_ended() {
                return true;
            }
            if self.clients.are_answered() {
                // What follows the answer.
                self.run_idle(Duration::from_millis(200));
                return self.managers[0].as_mut().expect("it runs").has_ended();
            }
            assert!(Instant::now() < deadline, "no answer:\n{}", tracer.log());
            self.run_idle(Duration::from_millis(5));
        }
    }
}

#[test]
fn nothing_is_lost_when_a_manager_is_killed_at_any_call_of_a_commit() {
    if !can_kill_at_calls() {
        return;
    }
    let mut site = Site::new(Mode::Alone, None, 1);
    let mut calls = 0;
    for nth in 1..=variable("ROUNDS_CALLS", 4) as u32 {
        let began = Instant::now();
        if !site.commit_killed_at(nth) {
            break;
        }
        calls = nth;
        site.start(0);
        site.await_whole();
        let line = site.check(Fault::KillAtCall, began);
        if env::var_os("ROUNDS_LOG").is_some() {
            eprintln!("call {nth} of a commit: {line}");
        }
        let log = site.managers[0].as_ref().expect("it runs").log();
        let damage = DAMAGE.iter().find(|word| log.contains(**word));
        assert_eq!(damage, None, "call {nth}: {log}");
    }
    assert!(calls >= 2, "a commit writes, and syncs");
}

#[test]
fn a_manager_starts_after_it_was_killed_at_any_call_of_its_start() {
    if !can_kill_at_calls() {
        return;
    }
    let mut pair = Pair::strangers("calls");
    let state = pair.state(0);
    let drafts = FILES.map(|name| state.join(format!("{name}.new")));
    let files: Vec<PathBuf> = FILES.iter().map(|name| state.join(name)).chain(drafts).collect();
    // Every second one, since calls of several threads are the nth of their thread.
    for nth in (1..=2 * variable("ROUNDS_CALLS", 4) as u32).step_by(2) {
        let began = Instant::now();
        let _ = fs::remove_dir_all(&state);
        pair.before = killed_at(nth, &files);
        let mut killed = pair.start(0);
        let is_up = |pair: &Pair| pair.status(0).is_some_and(|status| status.subnet_up);
        let is_done = |pair: &Pair| is_up(pair) && state.join("tables").exists();
        while !killed.has_ended() && !is_done(&pair) {
            assert!(began.elapsed() < PATIENCE, "neither killed nor up:\n{}", killed.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        let was_killed = killed.has_ended();
        if !was_killed {
            killed.kill();
        }
        pair.before.clear();
        let manager = pair.start(0);
        pair.await_master(0);
        let log = manager.log();
        let damage = DAMAGE.iter().find(|word| log.contains(**word));
        assert_eq!(damage, None, "call {nth}: {log}");
        if env::var_os("ROUNDS_LOG").is_some() {
            eprintln!("call {nth} of a start: killed: {was_killed}, {:?}", began.elapsed());
        }
        if !was_killed {
            break;
        }
    }
}
