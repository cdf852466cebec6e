//! The task that writes multicast tables between sweeps.

use std::time::Instant;

use ib_mad::wire::mad::Status;

use super::Multicast;
use super::blocks::{block_key, block_modifier};
use crate::smp::kinds;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use crate::sweep::tasks::Task;

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
