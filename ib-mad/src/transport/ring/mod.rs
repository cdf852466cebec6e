//! MADs through memory that two processes of one host share: no kernel in the way while both are
//! awake. For local clients of a responder, and to measure what it answers without a network.
//!
//! A [`RingServer`] listens on a Unix socket. Who connects is given a piece of memory (a memfd) with
//! two queues, one for requests and one for answers, each with one producer and one consumer; a
//! slot holds what a datagram of [`udp`](super::udp) does, an envelope and a MAD. The socket stays
//! open: a byte on it wakes a side that sleeps, and its end is the end of the ring.
//!
//! Neither side trusts what the other can write. Positions are this side's own; the other's are
//! read once, and one that cannot be ends the ring. A slot is copied out before anything in it is
//! looked at. The memory is sealed, so that it cannot be taken from under the other. Whatever a
//! client does, it harms only its own ring.
//!
//! Who asks for the descriptor is about to wait: that is when an end looks a little longer and then
//! says that it sleeps, never while there may be other work.
//!
//! Bounds: [`SLOTS`] packets either way a ring, [`RingOptions::clients_max`] rings. Answers that a
//! client makes no room for are dropped, as a socket's buffer would, and counted.

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

/// Packets that a queue holds.
pub const SLOTS: u32 = 512;

/// How long an end of a ring that has nothing to do looks for packets before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// Calls `look` until it is true or [`SPIN`] has passed; whether it was.
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

/// A descriptor that is always readable, for who would wait though there is something already.
fn always_readable() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let fd = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
