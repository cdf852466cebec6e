//! Multicast trees: takes changed members, passes jobs to the caller and takes their outcomes.

use std::time::Instant;

use super::Sweeper;
use crate::sweep::tasks::multicast::job::{MulticastJob, MulticastOutcome};
use sm_routing::multicast::Membership;

impl Sweeper {
    /// Sets the members of some MLIDs; an MLID without members has no tree. Others stay as they
    /// are.
    pub fn put_members(&mut self, changed: Membership) {
        self.multicast.put_members(changed);
    }

    /// A job for trees of groups that changed, or of all groups if the fabric was routed again;
    /// `None` if there are none, or a job is under way. Its outcome goes to
    /// [`handle_multicast`](Self::handle_multicast).
    pub fn poll_multicast(&mut self, now: Instant) -> Option<MulticastJob> {
        if !self.sweep.is_idle() {
            return None;
        }
        if self.subnet.fabric.take_moved_virtual_guids() {
            self.multicast.virtual_ports_moved();
        }
        self.multicast.poll_job(&mut self.subnet, now)
    }

    /// A job that checks all trees for credit loops with the routing in force. It is due some time
    /// after the fabric was routed again.
    pub fn poll_multicast_proof(&mut self) -> Option<MulticastJob> {
        if !self.sweep.is_idle() {
            return None;
        }
        self.multicast.poll_proof(&mut self.subnet)
    }

    /// Takes the outcome of the last [`MulticastJob`], and writes the tables that it changes.
    pub fn handle_multicast(&mut self, now: Instant, outcome: MulticastOutcome) {
        if self.multicast.take_outcome(&mut self.subnet, now, outcome) {
            self.multicast.write_blocks(&mut self.subnet, now, self.sweep.is_idle());
        }
    }

    /// The last [`MulticastJob`] failed. It is repeated later.
    pub fn handle_multicast_failure(&mut self, now: Instant, reason: &str) {
        self.multicast.job_failed(now, reason);
    }

    /// Problems of multicast trees, as text: trees that can deadlock, limited to the first, and
    /// switches that do not take their tables.
    pub fn multicast_warnings(&self) -> Vec<String> {
        self.multicast.warnings()
    }

    /// Number of multicast trees that can deadlock.
    pub fn multicast_loops(&self) -> usize {
        self.multicast.faults.len()
    }

    /// Number of multicast trees.
    pub fn multicast_trees(&self) -> usize {
        self.multicast.current.len()
    }
}
