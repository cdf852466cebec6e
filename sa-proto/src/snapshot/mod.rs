//! A snapshot: everything that SA queries are answered from, at one instant. It never changes.
//!
//! Two planes, each with a generation of its own: the fabric plane changes with a sweep, the
//! registry plane with every write. Rows are keyed by GUID or RID and hold attributes as they are
//! on the wire, so that no index has to survive from one snapshot to the next; a responder builds
//! its own indexed tables.
//!
//! - [`FabricPlane`], [`RegistryPlane`]: plain data; [`Snapshot::build`] checks and seals them.
//! - [`row`], [`Rows`]: sorted tables of shared rows, and [`encoding`]: what their bytes are.
//! - [`Digest`]: checksums that a delta can bring up to date.
//! - [`delta`], [`History`]: the way from one snapshot to the next, and to the latest.
//! - [`codec`], [`cache`]: snapshots and deltas as messages, and as a file.
//! - [`cell`]: the current one, for many readers.

mod blocks;
mod builder;
mod by_lid;
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
#[cfg(test)]
pub(crate) mod testing;
mod version;

use std::sync::Arc;

pub use builder::BuildError;
pub use by_lid::BlockPatch;
pub use delta::{Delta, DeltaError};
pub use device::{Mft, MftBlock, PortTables, SubnetManager};
pub use digest::{BUCKETS, BucketSet, Checksum, Digest, PlaneBuckets};
pub use entries::Entries;
pub use fabric::{FabricPlane, Lft, Node, PathSls, Port, Subnet, told_rate};
pub use history::{Held, History, HistoryLimits, Plan};
pub use policy::{
    IdMatch, Partition, PortGroup, PrefixRoute, QosLevel, QosRule, RuleOrigin, VirtualFabric,
};
pub use registry::{
    AliasGuid, Changes, MulticastGroup, MulticastMember, MulticastMemberRid, RegistryChanges,
    RegistryPlane, Service, ServiceRid, Subscription, SubscriptionRid,
};
pub use row::{Row, Table, find};
pub use rows::{Iter, Rows};
pub use version::{Session, Version};

/// Version of the layout of rows, deltas and checksums. Peers and cache files with another one
/// are refused.
pub const SCHEMA: u32 = 4;

/// Everything that SA queries are answered from, at one instant.
///
/// There are no setters: a snapshot is built, received or derived from another by a delta.
#[derive(Clone, Debug)]
pub struct Snapshot {
    version: Version,
    fabric: Arc<FabricPlane>,
    registry: Arc<RegistryPlane>,
    digest: Digest,
}

impl Snapshot {
    /// The snapshot before anything was published: version [`Version::NONE`], no rows.
    pub fn empty() -> Self {
        let (fabric, registry) = (FabricPlane::default(), RegistryPlane::default());
        let digest = Digest::of(&fabric, &registry);
        let (fabric, registry) = (Arc::new(fabric), Arc::new(registry));
        Self { version: Version::NONE, fabric, registry, digest }
    }

    /// Session and generations.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What a sweep found and configured.
    pub fn fabric(&self) -> &Arc<FabricPlane> {
        &self.fabric
    }

    /// What clients registered.
    pub fn registry(&self) -> &Arc<RegistryPlane> {
        &self.registry
    }

    /// Bucket sums over all rows.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Checksum over all rows.
    pub fn checksum(&self) -> Checksum {
        self.digest.checksum()
    }
}

/// Snapshots are equal if they hold the same state under the same version.
impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
            && self.fabric == other.fabric
            && self.registry == other.registry
    }
}
