//! Tasks: work between sweeps.
//!
//! A task writes to the fabric while no sweep is under way. It sees the [`Subnet`] and itself,
//! never another task. The next sweep waits until its requests are answered or given up; they come
//! back to it as their [owner](super::owner).

use std::fmt;
use std::time::Instant;

use super::Sweeper;
use super::subnet::Subnet;

/// Work between sweeps.
pub(super) trait Task: fmt::Debug {
    /// When [`handle_timeout`](Self::handle_timeout) is due. It waits while a sweep is under way or
    /// requests are outstanding.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Performs due work: pushes requests to the subnet's exchange. No sweep is under way, and
    /// nothing is outstanding. Spurious calls are allowed.
    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant);

    /// Whether a sweep that is due at the same time goes first.
    fn yields_to_sweeps(&self) -> bool {
        false
    }

    /// Called between sweeps when no request is outstanding: sends the requests that waited for
    /// that, or reports to the caller.
    fn settled(&mut self, _subnet: &mut Subnet, _now: Instant) {}
}

impl Sweeper {
    /// The tasks, in the order in which they may write.
    fn tasks(&mut self) -> ([&mut dyn Task; 4], &mut Subnet) {
        let tasks: [&mut dyn Task; 4] =
            [&mut self.babbling, &mut self.multicast, &mut self.aliases, &mut self.reregistration];
        (tasks, &mut self.subnet)
    }

    /// When the first task is due.
    pub(super) fn tasks_due(&mut self) -> Option<Instant> {
        let (tasks, _) = self.tasks();
        tasks.iter().filter_map(|task| task.poll_timeout()).min()
    }

    /// Lets tasks continue, since nothing is outstanding.
    pub(super) fn settle_tasks(&mut self, now: Instant) {
        let (tasks, subnet) = self.tasks();
        for task in tasks {
            if subnet.exchange.is_idle() {
                task.settled(subnet, now);
            }
        }
    }

    /// Runs the tasks that are due and go before sweeps.
    pub(super) fn run_tasks(&mut self, now: Instant) {
        self.run_due(now, false);
    }

    /// Runs the tasks that are due and yield to sweeps, after the sweeps that are due have started.
    pub(super) fn run_yielding_tasks(&mut self, now: Instant) {
        self.run_due(now, true);
    }

    /// Runs tasks that are due, one at a time: the next waits for the requests of this one.
    fn run_due(&mut self, now: Instant, yields: bool) {
        if !self.sweep.is_idle() {
            return;
        }
        let (tasks, subnet) = self.tasks();
        for task in tasks.into_iter().filter(|task| task.yields_to_sweeps() == yields) {
            if subnet.exchange.is_idle() && task.poll_timeout().is_some_and(|due| due <= now) {
                task.handle_timeout(subnet, now);
            }
        }
    }
}
