//! One client of the server: its socket, and the packets that wait for it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ib_mad::transport::ibsim::protocol::{
    PACKET_LEN, STATUS_UNDELIVERED, SimHeader, SimHeaderRepr, message_len, socket_name,
};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::Lid;
use ib_mad::wire::MAD_LEN;

use super::socket::{self, Received};
use crate::Endpoint;

/// Packets kept for a client that does not take them.
const QUEUE_MAX: usize = 8192;
const HEADER_LEN: usize = PACKET_LEN - MAD_LEN;
/// Bits of a LID that LMC can free.
const PATH_BITS_MAX: u8 = 0x7F;

pub(super) struct Client {
    pub(super) endpoint: Endpoint,
    /// The number in its socket names.
    pub(super) number: u32,
    socket: UnixDatagram,
    queue: VecDeque<[u8; PACKET_LEN]>,
    /// The socket took no more; epoll tells when it does.
    pub(super) blocked: bool,
    /// It is on the list of clients that have something to be sent.
    pub(super) listed: bool,
}

/// Why packets could not be sent on.
pub(super) enum SendError {
    /// Nobody holds the client's socket any more.
    Gone,
    Io(io::Error),
}

impl Client {
    /// Opens the server's socket for client `endpoint`, joined to the client's.
    pub(super) fn open(base: &str, endpoint: Endpoint, number: u32) -> io::Result<Self> {
        let server = socket_name(base, &format!("out{}", endpoint.id()));
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(server)?)?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&client_address(base, number)?)?;
        Ok(Self { endpoint, number, socket, queue: VecDeque::new(), blocked: false, listed: false })
    }

    /// Whether nobody holds the client's socket name any more.
    pub(super) fn is_gone(&self, base: &str) -> bool {
        client_address(base, self.number)
            .and_then(|address| UnixDatagram::bind_addr(&address))
            .is_ok()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn receive(&self, batch: &mut Received) -> io::Result<usize> {
        batch.receive(self.socket.as_fd())
    }

    /// Puts a packet in the queue, `lid` being the client's own; false if that is full.
    pub(super) fn push(&mut self, packet: &Packet, lid: Lid) -> bool {
        if self.queue.len() >= QUEUE_MAX {
            return false;
        }
        self.queue.push_back(encode(packet, lid));
        true
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), SendError> {
        while !self.queue.is_empty() {
            match self.send() {
                Ok(0) => {
                    self.blocked = true;
                    return Ok(());
                }
                Ok(sent) => drop(self.queue.drain(..sent)),
                Err(error) => {
                    return Err(match error.kind() {
                        io::ErrorKind::ConnectionRefused
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::NotConnected => SendError::Gone,
                        _ => SendError::Io(error),
                    });
                }
            }
        }
        self.blocked = false;
        Ok(())
    }
}

impl Client {
    /// One sending call; how many packets it took.
    fn send(&self) -> io::Result<usize> {
        match self.queue.front() {
            // What most calls send: cheaper without a batch.
            Some(packet) if self.queue.len() == 1 => match self.socket.send(packet) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                result => result.map(|_| 1),
            },
            _ => socket::send(self.socket.as_fd(), &self.queue),
        }
    }
}

fn client_address(base: &str, number: u32) -> io::Result<SocketAddr> {
    // The number is an int to stock clients; a negative one is printed so.
    let name = socket_name(base, &format!("in{}", number.cast_signed()));
    SocketAddr::from_abstract_name(name)
}

/// The number in the name of a client's control socket.
pub(super) fn client_number(base: &str, from: &SocketAddr) -> Option<u32> {
    let name = std::str::from_utf8(from.as_abstract_name()?).ok()?;
    let number = name.strip_prefix(base)?.strip_prefix(":ctl")?.trim_end_matches('\0');
    number.parse().map(i32::cast_unsigned).or_else(|_| number.parse()).ok()
}

/// The packet that a client sent, addressed to its far end.
pub(super) fn decode(bytes: &[u8; PACKET_LEN]) -> Packet {
    let header = SimHeader::new(&bytes[..HEADER_LEN]).expect("32 bytes are a header");
    let mut mad = [0; MAD_LEN];
    mad.copy_from_slice(&bytes[HEADER_LEN..]);
    let path_bits = match header.slid() {
        // The server is to fill it in.
        Lid::NONE | Lid::PERMISSIVE => 0,
        Lid(slid) => slid as u8 & PATH_BITS_MAX,
    };
    let address = Address {
        lid: header.dlid(),
        qpn: header.dqp(),
        local_qpn: header.sqp(),
        path_bits,
        message_len: match u16::try_from(header.length()) {
            Ok(len) if usize::from(len) != MAD_LEN => len,
            _ => 0,
        },
        ..Address::default()
    };
    Packet { mad, address }
}

/// A packet as the client with `lid` takes it. One that comes back has the addresses it was sent
/// with.
fn encode(packet: &Packet, lid: Lid) -> [u8; PACKET_LEN] {
    let address = &packet.address;
    let near = match address.lid {
        Lid::PERMISSIVE => (Lid::PERMISSIVE, address.local_qpn),
        _ => (Lid(lid.0 | u16::from(address.path_bits)), address.local_qpn),
    };
    let far = (address.lid, address.qpn);
    let (to, from) = if address.undelivered == 0 { (near, far) } else { (far, near) };
    let header = SimHeaderRepr {
        dlid: to.0,
        slid: from.0,
        dqp: to.1,
        sqp: from.1,
        status: if address.undelivered == 0 { 0 } else { STATUS_UNDELIVERED },
        length: match address.message_len {
            0 => message_len(&packet.mad),
            told => u64::from(told),
        },
    };
    let mut bytes = [0; PACKET_LEN];
    header.emit(&mut SimHeader::new(&mut bytes[..HEADER_LEN]).expect("32 bytes are a header"));
    bytes[HEADER_LEN..].copy_from_slice(&packet.mad);
    bytes
}
