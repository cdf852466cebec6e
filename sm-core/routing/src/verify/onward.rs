//! Finds the ports by which packets that arrived over a link continue, for traffic from all
//! switches to all LIDs.
//!
//! This takes one look at each table entry and at the next entry on the route. The findings of a
//! switch are collected in bytes, which are only ever set, and then packed into bits.

use rayon::prelude::*;

use super::super::{NO_ROUTE, Topology};

/// A set of ports.
pub(super) type Ports = [u64; 4];

/// Number of a table's entries that are examined before the next table's turn, such that the same
/// entries of all neighbours stay cached.
const PORTION: usize = 8192;

/// By link: the ports by which packets continue.
#[derive(Clone, Copy, Default)]
pub(super) struct Onward {
    /// For packets to hosts' LIDs.
    pub(super) to_hosts: Ports,
    /// For packets to other LIDs.
    pub(super) to_others: Ports,
}

impl Onward {
    /// For all packets.
    pub(super) fn of_all(&self) -> Ports {
        std::array::from_fn(|word| self.to_hosts[word] | self.to_others[word])
    }
}

/// Examines all tables; `lfts` is by switch. Missing entries lead nowhere.
pub(super) fn look(topology: &Topology, lfts: &[&[u8]]) -> Vec<Onward> {
    let len = lfts.iter().map(|lft| lft.len()).max().unwrap_or(0);
    let mut is_host = vec![false; len];
    for destination in topology.destinations().iter().filter(|destination| destination.is_host()) {
        for lid in destination.lids().filter(|lid| lid.index() < len) {
            is_host[lid.index()] = true;
        }
    }
    let mut onward = vec![Onward::default(); topology.link_count()];
    let mut rest = &mut onward[..];
    let by_switch = topology.switches().map(|switch| {
        let (own, others) = std::mem::take(&mut rest).split_at_mut(topology.links(switch).len());
        rest = others;
        (switch, own)
    });
    let mut by_switch: Vec<(u16, &mut [Onward])> = by_switch.collect();
    for first in (0..len).step_by(PORTION) {
        let lids = first..len.min(first + PORTION);
        let is_host = &is_host[lids.clone()];
        let entries = |switch: u16| {
            let lft = lfts.get(usize::from(switch)).map_or(&[][..], |lft| lft);
            lft.get(lids.start..lids.end.min(lft.len())).unwrap_or_default()
        };
        by_switch.par_iter_mut().for_each_init(Seen::new, |seen, (switch, onward)| {
            // Other ports have nothing behind them, regardless of earlier notes.
            let mut next: [&[u8]; 256] = [&[]; 256];
            for link in topology.links(*switch) {
                next[usize::from(link.port)] = entries(link.peer);
            }
            for (lid, (&port, &is_host)) in entries(*switch).iter().zip(is_host).enumerate() {
                let on = next[usize::from(port)].get(lid).copied().unwrap_or(NO_ROUTE);
                seen.note(port, on, is_host);
            }
            for (link, onward) in topology.links(*switch).iter().zip(onward.iter_mut()) {
                seen.take(link.port, onward);
            }
        });
    }
    onward
}

/// Pairs of ports by which a switch and the next switch send the same LID.
struct Seen {
    /// By whether the LID is a host's, port, and next port: 1 if there is such a LID.
    pairs: Vec<u8>,
}

/// Next ports per port.
const ROW: usize = 256;
/// Number of pairs of ports.
const PAIRS: usize = 256 * ROW;

impl Seen {
    fn new() -> Self {
        Self { pairs: vec![0; 2 * PAIRS] }
    }

    #[inline]
    fn note(&mut self, port: u8, on: u8, is_host: bool) {
        self.pairs[usize::from(is_host) * PAIRS + usize::from(port) * ROW + usize::from(on)] = 1;
    }

    /// Adds the findings for a port to those of its link, and clears them.
    fn take(&mut self, port: u8, onward: &mut Onward) {
        let row = usize::from(port) * ROW;
        let Onward { to_hosts, to_others } = onward;
        for (ports, first) in [(to_others, row), (to_hosts, PAIRS + row)] {
            let seen = &mut self.pairs[first..first + ROW];
            for (word, seen) in ports.iter_mut().zip(seen.chunks(64)) {
                *word |= bits(seen);
            }
            seen.fill(0);
        }
    }
}

/// Packs bytes of 0 or 1 into bits.
fn bits(bytes: &[u8]) -> u64 {
    let (eights, _) = bytes.as_chunks::<8>();
    let of_eight = |&eight: &[u8; 8]| {
        // The multiplication moves each byte's bit to its place in the highest byte, no two to the
        // same place.
        u64::from_le_bytes(eight).wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    eights.iter().rev().fold(0, |bits, eight| bits << 8 | of_eight(eight))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_bits_in_their_order() {
        for set in [[0, 5, 63], [1, 8, 32], [7, 15, 62]] {
            let mut bytes = [0; 64];
            set.iter().for_each(|&place: &usize| bytes[place] = 1);
            assert_eq!(bits(&bytes), set.iter().fold(0, |bits, place| bits | 1 << place));
        }
        assert_eq!(bits(&[1; 64]), u64::MAX);
    }
}
