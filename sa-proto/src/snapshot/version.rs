//! The version of a snapshot: its session and the generation of each plane.

use std::fmt;

use ib_mad::types::Guid;

use super::encoding::canonical;

/// A period in which one SM is master. Ordered: a responder that follows a session rejects every
/// lower one, so that a superseded SM can no longer publish (fencing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// Epoch; increased whenever an SM starts as master or takes over. 0 before the first
    /// publication.
    pub epoch: u64,
    /// Port GUID of the SM; orders SMs that use the same epoch.
    pub sm_guid: Guid,
}

/// The version of a snapshot. Ordered; within a session both generations only increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The session that published it.
    pub session: Session,
    /// Generation of the fabric plane, counted from 1 within the session.
    pub fabric_generation: u64,
    /// Sequence number of the last registry write included. Increases across sessions, too; 0 while
    /// the master does not know its registry, at least 1 if it does, though it may be empty.
    pub registry_sequence: u64,
}

/// The age of a registry: the session in which it was published or followed last, and its sequence
/// number there. Of two registries, the one of the higher session is newer; sequence numbers count
/// only within a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegistryVersion {
    /// The session.
    pub session: Session,
    /// Sequence number of the last write.
    pub sequence: u64,
}

impl Version {
    /// Whether the master knew its registry; otherwise the snapshot has none.
    pub fn has_registry(&self) -> bool {
        self.registry_sequence != 0
    }

    /// The version of the registry plane alone.
    pub fn registry(self) -> RegistryVersion {
        RegistryVersion { session: self.session, sequence: self.registry_sequence }
    }

    /// The version of the empty snapshot, lower than any published one.
    pub const NONE: Self = Self {
        session: Session { epoch: 0, sm_guid: Guid(0) },
        fabric_generation: 0,
        registry_sequence: 0,
    };

    /// The version of tables that are built without a manager, from rows that are known.
    pub const OFFLINE: Self = Self { registry_sequence: 1, ..Self::NONE };
}

canonical!(Session { epoch, sm_guid });
canonical!(Version { session, fabric_generation, registry_sequence });

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.epoch, self.sm_guid)
    }
}

impl fmt::Display for RegistryVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.session, self.sequence)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}.{}", self.session, self.fabric_generation, self.registry_sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_session_outranks_every_generation_of_the_old_one() {
        let version = |epoch, fabric_generation| Version {
            session: Session { epoch, sm_guid: Guid(1) },
            fabric_generation,
            registry_sequence: 9,
        };
        assert!(version(2, 1) > version(1, u64::MAX));
        assert!(version(2, 2) > version(2, 1));
        assert!(Version::NONE < version(1, 0));
    }

    /// Regression: a former master counted further in its old session than its successor in the new
    /// one.
    #[test]
    fn of_two_registries_that_of_the_later_session_is_newer() {
        let version = |epoch, sequence| RegistryVersion {
            session: Session { epoch, sm_guid: Guid(1) },
            sequence,
        };
        assert!(version(6, 10) > version(5, 12));
        assert!(version(6, 11) > version(6, 10));
    }
}
