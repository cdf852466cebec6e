//! Checks of the routing in force that take as long as routing; the caller runs them after the
//! tables are written.

use std::sync::Arc;

use sa_proto::snapshot::{Entries, Lft};

use super::active::ActiveRouting;
use super::job::RoutingJob;
use sm_routing::balance::most_to_hosts;
use sm_routing::verify::{CreditLoops, credit_loops_with_replies};

/// A credit-loop check of the routing in force: slower than routing; its only consequence is a
/// warning.
#[derive(Debug)]
pub struct LoopCheck {
    pub(super) made: Arc<ActiveRouting>,
    pub(super) lfts: Vec<Arc<Lft>>,
}

/// Result of a [`LoopCheck`].
#[derive(Debug)]
pub struct LoopFinding {
    pub(in crate::sweep) made: Arc<ActiveRouting>,
    pub(in crate::sweep) loops: CreditLoops,
    /// Of replies on the SLs of their requests, if these use other lanes.
    pub(in crate::sweep) reply_loops: Option<CreditLoops>,
}

impl LoopCheck {
    /// Runs the check. May take seconds.
    pub fn run(self) -> LoopFinding {
        let loops = self.made.unicast(&self.lfts).loops.clone();
        let lfts: Vec<&[u8]> = self.lfts.iter().map(|lft| &*lft.ports).collect();
        let made = &self.made;
        // Planes have no lanes for replies to differ in.
        let reply_loops = credit_loops_with_replies(made.topology(), &lfts, made.lanes());
        LoopFinding { made: self.made, loops, reply_loops }
    }
}

/// Where the routes in force come from, if they were not computed for the current fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sweep) enum KeptRoutes {
    /// Another SM's, or an earlier run's.
    Inherited,
    /// Routes of this SM, repaired after changes and not compared with a routing from scratch.
    OverChanges,
}

/// A balance check of kept routes. Takes as long as routing.
#[derive(Debug)]
pub struct BalanceCheck {
    pub(super) kept: KeptRoutes,
    pub(super) made: Arc<ActiveRouting>,
    pub(super) lfts: Vec<Arc<Lft>>,
    pub(super) job: RoutingJob,
}

/// Result of a [`BalanceCheck`].
#[derive(Debug)]
pub struct BalanceFinding {
    pub(in crate::sweep) kept: KeptRoutes,
    pub(in crate::sweep) made: Arc<ActiveRouting>,
    /// Routes to hosts on the link that has most, as it is and from scratch; none if the engine
    /// could not route from scratch.
    pub(in crate::sweep) worst: Option<(u32, u32)>,
}

impl BalanceCheck {
    /// Runs the check. May take seconds.
    pub fn run(self) -> BalanceFinding {
        let parts = self.made.parts(&self.lfts);
        let alone = std::slice::from_ref(&self.job);
        let jobs = if self.job.planes.is_empty() { alone } else { &self.job.planes };
        let worst_of =
            |((_, made, lfts), job): ((u16, &ActiveRouting, &[Arc<Lft>]), &RoutingJob)| {
                let worst = |lfts: &[Entries]| most_to_hosts(made.topology(), lfts);
                let fresh = job.route_afresh(made.engine())?;
                let found: Vec<Entries> = lfts.iter().map(|lft| lft.ports.clone()).collect();
                Some((worst(&found), worst(&fresh)))
            };
        // Of several planes the one that a routing from scratch improves most.
        let worst = parts.zip(jobs).filter_map(worst_of);
        let worst = worst.max_by_key(|&(found, fresh)| (found.saturating_sub(fresh), found));
        BalanceFinding { kept: self.kept, made: self.made, worst }
    }
}
