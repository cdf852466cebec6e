//! Tables that OpenSM had programmed into the devices, from the unfiltered dumps of a golden file.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::{Lft, Mft, MftBlock, PortTables, SubnetManager};

use super::Golden;

/// Tables by the LID of their device; blocks in the order of their numbers.
pub(super) struct Devices {
    pub(super) switch_infos: BTreeMap<u16, [u8; 20]>,
    lfts: BTreeMap<u16, BTreeMap<u16, [u8; 64]>>,
    mfts: BTreeMap<u16, BTreeMap<(u16, u8), [u8; 64]>>,
    sl_to_vl: BTreeMap<u16, BTreeMap<(u8, u8), [u8; 8]>>,
    vl_arb: BTreeMap<u16, BTreeMap<(u8, u8), [u8; 64]>>,
    pub(super) subnet_managers: Vec<Arc<SubnetManager>>,
}

impl Devices {
    pub(super) fn read(golden: &Golden) -> Self {
        let mut devices = Self {
            switch_infos: BTreeMap::new(),
            lfts: BTreeMap::new(),
            mfts: BTreeMap::new(),
            sl_to_vl: BTreeMap::new(),
            vl_arb: BTreeMap::new(),
            subnet_managers: Vec::new(),
        };
        let lid = |record: &[u8]| u16::from_be_bytes([record[0], record[1]]);
        let word = |record: &[u8]| u16::from_be_bytes([record[2], record[3]]);
        for record in golden.dump("switchtables/SwitchInfoRecord/all") {
            devices.switch_infos.insert(lid(&record), record[4..24].try_into().unwrap());
        }
        for record in golden.dump("switchtables/LinearForwardingTableRecord/all") {
            let blocks = devices.lfts.entry(lid(&record)).or_default();
            blocks.insert(word(&record), record[8..72].try_into().unwrap());
        }
        for record in golden.dump("switchtables/MulticastForwardingTableRecord/all") {
            let key = (word(&record) & 0x1FF, (word(&record) >> 12) as u8);
            let blocks = devices.mfts.entry(lid(&record)).or_default();
            blocks.insert(key, record[8..72].try_into().unwrap());
        }
        for record in golden.dump("porttables/SLtoVLMappingTableRecord/all") {
            let tables = devices.sl_to_vl.entry(lid(&record)).or_default();
            tables.insert((record[2], record[3]), record[8..16].try_into().unwrap());
        }
        for record in golden.dump("porttables/VLArbitrationTableRecord/all") {
            let tables = devices.vl_arb.entry(lid(&record)).or_default();
            tables.insert((record[2], record[3]), record[8..72].try_into().unwrap());
        }
        for record in golden.dump("sminfo/all/table") {
            devices.subnet_managers.push(Arc::new(SubnetManager {
                port_guid: Guid(u64::from_be_bytes(record[4..12].try_into().unwrap())),
                lid: Lid(lid(&record)),
                info: record[4..25].try_into().unwrap(),
            }));
        }
        devices
    }

    pub(super) fn lfts(&self, node_of: impl Fn(u16) -> Guid) -> Vec<Lft> {
        let mut lfts: Vec<Lft> = self
            .lfts
            .iter()
            .map(|(&lid, blocks)| Lft {
                switch: node_of(lid),
                ports: blocks.values().flatten().copied().collect(),
            })
            .collect();
        lfts.sort_by_key(|lft| lft.switch);
        lfts
    }

    pub(super) fn mfts(&self, node_of: impl Fn(u16) -> Guid) -> Vec<Mft> {
        let block = |(&(block, position), &masks): (&(u16, u8), &[u8; 64])| MftBlock {
            block,
            position,
            masks,
        };
        let mut mfts: Vec<Mft> = self
            .mfts
            .iter()
            .map(|(&lid, blocks)| Mft {
                switch: node_of(lid),
                blocks: blocks.iter().map(block).collect(),
            })
            .collect();
        mfts.sort_by_key(|mft| mft.switch);
        mfts
    }

    /// Removes tables that are all zero, which ports without tables report.
    pub(super) fn port_tables(&self, node_of: impl Fn(u16) -> Guid) -> Vec<PortTables> {
        let mut rows: BTreeMap<Guid, PortTables> = BTreeMap::new();
        for (&lid, tables) in &self.sl_to_vl {
            let node = node_of(lid);
            let row = rows.entry(node).or_insert_with(|| PortTables { node, ..Default::default() });
            for (&ports, map) in tables.iter().filter(|(_, map)| **map != [0; 8]) {
                row.sl_to_vl.push((ports, index(&mut row.sl_to_vl_maps, map)));
            }
        }
        for (&lid, tables) in &self.vl_arb {
            let node = node_of(lid);
            let row = rows.entry(node).or_insert_with(|| PortTables { node, ..Default::default() });
            for (&place, block) in tables.iter().filter(|(_, block)| **block != [0; 64]) {
                row.vl_arb.push((place, index(&mut row.vl_arb_blocks, block)));
            }
        }
        rows.into_values()
            .filter(|row| !row.sl_to_vl.is_empty() || !row.vl_arb.is_empty())
            .collect()
    }
}

/// Position of `content` among the distinct ones.
fn index<T: Copy + PartialEq>(all: &mut Vec<T>, content: &T) -> u16 {
    let at = all.iter().position(|known| known == content).unwrap_or_else(|| {
        all.push(*content);
        all.len() - 1
    });
    at as u16
}
