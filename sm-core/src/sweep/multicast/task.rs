//! The task that writes multicast tables between sweeps, and its public functions.

use std::time::Instant;

use ib_mad::wire::mad::Status;

use super::{Membership, Multicast, MulticastJob, MulticastOutcome, block_key, block_modifier};
use crate::smp::kinds;
use crate::sweep::Sweeper;
use crate::sweep::owner::{OwnedRequest, RequestOwner};
use crate::sweep::subnet::Subnet;
use crate::sweep::task::Task;

impl Task for Multicast {
    fn poll_timeout(&self) -> Option<Instant> {
        let recompute_due = self.recompute_due.filter(|_| self.at_work.is_none());
        [self.retry, recompute_due, self.inherited_until].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant) {
        // The groups are in the next job.
        self.recompute_due.take_if(|due| now >= *due);
        self.clear_inherited_trees(subnet, now);
        if self.retry.is_some_and(|due| now >= due) {
            self.attempts += 1;
            self.write_blocks(subnet, now, true);
        }
    }

    fn settled(&mut self, subnet: &mut Subnet, now: Instant) {
        self.add_branches(subnet, now);
        if subnet.exchange.is_idle() {
            self.report_written(subnet);
        }
    }
}

impl RequestOwner for Multicast {
    type Kind = kinds::Multicast;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Multicast::SetMulticast => {
                let switch = subnet.fabric.switch(subnet.fabric.node_of(request.port()).switch?);
                *data = *switch.mft.sent(block_key(request))?;
                Some(block_modifier(request))
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, .. } = owned;
        self.block_set(subnet, request, data);
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { request, now, .. } = owned;
        self.block_lost(subnet, now, request, status);
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { request, now, .. } = owned;
        self.block_lost(subnet, now, request, "no answer");
    }
}

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
