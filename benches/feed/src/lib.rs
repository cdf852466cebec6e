//! Requests for an SA, handed to it where its transport would hand them over, and its answers
//! checked where it hands them back: so that what is measured is the SA.
//!
//! As a library to be preloaded it stands between a program and its libibumad (`umad-preload`, or
//! the real one): of an unmodified `opensm` it feeds the SA's agent and swallows the answers, told
//! over a socket what to feed ([`order`]). As a crate it gives benchmarks the same requests
//! ([`book`]) and the same accounts ([`session`]) for an SA in process.
//!
//! - `export`: the calls that it takes over.
//! - `job`: an order under way in this process. `clock`: CPU time by thread.

pub mod book;
pub mod clock;
pub mod export;
mod job;
pub mod order;
pub mod session;

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;
