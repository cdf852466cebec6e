//! MulticastForwardingTableRecord: the blocks of each visible switch's table up to the last in
//! use, at every position that has ports.
//!
//! The snapshot omits blocks without routes; they are records like the others, all zero.

use std::ops::ControlFlow;

use ib_mad::wire::attribute::NodeInfo;
use ib_mad::wire::record::multicast_forwarding_table::component as mft;
use ib_mad::wire::record::{MulticastForwardingTableRecord, MulticastForwardingTableRecordRepr};
use ib_mad::wire::sa::attribute;
use sa_proto::snapshot::Mft;

use super::{Family, Found, Query, Refusal};
use crate::tables::NodeRows;

pub(super) const FAMILY: Family = Family::readable(
    attribute::MULTICAST_FORWARDING_TABLE_RECORD,
    MulticastForwardingTableRecord::LEN,
    find,
);

/// Ports in a position.
const POSITION_LEN: u8 = 16;

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let request = MulticastForwardingTableRecord::of(query.record);
    let has = |component| query.mask.contains(component);
    let lid = has(mft::LID).then(|| request.lid());
    let position = has(mft::POSITION).then(|| request.position());
    let block = has(mft::BLOCK_NUM).then(|| request.block_num());
    let _ = query.switches(requester, lid).try_for_each(|switch| {
        found.step()?;
        let Some(table) = switch.node.mft.as_deref() else { return ControlFlow::Continue(()) };
        let Some(last) = table.blocks.last() else { return ControlFlow::Continue(()) };
        let blocks = selected(block, last.block);
        let positions = selected(position.map(u16::from), last_position(switch.node).into());
        for block_num in blocks {
            for position in positions.clone() {
                let position = position as u8;
                let record = MulticastForwardingTableRecordRepr {
                    lid: switch.lid,
                    position,
                    block_num,
                    multicast_forwarding_table: masks(table, block_num, position),
                };
                found.push(&record.to_bytes())?;
                found.step()?;
            }
        }
        ControlFlow::Continue(())
    });
    Ok(())
}

/// 0 to `last`, or the requested one.
fn selected(one: Option<u16>, last: u16) -> std::ops::Range<u16> {
    let end = last.saturating_add(1);
    match one {
        None => 0..end,
        Some(one) if one < end => one..one + 1,
        Some(_) => 0..0,
    }
}

fn last_position(node: &NodeRows) -> u8 {
    NodeInfo::of(&node.node.info).num_ports() / POSITION_LEN
}

fn masks(table: &Mft, block: u16, position: u8) -> [u8; 64] {
    let key = (block, position);
    let at = table.blocks.binary_search_by_key(&key, |entry| (entry.block, entry.position));
    at.map_or([0; 64], |at| table.blocks[at].masks)
}
