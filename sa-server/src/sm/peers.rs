//! Which senders of envelopes are trusted. An envelope names the requester, so its sender can send
//! requests on behalf of any port. Only programs on this host, the followed manager at the address
//! it announced over gRPC, and addresses given by `--believe` are accepted; others are counted and
//! dropped.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ib_mad::transport::{Malformed, Packet, Transport};

/// Maximum number of batches from untrusted senders that are discarded before the worker gets its
/// turn.
const ROUNDS_MAX: usize = 16;

/// The trusted senders. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Named by the operator.
    named: Arc<[IpAddr]>,
    /// The front door of the manager that is followed, by each address that it may have.
    doors: Arc<ArcSwap<Vec<SocketAddr>>>,
}

impl Peers {
    /// Trusts this host, and the addresses in `named`.
    pub fn new(named: &[IpAddr]) -> Self {
        Self { named: named.iter().map(IpAddr::to_canonical).collect(), doors: Arc::default() }
    }

    /// Sets the addresses of the manager's front door; none if `doors` is empty.
    pub fn set_doors(&self, doors: impl IntoIterator<Item = SocketAddr>) {
        self.doors.store(Arc::new(doors.into_iter().map(canonical).collect()));
    }

    /// Whether `peer` is trusted.
    pub fn believes(&self, peer: SocketAddr) -> bool {
        let peer = canonical(peer);
        peer.ip().is_loopback()
            || self.doors.load().contains(&peer)
            || self.named.contains(&peer.ip())
    }
}

/// An IPv4 address, written as one.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A transport of envelopes that hands over those of [`Peers`] only.
#[derive(Debug)]
pub struct Guarded<T> {
    inner: T,
    peers: Peers,
    strangers: u64,
    /// Whether one was logged.
    logged: bool,
}

impl<T> Guarded<T> {
    /// Guards `inner`.
    pub fn new(inner: T, peers: Peers) -> Self {
        Self { inner, peers, strangers: 0, logged: false }
    }

    /// Moves packets from trusted senders to the front; returns their number.
    fn sift(&mut self, batch: &mut [Packet]) -> usize {
        let mut kept = 0;
        for at in 0..batch.len() {
            if batch[at].carrier.peer.is_some_and(|peer| self.peers.believes(peer)) {
                batch.swap(kept, at);
                kept += 1;
            } else if !std::mem::replace(&mut self.logged, true) {
                tracing::warn!(
                    peer = ?batch[at].carrier.peer,
                    "dropping envelopes from an untrusted address; add --believe ADDRESS to accept \
                     them (this host and the SM's front door are always accepted)"
                );
            }
        }
        self.strangers += (batch.len() - kept) as u64;
        kept
    }
}

impl<T: Transport> Transport for Guarded<T> {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let mut kept = 0;
        for _ in 0..ROUNDS_MAX {
            let room = batch.len() - kept;
            let got = self.inner.receive(&mut batch[kept..])?;
            kept += self.sift(&mut batch[kept..kept + got]);
            // A batch that is not full shows the caller that nothing is left.
            if got < room || kept == batch.len() {
                break;
            }
        }
        Ok(kept)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        self.inner.send(batch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn limit_queue(&mut self, packets: usize) {
        self.inner.limit_queue(packets);
    }

    fn overflowed(&mut self) -> u64 {
        self.inner.overflowed()
    }

    fn malformed(&self) -> Malformed {
        Malformed { stranger: self.strangers, ..self.inner.malformed() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A transport that delivers these packets, and has no descriptor.
    struct From(VecDeque<SocketAddr>);

    impl Transport for From {
        fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
            let count = batch.len().min(self.0.len());
            for (packet, peer) in batch.iter_mut().zip(self.0.drain(..count)) {
                packet.carrier.peer = Some(peer);
            }
            Ok(count)
        }

        fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
            Ok(batch.len())
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn this_host_the_managers_door_and_who_is_named_are_believed() {
        let peers = Peers::new(&["198.51.100.7".parse().unwrap()]);
        for (peer, believed) in [
            ("127.0.0.1:9", true),
            ("[::1]:9", true),
            ("[::ffff:127.0.0.1]:9", true),
            ("198.51.100.7:9", true),
            ("[::ffff:198.51.100.7]:1", true),
            ("192.0.2.1:5", false),
        ] {
            assert_eq!(peers.believes(at(peer)), believed, "{peer}");
        }
        peers.set_doors([at("192.0.2.1:5")]);
        assert!(peers.believes(at("192.0.2.1:5")) && peers.believes(at("[::ffff:192.0.2.1]:5")));
        assert!(!peers.believes(at("192.0.2.1:6")), "another program of that host");
        peers.set_doors([]);
        assert!(!peers.believes(at("192.0.2.1:5")), "it is followed no more");
    }

    /// Regression: Envelopes were answered for any sender.
    #[test]
    fn strangers_are_counted_and_hide_nothing_behind_them() {
        let (stranger, door) = (at("192.0.2.9:5"), at("192.0.2.1:5"));
        let peers = Peers::default();
        peers.set_doors([door]);
        let mut from = VecDeque::from([door, stranger]);
        from.extend([stranger; 5]);
        from.extend([door, stranger, door]);
        let mut guarded = Guarded::new(From(from), peers);
        let mut batch = vec![Packet::default(); 2];
        assert_eq!(guarded.receive(&mut batch).unwrap(), 2, "a full one, as there may be more");
        assert!(batch.iter().all(|packet| packet.carrier.peer == Some(door)));
        assert_eq!(guarded.receive(&mut batch).unwrap(), 1);
        assert_eq!((batch[0].carrier.peer, guarded.malformed().stranger), (Some(door), 7));
    }
}
