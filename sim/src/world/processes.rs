//! Processes: their turns, how they start and end; and what fails, and is repaired.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ib_mad::wire::attribute::PortState;

use super::{Event, Place, SETTLE_MAX, World};
use crate::client::Client;
use crate::config::Plant;
use crate::faults::{Fault, uplinks};
use crate::manager::{Around, Manager, Setup};
use crate::net::Proc;
use crate::random::Random;
use crate::responder::{self, Responder};
use crate::violation::Violation;

/// The longest stall of a feed: keepalive ends connections that are silent for longer.
const STALL_MAX: Duration = Duration::from_secs(4);
/// Time until another fault after one that may make another manager master.
const BURST: Duration = Duration::from_secs(2);
/// How long a master waits for a standby that is silent, about.
const GIVEN_UP: Duration = Duration::from_secs(3);
/// How often a responder keeps its snapshot for the next start.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn turn_manager(&mut self, index: usize) -> Result<(), Violation> {
        self.turns += 1;
        let place = &mut self.managers[index];
        if place.begin_turn(self.timeline.now()) {
            let due = place.process.as_mut().map(Manager::due_parts);
            return Err(Violation(format!("manager {index} does not rest: {due:?} is due")));
        }
        let Some(manager) = &mut place.process else { return Ok(()) };
        let mut around = Around { fabric: &mut self.fabric, net: &mut self.net };
        manager.turn(&mut around)?;
        if manager.panics() > 0 {
            return Err(Violation(format!("internal error in the registry of manager {index}")));
        }
        let published = std::mem::take(&mut manager.published);
        if self.disks[index].is_killed() {
            // What it sent before has left it.
            for (version, checksum) in published {
                self.oracle.note_published(version, checksum)?;
            }
            self.note(format_args!("manager {index} killed while it wrote"));
            let after = self.random.between(Duration::from_millis(100), Duration::from_secs(8));
            self.kill(Proc::Manager(index), after);
            return Ok(());
        }
        if let Some(time) = self.disks[index].take_stop() {
            for (version, checksum) in published {
                self.oracle.note_published(version, checksum)?;
            }
            let process = Proc::Manager(index);
            self.note(format_args!("manager {index} is stopped while it writes"));
            self.set_stopped(process, true);
            self.schedule(self.now() + time, Event::Resume(process));
            return Ok(());
        }
        place.due = manager.due();
        if self.program.asked() == Some(index) {
            self.poll_program();
        }
        let place = &mut self.managers[index];
        let Some(manager) = &mut place.process else { return Ok(()) };
        let held = manager.held();
        let acknowledges = manager.acknowledges();
        if manager.reported > held && manager.stored().is_some() {
            let reported = manager.reported;
            return Err(Violation(format!(
                "manager {index} reported {reported} as stored, and has stored {held}"
            )));
        }
        if self.oracle.stored(index).is_none_or(|(known, _)| *known != held)
            && let Some(stored) = manager.stored()
        {
            self.oracle.note_stored(index, stored);
        }
        if manager.is_publishing() && self.reign.0 != index {
            self.reign = (index, self.reign.1 + 1);
        }
        let begins = published.iter().any(|(version, _)| place.session != Some(version.session));
        if let Some((version, _)) = published.last() {
            place.session = Some(version.session);
            // With etcd a session is possible whose epoch cannot be saved here.
            let saved =
                if self.etcd.is_some() { self.disks[index].saved_epoch() } else { u64::MAX };
            place.saved_epoch = version.session.epoch.min(saved);
        }
        for (version, checksum) in published {
            self.note(format_args!("manager {index} publishes {version}"));
            self.oracle.note_published(version, checksum)?;
        }
        let is_other = |at: usize, place: &Place<Manager>| {
            at != index
                && !place.is_stopped
                && place.process.as_ref().is_some_and(Manager::acknowledges)
        };
        self.episode.had_two_masters |= self.has_two_masters();
        let mut others = self.managers.iter().enumerate();
        if acknowledges && others.any(|(at, place)| is_other(at, place)) {
            self.note_rival(index)?;
        }
        match acknowledges {
            true => self.note_acknowledging(held),
            false => self.check_in_step(index)?,
        }
        if begins && self.etcd.is_some() {
            // Registry time continues from the last commit: leases last longer by the time since.
            self.clients.iter_mut().for_each(Client::handle_session);
        }
        let place = &mut self.managers[index];
        let now_in = place.session.filter(|_| acknowledges);
        let takes_writes = now_in.is_some() && place.acknowledging != now_in;
        place.acknowledging = now_in.or(place.acknowledging);
        // With a shared store a session begins with what was read last, and takes no writes before
        // the store is read to its end.
        match self.etcd {
            Some(_) if takes_writes => self.check_begin(index),
            None if begins => self.check_begin(index),
            _ => Ok(()),
        }
    }

    fn has_two_masters(&self) -> bool {
        let works = |place: &&Place<Manager>| !place.is_stopped;
        let running = self.managers.iter().filter(works).filter_map(|at| at.process.as_ref());
        running.filter(|manager| manager.is_master() && !manager.hangs()).nth(1).is_some()
    }

    /// A manager has begun a session, or takes writes in it.
    fn check_begin(&self, index: usize) -> Result<(), Violation> {
        let Some(manager) = &self.managers[index].process else { return Ok(()) };
        let was_split = self.was_split && self.etcd.is_none();
        let incomplete = self.had_incomplete_takeover();
        if let Some((fault, _)) = &self.episode.fault
            && incomplete
            && fault.may_change_master()
            && (!matches!(fault, Fault::KillBoth(..)) || self.config.sync)
        {
            return Err(Violation(format!(
                "manager {index} has all clients asked, and only {fault:?} failed"
            )));
        }
        if incomplete && self.episode.is_shared {
            return Err(Violation(format!(
                "manager {index} has all clients asked, though the registry is in etcd"
            )));
        }
        if was_split || incomplete {
            return Ok(());
        }
        // Without its disk it publishes the fabric alone, and refuses registrations.
        let Some((_, rows)) = manager.stored() else { return Ok(()) };
        let plane = if self.etcd.is_some() { Arc::new(rows) } else { manager.plane() };
        let now = self.now();
        self.program.check(&plane).map_err(|what| {
            Violation(format!("manager {index} begins {}: {what}", manager.version()))
        })?;
        for client in &self.clients {
            let (moved, is_stored) = (self.has_moved, self.etcd.is_some());
            let checked = self.oracle.check_begin(now, client, &plane, moved, is_stored);
            checked.map_err(|Violation(what)| {
                Violation(format!("manager {index} begins {}: {what}", manager.version()))
            })?;
        }
        Ok(())
    }

    pub(super) fn turn_responder(&mut self, index: usize) -> Result<(), Violation> {
        self.turns += 1;
        let place = &mut self.responders[index];
        if place.begin_turn(self.timeline.now()) {
            return Err(Violation(format!("responder {index} does not rest")));
        }
        let Some(responder) = &mut place.process else { return Ok(()) };
        responder.turn(&mut Around { fabric: &mut self.fabric, net: &mut self.net })?;
        place.due = responder.due();
        for (tid, epoch) in std::mem::take(&mut responder.answers) {
            self.sources.insert(tid, (index, place.starts, epoch));
        }
        let now = self.timeline.now();
        if now >= self.kept[index].1
            && let Some(snapshot) = responder.saved.take()
        {
            self.kept[index] = (Some(snapshot), now + KEEP_INTERVAL);
        }
        for snapshot in std::mem::take(&mut responder.news) {
            let version = snapshot.version();
            self.oracle.check_installed(index, &snapshot)?;
            self.note(format_args!("responder {index} serves {version}"));
        }
        Ok(())
    }

    pub(super) fn start(&mut self, process: Proc) -> Result<(), Violation> {
        if self.is_running(process) {
            return Ok(());
        }
        let now = self.now();
        match process {
            Proc::Manager(index) => {
                let place = &mut self.managers[index];
                let (epoch, saved) = (place.saved_epoch, self.disks[index].saved_epoch());
                if saved < epoch {
                    return Err(Violation(format!(
                        "manager {index} has saved epoch {epoch}, and finds {saved} on its disk"
                    )));
                }
                place.starts += 1;
                let random =
                    Random::new(self.config.seed, 1000 * (index as u64 + 1) + place.starts);
                let started = Manager::start(
                    self.setups[index].clone(),
                    place.clock.clone(),
                    self.disks[index].clone(),
                    random,
                    &mut self.fabric,
                );
                match started {
                    Ok(manager) => {
                        if let Some(stored) = manager.stored() {
                            self.oracle.check_stored(index, &stored)?;
                        }
                        place.session = None;
                        place.process = Some(manager);
                        (place.is_dirty, place.due) = (true, None);
                    }
                    Err(reason) => {
                        // As an operator's supervisor would.
                        self.note(format_args!("manager {index} cannot start: {reason}"));
                        self.disks[index].end_process();
                        if self.calm_since.is_some() || reason.contains("damaged") {
                            let what = format!("manager {index} cannot start: {reason}");
                            return Err(Violation(what));
                        }
                        self.schedule(now + Duration::from_secs(1), Event::Start(process));
                        return Ok(());
                    }
                }
            }
            Proc::Responder(index) => {
                let place = &mut self.responders[index];
                place.starts += 1;
                let random =
                    Random::new(self.config.seed, 5000 * (index as u64 + 1) + place.starts);
                let host = self.responder_hosts.get(index).copied();
                let guid = host.and_then(|host| self.fabric.port(host, 1)).map(|port| port.guid);
                let setup = responder::Setup {
                    index,
                    managers: self.config.managers,
                    port: host.zip(guid),
                    is_stale: self.config.plant == Some(Plant::StaleTables),
                };
                let started = Responder::start(
                    setup,
                    place.clock.clone(),
                    random,
                    self.kept[index].0.clone(),
                    &mut self.fabric,
                );
                match started {
                    Ok(responder) => {
                        place.process = Some(responder);
                        (place.is_dirty, place.due) = (true, None);
                    }
                    Err(error) => return Err(Violation(format!("cannot start: {error}"))),
                }
            }
        }
        self.note(format_args!("{process:?} starts"));
        Ok(())
    }

    /// A process ends without a word, and starts again after a while.
    pub(super) fn kill(&mut self, process: Proc, after: Duration) {
        let now = self.now();
        match process {
            Proc::Manager(index) => {
                self.episode.manager_ended = true;
                self.disks[index].end_process();
                self.managers[index].queue.clear();
                if let Some(manager) = self.managers[index].process.take() {
                    self.oracle.note_ended(&manager);
                    self.fabric.detach(now, manager.endpoint());
                }
            }
            Proc::Responder(index) => {
                self.responders[index].queue.clear();
                let process = self.responders[index].process.take();
                if let Some(endpoint) = process.and_then(|responder| responder.endpoint()) {
                    self.fabric.detach(now, endpoint);
                }
            }
        }
        self.set_stopped(process, false);
        self.net.end_process(now, process);
        self.note(format_args!("{process:?} ends"));
        self.schedule(now + after, Event::Start(process));
    }

    fn set_stopped(&mut self, process: Proc, is_stopped: bool) {
        match process {
            Proc::Manager(index) => {
                let place = &mut self.managers[index];
                place.is_stopped = is_stopped;
                if !is_stopped {
                    place.clock.set_ahead(Duration::ZERO);
                }
            }
            Proc::Responder(index) => self.responders[index].is_stopped = is_stopped,
        }
        self.net.set_stopped(process, is_stopped);
    }

    pub(super) fn resume(&mut self, process: Proc) {
        if !self.is_stopped(process) {
            return;
        }
        self.set_stopped(process, false);
        match process {
            Proc::Manager(index) => self.empty_queue(index),
            Proc::Responder(index) => {
                let place = &mut self.responders[index];
                place.is_dirty = true;
                let queue = std::mem::take(&mut place.queue);
                if let Some(responder) = &mut place.process {
                    queue.into_iter().for_each(|packet| responder.handle_packet(packet));
                    responder.handle_resume();
                }
            }
        }
        self.note(format_args!("{process:?} goes on"));
    }

    /// The service loop of a manager no longer hangs.
    fn go_on(&mut self, index: usize) {
        let Some(manager) = &mut self.managers[index].process else { return };
        manager.set_hangs(false);
        self.empty_queue(index);
    }

    /// A manager takes the packets that waited at its port, if it can.
    fn empty_queue(&mut self, index: usize) {
        let place = &mut self.managers[index];
        place.is_dirty = true;
        if let Some(manager) = place.process.as_mut().filter(|manager| !manager.hangs()) {
            let queue = std::mem::take(&mut place.queue);
            queue.into_iter().for_each(|mut packet| manager.handle_packet(&mut packet));
        }
    }

    /// The master is killed, or its host loses power.
    pub(super) fn strike(&mut self) {
        let is_master = |place: &Place<Manager>| {
            place.process.as_ref().is_some_and(|manager| manager.is_publishing())
        };
        let Some(index) = self.managers.iter().position(is_master) else { return };
        let lasts = self.random.between(Duration::from_millis(100), Duration::from_secs(15));
        if self.random.one_in(2) {
            self.note(format_args!("fault: manager {index} loses power while one may be behind"));
            return self.lose_power(index, lasts);
        }
        self.note(format_args!("fault: manager {index} is killed while another may be behind"));
        self.kill(Proc::Manager(index), lasts);
    }

    /// The host of a manager loses power: that whose disk could not write what it was given.
    pub(super) fn black_out(&mut self, index: usize) {
        let lasts = self.random.between(Duration::from_millis(100), Duration::from_secs(5));
        self.note(format_args!("fault: manager {index} loses power after its disk failed"));
        self.calm_since = None;
        self.lose_power(index, lasts);
    }

    /// The host of a manager loses power, and boots after this time.
    fn lose_power(&mut self, index: usize, lasts: Duration) {
        let now = self.now();
        self.kill(Proc::Manager(index), lasts);
        self.disks[index].cut_power(&mut self.random);
        self.managers[index].clock.reboot();
        // From one boot to the next registry time follows the time of day.
        if std::mem::take(&mut self.has_stepped[index]) {
            self.clients.iter_mut().for_each(|client| client.handle_jump(now));
        }
    }

    /// The adversary's next move.
    pub(super) fn fault(&mut self) {
        let fault = self.adversary.choose(
            &self.config,
            &self.fabric,
            &self.setups.iter().map(|setup| setup.host).collect::<Vec<_>>(),
            self.episode.is_single,
        );
        let now = self.now();
        self.note(format_args!("fault: {fault:?}"));
        if fault.is_hard() {
            self.calm_since = None;
        }
        // Many defects need a second fault while one manager takes over from another.
        let is_single = self.episode.is_single;
        // A master waits for a standby that is isolated, then goes on alone and dies.
        let given_up = match fault {
            Fault::Isolated(_) if !is_single => GIVEN_UP,
            _ => Duration::ZERO,
        };
        if fault.may_change_master() && given_up.is_zero() && !is_single && self.random.one_in(2) {
            let next = self.random.between(Duration::ZERO, BURST);
            self.schedule(now + next, Event::Fault);
        }
        if fault.delays_standby() && !is_single && self.random.one_in(2) {
            let next = given_up + self.random.between(Duration::ZERO, BURST);
            self.schedule(now + next, Event::Strike);
        }
        self.has_moved |= fault.moves_ports();
        let random = &mut self.random;
        let longest = Duration::from_secs(if random.one_in(2) { 2 } else { 15 });
        let lasts = random.between(Duration::from_millis(100), longest);
        // Long enough to see whether others take its place.
        let lasts = lasts + if is_single { 2 * BURST } else { Duration::ZERO };
        let lasts = match fault {
            // Longer than writes may wait for another manager.
            Fault::Hang(_) if is_single => lasts + SETTLE_MAX / 2,
            // A standby that is isolated returns after its master's death.
            _ if !given_up.is_zero() => given_up + BURST + lasts.min(2 * BURST),
            _ => lasts,
        };
        if is_single {
            self.episode.fault = Some((fault.clone(), lasts));
        }
        match fault.clone() {
            Fault::Kill(process) => return self.kill(process, lasts),
            Fault::KillBoth(manager, responder) => {
                self.kill(Proc::Responder(responder), lasts);
                return self.kill(Proc::Manager(manager), lasts);
            }
            Fault::PowerLoss(index) => return self.lose_power(index, lasts),
            Fault::Stop(process) => {
                if self.is_running(process) {
                    self.set_stopped(process, true);
                    let lasts = self.replace(process).unwrap_or(lasts);
                    self.schedule(now + lasts, Event::Resume(process));
                }
                return;
            }
            Fault::Hang(index) => {
                let Some(manager) = &mut self.managers[index].process else { return };
                manager.set_hangs(true);
            }
            Fault::Cut(from, to) => self.net.set_cut(from, to, true),
            Fault::Parts(part) => self.set_parts(&part, true),
            Fault::Stall(from, to) => {
                self.net.set_stalled(from, to, true);
                let lasts = lasts.min(STALL_MAX);
                return self.schedule(now + lasts, Event::Repair(fault));
            }
            Fault::SlowNetwork => {
                self.net.set_latency(Duration::from_millis(1), Duration::from_millis(80));
            }
            Fault::LossyDatagrams => self.net.datagram_loss = 5,
            Fault::LossyFabric => self.adversary.set_loss(&mut self.fabric, true),
            Fault::Link(node, port) => {
                let link = self.fabric.port(node, port).and_then(|port| port.link);
                let is_of = |setup: &Setup| link.is_some_and(|link| link.node == setup.host);
                let _ = self.fabric.link_down(now, node, port);
                // A part of the fabric may consist of a manager.
                self.was_split |= self.setups.iter().any(is_of) || self.is_split();
            }
            Fault::Split(leaf) => {
                self.was_split = true;
                for port in uplinks(&self.fabric, leaf) {
                    let _ = self.fabric.link_down(now, leaf, port);
                }
            }
            Fault::OwnLink(index) => {
                // With other faults it may be a split as any other.
                self.was_split |= !is_single;
                let _ = self.fabric.link_down(now, self.setups[index].host, 1);
            }
            Fault::Isolated(index) => {
                let _ = self.fabric.link_down(now, self.setups[index].host, 1);
                self.set_parts(&[Proc::Manager(index)], true);
                self.set_etcd(&Fault::EtcdCut(index), true);
            }
            Fault::Host(index) => return self.switch_host(now, index),
            Fault::Responders => return self.kill_responders(),
            Fault::Node(node) => {
                let _ = self.fabric.node_down(now, node);
                self.was_split |= self.is_split();
            }
            Fault::Disk(index, mut faults) => {
                self.episode.disk_failed = true;
                if let Some((_, time)) = &mut faults.stops_in {
                    *time = self.replace(Proc::Manager(index)).unwrap_or(*time);
                }
                self.disks[index].set_faults(faults);
                // What was not written is read until then.
                if faults.failing_syncs > 0 && self.config.single_faults && !is_single {
                    let after = self.random.between(lasts, lasts + 3 * BURST);
                    self.schedule(now + after, Event::Blackout(index));
                }
            }
            Fault::EtcdDown
            | Fault::EtcdMember(_)
            | Fault::EtcdCut(_)
            | Fault::EtcdLossy(_)
            | Fault::EtcdRefuses(_) => {
                self.set_etcd(&fault, true);
            }
            Fault::WallClock(index, seconds) => {
                self.managers[index].clock.set_wall_error(seconds);
                self.has_stepped[index] = true;
                // It may have booted without having read the time.
                if self.managers[index].process.is_none() {
                    self.clients.iter_mut().for_each(|client| client.handle_jump(now));
                }
            }
            Fault::Orders(index, orders) => {
                let manager = self.managers[index].process.as_mut();
                if let Some(manager) = manager.filter(|manager| !manager.hangs()) {
                    manager.order(orders);
                    self.managers[index].is_dirty = true;
                }
                return;
            }
        }
        self.schedule(now + lasts, Event::Repair(fault));
    }

    pub(super) fn repair(&mut self, fault: &Fault) {
        let now = self.now();
        match fault {
            Fault::Hang(index) => self.go_on(*index),
            Fault::Cut(from, to) => self.net.set_cut(*from, *to, false),
            Fault::Parts(part) => self.set_parts(part, false),
            Fault::Stall(from, to) => self.net.set_stalled(*from, *to, false),
            Fault::Link(node, port) => _ = self.fabric.link_up(now, *node, *port),
            Fault::Split(leaf) => {
                for port in uplinks(&self.fabric, *leaf) {
                    let _ = self.fabric.link_up(now, *leaf, port);
                }
            }
            Fault::OwnLink(index) => {
                self.joined = Some(now);
                let _ = self.fabric.link_up(now, self.setups[*index].host, 1);
            }
            Fault::Isolated(index) => {
                self.joined = Some(now);
                let _ = self.fabric.link_up(now, self.setups[*index].host, 1);
                self.set_parts(&[Proc::Manager(*index)], false);
                self.set_etcd(&Fault::EtcdCut(*index), false);
            }
            Fault::Node(node) => _ = self.fabric.node_up(now, *node),
            Fault::Disk(index, _) => self.disks[*index].set_faults(Default::default()),
            Fault::EtcdDown
            | Fault::EtcdMember(_)
            | Fault::EtcdCut(_)
            | Fault::EtcdLossy(_)
            | Fault::EtcdRefuses(_) => {
                self.set_etcd(fault, false);
            }
            Fault::LossyFabric => self.adversary.set_loss(&mut self.fabric, false),
            Fault::SlowNetwork => {
                self.net.set_latency(Duration::from_micros(40), Duration::from_micros(160));
            }
            Fault::LossyDatagrams => self.net.datagram_loss = 0,
            Fault::WallClock(..)
            | Fault::Kill(_)
            | Fault::KillBoth(..)
            | Fault::PowerLoss(_)
            | Fault::Stop(_)
            | Fault::Host(_)
            | Fault::Responders
            | Fault::Orders(..) => return,
        }
        self.note(format_args!("repaired: {fault:?}"));
    }

    /// Cuts these processes off from all others, or joins them again.
    fn set_parts(&mut self, part: &[Proc], is_cut: bool) {
        let all = (0..self.managers.len()).map(Proc::Manager);
        let all = all.chain((0..self.responders.len()).map(Proc::Responder));
        for other in all.filter(|process| !part.contains(process)) {
            for &process in part {
                self.net.set_cut(process, other, is_cut);
                self.net.set_cut(other, process, is_cut);
            }
        }
    }

    /// Causes a fault of etcd, or repairs it.
    fn set_etcd(&self, fault: &Fault, fails: bool) {
        let link = |index: usize| self.setups[index].etcd.as_ref();
        match *fault {
            Fault::EtcdDown => self.etcd.iter().for_each(|model| model.set_down(fails)),
            Fault::EtcdMember(index) => {
                self.etcd.iter().for_each(|model| model.set_member_down(index, fails));
            }
            Fault::EtcdRefuses(what) => {
                self.etcd.iter().for_each(|model| model.set_refuses(fails.then_some(what)));
            }
            Fault::EtcdCut(index) => link(index).into_iter().for_each(|link| link.set_cut(fails)),
            Fault::EtcdLossy(index) => {
                link(index).into_iter().for_each(|link| link.set_losses(if fails { 4 } else { 0 }));
            }
            _ => {}
        }
    }

    /// Often stops a manager just until another one has replaced it, of which a responder does not
    /// learn before it goes on; returns how long it is stopped.
    fn replace(&mut self, process: Proc) -> Option<Duration> {
        let Proc::Manager(index) = process else { return None };
        if self.config.managers < 2 || self.episode.is_single || self.random.one_in(3) {
            return None;
        }
        let other =
            (index + 1 + self.random.below(self.config.managers - 1)) % self.config.managers;
        let responder = self.random.below(self.config.responders);
        let (other, responder) = (Proc::Manager(other), Proc::Responder(responder));
        let settings = &self.setups[index].settings;
        let polls = settings.sminfo_polling_timeout * settings.polling_retry_number;
        let patience = Duration::from_millis(polls.into());
        let lasts = self.random.between(patience, patience * 5 / 2);
        let end = lasts + self.random.between(Duration::ZERO, Duration::from_secs(3));
        for (from, to) in [(other, responder), (responder, other)] {
            self.net.set_cut(from, to, true);
            self.schedule(self.now() + end, Event::Repair(Fault::Cut(from, to)));
        }
        Some(lasts)
    }

    /// Whether a manager cannot reach another one through the fabric.
    pub(super) fn is_split(&self) -> bool {
        let mut reached = BTreeSet::from([self.setups[0].host]);
        let mut open: Vec<_> = reached.iter().copied().collect();
        while let Some(node) = open.pop() {
            for port in 1..=self.fabric.node(node).num_ports {
                let Some(port) = self.fabric.port(node, port) else { continue };
                if port.state != PortState::Down
                    && let Some(link) = port.link
                    && reached.insert(link.node)
                {
                    open.push(link.node);
                }
            }
        }
        self.setups.iter().any(|setup| !reached.contains(&setup.host))
    }

    /// Repairs everything that still fails, and lets everything go on.
    pub(super) fn repair_all(&mut self) {
        let (mut repairs, mut rest) = (Vec::new(), Vec::new());
        let entries = std::mem::take(&mut self.agenda).into_sorted_vec();
        for entry in entries.into_iter().rev() {
            match entry.event {
                Event::Repair(fault) => repairs.push(Event::Repair(fault)),
                Event::Resume(process) => rest.push(Event::Resume(process)),
                Event::Start(process) => rest.push(Event::Start(process)),
                Event::Fault | Event::Strike | Event::Blackout(_) => {}
                _ => self.agenda.push(entry),
            }
        }
        let now = self.now();
        // What starts again finds everything repaired.
        for event in repairs.into_iter().chain(rest) {
            self.schedule(now, event);
        }
        self.net.heal();
    }
}
