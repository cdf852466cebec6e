//! The front door of a manager as its responders know it.

/// Where envelopes of a front door come from, as its manager announces it to responders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedDoor {
    /// The address of its socket, `host:port`, possibly unspecified; empty if there is none.
    pub address: String,
    /// The token in its envelopes, 48 bits; 0 if they have none.
    pub token: u64,
}
