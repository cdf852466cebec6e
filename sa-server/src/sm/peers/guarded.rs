//! Drops what untrusted senders of envelopes send; if that is much, the kernel does so, before it
//! takes room in the socket's buffer.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ib_mad::transport::udp::Accepted;
use ib_mad::transport::{Malformed, Packet, Transport};
use ib_mad::types::Lid;

use super::{Judgement, LocalSenders, Peers};

/// Maximum number of batches from untrusted senders that are discarded before the worker gets its
/// turn.
const ROUNDS_MAX: usize = 16;

/// Envelopes of untrusted senders in [`SECOND`], after which the kernel drops all but those of
/// trusted ones that are known.
const STRANGERS_MAX: u64 = 1000;
const SECOND: Duration = Duration::from_secs(1);
/// How long it does. Programs of this host that are not known yet are not heard meanwhile.
const FLOOD_TIME: Duration = Duration::from_secs(10);

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
    /// The second that is counted, and the strangers before it.
    counted: Option<(Instant, u64)>,
    flood: Option<Flood>,
    /// What the transport lost, without what it was to drop, and its own count.
    overflowed: u64,
    overflowed_inner: u64,
}

/// The time in which the kernel drops envelopes.
#[derive(Debug)]
struct Flood {
    ends: Instant,
    accepted: Accepted,
}

impl<T: Transport> Guarded<T> {
    /// Guards `inner`, which receives at this address.
    pub fn new(inner: T, at: SocketAddr, peers: Peers) -> Self {
        let local = LocalSenders::to(at);
        let (counted, flood) = (None, None);
        let (strangers, logged, overflowed, overflowed_inner) = (0, false, 0, 0);
        Self {
            inner,
            peers,
            local,
            strangers,
            logged,
            counted,
            flood,
            overflowed,
            overflowed_inner,
        }
    }

    /// What is accepted in a flood: what managers send, and local programs that were trusted.
    fn accepted(&self) -> Option<Accepted> {
        let mut accepted = self.peers.accepted()?;
        accepted.ports.extend(self.local.trusted_ports());
        Some(accepted)
    }

    /// Counts strangers, and has the kernel drop them if there are many.
    fn note_strangers(&mut self, count: usize, now: Instant) {
        self.strangers += count as u64;
        match self.counted {
            Some((since, before)) if now.saturating_duration_since(since) < SECOND => {
                if self.strangers - before > STRANGERS_MAX && self.flood.is_none() {
                    self.begin_flood(now);
                }
            }
            _ => self.counted = Some((now, self.strangers - count as u64)),
        }
    }

    fn begin_flood(&mut self, now: Instant) {
        self.note_overflow();
        let Some(accepted) = self.accepted() else { return };
        if self.inner.accept_only(Some(&accepted)).is_ok() {
            tracing::warn!(
                "many envelopes from untrusted senders: for {FLOOD_TIME:?} the kernel drops all \
                 but those of managers and of programs that were trusted before"
            );
            self.flood = Some(Flood { ends: now + FLOOD_TIME, accepted });
        }
    }

    /// Ends a flood after its time, and follows changes of what is accepted in it.
    fn follow_flood(&mut self) {
        let Some(Flood { ends, accepted: before }) = &self.flood else { return };
        let is_over = Instant::now() >= *ends;
        let accepted = self.accepted().filter(|_| !is_over);
        if accepted.as_ref() == Some(before) {
            return;
        }
        self.note_overflow();
        let result = self.inner.accept_only(accepted.as_ref());
        match (accepted, &mut self.flood) {
            (Some(accepted), Some(flood)) if result.is_ok() => flood.accepted = accepted,
            (None, flood) if result.is_ok() => *flood = None,
            _ => {}
        }
    }

    /// Counts what the transport lost. Nearly all that it drops in a flood is of strangers.
    fn note_overflow(&mut self) {
        let inner = self.inner.overflowed();
        let lost = inner.saturating_sub(std::mem::replace(&mut self.overflowed_inner, inner));
        match self.flood {
            Some(_) => self.strangers += lost,
            None => self.overflowed += lost,
        }
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
        if kept < batch.len() {
            self.note_strangers(batch.len() - kept, now.unwrap_or_else(Instant::now));
        }
        kept
    }
}

impl<T: Transport> Transport for Guarded<T> {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        self.follow_flood();
        let mut kept = 0;
        for _ in 0..ROUNDS_MAX {
            let room = batch.len() - kept;
            let got = self.inner.receive(&mut batch[kept..])?;
            kept += self.sift(&mut batch[kept..kept + got]);
            // What is left if the batch was not full can wait for the next call.
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
        self.note_overflow();
        self.overflowed
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

    /// Regression: a local user filled the socket's buffer, and queries were lost.
    #[test]
    fn the_kernel_drops_what_a_flood_of_strangers_sends() {
        use ib_mad::transport::udp::{Udp, UdpOptions};
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let udp = |token| Udp::bind(&UdpOptions { token, ..UdpOptions::new(listen) }).unwrap();
        let inner = udp(1);
        let to = inner.local_addr().unwrap();
        let [mut door, mut program, mut stranger] = [77, 0, 5].map(udp);
        let peers = Peers::default();
        peers.set_fed(0, [door.local_addr().unwrap()], 77);
        let mut guarded = Guarded::new(inner, to, peers.clone());
        // Users of local programs, by port.
        guarded.local = LocalSenders::new(1000, to, |from, _, _| {
            let port = OWN_PORT.load(std::sync::atomic::Ordering::Relaxed);
            Ok(vec![if from.port() == port { 1000 } else { 65534 }])
        });
        let port = program.local_addr().unwrap().port();
        OWN_PORT.store(port, std::sync::atomic::Ordering::Relaxed);
        let mut packet = Packet::default();
        packet.carrier.peer = Some(to);
        let packets = vec![packet; 64];
        let mut batch = vec![Packet::default(); 64];
        let mut heard = |guarded: &mut Guarded<Udp>, from: &mut Udp| {
            from.send(&packets).unwrap();
            guarded.receive(&mut batch).unwrap()
        };
        assert_eq!([heard(&mut guarded, &mut door), heard(&mut guarded, &mut program)], [64, 64]);
        let begun = Instant::now();
        while guarded.flood.is_none() {
            assert_eq!(heard(&mut guarded, &mut stranger), 0);
            assert!(begun.elapsed() < FLOOD_TIME, "no flood was noticed");
        }
        assert_eq!(guarded.overflowed(), 0);
        let before = guarded.malformed().stranger;
        assert_eq!(heard(&mut guarded, &mut stranger), 0);
        assert_eq!(guarded.overflowed(), 0, "they are strangers");
        assert!(guarded.malformed().stranger > before);
        assert_eq!([heard(&mut guarded, &mut door), heard(&mut guarded, &mut program)], [64, 64]);
        // The manager was replaced meanwhile.
        let mut next = udp(78);
        assert_eq!(heard(&mut guarded, &mut next), 0);
        peers.set_fed(1, [next.local_addr().unwrap()], 78);
        guarded.receive(&mut []).unwrap();
        assert_eq!(heard(&mut guarded, &mut next), 64);
        guarded.flood.as_mut().unwrap().ends = Instant::now();
        guarded.receive(&mut []).unwrap();
        assert!(guarded.flood.is_none());
    }

    /// Port of the program of our own user.
    static OWN_PORT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);

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
