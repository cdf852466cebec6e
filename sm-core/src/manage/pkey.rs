//! Partitions. So far there is the default partition, of which every end port is a full member,
//! its P_Key at index 0.

use ib_mad::types::PKey;
use ib_mad::wire::attribute::PKEYS_PER_BLOCK;

/// What block `block` of an end port's P_Key table should hold.
pub fn desired_block(block: u16) -> [PKey; PKEYS_PER_BLOCK] {
    let mut keys = [PKey::default(); PKEYS_PER_BLOCK];
    if block == 0 {
        keys[0] = PKey::DEFAULT_FULL;
    }
    keys
}

/// Whether a block of `table`, as the port has it, is as it should be.
pub fn block_is_right(table: &[PKey], block: u16) -> bool {
    let start = usize::from(block) * PKEYS_PER_BLOCK;
    desired_block(block)
        .iter()
        .enumerate()
        .all(|(i, key)| table.get(start + i).copied().unwrap_or_default() == *key)
}

/// Blocks of a table of `capacity` entries.
pub fn blocks(capacity: u16) -> u16 {
    capacity.div_ceil(PKEYS_PER_BLOCK as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_with_another_key_first_is_wrong() {
        assert!(block_is_right(&[PKey::DEFAULT_FULL], 0));
        assert!(block_is_right(&[PKey::DEFAULT_FULL], 1));
        assert!(!block_is_right(&[PKey(0x8001), PKey::DEFAULT_FULL], 0));
        assert!(!block_is_right(&[PKey::DEFAULT_FULL, PKey(0x8001)], 0));
        assert!(!block_is_right(&[], 0));
    }
}
