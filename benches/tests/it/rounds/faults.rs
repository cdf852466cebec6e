//! What fails in a round, and what is promised then.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{CUT, Site, node};
use crate::chaos_support::Dice;
use crate::support::pair::Link;
use benches::sandbox::{PATIENCE, Program};
use benches::small_disk::SmallDisk;
use benches::system_calls::kill_at;

/// What happens in a round, to the manager that is master unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
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
    /// Two members of etcd are.
    MembersPause,
    /// The member of etcd that leads is killed, and started again.
    Leader,
    /// A member of etcd is cut off from the others for some seconds.
    MemberCut,
    /// Its clock is set by an hour, and then it is killed, or restarted.
    Clock,
    /// The standby's clock is set by an hour, and then the master is killed.
    StandbyClock,
    /// There is no room on its disk for some seconds.
    DiskFull,
    /// The same, and it is killed before there is room.
    DiskFullAndKill,
    /// There is no room on the standby's disk for some seconds.
    StandbyDiskFull,
    /// The same, and the master is killed before there is room.
    StandbyDiskFullAndKill,
    /// It is killed at a system call of a commit, and started again at once.
    KillAtCall,
    /// It is stopped, for less time than a takeover takes, or for a little more.
    ShortPause,
    /// A responder is stopped for some seconds.
    ResponderPause,
    /// The standby is without its link and the management network, the master is killed
    /// meanwhile, and the standby comes back.
    Isolated,
    /// Its own link fails, and comes back after the other one is master.
    OwnLink,
    /// Links fail so that each manager is master of a part of the fabric, and come back.
    Split,
}

/// How long the registry may find room on a full disk.
const FULL_AFTER: Duration = Duration::from_secs(10);

/// How long after there is room on a disk a commit succeeds at the latest.
const UNTIL_COMMIT: Duration = Duration::from_millis(2_500);

/// Nodes of the fabric: switches and hosts.
const NODES: u32 = 22;

/// Lines that a failure may cost in the log, besides one for each second that it lasts.
const LINES_AT_ONCE: usize = 12;

/// Where registrations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// There is one manager.
    Alone,
    Follow,
    FollowSync,
    Etcd,
}

impl Mode {
    pub(super) fn faults(self) -> &'static [Fault] {
        use Fault::*;
        match self {
            Self::Alone => {
                &[Restart, Responder, DiskFull, Clock, KillAtCall, ShortPause, ResponderPause]
            }
            Self::Follow | Self::FollowSync => &[
                Kill,
                Term,
                Pause,
                ShortPause,
                ResponderPause,
                Isolated,
                OwnLink,
                CutAndKill,
                DelayAndKill,
                ResetAndKill,
                Restart,
                Standby,
                Responder,
                Both,
                Clock,
                StandbyClock,
                DiskFull,
                DiskFullAndKill,
                StandbyDiskFull,
                KillAtCall,
            ],
            Self::Etcd => &[
                Kill,
                Term,
                Pause,
                ShortPause,
                ResponderPause,
                Isolated,
                OwnLink,
                Restart,
                Standby,
                Responder,
                Both,
                Member,
                MemberPause,
                MembersPause,
                Leader,
                MemberCut,
                Clock,
                StandbyClock,
                DiskFull,
                StandbyDiskFull,
                StandbyDiskFullAndKill,
            ],
        }
    }

    /// Whether no client is asked to register again. All are if parts of a fabric are joined, each
    /// with a master, and with a file for each manager if the standby was without the feed for a
    /// while, or a responder is gone with the master.
    pub(super) fn asks_none(self, fault: Fault) -> bool {
        match fault {
            Fault::Split => false,
            // The one without the fence hands over to the other, which never stopped writing.
            Fault::OwnLink => self != Self::Etcd,
            Fault::CutAndKill | Fault::ResetAndKill | Fault::Both | Fault::Isolated => {
                self == Self::Etcd
            }
            _ => true,
        }
    }

    /// Whether writes are kept in the file of the manager that acknowledges them.
    pub(super) fn has_files(self) -> bool {
        self != Self::Etcd
    }

    /// Whether there is a second manager.
    pub(super) fn has_standby(self) -> bool {
        self != Self::Alone
    }
}

impl Fault {
    /// Whether all outcomes are known throughout, unless clients are asked to register again: a
    /// deletion whose answer is lost gets it again.
    pub(super) fn keeps_outcomes(self, mode: Mode) -> bool {
        use Fault::*;
        let others =
            [Restart, Standby, Responder, ResponderPause, DiskFull, StandbyDiskFull, KillAtCall];
        match mode {
            Mode::Follow => others.contains(&self),
            Mode::FollowSync => self != Split,
            Mode::Alone | Mode::Etcd => true,
        }
    }

