//! Owners of sockets from the kernel's socket monitoring (sock_diag(7)). A look-up of one socket
//! takes microseconds however many there are, while reading `/proc/net` takes a second where some
//! user has opened tens of thousands.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// Header of a netlink message, and `struct inet_diag_req_v2`; bytes.
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = 56;
/// `struct inet_diag_msg`, bytes.
const ANSWER_LEN: usize = 72;
/// Room for what the kernel sends at once.
const BUFFER_LEN: usize = 32 << 10;
/// The kernel answers at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Types and flags of netlink messages.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// Attribute with a filter, and two of its operations.
const INET_DIAG_REQ_BYTECODE: u16 = 1;
const INET_DIAG_BC_S_GE: u8 = 2;
const INET_DIAG_BC_S_LE: u8 = 3;

/// A transport protocol, by its number in the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp = 6,
    Udp = 17,
}

/// A socket as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The number of its state; 1 is established.
    pub(super) state: u8,
    /// The user that created it.
    pub(super) user: u32,
    /// 0 if it belongs to no process: not accepted yet, or closed.
    pub(super) inode: u32,
    local: SocketAddr,
}

/// The TCP socket of this host with these addresses, or if there is none, the one that listens at
/// `local`.
pub(super) fn tcp(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Found>> {
    one(Protocol::Tcp, local, remote)
}

/// The UDP socket of this host that receives what `remote` sends to `local`.
pub(super) fn udp(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Found>> {
    // The kernel has the two the other way round, "for historical reasons" (udp_diag.c).
    one(Protocol::Udp, remote, local)
}

/// All UDP sockets of this host that may send from `local`: several may share a port.
pub(super) fn udp_all(local: SocketAddr) -> io::Result<Vec<Found>> {
    let socket = open()?;
    let mut found = Vec::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let mut message = request(family, Protocol::Udp, any, any, NLM_F_DUMP);
        message.extend(port_filter(local.port()));
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        send(&socket, &message, SendFlags::empty())?;
        read_all(&socket, &mut found)?;
    }
    let ip = local.ip().to_canonical();
    found.retain(|one| {
        let at = one.local.ip().to_canonical();
        one.local.port() == local.port() && (at == ip || at.is_unspecified())
    });
    Ok(found)
}

fn one(protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> io::Result<Option<Found>> {
    let socket = open()?;
    let family = if src.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    send(&socket, &request(family, protocol, src, dst, 0), SendFlags::empty())?;
    let mut buffer = vec![0; BUFFER_LEN];
    let (len, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
    match messages(&buffer[..len]).next() {
        Some((SOCK_DIAG_BY_FAMILY, body)) => Ok(Found::read(body)),
        Some((NLMSG_ERROR, body)) => match error(body) {
            Errno::NOENT => Ok(None),
            error => Err(error.into()),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn open() -> io::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
    let socket = socket_with(family, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

fn request(
    family: AddressFamily,
    protocol: Protocol,
    src: SocketAddr,
    dst: SocketAddr,
    flags: u16,
) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_LEN + REQUEST_LEN + 24);
    message.extend(((HEADER_LEN + REQUEST_LEN) as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]); // sequence number, sender
    message.extend([family.as_raw() as u8, protocol as u8, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes()); // all states
    message.extend(src.port().to_be_bytes());
    message.extend(dst.port().to_be_bytes());
    for address in [src, dst] {
        let mut field = [0; 16];
        match address.ip() {
            IpAddr::V4(ip) => field[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => field = ip.octets(),
        }
        message.extend(field);
    }
    message.extend([0; 4]); // any interface
    message.extend([0xFF; 8]); // any cookie
    message
}

/// A filter for sockets with this local port: at least that, and at most that. Each operation has
/// the offset to go on at if it holds and, if not, one beyond the end.
fn port_filter(port: u16) -> Vec<u8> {
    let mut filter = Vec::new();
    filter.extend(20u16.to_ne_bytes());
    filter.extend(INET_DIAG_REQ_BYTECODE.to_ne_bytes());
    for (code, beyond) in [(INET_DIAG_BC_S_GE, 20u16), (INET_DIAG_BC_S_LE, 12)] {
        filter.extend([code, 8]);
        filter.extend(beyond.to_ne_bytes());
        filter.extend([0; 2]);
        filter.extend(port.to_ne_bytes());
    }
    filter
}

/// Reads an answer of several messages to its end.
fn read_all(socket: &OwnedFd, found: &mut Vec<Found>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let (len, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        for (kind, body) in messages(&buffer[..len]) {
            match kind {
                SOCK_DIAG_BY_FAMILY => found.extend(Found::read(body)),
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => return Err(error(body).into()),
                _ => {}
            }
        }
    }
}

/// Type and body of each message.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(HEADER_LEN..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The error in the body of an error message.
fn error(body: &[u8]) -> Errno {
    let code = body.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    Errno::from_raw_os_error(-code.unwrap_or(0))
}

impl Found {
    fn read(body: &[u8]) -> Option<Self> {
        let body: &[u8; ANSWER_LEN] = body.get(..ANSWER_LEN)?.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes(body[at..at + 4].try_into().expect("4 bytes"));
        let port = u16::from_be_bytes([body[4], body[5]]);
        let field: [u8; 16] = body[8..24].try_into().expect("16 bytes");
        let ip = match AddressFamily::from_raw(u16::from(body[0])) {
            AddressFamily::INET => {
                IpAddr::from(Ipv4Addr::new(field[0], field[1], field[2], field[3]))
            }
            _ => IpAddr::from(Ipv6Addr::from(field)),
        };
        Some(Self { state: body[1], user: word(64), inode: word(68), local: (ip, port).into() })
    }
}
