//! The snapshot in the form that queries read, built off the query path and never changed.
//!
//! - [`fabric`]: the tables of the fabric plane; [`limit`]: MTU and rate limits.
//! - [`qos_match`]: finds the QoS rule that applies to a request for a path.
//! - [`index`]: look-ups in the registry plane.
//! - [`cell`]: hands a new generation to the workers.
//! - `prefetch`: the CPU's prefetch instruction.

pub mod cell;
pub mod fabric;
pub mod index;
pub mod limit;
mod prefetch;
pub mod qos_match;

pub use fabric::{
    Arrival, EndClass, EndPort, EndPorts, LinkOwners, NodeRows, Owner, PKeySet, Partitions,
    PathClass, Paths, RecordTables, Records, Step, Tables,
};
pub(crate) use fabric::{Sight, SourceKind, text};
pub use limit::{Limit, RateSupport};
