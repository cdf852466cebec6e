//! `ibstorm`, the SA load generator: models of clients that storm a responder, answers checked,
//! latencies counted from when queries were due.
//!
//! - [`ports`], [`fabric`]: who the clients are, and what the paths between them are.
//! - [`ask`], [`workload`]: what is asked. [`scenario`]: when. [`check`]: whether the answer is right.
//! - [`requester`]: one thread's clients as a state machine, [`table`] the tables they receive.
//!   [`driver`]: its thread. [`follow`]: whom it asks, where the SA redirects.
//! - [`histogram`]: latencies and counts. [`cpu`]: what the generator itself used. [`tally`],
//!   [`report`]: what is told of them.
//! - [`options`], [`profile`], [`plan`]: the command line, files of settings, and what both come to.
//! - [`source`], [`link`], [`run`]: the snapshot, the sockets, and what starts them.

pub mod ask;
pub mod check;
pub mod cpu;
pub mod driver;
pub mod fabric;
pub mod follow;
pub mod histogram;
pub mod link;
pub mod options;
pub mod plan;
pub mod ports;
pub mod profile;
pub mod report;
pub mod requester;
pub mod run;
pub mod scenario;
pub mod source;
pub mod table;
pub mod tally;
pub mod workload;
