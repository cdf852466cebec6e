//! Processes: their turns, how they start and end; and what fails, and is repaired.

use std::time::Duration;

use super::{Event, PACE, Plant, World};
use crate::faults::Fault;
use crate::manager::{Around, Manager};
use crate::net::Proc;
use crate::oracle::Violation;
use crate::random::Random;
use crate::responder::Responder;

impl World {
    pub(super) fn turn_manager(&mut self, index: usize) -> Result<(), Violation> {
        self.turns += 1;
        let place = &mut self.managers[index];
        place.is_dirty = false;
        let Some(manager) = &mut place.process else { return Ok(()) };
        let mut around = Around { fabric: &mut self.fabric, net: &mut self.net };
        manager.turn(&mut around);
        if self.disks[index].is_killed() {
            self.note(format_args!("manager {index} killed while it wrote"));
            let after = self.random.between(Duration::from_millis(100), Duration::from_secs(8));
            self.kill(Proc::Manager(index), after);
            return Ok(());
        }
        let published = std::mem::take(&mut manager.published);
        place.due = manager.due().map(|due| due.max(self.timeline.now() + PACE));
        for (version, checksum) in published {
            self.note(format_args!("manager {index} publishes {version}"));
            self.oracle.note_published(version, checksum)?;
        }
        Ok(())
    }

    pub(super) fn turn_responder(&mut self, index: usize) -> Result<(), Violation> {
        self.turns += 1;
        let place = &mut self.responders[index];
        place.is_dirty = false;
        let Some(responder) = &mut place.process else { return Ok(()) };
        responder.turn(&mut self.net);
        place.due = responder.due().map(|due| due.max(self.timeline.now() + PACE));
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
                let started = Responder::start(
                    index,
                    process.address(),
                    self.config.managers,
                    place.clock.clone(),
                    random,
                    self.config.plant == Some(Plant::StaleTables),
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
    fn kill(&mut self, process: Proc, after: Duration) {
        let now = self.now();
        match process {
            Proc::Manager(index) => {
                self.disks[index].end_process();
                if let Some(manager) = self.managers[index].process.take() {
                    self.oracle.note_ended(&manager);
                    self.fabric.detach(now, manager.endpoint());
                }
            }
            Proc::Responder(index) => self.responders[index].process = None,
        }
        self.set_stopped(process, false);
        self.net.end_process(now, process);
        self.note(format_args!("{process:?} ends"));
        self.schedule(now + after, Event::Start(process));
    }

    fn set_stopped(&mut self, process: Proc, is_stopped: bool) {
        match process {
            Proc::Manager(index) => self.managers[index].is_stopped = is_stopped,
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
            Proc::Manager(index) => self.managers[index].is_dirty = true,
            Proc::Responder(index) => {
                let place = &mut self.responders[index];
                place.is_dirty = true;
                if let Some(responder) = &mut place.process {
                    responder.handle_resume();
                }
            }
        }
        self.note(format_args!("{process:?} goes on"));
    }

    /// The adversary's next move.
    pub(super) fn fault(&mut self) {
        let fault = self.adversary.choose(
            self.config.managers,
            self.config.responders,
            &self.fabric,
            &self.setups.iter().map(|setup| setup.host).collect::<Vec<_>>(),
        );
        let now = self.now();
        self.note(format_args!("fault: {fault:?}"));
        let random = &mut self.random;
        let lasts = random.between(Duration::from_millis(200), Duration::from_secs(15));
        match fault.clone() {
            Fault::Kill(process) => return self.kill(process, lasts),
            Fault::PowerLoss(index) => {
                self.kill(Proc::Manager(index), lasts);
                self.disks[index].cut_power(&mut self.random);
                self.managers[index].clock.reboot();
                return;
            }
            Fault::Stop(process) => {
                if self.is_running(process) {
                    self.set_stopped(process, true);
                    self.schedule(now + lasts, Event::Resume(process));
                }
                return;
            }
            Fault::Cut(from, to) => self.net.set_cut(from, to, true),
            Fault::SlowNetwork => {
                self.net.set_latency(Duration::from_millis(1), Duration::from_millis(80));
            }
            Fault::LossyDatagrams => self.net.datagram_loss = 5,
            Fault::LossyFabric => self.adversary.set_loss(&mut self.fabric, true),
            Fault::Link(node, port) => _ = self.fabric.link_down(now, node, port),
            Fault::Node(node) => _ = self.fabric.node_down(now, node),
            Fault::Disk(index, faults) => self.disks[index].set_faults(faults),
            Fault::WallClock(index, seconds) => self.managers[index].clock.set_wall_error(seconds),
            Fault::Orders(index, orders) => {
                if let Some(manager) = &mut self.managers[index].process {
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
            Fault::Cut(from, to) => self.net.set_cut(*from, *to, false),
            Fault::Link(node, port) => _ = self.fabric.link_up(now, *node, *port),
            Fault::Node(node) => _ = self.fabric.node_up(now, *node),
            Fault::Disk(index, _) => self.disks[*index].set_faults(Default::default()),
            Fault::LossyFabric => self.adversary.set_loss(&mut self.fabric, false),
            Fault::SlowNetwork => {
                self.net.set_latency(Duration::from_micros(40), Duration::from_micros(160));
            }
            Fault::LossyDatagrams => self.net.datagram_loss = 0,
            Fault::WallClock(..)
            | Fault::Kill(_)
            | Fault::PowerLoss(_)
            | Fault::Stop(_)
            | Fault::Orders(..) => return,
        }
        self.note(format_args!("repaired: {fault:?}"));
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
                Event::Fault => {}
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
