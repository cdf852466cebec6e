//! Rounds of failover and failback with real processes, while clients write through two
//! responders: what was acknowledged is there after each round, what was deleted does not return,
//! and clients are asked to register again only where that is documented.
//!
//! `ROUNDS` (2) is the number of rounds of each mode, `ROUNDS_RATE` (400) of writes a second,
//! `ROUNDS_SEED` selects another sequence of faults, `ROUNDS_FAULT` (`Kill`, `Pause` …) has only
//! faults of one kind; `ROUNDS_LOG` prints a line for each round, `ROUNDS_LOG=all` the managers'
//! logs, too.
//! `scripts/rounds.sh` runs as many as wanted with optimised programs.

mod calls;
mod clients;
mod faults;
mod way;

use std::env;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use crate::chaos_support::Dice;
use crate::support::pair::Pair;
use crate::support::{Host, hosts, variable};
use benches::etcd::Etcd;
use benches::sandbox::{PATIENCE, Program, free_address};
use benches::small_disk::SmallDisk;
use benches::system_calls::can_kill_at_calls;
use benches::wall_clock::WallClock;
use clients::Clients;
use faults::{Fault, Mode};
use sa_proto::proto::admin::{Responder, Status};
use way::Way;

fn env_is(name: &str, text: &str) -> bool {
    env::var(name).is_ok_and(|value| value == text)
}

/// How long outcomes are kept for requests that are repeated, with some margin.
const OUTCOMES_KEPT: Duration = Duration::from_secs(9);

/// Room on the disk of a manager's host, bytes.
const DISK_LEN: usize = 64 << 20;

/// Two managers or one, two responders, clients, and perhaps a cluster of etcd.
struct Site {
    // Before the sandbox with their logs.
    managers: [Option<Program>; 2],
    responders: [Option<Program>; 2],
    /// Disks and clocks of the managers' hosts, as far as they can fail here.
    disks: [Option<SmallDisk>; 2],
    clocks: [Option<WallClock>; 2],
    /// What the clocks show, apart from the time, seconds.
    ahead_s: [i64; 2],
    // After the disks, which are below its directory.
    pair: Pair,
    mode: Mode,
    can_kill_at_calls: bool,
    etcd: Option<Etcd>,
    listen: [SocketAddr; 2],
    clients: Clients,
    /// Numbers of the clients' hosts.
    numbers: Vec<usize>,
    /// How often the ports of each host were asked to register again.
    asked: Vec<u64>,
}

impl Site {
    fn new(mode: Mode, etcd: Option<Etcd>, seed: u64) -> Self {
        Self::with_clients(mode, etcd, seed, &CLIENTS.collect::<Vec<_>>(), false)
    }

    /// Clients at these hosts ask responders, or, through the fabric, the managers.
    fn with_clients(
        mode: Mode,
        etcd: Option<Etcd>,
        seed: u64,
        numbers: &[usize],
        through_fabric: bool,
    ) -> Self {
        let mut pair = match (&etcd, mode) {
            (Some(etcd), _) => Pair::with_store("rounds-etcd", &etcd.url()),
            (None, Mode::Alone) => Pair::strangers("rounds-alone"),
            (None, _) => Pair::new("rounds"),
        };
        if through_fabric {
            pair.hosts = HOSTS_APART;
        }
        let disks = [0, 1].map(|at| SmallDisk::mount(&pair.state(at), DISK_LEN));
        let clocks = [0, 1].map(|at| {
            let clock = WallClock::new(pair.subnet.sandbox.path(&format!("clock-{at}")));
            pair.environment[at].extend(clock.iter().flat_map(WallClock::environment));
            clock
        });
        let start = |at| pair.start_with(at, options(mode));
        let first = start(0);
        pair.await_master(0);
        let second = mode.has_standby().then(|| start(1));
        let listen = [free_address(), free_address()];
        let responders = [0, 1].map(|at| Some(pair.responder_at(at, listen[at])));
        responders
            .iter()
            .flatten()
            .for_each(|program| drop(program.wait_for("serving generation")));
        let hosts = client_hosts(&pair, numbers);
        let way = match through_fabric {
            true => Way::fabric(&pair.subnet.sandbox, numbers.iter().map(|number| node(*number))),
            false => Way::direct(listen),
        };
        let clients = Clients::new(&hosts, way, variable("ROUNDS_RATE", 400) as f64, seed);
        let mut site = Self {
            managers: [Some(first), second],
            responders,
            pair,
            mode,
            clocks,
            ahead_s: [0; 2],
            disks,
            can_kill_at_calls: can_kill_at_calls(),
            etcd,
            listen,
            clients,
            numbers: numbers.to_vec(),
            asked: Vec::new(),
        };
        site.await_whole();
        site.asked = site.count_asked();
        site
    }

