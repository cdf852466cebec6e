//! System calls that the standard library lacks: epoll(7), and batches of datagrams by recvmmsg(2)
//! and sendmmsg(2). Only [`Epoll::wait`] blocks.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use ib_mad::transport::ibsim::protocol::PACKET_LEN;

/// Datagrams per call.
pub(super) const BATCH_MAX: usize = 64;

/// A set of polled descriptors.
pub(super) struct Epoll {
    fd: OwnedFd,
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// The token that the descriptor was added with.
    pub(super) token: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above created this descriptor; it has no other owner.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Polls `fd` for readability from now on. Closing it ends that.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, false)
    }

    /// Stops polling `fd`.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, false)
    }

    /// Sets whether `fd` is polled for writability too.
    pub(super) fn set_write(&self, fd: BorrowedFd<'_>, token: u64, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, write)
    }

    fn control(&self, op: i32, fd: BorrowedFd<'_>, token: u64, write: bool) -> io::Result<()> {
        let events = libc::EPOLLIN | if write { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `event` outlives the call; both descriptors are borrowed and therefore open.
        let result =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd.as_raw_fd(), &mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until something is ready or `timeout`, rounded up to a millisecond, has passed.
    pub(super) fn wait(&self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let timeout = timeout.map_or(-1, |timeout| {
            i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        // SAFETY: `events` outlives the call and its length is given.
        let count = unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, timeout)
        };
        ready.clear();
        let Ok(count) = usize::try_from(count) else {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            };
        };
        ready.extend(events[..count].iter().map(|event| {
            let has = |bits: i32| event.events & bits as u32 != 0;
            Ready {
                token: event.u64,
                readable: has(libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP),
                writable: has(libc::EPOLLOUT),
            }
        }));
        Ok(())
    }
}

/// Buffers for the packets of one receive call.
pub(super) struct Received {
    packets: Box<[[u8; PACKET_LEN]; BATCH_MAX]>,
    lengths: [usize; BATCH_MAX],
}

impl Received {
    pub(super) fn new() -> Self {
        Self { packets: Box::new([[0; PACKET_LEN]; BATCH_MAX]), lengths: [0; BATCH_MAX] }
    }

    /// Receives up to a batch of datagrams from `fd`; returns their number.
    pub(super) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let mut vectors = [NOWHERE; BATCH_MAX];
        for (vector, packet) in vectors.iter_mut().zip(self.packets.iter_mut()) {
            *vector = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: PACKET_LEN };
        }
        let mut headers = headers_over(&mut vectors);
        // SAFETY: each header points at one vector, each vector at one packet, all of which
        // outlive the call, and the packets are borrowed mutably.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let count = or_would_block(count)?;
        for (length, header) in self.lengths.iter_mut().zip(&headers[..count]) {
            let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            *length = if whole { header.msg_len as usize } else { 0 };
        }
        Ok(count)
    }

    /// A packet of the last call; `None` if the datagram's length is not a packet's.
    pub(super) fn packet(&self, index: usize) -> Option<&[u8; PACKET_LEN]> {
        (self.lengths[index] == PACKET_LEN).then(|| &self.packets[index])
    }
}

/// Sends packets from the front of `queue` until the socket's buffer is full; returns their number.
pub(super) fn send(fd: BorrowedFd<'_>, queue: &VecDeque<[u8; PACKET_LEN]>) -> io::Result<usize> {
    let mut vectors = [NOWHERE; BATCH_MAX];
    let count = queue.len().min(BATCH_MAX);
    for (vector, packet) in vectors.iter_mut().zip(queue) {
        *vector = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: PACKET_LEN };
    }
    let mut headers = headers_over(&mut vectors);
    // SAFETY: each of the first `count` headers points at one vector and that at one packet, all
    // of which outlive the call; sending does not write to the packets.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            count as u32,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    or_would_block(sent)
}

const NOWHERE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn headers_over(vectors: &mut [libc::iovec; BATCH_MAX]) -> [libc::mmsghdr; BATCH_MAX] {
    // SAFETY: all-zero bytes are a valid mmsghdr: null pointers and zero lengths.
    let mut headers: [libc::mmsghdr; BATCH_MAX] = unsafe { std::mem::zeroed() };
    for (header, vector) in headers.iter_mut().zip(vectors) {
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
    }
    headers
}

/// Raises the limit of open descriptors to the hard limit.
pub(crate) fn raise_descriptor_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls, the first of which writes it.
    let done = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0
        }
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ignores SIGHUP: continues when the controlling terminal is closed.
pub(crate) fn ignore_hangups() {
    // SAFETY: no pointers are passed, and no handler is installed.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

fn or_would_block(count: i32) -> io::Result<usize> {
    let Ok(count) = usize::try_from(count) else {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
            _ => Err(error),
        };
    };
    Ok(count)
}
