//! Forwarding tables in the making.

use ib_mad::types::Lid;

use super::super::NO_ROUTE;
use super::order::Batch;

/// LIDs that are gathered before they are entered into the tables: entering each batch at once
/// would touch a cache line of every table for a few bytes.
const GATHERED_MAX: usize = 4 * Batch::LIDS_MAX;

/// The tables of all switches, filled batch by batch.
pub(in crate::routing) struct Tables {
    lfts: Vec<Vec<u8>>,
    /// LIDs gathered so far, those of the batch at hand last.
    lids: Vec<Lid>,
    /// Where the batch at hand begins in them.
    first: usize,
    /// By switch and place in `lids`.
    gathered: Vec<u8>,
}

impl Tables {
    pub(in crate::routing) fn new(switches: usize, len: usize) -> Self {
        Self {
            lfts: vec![vec![NO_ROUTE; len]; switches],
            lids: Vec::with_capacity(GATHERED_MAX),
            first: 0,
            gathered: vec![NO_ROUTE; switches * GATHERED_MAX],
        }
    }

    /// Begins a batch, for which no switch has a route yet.
    pub(in crate::routing) fn begin(&mut self, lids: &[Lid]) {
        if self.lids.len() + lids.len() > GATHERED_MAX {
            self.enter();
        }
        self.first = self.lids.len();
        self.lids.extend_from_slice(lids);
    }

    /// A switch's entries for the batch at hand.
    pub(in crate::routing) fn entries(&mut self, switch: usize) -> &mut [u8] {
        &mut self.gathered[switch * GATHERED_MAX..][self.first..self.lids.len()]
    }

    pub(in crate::routing) fn finish(mut self) -> Vec<Vec<u8>> {
        self.enter();
        self.lfts
    }

    fn enter(&mut self) {
        for (lft, gathered) in self.lfts.iter_mut().zip(self.gathered.chunks(GATHERED_MAX)) {
            for (lid, &port) in self.lids.iter().zip(gathered) {
                lft[lid.index()] = port;
            }
        }
        self.lids.clear();
        self.gathered.fill(NO_ROUTE);
    }
}
