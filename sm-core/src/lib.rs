//! `ibsm`, the lean InfiniBand subnet manager, as a library for its binaries and tests.
//!
//! From the wire up: [`fabric`] is what is known, [`sweep`] finds it out and makes it what
//! [`manage`] and [`routing`] say it should be, [`publish`] hands the result to the responders, and
//! [`front_door`] passes them the queries that arrive at the SM's own port. [`observe`] joins what
//! they report with what the SM does, and `web` shows it. [`plan`] compares routing engines without a
//! fabric, and [`dump`] renders tables as text. [`runtime`] owns all sockets, clocks and files; nothing below
//! it does.

pub mod config;
pub mod ctl;
pub mod dump;
pub mod fabric;
pub mod front_door;
pub mod manage;
pub mod mastership;
pub mod notice;
pub mod observe;
mod pages;
pub mod plan;
pub mod publish;
pub mod registry;
pub mod routing;
pub mod runtime;
pub mod smp;
pub mod sweep;
pub mod trap;
mod web;
