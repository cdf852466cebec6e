//! Forwarding tables in the making, a few LIDs at a time.
//!
//! LIDs are routed in an order that has nothing to do with their numbers. Tables are kept in the
//! order of routing, so that each byte is written where the last one was, and brought into that of
//! LIDs at the end, table by table.

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::{Entries, NO_ROUTE};

/// How many LIDs are gathered before they are added to the tables, and so the most of a batch:
/// adding each batch at once would touch a page of every table for a few bytes.
pub(super) const BATCH_MAX: usize = 256;

/// The tables of all switches, filled by batches of LIDs, or LID by LID.
#[derive(Debug)]
pub(super) struct Tables {
    /// Length of a table.
    len: usize,
    /// By switch: its entries for LIDs that are not gathered any more, in the order of routing.
    lfts: Vec<Vec<u8>>,
    /// LIDs in the order of routing, those of the batch at hand last.
    lids: Vec<Lid>,
    /// Where the batch at hand begins among those gathered.
    first: usize,
    /// Where it ends, and how many are gathered.
    end: usize,
    /// By switch and place among those gathered.
    gathered: Vec<u8>,
}

impl Tables {
    /// No switch has a route to any LID.
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

    /// Begins a batch of at most [`BATCH_MAX`] LIDs, to which no switch has a route yet. Each LID is
    /// begun once.
    pub(super) fn begin(&mut self, lids: &[Lid]) {
        if self.end + lids.len() > BATCH_MAX {
            self.write();
        }
        self.first = self.end;
        self.end += lids.len();
        self.lids.extend_from_slice(lids);
    }

    /// A switch's entries for the batch at hand.
    #[inline]
    pub(super) fn entries(&mut self, switch: usize) -> &mut [u8] {
        &mut self.gathered[switch * BATCH_MAX..][self.first..self.end]
    }

    /// Sets a switch's egress port for the batch at hand, of one LID.
    #[inline]
    pub(super) fn enter(&mut self, switch: u16, port: u8) {
        self.gathered[usize::from(switch) * BATCH_MAX + self.first] = port;
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
                let gathered = self.gathered[tile * BATCH_MAX + place..].iter_mut();
                let entries = gathered.step_by(BATCH_MAX).zip(&column[tile..end]);
                entries.for_each(|(entry, &port)| *entry = port);
            }
        }
    }

    /// By switch: its table.
    pub(super) fn finish(mut self) -> Vec<Entries> {
        self.write();
        let Self { len, mut lfts, lids, .. } = self;
        // By LID: its place in the order of routing, where `routed` has an entry; behind these there
        // is no route.
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
