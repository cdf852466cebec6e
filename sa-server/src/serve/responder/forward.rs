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
    /// Keeps a request and forwards it; with `look_again`, only as a barrier.
    pub(super) fn submit(
        &mut self,
        now: Instant,
        packet: &Packet,
        look_again: bool,
    ) -> Result<(), DropReason> {
        let id = self.open.begin(now, packet).map_err(|rejected| match rejected {
            Rejected::Repeated => DropReason::Duplicate,
            Rejected::TooMany => DropReason::TooManyWrites,
        })?;
        let request = (!look_again).then(|| forward::Request {
            mad: Bytes::copy_from_slice(&packet.mad),
            address: packet.address,
        });
        if self.end.submit(Submission { id, at: now, request }) {
            return Ok(());
        }
        self.open.end(id);
        Err(DropReason::TooManyWrites)
    }
}
