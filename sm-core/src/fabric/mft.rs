//! A switch's multicast forwarding table (MFT): its intended and its known content.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{MFT_BLOCK_LEN, MFT_POSITION_PORTS};
use sa_proto::snapshot::{Mft, MftBlock};

use sm_routing::PortMask;

/// Block and position of 32 PortMasks.
pub type BlockKey = (u16, u8);

/// PortMasks by block and position; missing blocks are all zero.
#[derive(Debug, Default)]
pub struct MulticastTable {
    desired: BTreeMap<BlockKey, [u8; 64]>,
    /// Blocks that the switch acknowledged; blocks neither here nor in `unknown` are all zero.
    acknowledged: BTreeMap<BlockKey, [u8; 64]>,
    /// Blocks with unknown content, with bounds for it.
    unknown: BTreeMap<BlockKey, Bounds>,
    /// Blocks sent and not yet acknowledged.
    sent: BTreeMap<BlockKey, [u8; 64]>,
    /// Blocks to be sent: they are unknown or differ from the intended content.
    stale: BTreeSet<BlockKey>,
}

const EMPTY: [u8; 64] = [0; 64];

/// Bounds for the masks of a block with unknown content.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Ports that are certainly set.
    least: [u8; 64],
    /// Ports that may be set.
    most: [u8; 64],
    /// Number of consecutive writes without acknowledgement.
    losses: u8,
}

const ANYTHING: Bounds = Bounds { least: EMPTY, most: [0xFF; 64], losses: 0 };

/// Consecutive failed writes of a block with unknown content, after which the switch counts as one
/// that does not accept it. The first four take 7 s if no other switch is written to.
const LOSSES_MAX: u8 = 4;

impl MulticastTable {
    /// Sets the ports that forward packets to `mlid`, on a switch of `port_count` ports.
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

    /// Updates whether a block must be sent.
    fn compare(&mut self, key: BlockKey) {
        let held = self.acknowledged.get(&key).unwrap_or(&EMPTY);
        if self.block(key) == held && !self.unknown.contains_key(&key) {
            self.stale.remove(&key);
        } else {
            self.stale.insert(key);
        }
    }

    fn compare_all(&mut self) {
        let keys = self.desired.keys().chain(self.acknowledged.keys()).chain(self.unknown.keys());
        let keys: BTreeSet<BlockKey> = keys.copied().collect();
        self.stale.clear();
        keys.into_iter().for_each(|key| self.compare(key));
    }

    /// The intended content of a block.
    pub fn block(&self, key: BlockKey) -> &[u8; 64] {
        self.desired.get(&key).unwrap_or(&EMPTY)
    }

    /// The blocks to be sent.
    pub fn stale_blocks(&self) -> Vec<BlockKey> {
        self.stale.iter().copied().collect()
    }

    /// Marks a block as unknown, because it is about to be read.
    pub fn doubt(&mut self, key: BlockKey) {
        self.acknowledged.remove(&key);
        self.unknown.insert(key, ANYTHING);
        self.compare(key);
    }

    /// The write of a block was not acknowledged; the switch may or may not have applied it.
    pub fn lose(&mut self, key: BlockKey) {
        let Some(sent) = self.sent.get(&key) else { return };
        let Bounds { least, most, losses } = self.bounds(key);
        let least = masks_of(&least, sent, |least, sent| least & sent);
        let most = masks_of(&most, sent, |most, sent| most | sent);
        self.acknowledged.remove(&key);
        self.unknown.insert(key, Bounds { least, most, losses: losses.saturating_add(1) });
        self.compare(key);
    }

    /// The first unknown block that was not acknowledged in [`LOSSES_MAX`] consecutive attempts.
    pub fn closed_from(&self) -> Option<u16> {
        let is_closed =
            |bounds: &Bounds| bounds.most == ANYTHING.most && bounds.losses >= LOSSES_MAX;
        self.unknown.iter().find(|(_, bounds)| is_closed(bounds)).map(|(&(block, _), _)| block)
    }

