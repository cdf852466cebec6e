//! `ibstorm`, the SA load generator. It models clients of a responder, checks the answers, and
//! measures latencies from the time when queries were due.
//!
//! - [`ports`], [`fabric`]: the clients and the expected paths between them.
//! - [`ask`], [`workload`]: requests. [`scenario`]: their timing. [`check`]: checks of answers.
//! - [`requester`]: the clients of one thread as a state machine. [`table`]: tables they receive.
//!   [`driver`]: the thread. [`follow`]: redirection by the SA.
//! - [`histogram`]: latencies and counts. [`cpu`]: CPU use of the generator. [`tally`], [`report`]:
//!   sums and output.
//! - [`options`], [`profile`], [`plan`]: command line, settings files, and the resulting plan.
//! - [`source`], [`link`], [`run`]: the snapshot, the sockets, and the main loop.

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
mod values;
pub mod workload;
