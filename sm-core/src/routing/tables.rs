//! Forwarding tables in the making, LID by LID.

use ib_mad::types::Lid;

use super::NO_ROUTE;

/// LIDs that are gathered before they are entered into the tables: entering each at once would
/// touch a cache line of every table for one byte.
const GATHERED_MAX: usize = 64;

/// The tables of all switches, filled LID by LID.
#[derive(Debug)]
pub(super) struct Tables {
    lfts: Vec<Vec<u8>>,
    /// LIDs gathered so far.
    lids: Vec<Lid>,
    /// By switch and place in `lids`.
    gathered: Vec<u8>,
}

/// The entries of all switches for one LID.
pub(super) struct Column<'a> {
    place: usize,
    gathered: &'a mut [u8],
}

impl Tables {
    /// No switch has a route to any LID.
    pub(super) fn new(switches: usize, len: usize) -> Self {
        Self {
            lfts: vec![vec![NO_ROUTE; len]; switches],
            lids: Vec::with_capacity(GATHERED_MAX),
            gathered: vec![NO_ROUTE; switches * GATHERED_MAX],
        }
    }

    /// Begins a LID, to which no switch has a route yet. Each LID is begun once.
    pub(super) fn column(&mut self, lid: Lid) -> Column<'_> {
        if self.lids.len() == GATHERED_MAX {
            self.enter();
        }
        self.lids.push(lid);
        Column { place: self.lids.len() - 1, gathered: &mut self.gathered }
    }

    /// By switch: its table.
    pub(super) fn finish(mut self) -> Vec<Vec<u8>> {
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

impl Column<'_> {
    /// Sets a switch's egress port.
    #[inline]
    pub(super) fn enter(&mut self, switch: u16, port: u8) {
        self.gathered[usize::from(switch) * GATHERED_MAX + self.place] = port;
    }
}
