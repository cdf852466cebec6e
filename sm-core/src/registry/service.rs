//! ServiceRecord: services and their leases (15.2.5.14).

use ib_mad::wire::mad::Status;

use super::{Answer, Core, Ports, Request};

/// What is kept beside the rows.
#[derive(Debug, Default)]
pub(super) struct Index {}

/// Builds the index of restored rows.
pub(super) fn restore(_core: &mut Core) {}

/// Decides on a Set() or Delete().
pub(super) fn write(_core: &mut Core, _now_s: u64, _ports: &Ports, _request: &Request) -> Answer {
    Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE.into())
}

/// Takes out what belonged to ports that are there no more.
pub(super) fn fabric_changed(_core: &mut Core, _ports: &Ports) {}

/// Takes out services whose lease has ended by `now_s`.
pub(super) fn expire(_core: &mut Core, _now_s: u64) {}

/// When the next lease ends, in seconds since 1970.
pub(super) fn next_expiry(_core: &Core) -> Option<u64> {
    None
}
