//! `ibsm`, the subnet manager, and `ibsmctl`, as a library for the binaries and tests.
//!
//! From the bottom up: [`cli`] reads the command line and the files it names; [`clock`] is where
//! the time comes from; [`observe`] joins what responders report with what the manager does;
//! [`publish`] sends snapshots to responders and takes what they report; [`front_door`] forwards
//! queries that arrive at the SM's own port; `web` serves the live page; [`api`] is UFM's interface
//! for [`partitions`] and inventory, both over `http`; [`node`] is the subnet manager as a state
//! machine without I/O; [`runtime`] owns all sockets, clocks, threads and files, and drives it.
//! [`history`] is the format of what is kept of the past.
//! [`export`] writes the topology as other programs read it; [`plan`] compares routing engines
//! without a fabric; [`ctl`] is `ibsmctl`.

pub mod api;
mod civil;
pub mod cli;
pub mod clock;
pub mod congestion;
mod console;
pub mod ctl;
pub mod export;
pub mod front_door;
pub mod history;
pub mod host_order;
mod http;
mod inspect;
pub mod node;
pub mod observe;
mod pages;
pub mod partitions;
pub mod perf;
pub mod plan;
pub mod publish;
pub mod runtime;
#[cfg(test)]
#[path = "../../../ib-mad/tests/skip/mod.rs"]
mod skip;
mod web;
