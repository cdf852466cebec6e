//! ibsa, the subnet administration responder.
//!
//! It holds the latest snapshot of a subnet and answers SA queries from tables built of it, without
//! locks and without asking anyone.
//!
//! - [`tables`]: the snapshot in the form that queries need, built off the query path;
//!   [`cell`] hands new ones to the workers.
//! - [`qos_match`]: which QoS rule a request for a path falls under.
//! - [`explain`]: the same decisions for operators, with their reasons.
//! - [`responder`]: what becomes of every packet; a sans-IO core that tests and fuzzers drive.
//! - [`overload`]: what becomes of requests when more arrive than can be answered.
//! - [`worker`]: one thread around a responder and a transport.
//! - [`forward`]: requests that the SM has to decide, on their way there and back.
//! - `proxy`, `relay`: what clients send to the SM by way of a responder's port; [`own_port`]: what
//!   leaves by it.
//! - `umad_port`, `verbs_port`: a port of this host; [`handover`]: how its descriptor outlives the process.
//! - [`replica`]: the subscription to the SMs.
//! - [`report`]: what happened, told to those who subscribed to it.
//! - [`figures`]: what the SM is told of the work done; [`requesters`]: who asks most.
//! - [`runtime`]: all of it put together; [`options`], [`placement`], [`metrics`] and [`http`] belong
//!   to it.

mod answer;
mod assembly;
pub mod cell;
pub mod explain;
pub mod figures;
pub mod forward;
pub mod handover;
pub mod http;
pub mod index;
mod limits;
pub mod metrics;
pub mod options;
pub mod overload;
pub mod own_port;
pub mod peers;
pub mod placement;
pub mod pool;
mod prefetch;
mod proxy;
pub mod qos_match;
mod query;
pub mod redirect;
mod relay;
pub mod replica;
pub mod report;
pub mod requesters;
pub mod responder;
pub mod runtime;
pub mod stats;
pub mod tables;
mod tally;
mod transfer;
mod umad_port;
#[cfg(feature = "verbs")]
mod verbs_port;
pub mod worker;
