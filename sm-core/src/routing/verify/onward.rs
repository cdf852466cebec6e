//! By which ports packets of all traffic go on that came over a link: of all switches, to all LIDs.
//!
//! That takes one look at each entry of the tables and at the one that follows it. What is seen of a
//! switch is noted in bytes, which are only ever set, and made into bits when all is seen.

use rayon::prelude::*;

use super::super::{NO_ROUTE, Topology};

/// Ports, as a set.
pub(super) type Ports = [u64; 4];

/// Entries of a table that are looked at before the next table's turn comes: what those of all
/// neighbours have there stays cached.
const PORTION: usize = 8192;

/// By link: the ports by which packets go on.
#[derive(Clone, Copy, Default)]
pub(super) struct Onward {
    /// Of those to hosts' LIDs.
    pub(super) to_hosts: Ports,
    /// Of those to other LIDs.
    pub(super) to_others: Ports,
}

impl Onward {
    /// Of all packets.
    pub(super) fn of_all(&self) -> Ports {
        std::array::from_fn(|word| self.to_hosts[word] | self.to_others[word])
    }
}

/// Looks at all tables; `lfts` are by switch. What is missing of them leads nowhere.
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
            // Other ports have nothing behind them, whatever was noted of them before.
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

/// Pairs of the ports by which a switch and the next send the same LID.
struct Seen {
    /// By whether it is a host's, port, and next port: 1 if there is such a LID.
    pairs: Vec<u8>,
}

/// Next ports a port.
const ROW: usize = 256;
/// Pairs of ports.
const PAIRS: usize = 256 * ROW;

impl Seen {
    fn new() -> Self {
        Self { pairs: vec![0; 2 * PAIRS] }
    }

    #[inline]
    fn note(&mut self, port: u8, on: u8, is_host: bool) {
        self.pairs[usize::from(is_host) * PAIRS + usize::from(port) * ROW + usize::from(on)] = 1;
    }

    /// Adds what was seen of a port to what is known of its link, and forgets it.
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

/// Bytes of 0 or 1, as bits.
fn bits(bytes: &[u8]) -> u64 {
    let (eights, _) = bytes.as_chunks::<8>();
    let of_eight = |&eight: &[u8; 8]| {
        // Each byte's bit comes to its place in the highest byte, and no two to one place.
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
