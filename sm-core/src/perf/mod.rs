//! The performance manager: reads the counters of all ports (IBA 16.1), and adds them up.
//!
//! [`PerfManager`] is a state machine: packets, time and the nodes of the fabric go in, packets and
//! events come out. `agent` holds what is known about each performance management agent, `queries`
//! writes requests and reads answers, [`counter`] names the counters, [`table`] adds them up, and
//! `growth` holds what a reading added for those that follow counters.
//! [`dump`] renders them in OpenSM's text formats.
//!
//! What is not here: sockets, the thread, and where the fabric's nodes come from (`ibsm`).

mod agent;
pub mod counter;
pub mod dump;
mod growth;
mod manager;
mod queries;
pub mod table;
#[cfg(test)]
mod tests;

pub use counter::Counter;
pub use growth::{Group, Growth};
pub use manager::{
    Happened, OUTSTANDING_MAX, PerfEvent, PerfManager, PerfSettings, PerfStatus, PortView,
    RedirectionView,
};
