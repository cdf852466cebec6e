//! Rounds of failover and failback with real processes, while clients write through two
//! responders: what was acknowledged is there after each round, what was deleted does not return,
//! and clients are asked to register again only where that is documented.
//!
//! `ROUNDS` (2) is the number of rounds of each mode, `ROUNDS_RATE` (400) of writes a second,
//! `ROUNDS_SEED` selects another sequence of faults, `ROUNDS_FAULT` (`Kill`, `Pause` …) has only
//! faults of one kind; `ROUNDS_LOG` prints a line for each round, `ROUNDS_LOG=all` the managers'
//! logs, too.
//! `scripts/rounds.sh` runs as many as wanted with optimised programs.

mod clients;

use std::env;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::chaos_support::Dice;
use crate::support::pair::{Link, Pair};
use crate::support::{Host, hosts, variable};
use benches::etcd::Etcd;
use benches::sandbox::{PATIENCE, Program, free_address};
use clients::Clients;
use sa_proto::proto::admin::{Responder, Status};

/// What happens in a round, to the manager that is master unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is killed, and started again once the other one is master.
    Kill,
    /// It ends in order, and is started again once the other one is master.
    Term,
    /// It is killed and started again at once.
    Restart,
    /// It is stopped until the other one is master.
    Pause,
    /// The standby receives nothing for some seconds, then it is killed.
    CutAndKill,
    /// The standby receives everything late; it is killed.
    DelayAndKill,
    /// Connections between the managers break again and again; it is killed.
    ResetAndKill,
    /// The standby is killed and started again.
    Standby,
    /// A responder is killed and started again.
    Responder,
    /// A responder is killed together with it.
    Both,
    /// A member of etcd is killed together with it.
    Member,
    /// A member of etcd is stopped for some seconds.
    MemberPause,
}

/// Where registrations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Follow,
    FollowSync,
    Etcd,
}

impl Mode {
    fn faults(self) -> &'static [Fault] {
        use Fault::*;
        match self {
            Self::Follow | Self::FollowSync => &[
                Kill,
                Term,
                Pause,
                CutAndKill,
                DelayAndKill,
                ResetAndKill,
                Restart,
                Standby,
                Responder,
                Both,
            ],
            Self::Etcd => {
                &[Kill, Term, Pause, Restart, Standby, Responder, Both, Member, MemberPause]
            }
        }
    }

    /// Whether no client is asked to register again. With a file for each manager all are asked if
    /// the standby was without the feed for a while, or a responder is gone with the master.
    fn asks_none(self, fault: Fault) -> bool {
        let may_ask = [Fault::CutAndKill, Fault::ResetAndKill, Fault::Both];
        self == Self::Etcd || !may_ask.contains(&fault)
    }
}

/// Whether all outcomes are known throughout: a deletion whose answer is lost gets it again.
fn keeps_outcomes(mode: Mode, fault: Fault) -> bool {
    let others = [Fault::Restart, Fault::Standby, Fault::Responder];
    mode != Mode::Follow || others.contains(&fault)
}

fn env_is(name: &str, text: &str) -> bool {
    env::var(name).is_ok_and(|value| value == text)
}

/// Two managers, two responders, clients, and perhaps a cluster of etcd.
struct Site {
    // Before the sandbox with their logs.
    managers: [Option<Program>; 2],
    responders: [Option<Program>; 2],
    pair: Pair,
    mode: Mode,
    etcd: Option<Etcd>,
    listen: [SocketAddr; 2],
    clients: Clients,
    /// How often the ports of each host were asked to register again.
    asked: Vec<u64>,
}

impl Site {
    fn new(mode: Mode, etcd: Option<Etcd>, seed: u64) -> Self {
        let pair = match &etcd {
            Some(etcd) => Pair::with_store("rounds-etcd", &etcd.url()),
            None => Pair::new("rounds"),
        };
        let start = |at| pair.start_with(at, options(mode));
        let first = start(0);
        pair.await_master(0);
        let second = start(1);
        let listen = [free_address(), free_address()];
        let responders = [0, 1].map(|at| Some(pair.responder_at(at, listen[at])));
        responders
            .iter()
            .flatten()
            .for_each(|program| drop(program.wait_for("serving generation")));
        let hosts = client_hosts(&pair);
        let clients = Clients::new(&hosts, listen, variable("ROUNDS_RATE", 400) as f64, seed);
        let managers = [Some(first), Some(second)];
        let mut site =
            Self { pair, mode, etcd, managers, listen, responders, clients, asked: Vec::new() };
        site.await_whole();
        site.asked = site.count_asked();
        site
    }

    /// How often each of the clients' hosts was asked to register again.
    fn count_asked(&self) -> Vec<u64> {
        CLIENTS.map(|n| self.pair.subnet.sandbox.reregistrations_of(&node(n))).collect()
    }

