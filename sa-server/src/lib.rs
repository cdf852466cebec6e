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
//! 4. [`node`]: the paths of one port, for agents on compute nodes.
//! 5. [`sm`]: the connection to the subnet manager.
//! 6. [`serve`]: from a packet to its answer: responders, transfers, workers.
//! 7. [`watch`]: output for operators: metrics, figures, explanations.
//! 8. [`host`]: options, ports and CPUs of the responder's host.
//! 9. [`runtime`]: starts and connects all of them.
//!
//! [`agent`] is another program, `ibsa agent`: it uses `node`, and parts of `sm` and `watch`.

pub mod agent;
pub mod host;
pub mod node;
pub mod query;
pub mod runtime;
pub mod serve;
pub mod sm;
pub mod stats;
pub mod tables;
pub mod watch;