    /// How often each of the clients' hosts was asked to register again.
    fn count_asked(&self) -> Vec<u64> {
        let sandbox = &self.pair.subnet.sandbox;
        self.numbers.iter().map(|number| sandbox.reregistrations_of(&node(*number))).collect()
    }

    /// Lets clients go on for this time.
    fn run_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.clients.run();
        }
    }

    /// Lets clients repeat their requests for this time, and send no others.
    fn run_idle(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.clients.wait();
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
        let has_standby = self.mode.has_standby();
        self.run_until(0, "is master and served", |status| {
            let writes = !is_etcd || status.store.contains("this manager holds the fence");
            let follows = status.followers.iter().any(|follower| follower.in_step);
            let follows = is_etcd || !has_standby || follows;
            let serving = status.responders.iter().filter(|responder| responder.current).count();
            status.subnet_up && writes && follows && serving == 2
        });
        if !has_standby {
            // Without it the next start asks clients to register again.
            while !self.pair.state(0).join("tables").exists() {
                self.run_for(Duration::from_millis(50));
            }
            return;
        }
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

    fn round(&mut self, round: u64, fault: Fault, dice: &mut Dice) {
        self.run_for(Duration::from_millis(500 + dice.below(1000)));
        let began = Instant::now();
        self.suffer(fault, dice);
        self.run_for(Duration::from_millis(dice.below(1000)));
        self.await_whole();
        let line = self.check(fault, began);
        if env::var_os("ROUNDS_LOG").is_some() {
            eprintln!("{:?} {round}: {line}", self.mode);
        }
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
        // In etcd nothing is missing before they do.
        if self.mode.has_files() {
            self.clients.register_again(&is_asked);
        }
        let seen = std::mem::take(&mut self.clients.seen);
        assert!(seen.failed.is_empty(), "{context}: final errors: {:#?}", seen.failed);
        let refused = seen.refused;
        assert!(refused == 0 || fault.may_refuse(self.mode), "{context}: {refused} refused");
        // Hosts are asked if writes continued without the standby: their outcomes are unknown, too.
        let keeps_outcomes = fault.keeps_outcomes(self.mode) && hosts == 0;
        let histories = |of: &[(usize, u64)]| {
            let histories = of.iter().take(3).map(|&(host, id)| self.clients.history(host, id));
            histories.collect::<Vec<_>>().join("\n")
        };
        assert!(
            seen.missing.is_empty() || !keeps_outcomes || seen.longest > OUTCOMES_KEPT,
            "{context}: {} deletions of what was not there\n{}",
            seen.missing.len(),
            histories(&seen.missing),
        );
        let since = Instant::now();
        let mut differences = self.clients.differences(&self.pair.snapshot(0), since);
        let mut undone = Vec::new();
        if fault.may_undo_deletions(self.mode) {
            undone = differences.returned.extract_if(.., |(host, _)| is_asked[*host]).collect();
        }
        let (lost, returned) = (&differences.lost, &differences.returned);
        assert!(
            lost.is_empty() && returned.is_empty(),
            "{context}: {} lost, {} returned; {hosts} hosts were asked\n{}\n{}",
            lost.len(),
            returned.len(),
            histories(lost),
            histories(returned),
        );
        self.clients.forget(&undone);
        let undone = undone.len();
        self.await_whole_and_read();
        format!(
            "{fault:?}: {:.1} s, {} acknowledged, {} repeats, longest wait {:.1} s, {hosts} asked, \
             {refused} refused, {} deletions of what was not there, {undone} undone",
            began.elapsed().as_secs_f64(),
            seen.acknowledged,
            seen.repeats,
            seen.longest.as_secs_f64(),
            seen.missing.len(),
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
        Mode::Alone | Mode::Follow | Mode::Etcd => &[],
    }
}

/// Numbers of the hosts where clients are; the managers are at the first two.
const CLIENTS: RangeInclusive<usize> = 3..=16;

/// Numbers of the managers' hosts on either side of a fabric that is split.
const HOSTS_APART: [usize; 2] = [1, 16];
/// Numbers of clients' hosts on both sides: four hosts are at the last switch.
const CLIENTS_APART: [usize; 6] = [2, 3, 5, 13, 14, 15];
/// The last switch, and its ports that lead to others.
const CUT: (&str, [&str; 4]) = ("leaf004", ["5", "6", "7", "8"]);

fn node(number: usize) -> String {
    format!("node{number:05} HCA-1")
}

/// The hosts of these numbers, in their order.
fn client_hosts(pair: &Pair, numbers: &[usize]) -> Vec<Host> {
    let all = hosts(&pair.snapshot(0));
    let lid = |number| pair.subnet.sandbox.node(&node(number))["ports"][0]["lid"].as_u64();
    let of = |number| all.iter().find(|host| Some(u64::from(host.lid.0)) == lid(number)).copied();
    numbers.iter().map(|number| of(*number).expect("a host with a LID")).collect()
}

/// As many rounds as wanted: each fault once, then any.
fn rounds(mode: Mode, etcd: Option<Etcd>) {
    let faults = mode.faults();
    let named = faults.iter().filter(|fault| env_is("ROUNDS_FAULT", &format!("{fault:?}")));
    let named: Vec<Fault> = named.copied().collect();
    let faults = if named.is_empty() { faults } else { &named };
    rounds_of(mode, etcd, faults, variable("ROUNDS", 2));
}

fn rounds_of_splits(mode: Mode, etcd: Option<Etcd>, rounds: u64) {
    let seed = variable("ROUNDS_SEED", 1);
    let mut dice = Dice::new(seed);
    let mut site = Site::with_clients(mode, etcd, seed, &CLIENTS_APART, true);
    (0..rounds).for_each(|round| site.round(round, Fault::Split, &mut dice));
}

fn rounds_of(mode: Mode, etcd: Option<Etcd>, faults: &[Fault], rounds: u64) {
    let seed = variable("ROUNDS_SEED", 1);
    let mut dice = Dice::new(seed);
    let mut site = Site::new(mode, etcd, seed);
    let faults: Vec<Fault> = faults.iter().copied().filter(|it| it.can_happen(&site)).collect();
    for round in 0..rounds {
        let any = dice.one(faults.iter().copied());
        let Some(fault) = faults.get(round as usize).copied().or(any) else { return };
        site.round(round, fault, &mut dice);
    }
    if env_is("ROUNDS_LOG", "all") {
        site.managers.iter().flatten().for_each(|program| eprintln!("{}", program.log()));
    }
}

#[test]
fn nothing_is_lost_by_a_manager_without_others() {
    rounds(Mode::Alone, None);
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

/// Regression: it became master, and neither published nor stored anything until there was room.
#[test]
fn a_standby_whose_disk_is_full_takes_over_with_etcd() {
    let Some(etcd) = Etcd::start() else { return };
    rounds_of(Mode::Etcd, Some(etcd), &[Fault::StandbyDiskFullAndKill], 1);
}

#[test]
fn nothing_is_lost_when_clocks_are_set_and_disks_are_full() {
    use Fault::{Clock, DiskFull, KillAtCall, StandbyDiskFull};
    let faults = [Clock, DiskFull, KillAtCall, StandbyDiskFull];
    rounds_of(Mode::FollowSync, None, &faults, faults.len() as u64);
}

/// Regression: the master that had its link back put the question of an election of its own to the
/// next master, and its last changes were not sent.
#[test]
fn nothing_is_lost_when_the_masters_own_link_fails() {
    rounds_of(Mode::Follow, None, &[Fault::OwnLink; 2], 2);
}

#[test]
fn nothing_is_lost_when_the_fabric_is_split_unless_clients_are_asked() {
    rounds_of_splits(Mode::FollowSync, None, variable("ROUNDS", 1));
}

#[test]
fn nothing_is_lost_when_the_fabric_is_split_and_etcd_is_not() {
    let Some(etcd) = Etcd::start() else { return };
    rounds_of_splits(Mode::Etcd, Some(etcd), variable("ROUNDS", 1));
}