    /// Lets clients go on for this time.
    fn run_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.clients.run();
        }
    }

    /// Lets clients go on until a manager reports this.
    fn run_until(&mut self, at: usize, what: &str, is: impl Fn(&Status) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.pair.status(at);
            if status.as_ref().is_some_and(&is) {
                return;
            }
            assert!(Instant::now() < deadline, "manager {at}: {what}: {status:#?}");
            self.run_for(Duration::from_millis(50));
        }
    }

    /// Waits until the first manager is master, the second one can take over, and both responders
    /// serve.
    fn await_whole(&mut self) {
        let is_etcd = self.mode == Mode::Etcd;
        self.run_until(0, "is master and served", |status| {
            let writes = !is_etcd || status.store.contains("this manager holds the fence");
            let follows = is_etcd || status.followers.iter().any(|follower| follower.in_step);
            let serving = status.responders.iter().filter(|responder| responder.current).count();
            status.subnet_up && writes && follows && serving == 2
        });
        self.run_until(1, "stands by", |status| {
            let copy = status.registry_copy.as_ref();
            status.sm_state == "standby" && (is_etcd || copy.is_some_and(|copy| copy.in_step))
        });
    }

    fn start(&mut self, at: usize) {
        self.managers[at] = Some(self.pair.start_with(at, options(self.mode)));
    }

    fn kill(&mut self, at: usize) {
        self.managers[at].take().expect("it runs").kill();
    }

    /// Lets clients go on until the second manager is master.
    fn takeover(&mut self, dice: &mut Dice) {
        self.run_until(1, "takes over", |status| status.subnet_up);
        self.run_for(Duration::from_millis(dice.below(1500)));
    }

    fn link(&self) -> &Link {
        &self.pair.links[1]
    }

    fn suffer(&mut self, fault: Fault, dice: &mut Dice) {
        match fault {
            Fault::Kill => {
                self.kill(0);
                self.takeover(dice);
                self.start(0);
            }
            Fault::Term => {
                let first = self.managers[0].take().expect("it runs");
                first.signal(libc::SIGTERM);
                self.run_for(Duration::from_millis(100));
                let (status, log) = first.wait();
                assert!(status.success(), "{log}");
                self.takeover(dice);
                self.start(0);
            }
            Fault::Restart => {
                self.kill(0);
                self.start(0);
            }
            Fault::Pause => {
                self.signal(libc::SIGSTOP);
                self.takeover(dice);
                self.signal(libc::SIGCONT);
            }
            Fault::CutAndKill => {
                self.link().is_cut.store(true, Relaxed);
                self.run_for(Duration::from_millis(200 + dice.below(4000)));
                self.kill(0);
                self.takeover(dice);
                self.link().is_cut.store(false, Relaxed);
                self.start(0);
            }
            Fault::DelayAndKill => {
                self.link().delay_ms.store(20 + dice.below(200), Relaxed);
                self.run_for(Duration::from_millis(500 + dice.below(1000)));
                self.kill(0);
                self.takeover(dice);
                self.link().delay_ms.store(0, Relaxed);
                self.start(0);
            }
            Fault::ResetAndKill => {
                for _ in 0..5 {
                    self.link().reset();
                    self.run_for(Duration::from_millis(dice.below(500)));
                }
                self.kill(0);
                self.takeover(dice);
                self.start(0);
            }
            Fault::Standby => {
                self.kill(1);
                self.run_for(Duration::from_millis(dice.below(4000)));
                self.start(1);
            }
            Fault::Responder => {
                let at = dice.below(2) as usize;
                self.responders[at].take().expect("it runs").kill();
                self.run_for(Duration::from_millis(dice.below(1000)));
                self.responders[at] = Some(self.pair.responder_at(at, self.listen[at]));
            }
            Fault::Both => {
                let at = dice.below(2) as usize;
                self.responders[at].take().expect("it runs").kill();
                self.kill(0);
                self.takeover(dice);
                self.responders[at] = Some(self.pair.responder_at(at, self.listen[at]));
                self.start(0);
            }
            Fault::Member => {
                let member = dice.below(3) as usize;
                self.etcd.as_mut().expect("etcd runs").kill(member);
                self.kill(0);
                self.takeover(dice);
                self.etcd.as_mut().expect("etcd runs").start_again(member);
                self.start(0);
            }
            Fault::MemberPause => {
                let member = dice.below(3) as usize;
                self.etcd.as_ref().expect("etcd runs").signal(member, libc::SIGSTOP);
                self.run_for(Duration::from_millis(500 + dice.below(5000)));
                self.etcd.as_ref().expect("etcd runs").signal(member, libc::SIGCONT);
            }
        }
    }

    fn signal(&self, signal: i32) {
        self.managers[0].as_ref().expect("it runs").signal(signal);
    }

    /// Checks what was acknowledged; returns a line on the round.
    fn check(&mut self, fault: Fault, began: Instant) -> String {
        self.clients.finish();
        // What was asked with the last sweep.
        thread::sleep(Duration::from_millis(300));
        let asked = self.count_asked();
        let is_asked: Vec<bool> =
            asked.iter().zip(&self.asked).map(|(now, before)| now > before).collect();
        let hosts = is_asked.iter().filter(|asked| **asked).count();
        self.asked = asked;
        let context = format!("{:?}, {fault:?}", self.mode);
        assert!(hosts == 0 || !self.mode.asks_none(fault), "{context}: {hosts} hosts were asked");
        self.clients.register_again(&is_asked);
        let seen = std::mem::take(&mut self.clients.seen);
        assert!(seen.failed.is_empty(), "{context}: final errors: {:#?}", seen.failed);
        assert!(
            seen.missing == 0 || !keeps_outcomes(self.mode, fault),
            "{context}: {} deletions of what was not there",
            seen.missing
        );
        let histories = |of: &[(usize, u64)]| {
            let histories = of.iter().take(3).map(|&(host, id)| self.clients.history(host, id));
            histories.collect::<Vec<_>>().join("\n")
        };
        let differences = self.clients.differences(&self.pair.snapshot(0));
        let (lost, returned) = (&differences.lost, &differences.returned);
        assert!(
            lost.is_empty() && returned.is_empty(),
            "{context}: {} lost, {} returned; {hosts} hosts were asked\n{}\n{}",
            lost.len(),
            returned.len(),
            histories(lost),
            histories(returned),
        );
        self.await_whole_and_read();
        format!(
            "{fault:?}: {:.1} s, {} acknowledged, {} repeats, longest wait {:.1} s, {hosts} asked, \
             {} deletions of what was not there",
            began.elapsed().as_secs_f64(),
            seen.acknowledged,
            seen.repeats,
            seen.longest.as_secs_f64(),
            seen.missing,
        )
    }

    /// Both responders answer from what was acknowledged.
    fn await_whole_and_read(&mut self) {
        let published = self.pair.snapshot(0).registry().sequence;
        self.pair.await_status(0, "responders have all that is published", |status| {
            let has_all = |responder: &Responder| {
                responder.current && responder.registry_sequence >= published
            };
            status.responders.iter().filter(|responder| has_all(responder)).count() == 2
        });
        let wrong = self.clients.read(50);
        assert!(wrong.is_empty(), "responders answer otherwise: {wrong:x?}");
    }
}

