//! What all routes of a lane share while they are made.

use super::fabric::Fabric;
use super::loads::Loads;
use super::turns::Turns;

/// A lane, and what is known of it and of others.
#[derive(Debug)]
pub(super) struct Lane<'a> {
    pub(super) fabric: &'a Fabric<'a>,
    /// What routes of this lane and of others put on links.
    pub(super) loads: &'a mut Loads,
    /// The turns of this lane's routes.
    pub(super) turns: &'a mut Turns,
}
