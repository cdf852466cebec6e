//! Requests that the SM has to decide: writes to the registry, and queries that found no record.
//!
//! A worker stores such a request in `OpenRequests`, passes a copy to the control plane through a
//! queue of fixed size ([`Exchange`]) and continues. The control plane forwards it to the SM: the
//! [`machine`] decides, [`Forwarding`] drives it. The outcome is returned when this responder's own
//! tables contain the write, so that the next query finds it. The worker then answers in the stored
//! buffer.
//!
//! Reads of registrations are outdated by one second at most ([`currency`]): without recent
//! proof that the tables are current, they ask the SM for its sequence number first.
//!
//! A repeat of an open write is dropped, as its answer is pending. A repeat of an answered write is
//! forwarded again; the SM remembers the first outcome.

mod acknowledged;
mod client;
mod currency;
mod exchange;
mod held;
mod in_flight;
pub mod machine;

use std::time::{Duration, Instant};

use ib_mad::transport::Address;
use ib_mad::wire::mad::Status;
use sa_proto::prost::bytes::Bytes;

pub use acknowledged::Acknowledged;
pub use client::{Forwarder, Forwarding};
pub use currency::{Confirmed, Reads};
pub use exchange::{Exchange, WorkerEnd};
pub use machine::Counters;

/// Requests of one worker that wait for the SM.
pub(crate) const OPEN_MAX: usize = 4096;
/// How long a request waits for the SM: the total time that RDMA CM's clients wait for a query.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// A request on its way to the SM. The top 16 bits of `id` identify the worker.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Chosen by the worker; the answer has it, too.
    pub id: u64,
    /// When it was submitted. One whose client has timed out is not sent.
    pub at: Instant,
    /// The request; `None` is a barrier, answered once the tables contain every write acknowledged
    /// so far.
    pub request: Option<Request>,
}

/// A request as received.
#[derive(Clone, Debug)]
pub struct Request {
    /// The MAD.
    pub mad: Bytes,
    /// Who sent it.
    pub address: Address,
    /// Sequence number of the registry that was answered from before it can have arrived.
    pub seen: u64,
}

/// The result of a submission.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Id of the submission.
    pub id: u64,
    /// What the worker does.
    pub verdict: Verdict,
}

/// How a worker finishes a submitted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send a response with this status and record, padded with zeros; without a record, the
    /// request's own data is returned.
    Reply(Status, Option<Bytes>),
    /// Run the query again: the tables contain every write acknowledged before it.
    Requery,
    /// Send no response.
    NoReply,
}
