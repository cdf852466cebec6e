//! The intended configuration of the fabric: LIDs, partitions, link settings. Pure functions of the
//! fabric and the settings; `sweep` sends the requests.

pub mod api_partitions;
mod by_port;
pub mod end_port;
pub mod home;
pub mod isolation;
pub mod lid;
pub mod link;
pub mod mkey;
pub mod partition;
pub mod pkey;
pub mod policy;
pub mod port_qos;
pub mod qos;
pub mod quarantine;
pub mod rules;
pub mod shard;
pub mod steering;
pub mod throttled;
pub mod vfabric;
