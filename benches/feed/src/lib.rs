//! Feeds requests to an SA in place of its transport, and checks the answers that it sends, so that
//! only the SA is measured.
//!
//! As a preloaded library it is loaded between a program and its libibumad (`umad-preload`, or the
//! real one). For an unmodified `opensm` it feeds the SA's agent and discards the answers; orders
//! over a socket say which requests to feed ([`order`]). As a crate it gives benchmarks the same
//! requests ([`book`]) and the same accounting ([`session`]) for an SA in process.
//!
//! - `export`: the intercepted functions.
//! - `job`: an order in progress in this process. `clock`: CPU time by thread.

pub mod book;
pub mod clock;
pub mod export;
mod job;
pub mod order;
pub mod session;

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;
