//! How clients reach responders, besides the front door, which is always there.

use clap::Args;

use crate::front_door::{RedirectMode, ReturnWay};

/// By which ways clients reach responders.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Tell clients that ask for ClassPortInfo which responder's port to ask from then on
    /// (advertise), or answer everything else by that (require), which stock tools do not follow.
    #[arg(long, value_enum, value_name = "MODE", default_value = "off")]
    pub redirect: RedirectMode,
    /// By which way answers to queries at the SM's port go back: through the front door, or from
    /// the port of the responder that has one (direct), where one packet holds the answer.
    #[arg(long, value_enum, value_name = "WAY", default_value = "door")]
    pub front_door_return: ReturnWay,
}
