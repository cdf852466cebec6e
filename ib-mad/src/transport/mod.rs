//! Sockets that carry MADs, behind one interface: batches in, batches out, never blocking.
//!
//! A transport is owned by one thread. Who has to wait for several at once polls their
//! descriptors; see [`wait`].
//!
//! - [`ibsim`]: a port of a simulated fabric, served by `ibfabric` or stock `ibsim`.
//! - [`umad`]: a port of this host, by the kernel's device file.
//! - `verbs`: a queue pair of our own at such a port, for clients that are redirected to it (feature
//!   `verbs`).
//! - [`udp`]: MADs in envelopes, between load generator, front door and responders.
//! - [`ring`]: shared memory, between processes of one host.
//! - [`memory`]: a network in a test, with virtual time and faults by seed.
//! - [`capture`]: any of them, with what passes written to a file that tshark reads.

pub mod capture;
pub mod ibsim;
mod mapping;
pub mod memory;
mod mmsg;
pub mod ring;
mod sockaddr;
pub mod udp;
pub mod umad;
#[cfg(feature = "verbs")]
pub mod verbs;
mod wait;

pub use wait::{Interest, WAIT_MAX, wait};

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use crate::types::{Gid, Guid, Lid, PKey, PortNum, Qpn, Sl};
use crate::wire::MAD_LEN;
use crate::wire::attribute::PortState;

/// One MAD and the far end it came from or goes to. An answer may be written where the request
/// stood, and the address left as it is.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Packet {
    /// The MAD, network byte order.
    pub mad: [u8; MAD_LEN],
    /// The far end.
    pub address: Address,
}

/// Addressing of a MAD: the far end's, and the QP at ours.
#[derive(Debug, PartialEq, Eq)]
pub struct Address {
    /// Source LID of a packet received, destination LID of one to send. Permissive for
    /// directed-route SMPs.
    pub lid: Lid,
    /// The far end's QP.
    pub qpn: Qpn,
    /// The QP at our end.
    pub local_qpn: Qpn,
    /// Service level.
    pub sl: Sl,
    /// P_Key of the packet's BTH.
    pub pkey: PKey,
    /// Low bits of the LID at our end by which it was addressed (LMC).
    pub path_bits: u8,
    /// Set if the far end reports that the packet could not be delivered: it comes back to its
    /// sender with this status, 110 (timed out) in practice.
    pub undelivered: u32,
    /// Bytes of the MAD that its sender says are meant, where that is not what its headers say: on
    /// ibsim, programs that leave RMPP to a kernel tell the length only so. 0: the headers hold.
    pub message_len: u16,
    /// Set on a request that a front door passed on if whoever answers it may send the answer to
    /// the client itself, by a port of its own.
    pub direct: bool,
    /// How long the answer to this request is waited for before it is sent again, milliseconds, where
    /// the transport has to know; 0 is the transport's usual time.
    pub answer_timeout_ms: u32,
    /// Global route header, if the packet has one.
    pub grh: Option<Grh>,
    /// The socket address it came from or goes to, where a transport has several peers.
    pub peer: Option<SocketAddr>,
}

/// Global route header (8.3), as seen from our end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grh {
    /// The far end's GID.
    pub remote_gid: Gid,
    /// Our GID, by which it was addressed.
    pub local_gid: Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

/// All of it as it stands, whichever options are there: every packet of a transfer has a copy.
impl Clone for Address {
    #[inline]
    fn clone(&self) -> Self {
        let Self { lid, qpn, local_qpn, sl, pkey, path_bits, .. } = *self;
        let Self { undelivered, message_len, direct, answer_timeout_ms, grh, peer, .. } = *self;
        Self {
            lid,
            qpn,
            local_qpn,
            sl,
            pkey,
            path_bits,
            undelivered,
            message_len,
            direct,
            answer_timeout_ms,
            grh,
            peer,
        }
    }
}

impl Default for Address {
    /// QP1 to QP1 by permissive LID, default partition.
    fn default() -> Self {
        Self {
            lid: Lid::PERMISSIVE,
            qpn: Qpn::GSI,
            local_qpn: Qpn::GSI,
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            path_bits: 0,
            undelivered: 0,
            message_len: 0,
            direct: false,
            answer_timeout_ms: 0,
            grh: None,
            peer: None,
        }
    }
}

impl Default for Packet {
    fn default() -> Self {
        Self { mad: [0; MAD_LEN], address: Address::default() }
    }
}

/// A queue of MADs to and from a fabric. Neither call blocks.
pub trait Transport: Send {
    /// Fills `batch` from its start with what has arrived; returns how many. After a full batch,
    /// and after sending, call it again before you wait: what is left may no longer be with the
    /// descriptor.
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize>;

    /// Sends `batch` in order until the transport takes no more; returns how many it took. The
    /// caller keeps the rest and tries again once the descriptor is writable. A packet whose
    /// destination does not exist counts as taken: delivery is never promised.
    fn send(&mut self, batch: &[Packet]) -> io::Result<usize>;

    /// The descriptor to poll; `None` for a transport in memory, which has its own clock. Ask for
    /// it each time you wait: a transport may have to be told, or know better.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Has the transport's own queue, where it can be told so, hold no more than about so many
    /// packets that have arrived; those beyond are lost. What waits there has no age: whoever
    /// cannot keep up bounds the time that it may take. `usize::MAX`: as many as there is room for.
    fn limit_queue(&mut self, packets: usize) {
        let _ = packets;
    }

    /// Packets lost so far because the transport's own queue, in or out, was full; 0 if it cannot
    /// tell, or loses none.
    fn overflowed(&mut self) -> u64 {
        0
    }

    /// What has arrived so far and was no packet.
    fn malformed(&self) -> Malformed {
        Malformed::default()
    }
}

/// Datagrams received that were passed over, by what is wrong with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Malformed {
    /// Longer or shorter than a packet.
    pub length: u64,
    /// As long as one, but what stands before the MAD is not of this protocol and version.
    pub envelope: u64,
    /// A packet, but from an address whose packets are not taken.
    pub stranger: u64,
}

/// The port that a transport is at, at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Its port GUID.
    pub guid: Guid,
    /// Its number on the node.
    pub num: PortNum,
    /// Upper half of its GID.
    pub gid_prefix: u64,
    /// Its base LID.
    pub lid: Lid,
    /// It has 2^LMC LIDs.
    pub lmc: u8,
    /// LID of the subnet manager that configured it.
    pub sm_lid: Lid,
    /// SL towards that.
    pub sm_sl: Sl,
    /// Logical state; `None` if reserved.
    pub state: Option<PortState>,
}
