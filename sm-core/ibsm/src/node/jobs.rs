//! Work that takes long: routing, checks of the routing in force, and multicast trees.

use std::time::Instant;

use tracing::error;

use sm_core::sweep::{
    BalanceCheck, BalanceFinding, LoopCheck, LoopFinding, MulticastJob, MulticastOutcome,
    RoutingJob, RoutingOutcome, Sweeper,
};

/// A job for a thread.
#[derive(Debug)]
pub enum Job {
    /// Compute routes.
    Routing(Box<RoutingJob>),
    /// Look for credit loops in the routing in force.
    Loops(Box<LoopCheck>),
    /// Measure the quality of routes that were kept.
    Balance(Box<BalanceCheck>),
    /// Compute multicast trees.
    Multicast(Box<MulticastJob>),
}

/// The result of a job, or the message of its panic.
#[derive(Debug)]
pub enum JobOutcome {
    /// Result of [`Job::Routing`].
    Routing(Result<Box<RoutingOutcome>, String>),
    /// Result of [`Job::Loops`].
    Loops(Result<LoopFinding, String>),
    /// Result of [`Job::Balance`].
    Balance(Result<BalanceFinding, String>),
    /// Result of [`Job::Multicast`].
    Multicast(Result<Box<MulticastOutcome>, String>),
}

impl Job {
    /// Runs the job.
    pub fn run(self) -> JobOutcome {
        match self {
            Self::Routing(job) => JobOutcome::Routing(Ok(Box::new(job.run()))),
            Self::Loops(check) => JobOutcome::Loops(Ok(check.run())),
            Self::Balance(check) => JobOutcome::Balance(Ok(check.run())),
            Self::Multicast(job) => JobOutcome::Multicast(Ok(Box::new(job.run()))),
        }
    }
}

/// Jobs that are running. A fabric that changes faster than jobs end would queue them, each as
/// large as its routing: so there is one of a kind, except multicast, whose jobs the sweep limits.
pub(super) struct Jobs {
    /// The routing that was started last.
    last: Routed,
    is_routing: bool,
    is_checking_loops: bool,
    is_checking_balance: bool,
}

/// Log state of a running routing job.
#[derive(Clone, Copy, Debug)]
struct Routed {
    /// Number of the sweep that it belongs to.
    sweep: u32,
    /// LIDs and switches.
    size: (usize, usize),
    began: Instant,
}

impl Jobs {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last: Routed { sweep: 0, size: (0, 0), began: now },
            is_routing: false,
            is_checking_loops: false,
            is_checking_balance: false,
        }
    }

    /// The next job of the current sweep.
    pub(super) fn poll(&mut self, now: Instant, sweeper: &mut Sweeper) -> Option<Job> {
        if !self.is_routing
            && let Some(job) = sweeper.poll_routing()
        {
            self.is_routing = true;
            self.last = Routed { sweep: job.sweep(), size: job.size(), began: now };
            return Some(Job::Routing(job));
        }
        sweeper.poll_multicast(now).map(|job| Job::Multicast(Box::new(job)))
    }

    /// The next check of the routing in force, for which responders should not wait.
    pub(super) fn poll_check(&mut self, sweeper: &mut Sweeper) -> Option<Job> {
        if !self.is_checking_loops
            && let Some(check) = sweeper.poll_loop_check()
        {
            self.is_checking_loops = true;
            return Some(Job::Loops(Box::new(check)));
        }
        if !self.is_checking_balance
            && let Some(check) = sweeper.poll_balance_check()
        {
            self.is_checking_balance = true;
            return Some(Job::Balance(Box::new(check)));
        }
        sweeper.poll_multicast_proof().map(|job| Job::Multicast(Box::new(job)))
    }

    /// Hands a result to the sweep.
    pub(super) fn handle(&mut self, now: Instant, outcome: JobOutcome, sweeper: &mut Sweeper) {
        match outcome {
            JobOutcome::Routing(result) => {
                self.is_routing = false;
                match result {
                    Ok(outcome) => sweeper.handle_routing(now, *outcome),
                    Err(panic) => sweeper.handle_routing_failure(now, self.last.sweep, &panic),
                }
            }
            JobOutcome::Loops(result) => {
                self.is_checking_loops = false;
                match result {
                    Ok(finding) => sweeper.handle_loops(&finding),
                    Err(panic) => {
                        error!("credit-loop check failed: {panic}; current routing is unverified");
                    }
                }
            }
            JobOutcome::Multicast(Ok(outcome)) => sweeper.handle_multicast(now, *outcome),
            JobOutcome::Multicast(Err(panic)) => sweeper.handle_multicast_failure(now, &panic),
            JobOutcome::Balance(result) => {
                self.is_checking_balance = false;
                match result {
                    Ok(finding) => sweeper.handle_balance(now, &finding),
                    Err(panic) => error!(
                        "balance check failed: {panic}; the quality of the current routes is \
                         unknown"
                    ),
                }
            }
        }
    }

    /// Progress of the routing that is running, as text.
    pub(super) fn routing_progress(&self, now: Instant) -> String {
        let Routed { size: (lids, switches), began, .. } = self.last;
        let seconds = now.saturating_duration_since(began).as_secs();
        format!("routing {lids} LIDs on {switches} switches, {seconds} s so far")
    }
}
