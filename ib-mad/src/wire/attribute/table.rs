//! Small tables of a port, one block each: GUIDInfo, P_KeyTable, SLtoVLMappingTable,
//! VLArbitrationTable.
//!
//! Accessors take an index within the block, and panic if it is out of range.

use crate::types::{Guid, PKey, Sl, Vl};
use crate::wire::field::layout;

/// GUIDs in one block of GUIDInfo.
pub const GUIDS_PER_BLOCK: usize = 8;
/// P_Keys in one block of a P_KeyTable.
pub const PKEYS_PER_BLOCK: usize = 32;
/// Entries in one block of a VLArbitrationTable.
pub const VL_ARB_PER_BLOCK: usize = 32;

layout! {
    /// One block of GUIDInfo, 64 bytes: 8 GUIDs (IBA 14.2.5.5). The modifier is the block's number;
    /// entry 0 of block 0 is the port GUID and cannot be set.
    pub struct GuidInfo(GuidInfoRepr): "GUIDInfo", 64 bytes {
        /// 8 GUIDs, 8 bytes each; see `guid`.
        guid_block: [u8; 64] [0 .. 512],
    }
}

impl<T: AsRef<[u8]>> GuidInfo<T> {
    /// Entry `index` of the block, below [`GUIDS_PER_BLOCK`].
    pub fn guid(&self, index: usize) -> Guid {
        let (entries, _) = self.as_bytes().as_chunks();
        Guid(u64::from_be_bytes(entries[index]))
    }
}

impl<T: AsMut<[u8]>> GuidInfo<T> {
    /// Writes entry `index` of the block, below [`GUIDS_PER_BLOCK`].
    pub fn set_guid(&mut self, index: usize, guid: Guid) -> &mut Self {
        let (entries, _) = self.buffer.as_mut()[..64].as_chunks_mut();
        entries[index] = guid.0.to_be_bytes();
        self
    }
}

layout! {
    /// One block of a P_KeyTable, 64 bytes: 32 P_Keys (IBA 14.2.5.7).
    ///
    /// The modifier has the block's number in its low 16 bits and, on a switch, the port in its
    /// high 16 bits; see [`pkey_table_modifier`].
    pub struct PKeyTable(PKeyTableRepr): "P_KeyTable", 64 bytes {
        /// 32 P_Keys, 2 bytes each; see `pkey`.
        pkey_block: [u8; 64] [0 .. 512],
    }
}

/// AttributeModifier of P_KeyTable: `port` is 0 for channel adapters.
pub const fn pkey_table_modifier(port: u8, block: u16) -> u32 {
    (port as u32) << 16 | block as u32
}

impl<T: AsRef<[u8]>> PKeyTable<T> {
    /// Entry `index` of the block, below [`PKEYS_PER_BLOCK`].
    pub fn pkey(&self, index: usize) -> PKey {
        let (entries, _) = self.as_bytes().as_chunks();
        PKey(u16::from_be_bytes(entries[index]))
    }

    /// All entries, unused ones too.
    pub fn pkeys(&self) -> impl Iterator<Item = PKey> {
        let (entries, _) = self.as_bytes().as_chunks();
        entries.iter().map(|&entry| PKey(u16::from_be_bytes(entry)))
    }
}

impl<T: AsMut<[u8]>> PKeyTable<T> {
    /// Writes entry `index` of the block, below [`PKEYS_PER_BLOCK`].
    pub fn set_pkey(&mut self, index: usize, pkey: PKey) -> &mut Self {
        let (entries, _) = self.buffer.as_mut()[..64].as_chunks_mut();
        entries[index] = pkey.0.to_be_bytes();
        self
    }
}

layout! {
    /// SLtoVLMappingTable, 8 bytes: a VL for each SL (IBA 14.2.5.8).
    ///
    /// On a switch the modifier selects the ports: input port in bits 15-8, output port in bits
    /// 7-0; see [`sl_to_vl_modifier`]. On a channel adapter it is 0.
    pub struct SlToVlMappingTable(SlToVlMappingTableRepr): "SLtoVLMappingTable", 8 bytes {
        /// VL of SL 0; the others follow.
        sl0: Vl [0 .. 4],
        /// VL of SL 1.
        sl1: Vl [4 .. 8],
        /// VL of SL 2.
        sl2: Vl [8 .. 12],
        /// VL of SL 3.
        sl3: Vl [12 .. 16],
        /// VL of SL 4.
        sl4: Vl [16 .. 20],
        /// VL of SL 5.
        sl5: Vl [20 .. 24],
        /// VL of SL 6.
        sl6: Vl [24 .. 28],
        /// VL of SL 7.
        sl7: Vl [28 .. 32],
        /// VL of SL 8.
        sl8: Vl [32 .. 36],
        /// VL of SL 9.
        sl9: Vl [36 .. 40],
        /// VL of SL 10.
        sl10: Vl [40 .. 44],
        /// VL of SL 11.
        sl11: Vl [44 .. 48],
        /// VL of SL 12.
        sl12: Vl [48 .. 52],
        /// VL of SL 13.
        sl13: Vl [52 .. 56],
        /// VL of SL 14.
        sl14: Vl [56 .. 60],
        /// VL of SL 15.
        sl15: Vl [60 .. 64],
    }
}

/// AttributeModifier of a switch's SLtoVLMappingTable for packets from `in_port` to `out_port`.
pub const fn sl_to_vl_modifier(in_port: u8, out_port: u8) -> u32 {
    (in_port as u32) << 8 | out_port as u32
}

