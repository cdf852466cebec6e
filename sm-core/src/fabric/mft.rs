//! A switch's multicast forwarding table: what it should hold, and what it is known to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{MFT_BLOCK_LEN, MFT_POSITION_PORTS};
use sa_proto::snapshot::{Mft, MftBlock};

use crate::routing::multicast::PortMask;

/// Block and position of 32 port masks.
pub type BlockKey = (u16, u8);

/// Port masks by block and position; what is not there is all zero.
#[derive(Debug, Default)]
pub struct MulticastTable {
    desired: BTreeMap<BlockKey, [u8; 64]>,
    /// Blocks as the switch acknowledged them; what is neither here nor unknown is all zero.
    acknowledged: BTreeMap<BlockKey, [u8; 64]>,
    /// Blocks that may hold anything.
    unknown: BTreeSet<BlockKey>,
    /// Those that are to be sent: they are unknown, or differ from what is wanted.
    stale: BTreeSet<BlockKey>,
}

const EMPTY: [u8; 64] = [0; 64];

impl MulticastTable {
    /// What a packet to `mlid` is to be forwarded by, on a switch of `port_count` ports.
    pub fn set(&mut self, mlid: Lid, mask: PortMask, port_count: u8) {
        let number = usize::from(mlid.0 - Lid::MULTICAST_FIRST.0);
        let (block, entry) = ((number / MFT_BLOCK_LEN) as u16, number % MFT_BLOCK_LEN);
        for position in 0..=port_count / MFT_POSITION_PORTS as u8 {
            let key = (block, position);
            let bits = mask.position(position).to_be_bytes();
            let masks = match self.desired.get_mut(&key) {
                Some(masks) => masks,
                None if bits == [0, 0] => continue,
                None => self.desired.entry(key).or_insert(EMPTY),
            };
            let mask = &mut masks[entry * 2..entry * 2 + 2];
            if *mask == bits {
                continue;
            }
            mask.copy_from_slice(&bits);
            if *masks == EMPTY {
                self.desired.remove(&key);
            }
            self.compare(key);
        }
    }

    /// Notes whether a block is stale.
    fn compare(&mut self, key: BlockKey) {
        let held = self.acknowledged.get(&key).unwrap_or(&EMPTY);
        if self.block(key) == held && !self.unknown.contains(&key) {
            self.stale.remove(&key);
        } else {
            self.stale.insert(key);
        }
    }

    fn compare_all(&mut self) {
        let keys = self.desired.keys().chain(self.acknowledged.keys()).chain(&self.unknown);
        let keys: BTreeSet<BlockKey> = keys.copied().collect();
        self.stale.clear();
        keys.into_iter().for_each(|key| self.compare(key));
    }

    /// What a block should hold.
    pub fn block(&self, key: BlockKey) -> &[u8; 64] {
        self.desired.get(&key).unwrap_or(&EMPTY)
    }

    /// Whether a block is not known to hold what it should.
    pub fn is_stale(&self, key: BlockKey) -> bool {
        self.stale.contains(&key)
    }

    /// The blocks to be sent.
    pub fn stale_blocks(&self) -> Vec<BlockKey> {
        self.stale.iter().copied().collect()
    }

    /// What a block holds is unknown: it is about to be read, or what was sent may not have arrived.
    pub fn doubt(&mut self, key: BlockKey) {
        self.acknowledged.remove(&key);
        self.unknown.insert(key);
        self.compare(key);
    }

    /// Whether any block may hold anything.
    pub fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Whether a block is to be sent for no other reason than that it may hold anything: nothing is
    /// wanted of it.
    pub fn is_cleared_blindly(&self, key: BlockKey) -> bool {
        self.unknown.contains(&key) && !self.desired.contains_key(&key)
    }

    /// The switch holds this block now.
    pub fn acknowledge(&mut self, key: BlockKey, masks: &[u8; 64]) {
        self.unknown.remove(&key);
        if *masks == EMPTY {
            self.acknowledged.remove(&key);
        } else {
            self.acknowledged.insert(key, *masks);
        }
        self.compare(key);
    }

    /// What the switch was asked for, as it answered: a block of the table that another SM gave it.
    /// Nothing else is wanted of it so far.
    pub fn learn(&mut self, key: BlockKey, masks: &[u8; 64]) {
        self.acknowledge(key, masks);
        if *masks != EMPTY {
            self.desired.insert(key, *masks);
            self.compare(key);
        }
    }

    /// What is wanted to be forwarded, by MLID: those that are forwarded anywhere.
    pub fn masks(&self) -> BTreeMap<Lid, PortMask> {
        let mut masks: BTreeMap<Lid, PortMask> = BTreeMap::new();
        for (&(block, position), entries) in &self.desired {
            for (entry, bits) in entries.as_chunks::<2>().0.iter().enumerate() {
                let bits = u16::from_be_bytes(*bits);
                if bits == 0 {
                    continue;
                }
                let number = usize::from(block) * MFT_BLOCK_LEN + entry;
                let mask = masks.entry(Lid(Lid::MULTICAST_FIRST.0 + number as u16)).or_default();
                let first = position * MFT_POSITION_PORTS as u8;
                (0..16).filter(|bit| bits >> bit & 1 == 1).for_each(|bit| mask.insert(first + bit));
            }
        }
        masks
    }

