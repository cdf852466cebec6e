//! A switch's linear forwarding table (LFT): its intended content, and the blocks to be sent.

use std::sync::Arc;

use ib_mad::types::Guid;
use sa_proto::snapshot::{Entries, Lft};

use sm_routing::NO_ROUTE;

/// Blocks of 64 entries that cover all unicast LIDs.
const BLOCKS_MAX: usize = Lft::BLOCKS_MAX;

/// The intended table of a switch, stored once and shared with snapshots, and a bit for every
/// block that the switch has not acknowledged.
#[derive(Debug)]
pub struct ForwardingTable {
    desired: Arc<Lft>,
    /// Blocks whose content on the switch is unknown or differs from `desired`.
    stale: [u64; BLOCKS_MAX.div_ceil(64)],
}

impl ForwardingTable {
    /// The table of a switch that was just found: empty, with unknown content on the switch.
    pub(super) fn unknown(switch: Guid) -> Self {
        let desired = Arc::new(Lft { switch, ports: Entries::default() });
        Self { desired, stale: [u64::MAX; BLOCKS_MAX.div_ceil(64)] }
    }

    /// Marks the content on the switch as unknown.
    pub fn forget(&mut self) {
        self.stale.fill(u64::MAX);
    }

    /// A block as the switch returned it, when it was read to inherit another SM's table. No wanted
    /// contents are set yet.
    pub fn learn(&mut self, block: u16, entries: &[u8; Lft::BLOCK_LEN]) {
        let start = usize::from(block) * Lft::BLOCK_LEN;
        if usize::from(block) >= BLOCKS_MAX {
            return;
        }
        let ports = &mut Arc::make_mut(&mut self.desired).ports;
        if ports.len() < start + Lft::BLOCK_LEN {
            ports.resize(start + Lft::BLOCK_LEN, NO_ROUTE);
        }
        ports[start..start + Lft::BLOCK_LEN].copy_from_slice(entries);
        self.acknowledge(block);
    }

    /// Sets the intended table. `ports` is in whole blocks.
    pub fn set_desired(&mut self, ports: impl Into<Entries>) {
        let ports = ports.into();
        debug_assert!(ports.len().is_multiple_of(Lft::BLOCK_LEN));
        let differ = ports != self.desired.ports;
        for block in 0..ports.len().min(self.desired.ports.len()) / Lft::BLOCK_LEN {
            let range = block * Lft::BLOCK_LEN..(block + 1) * Lft::BLOCK_LEN;
            if differ && ports[range.clone()] != self.desired.ports[range] {
                self.mark(block);
            }
        }
        // Blocks that were not part of the table have unknown content.
        let first = self.desired.ports.len() / Lft::BLOCK_LEN;
        for (word, start) in self.stale.iter_mut().zip((0..).step_by(64)) {
            *word |= u64::MAX.checked_shl(first.saturating_sub(start) as u32).unwrap_or(0);
        }
        if differ {
            let switch = self.desired.switch;
            self.desired = Arc::new(Lft { switch, ports });
        }
    }

    /// The intended table.
    pub fn desired(&self) -> &Arc<Lft> {
        &self.desired
    }

    /// The 64 entries of a block; `None` beyond the table.
    pub fn block(&self, block: u16) -> Option<&[u8]> {
        let start = usize::from(block) * Lft::BLOCK_LEN;
        self.desired.ports.get(start..start + Lft::BLOCK_LEN)
    }

    /// The table as far as the switch is known to hold it, from its beginning.
    pub fn acknowledged(&self) -> &[u8] {
        let blocks = self.stale_blocks().next().map(usize::from);
        let blocks = blocks.unwrap_or(self.desired.ports.len() / Lft::BLOCK_LEN);
        &self.desired.ports[..blocks * Lft::BLOCK_LEN]
    }

    /// The known table on the switch, to be published: blocks that it has not
    /// acknowledged have no routes.
    pub fn published(&self) -> Arc<Lft> {
        let mut stale = self.stale_blocks().peekable();
        if stale.peek().is_none() {
            return self.desired.clone();
        }
        let mut ports = self.desired.ports.clone();
        for start in stale.map(|block| usize::from(block) * Lft::BLOCK_LEN) {
            ports[start..start + Lft::BLOCK_LEN].fill(NO_ROUTE);
        }
        Arc::new(Lft { switch: self.desired.switch, ports })
    }

    /// Whether a block must be sent.
    pub fn is_stale(&self, block: u16) -> bool {
        let (word, bit) = (usize::from(block) / 64, block % 64);
        self.stale.get(word).is_some_and(|word| word >> bit & 1 == 1)
    }

    /// The blocks to be sent.
    pub fn stale_blocks(&self) -> impl Iterator<Item = u16> + '_ {
        let blocks = (self.desired.ports.len() / Lft::BLOCK_LEN) as u16;
        (0..blocks).filter(|&block| self.is_stale(block))
    }

    /// The switch acknowledged a block as it should be.
    pub fn acknowledge(&mut self, block: u16) {
        if let Some(word) = self.stale.get_mut(usize::from(block) / 64) {
            *word &= !(1 << (block % 64));
        }
    }

    fn mark(&mut self, block: usize) {
        self.stale[block / 64] |= 1 << (block % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stale(table: &ForwardingTable) -> Vec<u16> {
        table.stale_blocks().collect()
    }

    #[test]
    fn only_blocks_that_differ_are_sent_again() {
        let mut table = ForwardingTable::unknown(Guid(1));
        assert!(stale(&table).is_empty(), "nothing is wanted yet");
        table.set_desired(vec![7; 192]);
        assert_eq!(stale(&table), [0, 1, 2]);
        for block in 0..3 {
            table.acknowledge(block);
        }
        table.set_desired(vec![7; 192]);
        assert!(stale(&table).is_empty());
        let mut next = vec![7; 192];
        next[100] = 8;
        table.set_desired(next);
        assert_eq!(stale(&table), [1]);
        table.forget();
        assert_eq!(stale(&table), [0, 1, 2]);
    }

    #[test]
    fn what_is_not_acknowledged_is_published_as_leading_nowhere() {
        let mut table = ForwardingTable::unknown(Guid(1));
        table.set_desired(vec![7; 192]);
        table.acknowledge(0);
        table.acknowledge(2);
        let published = table.published();
        assert_eq!((published.ports[63], published.ports[64]), (7, NO_ROUTE));
        assert_eq!((published.ports[127], published.ports[128]), (NO_ROUTE, 7));
        table.acknowledge(1);
        assert!(Arc::ptr_eq(&table.published(), table.desired()), "no copy is made");
    }

    /// Blocks that another SM programmed are not sent again.
    #[test]
    fn blocks_that_were_read_are_not_sent_unless_they_differ() {
        let mut table = ForwardingTable::unknown(Guid(1));
        table.learn(1, &[7; 64]);
        table.learn(2, &[8; 64]);
        table.learn(u16::MAX, &[9; 64]);
        assert_eq!(table.desired().ports.len(), 192);
        table.set_desired([[7; 64]; 4].concat());
        assert_eq!(stale(&table), [0, 2, 3]);
    }

    /// A block that left the table and came back is probably unchanged, but this is not certain; it
    /// must be sent.
    #[test]
    fn a_block_that_comes_back_is_sent() {
        let mut table = ForwardingTable::unknown(Guid(1));
        table.set_desired(vec![7; 128]);
        table.acknowledge(0);
        table.acknowledge(1);
        table.set_desired(vec![7; 64]);
        assert!(stale(&table).is_empty());
        table.set_desired(vec![7; 128]);
        assert_eq!(stale(&table), [1]);
    }
}
