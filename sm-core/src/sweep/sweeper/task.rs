//! Runs the tasks between sweeps.

use std::time::Instant;

use super::Sweeper;
use crate::sweep::subnet::Subnet;
use crate::sweep::tasks::Task;

impl Sweeper {
    /// The tasks, in the order in which they may write.
    fn tasks(&mut self) -> ([&mut dyn Task; 6], &mut Subnet) {
        let tasks: [&mut dyn Task; 6] = [
            &mut self.babbling,
            &mut self.partition_changes,
            &mut self.multicast,
            &mut self.aliases,
            &mut self.virtual_ports,
            &mut self.reregistration,
        ];
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
