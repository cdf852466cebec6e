//! The device's file as a program has it that does without libibumad: a socket that keeps the
//! bounds of messages, of which we hold the other end.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use ib_mad::wire::MAD_LEN;

use crate::stack::FileId;
use crate::umad::{Errno, HEADER_LEN, Header};

/// The longest message that is passed on at once.
const MESSAGE_LEN_MAX: usize = 1 << 16;

/// Our end.
#[derive(Debug)]
pub(crate) struct Socket {
    ours: OwnedFd,
    /// Inode of the program's end, by which its calls tell which file they mean.
    inode: u64,
    /// A message that the socket has no room for.
    held: Vec<u8>,
    buffer: Box<[u8]>,
}

/// What came of reading.
pub(crate) enum Read {
    /// A message.
    Message(Header, Vec<u8>),
    /// None for now.
    Nothing,
    /// The program has closed its end.
    End,
}

impl Socket {
    /// A socket, and the program's end of it.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: there is room for both descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are new and owned by nobody else.
        let [ours, theirs] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let inode = inode(theirs.as_raw_fd())?;
        let buffer = vec![0; MESSAGE_LEN_MAX].into_boxed_slice();
        Ok((Self { ours, inode, held: Vec::new(), buffer }, theirs))
    }

    /// What the stack knows it by.
    pub(crate) fn id(&self) -> FileId {
        self.ours.as_raw_fd()
    }

    /// Whether the program's end is the one with this inode.
    pub(crate) fn is_of(&self, inode: u64) -> bool {
        self.inode == inode
    }

    /// A copy of our end, to wait for it; `None` if there are too many files.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        self.ours.try_clone().ok()
    }

    /// Whether a message waits for room.
    pub(crate) fn is_full(&self) -> bool {
        !self.held.is_empty()
    }

    /// What the program has written. What is no message is thrown away.
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

    /// Passes on what `receive` yields, as far as the program's end has room for it.
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

/// The inode of a file.
pub(crate) fn inode(file: RawFd) -> io::Result<u64> {
    // SAFETY: of plain numbers, and written before it is read.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `status` is writable.
    if unsafe { libc::fstat(file, &raw mut status) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status.st_ino)
}
