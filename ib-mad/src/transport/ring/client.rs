//! A client's end of a ring.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::queue::{Broken, Consumer, Producer, client_ends};
use super::{always_readable, handshake, spin};
use crate::transport::{Malformed, Packet, Transport};

/// Time limit for the server's first message.
const PATIENCE: Duration = Duration::from_secs(5);

/// A ring to a responder on this host. Packets have no `peer`: there is only one.
pub struct RingClient {
    stream: UnixStream,
    answers: Consumer,
    pub(super) requests: Producer,
    malformed: Malformed,
    /// Whether this end has announced to the server that it sleeps.
    slept: Cell<bool>,
    ready: OwnedFd,
}

impl RingClient {
    /// Connects to a responder's socket.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let memory = handshake::take(&stream)?;
        stream.set_nonblocking(true)?;
        let (answers, requests) = client_ends(memory);
        Ok(Self {
            stream,
            answers,
            requests,
            malformed: Malformed::default(),
            slept: Cell::new(false),
            ready: always_readable()?,
        })
    }

    /// Reads the server's wake-up bytes.
    fn hear(&mut self) -> io::Result<()> {
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the responder has closed the ring",
            )),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

fn broken(_: Broken) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the responder's ring positions are invalid")
}

impl Transport for RingClient {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        if self.slept.take() {
            self.answers.wake_up();
        }
        let taken = self.answers.take(batch, None).map_err(broken)?;
        self.malformed.envelope += taken.malformed;
        if taken.packets == 0 {
            self.hear()?;
        }
        Ok(taken.packets)
    }

    fn is_drained(&self) -> bool {
        self.answers.is_empty()
    }

    /// If the queue is full, fewer packets are accepted; the descriptor remains writable.
    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let sent = self.requests.write(batch).map_err(broken)?;
        if sent > 0 && self.requests.publish() {
            // A full socket has woken the peer already; a closed one is detected when it is read.
            let _ = self.stream.write(&[0]);
        }
        Ok(sent)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let is_there = || !self.answers.is_empty();
        if spin(is_there) {
            return Some(self.ready.as_fd());
        }
        self.slept.set(true);
        self.answers.fall_asleep();
        Some(if is_there() { self.ready.as_fd() } else { self.stream.as_fd() })
    }

    fn malformed(&self) -> Malformed {
        self.malformed
    }
}
