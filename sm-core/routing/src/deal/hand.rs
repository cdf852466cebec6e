//! Distributes the LIDs of a batch over the ports of one switch.

use super::candidates::Candidate;
use super::order::Batch;

/// One switch's share of the hosts' LIDs of a batch. Slices per LID are indexed by position in the
/// batch.
pub(super) struct Hand<'a> {
    /// Number of hosts that send to each LID through the switch.
    pub(super) flows: &'a [u32],
    /// Candidate ports, at least one; ascending by port unless the operator specified another
    /// order.
    pub(super) candidates: &'a [Candidate],
    /// By link: whether its routes are not counted. If empty, all are counted.
    pub(super) ignored: &'a [bool],
    /// Scratch space.
    pub(super) ranks: &'a mut Vec<u64>,
    pub(super) idle: &'a mut u8,
    /// Receives the entries of the switch's table.
    pub(super) entries: &'a mut [u8],
    /// Flows through all switches.
    pub(super) inflow: &'a mut [u32],
}

fn is_ignored(ignored: &[bool], candidate: Candidate) -> bool {
    ignored.get(candidate.link as usize).copied().unwrap_or(false)
}

/// Increment of a candidate's rank per LID of the batch that it has. It exceeds the load of any
/// path (at most 2^8 links of at most 2^32 routes), so the load decides only between candidates
/// with equally many LIDs.
const ONE_DEALT: u64 = 1 << 48;

impl Hand<'_> {
    /// Assigns all LIDs to the only candidate, and returns how many counted routes these are.
    pub(super) fn give_all(&mut self, only: Candidate) -> u32 {
        let inflow = &mut self.inflow[usize::from(only.peer) * Batch::LIDS_MAX..];
        self.entries.fill(only.port);
        inflow.iter_mut().zip(self.flows).for_each(|(inflow, &flow)| *inflow += flow);
        if is_ignored(self.ignored, only) { 0 } else { self.flows.iter().sum() }
    }

    /// Assigns all LIDs. `loads` is indexed by link; `ranks` are the loads of the candidates'
    /// paths.
    pub(super) fn run(&mut self, ranks: &[u64], loads: &mut [u32]) {
        self.ranks.clear();
        self.ranks.extend_from_slice(ranks);
        let mut left = 0u64;
        for place in 0..self.flows.len() {
            if self.flows[place] == 0 {
                self.assign_idle(place);
            } else {
                left |= 1 << place;
            }
        }
        if left.count_ones() > 1 && self.ignored.is_empty() {
            self.deal_in_rounds(left, loads);
            return;
        }
        while left != 0 {
            self.assign(left.trailing_zeros() as usize, self.least(), loads);
            left &= left - 1;
        }
    }

    /// Assigns LIDs in rounds in which each candidate gets one, the least loaded first. The result
    /// equals choosing the candidate of least rank for each LID.
    fn deal_in_rounds(&mut self, mut left: u64, loads: &mut [u32]) {
        let count = self.candidates.len();
        let mut order = [0u8; 256];
        let order = &mut order[..count];
        while left != 0 {
            order.iter_mut().zip(0..count).for_each(|(slot, index)| {
                *slot = index as u8;
            });
            let rank = |&index: &u8| self.ranks[usize::from(index)];
            if !order.is_sorted_by_key(rank) {
                order.sort_by_key(rank);
            }
            for &index in order.iter() {
                if left == 0 {
                    break;
                }
                self.assign(left.trailing_zeros() as usize, usize::from(index), loads);
                left &= left - 1;
            }
        }
    }

    /// Returns the first candidate of the least rank.
    fn least(&self) -> usize {
        let ranks = self.ranks.iter().zip(0..);
        ranks.min().map_or(0, |(_, index)| index)
    }

    /// Assigns a LID that no host sends through this switch now. After a link failure elsewhere
    /// hosts may, so these LIDs are spread too.
    fn assign_idle(&mut self, place: usize) {
        let index = usize::from(*self.idle) % self.candidates.len();
        *self.idle = index as u8 + 1;
        self.entries[place] = self.candidates[index].port;
    }

    #[inline]
    fn assign(&mut self, place: usize, index: usize, loads: &mut [u32]) {
        let (candidate, flow) = (self.candidates[index], self.flows[place]);
        if !is_ignored(self.ignored, candidate) {
            self.ranks[index] += ONE_DEALT + u64::from(flow);
            loads[candidate.link as usize] += flow;
        }
        self.entries[place] = candidate.port;
        self.inflow[usize::from(candidate.peer) * Batch::LIDS_MAX + place] += flow;
    }
}
