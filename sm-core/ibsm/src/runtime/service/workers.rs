//! Threads that run the node's jobs, one for each kind.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::node::{Job, JobOutcome};
use crate::runtime::worker::Worker;

/// The threads.
pub(super) struct Workers {
    routing: Worker<Job, JobOutcome>,
    loops: Worker<Job, JobOutcome>,
    balance: Worker<Job, JobOutcome>,
    multicast: Worker<Job, JobOutcome>,
}

impl Workers {
    pub(super) fn start() -> io::Result<Self> {
        Ok(Self {
            routing: Worker::start("routing", Job::run)?,
            loops: Worker::start("loops", Job::run)?,
            balance: Worker::start("balance", Job::run)?,
            multicast: Worker::start("multicast", Job::run)?,
        })
    }

    /// Starts a job. Fails if its thread is gone.
    pub(super) fn submit(&mut self, job: Job) -> io::Result<()> {
        let worker = match &job {
            Job::Routing(_) => &mut self.routing,
            Job::Loops(_) => &mut self.loops,
            Job::Balance(_) => &mut self.balance,
            Job::Multicast(_) => &mut self.multicast,
        };
        worker.submit(job)
    }

    /// Hands over results; returns whether there were any. Fails if a thread is gone.
    pub(super) fn poll(&mut self, mut handle: impl FnMut(JobOutcome)) -> io::Result<bool> {
        type OfPanic = fn(String) -> JobOutcome;
        let workers: [(_, OfPanic); 4] = [
            (&mut self.routing, |panic| JobOutcome::Routing(Err(panic))),
            (&mut self.loops, |panic| JobOutcome::Loops(Err(panic))),
            (&mut self.multicast, |panic| JobOutcome::Multicast(Err(panic))),
            (&mut self.balance, |panic| JobOutcome::Balance(Err(panic))),
        ];
        let mut any = false;
        for (worker, of_panic) in workers {
            if let Some(result) = worker.poll()? {
                any = true;
                handle(result.unwrap_or_else(|panic| of_panic(panic.to_string())));
            }
        }
        Ok(any)
    }

    /// Descriptors that become readable when there is a result.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [self.routing.as_fd(), self.loops.as_fd(), self.multicast.as_fd(), self.balance.as_fd()]
    }
}
