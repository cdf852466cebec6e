//! A transport that is read only while another thread permits it: the file of a port that several
//! processes share has one reader.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use ib_mad::transport::{Interest, Malformed, Packet, Transport, wait};
use ib_mad::types::Lid;

/// Whether a transport is read. Closed at first.
#[derive(Debug)]
pub(crate) struct Gate {
    is_open: AtomicBool,
    /// Contains a datagram while the gate is open, which wakes the waiting thread.
    wake: UnixDatagram,
    waker: UnixDatagram,
}

impl Gate {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let (waker, wake) = UnixDatagram::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        Ok(Arc::new(Self { is_open: AtomicBool::new(false), wake, waker }))
    }

    /// Opens or closes it; returns whether that is a change. One thread does this.
    pub(crate) fn set_open(&self, is_open: bool) -> bool {
        if self.is_open.swap(is_open, Relaxed) == is_open {
            return false;
        }
        // The socket has room for the one datagram. If it did not wake the reader, that would look
        // by itself after a while.
        let _ = match is_open {
            true => self.waker.send(&[0]),
            false => self.wake.recv(&mut [0]),
        };
        true
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    /// Waits until it is open, at most for so long.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<()> {
        wait(&mut [Interest::read(self.wake.as_fd())], Some(timeout)).map(drop)
    }
}

/// A transport behind a gate, or one that is always read.
#[derive(Debug)]
pub(crate) struct Gated<T> {
    inner: T,
    gate: Option<Arc<Gate>>,
}

impl<T> Gated<T> {
    pub(crate) fn new(inner: T, gate: Option<Arc<Gate>>) -> Self {
        Self { inner, gate }
    }

    pub(crate) fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn closed(&self) -> Option<&Gate> {
        self.gate.as_deref().filter(|gate| !gate.is_open())
    }
}

impl<T: Transport> Transport for Gated<T> {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        if self.closed().is_some() { Ok(0) } else { self.inner.receive(batch) }
    }

    /// Packets wait behind a closed gate.
    fn is_drained(&self) -> bool {
        self.closed().is_none() && self.inner.is_drained()
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        self.inner.send(batch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self.closed() {
            Some(gate) => Some(gate.wake.as_fd()),
            None => self.inner.descriptor(),
        }
    }

    fn limit_queue(&mut self, packets: usize) {
        self.inner.limit_queue(packets);
    }

    fn overflowed(&mut self) -> u64 {
        self.inner.overflowed()
    }

    fn local_lid(&self) -> Lid {
        self.inner.local_lid()
    }

    fn malformed(&self) -> Malformed {
        self.inner.malformed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::transport::Address;
    use ib_mad::transport::memory::{Faults, Network};

    #[test]
    fn nothing_is_read_behind_a_closed_gate() {
        let network = Network::new(1, Faults::NONE);
        let mut client = network.endpoint(Lid(2), 0);
        let gate = Gate::new().unwrap();
        let mut server = Gated::new(network.endpoint(Lid(8), 0), Some(Arc::clone(&gate)));
        client.send(&[Packet::new([7; 256], Address::gsi(Lid(8)))]).unwrap();
        let mut batch = [Packet::default()];
        assert_eq!(server.receive(&mut batch).unwrap(), 0);
        let readable = |server: &Gated<_>| {
            let descriptor = server.descriptor().unwrap();
            wait(&mut [Interest::read(descriptor)], Some(Duration::ZERO)).unwrap()
        };
        assert_eq!(readable(&server), 0);
        gate.set_open(true);
        gate.wait(Duration::MAX).unwrap();
        assert_eq!(server.receive(&mut batch).unwrap(), 1, "it has waited");
        assert!(gate.set_open(false) && !gate.set_open(false));
        assert_eq!(readable(&server), 0);
        server.send(&batch).unwrap();
        assert_eq!(client.receive(&mut batch).unwrap(), 1, "answers leave");
    }
}
