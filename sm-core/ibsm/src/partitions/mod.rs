//! Partitions that programs make: what gRPC and HTTP have in common. Both give orders to the
//! registry, which decides on them, and list what is published.
//!
//! - [`list`]: all partitions and their members, from a snapshot and the files in force.
//! - [`order`]: an order of the protocol as the registry has it.

use std::sync::Arc;

use sm_config::PartitionConfig;

pub mod list;
pub mod order;

/// What operators' files say, as it is in force: it changes when they are read again.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// The partitions of `partitions.conf` and of virtual fabrics.
    pub partitions: Arc<PartitionConfig>,
    /// The M_Key of ports; 0 for none.
    pub m_key: u64,
    /// The SM_Key.
    pub sm_key: u64,
}
