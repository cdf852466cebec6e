//! How clients reach responders, besides the front door, which is always there.

use clap::Args;

use crate::front_door::{RedirectMode, ReturnWay};
use crate::sweep::Sharding;

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
    /// Have clients ask responders by MasterSMLID: this percentage of the channel adapters' ports
    /// that can, all of them without a number.
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "100",
          require_equals = true, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub shard: Option<u8>,
    /// With --shard, also ports of adapters that may have virtual functions, which address the SA
    /// by a GRH that responders' ports do not take: only where none are in use.
    #[arg(long, requires = "shard")]
    pub shard_virtualized: bool,
    /// With --shard, let a spare responder's port take the LID of one that died, where both are for
    /// nothing else (ibsa --port-use).
    #[arg(long, requires = "shard")]
    pub lid_takeover: bool,
}

impl Reach {
    /// Which clients are spread over responders.
    pub fn sharding(&self) -> Option<Sharding> {
        self.shard.map(|share| Sharding { share, virtualized: self.shard_virtualized })
    }
}
