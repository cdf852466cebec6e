//! The paths of one port, for agents on compute nodes (`ibsa agent`): what this responder answers
//! to a Get from that port, for every destination and P_Key, and what changes with each generation.
//!
//! - `survey`: finds the paths, by the code that answers queries.
//! - `list`: the paths to all ports' base LIDs, for an operator.
//! - `terms`: which requests the result is the answer to.
//! - `follower`: what one agent holds, and the messages that bring it up to date. No I/O.
//! - `service`: the gRPC service and its tasks.

mod follower;
mod list;
mod service;
mod survey;
mod terms;

pub use follower::{CHANGES_LEN_MAX, Follower, GuidList};
pub use list::list;
pub use service::{AGENTS_MAX, AgentCounters, Agents, AgentsConfig, ServeError};
pub use survey::RECORDS_MAX;

use std::time::Duration;

/// How often an agent hears from its responder at least.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
