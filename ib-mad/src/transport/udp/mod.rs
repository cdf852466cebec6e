//! MADs over UDP: one datagram is an [`Envelope`] and a MAD.
//!
//! Two uses: in place of a fabric, between a load generator and responders; and between a front
//! door and responders. In both cases the envelope names the fabric's client: the fields of
//! [`Address`](super::Address) are the client's at both ends, and only
//! [`Carrier::peer`](super::Carrier::peer) names the other end of the UDP exchange. Packets are not
//! encrypted: bind to addresses that only trusted hosts can reach. A socket can have a token, a
//! number that it writes into each envelope and whose receivers know it by another way: it proves
//! that a packet is not from another program that has the address since.
//!
//! Runs of packets to one peer are sent as one train (`UDP_SEGMENT`), and trains are received as
//! one buffer (`UDP_GRO`), which saves most of the kernel's work; on kernels without these options
//! datagrams are sent and received one by one. Two engines do this with different system calls:
//! [`Engine`].

mod envelope;
mod filter;
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

pub use self::envelope::{
    DIRECT, ENVELOPE_LEN, Envelope, EnvelopeRepr, TOKEN_BITS, decode, encode,
};
pub use self::filter::{ACCEPTED_MAX, Accepted};
use self::mmsg::Mmsg;
use self::uring::Uring;
use super::{Malformed, Packet, Transport};
use crate::wire::MAD_LEN;

/// Length of a datagram.
pub const DATAGRAM_LEN: usize = ENVELOPE_LEN + MAD_LEN;

/// The system calls that carry datagrams. Behaviour and limits of the socket are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// io_uring where the kernel allows it, else recvmmsg and sendmmsg.
    Auto,
    /// io_uring: requires Linux 6.1, and must not be forbidden by `kernel.io_uring_disabled` or a
    /// container's seccomp filter. The socket then belongs to the thread that first receives or
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
    /// Local address; port 0 for any.
    pub listen: SocketAddr,
    /// Lets several sockets listen at one address; the kernel distributes peers among them.
    pub share_port: bool,
    /// Sends and receives trains where the kernel supports it.
    pub trains: bool,
    /// The system calls to use.
    pub engine: Engine,
    /// The token of all packets that it sends, [`TOKEN_BITS`] bits; 0 for none.
    pub token: u64,
}

impl UdpOptions {
    /// A separate socket at `listen`, with trains.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, share_port: false, trains: true, engine: Engine::default(), token: 0 }
    }
}

/// Counters of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Datagrams received that were not valid packets.
    pub malformed: Malformed,
    /// Packets dropped because they had no peer or the kernel rejected the peer.
    pub refused: u64,
    /// System calls that sent datagrams.
    pub sends: u64,
    /// System calls that received datagrams.
    pub receives: u64,
    /// Times that receiving paused, with datagrams left in the socket's buffer, because all buffers
    /// of the io_uring were in use.
    pub starved: u64,
}

/// A socket that carries MADs.
pub struct Udp {
    /// Datagrams dropped by the kernel before they were received.
    backend: Backend,
    socket: UdpSocket,
    counters: UdpCounters,
    /// Why io_uring is not used although it was preferred.
    second_choice: Option<io::Error>,
    /// Datagrams dropped because the socket's buffer was full, and the kernel's count of them when
    /// last read.
    overflowed: u64,
    overflowed_before: u32,
}

/// The engine in use.
enum Backend {
    Mmsg(Box<Mmsg>),
    Uring(Box<Uring>),
}

impl Udp {
    /// Opens a socket.
    pub fn bind(options: &UdpOptions) -> io::Result<Self> {
        let socket = socket::open(options)?;
        let trains = options.trains && socket::enable_trains(&socket);
        let token = options.token;
        let uring = || Ok(Backend::Uring(Box::new(Uring::new(socket.as_fd(), trains, token)?)));
        let mmsg = || Ok::<_, io::Error>(Backend::Mmsg(Box::new(Mmsg::new(trains, token)?)));
        let (backend, second_choice) = match options.engine {
            Engine::Mmsg => (mmsg()?, None),
            Engine::Uring => (uring()?, None),
            Engine::Auto => match uring() {
                Ok(backend) => (backend, None),
                Err(reason) => (mmsg()?, Some(reason)),
            },
        };
        let counters = UdpCounters::default();
        let (overflowed, overflowed_before) = (0, 0);
        Ok(Self { backend, socket, counters, second_choice, overflowed, overflowed_before })
    }

    /// Local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Counters so far.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Whether runs of packets to one peer are sent as one train.
    pub fn sends_trains(&self) -> bool {
        match &self.backend {
            Backend::Mmsg(mmsg) => mmsg.sends_trains(),
            Backend::Uring(uring) => uring.sends_trains(),
        }
    }

    /// The engine in use: never [`Engine::Auto`].
    pub fn engine(&self) -> Engine {
        match self.backend {
            Backend::Mmsg(_) => Engine::Mmsg,
            Backend::Uring(_) => Engine::Uring,
        }
    }

    /// Why [`Engine::Auto`] did not select io_uring.
    pub fn second_choice(&self) -> Option<&io::Error> {
        self.second_choice.as_ref()
    }
}

impl Transport for Udp {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let counters = &mut self.counters;
        let received = match &mut self.backend {
            Backend::Mmsg(mmsg) => mmsg.receive(self.socket.as_fd(), batch, counters)?,
            Backend::Uring(uring) => uring.receive(batch, counters)?,
        };
        self.counters.received += received as u64;
        Ok(received)
    }

    fn is_drained(&self) -> bool {
        match &self.backend {
            Backend::Mmsg(mmsg) => mmsg.is_drained(),
            Backend::Uring(uring) => uring.is_drained(),
        }
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        match &mut self.backend {
            Backend::Mmsg(mmsg) => mmsg.send(self.socket.as_fd(), batch, &mut self.counters),
            Backend::Uring(uring) => uring.send(batch, &mut self.counters),
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

    /// Has the kernel drop what is not `accepted`. [`overflowed`](Transport::overflowed) counts it.
    ///
    /// # Errors
    ///
    /// With more than [`ACCEPTED_MAX`] tokens and ports, or if the kernel lacks memory for the
    /// filter (`net.core.optmem_max`). What was accepted before stays.
    fn accept_only(&mut self, accepted: Option<&Accepted>) -> io::Result<()> {
        filter::accept_only(&self.socket, accepted)
    }
}

/// Whether an error concerns this socket rather than one peer.
fn is_fatal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT))
}

/// Whether an error may be caused by a device or route that does not support segmentation.
fn is_fault_of_train(error: &io::Error) -> bool {
    let faults = [libc::EIO, libc::EINVAL, libc::EMSGSIZE, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|code| faults.contains(&code))
}
