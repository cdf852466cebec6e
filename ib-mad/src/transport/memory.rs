//! An in-memory network for tests: endpoints with LIDs, virtual time, and seeded faults.
//!
//! Equal seeds and equal calls give equal deliveries. Time advances only by
//! [`Network::advance_to`]. There are no switches and hence no directed routes: packets to the
//! permissive LID are not delivered. Crate `fabric-sim` simulates a fabric with agents.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Packet, Transport};
use crate::types::Lid;

/// Limit of packets queued at an endpoint; further ones are lost.
pub const QUEUE_MAX: usize = 4096;

/// Faults, applied to each packet independently.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
    /// Share of the others that are duplicated, 0 to 1.
    pub duplication: f64,
    /// Minimum delay.
    pub delay_min: Duration,
    /// Maximum delay. If it exceeds the minimum, packets are reordered.
    pub delay_max: Duration,
}

impl Faults {
    /// Packets arrive immediately, once and in order.
    pub const NONE: Self =
        Self { loss: 0.0, duplication: 0.0, delay_min: Duration::ZERO, delay_max: Duration::ZERO };
}

/// Counters of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets that reached an endpoint's queue, duplicates counted.
    pub delivered: u64,
    /// Packets lost by [`Faults::loss`].
    pub lost: u64,
    /// Packets created by [`Faults::duplication`].
    pub duplicated: u64,
    /// Packets to LIDs without an endpoint.
    pub unrouted: u64,
    /// Packets lost because of a full queue.
    pub overflowed: u64,
}

/// The network; clones share it.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

struct State {
    now: Duration,
    faults: Faults,
    random: Random,
    endpoints: Vec<VecDeque<Packet>>,
    /// Endpoint of each LID in use.
    owners: BTreeMap<Lid, usize>,
    /// Due time and order of sending, then index in `flying`.
    arrivals: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    flying: Vec<Option<(usize, Packet)>>,
    free: Vec<usize>,
    sequence: u64,
    counters: MemoryCounters,
}

/// An endpoint of the network.
pub struct Endpoint {
    network: Network,
    index: usize,
    lid: Lid,
    lmc: u8,
}

