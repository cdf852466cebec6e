//! Which ports of a switch lead closer to which home switches.

use super::super::{HopMatrix, Topology};

/// What one switch's hops and those of its neighbours say, a bit a port and home: little enough to
/// stay in the nearest cache while all entries are looked at.
#[derive(Default)]
pub(super) struct Closer {
    /// One more than homes: the last stands for none.
    columns: usize,
    /// By eight ports and home: a bit for each of these ports.
    bits: Vec<u8>,
    /// By home: hops must be fewer than this.
    limits: Vec<u8>,
}

impl Closer {
    /// Turns to a switch. `hops` have a row a switch on the way.
    pub(super) fn turn_to(&mut self, topology: &Topology, hops: &HopMatrix, switch: u16) {
        let own = hops.row(switch);
        let homes = topology.switch_count();
        self.columns = homes + 1;
        self.limits.clear();
        // Nothing is closer to what cannot be reached.
        let limit = |&hops: &u8| if hops == HopMatrix::UNREACHABLE { 0 } else { hops };
        self.limits.extend(own.iter().map(limit));
        let links = topology.links(switch);
        let eights = links.iter().map(|link| usize::from(link.port) / 8 + 1).max();
        self.bits.clear();
        self.bits.resize(eights.unwrap_or(0) * self.columns, 0);
        for link in links {
            let bit = 1 << (link.port % 8);
            let bits = &mut self.bits[usize::from(link.port) / 8 * self.columns..][..homes];
            let next = hops.row(link.peer).iter().zip(&self.limits);
            for (bits, (next, limit)) in bits.iter_mut().zip(next) {
                *bits |= if next < limit { bit } else { 0 };
            }
        }
    }

    /// Whether all ports lead closer to the homes of their LIDs; the number of homes stands for
    /// none, and none is larger.
    pub(super) fn are_all(&self, homes: &[u16], ports: &[u8]) -> bool {
        let is_closer = |(&home, &port): (&u16, &u8)| {
            let bits = self.bits.get(usize::from(port / 8) * self.columns + usize::from(home));
            bits.copied().unwrap_or(0) >> (port % 8)
        };
        // Without a way out, the loop has no branches to be foretold.
        homes.iter().zip(ports).map(is_closer).fold(1, |all, one| all & one) == 1
    }
}
