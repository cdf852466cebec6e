//! Which snapshot this is: the session it belongs to and the generation of each plane.

use std::fmt;

use ib_mad::types::Guid;

use super::encoding::canonical;

/// One reign of one SM. Ordered: whoever holds a session refuses every lower one, so that an SM
/// that was replaced cannot publish any more (fencing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// Higher with every start or take-over of mastership. 0 means that nothing was published.
    pub epoch: u64,
    /// Port GUID of the SM; decides between SMs that claim one epoch.
    pub sm_guid: Guid,
}

/// The version of a snapshot. Ordered; within a session both generations only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The session that it was published in.
    pub session: Session,
    /// Generation of the fabric plane, counted from 1 within the session.
    pub fabric_generation: u64,
    /// Sequence number of the last registry write that is in it. Grows across sessions too.
    pub registry_sequence: u64,
}

impl Version {
    /// The version of the empty snapshot, lower than any published one.
    pub const NONE: Self = Self {
        session: Session { epoch: 0, sm_guid: Guid(0) },
        fabric_generation: 0,
        registry_sequence: 0,
    };
}

canonical!(Session { epoch, sm_guid });
canonical!(Version { session, fabric_generation, registry_sequence });

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.epoch, self.sm_guid)
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
}