fn options(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::FollowSync => &["--follow-sync"],
        Mode::Follow | Mode::Etcd => &[],
    }
}

/// Numbers of the hosts where clients are; the managers are at the first two.
const CLIENTS: RangeInclusive<usize> = 3..=16;

fn node(number: usize) -> String {
    format!("node{number:05} HCA-1")
}

/// The hosts where clients are, in the order of their numbers.
fn client_hosts(pair: &Pair) -> Vec<Host> {
    let all = hosts(&pair.snapshot(0));
    let lid = |number| pair.subnet.sandbox.node(&node(number))["ports"][0]["lid"].as_u64();
    let of = |number| all.iter().find(|host| Some(u64::from(host.lid.0)) == lid(number)).copied();
    CLIENTS.map(|number| of(number).expect("a host with a LID")).collect()
}

fn rounds(mode: Mode, etcd: Option<Etcd>) {
    let seed = variable("ROUNDS_SEED", 1);
    let mut dice = Dice::new(seed);
    let mut site = Site::new(mode, etcd, seed);
    for round in 0..variable("ROUNDS", 2) {
        site.run_for(Duration::from_millis(500 + dice.below(1000)));
        // Each kind once, then any.
        let faults = mode.faults();
        let named = faults.iter().filter(|fault| env_is("ROUNDS_FAULT", &format!("{fault:?}")));
        let named: Vec<Fault> = named.copied().collect();
        let faults = if named.is_empty() { faults } else { &named };
        let fault = match faults.get(round as usize) {
            Some(fault) => *fault,
            None => dice.one(faults.iter().copied()).expect("there are some"),
        };
        let began = Instant::now();
        site.suffer(fault, &mut dice);
        site.run_for(Duration::from_millis(dice.below(1000)));
        site.await_whole();
        let line = site.check(fault, began);
        if env::var_os("ROUNDS_LOG").is_some() {
            eprintln!("{mode:?} {round}: {line}");
        }
    }
    if env_is("ROUNDS_LOG", "all") {
        site.managers.iter().flatten().for_each(|program| eprintln!("{}", program.log()));
    }
}

#[test]
fn nothing_is_lost_by_managers_that_follow() {
    rounds(Mode::Follow, None);
}

#[test]
fn nothing_is_lost_by_managers_that_wait_for_those_that_follow() {
    rounds(Mode::FollowSync, None);
}

#[test]
fn nothing_is_lost_by_managers_that_share_etcd() {
    let Some(etcd) = Etcd::start() else { return };
    rounds(Mode::Etcd, Some(etcd));
}
