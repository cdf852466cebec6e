//! From a packet to its answer: the workers and everything they own.
//!
//! - [`overload`]: decides which requests to answer when more arrive than can be answered.
//! - `answer`: the headers of a request and of its answer.
//! - `transfer`, `assembly`: RMPP transfers in progress, outgoing and incoming.
//! - `open_requests`: requests that wait for the subnet manager's decision.
//! - [`own_port`]: answers that leave by the responder's own port instead of the front door.
//! - [`spill`]: queries at the SM's port that other responders answer while this one falls behind.
//! - `proxy`: handles SMPs that arrive at QP0 of the responder's port.
//! - [`responder`]: decides what happens to every packet; sans-IO, so tests and fuzzers drive it.
//! - [`worker`]: one thread around a responder and a transport.

mod answer;
mod assembly;
mod open_requests;
pub mod overload;
pub mod own_port;
mod proxy;
pub mod responder;
pub mod spill;
mod transfer;
pub mod worker;
