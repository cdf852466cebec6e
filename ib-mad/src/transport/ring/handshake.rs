//! Handshake of a ring: one message over a Unix socket, with the memory's descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use super::SLOTS;
use super::queue::Shared;
use crate::transport::mapping::Mapping;
use crate::transport::mmsg::NOTHING;

/// First message of a server: "IBMR", version 1, and the number of slots per queue, big-endian; 0
/// slots if no ring is free.
const HELLO_LEN: usize = 12;
const MAGIC: &[u8; 8] = b"IBMR\0\0\0\x01";

/// Room for a control message with one descriptor.
type Control = [u64; 3];

/// Creates memory for two queues, sealed against shrinking and growing. The descriptor is sent to
/// the client.
pub(super) fn new_memory() -> io::Result<(Mapping, OwnedFd)> {
    // SAFETY: the name is a C string.
    let fd = unsafe {
        libc::memfd_create(c"ibsa-ring".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    };
    check(fd)?;
    // SAFETY: the descriptor is open and has no other owner.
    let memory = unsafe { OwnedFd::from_raw_fd(fd) };
    let len = size_of::<Shared>();
    // SAFETY: system calls on a descriptor that `self` owns; no pointers are passed.
    unsafe {
        check(libc::ftruncate(fd, len as libc::off_t))?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        check(libc::fcntl(fd, libc::F_ADD_SEALS, seals))?;
    }
    Ok((Mapping::shared(&memory, len)?, memory))
}

/// Sends a client its memory, or a refusal if no ring is free.
pub(super) fn give(stream: &UnixStream, memory: Option<&OwnedFd>) -> io::Result<()> {
    let mut hello = [0; HELLO_LEN];
    hello[..8].copy_from_slice(MAGIC);
    hello[8..].copy_from_slice(&memory.map_or(0, |_| SLOTS).to_be_bytes());
    let bytes = [IoSlice::new(&hello)];
    let mut control = Control::default();
    let mut header = NOTHING;
    // An IoSlice is an iovec.
    header.msg_iov = bytes.as_ptr().cast_mut().cast();
    header.msg_iovlen = 1;
    if let Some(memory) = memory {
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute; the control buffer is aligned for a header
        // and long enough for one descriptor.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as libc::c_uint) as usize;
            let message = libc::CMSG_FIRSTHDR(&header);
            (*message).cmsg_level = libc::SOL_SOCKET;
            (*message).cmsg_type = libc::SCM_RIGHTS;
            (*message).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as libc::c_uint) as usize;
            libc::CMSG_DATA(message).cast::<RawFd>().write_unaligned(memory.as_raw_fd());
        }
    }
    // SAFETY: the header points at owned bytes and an owned control buffer, which outlive the call.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &header, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives what [`give`] sends; returns the memory.
pub(super) fn take(stream: &UnixStream) -> io::Result<Mapping> {
    let mut hello = [0; HELLO_LEN];
    let mut control = Control::default();
    let mut header = NOTHING;
    let mut bytes = [IoSliceMut::new(&mut hello)];
    header.msg_iov = bytes.as_mut_ptr().cast();
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the header points at owned bytes and an owned control buffer, which outlive the call.
    let got = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut header, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled the control buffer; the macros stay within it. A descriptor in it
    // is owned here from now on.
    let memory = unsafe {
        let message = libc::CMSG_FIRSTHDR(&header);
        let is_descriptor = !message.is_null()
            && (*message).cmsg_level == libc::SOL_SOCKET
            && (*message).cmsg_type == libc::SCM_RIGHTS
            && (*message).cmsg_len >= libc::CMSG_LEN(size_of::<RawFd>() as libc::c_uint) as usize;
        is_descriptor.then(|| {
            OwnedFd::from_raw_fd(libc::CMSG_DATA(message).cast::<RawFd>().read_unaligned())
        })
    };
    let strange =
        || io::Error::new(io::ErrorKind::InvalidData, "not a ring server of this protocol version");
    if got as usize != HELLO_LEN || &hello[..8] != MAGIC {
        return Err(strange());
    }
    match (u32::from_be_bytes([hello[8], hello[9], hello[10], hello[11]]), memory) {
        (0, _) => Err(io::Error::new(
            io::ErrorKind::QuotaExceeded,
            "the responder has reached its limit of ring clients",
        )),
        (SLOTS, Some(memory)) => {
            let len = std::fs::File::from(memory.try_clone()?).metadata()?.len();
            if len != size_of::<Shared>() as u64 {
                return Err(strange());
            }
            Mapping::shared(&memory, size_of::<Shared>())
        }
        _ => Err(strange()),
    }
}

/// User ID of the peer.
pub(super) fn peer_user(stream: &UnixStream) -> io::Result<libc::uid_t> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is as long as `len` says, and both outlive the call.
    check(unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &mut len,
        )
    })?;
    Ok(who.uid)
}

/// Effective user ID of this process.
pub(super) fn own_user() -> libc::uid_t {
    // SAFETY: no pointers are passed, and the call cannot fail.
    unsafe { libc::geteuid() }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
