//! Deduplicates blocks of forwarding tables within a transfer.
//!
//! Switches of one tier often have equal blocks, and every table has empty ones. Sender and
//! receiver keep the same ring of the blocks sent last; a block in the ring is sent as its position
//! there.

use std::collections::HashMap;

use ib_mad::types::Lid;
use xxhash_rust::xxh3::xxh3_64;

use super::encoding::{Canonical, Malformed, Reader};

/// Entries of a block of a linear forwarding table (IBA 14.2.5.10), one byte each.
pub(super) const BLOCK_LEN: usize = 64;
/// Limit of blocks of a table by LID: all unicast LIDs.
pub(super) const BLOCKS_MAX: usize = (Lid::UNICAST_LAST.0 as usize + 1) / BLOCK_LEN;

/// One block.
pub(super) type Block = [u8; BLOCK_LEN];

/// Blocks in the ring: 4 MiB at either end.
const RING_LEN: usize = u16::MAX as usize;
/// Marks a block that is not in the ring, and is added to it.
const LITERAL: u16 = u16::MAX;

/// The sending end.
#[derive(Debug, Default)]
pub struct BlockWriter {
    ring: Ring,
    places: HashMap<u64, u16>,
}

impl BlockWriter {
    /// Appends `block`, or its position if it is in the ring.
    pub(super) fn put(&mut self, block: &Block, out: &mut Vec<u8>) {
        let hash = xxh3_64(block);
        // The position may have been overwritten since, or the hashes may collide.
        match self.places.get(&hash) {
            Some(&place) if self.ring.blocks[usize::from(place)] == *block => place.put(out),
            _ => {
                if let Some(leaving) = self.ring.leaving() {
                    let leaving = xxh3_64(leaving);
                    if self.places.get(&leaving) == Some(&self.ring.next) {
                        self.places.remove(&leaving);
                    }
                }
                self.places.insert(hash, self.ring.next);
                self.ring.push(*block);
                LITERAL.put(out);
                out.extend_from_slice(block);
            }
        }
    }
}

/// The receiving end.
#[derive(Debug, Default)]
pub struct BlockReader {
    ring: Ring,
}

impl BlockReader {
    /// Reads what [`BlockWriter::put`] wrote.
    pub(super) fn take(&mut self, input: &mut Reader<'_>) -> Result<Block, Malformed> {
        match u16::take(input)? {
            LITERAL => {
                let block = input.array()?;
                self.ring.push(block);
                Ok(block)
            }
            place => {
                let block = self.ring.blocks.get(usize::from(place));
                block.copied().ok_or(Malformed("a block that was not sent before"))
            }
        }
    }
}

#[derive(Debug, Default)]
struct Ring {
    blocks: Vec<Block>,
    /// Position of the next block.
    next: u16,
}

impl Ring {
    /// The block that the next one will overwrite.
    fn leaving(&self) -> Option<&Block> {
        self.blocks.get(usize::from(self.next))
    }

    fn push(&mut self, block: Block) {
        match self.blocks.get_mut(usize::from(self.next)) {
            Some(place) => *place = block,
            None => self.blocks.push(block),
        }
        self.next = if usize::from(self.next) == RING_LEN - 1 { 0 } else { self.next + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(blocks: &[Block]) -> usize {
        let (mut writer, mut out) = (BlockWriter::default(), Vec::new());
        blocks.iter().for_each(|block| writer.put(block, &mut out));
        let (mut reader, mut input) = (BlockReader::default(), Reader::new(&out));
        for block in blocks {
            assert_eq!(reader.take(&mut input), Ok(*block));
        }
        assert_eq!(input.remaining(), 0);
        assert!(writer.places.len() <= RING_LEN);
        out.len()
    }

    fn block(n: u32) -> Block {
        let mut block = [0; 64];
        block[..4].copy_from_slice(&n.to_be_bytes());
        block
    }

    #[test]
    fn a_repeated_block_costs_two_bytes() {
        assert_eq!(transfer(&[block(1), block(2), block(1), block(2)]), 2 * 66 + 2 * 2);
    }

    #[test]
    fn both_ends_forget_the_same_blocks() {
        let many: Vec<_> = (0..RING_LEN as u32 + 10).chain(0..20).map(block).collect();
        assert_eq!(transfer(&many), many.len() * 66, "the first ten left, and pushed ten more out");
        let within: Vec<_> = (0..100).chain(0..100).map(block).collect();
        assert_eq!(transfer(&within), 100 * 66 + 100 * 2);
    }

    #[test]
    fn a_place_never_filled_is_refused() {
        assert!(BlockReader::default().take(&mut Reader::new(&[0, 0])).is_err());
    }
}