impl Network {
    /// An empty network at time zero.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self(Arc::new(Mutex::new(State {
            now: Duration::ZERO,
            faults,
            random: Random(seed),
            endpoints: Vec::new(),
            owners: BTreeMap::new(),
            arrivals: BinaryHeap::new(),
            flying: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            counters: MemoryCounters::default(),
        })))
    }

    /// Adds an endpoint with the 2^`lmc` LIDs from `lid` on.
    ///
    /// # Panics
    ///
    /// If one of them is in use or not a unicast LID, or `lid` has low bits set.
    pub fn endpoint(&self, lid: Lid, lmc: u8) -> Endpoint {
        assert!(
            lmc < 8 && lid.0.is_multiple_of(1 << lmc),
            "LID {lid} is not a valid base LID for LMC {lmc}"
        );
        let mut state = self.state();
        let index = state.endpoints.len();
        for lid in (lid.0..=lid.0 | ((1 << lmc) - 1)).map(Lid) {
            assert!(lid.is_unicast(), "{lid} is not a unicast LID");
            assert!(state.owners.insert(lid, index).is_none(), "LID {lid} is taken");
        }
        state.endpoints.push(VecDeque::new());
        Endpoint { network: self.clone(), index, lid, lmc }
    }

    /// Virtual time since the network was created.
    pub fn now(&self) -> Duration {
        self.state().now
    }

    /// When the next packet in flight arrives.
    pub fn next_arrival(&self) -> Option<Duration> {
        self.state().arrivals.peek().map(|Reverse((due, ..))| *due)
    }

    /// Advances virtual time. Earlier times are ignored.
    pub fn advance_to(&self, now: Duration) {
        let mut state = self.state();
        state.now = state.now.max(now);
        state.deliver();
    }

    /// Changes the faults of packets sent from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Counters so far.
    pub fn counters(&self) -> MemoryCounters {
        self.state().counters
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked elsewhere left consistent values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn send(&mut self, from: Lid, packet: &Packet) {
        self.counters.sent += 1;
        let Some(&to) = self.owners.get(&packet.address.lid) else {
            self.counters.unrouted += 1;
            return;
        };
        if self.random.chance(self.faults.loss) {
            self.counters.lost += 1;
            return;
        }
        self.dispatch(from, to, packet);
        if self.random.chance(self.faults.duplication) {
            self.counters.duplicated += 1;
            self.dispatch(from, to, packet);
        }
    }

    fn dispatch(&mut self, from: Lid, to: usize, packet: &Packet) {
        let Faults { delay_min, delay_max, .. } = self.faults;
        let spread = delay_max.saturating_sub(delay_min);
        let due = self.now + delay_min + spread.mul_f64(self.random.fraction());
        let mut arriving = packet.clone();
        let sent = &packet.address;
        arriving.address.lid = from;
        (arriving.address.qpn, arriving.address.local_qpn) = (sent.local_qpn, sent.qpn);
        arriving.address.grh = sent.grh.map(|grh| super::Grh {
            remote_gid: grh.local_gid,
            local_gid: grh.remote_gid,
            ..grh
        });
        // All LIDs of an endpoint differ only in the low bits, which the owner knows; the receiver
        // masks them.
        arriving.address.path_bits = (sent.lid.0 & 0x7F) as u8;
        let place = self.free.pop().unwrap_or_else(|| {
            self.flying.push(None);
            self.flying.len() - 1
        });
        self.flying[place] = Some((to, arriving));
        self.arrivals.push(Reverse((due, self.sequence, place)));
        self.sequence += 1;
    }

    fn deliver(&mut self) {
        while let Some(&Reverse((due, _, place))) = self.arrivals.peek()
            && due <= self.now
        {
            self.arrivals.pop();
            self.free.push(place);
            let Some((to, packet)) = self.flying[place].take() else { continue };
            if self.endpoints[to].len() < QUEUE_MAX {
                self.endpoints[to].push_back(packet);
                self.counters.delivered += 1;
            } else {
                self.counters.overflowed += 1;
            }
        }
    }
}

impl Endpoint {
    /// The endpoint's network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Its base LID.
    pub fn lid(&self) -> Lid {
        self.lid
    }

    fn path_bits_mask(&self) -> u8 {
        (1 << self.lmc) - 1
    }
}

