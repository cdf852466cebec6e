//! The decisions of the subnet manager, without I/O.
//!
//! From the wire up: [`fabric`] holds the known state, [`sweep`] discovers it and configures it as
//! [`manage`] and `sm_routing` decide, [`mastership`] elects one manager, [`trap`] and [`notice`]
//! turn changes into events, [`registry`] decides on what clients register, and [`dump`]
//! renders tables as text. Beside sweeps, [`perf`] and [`congestion`] query agents of nodes; both
//! are a [`querier`]. Packets and time are arguments. Sockets, clocks, threads and files
//! belong to the programs (`ibsm`); `clippy.toml` beside this crate's `Cargo.toml` forbids them
//! here.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod congestion;
pub mod dump;
pub mod fabric;
pub mod manage;
pub mod mastership;
pub mod notice;
pub mod perf;
pub mod querier;
pub mod registry;
pub mod smp;
pub mod sweep;
pub mod trap;
