//! The device file as opened by a program without libibumad: a SOCK_SEQPACKET pair, of which the
//! program has one end and this module the other.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use ib_mad::wire::MAD_LEN;

use crate::stack::FileId;
use crate::umad::{Errno, HEADER_LEN, Header};

/// The longest message that is passed on in one write.
const MESSAGE_LEN_MAX: usize = 1 << 16;

/// Our end.
#[derive(Debug)]
pub(crate) struct Socket {
    ours: OwnedFd,
    /// Inode of the program's end, which identifies the file in later calls.
    inode: u64,
    /// A message that did not fit into the socket's buffer.
    held: Vec<u8>,
    buffer: Box<[u8]>,
}

/// Result of a read.
pub(crate) enum Read {
    /// A message.
    Message(Header, Vec<u8>),
    /// None at present.
    Nothing,
    /// The program has closed its end.
    End,
}

impl Socket {
    /// Creates a socket pair; returns our end and the program's.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: there is room for both descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are new and have no other owner.
        let [ours, theirs] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let inode = inode(theirs.as_raw_fd())?;
        let buffer = vec![0; MESSAGE_LEN_MAX].into_boxed_slice();
        Ok((Self { ours, inode, held: Vec::new(), buffer }, theirs))
    }

    /// The stack's number for this port.
    pub(crate) fn id(&self) -> FileId {
        self.ours.as_raw_fd()
    }

    /// Whether the program's end has this inode.
    pub(crate) fn is_of(&self, inode: u64) -> bool {
        self.inode == inode
    }

    /// A duplicate of our end, for polling; `None` if the process has too many open files.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        self.ours.try_clone().ok()
    }

    /// Whether a message waits for room in the socket.
    pub(crate) fn is_full(&self) -> bool {
        !self.held.is_empty()
    }

    /// Reads what the program wrote. Malformed messages are discarded.
    pub(crate) fn read(&mut self) -> Read {
        let mut buffer = [0; HEADER_LEN + MAD_LEN];
        loop {
            // SAFETY: the buffer is writable for its length.
            let got = unsafe {
                libc::recv(self.id(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_TRUNC)
            };
            match usize::try_from(got) {
                Ok(0) => return Read::End,
                Ok(len) => {
                    if let Some((head, mad)) = buffer.split_first_chunk::<HEADER_LEN>()
                        && (HEADER_LEN..=buffer.len()).contains(&len)
                    {
                        return Read::Message(Header(*head), mad[..len - HEADER_LEN].to_vec());
                    }
                }
                Err(_) => match io::Error::last_os_error().kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return Read::Nothing,
                    _ => return Read::End,
                },
            }
        }
    }

    /// Writes the messages that `receive` returns, as far as the program's end has room.
    pub(crate) fn fill(&mut self, mut receive: impl FnMut(&mut [u8]) -> Result<usize, Errno>) {
        loop {
            if self.held.is_empty() {
                let Ok(len) = receive(&mut self.buffer) else { return };
                self.held.extend_from_slice(&self.buffer[..len]);
            }
            // SAFETY: the message is readable for its length.
            let sent = unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                libc::send(self.id(), self.held.as_ptr().cast(), self.held.len(), flags)
            };
            let error = if sent < 0 { Some(io::Error::last_os_error().kind()) } else { None };
            if matches!(error, Some(io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)) {
                return;
            }
            self.held.clear();
        }
    }
}

/// Inode of an open file.
pub(crate) fn inode(file: RawFd) -> io::Result<u64> {
    // SAFETY: a struct of numbers, and written before it is read.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `status` is writable.
    if unsafe { libc::fstat(file, &raw mut status) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status.st_ino)
}