    fn bounds(&self, key: BlockKey) -> Bounds {
        let held = *self.acknowledged.get(&key).unwrap_or(&EMPTY);
        self.unknown.get(&key).copied().unwrap_or(Bounds { least: held, most: held, losses: 0 })
    }

    /// Entries of a block, one bit each, that should be forwarded by some port.
    pub fn in_use(&self, block: u16) -> u32 {
        let positions = self.desired.range((block, 0)..=(block, u8::MAX));
        positions.fold(0, |bits, (_, masks)| bits | entries_of(masks))
    }

    /// Entries of a block, one bit each, that may forward packets by a wrong port.
    pub fn strays(&self, key: BlockKey) -> u32 {
        let stray =
            masks_of(&self.bounds(key).most, self.block(key), |most, wanted| most & !wanted);
        entries_of(&stray)
    }

    /// Decides the contents to send of a block next; entries of `held_back` (one bit each) get no
    /// ports that they are not known to have. Returns whether they differ from those of the switch;
    /// if so, [`sent`](Self::sent) returns them.
    pub fn send(&mut self, key: BlockKey, held_back: u32) -> bool {
        let least = self.bounds(key).least;
        let mut masks = *self.block(key);
        for entry in (0..MFT_BLOCK_LEN).filter(|entry| held_back >> entry & 1 == 1) {
            for byte in entry * 2..entry * 2 + 2 {
                masks[byte] &= least[byte];
            }
        }
        // A port that may be set and should be set is not cleared.
        let waits = held_back != 0 && masks == least && self.strays(key) == 0;
        if !waits {
            self.sent.insert(key, masks);
        }
        !waits
    }

    /// The contents of a block being sent; `None` once acknowledged.
    pub fn sent(&self, key: BlockKey) -> Option<&[u8; 64]> {
        self.sent.get(&key)
    }

    /// Allows unacknowledged blocks to be sent again.
    pub fn forget_sent(&mut self) {
        self.sent.clear();
    }

    /// Whether any block has unknown content.
    pub fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Whether a block must be sent only because its contents are unknown: none of its positions
    /// has a wanted entry.
    pub fn is_cleared_blindly(&self, key: BlockKey) -> bool {
        self.unknown.contains_key(&key) && self.in_use(key.0) == 0
    }

    /// The switch acknowledged or reported this block.
    pub fn acknowledge(&mut self, key: BlockKey, masks: &[u8; 64]) {
        self.unknown.remove(&key);
        self.sent.remove(&key);
        if *masks == EMPTY {
            self.acknowledged.remove(&key);
        } else {
            self.acknowledged.insert(key, *masks);
        }
        self.compare(key);
    }

    /// A block as the switch returned it, when it was read to inherit another SM's table. No wanted
    /// contents are set yet.
    pub fn learn(&mut self, key: BlockKey, masks: &[u8; 64]) {
        self.acknowledge(key, masks);
        if *masks != EMPTY {
            self.desired.insert(key, *masks);
            self.compare(key);
        }
    }

    /// The intended ports by MLID, without MLIDs that are not forwarded.
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

    /// Clears the intended content; the known content stays.
    pub fn clear(&mut self) {
        self.desired.clear();
        self.compare_all();
    }

    /// Discards the known content: all intended blocks are sent again, and
    /// blocks that it held are cleared, unless they are read before.
    pub fn forget(&mut self) {
        for (key, most) in std::mem::take(&mut self.acknowledged) {
            self.unknown.insert(key, Bounds { least: EMPTY, most, losses: 0 });
        }
        for bounds in self.unknown.values_mut() {
            (bounds.least, bounds.losses) = (EMPTY, 0);
        }
        self.sent.clear();
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
}

/// Entries of a block, a bit each, that have any port.
fn entries_of(masks: &[u8; 64]) -> u32 {
    let entries = masks.as_chunks::<2>().0.iter().enumerate();
    entries.filter(|(_, mask)| **mask != [0, 0]).fold(0, |bits, (entry, _)| bits | 1 << entry)
}

fn masks_of(a: &[u8; 64], b: &[u8; 64], of: impl Fn(u8, u8) -> u8) -> [u8; 64] {
    std::array::from_fn(|at| of(a[at], b[at]))
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
    }

