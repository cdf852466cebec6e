//! `ibsm`, the subnet manager, and `ibsmctl`, as a library for the binaries and tests.
//!
//! From the bottom up: [`cli`] reads the command line and the files it names; [`clock`] is where
//! the time comes from; [`observe`] joins what responders report with what the manager does;
//! [`publish`] sends snapshots to responders and takes what they report; [`front_door`] forwards
//! queries that arrive at the SM's own port; `web` serves the live page; [`node`] is the subnet
//! manager as a state machine without I/O; [`runtime`] owns all sockets, clocks, threads and files,
//! and drives it. [`plan`] compares routing engines without a fabric; [`ctl`] is `ibsmctl`.

pub mod cli;
pub mod clock;
pub mod ctl;
pub mod front_door;
pub mod node;
pub mod observe;
mod pages;
pub mod plan;
pub mod publish;
pub mod runtime;
mod web;
