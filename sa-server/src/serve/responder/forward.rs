//! Hands requests that only the SM can decide to the control plane, and keeps them until it
//! answers.

use std::time::Instant;

use ib_mad::transport::Packet;
use sa_proto::prost::bytes::Bytes;

use crate::serve::open_requests::{OpenRequests, Rejected};
use crate::sm::forward::{self, Submission, WorkerEnd};
use crate::stats::DropReason;

/// The queue to the SM, and the forwarded requests.
pub(super) struct Forward {
    pub(super) end: WorkerEnd,
    pub(super) open: OpenRequests,
}

impl Forward {
    /// Keeps a write and forwards it to the manager of `lane`; `seen` is the sequence number of the
    /// local registry before it can have arrived.
    pub(super) fn submit_write(
        &mut self,
        now: Instant,
        lane: usize,
        packet: &Packet,
        seen: u64,
    ) -> Result<(), DropReason> {
        let mad = Bytes::copy_from_slice(&packet.mad);
        let request = forward::Request { mad, address: packet.address, seen };
        self.submit(now, lane, packet, Some(request))
    }

    /// Keeps a query, which is answered once the local registry equals that of the lane's manager.
    pub(super) fn submit_query(
        &mut self,
        now: Instant,
        lane: usize,
        packet: &Packet,
    ) -> Result<(), DropReason> {
        self.submit(now, lane, packet, None)
    }

    fn submit(
        &mut self,
        now: Instant,
        lane: usize,
        packet: &Packet,
        request: Option<forward::Request>,
    ) -> Result<(), DropReason> {
        let id = self.open.begin(now, lane, packet).map_err(|rejected| match rejected {
            Rejected::Repeated => DropReason::Duplicate,
            Rejected::TooMany => DropReason::TooManyWrites,
        })?;
        if self.end.submit(lane, Submission { id, at: now, request }) {
            return Ok(());
        }
        self.open.end(id);
        Err(DropReason::TooManyWrites)
    }
}
