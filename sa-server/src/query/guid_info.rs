//! GUIDInfoRecord: the blocks of each visible end port's GUID table, alias GUIDs included.

use std::ops::ControlFlow;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::PortInfo;
use ib_mad::wire::record::guid_info::component as guid_info;
use ib_mad::wire::record::{GuidInfoRecord, GuidInfoRecordRepr};
use ib_mad::wire::sa::attribute;
use sa_proto::snapshot::Port;

use super::{Family, Found, Query, Refusal};
use crate::tables::Tables;
use ib_mad::wire::pattern::{Component, Pattern};

pub(super) const FAMILY: Family =
    Family::readable(attribute::GUID_INFO_RECORD, GuidInfoRecord::LEN, find)
        .writable()
        .of_registry();

/// GUIDs in a block.
const BLOCK_LEN: usize = 8;

const COMPONENTS: &[Component] = &[
    Component::at(guid_info::GUID_0, 64, 64),
    Component::at(guid_info::GUID_1, 128, 64),
    Component::at(guid_info::GUID_2, 192, 64),
    Component::at(guid_info::GUID_3, 256, 64),
    Component::at(guid_info::GUID_4, 320, 64),
    Component::at(guid_info::GUID_5, 384, 64),
    Component::at(guid_info::GUID_6, 448, 64),
    Component::at(guid_info::GUID_7, 512, 64),
];

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let request = GuidInfoRecord::of(query.record);
    let has = |component| query.mask.contains(component);
    let lid = has(guid_info::LID).then(|| request.lid());
    let block = has(guid_info::BLOCK_NUM).then(|| request.block_num());
    let pattern = Pattern::new(COMPONENTS, query.mask, query.record);
    let _ = query.ports(requester, lid, None).try_for_each(|seen| {
        found.step()?;
        if !seen.is_end_port() {
            return ControlFlow::Continue(());
        }
        let blocks = 0..block_count(seen.port);
        for block_num in blocks.filter(|&num| block.is_none_or(|block| num == block)) {
            let guid_info = guids(query.tables, seen.port, block_num);
            let record = GuidInfoRecordRepr { lid: seen.lid, block_num, guid_info }.to_bytes();
            if pattern.matches(&record) {
                found.push(&record)?;
            }
        }
        ControlFlow::Continue(())
    });
    Ok(())
}

fn block_count(port: &Port) -> u8 {
    let info = PortInfo::of(&port.info);
    info.guid_cap().div_ceil(BLOCK_LEN as u8)
}

fn guids(tables: &Tables, port: &Port, block: u8) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (place, bytes) in (0u8..).zip(bytes.as_chunks_mut().0) {
        let index = block * BLOCK_LEN as u8 + place;
        let guid = match index {
            0 => port.guid,
            _ => tables.alias_guid(port.guid, index).unwrap_or(Guid(0)),
        };
        *bytes = guid.0.to_be_bytes();
    }
    bytes
}
