//! State that all routes of a lane share while they are computed.

use super::fabric::Fabric;
use super::loads::Loads;
use super::turns::Turns;

/// The state of a lane, and the loads of all lanes.
#[derive(Debug)]
pub(super) struct Lane<'a> {
    pub(super) fabric: &'a Fabric<'a>,
    /// Link loads of the routes of all lanes.
    pub(super) loads: &'a mut Loads,
    /// The turns of this lane's routes.
    pub(super) turns: &'a mut Turns,
}