impl<T: AsRef<[u8]>> SlToVlMappingTable<T> {
    /// The VL for packets of `sl`; 15 drops them.
    pub fn vl(&self, sl: Sl) -> Vl {
        let pair = self.as_bytes()[usize::from(sl.get() / 2)];
        Vl::from_low_bits(u16::from(if sl.get().is_multiple_of(2) { pair >> 4 } else { pair }))
    }
}

impl<T: AsMut<[u8]>> SlToVlMappingTable<T> {
    /// Sets the VL for packets of `sl`.
    pub fn set_vl(&mut self, sl: Sl, vl: Vl) -> &mut Self {
        let pair = &mut self.buffer.as_mut()[usize::from(sl.get() / 2)];
        *pair = match sl.get().is_multiple_of(2) {
            true => *pair & 0x0F | vl.get() << 4,
            false => *pair & 0xF0 | vl.get(),
        };
        self
    }
}

layout! {
    /// One block of a VLArbitrationTable, 64 bytes: 32 pairs of VL and weight (IBA 14.2.5.9).
    ///
    /// The modifier has the port in its low 16 bits (0 for a channel adapter's own) and the kind of
    /// block in its high 16 bits; see [`VlArbBlock`] and [`vl_arbitration_modifier`].
    pub struct VlArbitrationTable(VlArbitrationTableRepr): "VLArbitrationTable", 64 bytes {
        /// 32 pairs of a reserved nibble, a VL and a weight byte; see `entry`.
        vl_weight_block: [u8; 64] [0 .. 512],
    }
}

/// Block of a VLArbitrationTable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VlArbBlock {
    /// Low priority, entries 0 to 31.
    LowPriorityFirst = 1,
    /// Low priority, entries 32 to 63.
    LowPrioritySecond = 2,
    /// High priority, entries 0 to 31.
    HighPriorityFirst = 3,
    /// High priority, entries 32 to 63.
    HighPrioritySecond = 4,
}

/// AttributeModifier of VLArbitrationTable.
pub const fn vl_arbitration_modifier(port: u8, block: VlArbBlock) -> u32 {
    (block as u32) << 16 | port as u32
}

/// An arbitration entry: up to `weight` × 64 bytes of `vl` are sent in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlArbEntry {
    /// The virtual lane; 15 is not allowed.
    pub vl: Vl,
    /// Units of 64 bytes; 0 skips the entry.
    pub weight: u8,
}

impl<T: AsRef<[u8]>> VlArbitrationTable<T> {
    /// Entry `index` of the block, below [`VL_ARB_PER_BLOCK`].
    pub fn entry(&self, index: usize) -> VlArbEntry {
        let (entries, _) = self.as_bytes().as_chunks();
        let [vl, weight] = entries[index];
        VlArbEntry { vl: Vl::from_low_bits(u16::from(vl)), weight }
    }
}

impl<T: AsMut<[u8]>> VlArbitrationTable<T> {
    /// Writes entry `index` of the block, below [`VL_ARB_PER_BLOCK`].
    pub fn set_entry(&mut self, index: usize, entry: VlArbEntry) -> &mut Self {
        let (entries, _) = self.buffer.as_mut()[..64].as_chunks_mut();
        entries[index] = [entry.vl.get(), entry.weight];
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA 14.2.5.8.
    #[test]
    fn sl_to_vl_packs_even_service_levels_first() {
        let mut bytes = [0; 8];
        let mut table = SlToVlMappingTable::of_mut(&mut bytes);
        for sl in 0..16 {
            table.set_vl(Sl::from_low_bits(sl), Vl::from_low_bits(15 - sl));
        }
        assert_eq!(bytes, [0xFE, 0xDC, 0xBA, 0x98, 0x76, 0x54, 0x32, 0x10]);
        let table = SlToVlMappingTable::new(bytes).unwrap();
        assert_eq!(table.vl(Sl::from_low_bits(4)), table.sl4());
        assert_eq!(table.vl(Sl::from_low_bits(11)).get(), 4);
    }

    /// IBA 14.2.5.5, 14.2.5.7, 14.2.5.9.
    #[test]
    fn block_entries_lie_in_order() {
        let mut bytes = [0; 64];
        PKeyTable::of_mut(&mut bytes).set_pkey(31, PKey(0x8001));
        assert_eq!(bytes[62..], [0x80, 0x01]);
        let entry = VlArbEntry { vl: Vl::from_low_bits(3), weight: 64 };
        VlArbitrationTable::of_mut(&mut bytes).set_entry(1, entry);
        assert_eq!(bytes[2..4], [3, 64]);
        assert_eq!(VlArbitrationTable::of(&bytes).entry(1), entry);
        GuidInfo::of_mut(&mut bytes).set_guid(7, Guid(0x0102));
        assert_eq!(bytes[56..], [0, 0, 0, 0, 0, 0, 1, 2]);
    }

    /// IBA 14.2.5.7, 14.2.5.8, 14.2.5.9.
    #[test]
    fn modifiers_name_port_and_block() {
        assert_eq!(pkey_table_modifier(5, 2), 0x0005_0002);
        assert_eq!(sl_to_vl_modifier(1, 36), 0x0124);
        assert_eq!(vl_arbitration_modifier(7, VlArbBlock::HighPriorityFirst), 0x0003_0007);
    }
}
