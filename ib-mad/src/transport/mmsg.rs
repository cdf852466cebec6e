//! recvmmsg(2) and sendmmsg(2) without blocking: many datagrams per system call.
//!
//! The buffers that headers point at belong to the transports; nothing is allocated here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// An array of message headers that can be moved between threads.
pub(super) struct Headers(pub(super) Box<[libc::mmsghdr]>);

// SAFETY: the pointers in the headers are set before every system call, to buffers that the caller
// of that call holds, and are not followed afterwards.
unsafe impl Send for Headers {}

impl Headers {
    /// `count` headers without buffers.
    pub(super) fn new(count: usize) -> Self {
        Self(vec![EMPTY; count].into_boxed_slice())
    }
}

/// I/O vectors that can be moved between threads.
pub(super) struct Vectors<const N: usize>(pub(super) Box<[[libc::iovec; N]]>);

// SAFETY: as for `Headers`.
unsafe impl<const N: usize> Send for Vectors<N> {}

impl<const N: usize> Vectors<N> {
    /// `count` groups of `N` empty vectors.
    pub(super) fn new(count: usize) -> Self {
        const NOWHERE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self(vec![[NOWHERE; N]; count].into_boxed_slice())
    }
}

/// A header without buffers.
// SAFETY: all-zero bytes are a valid msghdr: null pointers and zero lengths.
pub(super) const NOTHING: libc::msghdr = unsafe { std::mem::zeroed() };
const EMPTY: libc::mmsghdr = libc::mmsghdr { msg_hdr: NOTHING, msg_len: 0 };

/// An I/O vector over bytes to be written by the kernel.
pub(super) fn vector_mut(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// An I/O vector over bytes to be read by the kernel.
pub(super) fn vector(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Receives up to `headers.len()` datagrams; returns 0 if none is queued.
///
/// # Safety
///
/// Every pointer in `headers` must be valid for writes of the length beside it.
pub(super) unsafe fn receive(
    fd: BorrowedFd<'_>,
    headers: &mut [libc::mmsghdr],
) -> io::Result<usize> {
    // SAFETY: the caller guarantees the pointers in the headers; their number is the slice's
    // length.
    let got = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as libc::c_uint,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    };
    or_would_block(got)
}

/// Sends `headers` in order until the socket accepts no more; returns the number sent. An error is
/// that of the first datagram.
///
/// # Safety
///
/// Every pointer in `headers` must be valid for reads of the length beside it.
pub(super) unsafe fn send(fd: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: the caller guarantees the pointers in the headers; their number is the slice's
    // length.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as libc::c_uint,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    or_would_block(sent)
}

fn or_would_block(count: libc::c_int) -> io::Result<usize> {
    if let Ok(count) = usize::try_from(count) {
        return Ok(count);
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
        _ => Err(error),
    }
}
