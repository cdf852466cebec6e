//! What a simulation ends with if something does not hold.

use sa_proto::snapshot::{RegistryPlane, RegistryVersion};

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// The registry that a process claims to have on disk.
pub type Stored = (RegistryVersion, RegistryPlane);