    /// Whether registrations may be there again that clients have deleted which are asked to
    /// register again: each part of a split fabric has a registry of its own.
    pub(super) fn may_undo_deletions(self, mode: Mode) -> bool {
        self == Self::Split && mode.has_files()
    }

    /// Whether writes may be refused for lack of room.
    pub(super) fn may_refuse(self, mode: Mode) -> bool {
        mode.has_files() && matches!(self, Self::DiskFull | Self::DiskFullAndKill)
    }

    /// Whether it can happen at this site; programs may be missing.
    pub(super) fn can_happen(self, site: &Site) -> bool {
        match self {
            Self::Clock | Self::StandbyClock => site.clocks.iter().all(Option::is_some),
            Self::DiskFull
            | Self::DiskFullAndKill
            | Self::StandbyDiskFull
            | Self::StandbyDiskFullAndKill => site.disks.iter().all(Option::is_some),
            Self::KillAtCall => site.can_kill_at_calls,
            _ => true,
        }
    }
}

impl Site {
    /// Lets clients go on until the second manager is master.
    fn takeover(&mut self, dice: &mut Dice) {
        self.run_until(1, "takes over", |status| status.subnet_up);
        self.run_for(Duration::from_millis(dice.below(1500)));
    }

    fn link(&self) -> &Link {
        &self.pair.links[1]
    }

    pub(super) fn suffer(&mut self, fault: Fault, dice: &mut Dice) {
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
            Fault::ShortPause => {
                self.signal(libc::SIGSTOP);
                self.run_for(Duration::from_millis(100 + dice.below(2000)));
                self.signal(libc::SIGCONT);
            }
            Fault::ResponderPause => {
                let at = dice.below(2) as usize;
                let signal = |site: &Self, signal| {
                    site.responders[at].as_ref().expect("it runs").signal(signal);
                };
                signal(self, libc::SIGSTOP);
                self.run_for(Duration::from_millis(500 + dice.below(6000)));
                signal(self, libc::SIGCONT);
            }
            Fault::Isolated => {
                let (node, port) = (node(self.pair.hosts[1]), "1");
                self.pair.subnet.control(&["link-down", &node, port]);
                self.link().is_cut.store(true, Relaxed);
                self.run_for(Duration::from_millis(3000 + dice.below(3000)));
                self.kill(0);
                self.run_for(Duration::from_millis(dice.below(2000)));
                self.pair.subnet.control(&["link-up", &node, port]);
                self.link().is_cut.store(false, Relaxed);
                self.takeover(dice);
                self.start(0);
            }
            Fault::OwnLink => {
                let (node, port) = (node(self.pair.hosts[0]), "1");
                self.pair.subnet.control(&["link-down", &node, port]);
                self.takeover(dice);
                self.run_for(Duration::from_millis(dice.below(4000)));
                self.pair.subnet.control(&["link-up", &node, port]);
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
            Fault::MembersPause => {
                let running = dice.below(3) as usize;
                let signal = |site: &Self, signal| {
                    let etcd = site.etcd.as_ref().expect("etcd runs");
                    (0..3).filter(|at| *at != running).for_each(|at| etcd.signal(at, signal));
                };
                signal(self, libc::SIGSTOP);
                self.run_for(Duration::from_millis(500 + dice.below(6000)));
                signal(self, libc::SIGCONT);
            }
            Fault::Leader => {
                let etcd = self.etcd.as_mut().expect("etcd runs");
                let leader = etcd.leader().expect("one leads");
                etcd.kill(leader);
                self.run_for(Duration::from_millis(dice.below(4000)));
                self.etcd.as_mut().expect("etcd runs").start_again(leader);
            }
            Fault::MemberCut => {
                let etcd = self.etcd.as_ref().expect("etcd runs");
                let leader = etcd.leader().expect("one leads");
                let member = if dice.below(2) == 0 { leader } else { dice.below(3) as usize };
                etcd.cut_off(member, true);
                self.run_for(Duration::from_millis(500 + dice.below(8000)));
                self.etcd.as_ref().expect("etcd runs").cut_off(member, false);
            }
            Fault::Clock => {
                self.set_clock(0, dice);
                self.run_for(Duration::from_millis(200 + dice.below(2000)));
                self.kill(0);
                if self.mode.has_standby() && dice.below(2) == 0 {
                    self.takeover(dice);
                }
                self.start(0);
            }
            Fault::StandbyClock => {
                self.set_clock(1, dice);
                self.run_for(Duration::from_millis(200 + dice.below(2000)));
                self.kill(0);
                self.takeover(dice);
                self.start(0);
            }
            Fault::DiskFull => {
                self.fill_disk_of_master(dice);
                self.disk(0).make_room();
                // Leases that have ended meanwhile are still to be removed.
                self.run_for(UNTIL_COMMIT);
            }
            Fault::DiskFullAndKill => {
                self.fill_disk_of_master(dice);
                self.kill(0);
                self.run_for(Duration::from_millis(dice.below(3000)));
                self.disk(0).make_room();
                self.start(0);
            }
            Fault::StandbyDiskFull => {
                self.disk(1).fill();
                let before = self.log_lines(1);
                self.run_for(Duration::from_millis(2000 + dice.below(4000)));
                self.check_log(1, before);
                self.disk(1).make_room();
            }
            Fault::StandbyDiskFullAndKill => {
                self.disk(1).fill();
                self.run_for(Duration::from_millis(dice.below(2000)));
                self.kill(0);
                self.run_until(1, "takes over, and may write", |status| {
                    let serving = status.responders.iter().any(|responder| responder.current);
                    serving && status.store.contains("this manager holds the fence")
                });
                self.disk(1).make_room();
                self.start(0);
            }
            Fault::Split => {
                let control = |site: &Self, verb| {
                    let (switch, ports) = CUT;
                    ports.iter().for_each(|port| site.pair.subnet.control(&[verb, switch, port]));
                };
                control(self, "link-down");
                for at in [1, 0] {
                    self.run_until(at, "is master of its part", |status| {
                        status.subnet_up && status.nodes < NODES
                    });
                }
                self.run_for(Duration::from_millis(3000 + dice.below(4000)));
                control(self, "link-up");
                self.run_until(0, "finds all nodes", |status| {
                    status.subnet_up && status.nodes == NODES
                });
            }
            Fault::KillAtCall => {
                let nth = 1 + dice.below(60) as u32;
                self.kill_at_call(nth);
                self.start(0);
            }
        }
    }

