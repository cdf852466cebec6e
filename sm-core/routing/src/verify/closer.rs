//! Precomputes which ports of a switch lead closer to which egress switches.

use super::super::{HopMatrix, Topology};

/// One bit per port and column of the hop matrix (an egress switch and a plane), computed from the
/// hops of one switch and its neighbours: small enough to stay in the nearest cache while all
/// entries are checked.
#[derive(Default)]
pub(super) struct Closer {
    /// One more than the number of columns of the matrix: the last one represents none.
    columns: usize,
    /// By group of eight ports and column: a bit for each of these ports.
    bits: Vec<u8>,
    /// By column: hops of the next switch must be below this.
    limits: Vec<u8>,
}

impl Closer {
    /// Prepares the bits for a switch. `hops` has one row per source switch.
    pub(super) fn turn_to(&mut self, topology: &Topology, hops: &HopMatrix, switch: u16) {
        let own = hops.wide_row(switch);
        let columns = own.len();
        self.columns = columns + 1;
        self.limits.clear();
        // Nothing is closer to an unreachable switch.
        let limit = |&hops: &u8| if hops == HopMatrix::UNREACHABLE { 0 } else { hops };
        self.limits.extend(own.iter().map(limit));
        let links = topology.links(switch);
        let eights = links.iter().map(|link| usize::from(link.port) / 8 + 1).max();
        self.bits.clear();
        self.bits.resize(eights.unwrap_or(0) * self.columns, 0);
        for link in links {
            let bit = 1 << (link.port % 8);
            let bits = &mut self.bits[usize::from(link.port) / 8 * self.columns..][..columns];
            let next = hops.wide_row(link.peer).iter().zip(&self.limits);
            for (bits, (next, limit)) in bits.iter_mut().zip(next) {
                *bits |= if next < limit { bit } else { 0 };
            }
        }
    }

    /// Whether each port leads closer to the egress switch of its LID, given as columns. The number
    /// of columns represents none; no larger value may occur.
    pub(super) fn are_all(&self, columns: &[u16], ports: &[u8]) -> bool {
        let is_closer = |(&column, &port): (&u16, &u8)| {
            let bits = self.bits.get(usize::from(port / 8) * self.columns + usize::from(column));
            bits.copied().unwrap_or(0) >> (port % 8)
        };
        // Without an early exit, the loop has no branches to predict.
        columns.iter().zip(ports).map(is_closer).fold(1, |all, one| all & one) == 1
    }
}
