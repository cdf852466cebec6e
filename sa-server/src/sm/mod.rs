//! The connection to the subnet manager.
//!
//! - [`replica`]: subscribes to the snapshots of the manager and keeps the latest one.
//! - [`forward`]: forwards requests that the manager has to decide, and returns their outcomes.
//! - `relay`: relays traps that arrive at the responder's port to the manager.
//! - [`report`]: turns the manager's events into Reports for the subscribers.
//! - [`peers`]: the hosts whose envelopes this responder accepts.

pub mod forward;
pub mod peers;
pub(crate) mod relay;
pub mod replica;
pub mod report;
mod spread;

pub(crate) use spread::Spread;

use std::time::Instant;

/// Completes at `due`; never if it is `None`.
pub(crate) async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
