//! ibsa, the subnet administration responder.
//!
//! It holds the latest snapshot of a subnet and answers SA queries from tables built from it,
//! without locks and without asking another process.
//!
//! The modules, lowest first. A module imports only modules above it in this list:
//!
//! 1. [`tables`]: the snapshot in the form that queries read.
//! 2. [`stats`]: the workers' counters.
//! 3. [`query`]: finds the records that answer a query.
//! 4. [`sm`]: the connection to the subnet manager.
//! 5. [`serve`]: from a packet to its answer: responders, transfers, workers.
//! 6. [`watch`]: output for operators: metrics, figures, explanations.
//! 7. [`host`]: options, ports and CPUs of the responder's host.
//! 8. [`runtime`]: starts and connects all of them.

pub mod host;
pub mod query;
pub mod runtime;
pub mod serve;
pub mod sm;
pub mod stats;
pub mod tables;
pub mod watch;
