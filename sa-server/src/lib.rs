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
//! - [`worker`]: one thread around a responder and a transport.
//! - [`forward`]: requests that the SM has to decide, on their way there and back.
//! - `proxy`, `relay`: what clients send to the SM by way of a responder's port; [`own_port`]: what
//!   leaves by it.
//! - [`replica`]: the subscription to the SMs.
//! - [`report`]: what happened, told to those who subscribed to it.
//! - [`runtime`]: all of it put together; [`options`], [`metrics`] and [`http`] belong to it.

mod assembly;
pub mod cell;
pub mod explain;
pub mod forward;
pub mod http;
pub mod index;
pub mod metrics;
pub mod options;
pub mod own_port;
pub mod pool;
mod proxy;
pub mod qos_match;
mod query;
pub mod redirect;
mod relay;
pub mod replica;
pub mod report;
pub mod responder;
pub mod runtime;
pub mod stats;
pub mod tables;
mod transfer;
pub mod worker;
