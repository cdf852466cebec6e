//! Opens the socket, and sets its options.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::UdpOptions;
use crate::transport::sockaddr::RawAddress;

/// Requested socket buffer size in bytes; the kernel may grant less.
const SOCKET_BUFFER: libc::c_int = 8 << 20;

/// Approximate cost of a datagram in a receive buffer, in bytes: 1,280 alone, 340 in a train.
const DATAGRAM_COST: usize = 768;
/// SO_MEMINFO, the socket option that reports memory use, from Linux's `asm-generic/socket.h`.
const SO_MEMINFO: libc::c_int = 55;
/// Length of its value in numbers, and index of the count of datagrams dropped because of a full
/// buffer.
const MEMORY_NUMBERS: usize = 9;
const MEMORY_DROPS: usize = 8;

/// A non-blocking socket with large buffers.
pub(super) fn open(options: &UdpOptions) -> io::Result<UdpSocket> {
    let family = match options.listen {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    // SAFETY: no pointers are passed.
    let fd = unsafe {
        libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    };
    check(fd)?;
    // SAFETY: the descriptor is open and has no other owner.
    let socket = UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) });
    if options.share_port {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    let (raw, len) = RawAddress::new(options.listen);
    // SAFETY: `raw` holds an address of length `len`.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const raw).cast(), len) })?;
    for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        // Best effort: with the default buffer packets are only dropped earlier.
        let _ = set_option(&socket, libc::SOL_SOCKET, option, SOCKET_BUFFER);
    }
    Ok(socket)
}

/// Enables trains in both directions; returns whether the kernel supports both.
pub(super) fn enable_trains(socket: &UdpSocket) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
        // Zero leaves datagrams alone; it fails where the option is not supported.
        && set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Sets the receive buffer to hold about this many datagrams.
pub(super) fn limit_queue(socket: &UdpSocket, datagrams: usize) {
    let bytes = datagrams.saturating_mul(DATAGRAM_COST);
    // The kernel doubles the value.
    let bytes = libc::c_int::try_from(bytes / 2).unwrap_or(SOCKET_BUFFER).min(SOCKET_BUFFER);
    // Best effort: at worst queued packets get older.
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
}

/// Datagrams dropped so far because the receive buffer was full, or by the socket's filter, as a
/// number that wraps; `None` if the kernel does not report them.
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

pub(super) fn set_option(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: `value` is an int, as for every option used here, and outlives the call.
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

pub(super) fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
