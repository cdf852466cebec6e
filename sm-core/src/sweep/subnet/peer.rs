//! Another subnet manager, as shown to operators.

use std::time::Duration;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::SmState;

/// Another subnet manager, as the last discovery found it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// GUID of its port.
    pub port_guid: Guid,
    /// Node and port, as text.
    pub place: String,
    /// Its LID.
    pub lid: Lid,
    /// Its SMInfo state.
    pub state: SmState,
    /// Its priority.
    pub priority: u8,
    /// Time since its last answer, if it is the master that is polled.
    pub answered: Option<Duration>,
    /// Polls in a row that it left unanswered since.
    pub polls_missed: u32,
}
