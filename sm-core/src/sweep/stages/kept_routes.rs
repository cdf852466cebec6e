//! Corrects kept routes: recomputes them when they have become unbalanced.
//!
//! A new master keeps the routes it finds, unless it knows that another engine, or the same engine
//! with other options, computed them. [`CORRECTION_DELAY`] later, it compares them with the routes
//! that the engine would compute without regard to them; it does the same with routes kept across
//! changes of a fabric that is too large to be routed twice at each change. If the most loaded link
//! carries over 2 % more routes than it would then, all routes are recomputed, and the log states
//! why.

use std::time::{Duration, Instant};

use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::schedule::Cause;

/// How long routes of another subnet manager stay in force before they may be recomputed.
pub const CORRECTION_DELAY: Duration = Duration::from_secs(60);

impl Subnet {
    /// When inherited routes are due to be recomputed; `None` if they stay.
    pub(in crate::sweep) fn correction_due(&self) -> Option<Instant> {
        self.routing.correction_due()
    }

    /// Requests a sweep that recomputes inherited routes, if that is due.
    pub(in crate::sweep) fn correct_routes(&mut self, now: Instant) {
        if self.routing.take_correction(now) {
            self.schedule.request(now, Cause::Asked);
        }
    }
}
