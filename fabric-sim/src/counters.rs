//! What happened to packets, in numbers.

/// Declares the reasons with their names, so that none is left out of a report.
macro_rules! reasons {
    ($( $(#[$doc:meta])* $reason:ident = $name:literal, )*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $( $(#[$doc])* $reason, )*
        }

        impl DropReason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$( Self::$reason, )*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$reason => $name, )*
                }
            }
        }
    };
}

reasons! {
    /// A switch's forwarding table has no port for the LID.
    NoRoute = "no_route",
    /// A port on the way has no link, or one that is not far enough for the packet.
    PortDown = "port_down",
    /// More hops than any sane route has: the tables loop.
    HopLimit = "hop_limit",
    /// It ended at a port that does not have the LID.
    WrongLid = "wrong_lid",
    /// Its directed route leads nowhere.
    BadPath = "bad_path",
    /// A fault lost it.
    Lost = "lost",
    /// The node it was sent by or to is off.
    NodeDown = "node_down",
    /// Nobody at its destination takes such packets.
    NoClient = "no_client",
    /// It is not what a MAD looks like.
    Malformed = "malformed",
    /// A wrong M_Key.
    BadMKey = "bad_m_key",
    /// More packets on their way than the fabric keeps.
    InFlightLimit = "in_flight_limit",
    /// More copies of a multicast packet than are made.
    MulticastLimit = "multicast_limit",
    /// Its receiver does not take its packets, and its queue is full.
    QueueFull = "queue_full",
    /// More traps of one port unrepressed than it keeps.
    TrapLimit = "trap_limit",
}

/// What happened so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that clients sent.
    pub sent: u64,
    /// Packets that clients were given, returned ones not among them.
    pub delivered: u64,
    /// Packets that came back to their sender.
    pub returned: u64,
    /// Requests that nodes answered themselves.
    pub answered: u64,
    /// Traps that nodes sent, repeats included.
    pub traps: u64,
    /// Traps that were repressed.
    pub traps_repressed: u64,
    /// Times that clients behind a port were asked to register again.
    pub reregistrations: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Packets dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Packets dropped for any reason.
    pub fn dropped_in_all(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Every reason with its count.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.dropped(reason)))
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }
}
