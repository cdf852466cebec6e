//! `ibstorm`, the SA load generator: storms of PathRecord queries, answers checked, latencies
//! counted from when queries were due.
//!
//! - [`ports`], [`fabric`]: between which ports, and what the paths between them are.
//! - [`workload`]: what is asked. [`pace`]: when. [`check`]: whether the answer is right.
//! - [`requester`]: one requester as a state machine. [`driver`]: its thread. [`follow`]: whom it
//!   asks, where the SA redirects.
//! - [`histogram`]: latencies and counts. [`report`]: what is told of them.
//! - [`options`], [`source`], [`run`]: the command line, the snapshot, and what they start.

pub mod check;
pub mod driver;
pub mod fabric;
pub mod follow;
pub mod histogram;
pub mod options;
pub mod pace;
pub mod ports;
pub mod report;
pub mod requester;
pub mod run;
pub mod source;
pub mod workload;