impl Transport for Endpoint {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let mut state = self.network.state();
        state.deliver();
        let queue = &mut state.endpoints[self.index];
        let count = queue.len().min(batch.len());
        for (place, packet) in batch.iter_mut().zip(queue.drain(..count)) {
            *place = packet;
            place.address.path_bits &= self.path_bits_mask();
        }
        Ok(count)
    }

    fn is_drained(&self) -> bool {
        self.network.state().endpoints[self.index].is_empty()
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let mut state = self.network.state();
        for packet in batch {
            let path_bits = packet.address.path_bits & self.path_bits_mask();
            state.send(Lid(self.lid.0 | u16::from(path_bits)), packet);
        }
        Ok(batch.len())
    }

    fn local_lid(&self) -> Lid {
        self.lid
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// SplitMix64: random enough for faults, and identical in every release.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A random number from 0 to less than 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn chance(&mut self, share: f64) -> bool {
        self.fraction() < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Address, Carrier, Grh};
    use crate::types::{Gid, Qpn};

    const MS: Duration = Duration::from_millis(1);

    fn to(lid: u16, mark: u8) -> Packet {
        let mut packet = Packet::default();
        packet.mad[0] = mark;
        packet.address.lid = Lid(lid);
        packet
    }

    fn marks(endpoint: &mut Endpoint) -> Vec<u8> {
        let mut batch = vec![Packet::default(); QUEUE_MAX + 1];
        let got = endpoint.receive(&mut batch).unwrap();
        batch[..got].iter().map(|packet| packet.mad[0]).collect()
    }

    #[test]
    fn addresses_are_turned_round_on_the_way() {
        let network = Network::new(1, Faults::NONE);
        let (mut a, mut b) = (network.endpoint(Lid(8), 2), network.endpoint(Lid(5), 0));
        let grh = Grh { remote_gid: Gid([2; 16]), local_gid: Gid([1; 16]), ..Grh::default() };
        let mut packet = to(5, 1);
        packet.address.qpn = Qpn(1);
        packet.address.local_qpn = Qpn(9);
        packet.address.path_bits = 3;
        packet.address.grh = Some(grh);
        a.send(&[packet]).unwrap();
        let mut batch = [Packet::default()];
        assert_eq!(b.receive(&mut batch).unwrap(), 1);
        let expected = Address {
            lid: Lid(11),
            qpn: Qpn(9),
            local_qpn: Qpn(1),
            grh: Some(Grh { remote_gid: grh.local_gid, local_gid: grh.remote_gid, ..grh }),
            ..Address::default()
        };
        assert_eq!((batch[0].address, batch[0].carrier), (expected, Carrier::default()));
        b.send(&batch).unwrap();
        assert_eq!(a.receive(&mut batch).unwrap(), 1);
        assert_eq!((batch[0].address.lid, batch[0].address.path_bits), (Lid(5), 3));
    }

    #[test]
    fn packets_arrive_when_their_time_has_come() {
        let delay = Faults { delay_min: 2 * MS, delay_max: 2 * MS, ..Faults::NONE };
        let network = Network::new(1, delay);
        let (mut a, mut b) = (network.endpoint(Lid(1), 0), network.endpoint(Lid(2), 0));
        a.send(&[to(2, 1)]).unwrap();
        network.advance_to(MS);
        a.send(&[to(2, 2)]).unwrap();
        assert_eq!((marks(&mut b), network.next_arrival()), (vec![], Some(2 * MS)));
        network.advance_to(2 * MS);
        assert_eq!((marks(&mut b), network.next_arrival()), (vec![1], Some(3 * MS)));
        network.advance_to(3 * MS);
        assert_eq!((marks(&mut b), network.next_arrival()), (vec![2], None));
    }

    #[test]
    fn faults_are_the_same_for_the_same_seed() {
        let faults =
            Faults { loss: 0.2, duplication: 0.2, delay_min: Duration::ZERO, delay_max: 10 * MS };
        let run = |seed| {
            let network = Network::new(seed, faults);
            let (mut a, mut b) = (network.endpoint(Lid(1), 0), network.endpoint(Lid(2), 0));
            let batch: Vec<Packet> = (0..200).map(|mark| to(2, mark)).collect();
            a.send(&batch).unwrap();
            network.advance_to(20 * MS);
            (marks(&mut b), network.counters())
        };
        let (order, counters) = run(7);
        assert_eq!(run(7), (order.clone(), counters));
        assert_ne!(run(8).0, order);
        assert!((10..80).contains(&counters.lost) && (10..80).contains(&counters.duplicated));
        assert_eq!(counters.sent - counters.lost + counters.duplicated, counters.delivered);
        assert!(!order.is_sorted(), "some overtook others");
    }

    #[test]
    fn unclaimed_packets_are_counted() {
        let network = Network::new(1, Faults::NONE);
        let (mut a, mut b) = (network.endpoint(Lid(1), 0), network.endpoint(Lid(2), 0));
        a.send(&vec![to(2, 0); QUEUE_MAX + 3]).unwrap();
        a.send(&[to(9, 0), to(0xFFFF, 0)]).unwrap();
        assert_eq!(marks(&mut b).len(), QUEUE_MAX);
        let counters = network.counters();
        assert_eq!((counters.overflowed, counters.unrouted), (3, 2));
    }
}
