//! Sockets that carry MADs, with one interface: non-blocking batches.
//!
//! A transport is owned by one thread. To wait for several, poll their descriptors; see [`wait`].
//!
//! - [`ibsim`]: a port of a simulated fabric, served by `ibfabric` or stock `ibsim`.
//! - [`umad`]: a port of this host, through the kernel's device file.
//! - `verbs`: a UD queue pair at such a port, for clients that are redirected to it (feature
//!   `verbs`).
//! - [`udp`]: MADs in envelopes, between load generator, front door and responders.
//! - [`ring`]: shared memory, between processes of one host.
//! - [`memory`]: a network for tests, with virtual time and seeded faults.
//! - [`capture`]: any of these, recording its packets to a file that tshark reads.
//!
//! [`local`] is not a transport: it passes descriptors between processes of this host.
//!
//! # Examples
//!
//! A packet between two ports of an in-memory network; other transports differ in how they are
//! opened.
//!
//! ```
//! use ib_mad::transport::memory::{Faults, Network};
//! use ib_mad::transport::{Address, Packet, Transport};
//! use ib_mad::types::Lid;
//!
//! let network = Network::new(1, Faults::NONE);
//! let mut client = network.endpoint(Lid(2), 0);
//! let mut server = network.endpoint(Lid(8), 0);
//!
//! let address = Address::gsi(Lid(8));
//! let sent = client.send(&[Packet::new([7; 256], address)])?;
//! assert_eq!(sent, 1);
//!
//! let mut batch = [Packet::default()];
//! assert_eq!(server.receive(&mut batch)?, 1);
//! assert_eq!((batch[0].address.lid, batch[0].mad), (Lid(2), [7; 256]));
//!
//! // The answer goes where the request came from: the address stays as it is.
//! server.send(&batch)?;
//! assert_eq!(client.receive(&mut batch)?, 1);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod capture;
pub mod ibsim;
pub mod local;
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
use std::os::fd::BorrowedFd;

pub use crate::packet::{Address, Carrier, Grh, Marks, Origin, Packet};
use crate::types::{Guid, Lid, PortNum, Sl};
use crate::wire::attribute::PortState;

/// A queue of MADs to and from a fabric. Neither call blocks.
pub trait Transport: Send {
    /// Fills `batch` from its start with received packets; returns their number. After a full
    /// batch, and after sending, call it again before waiting: packets may be buffered where the
    /// descriptor does not show them.
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize>;

    /// Whether the last [`receive`](Self::receive) found that nothing waited any more: what the
    /// next one yields has arrived since. A batch that is not full does not show that. `false` if
    /// it is not known.
    fn is_drained(&self) -> bool {
        false
    }

    /// Sends `batch` in order until the transport accepts no more; returns the number accepted. The
    /// caller keeps the rest and retries when the descriptor is writable. A packet to a nonexistent
    /// destination counts as accepted: delivery is never guaranteed.
    fn send(&mut self, batch: &[Packet]) -> io::Result<usize>;

    /// The descriptor to poll; `None` for an in-memory transport, which has its own clock. Call
    /// this before each wait: some transports prepare for it, or change their descriptor.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Limits the transport's own receive queue to about this many packets, where possible; packets
    /// beyond the limit are dropped. The age of packets in that queue is unknown, so an overloaded
    /// receiver limits their delay by this. `usize::MAX` removes the limit.
    fn limit_queue(&mut self, packets: usize) {
        let _ = packets;
    }

    /// Packets dropped so far because the transport's own queue, in or out, was full; 0 if unknown.
    fn overflowed(&mut self) -> u64 {
        0
    }

    /// Drops all packets but these before they take room in the transport's queue; `None` accepts
    /// all again. Fails where that cannot be.
    fn accept_only(&mut self, accepted: Option<&udp::Accepted>) -> io::Result<()> {
        let _ = accepted;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Base LID of this end when its port was read last; [`Lid::NONE`] if the transport has no
    /// port.
    fn local_lid(&self) -> Lid {
        Lid::NONE
    }

    /// Datagrams received so far that were not valid packets.
    fn malformed(&self) -> Malformed {
        Malformed::default()
    }
}

/// Datagrams received and skipped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Malformed {
    /// Longer or shorter than a packet.
    pub length: u64,
    /// The right length, but the envelope is not of this protocol and version.
    pub envelope: u64,
    /// A packet from an address that is not accepted.
    pub stranger: u64,
}

/// Attributes of a transport's port at the time they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// PortGUID.
    pub guid: Guid,
    /// Port number on the node.
    pub num: PortNum,
    /// Subnet prefix.
    pub gid_prefix: u64,
    /// Base LID.
    pub lid: Lid,
    /// LMC: the port has 2^LMC LIDs.
    pub lmc: u8,
    /// MasterSMLID.
    pub sm_lid: Lid,
    /// MasterSMSL.
    pub sm_sl: Sl,
    /// PortState; `None` if reserved.
    pub state: Option<PortState>,
}
