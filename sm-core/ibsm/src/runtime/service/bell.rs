//! Wakes the service loop for orders of operators.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::publish::Publisher;

/// Becomes readable when there is an order.
pub(super) struct Bell(UnixStream);

impl Bell {
    /// The bell that is rung with each order to this publisher.
    pub(super) fn of(publisher: &Publisher) -> io::Result<Self> {
        let (bell, rope) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rope.set_nonblocking(true)?;
        // If the socket is full, the loop is awake already.
        publisher.set_order_bell(move || drop((&rope).write(&[0])));
        Ok(Self(bell))
    }

    /// Must be called before orders are taken: one that comes afterwards rings again.
    pub(super) fn silence(&mut self) {
        let mut rung = [0; 64];
        while matches!(self.0.read(&mut rung), Ok(count) if count == rung.len()) {}
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
