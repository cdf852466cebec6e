//! [`Snapshot`]: both planes under one version. `builder` creates one, `delta` derives one from
//! another.

use std::sync::Arc;

use super::digest::{Checksum, Digest};
use super::fabric::FabricPlane;
use super::registry::RegistryPlane;
use super::version::Version;

/// Version of the layout of rows, deltas and checksums. Peers and cache files with a different one
/// are rejected.
pub const SCHEMA: u32 = 6;

/// All data that SA queries are answered from, at one instant.
///
/// There are no setters: a snapshot is built, received or derived from another by a delta.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) version: Version,
    pub(super) fabric: Arc<FabricPlane>,
    pub(super) registry: Arc<RegistryPlane>,
    pub(super) digest: Digest,
}

impl Snapshot {
    /// The snapshot before the first publication: version [`Version::NONE`], no rows.
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

    /// State of the fabric after a sweep.
    pub fn fabric(&self) -> &Arc<FabricPlane> {
        &self.fabric
    }

    /// The clients' registrations.
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

/// Snapshots are equal if they have the same state and version.
impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
            && self.fabric == other.fabric
            && self.registry == other.registry
    }
}
