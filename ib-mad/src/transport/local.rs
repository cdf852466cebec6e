//! Unix sockets between processes of one user on this host, whose messages may carry a descriptor.
//!
//! Message boundaries are preserved (SOCK_SEQPACKET). A socket's file has mode 0600, and a
//! connection of another user is refused by the peer's credentials, root excepted.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    sendmsg_addr, socket_with,
};

/// Descriptors accepted with a message; all but the first are closed.
const DESCRIPTORS_MAX: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Listens at `path`, in place of a process that was killed there. Fails with
/// [`io::ErrorKind::AddrInUse`] if another process listens there.
pub fn listen(path: &Path, flags: SocketFlags) -> io::Result<OwnedFd> {
    if connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    listen_privately(seqpacket(flags)?, path, BACKLOG)
}

/// Has a socket listen at `path`, accessible to this user only.
pub(super) fn listen_privately(
    listener: OwnedFd,
    path: &Path,
    backlog: i32,
) -> io::Result<OwnedFd> {
    // Linux gives the file the socket's own mode, so that no other user can connect before it is
    // set, and no link is followed.
    rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&listener, backlog)?;
    Ok(listener)
}

/// Accepts a connection; returns it with the peer's process id. Fails with
/// [`io::ErrorKind::PermissionDenied`] if the peer is another user's process.
pub fn accept(listener: impl AsFd, flags: SocketFlags) -> io::Result<(OwnedFd, i32)> {
    let connection = rustix::net::accept_with(listener, flags | SocketFlags::CLOEXEC)?;
    let peer = socket_peercred(&connection)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user's process"));
    }
    Ok((connection, peer.pid.as_raw_nonzero().get()))
}

/// Connects to the process that listens at `path`.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let connection = seqpacket(SocketFlags::empty())?;
    rustix::net::connect(&connection, &SocketAddrUnix::new(path)?)?;
    Ok(connection)
}

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends a message to the socket's peer.
pub fn send(
    socket: impl AsFd,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    compose(descriptor, |control| {
        sendmsg(socket, &[IoSlice::new(message)], control, SendFlags::NOSIGNAL)
    })
}

/// Sends a message to an address.
pub fn send_to(
    socket: impl AsFd,
    address: &SocketAddrUnix,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    compose(descriptor, |control| {
        sendmsg_addr(socket, address, &[IoSlice::new(message)], control, SendFlags::NOSIGNAL)
    })
}

fn compose(
    descriptor: Option<BorrowedFd<'_>>,
    send: impl FnOnce(&mut SendAncillaryBuffer<'_, '_, '_>) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = descriptor.as_slice();
    if !rights.is_empty() && !control.push(SendAncillaryMessage::ScmRights(rights)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    send(&mut control)?;
    Ok(())
}

/// Receives a message; returns its length, 0 at the end of a connection, and its descriptor.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let iov = &mut [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, iov, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut first = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                first.get_or_insert(descriptor);
            }
        }
    }
    Ok((received.bytes, first))
}
