//! What takes long is done on threads of its own: routing, looks at the routing in force, and multicast
//! trees. The loop hands jobs over and takes what came of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use tracing::error;

use crate::runtime::worker::Worker;
use crate::sweep::{
    BalanceCheck, BalanceFinding, LoopCheck, LoopFinding, MulticastJob, MulticastOutcome,
    RoutingJob, RoutingOutcome, Sweeper,
};

/// The threads, each with a job at most.
pub(super) struct Workers {
    routing: Worker<Box<RoutingJob>, RoutingOutcome>,
    loops: Worker<LoopCheck, LoopFinding>,
    balance: Worker<BalanceCheck, BalanceFinding>,
    multicast: Worker<MulticastJob, MulticastOutcome>,
    /// The routing that was handed over last.
    last: Routed,
}

/// What is to be said of a routing job once it was handed over.
#[derive(Clone, Copy)]
struct Routed {
    /// Number of the sweep that it belongs to.
    sweep: u32,
    /// LIDs and switches.
    size: (usize, usize),
    began: Instant,
}

impl Workers {
    pub(super) fn start(now: Instant) -> io::Result<Self> {
        Ok(Self {
            routing: Worker::start("routing", |job: Box<RoutingJob>| job.run())?,
            loops: Worker::start("loops", LoopCheck::run)?,
            balance: Worker::start("balance", BalanceCheck::run)?,
            multicast: Worker::start("multicast", MulticastJob::run)?,
            last: Routed { sweep: 0, size: (0, 0), began: now },
        })
    }

    /// Hands over routing and multicast trees, and takes what came of anything; whether something
    /// did. Fails if a thread is gone.
    pub(super) fn exchange(&mut self, now: Instant, sweeper: &mut Sweeper) -> io::Result<bool> {
        let routing = self.routing.poll()?;
        let mut any = routing.is_some();
        match routing {
            Some(Ok(outcome)) => sweeper.handle_routing(now, outcome),
            Some(Err(panic)) => {
                sweeper.handle_routing_failure(now, self.last.sweep, &panic.to_string());
            }
            None => {}
        }
        // One at a time: while a fabric flaps, only the last job handed out counts.
        if self.routing.is_idle()
            && let Some(job) = sweeper.poll_routing()
        {
            self.last = Routed { sweep: job.sweep(), size: job.size(), began: now };
            self.routing.submit(job)?;
        }
        let loops = self.loops.poll()?;
        any |= loops.is_some();
        match loops {
            Some(Ok(finding)) => sweeper.handle_loops(&finding),
            Some(Err(panic)) => error!("nobody knows about credit loops: {panic}"),
            None => {}
        }
        let multicast = self.multicast.poll()?;
        any |= multicast.is_some();
        match multicast {
            Some(Ok(outcome)) => sweeper.handle_multicast(now, outcome),
            Some(Err(panic)) => sweeper.handle_multicast_failure(now, &panic.to_string()),
            None => {}
        }
        let balance = self.balance.poll()?;
        any |= balance.is_some();
        match balance {
            Some(Ok(finding)) => sweeper.handle_balance(now, &finding),
            Some(Err(panic)) => error!("nobody knows how good the routes found are: {panic}"),
            None => {}
        }
        if let Some(job) = sweeper.poll_multicast(now) {
            self.multicast.submit(job)?;
        }
        Ok(any)
    }

    /// Hands over looks at what is in force, for which responders are not to wait. Fails if a thread
    /// is gone.
    pub(super) fn begin_checks(&mut self, sweeper: &mut Sweeper) -> io::Result<()> {
        // Sweeps do not wait for a look for loops: should they outrun it, its jobs queue up, each
        // as large as the routing it is about. So there is one at a time.
        if self.loops.is_idle()
            && let Some(check) = sweeper.poll_loop_check()
        {
            self.loops.submit(check)?;
        }
        if self.balance.is_idle()
            && let Some(check) = sweeper.poll_balance_check()
        {
            self.balance.submit(check)?;
        }
        if let Some(job) = sweeper.poll_multicast_proof() {
            self.multicast.submit(job)?;
        }
        Ok(())
    }

    /// How far the routing under way is, in words.
    pub(super) fn routing_progress(&self, now: Instant) -> String {
        let Routed { size: (lids, switches), began, .. } = self.last;
        let seconds = now.saturating_duration_since(began).as_secs();
        format!("routing {lids} LIDs on {switches} switches, {seconds} s so far")
    }

    /// What becomes readable when there is a result.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [self.routing.as_fd(), self.loops.as_fd(), self.multicast.as_fd(), self.balance.as_fd()]
    }
}
