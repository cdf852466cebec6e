//! Precomputes which ports of a switch lead closer to which egress switches.

use super::super::{HopMatrix, Topology};

/// One bit per port and egress switch, computed from the hops of one switch and its neighbours:
/// small enough to stay in the nearest cache while all entries are checked.
#[derive(Default)]
pub(super) struct Closer {
    /// One more than the number of egress switches: the last column represents none.
    columns: usize,
    /// By group of eight ports and egress switch: a bit for each of these ports.
    bits: Vec<u8>,
    /// By egress switch: hops of the next switch must be below this.
    limits: Vec<u8>,
}

impl Closer {
    /// Prepares the bits for a switch. `hops` has one row per source switch.
    pub(super) fn turn_to(&mut self, topology: &Topology, hops: &HopMatrix, switch: u16) {
        let own = hops.row(switch);
        let egress_switches = topology.switch_count();
        self.columns = egress_switches + 1;
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
            let bits =
                &mut self.bits[usize::from(link.port) / 8 * self.columns..][..egress_switches];
            let next = hops.row(link.peer).iter().zip(&self.limits);
            for (bits, (next, limit)) in bits.iter_mut().zip(next) {
                *bits |= if next < limit { bit } else { 0 };
            }
        }
    }

    /// Whether each port leads closer to the egress switch of its LID. The number of egress
    /// switches represents none; no larger value may occur.
    pub(super) fn are_all(&self, egress_switches: &[u16], ports: &[u8]) -> bool {
        let is_closer = |(&egress_switch, &port): (&u16, &u8)| {
            let bits =
                self.bits.get(usize::from(port / 8) * self.columns + usize::from(egress_switch));
            bits.copied().unwrap_or(0) >> (port % 8)
        };
        // Without an early exit, the loop has no branches to predict.
        egress_switches.iter().zip(ports).map(is_closer).fold(1, |all, one| all & one) == 1
    }
}
