//! InformInfo: event subscriptions (13.4.8.3).

use ib_mad::wire::mad::Status;

use super::{Answer, Core, Ports, Request};

/// What is kept beside the rows.
#[derive(Debug, Default)]
pub(super) struct Index {}

/// Builds the index of restored rows.
pub(super) fn restore(_core: &mut Core) {}

/// Decides on a Set() or Delete().
pub(super) fn write(_core: &mut Core, _ports: &Ports, _request: &Request) -> Answer {
    Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE.into())
}

/// Takes out what belonged to ports that are there no more.
pub(super) fn fabric_changed(_core: &mut Core, _ports: &Ports) {}
