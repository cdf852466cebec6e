//! MADs through memory shared by two processes of one host, without system calls while both are
//! awake. For local clients of a responder, and to measure its rate without a network.
//!
//! A [`RingServer`] listens on a Unix socket. Each client that connects gets a memfd with two
//! queues, one for requests and one for answers, each with one producer and one consumer. A slot
//! holds an envelope and a MAD, like a datagram of [`udp`](super::udp). The socket stays open: a
//! byte on it wakes a sleeping side, and closing it ends the ring.
//!
//! Neither side trusts memory that the other can write. Each side keeps its own positions and reads
//! those of the other once; an impossible position ends the ring. A slot is copied out before its
//! contents are examined. The memory is sealed, so that the other side cannot truncate it. A
//! misbehaving client affects only its own ring.
//!
//! A call of `descriptor` means that the caller is about to wait. Only then does a side poll a
//! little longer and announce that it sleeps.
//!
//! Limits: [`SLOTS`] packets in each direction of a ring, [`RingOptions::clients_max`] rings.
//! Responses to a full queue are dropped and counted, as with a full socket buffer.

mod client;
mod handshake;
mod queue;
mod server;
#[cfg(test)]
mod tests;

pub use self::client::RingClient;
pub use self::server::{RingCounters, RingOptions, RingServer};

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Packets per queue.
pub const SLOTS: u32 = 512;

/// How long an idle end polls for packets before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// Polls `look` until it is true or [`SPIN`] has passed; returns the last result.
fn spin(look: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if look() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= SPIN {
            return false;
        }
    }
}

/// A descriptor that is always readable, for a caller that must not sleep because packets are
/// waiting.
fn always_readable() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
