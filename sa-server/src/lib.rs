//! ibsa, the subnet administration responder.
//!
//! It holds the latest snapshot of a subnet and answers SA queries from tables built from it,
//! without locks and without asking another process.
//!
//! The modules, lowest first. A module imports only modules above it in this list:
//!
//! 1. [`tables`]: the snapshot in the form that queries read.
//! 2. [`stats`]: what workers count.
//! 3. [`query`]: finds the records that answer a query.
//! 4. [`sm`]: the connection to the subnet manager.
//! 5. [`serve`]: from a packet to its answer: responders, transfers, workers.
//! 6. [`watch`]: what operators see: metrics, figures, explanations.
//! 7. [`host`]: what the responder takes from its host: options, ports, CPUs.
//! 8. [`runtime`]: starts and connects all of them.

pub mod host;
pub mod query;
pub mod runtime;
pub mod serve;
pub mod sm;
pub mod stats;
pub mod tables;
pub mod watch;
