//! QoS tables that ports are known to hold, because this SM set them.

use std::collections::BTreeMap;

use ib_mad::types::Guid;
use sa_proto::snapshot::PortTables;

/// Tables of one port.
#[derive(Clone, Debug, Default)]
pub struct HeldQos {
    /// SL-to-VL map by input port, each with the port's number; input port 0 on a channel adapter.
    sl_to_vl: Vec<(u8, [u8; 8])>,
    /// Blocks of the VL arbitration table.
    vl_arb: [Option<[u8; 64]>; 4],
}

impl HeldQos {
    /// How packets from `in_port` are mapped, if that is known.
    pub fn map(&self, in_port: u8) -> Option<[u8; 8]> {
        let at = self.sl_to_vl.binary_search_by_key(&in_port, |&(num, _)| num).ok()?;
        Some(self.sl_to_vl[at].1)
    }

    /// Whether packets from `in_port` are mapped like this.
    pub fn maps(&self, in_port: u8, map: &[u8; 8]) -> bool {
        self.map(in_port).as_ref() == Some(map)
    }

    /// The port maps packets from `in_port` like this now.
    pub fn set_map(&mut self, in_port: u8, map: [u8; 8]) {
        match self.sl_to_vl.binary_search_by_key(&in_port, |&(num, _)| num) {
            Ok(at) => self.sl_to_vl[at].1 = map,
            Err(at) => self.sl_to_vl.insert(at, (in_port, map)),
        }
    }

    /// Whether a block of the VL arbitration table is this.
    pub fn arbitrates(&self, block: usize, entries: &[u8; 64]) -> bool {
        self.vl_arb.get(block).is_some_and(|held| held.as_ref() == Some(entries))
    }

    /// A block of the VL arbitration table is this now.
    pub fn set_block(&mut self, block: usize, entries: [u8; 64]) {
        if let Some(held) = self.vl_arb.get_mut(block) {
            *held = Some(entries);
        }
    }
}

/// The row of a node whose ports hold these tables, by port number.
pub(super) fn row<'a>(
    node: Guid,
    is_switch: bool,
    ports: impl Iterator<Item = (u8, &'a HeldQos)>,
) -> PortTables {
    let mut maps = Interned::default();
    let mut blocks = Interned::default();
    let mut row = PortTables { node, ..PortTables::default() };
    for (num, held) in ports {
        for &(in_port, map) in &held.sl_to_vl {
            let index = maps.index(map);
            if is_switch {
                row.sl_to_vl.push(((in_port, num), index));
            } else {
                // That of the first port applies to all ports without one.
                row.sl_to_vl.push(((num, num), index));
                if row.sl_to_vl.len() == 1 {
                    row.sl_to_vl.push(((0, 0), index));
                }
            }
        }
        for (block, entries) in (1u8..).zip(&held.vl_arb) {
            if let Some(entries) = entries {
                row.vl_arb.push(((num, block), blocks.index(*entries)));
            }
        }
    }
    row.sl_to_vl.sort_unstable();
    row.vl_arb.sort_unstable();
    (row.sl_to_vl_maps, row.vl_arb_blocks) = (maps.values, blocks.values);
    row
}

/// Values, each once, in the order of their first use.
struct Interned<T> {
    values: Vec<T>,
    known: BTreeMap<T, u16>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { values: Vec::new(), known: BTreeMap::new() }
    }
}

impl<T: Copy + Ord> Interned<T> {
    fn index(&mut self, value: T) -> u16 {
        let values = &mut self.values;
        *self.known.entry(value).or_insert_with(|| {
            values.push(value);
            (values.len() - 1) as u16
        })
    }
}
