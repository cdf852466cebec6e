//! A stream of writes of one responder: what its messages cause, and who is listed as a writer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ib_mad::types::{Gid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::MAD_LEN;
use sa_proto::proto::registry as proto;
use tokio::sync::mpsc;
use tonic::Status;

use super::durable::Write;
use super::shared::{Job, Origin, Outbound, ReplyTo, Shared};
use sm_core::registry::{self, Drop as Reason, Requester};

/// Messages with outcomes that a connection has not taken yet; more are dropped.
pub(super) const OUTBOUND_MAX: usize = 256;

/// Writes in a message: all that a responder may have open, repeated at once.
pub(super) const WRITES_MAX: usize = 16_384;

/// The receiving half of a stream.
pub(super) struct Writing {
    shared: Arc<Shared>,
    /// Number of the connection.
    connection: u64,
    outbound: Outbound,
}

impl Writing {
    /// A stream without a message yet; outcomes go to `outbound`.
    pub(super) fn new(shared: Arc<Shared>, outbound: Outbound) -> Self {
        let connection = shared.connections.fetch_add(1, Relaxed) + 1;
        Self { shared, connection, outbound }
    }

    /// Takes a message. After an error the stream is to be ended with it.
    pub(super) fn take(&mut self, writes: proto::Writes) -> Result<(), Status> {
        if writes.writes.len() > WRITES_MAX {
            return Err(Status::resource_exhausted(format!(
                "a message has at most {WRITES_MAX} writes"
            )));
        }
        let (connection, outbound) = (self.connection, &self.outbound);
        // Managers that follow must know of it before it can be answered.
        let writers = self.shared.writers.get();
        if !writers.is_none_or(|writers| writers.enter(connection, writes.responder_id)) {
            return Err(Status::resource_exhausted("too many streams of writes"));
        }
        let epoch = writes.epoch;
        let origin = Arc::new(Origin { epoch, connection, outbound: outbound.clone() });
        let mut dropped = Vec::new();
        let counters = &self.shared.counters;
        let mut jobs = Vec::with_capacity(writes.writes.len());
        for write in &writes.writes {
            let id = write.id;
            match read(write, self.shared.sa_key.load(Relaxed)) {
                Ok(request) => {
                    let write = request.map_or(Write::Nothing, Write::Request);
                    jobs.push(Job { id, write, reply_to: ReplyTo::Responder(origin.clone()) });
                }
                Err(reason) => {
                    match reason {
                        None => counters.malformed.add(1),
                        Some(Reason::Key) => counters.wrong_key.add(1),
                        Some(Reason::Class | Reason::Method | Reason::Attribute) => {
                            counters.unknown.add(1);
                        }
                    }
                    dropped.push(proto::Outcome { id, dropped: true, ..Default::default() });
                }
            }
        }
        self.shared.submit(jobs);
        if !dropped.is_empty() {
            let count = dropped.len();
            if outbound.try_send(Ok(proto::Outcomes { outcomes: dropped })).is_err() {
                counters.undelivered.add(count);
            }
        }
        Ok(())
    }

    /// Ends the stream with this status.
    pub(super) fn end(&self, status: Status) {
        let _ = self.outbound.try_send(Err(status));
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(writers) = self.shared.writers.get() {
            writers.leave(self.connection);
        }
    }
}

/// A stream of writes within this process, without gRPC. It is closed when it is dropped.
pub struct WriteStream {
    writing: Writing,
    outcomes: mpsc::Receiver<Result<proto::Outcomes, Status>>,
}

impl WriteStream {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (outbound, outcomes) = mpsc::channel(OUTBOUND_MAX);
        Self { writing: Writing::new(shared, outbound), outcomes }
    }

    /// Whether the stream may go on; if not it is to be dropped.
    pub fn is_open(&self) -> bool {
        *self.writing.shared.open.borrow()
    }

    /// Takes a message of the responder. After an error the stream is to be dropped.
    pub fn handle_message(&mut self, writes: proto::Writes) -> Result<(), Status> {
        self.writing.take(writes)
    }

    /// The next outcomes for the responder.
    pub fn poll_outcomes(&mut self) -> Option<proto::Outcomes> {
        self.outcomes.try_recv().ok()?.ok()
    }
}

/// The request of a write; `None` if it only asks for the sequence number. An error without a
/// reason is no MAD.
fn read(write: &proto::Write, sa_key: u64) -> Result<Option<registry::Request>, Option<Reason>> {
    if write.mad.is_empty() {
        return Ok(None);
    }
    let mad: &[u8; MAD_LEN] = write.mad[..].try_into().map_err(|_| None)?;
    let unknown = proto::Requester::default();
    let from = write.requester.as_ref().unwrap_or(&unknown);
    let sgid = match from.gid.len() {
        0 => None,
        _ => Some(Gid(from.gid[..].try_into().map_err(|_| None)?)),
    };
    let requester = Requester {
        slid: Lid(u16::try_from(from.lid).map_err(|_| None)?),
        sgid,
        qpn: Qpn(from.qpn & 0xFF_FFFF),
        sl: Sl::from_low_bits(from.sl as u16),
        pkey: PKey(from.pkey as u16),
    };
    let request = registry::Request::read(mad, requester, sa_key).map_err(Some)?;
    Ok(Some(registry::Request { seen: write.seen, ..request }))
}
