//! A MAD with its addressing, as sent and received by transports and state machines.

use std::net::SocketAddr;

use crate::types::{Gid, Lid, PKey, PortNum, Qpn, Sl};
use crate::wire::MAD_LEN;

/// One MAD and its remote address. A response may be written over its request; the address remains
/// valid.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Packet {
    /// The MAD, network byte order.
    pub mad: [u8; MAD_LEN],
    /// The remote address.
    pub address: Address,
    /// Data for transports and relays other than the address.
    pub carrier: Carrier,
}

/// Addressing of a MAD: of the remote end, and the local QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Source LID of a received packet, destination LID of one to send. Permissive for
    /// directed-route SMPs.
    pub lid: Lid,
    /// The remote QP.
    pub qpn: Qpn,
    /// The local QP.
    pub local_qpn: Qpn,
    /// Service level.
    pub sl: Sl,
    /// P_Key of the packet's BTH.
    pub pkey: PKey,
    /// Low bits of the local LID that the packet was addressed to (LMC).
    pub path_bits: u8,
    /// Global route header, if the packet has one.
    pub grh: Option<Grh>,
}

/// Data about a packet that transports and relays exchange and its headers do not contain. Answers
/// keep it, so that they return the way their request came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carrier {
    /// The socket address it came from or goes to, where a transport has several peers.
    pub peer: Option<SocketAddr>,
    /// Set if the far end reports that the packet could not be delivered: it comes back to its
    /// sender with this status, 110 (timed out) in practice.
    pub undelivered: u32,
    /// Time until this request is retried, milliseconds, for transports that wait for the answer
    /// (umad); 0 selects the transport's default.
    pub answer_timeout_ms: u32,
    /// Length of the MAD in bytes as its sender states it apart from the MAD's headers; 0 if only
    /// the headers state it. On ibsim, programs that leave RMPP to a kernel state the length here.
    pub message_len: u16,
    /// Marks that a relay set; transports that carry them say what they mean.
    pub marks: Marks,
    /// The local port by which it came or is to leave, where the local end is a planarized port,
    /// which has a port in each plane; 0 where it is not, or the transport may choose.
    pub plane: PortNum,
    /// Of a received packet: the number by which its sender proves who it is, where the transport
    /// has such numbers ([`udp`](crate::transport::udp)); 0 if it shows none. A socket that sends
    /// writes its own.
    pub token: u64,
}

/// Marks on a packet, none by default. They mean nothing to this crate's types and state machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(u8);

impl Marks {
    /// The mark with this number, 0 to 7.
    pub const fn numbered(number: u8) -> Self {
        Self(1 << (number & 7))
    }

    /// Whether all of these marks are set.
    #[inline]
    pub const fn contains(self, marks: Self) -> bool {
        self.0 & marks.0 == marks.0
    }

    /// These marks if `is_set`, otherwise none.
    #[inline]
    pub const fn only_if(self, is_set: bool) -> Self {
        if is_set { self } else { Self(0) }
    }
}

/// Where a packet came from and how, to send more packets there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The far end.
    pub address: Address,
    /// The path to it.
    pub carrier: Carrier,
}

/// Global route header (IBA 8.3), as seen locally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grh {
    /// The remote GID.
    pub remote_gid: Gid,
    /// The local GID that the packet was addressed to.
    pub local_gid: Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Address {
    /// QP1 at `lid`, from QP1, with SL 0 in the default partition.
    pub fn gsi(lid: Lid) -> Self {
        let (qpn, pkey) = (Qpn::GSI, PKey::DEFAULT_FULL);
        Self { lid, qpn, local_qpn: qpn, sl: Sl::default(), pkey, path_bits: 0, grh: None }
    }

    /// QP0 at `lid`, from QP0.
    pub fn smi(lid: Lid) -> Self {
        Self { qpn: Qpn::SMI, local_qpn: Qpn::SMI, ..Self::gsi(lid) }
    }
}

impl Default for Address {
    /// QP1 to QP1 with the permissive LID and the default partition.
    fn default() -> Self {
        Self::gsi(Lid::PERMISSIVE)
    }
}

impl Packet {
    /// A MAD for an address.
    pub fn new(mad: [u8; MAD_LEN], address: Address) -> Self {
        Self { mad, address, carrier: Carrier::default() }
    }

    /// A MAD of zeros for an address.
    pub fn to(address: Address) -> Self {
        Self::new([0; MAD_LEN], address)
    }

    /// Where it came from.
    #[inline]
    pub fn origin(&self) -> Origin {
        Origin { address: self.address, carrier: self.carrier }
    }

    /// Addresses it to where another came from.
    #[inline]
    pub fn set_origin(&mut self, origin: &Origin) {
        (self.address, self.carrier) = (origin.address, origin.carrier);
    }
}

impl Default for Packet {
    fn default() -> Self {
        Self::to(Address::default())
    }
}

// Queues of packets are allocated by the thousand and copied packet by packet.
const _: () = assert!(size_of::<Packet>() == 384);
