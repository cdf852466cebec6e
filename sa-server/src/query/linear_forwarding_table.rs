//! LinearForwardingTableRecord: the blocks of each visible switch's table, up to its last route.

use std::ops::ControlFlow;

use ib_mad::wire::record::linear_forwarding_table::component as lft;
use ib_mad::wire::record::{LinearForwardingTableRecord, LinearForwardingTableRecordRepr};
use ib_mad::wire::sa::attribute;

use super::{Family, Found, Query, Refusal};

pub(super) const FAMILY: Family = Family::readable(
    attribute::LINEAR_FORWARDING_TABLE_RECORD,
    LinearForwardingTableRecord::LEN,
    find,
);

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let request = LinearForwardingTableRecord::of(query.record);
    let has = |component| query.mask.contains(component);
    let lid = has(lft::LID).then(|| request.lid());
    let block = has(lft::BLOCK_NUM).then(|| request.block_num());
    let _ = query.switches(requester, lid).try_for_each(|switch| {
        found.step()?;
        let blocks = switch.node.lft.as_ref().map_or(&[][..], |lft| lft.blocks());
        let first = block.map_or(0, usize::from).min(blocks.len());
        let count = if block.is_some() { 1 } else { blocks.len() };
        for (block_num, &entries) in (first as u16..).zip(&blocks[first..]).take(count) {
            let record = LinearForwardingTableRecordRepr {
                lid: switch.lid,
                block_num,
                linear_forwarding_table: entries,
            };
            found.push(&record.to_bytes())?;
        }
        ControlFlow::Continue(())
    });
    Ok(())
}
