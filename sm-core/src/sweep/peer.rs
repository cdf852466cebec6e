//! Another subnet manager, for people.

use std::time::Duration;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::SmState;

/// Another subnet manager, as the last discovery found it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// GUID of its port.
    pub port_guid: Guid,
    /// Its node and port in words.
    pub place: String,
    /// Its LID.
    pub lid: Lid,
    /// What it is.
    pub state: SmState,
    /// Its priority.
    pub priority: u8,
    /// How long ago it answered last, if it is the master that we stand by for.
    pub answered: Option<Duration>,
    /// Polls in a row that it left unanswered since.
    pub polls_missed: u32,
}
