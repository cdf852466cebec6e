//! MADs over UDP: one datagram is an [`Envelope`] and a MAD.
//!
//! Two uses: a stand-in for a fabric, between a load generator and responders, and the way of a
//! request from a front door to a responder and back. In both the envelope names the fabric's
//! client, so [`Address::lid`](super::Address::lid) and its companions stay the client's on either
//! side, and only [`Address::peer`](super::Address::peer) tells who is at the other end of the
//! wire. Nothing is authenticated or encrypted: bind to addresses that only trusted hosts reach.
//!
//! Runs of packets to one peer leave as one train (`UDP_SEGMENT`), and trains arrive as one buffer
//! (`UDP_GRO`), which spares most of the kernel's work; where the kernel knows neither, datagrams
//! travel one by one. Two engines do
//! the same by different system calls: [`Engine`].

mod envelope;
mod mmsg;
mod socket;
#[cfg(test)]
mod tests;
mod train;
mod uring;

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

pub use self::envelope::{ENVELOPE_LEN, Envelope, EnvelopeRepr, decode, encode};
use self::mmsg::Mmsg;
use self::uring::Uring;
use super::{Malformed, Packet, Transport};
use crate::wire::MAD_LEN;

/// Length of a datagram.
pub const DATAGRAM_LEN: usize = ENVELOPE_LEN + MAD_LEN;

/// The system calls that carry datagrams. Behaviour and limits of the socket are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where the kernel allows it, else recvmmsg and sendmmsg.
    Auto,
    /// io_uring: needs Linux 6.1, and that neither `kernel.io_uring_disabled` nor a container's
    /// seccomp filter forbids it. A socket then belongs to the thread that first receives or
    /// sends.
    Uring,
    /// recvmmsg and sendmmsg.
    #[default]
    Mmsg,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Mmsg => "mmsg",
        })
    }
}

/// How to open a socket.
#[derive(Clone, Copy, Debug)]
pub struct UdpOptions {
    /// Where to listen; port 0 for any.
    pub listen: SocketAddr,
    /// Lets several sockets listen at one address; the kernel deals peers out among them.
    pub share_port: bool,
    /// Sends and receives trains where the kernel can.
    pub trains: bool,
    /// What carries the datagrams.
    pub engine: Engine,
}

impl UdpOptions {
    /// A socket of its own at `listen`, with trains.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, share_port: false, trains: true, engine: Engine::default() }
    }
}

/// What has passed through a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Datagrams received that were no packets.
    pub malformed: Malformed,
    /// Packets dropped since they had no peer or the kernel refused their peer.
    pub refused: u64,
    /// System calls that sent something.
    pub sends: u64,
    /// System calls that were made to receive, and did.
    pub receives: u64,
    /// Times that receiving paused, with datagrams left in the socket's buffer, because all
    /// buffers of the io_uring were full.
    pub starved: u64,
}

/// A socket that carries MADs.
pub struct Udp {
    /// Dropped before the socket.
    carrier: Carrier,
    socket: UdpSocket,
    counters: UdpCounters,
    /// Why it is not the io_uring that was preferred.
    second_choice: Option<io::Error>,
    /// Datagrams that found the socket's buffer full, and the kernel's count of them when that
    /// was asked for last.
    overflowed: u64,
    overflowed_before: u32,
}

/// An engine at work.
enum Carrier {
    Mmsg(Box<Mmsg>),
    Uring(Box<Uring>),
}

impl Udp {
    /// Opens a socket.
    pub fn bind(options: &UdpOptions) -> io::Result<Self> {
        let socket = socket::open(options)?;
        let trains = options.trains && socket::enable_trains(&socket);
        let uring = || Ok(Carrier::Uring(Box::new(Uring::new(socket.as_fd(), trains)?)));
        let mmsg = || Ok::<_, io::Error>(Carrier::Mmsg(Box::new(Mmsg::new(trains)?)));
        let (carrier, second_choice) = match options.engine {
            Engine::Mmsg => (mmsg()?, None),
            Engine::Uring => (uring()?, None),
            Engine::Auto => match uring() {
                Ok(carrier) => (carrier, None),
                Err(reason) => (mmsg()?, Some(reason)),
            },
        };
        let counters = UdpCounters::default();
        let (overflowed, overflowed_before) = (0, 0);
        Ok(Self { carrier, socket, counters, second_choice, overflowed, overflowed_before })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// What has passed through so far.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Whether runs of packets to one peer leave as one train.
    pub fn sends_trains(&self) -> bool {
        match &self.carrier {
            Carrier::Mmsg(mmsg) => mmsg.sends_trains(),
            Carrier::Uring(uring) => uring.sends_trains(),
        }
    }

    /// The engine at work: never [`Engine::Auto`].
    pub fn engine(&self) -> Engine {
        match self.carrier {
            Carrier::Mmsg(_) => Engine::Mmsg,
            Carrier::Uring(_) => Engine::Uring,
        }
    }

    /// Why [`Engine::Auto`] did not come to io_uring.
    pub fn second_choice(&self) -> Option<&io::Error> {
        self.second_choice.as_ref()
    }
}

impl Transport for Udp {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let counters = &mut self.counters;
        let received = match &mut self.carrier {
            Carrier::Mmsg(mmsg) => mmsg.receive(self.socket.as_fd(), batch, counters)?,
            Carrier::Uring(uring) => uring.receive(batch, counters)?,
        };
        self.counters.received += received as u64;
        Ok(received)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        match &mut self.carrier {
            Carrier::Mmsg(mmsg) => mmsg.send(self.socket.as_fd(), batch, &mut self.counters),
            Carrier::Uring(uring) => uring.send(batch, &mut self.counters),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn limit_queue(&mut self, packets: usize) {
        socket::limit_queue(&self.socket, packets);
    }

    fn overflowed(&mut self) -> u64 {
        if let Some(count) = socket::overflowed(&self.socket) {
            self.overflowed += u64::from(count.wrapping_sub(self.overflowed_before));
            self.overflowed_before = count;
        }
        self.overflowed
    }

    fn malformed(&self) -> Malformed {
        self.counters.malformed
    }
}

/// Whether an error is ours rather than a peer's.
fn is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT))
}

/// Whether an error may come of a device or a route that cannot cut trains.
fn is_fault_of_train(error: &io::Error) -> bool {
    let faults = [libc::EIO, libc::EINVAL, libc::EMSGSIZE, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|code| faults.contains(&code))
}
