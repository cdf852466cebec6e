//! What the fabric should be: LIDs, partitions, link settings. Pure functions of the fabric and
//! the settings; sending is `sweep`'s business.

pub mod end_port;
pub mod lid;
pub mod link;
pub mod mkey;
pub mod partition;
pub mod pkey;
pub mod policy;
mod policy_rows;
pub mod port_qos;
pub mod qos;
pub mod rules;
pub mod shard;
pub mod steering;
pub mod throttled;
pub mod vfabric;

pub use policy_rows::PolicyRows;
