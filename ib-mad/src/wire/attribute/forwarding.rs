//! Forwarding tables of switches, one block each: linear, random, multicast.

use crate::types::{Lid, PortNum};
use crate::wire::field::layout;

/// LIDs in one block of a linear forwarding table.
pub const LFT_BLOCK_LEN: usize = 64;
/// Entries in one block of a random forwarding table.
pub const RFT_BLOCK_LEN: usize = 16;
/// Multicast LIDs in one block of a multicast forwarding table.
pub const MFT_BLOCK_LEN: usize = 32;
/// Ports in one position of a multicast forwarding table.
pub const MFT_POSITION_PORTS: usize = 16;
/// Entry of a forwarding table that drops the packet.
pub const PORT_NONE: PortNum = PortNum(0xFF);

layout! {
    /// One block of a LinearForwardingTable, 64 bytes: a port for each of 64 LIDs (IBA 14.2.5.10).
    /// The modifier is the block's number: the LID divided by 64.
    pub struct LinearForwardingTable(LinearForwardingTableRepr): "LinearForwardingTable", 64 bytes {
        /// Ports by LID; 255 drops.
        port_block: [u8; 64] [0 .. 512],
    }
}

layout! {
    /// One block of a RandomForwardingTable, 64 bytes: 16 entries of 4 bytes (IBA 14.2.5.11). The
    /// modifier is the block's number.
    ///
    /// ```text
    /// 0 LID (2)   2 Valid:1 LMC:3 reserved:4   3 Port
    /// ```
    pub struct RandomForwardingTable(RandomForwardingTableRepr): "RandomForwardingTable", 64 bytes {
        /// 16 entries; see `entry`.
        entry_block: [u8; 64] [0 .. 512],
    }
}

/// An entry of a random forwarding table: 2^lmc LIDs with the same output port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomForwardingEntry {
    /// The first LID.
    pub lid: Lid,
    /// Whether the entry is valid.
    pub valid: bool,
    /// Number of low LID bits to ignore.
    pub lmc: u8,
    /// Output port.
    pub port: PortNum,
}

impl<T: AsRef<[u8]>> RandomForwardingTable<T> {
    /// Entry `index` of the block, below [`RFT_BLOCK_LEN`], else this panics.
    pub fn entry(&self, index: usize) -> RandomForwardingEntry {
        let (entries, _) = self.as_bytes().as_chunks();
        let [lid_high, lid_low, valid_lmc, port] = entries[index];
        RandomForwardingEntry {
            lid: Lid(u16::from_be_bytes([lid_high, lid_low])),
            valid: valid_lmc & 0x80 != 0,
            lmc: valid_lmc >> 4 & 7,
            port: PortNum(port),
        }
    }
}

impl<T: AsMut<[u8]>> RandomForwardingTable<T> {
    /// Writes entry `index` of the block, below [`RFT_BLOCK_LEN`], else this panics.
    pub fn set_entry(&mut self, index: usize, entry: RandomForwardingEntry) -> &mut Self {
        let [lid_high, lid_low] = entry.lid.0.to_be_bytes();
        let (entries, _) = self.buffer.as_mut()[..64].as_chunks_mut();
        let valid_lmc = u8::from(entry.valid) << 7 | (entry.lmc & 7) << 4;
        entries[index] = [lid_high, lid_low, valid_lmc, entry.port.0];
        self
    }
}

layout! {
    /// One block of a MulticastForwardingTable, 64 bytes: a mask of 16 ports for each of 32
    /// multicast LIDs (IBA 14.2.5.12).
    ///
    /// The modifier selects the block (the MLID less 0xC000, divided by 32) and the position (the
    /// port divided by 16); see [`multicast_forwarding_modifier`].
    pub struct MulticastForwardingTable(MulticastForwardingTableRepr):
        "MulticastForwardingTable", 64 bytes
    {
        /// 32 masks, 2 bytes each; see `port_mask`.
        port_mask_block: [u8; 64] [0 .. 512],
    }
}

/// AttributeModifier of MulticastForwardingTable: position in bits 31-28, block in bits 8-0.
pub const fn multicast_forwarding_modifier(block: u16, position: u8) -> u32 {
    (position as u32) << 28 | (block as u32 & 0x1FF)
}

/// Block and position of an AttributeModifier of MulticastForwardingTable.
pub const fn multicast_forwarding_block(modifier: u32) -> (u16, u8) {
    ((modifier & 0x1FF) as u16, (modifier >> 28) as u8)
}

impl<T: AsRef<[u8]>> MulticastForwardingTable<T> {
    /// Mask of the `index`th multicast LID of the block, below [`MFT_BLOCK_LEN`], else this
    /// panics. Bit n is port 16 × position + n.
    pub fn port_mask(&self, index: usize) -> u16 {
        let (entries, _) = self.as_bytes().as_chunks();
        u16::from_be_bytes(entries[index])
    }
}

impl<T: AsMut<[u8]>> MulticastForwardingTable<T> {
    /// Writes the mask of the `index`th multicast LID of the block, below [`MFT_BLOCK_LEN`],
    /// else this panics.
    pub fn set_port_mask(&mut self, index: usize, mask: u16) -> &mut Self {
        let (entries, _) = self.buffer.as_mut()[..64].as_chunks_mut();
        entries[index] = mask.to_be_bytes();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA 14.2.5.11.
    #[test]
    fn random_entries_pack_validity_before_lmc() {
        let mut bytes = [0; 64];
        let entry =
            RandomForwardingEntry { lid: Lid(0x1234), valid: true, lmc: 5, port: PortNum(9) };
        RandomForwardingTable::of_mut(&mut bytes).set_entry(15, entry);
        assert_eq!(bytes[60..], [0x12, 0x34, 0xD0, 9]);
        assert_eq!(RandomForwardingTable::of(&bytes).entry(15), entry);
    }

    /// IBA 14.2.5.12.
    #[test]
    fn multicast_modifier_keeps_block_and_position_apart() {
        let modifier = multicast_forwarding_modifier(0x1FF, 15);
        assert_eq!(modifier, 0xF000_01FF);
        assert_eq!(multicast_forwarding_block(modifier), (0x1FF, 15));
    }
}
