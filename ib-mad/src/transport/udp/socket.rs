//! Opening the socket, and its options.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::UdpOptions;
use crate::transport::sockaddr::RawAddress;

/// Bytes of socket buffer asked for; the kernel may grant less.
const SOCKET_BUFFER: libc::c_int = 8 << 20;

/// What a datagram takes of a receive buffer, about: 1,280 bytes alone, 340 in a train.
const DATAGRAM_COST: usize = 768;
/// Socket option that tells of the memory a socket has in use, in Linux's `asm-generic/socket.h`.
const SO_MEMINFO: libc::c_int = 55;
/// Numbers in its answer, and which of them counts datagrams lost for want of room.
const MEMORY_NUMBERS: usize = 9;
const MEMORY_DROPS: usize = 8;

/// A socket that does not block, with large buffers.
pub(super) fn open(options: &UdpOptions) -> io::Result<UdpSocket> {
    let family = match options.listen {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    // SAFETY: a plain system call.
    let fd = unsafe {
        libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    };
    check(fd)?;
    // SAFETY: the descriptor is open and nobody else's.
    let socket = UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) });
    if options.share_port {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    let (raw, len) = RawAddress::new(options.listen);
    // SAFETY: `raw` holds an address of length `len`.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const raw).cast(), len) })?;
    for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        // Best effort: the default buffer works, it only drops sooner.
        let _ = set_option(&socket, libc::SOL_SOCKET, option, SOCKET_BUFFER);
    }
    Ok(socket)
}

/// Has the kernel take and give trains; whether it knows both.
pub(super) fn enable_trains(socket: &UdpSocket) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
        // Zero leaves datagrams alone; it fails where the option is not known.
        && set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Has the receive buffer hold about so many datagrams.
pub(super) fn limit_queue(socket: &UdpSocket, datagrams: usize) {
    let bytes = datagrams.saturating_mul(DATAGRAM_COST);
    // The kernel doubles what it is told.
    let bytes = libc::c_int::try_from(bytes / 2).unwrap_or(SOCKET_BUFFER).min(SOCKET_BUFFER);
    // Best effort: the worst is that what waits gets older.
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
}

/// Datagrams lost so far because the receive buffer was full, as a number that wraps; `None` if the
/// kernel does not tell.
pub(super) fn overflowed(socket: &UdpSocket) -> Option<u32> {
    let mut numbers = [0u32; MEMORY_NUMBERS];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the buffer is as long as `len` says, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (result == 0 && len as usize >= size_of_val(&numbers)).then_some(numbers[MEMORY_DROPS])
}

fn set_option(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: `value` is an int, as every option used here, and outlives the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