    /// Whether the switch is known to forward anything by a block.
    pub fn holds(&self, block: u16) -> bool {
        self.acknowledged.range((block, 0)..=(block, u8::MAX)).next().is_some()
    }

    /// Nothing is to be forwarded; what the switch holds is still known.
    pub fn clear(&mut self) {
        self.desired.clear();
        self.compare_all();
    }

    /// Nothing is known any more of what the switch holds: all that it should hold is sent again, and
    /// blocks that it held are cleared, unless they are read before.
    pub fn forget(&mut self) {
        let held = std::mem::take(&mut self.acknowledged);
        self.unknown.extend(held.into_keys());
        self.compare_all();
    }

    /// The table as the switch is known to hold it; `None` if it is empty.
    pub fn published(&self, switch: Guid) -> Option<Arc<Mft>> {
        let blocks: Vec<MftBlock> = self
            .acknowledged
            .iter()
            .map(|(&(block, position), &masks)| MftBlock { block, position, masks })
            .collect();
        (!blocks.is_empty()).then(|| Arc::new(Mft { switch, blocks }))
    }

    /// The last MLID that the switch should forward; `None` if there is none.
    pub fn last(&self) -> Option<Lid> {
        let (&(block, _), _) = self.desired.last_key_value()?;
        Some(Lid(Lid::MULTICAST_FIRST.0 + (block + 1) * MFT_BLOCK_LEN as u16 - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(ports: &[u8]) -> PortMask {
        let mut mask = PortMask::default();
        ports.iter().for_each(|&port| mask.insert(port));
        mask
    }

    #[test]
    fn only_blocks_that_differ_are_stale_and_zeros_clear_what_was_there() {
        let mut table = MulticastTable::default();
        table.set(Lid(0xC021), mask(&[3, 20]), 36);
        assert_eq!(table.stale_blocks(), [(1, 0), (1, 1)]);
        for key in table.stale_blocks() {
            let masks = *table.block(key);
            table.acknowledge(key, &masks);
        }
        assert!(table.stale_blocks().is_empty());
        assert_eq!(table.block((1, 0))[2..4], [0, 8]);
        assert_eq!(table.block((1, 1))[2..4], [0, 16]);
        assert_eq!(table.published(Guid(1)).unwrap().blocks.len(), 2);
        table.set(Lid(0xC021), mask(&[3]), 36);
        assert_eq!(table.stale_blocks(), [(1, 1)]);
        table.acknowledge((1, 1), &EMPTY);
        assert!(table.stale_blocks().is_empty());
        table.forget();
        assert_eq!(table.stale_blocks(), [(1, 0)]);
        assert_eq!(table.last(), Some(Lid(0xC03F)));
    }

    /// A block that could not be read counted as empty: what another master had put there stayed.
    #[test]
    fn a_block_that_may_hold_anything_is_sent_though_nothing_is_wanted_of_it() {
        let mut table = MulticastTable::default();
        table.doubt((0, 0));
        table.doubt((3, 1));
        table.learn((0, 0), &EMPTY);
        assert_eq!(table.stale_blocks(), [(3, 1)]);
        assert!(table.is_cleared_blindly((3, 1)) && !table.is_cleared_blindly((0, 0)));
        table.acknowledge((3, 1), &EMPTY);
        assert!(table.stale_blocks().is_empty() && table.published(Guid(1)).is_none());
    }

    /// What a switch held when it was last known may still be there.
    #[test]
    fn what_was_held_before_is_cleared_after_it_was_forgotten() {
        let mut table = MulticastTable::default();
        table.set(Lid(0xC000), mask(&[1]), 36);
        let held = *table.block((0, 0));
        table.acknowledge((0, 0), &held);
        table.set(Lid(0xC000), mask(&[]), 36);
        table.forget();
        assert_eq!(table.stale_blocks(), [(0, 0)]);
        assert_eq!(table.block((0, 0)), &EMPTY);
        assert!(table.published(Guid(1)).is_none(), "nobody knows");
    }

    /// The answer was lost, the switch had taken it, and the old content was wanted again.
    #[test]
    fn a_block_whose_answer_was_lost_is_sent_again_even_if_it_is_what_it_was_before() {
        let mut table = MulticastTable::default();
        table.set(Lid(0xC000), mask(&[1]), 36);
        let before = *table.block((0, 0));
        table.acknowledge((0, 0), &before);
        table.set(Lid(0xC000), mask(&[1, 2]), 36);
        table.doubt((0, 0));
        table.set(Lid(0xC000), mask(&[1]), 36);
        assert_eq!(table.stale_blocks(), [(0, 0)]);
    }
}
