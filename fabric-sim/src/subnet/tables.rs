//! Tables of a port that are seldom programmed: allocated at the first write, with the values after
//! reset until then.

use ib_mad::types::PKey;
use ib_mad::wire::attribute::{GUIDS_PER_BLOCK, PKEYS_PER_BLOCK};

/// Bytes of a block, the same for all tables.
type Block = [u8; 64];

/// GUIDs per port.
pub(crate) const GUID_CAP: usize = 4 * GUIDS_PER_BLOCK;
/// P_Keys per port.
pub(crate) const PKEY_CAP: usize = 2 * PKEYS_PER_BLOCK;
/// Entries of each of a port's two VL arbitration tables.
pub(crate) const VL_ARB_CAP: u8 = 8;
/// VLCap code of eight data VLs, the same for every port.
pub(crate) const VL_CAP: u8 = 4;

/// SL-to-VL mapping after reset: SL modulo eight.
const SL_TO_VL_RESET: [u8; 8] = [0x01, 0x23, 0x45, 0x67, 0x01, 0x23, 0x45, 0x67];

/// Programmed tables of one port.
#[derive(Default)]
pub(crate) struct PortTables {
    pkeys: Vec<Block>,
    guids: Vec<Block>,
    vl_arbitration: Option<Box<[Block; 2]>>,
    sl_to_vl: SlToVl,
    /// Whether the LED is on.
    pub(crate) led: bool,
    /// LinkSpeedEnabled of MlnxExtPortInfo, if set.
    pub(crate) mlnx_speed_enabled: Option<u8>,
}

/// P_Keys of block `block`.
pub(crate) fn pkeys(tables: Option<&PortTables>, block: usize) -> Block {
    tables.and_then(|tables| tables.pkeys.get(block)).copied().unwrap_or_else(|| {
        let mut reset = [0; 64];
        if block == 0 {
            reset[..2].copy_from_slice(&PKey::DEFAULT_FULL.0.to_be_bytes());
        }
        reset
    })
}

/// GUIDs of block `block`, without entry 0 of block 0.
pub(crate) fn guids(tables: Option<&PortTables>, block: usize) -> Block {
    tables.and_then(|tables| tables.guids.get(block)).copied().unwrap_or([0; 64])
}

/// Arbitration entries of low (0) or high (1) priority.
pub(crate) fn vl_arbitration(tables: Option<&PortTables>, table: usize) -> Block {
    match tables.and_then(|tables| tables.vl_arbitration.as_ref()) {
        Some(blocks) => blocks[table],
        None => vl_arbitration_reset(table),
    }
}

/// VL arbitration after reset: equal weights in the low-priority table, weights of 0 in the
/// high-priority table.
fn vl_arbitration_reset(table: usize) -> Block {
    let mut block = [0; 64];
    for vl in 0..VL_ARB_CAP {
        let entry = usize::from(vl) * 2;
        block[entry] = vl;
        block[entry + 1] = if table == 0 { 4 } else { 0 };
    }
    block
}

/// VLs of packets that entered by `in_port`.
pub(crate) fn sl_to_vl(tables: Option<&PortTables>, in_port: u8) -> [u8; 8] {
    tables.map_or(SL_TO_VL_RESET, |tables| tables.sl_to_vl.get(in_port))
}

impl PortTables {
    pub(crate) fn set_pkeys(&mut self, block: usize, keys: Block) {
        for missing in self.pkeys.len()..=block {
            self.pkeys.push(pkeys(None, missing));
        }
        self.pkeys[block] = keys;
    }

    pub(crate) fn set_guids(&mut self, block: usize, guids: Block) {
        if self.guids.len() <= block {
            self.guids.resize(block + 1, [0; 64]);
        }
        self.guids[block] = guids;
    }

    pub(crate) fn set_vl_arbitration(&mut self, table: usize, block: Block) {
        let reset = || Box::new([vl_arbitration_reset(0), vl_arbitration_reset(1)]);
        let tables = self.vl_arbitration.get_or_insert_with(reset);
        let entries = usize::from(VL_ARB_CAP) * 2;
        tables[table][..entries].copy_from_slice(&block[..entries]);
    }

    /// Sets the VLs of packets that entered by `in_port`; for all `ports` of the node if `None`.
    pub(crate) fn set_sl_to_vl(&mut self, in_port: Option<u8>, ports: u8, vls: [u8; 8]) {
        self.sl_to_vl.set(in_port, ports, vls);
    }
}

/// SL-to-VL mapping of an output port: usually the same for all input ports.
pub(crate) struct SlToVl {
    all: [u8; 8],
    by_in_port: Option<Box<[[u8; 8]]>>,
}

impl Default for SlToVl {
    fn default() -> Self {
        Self { all: SL_TO_VL_RESET, by_in_port: None }
    }
}

impl SlToVl {
    fn get(&self, in_port: u8) -> [u8; 8] {
        let special = self.by_in_port.as_ref().and_then(|vls| vls.get(usize::from(in_port)));
        special.copied().unwrap_or(self.all)
    }

    fn set(&mut self, in_port: Option<u8>, ports: u8, vls: [u8; 8]) {
        let Some(in_port) = in_port else {
            *self = Self { all: vls, by_in_port: None };
            return;
        };
        let all = self.all;
        let places = usize::from(ports) + 1;
        let table = self.by_in_port.get_or_insert_with(|| vec![all; places].into_boxed_slice());
        table[usize::from(in_port)] = vls;
        if table.iter().all(|entry| *entry == vls) {
            *self = Self { all: vls, by_in_port: None };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_ports_that_agree_share_one_mapping() {
        let mut map = SlToVl::default();
        for in_port in 0..=3 {
            assert_eq!(map.by_in_port.is_some(), in_port != 0);
            map.set(Some(in_port), 3, [0; 8]);
            assert_eq!(map.get(in_port), [0; 8]);
        }
        assert!(map.by_in_port.is_none());
        map.set(Some(2), 3, [1; 8]);
        assert_eq!((map.get(1), map.get(2)), ([0; 8], [1; 8]));
        map.set(None, 3, [2; 8]);
        assert_eq!((map.get(1), map.get(2)), ([2; 8], [2; 8]));
    }

    #[test]
    fn only_the_capacity_of_an_arbitration_table_is_kept() {
        let mut tables = PortTables::default();
        tables.set_vl_arbitration(1, [0xFF; 64]);
        let block = vl_arbitration(Some(&tables), 1);
        assert_eq!((&block[..16], &block[16..]), (&[0xFF; 16][..], &[0; 48][..]));
        assert_eq!(vl_arbitration(Some(&tables), 0), vl_arbitration(None, 0));
    }

    #[test]
    fn the_default_partition_is_there_after_a_reset() {
        let mut tables = PortTables::default();
        tables.set_pkeys(1, [7; 64]);
        assert_eq!(pkeys(Some(&tables), 0)[..4], [0xFF, 0xFF, 0, 0]);
        assert_eq!(pkeys(Some(&tables), 1), [7; 64]);
    }
}
