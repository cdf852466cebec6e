//! Builds forwarding tables, a few LIDs at a time.
//!
//! LIDs are routed in an order unrelated to their numbers. Tables are kept in the order of routing,
//! so that consecutive bytes are written, and are sorted by LID at the end, table by table.

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::{Entries, NO_ROUTE};

/// How many LIDs are gathered before they are added to the tables, and so the largest batch. Adding
/// each small batch at once would touch a page of every table for a few bytes.
pub(super) const BATCH_MAX: usize = 256;

/// The tables of all switches, filled by batches of LIDs, or LID by LID.
#[derive(Debug)]
pub(super) struct Tables {
    /// Length of a table.
    len: usize,
    /// By switch: its entries for LIDs that have been added, in the order of routing.
    lfts: Vec<Vec<u8>>,
    /// LIDs in the order of routing, those of the current batch last.
    lids: Vec<Lid>,
    /// Index of the current batch's first LID among those gathered.
    first: usize,
    /// End of the current batch, and number of LIDs gathered.
    end: usize,
    /// By switch and index among those gathered.
    gathered: Vec<u8>,
}

impl Tables {
    /// Creates tables without any route.
    pub(super) fn new(switches: usize, len: usize) -> Self {
        Self {
            len,
            lfts: (0..switches).map(|_| Vec::with_capacity(len)).collect(),
            lids: Vec::with_capacity(len),
            first: 0,
            end: 0,
            gathered: vec![NO_ROUTE; switches * BATCH_MAX],
        }
    }

    /// Starts a batch of at most [`BATCH_MAX`] LIDs, to which no switch has a route yet. Each LID
    /// is in one batch only.
    pub(super) fn begin(&mut self, lids: &[Lid]) {
        if self.end + lids.len() > BATCH_MAX {
            self.write();
        }
        self.first = self.end;
        self.end += lids.len();
        self.lids.extend_from_slice(lids);
    }

    /// A switch's entries for the current batch.
    #[inline]
    pub(super) fn entries(&mut self, switch: usize) -> &mut [u8] {
        &mut self.gathered[switch * BATCH_MAX..][self.first..self.end]
    }

    /// Sets a switch's egress port for the current batch of one LID.
    #[inline]
    pub(super) fn enter(&mut self, switch: u16, port: u8) {
        self.gathered[usize::from(switch) * BATCH_MAX + self.first] = port;
    }

    /// Sets the ports of all switches for the first LIDs of the current batch: one column per LID,
    /// indexed by switch.
    pub(super) fn enter_columns(&mut self, columns: &[u8]) {
        /// Switches whose entries stay cached while all columns are read.
        const TILE: usize = 64;
        let switches = self.lfts.len();
        for tile in (0..switches).step_by(TILE) {
            let end = switches.min(tile + TILE);
            for (column, place) in columns.chunks_exact(switches).zip(self.first..) {
                let gathered = self.gathered[tile * BATCH_MAX + place..].iter_mut();
                let entries = gathered.step_by(BATCH_MAX).zip(&column[tile..end]);
                entries.for_each(|(entry, &port)| *entry = port);
            }
        }
    }

    /// Returns the table of each switch.
    pub(super) fn finish(mut self) -> Vec<Entries> {
        self.write();
        let Self { len, mut lfts, lids, .. } = self;
        // By LID: its index in the order of routing, where `routed` has an entry. LIDs without a
        // route have the index after the last.
        let mut places = vec![lids.len() as u16; len];
        for (lid, place) in lids.iter().zip(0u16..) {
            places[lid.index()] = place;
        }
        let routed = || Box::new([NO_ROUTE; 1 << 16]);
        lfts.par_iter_mut().for_each_init(routed, |routed, lft| {
            routed[..lft.len()].copy_from_slice(lft);
            lft.clear();
            lft.extend(places.iter().map(|&place| routed[usize::from(place)]));
        });
        lfts.into_iter().map(Entries::from).collect()
    }

    fn write(&mut self) {
        for (lft, gathered) in self.lfts.iter_mut().zip(self.gathered.chunks(BATCH_MAX)) {
            lft.extend_from_slice(&gathered[..self.end]);
        }
        self.gathered.fill(NO_ROUTE);
        (self.first, self.end) = (0, 0);
    }
}
