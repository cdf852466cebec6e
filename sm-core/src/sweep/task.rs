//! Tasks: work between sweeps.
//!
//! A task writes to the fabric while no sweep is under way. It sees the [`Subnet`] and itself,
//! never another task. The next sweep waits until its requests are answered or given up.

use std::fmt;
use std::time::Instant;

use ib_mad::wire::mad::Status;

use super::Sweeper;
use super::subnet::Subnet;
use crate::smp::{Owner, Request};

/// Work between sweeps. Each request whose [`Owner`] names a task comes back to it exactly once: by
/// [`answered`](Self::answered), [`refused`](Self::refused) or [`silent`](Self::silent).
pub(super) trait Task: fmt::Debug {
    /// When [`handle_timeout`](Self::handle_timeout) is due. It waits while a sweep is under way or
    /// requests are outstanding.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Does what is due: pushes requests to the subnet's exchange. No sweep is under way, and
    /// nothing is outstanding. Spurious calls are allowed.
    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant);

    /// Whether a sweep that is due at the same time goes first.
    fn yields_to_sweeps(&self) -> bool {
        false
    }

    /// Called between sweeps whenever nothing is outstanding: sends what waited for that, or
    /// reports to the caller.
    fn settled(&mut self, _subnet: &mut Subnet, _now: Instant) {}

    /// Writes the data of a Set(). `None` if there is no longer anything to set.
    fn write(&self, subnet: &Subnet, request: Request, data: &mut [u8; 64]) -> Option<()>;

    /// Handles the attribute of a response with status 0.
    fn answered(&mut self, subnet: &mut Subnet, now: Instant, request: Request, data: &[u8; 64]);

    /// Handles a response with another status.
    fn refused(&mut self, subnet: &mut Subnet, now: Instant, request: Request, status: Status);

    /// Handles a request that got no response after all attempts.
    fn silent(&mut self, subnet: &mut Subnet, now: Instant, request: Request);
}

impl Sweeper {
    /// The tasks, in the order in which they may write.
    fn tasks(&mut self) -> ([&mut dyn Task; 4], &mut Subnet) {
        let tasks: [&mut dyn Task; 4] =
            [&mut self.babbling, &mut self.multicast, &mut self.aliases, &mut self.reregistration];
        (tasks, &mut self.subnet)
    }

    /// The task that a request belongs to, with the subnet; `None` if it belongs to sweeps.
    pub(super) fn task_of(&mut self, request: Request) -> Option<(&mut dyn Task, &mut Subnet)> {
        let task: &mut dyn Task = match request.kind.owner() {
            Owner::Sweep => return None,
            Owner::BabblingPorts => &mut self.babbling,
            Owner::Multicast => &mut self.multicast,
            Owner::Reregistration => &mut self.reregistration,
            Owner::AliasGuids => &mut self.aliases,
        };
        Some((task, &mut self.subnet))
    }

    /// Has the task that owns a request write its data.
    pub(super) fn write_for_task(&self, request: Request, data: &mut [u8; 64]) -> Option<()> {
        let task: &dyn Task = match request.kind.owner() {
            Owner::Sweep => return None,
            Owner::BabblingPorts => &self.babbling,
            Owner::Multicast => &self.multicast,
            Owner::Reregistration => &self.reregistration,
            Owner::AliasGuids => &self.aliases,
        };
        task.write(&self.subnet, request, data)
    }

    /// When the first task is due.
    pub(super) fn tasks_due(&self) -> Option<Instant> {
        let tasks: [&dyn Task; 4] =
            [&self.babbling, &self.multicast, &self.aliases, &self.reregistration];
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
