//! One client of the server: its socket, and its queue of packets.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ib_mad::transport::ibsim::protocol::{
    PACKET_LEN, STATUS_UNDELIVERED, SimHeader, SimHeaderRepr, message_len, socket_name,
};
use ib_mad::transport::{Address, Carrier, Packet};
use ib_mad::types::{Lid, PortNum};
use ib_mad::wire::MAD_LEN;

use super::socket::{self, Received};
use crate::Endpoint;

/// Limit of packets queued for a client that does not read.
const QUEUE_MAX: usize = 8192;
const HEADER_LEN: usize = PACKET_LEN - MAD_LEN;
/// LID bits that LMC covers.
const PATH_BITS_MAX: u8 = 0x7F;

pub(super) struct Client {
    pub(super) endpoint: Endpoint,
    /// The number in the client's socket names.
    pub(super) number: u32,
    socket: UnixDatagram,
    queue: VecDeque<[u8; PACKET_LEN]>,
    /// The socket's buffer is full; epoll reports when it is writable.
    pub(super) blocked: bool,
    /// The client is on the list of clients to flush.
    pub(super) listed: bool,
    /// Whether packets of the client name planes.
    pub(super) has_planes: bool,
}

/// Why packets could not be sent.
pub(super) enum SendError {
    /// The client's socket is closed.
    Gone,
    Io(io::Error),
}

impl Client {
    /// Opens the server's socket for client `endpoint` and connects it to the client's.
    pub(super) fn open(base: &str, endpoint: Endpoint, number: u32) -> io::Result<Self> {
        let server = socket_name(base, &format!("out{}", endpoint.id()));
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(server)?)?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&client_address(base, number)?)?;
        Ok(Self {
            endpoint,
            number,
            socket,
            queue: VecDeque::new(),
            blocked: false,
            listed: false,
            has_planes: false,
        })
    }

    /// Whether the client's socket name is no longer bound.
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

    /// A packet sent by the client, with its destination address.
    pub(super) fn decode(&self, bytes: &[u8; PACKET_LEN]) -> Packet {
        decode(bytes, self.has_planes)
    }

    /// Queues a packet, `lid` being the client's own LID; false if the queue is full.
    pub(super) fn push(&mut self, packet: &Packet, lid: Lid) -> bool {
        if self.queue.len() >= QUEUE_MAX {
            return false;
        }
        self.queue.push_back(encode(packet, lid));
        true
    }

    /// Sends as much as the socket accepts.
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
    /// One send call; returns the number of packets sent.
    fn send(&self) -> io::Result<usize> {
        match self.queue.front() {
            // A single packet is the most common case, and cheaper without a batch.
            Some(packet) if self.queue.len() == 1 => match self.socket.send(packet) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                result => result.map(|_| 1),
            },
            _ => socket::send(self.socket.as_fd(), &self.queue),
        }
    }
}

fn client_address(base: &str, number: u32) -> io::Result<SocketAddr> {
    // Stock clients print the number as a signed int.
    let name = socket_name(base, &format!("in{}", number.cast_signed()));
    SocketAddr::from_abstract_name(name)
}

/// The number in the name of a client's control socket.
pub(super) fn client_number(base: &str, from: &SocketAddr) -> Option<u32> {
    let name = std::str::from_utf8(from.as_abstract_name()?).ok()?;
    let number = name.strip_prefix(base)?.strip_prefix(":ctl")?.trim_end_matches('\0');
    number.parse().map(i32::cast_unsigned).or_else(|_| number.parse()).ok()
}

/// A packet sent by a client, with its destination address; `has_planes`: whether it may name a
/// plane.
fn decode(bytes: &[u8; PACKET_LEN], has_planes: bool) -> Packet {
    let header = SimHeader::of(bytes);
    let mut mad = [0; MAD_LEN];
    mad.copy_from_slice(&bytes[HEADER_LEN..]);
    let path_bits = match header.slid() {
        // Filled in by the server.
        Lid::NONE | Lid::PERMISSIVE => 0,
        Lid(slid) => slid as u8 & PATH_BITS_MAX,
    };
    let address = Address {
        lid: header.dlid(),
        qpn: header.dqp(),
        local_qpn: header.sqp(),
        path_bits,
        ..Address::default()
    };
    let message_len = match u16::try_from(header.length()) {
        Ok(len) if usize::from(len) != MAD_LEN => len,
        _ => 0,
    };
    let plane = if has_planes { header.plane() } else { PortNum(0) };
    Packet { mad, address, carrier: Carrier { message_len, plane, ..Carrier::default() } }
}

/// A packet in the client's format; `lid` is the client's own. A returned packet has the addresses
/// it was sent with.
fn encode(packet: &Packet, lid: Lid) -> [u8; PACKET_LEN] {
    let address = &packet.address;
    let near = match address.lid {
        Lid::PERMISSIVE => (Lid::PERMISSIVE, address.local_qpn),
        _ => (Lid(lid.0 | u16::from(address.path_bits)), address.local_qpn),
    };
    let far = (address.lid, address.qpn);
    let (to, from) = if packet.carrier.undelivered == 0 { (near, far) } else { (far, near) };
    let header = SimHeaderRepr {
        dlid: to.0,
        slid: from.0,
        dqp: to.1,
        sqp: from.1,
        status: if packet.carrier.undelivered == 0 { 0 } else { STATUS_UNDELIVERED },
        plane: packet.carrier.plane,
        length: match packet.carrier.message_len {
            0 => message_len(&packet.mad),
            id => u64::from(id),
        },
    };
    let mut bytes = [0; PACKET_LEN];
    header.emit(&mut SimHeader::of_mut(&mut bytes));
    bytes[HEADER_LEN..].copy_from_slice(&packet.mad);
    bytes
}
