//! `opensm.mcfdbs`: the egress ports of a switch for each multicast LID.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{MFT_BLOCK_LEN, MFT_POSITION_PORTS};
use sa_proto::snapshot::Mft;

/// Renders one switch; empty if it forwards no group.
pub fn mcfdbs(mft: &Mft) -> String {
    // Blocks hold 32 MLIDs by 16 ports; a line lists all ports of an MLID.
    let mut ports: BTreeMap<Lid, Vec<u16>> = BTreeMap::new();
    for block in &mft.blocks {
        let first = Lid::MULTICAST_FIRST.0 + block.block * MFT_BLOCK_LEN as u16;
        for (mask, lid) in block.masks.chunks_exact(2).zip(first..) {
            let mask = u16::from_be_bytes([mask[0], mask[1]]);
            let base = u16::from(block.position) * MFT_POSITION_PORTS as u16;
            let set = (0..MFT_POSITION_PORTS as u16).filter(|bit| mask >> bit & 1 == 1);
            let set: Vec<u16> = set.map(|bit| base + bit).collect();
            if !set.is_empty() {
                ports.entry(Lid(lid)).or_default().extend(set);
            }
        }
    }
    let mut text = String::new();
    if ports.is_empty() {
        return text;
    }
    let _ = writeln!(text, "\nSwitch {:#018x}\nLID    : Out Port(s)", mft.switch.0);
    for (lid, mut ports) in ports {
        ports.sort_unstable();
        let _ = write!(text, "0x{:04X} :", lid.0);
        for port in ports {
            let _ = write!(text, " 0x{port:03X} ");
        }
        text.push('\n');
    }
    text
}