    fn signal(&self, signal: i32) {
        self.managers[0].as_ref().expect("it runs").signal(signal);
    }

    fn disk(&self, at: usize) -> &SmallDisk {
        self.disks[at].as_ref().expect("it is mounted")
    }

    /// Leaves the master no room, and lets clients go on for some seconds.
    fn fill_disk_of_master(&mut self, dice: &mut Dice) {
        self.disk(0).fill();
        let before = self.log_lines(0);
        // A file that was larger before has pages to spare, and commits succeed for long.
        let until = before.1 + FULL_AFTER;
        while self.mode.has_files() && !self.reports_that_it_cannot_commit() {
            let now = Instant::now();
            if now >= until && self.clients.seen.refused == 0 {
                break;
            }
            assert!(now < until + PATIENCE, "writes are refused, which is not reported");
            self.run_for(Duration::from_millis(50));
        }
        self.run_for(Duration::from_millis(2000 + dice.below(4000)));
        self.check_log(0, before);
    }

    fn reports_that_it_cannot_commit(&self) -> bool {
        let status = self.pair.status(0).unwrap_or_default();
        let mut problems = status.problems.iter().flat_map(|all| &all.problems);
        problems.any(|problem| problem.kind == "registry_cannot_commit")
    }

    fn log_lines(&self, at: usize) -> (usize, Instant) {
        let log = self.managers[at].as_ref().expect("it runs").log();
        (log.lines().count(), Instant::now())
    }

    /// A failure that persists does not fill the log.
    fn check_log(&self, at: usize, (lines, since): (usize, Instant)) {
        let now = self.log_lines(at).0;
        let permitted = LINES_AT_ONCE + since.elapsed().as_secs() as usize;
        let log = || self.managers[at].as_ref().expect("it runs").log();
        assert!(
            now - lines <= permitted,
            "{} lines in {:?}:\n{}",
            now - lines,
            since.elapsed(),
            log()
        );
    }

    /// Sets the clock of a manager's host to another hour.
    fn set_clock(&mut self, at: usize, dice: &mut Dice) {
        let others = [-3600, 0, 3600].into_iter().filter(|ahead_s| *ahead_s != self.ahead_s[at]);
        self.ahead_s[at] = dice.one(others).expect("there are others");
        self.clocks[at].as_ref().expect("it can be set").set(self.ahead_s[at]);
    }

    /// Kills the master at this call, from now on, by which it changes the registry's file.
    fn kill_at_call(&mut self, nth: u32) {
        let tracer = self.attach(nth);
        let deadline = Instant::now() + PATIENCE;
        while !self.managers[0].as_mut().expect("it runs").has_ended() {
            assert!(Instant::now() < deadline, "call {nth} is not made:\n{}", tracer.log());
            self.run_for(Duration::from_millis(5));
        }
    }
    /// The program that kills the master at this call, from now on, by which it changes the
    /// registry's file.
    pub(super) fn attach(&self, nth: u32) -> Program {
        let file = self.pair.state(0).join("registry.redb");
        let master = self.managers[0].as_ref().expect("it runs");
        kill_at(&self.pair.subnet.sandbox, master, nth, &[file])
    }
}
