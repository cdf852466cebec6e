//! Messages that carry a descriptor over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, recvmsg, sendmsg, sendmsg_addr,
};

/// Descriptors that a message may bring; more than one are closed.
const DESCRIPTORS_MAX: usize = 4;

/// Sends a message to the socket's peer.
pub(super) fn send(
    socket: impl AsFd,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    compose(descriptor, |control| {
        sendmsg(socket, &[IoSlice::new(message)], control, SendFlags::NOSIGNAL)
    })
}

/// Sends a message to an address.
pub(super) fn send_to(
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

/// Receives a message: its length, 0 at the end of a connection, and the descriptor it brought.
pub(super) fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
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
