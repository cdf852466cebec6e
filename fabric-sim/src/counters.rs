//! Packet counters, with the reasons for drops.

/// Defines the drop reasons with their names, so that reports are complete.
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
    /// The switch's forwarding table has no port for the LID.
    NoRoute = "no_route",
    /// A port on the way has no link, or one whose state does not let the packet pass.
    PortDown = "port_down",
    /// Too many hops for any real route: the tables loop.
    HopLimit = "hop_limit",
    /// Arrived at a port that does not have the LID.
    WrongLid = "wrong_lid",
    /// Arrived at a port that does not have the GID of its GRH.
    WrongGid = "wrong_gid",
    /// The directed route does not lead to a node.
    BadPath = "bad_path",
    /// Lost by an injected fault.
    Lost = "lost",
    /// The sending or receiving node is powered off.
    NodeDown = "node_down",
    /// No client at the destination receives such packets.
    NoClient = "no_client",
    /// Not a valid MAD.
    Malformed = "malformed",
    /// Wrong M_Key.
    BadMKey = "bad_m_key",
    /// The request showed a wrong CC_Key.
    BadCcKey = "bad_cc_key",
    /// Too many packets in flight.
    InFlightLimit = "in_flight_limit",
    /// Too many copies of a multicast packet.
    MulticastLimit = "multicast_limit",
    /// The receiving client reads too slowly, and its queue is full.
    QueueFull = "queue_full",
    /// Too many unrepressed traps of one port.
    TrapLimit = "trap_limit",
}

/// Counts of events so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent by clients.
    pub sent: u64,
    /// Packets delivered to clients, without returned ones.
    pub delivered: u64,
    /// Packets returned to their sender.
    pub returned: u64,
    /// Requests answered by nodes' agents.
    pub answered: u64,
    /// Traps sent by nodes, repeats included.
    pub traps: u64,
    /// Traps repressed.
    pub traps_repressed: u64,
    /// Times that clients behind a port were asked to reregister.
    pub reregistrations: u64,
    /// LID-routed SMPs that clients sent: requests and traps, not answers and TrapRepress(). On
    /// planarized fabrics their delivery is not guaranteed.
    pub lid_routed_smps: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Packets dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Packets dropped in total.
    pub fn dropped_in_all(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Each reason with its count.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.dropped(reason)))
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }
}
