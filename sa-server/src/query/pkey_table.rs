//! P_KeyTableRecord: the blocks of each visible port's table, for trusted requesters only
//! (IBA 15.2.5.11, C15-0.1.23.2).

use std::ops::ControlFlow;

use ib_mad::types::PKey;
use ib_mad::wire::attribute::{NodeInfo, SwitchInfo};
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::pkey_table::component as pkey_table;
use ib_mad::wire::record::{PKeyTableRecord, PKeyTableRecordRepr};
use ib_mad::wire::sa::attribute;

use super::ports::SeenPort;
use super::{Family, Found, Query, Refusal};

pub(super) const FAMILY: Family =
    Family::readable(attribute::PKEY_TABLE_RECORD, PKeyTableRecord::LEN, find);

/// P_Keys in a block.
const BLOCK_LEN: usize = 32;

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    if !query.trusted {
        return Err(Refusal::Status(Status::SA_REQ_INVALID));
    }
    let requester = query.requester()?;
    let request = PKeyTableRecord::of(query.record);
    let has = |component| query.mask.contains(component);
    let lid = has(pkey_table::LID).then(|| request.lid());
    let num = has(pkey_table::PORT_NUM).then(|| request.port_num());
    let block = has(pkey_table::BLOCK_NUM).then(|| request.block_num());
    let _ = query.ports(requester, lid, num).try_for_each(|seen| {
        found.step()?;
        let blocks = block_count(&seen);
        let selected = match block {
            Some(block) if block < blocks => block..block + 1,
            Some(_) => 0..0,
            None => 0..blocks,
        };
        for block_num in selected {
            let record = PKeyTableRecordRepr {
                lid: seen.lid,
                block_num,
                port_num: seen.port.num,
                pkey_table: keys(&seen.port.pkeys, block_num),
            };
            found.push(&record.to_bytes())?;
        }
        ControlFlow::Continue(())
    });
    Ok(())
}

/// Number of blocks of a port's table: the reported capacity, at least what it holds. Ports without
/// a link have no known table.
fn block_count(seen: &SeenPort<'_>) -> u16 {
    if seen.port.pkeys.is_empty() {
        return 0;
    }
    let node = &seen.node.node;
    let capacity = if seen.is_end_port() {
        NodeInfo::of(&node.info).partition_cap()
    } else {
        let info = node.switch_info.unwrap_or_default();
        SwitchInfo::of(&info).partition_enforcement_cap()
    };
    let held = u16::try_from(seen.port.pkeys.len()).unwrap_or(u16::MAX);
    capacity.max(held).div_ceil(BLOCK_LEN as u16)
}

fn keys(table: &[PKey], block: u16) -> [u8; 64] {
    let mut bytes = [0; 64];
    let from = table.get(usize::from(block) * BLOCK_LEN..).unwrap_or_default();
    for (bytes, key) in bytes.as_chunks_mut().0.iter_mut().zip(from) {
        *bytes = key.0.to_be_bytes();
    }
    bytes
}
