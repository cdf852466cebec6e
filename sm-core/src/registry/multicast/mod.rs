//! Multicast groups and their members (MCMemberRecord, 15.2.5.17).

use ib_mad::types::{Gid, Guid};
use ib_mad::wire::mad::Status;

use super::{Answer, Core, Ports, Request};

/// A group of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredefinedGroup {
    /// MCMemberRecord as it is on the wire, without PortGID, JoinState and ProxyJoin. MLID is what
    /// is asked for if it is free; 0 leaves the choice to the registry. Selectors are "exactly".
    pub record: [u8; 52],
}

/// What is kept beside the rows.
#[derive(Debug, Default)]
pub(super) struct Index {}

/// Builds the index of restored rows.
pub(super) fn restore(_core: &mut Core) {}

/// Decides on a Set() or Delete().
pub(super) fn write(_core: &mut Core, _ports: &Ports, _request: &Request) -> Answer {
    Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE.into())
}

/// Takes out the members whose ports are there no more.
pub(super) fn fabric_changed(_core: &mut Core, _ports: &Ports) {}

/// Makes `groups` those of configuration files.
pub(super) fn set_predefined(_core: &mut Core, _ports: &Ports, _groups: &[PredefinedGroup]) {}

/// Takes out memberships of a GUID that no port answers to any more.
pub(super) fn guid_gone(_core: &mut Core, _guid: Guid) {
    let _ = Gid::ZERO;
}

/// Whether a port has joined a group by this GUID.
pub(super) fn is_member(core: &Core, guid: Guid) -> bool {
    core.members.rows().iter().any(|member| member.rid.port_gid.guid() == guid)
}