    /// A block that could not be read was taken for empty: entries of another master stayed in it.
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

    /// Ports above 15 of a tree of which we know ports below 16 could form a loop with them.
    #[test]
    fn a_block_in_use_at_another_position_is_not_left_for_later() {
        let mut table = MulticastTable::default();
        table.doubt((0, 0));
        table.doubt((0, 1));
        assert!(table.is_cleared_blindly((0, 1)));
        table.set(Lid(0xC003), mask(&[1, 2]), 36);
        assert!(!table.is_cleared_blindly((0, 1)) && !table.is_cleared_blindly((0, 0)));
        assert_eq!((table.in_use(0), table.in_use(1)), (1 << 3, 0));
        assert_eq!(table.strays((0, 1)) & table.in_use(0), 1 << 3);
    }

    #[test]
    fn a_switch_is_closed_from_the_first_block_that_may_hold_anything_and_is_not_taken() {
        let mut table = MulticastTable::default();
        table.doubt((2, 0));
        table.doubt((5, 1));
        table.set(Lid(0xC000), mask(&[1]), 36);
        let attempt = |table: &mut MulticastTable| {
            for key in table.stale_blocks() {
                table.send(key, 0);
                table.lose(key);
            }
            table.forget_sent();
        };
        for _ in 1..LOSSES_MAX {
            attempt(&mut table);
        }
        assert_eq!(table.closed_from(), None);
        attempt(&mut table);
        assert_eq!(table.closed_from(), Some(2), "what block 0 may hold is known");
        table.acknowledge((2, 0), &EMPTY);
        assert_eq!(table.closed_from(), Some(5));
        table.forget();
        assert_eq!(table.closed_from(), None, "it was reset, and may be another now");
    }

    /// The last known content of a switch may still be in force.
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
        assert!(table.published(Guid(1)).is_none(), "unknown");
    }

    /// The answer to a write was lost after the switch had applied it, and the earlier content is
    /// wanted again.
    #[test]
    fn a_block_whose_answer_was_lost_is_sent_again_even_if_it_is_what_it_was_before() {
        let mut table = MulticastTable::default();
        table.set(Lid(0xC000), mask(&[1]), 36);
        let before = *table.block((0, 0));
        table.acknowledge((0, 0), &before);
        table.set(Lid(0xC000), mask(&[1, 2]), 36);
        assert!(table.send((0, 0), 0));
        table.lose((0, 0));
        table.set(Lid(0xC000), mask(&[1]), 36);
        assert_eq!(table.stale_blocks(), [(0, 0)]);
        assert_eq!(table.strays((0, 0)), 1, "the branch may be there");
    }

    /// Both trees of an MLID that moves may together be a loop.
    #[test]
    fn an_entry_that_is_held_back_loses_ports_and_gets_none() {
        let mut table = MulticastTable::default();
        table.set(Lid(0xC000), mask(&[1, 2]), 15);
        table.set(Lid(0xC001), mask(&[4]), 15);
        let held = *table.block((0, 0));
        table.acknowledge((0, 0), &held);
        table.set(Lid(0xC000), mask(&[2, 3]), 15);
        table.set(Lid(0xC001), mask(&[4, 5]), 15);
        assert_eq!(table.strays((0, 0)), 1);
        assert!(table.send((0, 0), 1));
        let first = *table.sent((0, 0)).unwrap();
        assert_eq!(first[..4], [0, 1 << 2, 0, 1 << 4 | 1 << 5]);
        // The answer was lost: it is unknown whether port 1 is still set.
        table.lose((0, 0));
        assert!(table.strays((0, 0)) == 1 && table.send((0, 0), 1));
        assert_eq!(*table.sent((0, 0)).unwrap(), first);
        table.acknowledge((0, 0), &first);
        assert_eq!(table.strays((0, 0)), 0);
        // Held back for another switch's sake, there is nothing to do here.
        assert!(!table.send((0, 0), 1));
        assert!(table.send((0, 0), 0));
        assert_eq!(table.sent((0, 0)).unwrap(), table.block((0, 0)));
    }
}
