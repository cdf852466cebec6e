//! Forwarding tables in the making, a few LIDs at a time.

use ib_mad::types::Lid;

use super::NO_ROUTE;

/// LIDs that are gathered before they are entered into the tables: entering each batch at once
/// would touch a cache line of every table for a few bytes.
const GATHERED_MAX: usize = 256;

/// The tables of all switches, filled by batches of LIDs, or LID by LID.
#[derive(Debug)]
pub(super) struct Tables {
    lfts: Vec<Vec<u8>>,
    /// LIDs gathered so far, those of the batch at hand last.
    lids: Vec<Lid>,
    /// Where the batch at hand begins in them.
    first: usize,
    /// By switch and place in `lids`.
    gathered: Vec<u8>,
}

impl Tables {
    /// No switch has a route to any LID.
    pub(super) fn new(switches: usize, len: usize) -> Self {
        Self {
            lfts: vec![vec![NO_ROUTE; len]; switches],
            lids: Vec::with_capacity(GATHERED_MAX),
            first: 0,
            gathered: vec![NO_ROUTE; switches * GATHERED_MAX],
        }
    }

    /// Begins a batch of at most 256 LIDs, to which no switch has a route yet. Each LID is begun
    /// once.
    pub(super) fn begin(&mut self, lids: &[Lid]) {
        if self.lids.len() + lids.len() > GATHERED_MAX {
            self.write();
        }
        self.first = self.lids.len();
        self.lids.extend_from_slice(lids);
    }

    /// A switch's entries for the batch at hand.
    #[inline]
    pub(super) fn entries(&mut self, switch: usize) -> &mut [u8] {
        &mut self.gathered[switch * GATHERED_MAX..][self.first..self.lids.len()]
    }

    /// Sets a switch's egress port for the batch at hand, of one LID.
    #[inline]
    pub(super) fn enter(&mut self, switch: u16, port: u8) {
        self.gathered[usize::from(switch) * GATHERED_MAX + self.first] = port;
    }

    /// Sets the ports of all switches for the first LIDs of the batch at hand: a column a LID, by
    /// switch.
    pub(super) fn enter_columns(&mut self, columns: &[u8]) {
        /// Switches whose entries stay cached while all columns are read.
        const TILE: usize = 64;
        let switches = self.lfts.len();
        for tile in (0..switches).step_by(TILE) {
            let end = switches.min(tile + TILE);
            for (column, place) in columns.chunks_exact(switches).zip(self.first..) {
                let gathered = self.gathered[tile * GATHERED_MAX + place..].iter_mut();
                let entries = gathered.step_by(GATHERED_MAX).zip(&column[tile..end]);
                entries.for_each(|(entry, &port)| *entry = port);
            }
        }
    }

    /// By switch: its table.
    pub(super) fn finish(mut self) -> Vec<Vec<u8>> {
        self.write();
        self.lfts
    }

    fn write(&mut self) {
        for (lft, gathered) in self.lfts.iter_mut().zip(self.gathered.chunks(GATHERED_MAX)) {
            for (lid, &port) in self.lids.iter().zip(gathered) {
                lft[lid.index()] = port;
            }
        }
        self.lids.clear();
        self.gathered.fill(NO_ROUTE);
    }
}
