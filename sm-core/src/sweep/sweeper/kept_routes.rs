//! Kept routes: their origin, and the jobs that check their balance.

use std::time::Instant;

use tracing::{debug, info, warn};

use super::Sweeper;
use crate::sweep::stages::kept_routes::CORRECTION_DELAY;
use crate::sweep::subnet::routing::checks::{BalanceCheck, BalanceFinding, KeptRoutes};
use crate::sweep::subnet::routing::origin::Origin;
use sm_routing::balance;

impl Sweeper {
    /// Sets which engine computed the tables in the switches, as an earlier run saved it.
    pub fn set_origin(&mut self, origin: Option<Origin>) {
        self.subnet.routing.set_origin(origin);
    }

    /// The engine that computed the tables in force, if any.
    pub fn origin(&self) -> Option<Origin> {
        self.subnet.routing.made().map(|made| made.origin())
    }

    /// Recomputes all routes with a heavy sweep, as soon as none is under way.
    pub fn reroute(&mut self, now: Instant) {
        self.subnet.routing.keep_nothing();
        self.request_heavy_sweep(now);
    }

    /// The balance check that is due, if any. Pass its result to
    /// [`handle_balance`](Self::handle_balance).
    pub fn poll_balance_check(&mut self) -> Option<BalanceCheck> {
        if !self.sweep.is_idle() || !self.subnet.state.up {
            return None;
        }
        self.subnet.routing.poll_balance_check(&self.subnet.fabric)
    }

    /// Handles the result of a [`BalanceCheck`].
    pub fn handle_balance(&mut self, now: Instant, finding: &BalanceFinding) {
        let is_current = self.subnet.routing.is_in_force(&finding.made);
        let Some((found, fresh)) = finding.worst.filter(|_| is_current) else { return };
        let engine = finding.made.engine();
        let which = match finding.kept {
            KeptRoutes::Inherited => "left by the previous master",
            KeptRoutes::OverChanges => "kept across fabric changes",
        };
        let is_balanced = balance::is_balanced(found, fresh);
        let is_news = self.subnet.routing.balance_known(now, is_balanced, CORRECTION_DELAY);
        match finding.kept {
            _ if is_news => {
                let seconds = CORRECTION_DELAY.as_secs();
                warn!(
                    "the routes {which} are unbalanced: the most loaded link carries {found} \
                     routes to hosts, {fresh} if {engine} recomputes them; recomputing all routes \
                     in {seconds} s (keep_found_routes TRUE keeps them)"
                );
            }
            KeptRoutes::Inherited if is_balanced => info!(
                "keeping the routes {which}: the most loaded link carries {found} routes to \
                 hosts, {fresh} if {engine} recomputes them"
            ),
            _ => debug!(
                "balance check: the most loaded link carries {found} routes to hosts, {fresh} if \
                 recomputed"
            ),
        }
    }
}
