//! How one switch deals the LIDs of a batch to its ports.

use std::ops::Range;

use super::candidates::Candidate;
use super::order::Batch;

/// A switch's part of a batch. Slices of LIDs are by place in the batch.
pub(super) struct Hand<'a> {
    /// Hosts that send to each LID through the switch.
    pub(super) flows: &'a [u32],
    /// At least one; ascending by port, unless the operator has them in another order.
    pub(super) candidates: &'a [Candidate],
    /// By link: whether its routes are not counted; empty: all are.
    pub(super) ignored: &'a [bool],
    /// Scratch.
    pub(super) ranks: &'a mut Vec<u64>,
    pub(super) idle: &'a mut u8,
    /// What the switch's table is to hold.
    pub(super) entries: &'a mut [u8],
    /// Of all switches.
    pub(super) inflow: &'a mut [u32],
}

fn is_ignored(ignored: &[bool], candidate: Candidate) -> bool {
    ignored.get(candidate.link as usize).copied().unwrap_or(false)
}

/// Candidates are ranked by how many LIDs of the batch they have, then by the load of the way,
/// which is below this: at most 2^8 links of at most 2^32 routes.
const ONE_DEALT: u64 = 1 << 48;

impl Hand<'_> {
    /// Gives all LIDs to the only candidate, and yields how many routes that count these are to the
    /// first `hosts` LIDs and to the others.
    pub(super) fn give_all(&mut self, only: Candidate, hosts: usize) -> (u32, u32) {
        let inflow = &mut self.inflow[usize::from(only.peer) * Batch::LIDS_MAX..];
        self.entries.fill(only.port);
        inflow.iter_mut().zip(self.flows).for_each(|(inflow, &flow)| *inflow += flow);
        if is_ignored(self.ignored, only) {
            return (0, 0);
        }
        (self.flows[..hosts].iter().sum(), self.flows[hosts..].iter().sum())
    }

    /// Deals the LIDs at `places`. Candidates of equal rank get theirs in turn from `start` on;
    /// `loads` are by link, and `ahead` tells that of the way from a candidate's peer.
    pub(super) fn run(
        &mut self,
        places: Range<usize>,
        start: usize,
        loads: &mut [u32],
        ahead: impl Fn(u16) -> u64,
    ) {
        self.ranks.clear();
        self.ranks.extend(
            self.candidates
                .iter()
                .map(|candidate| u64::from(loads[candidate.link as usize]) + ahead(candidate.peer)),
        );
        let mut left = 0u64;
        for place in places {
            if self.flows[place] == 0 {
                self.assign_idle(place);
            } else {
                left |= 1 << place;
            }
        }
        let start = start % self.candidates.len();
        if left.count_ones() > 1 && self.ignored.is_empty() {
            self.deal_in_rounds(left, start, loads);
            return;
        }
        while left != 0 {
            self.assign(left.trailing_zeros() as usize, self.least(start), loads);
            left &= left - 1;
        }
    }

    /// Deals as choosing the least rank for each LID would: in rounds in which everyone gets one,
    /// the least loaded first.
    fn deal_in_rounds(&mut self, mut left: u64, start: usize, loads: &mut [u32]) {
        let count = self.candidates.len();
        let mut order = [0u8; 256];
        let order = &mut order[..count];
        while left != 0 {
            order.iter_mut().zip((start..count).chain(0..start)).for_each(|(slot, index)| {
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

    /// The candidate of the least rank, the first of several from `start` on.
    fn least(&self, start: usize) -> usize {
        let least = self.ranks.iter().copied().fold(u64::MAX, u64::min);
        let (before, from) = self.ranks.split_at(start);
        let place = |ranks: &[u64]| ranks.iter().position(|&rank| rank == least);
        place(from).map_or_else(|| place(before).unwrap_or(0), |place| start + place)
    }

    /// Deals a LID that no host sends through this switch now. Hosts may, once a link elsewhere
    /// fails, so these are spread too.
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
