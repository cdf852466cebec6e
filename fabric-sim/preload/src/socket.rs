//! The device file as opened by a program without libibumad: a SOCK_SEQPACKET pair, of which the
//! program has one end and this module the other.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use ib_mad::wire::MAD_LEN;

use crate::stack::FileId;
use crate::umad::{Errno, HEADER_LEN, Header};

/// The longest message that is passed on in one write.
const MESSAGE_LEN_MAX: usize = 1 << 16;
/// Start of our end's abstract name, by which any process recognizes the other end as a device
/// file. The node and a number follow.
const NAME: &[u8] = b"\0ibfabric-umad/";
/// Limit of the node's part in the name.
const NODE_LEN_MAX: usize = 64;

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
    /// No message is available.
    Nothing,
    /// The program has closed its end.
    End,
}

impl Socket {
    /// Creates a socket pair; returns our end and the program's.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let [ours, theirs] = pair(libc::SOCK_NONBLOCK)?;
        let inode = inode(theirs.as_raw_fd())?;
        let buffer = vec![0; MESSAGE_LEN_MAX].into_boxed_slice();
        Ok((Self { ours, inode, held: Vec::new(), buffer }, theirs))
    }

    /// Names our end after the node, so that [`node_of`] recognizes the program's end. `number`
    /// differs from file to file of a process.
    pub(crate) fn set_name(&self, node: &str, number: u32) -> io::Result<()> {
        let node = &node.as_bytes()[..node.len().min(NODE_LEN_MAX)];
        let tail = format!("/{}-{number}", std::process::id());
        let name = [NAME, node, tail.as_bytes()].concat();
        // SAFETY: all-zero bytes are valid for an address.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(&name) {
            *to = *from as libc::c_char;
        }
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
        // SAFETY: the address is readable for this length.
        let bound =
            unsafe { libc::bind(self.id(), (&raw const address).cast(), len as libc::socklen_t) };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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

    /// Reads the program's messages. Malformed ones are discarded.
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

/// A pair of connected sockets that preserve message boundaries, with these flags.
pub(crate) fn pair(flags: i32) -> io::Result<[OwnedFd; 2]> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: there is room for both descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are new and have no other owner.
    Ok(ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) }))
}

/// The node of a device file, whichever process opened it; `None` if the descriptor is not the
/// program's end of one.
pub(crate) fn node_of(file: RawFd) -> Option<Vec<u8>> {
    // SAFETY: all-zero bytes are valid for an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is writable for this length.
    if unsafe { libc::getpeername(file, (&raw mut address).cast(), &raw mut len) } < 0 {
        return None;
    }
    let len = (len as usize).checked_sub(std::mem::offset_of!(libc::sockaddr_un, sun_path))?;
    let name: Vec<u8> = address.sun_path.iter().take(len).map(|&byte| byte as u8).collect();
    let rest = name.strip_prefix(NAME)?;
    let end = rest.iter().rposition(|&byte| byte == b'/')?;
    Some(rest[..end].to_vec())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_file_is_recognized_wherever_it_was_passed_to() {
        let (ours, theirs) = Socket::pair().unwrap();
        assert_eq!(node_of(theirs.as_raw_fd()), None, "it has no name yet");
        ours.set_name("Hca1/x", 7).unwrap();
        let passed_on = theirs.try_clone().unwrap();
        assert_eq!(node_of(passed_on.as_raw_fd()).as_deref(), Some(&b"Hca1/x"[..]));
        assert_eq!(node_of(ours.id()), None, "the other end");
        let [other, _end] = pair(0).unwrap();
        assert_eq!(node_of(other.as_raw_fd()), None);
    }
}
