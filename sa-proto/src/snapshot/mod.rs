//! A snapshot: all data that SA queries are answered from, at one instant. Immutable.
//!
//! A snapshot has two planes, each with its own generation: the fabric plane changes with a sweep,
//! the registry plane with every write. Rows are keyed by GUID or RID and hold attributes in wire
//! format, so that no index has to persist from one snapshot to the next; a responder builds its
//! own indexed tables.
//!
//! - [`FabricPlane`], [`RegistryPlane`]: plain data; [`Snapshot::build`] checks and seals them.
//! - [`row`], [`Rows`]: sorted tables of shared rows, and [`encoding`]: their encoding.
//! - [`Digest`]: checksums that a delta can update.
//! - [`delta`], [`History`]: changes from one snapshot to the next, and to the latest.
//! - [`codec`], [`cache`]: snapshots and deltas as messages, and as a file.
//! - [`cell`]: the current snapshot, for many readers.

mod blocks;
mod builder;
mod by_lid;
#[cfg(feature = "rpc")]
pub mod cache;
pub mod cell;
mod change;
pub mod codec;
pub mod delta;
mod device;
mod digest;
pub mod encoding;
mod entries;
mod fabric;
mod history;
mod policy;
mod registry;
pub mod row;
mod rows;
mod sorted;
mod state;
mod tables;
#[cfg(test)]
pub(crate) mod testing;
mod version;

pub use builder::BuildError;
pub use by_lid::BlockPatch;
pub use change::Changes;
pub use delta::{Delta, DeltaError};
pub use device::{Mft, MftBlock, PortTables, SubnetManager, VirtualPort, VirtualPorts};
pub use digest::{BUCKETS, BucketSet, Checksum, Digest, PlaneBuckets};
pub use entries::Entries;
pub use fabric::{FabricPlane, Lft, Node, PathSls, Port, Subnet, limited_rate};
pub use history::{Held, History, HistoryLimits, Plan};
pub use policy::{
    IdMatch, Partition, PortGroup, PrefixRoute, QosLevel, QosRule, RuleOrigin, VirtualFabric,
};
pub use registry::*;
pub use row::{Row, find};
pub use rows::{Iter, Rows};
pub use state::{SCHEMA, Snapshot};
pub use tables::Table;
pub use version::{RegistryVersion, Session, Version};
