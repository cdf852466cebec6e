//! Drops what untrusted senders of envelopes send.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use ib_mad::transport::{Malformed, Packet, Transport};
use ib_mad::types::Lid;

use super::{Judgement, LocalSenders, Peers};

/// Maximum number of batches from untrusted senders that are discarded before the worker gets its
/// turn.
const ROUNDS_MAX: usize = 16;

/// A transport of envelopes that hands over those of [`Peers`], and of trusted programs on this
/// host, only.
#[derive(Debug)]
pub struct Guarded<T> {
    inner: T,
    peers: Peers,
    local: LocalSenders,
    strangers: u64,
    /// Whether one was logged.
    logged: bool,
}

impl<T> Guarded<T> {
    /// Guards `inner`, which receives at this address.
    pub fn new(inner: T, at: SocketAddr, peers: Peers) -> Self {
        let local = LocalSenders::to(at);
        Self { inner, peers, local, strangers: 0, logged: false }
    }

    /// Moves packets from trusted senders to the front; returns their number.
    fn sift(&mut self, batch: &mut [Packet]) -> usize {
        let mut kept = 0;
        let mut now = None;
        for at in 0..batch.len() {
            let carrier = &batch[at].carrier;
            let is_trusted =
                carrier.peer.is_some_and(|peer| match self.peers.judge(peer, carrier.token) {
                    Judgement::Trusted => true,
                    Judgement::Stranger => false,
                    Judgement::Local { is_announced } => {
                        let now = *now.get_or_insert_with(Instant::now);
                        self.local.believes(peer, is_announced, now)
                    }
                });
            if is_trusted {
                batch.swap(kept, at);
                kept += 1;
            } else if !std::mem::replace(&mut self.logged, true) {
                tracing::warn!(
                    peer = ?batch[at].carrier.peer,
                    "dropping envelopes from an untrusted sender; add --believe ADDRESS to accept \
                     them (accepted are the SM's front door, and on this host programs of root \
                     and of the user of ibsa)"
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

    fn is_drained(&self) -> bool {
        self.inner.is_drained()
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

    fn local_lid(&self) -> Lid {
        self.inner.local_lid()
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

    /// Regression: Envelopes were answered for any sender.
    #[test]
    fn strangers_are_counted_and_hide_nothing_behind_them() {
        let (stranger, door) = (at("192.0.2.9:5"), at("192.0.2.1:5"));
        let peers = Peers::default();
        peers.set_doors(0, [door], 0);
        let mut from = VecDeque::from([door, stranger]);
        from.extend([stranger; 5]);
        from.extend([door, stranger, door]);
        let mut guarded = Guarded::new(From(from), at("127.0.0.1:9"), peers);
        let mut batch = vec![Packet::default(); 2];
        assert_eq!(guarded.receive(&mut batch).unwrap(), 2, "a full one, as there may be more");
        assert!(batch.iter().all(|packet| packet.carrier.peer == Some(door)));
        assert_eq!(guarded.receive(&mut batch).unwrap(), 1);
        assert_eq!((batch[0].carrier.peer, guarded.malformed().stranger), (Some(door), 7));
    }
}
