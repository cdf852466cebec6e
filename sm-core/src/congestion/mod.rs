//! Congestion control (IBA annex A10): writes the operator's settings to switches and channel
//! adapters, and reads what they log about congestion.
//!
//! [`CongestionManager`] is a state machine as the performance manager is ([`perf`](crate::perf)):
//! packets, time and the nodes of the fabric go in, packets and events come out. [`settings`] turns
//! keys of `opensm.conf` into attributes, `agent` holds what is known about each agent and
//! decides which question follows an answer, `requests` writes requests, and [`log`] adds up logs.
//!
//! What is not here: sockets, the thread, and where the fabric's nodes come from (`ibsm`).

mod agent;
pub mod log;
mod manager;
mod requests;
pub mod settings;
#[cfg(test)]
mod tests;

pub use agent::{Agent, State};
pub use manager::{
    AgentView, CongestionEvent, CongestionManager, CongestionStatus, Happened, OUTSTANDING_MAX,
};
pub use settings::CongestionSettings;
