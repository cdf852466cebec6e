//! VLArbitrationTableRecord: four blocks per port.
//!
//! A port whose tables were never programmed has empty ones.

use std::ops::ControlFlow;

use ib_mad::types::PortNum;
use ib_mad::wire::record::vl_arbitration::component as vl_arbitration;
use ib_mad::wire::record::{VlArbitrationTableRecord, VlArbitrationTableRecordRepr};
use ib_mad::wire::sa::attribute;
use sa_proto::snapshot::PortTables;

use super::{Family, Found, Query, Refusal};

pub(super) const FAMILY: Family =
    Family::readable(attribute::VL_ARBITRATION_TABLE_RECORD, VlArbitrationTableRecord::LEN, find);

/// Blocks 1 and 2 are the low-priority table, 3 and 4 the high-priority one (IBA 14.2.5.9).
const BLOCKS: std::ops::RangeInclusive<u8> = 1..=4;

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let request = VlArbitrationTableRecord::of(query.record);
    let has = |component| query.mask.contains(component);
    let lid = has(vl_arbitration::LID).then(|| request.lid());
    let num = has(vl_arbitration::OUTPUT_PORT_NUM).then(|| request.output_port_num());
    let block = has(vl_arbitration::BLOCK_NUM).then(|| request.block_num());
    let _ = query.ports(requester, lid, num).try_for_each(|output| {
        found.step()?;
        let tables = output.node.port_tables.as_deref();
        for block_num in BLOCKS.filter(|&num| block.is_none_or(|block| num == block)) {
            let record = VlArbitrationTableRecordRepr {
                lid: output.lid,
                output_port_num: output.port.num,
                block_num,
                vl_arbitration_table: table(tables, output.port.num, block_num),
            };
            found.push(&record.to_bytes())?;
        }
        ControlFlow::Continue(())
    });
    Ok(())
}

fn table(tables: Option<&PortTables>, output: PortNum, block: u8) -> [u8; 64] {
    let table = |tables: &PortTables| {
        let key = (output.0, block);
        let at = tables.vl_arb.binary_search_by_key(&key, |&(place, _)| place).ok()?;
        tables.vl_arb_blocks.get(usize::from(tables.vl_arb[at].1)).copied()
    };
    tables.and_then(table).unwrap_or([0; 64])
}
