//! GUIDs like those of real fabrics: several vendors' prefixes, serial numbers in batches.

use std::collections::HashSet;

use ib_mad::types::Guid;

use super::rng::Rng;

/// The first four bytes of adapters' and switches' GUIDs: an OUI, and 0x03 of the 0x0300 that
/// expands a 48-bit address to 64 bits.
const PREFIXES: [u32; 6] =
    [0x0c42_a103, 0xb859_9f03, 0x9803_9b03, 0x506b_4b03, 0x248a_0703, 0xec0d_9a03];
/// Serial numbers of one batch lie within an aligned range of this size.
const PIECE: u32 = 0x2000;
const PIECES: usize = (1 << 24) / PIECE as usize;

/// Allocates GUIDs without repetition: batches of 8 to 97 consecutive ones, each batch at a random
/// position under a random prefix.
pub(super) struct Guids {
    taken: HashSet<(usize, usize)>,
    step: u64,
    next: u64,
    left: usize,
}

impl Guids {
    /// Allocates GUIDs at a distance of `step` (at most 0x40), with room for port GUIDs in between.
    pub(super) fn new(step: u64) -> Self {
        Self { taken: HashSet::new(), step, next: 0, left: 0 }
    }

    /// An allocator for another kind of device, which uses separate batches.
    pub(super) fn with_step(self, step: u64) -> Self {
        Self { step, left: 0, ..self }
    }

    pub(super) fn next(&mut self, rng: &mut Rng) -> Guid {
        if self.left == 0 {
            self.begin_batch(rng);
        }
        let guid = Guid(self.next);
        self.next += self.step;
        self.left -= 1;
        guid
    }

    fn begin_batch(&mut self, rng: &mut Rng) {
        // At most 49,151 nodes in batches of 8 or more: half of the 12,288 ranges always remain
        // free.
        let piece = loop {
            let piece = (rng.below(PREFIXES.len()), rng.below(PIECES));
            if self.taken.insert(piece) {
                break piece;
            }
        };
        self.left = 8 + rng.below(90);
        let room = PIECE as usize - self.left * self.step as usize;
        let offset = rng.below(room) as u64 / self.step * self.step;
        let prefix = u64::from(PREFIXES[piece.0]) << 32;
        self.next = prefix | (piece.1 as u64 * u64::from(PIECE) + offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_and_those_of_their_ports_never_repeat() {
        let mut rng = Rng::new(3);
        let mut guids = Guids::new(0x10);
        let mut all: Vec<u64> = (0..40_000).map(|_| guids.next(&mut rng).0 / 0x10).collect();
        let mut guids = guids.with_step(0x40);
        all.extend((0..4_000).map(|_| guids.next(&mut rng).0 / 0x10));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 44_000);
    }
}
