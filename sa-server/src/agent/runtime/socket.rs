//! The kernel's end: a netlink socket in the group for local services.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use tokio::io::unix::AsyncFd;

use super::{SharedHost, lock};
use crate::agent::netlink::ANSWER_LEN;

/// RDMA_NL_GROUP_LS, as a bit of the groups' mask.
const GROUP_LS: u32 = 1 << (3 - 1);
/// Requests that may wait, bytes: some 4,000 of them.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Longest datagram that is read; a request with all its attributes has 168 bytes.
const DATAGRAM_LEN_MAX: usize = 4 << 10;
/// Datagrams answered together, by one that has the answers one after the other.
const BATCH_MAX: usize = 64;

/// The socket that requests come from, and answers go to.
#[derive(Debug)]
pub struct KernelSocket {
    socket: AsyncFd<OwnedFd>,
}

impl KernelSocket {
    /// Joins the group: from now on the kernel asks this process first.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::RDMA));
        let socket = socket.map_err(|error| match error {
            Errno::PROTONOSUPPORT => io::Error::other(
                "this kernel has no RDMA netlink: load the module ib_core, or the driver of the \
                 adapter",
            ),
            error => error.into(),
        })?;
        // Without the right to it, the usual size will do.
        let _ = set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER);
        bind(&socket, &SocketAddrNetlink::new(0, GROUP_LS)).map_err(|error| match error {
            Errno::PERM => io::Error::other(
                "cannot join the kernel's group for path queries: this needs CAP_NET_ADMIN",
            ),
            error => error.into(),
        })?;
        Self::of(socket)
    }

    /// Any other datagram socket that is connected: for tests, in place of the kernel's.
    pub fn of(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // SAFETY: the descriptor is owned and stays open, and is not replaced while it is
        // registered.
        let socket = unsafe { AsyncFd::register(socket) }?;
        Ok(Self { socket })
    }

    /// Answers requests until the socket fails.
    pub(super) async fn serve(&self, host: &SharedHost) -> io::Error {
        let mut buffer = vec![0; DATAGRAM_LEN_MAX];
        let mut answers = Vec::with_capacity(BATCH_MAX * ANSWER_LEN);
        loop {
            if let Err(error) = self.turn(host, &mut buffer, &mut answers).await {
                return error;
            }
        }
    }

    /// Answers a batch.
    async fn turn(
        &self,
        host: &SharedHost,
        buffer: &mut [u8],
        answers: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut ready = self.socket.readable().await?;
        let now = Instant::now();
        answers.clear();
        for _ in 0..BATCH_MAX {
            match recv(&self.socket, &mut *buffer, RecvFlags::TRUNC) {
                // What does not fit is no request.
                Ok((read, _)) => lock(host).answer(now, &buffer[..read], answers),
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    break;
                }
                // Requests were lost; the kernel asks the SA about them after its time limit.
                Err(Errno::NOBUFS) => lock(host).count_lost(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if answers.is_empty() {
            return Ok(());
        }
        loop {
            // To the kernel, where netlink sockets send unless they are connected.
            match send(&self.socket, answers, SendFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => self.socket.writable().await?.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
