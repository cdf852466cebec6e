//! The paths of one port, for agents on compute nodes (`ibsa agent`): what this responder answers
//! to a Get from that port, for every destination and P_Key, and what changes with each generation.
//!
//! - `survey`: finds the paths, by the code that answers queries.
//! - `list`: the paths to all ports' base LIDs, for an operator.
//! - `terms`: which requests the result is the answer to.
//! - `half`: what the agents of ports at one switch have in common, found and written once. No I/O.
//! - `follower`: what one agent holds, and the messages that bring it up to date. No I/O.
//! - `finder`: the thread that finds paths; `turns`: for whom; `task`: what keeps one agent up to
//!   date.
//! - `service`: the gRPC service.

mod finder;
mod follower;
mod half;
mod list;
mod service;
mod survey;
mod task;
mod terms;
mod turns;

pub use follower::{Follower, Messages};
pub use half::{CHANGES_LEN_MAX, GroupKey, Half, Halves, Lead};
pub use list::list;
pub use service::{AGENTS_MAX, AgentCounters, Agents, AgentsConfig, Contact, ServeError};
pub use survey::RECORDS_MAX;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often an agent hears from its responder at least.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// How old the manager's confirmation that a responder's tables are its latest may be. Agents leave
/// all requests to the SA when it is older, and no further ones may follow.
pub const CONTACT_MAX: Duration = Duration::from_secs(3);

/// Locks; what is locked here is whole after a panic, too.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
