//! Ways from clients to responders, besides the front door, which is always there.

use clap::{Args, ValueEnum};

use sm_core::sweep::Sharding;

/// How clients reach responders: redirection, the path of responses, and sharding.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct SaAccess {
    /// umad: which process reads SA requests at this SM's port. auto: a responder of this host
    /// (ibsa --at-sm-port); without one, this SM, which forwards them to responders. internal:
    /// this SM. external: a responder of this host; this SM never opens the SA class.
    #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
    pub sa: SaMode,
    /// Name a responder's port in the response to ClassPortInfo, for clients that follow
    /// redirection (advertise), or also redirect all other queries (require), which stock tools do
    /// not follow.
    #[arg(long, value_enum, value_name = "MODE", default_value = "off")]
    pub redirect: RedirectMode,
    /// How responses to queries at the SM's port return: through the front door, or directly from
    /// the responder's own port, if it has one and the response fits in one packet (direct).
    #[arg(long, value_enum, value_name = "WAY", default_value = "door")]
    pub front_door_return: ReturnWay,
    /// Set MasterSMLID of clients' ports to a responder's LID, for this percentage of the channel
    /// adapter ports that support it; without a number, for all of them.
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "100",
          require_equals = true, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub shard: Option<u8>,
    /// With --shard, lead ports of adapters that may have virtual functions also to responders'
    /// ports that did not take the GUID by which virtual functions address the SA (ibsmctl status
    /// shows which did): use it only if no virtual functions are used.
    #[arg(long, requires = "shard")]
    pub shard_virtualized: bool,
    /// With --shard, move the LID of a failed responder's port to a spare one, if both ports are
    /// dedicated to responders (ibsa --port-use).
    #[arg(long, requires = "shard")]
    pub lid_takeover: bool,
}

impl SaAccess {
    /// The clients to spread over responders; `None` without `--shard`.
    pub fn sharding(&self) -> Option<Sharding> {
        self.shard.map(|share| Sharding { share, virtualized: self.shard_virtualized })
    }
}

/// Which process reads SA requests at the SM's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SaMode {
    /// A responder of this host that shares the port (`ibsa --at-sm-port`); this SM while there is
    /// none.
    #[default]
    Auto,
    /// This SM, for the front door.
    Internal,
    /// A responder of this host.
    External,
}

/// The way of responses to queries at the SM's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReturnWay {
    /// Through the front door, from the SM's port.
    #[default]
    Door,
    /// From the responder's own port, where it has one and the response is one packet.
    Direct,
}

/// The requests that are redirected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RedirectMode {
    /// No requests.
    #[default]
    Off,
    /// The response to ClassPortInfo names a responder's port.
    Advertise,
    /// In addition, all other requests are answered with status 0x0002.
    Require,
}
