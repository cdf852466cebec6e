//! SLtoVLMappingTableRecord: one per output port of a channel adapter or router, one per pair of
//! ports of a switch.
//!
//! A port whose tables were never programmed has every SL on VL 0.

use std::ops::ControlFlow;

use ib_mad::types::PortNum;
use ib_mad::wire::record::sl_to_vl::component as sl_to_vl;
use ib_mad::wire::record::{SlToVlMappingTableRecord, SlToVlMappingTableRecordRepr};
use ib_mad::wire::sa::attribute;
use sa_proto::snapshot::PortTables;

use super::{Family, Found, Query, Refusal};
use crate::tables::NodeRows;

pub(super) const FAMILY: Family =
    Family::readable(attribute::SL_TO_VL_MAPPING_TABLE_RECORD, SlToVlMappingTableRecord::LEN, find);

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let request = SlToVlMappingTableRecord::of(query.record);
    let has = |component| query.mask.contains(component);
    let lid = has(sl_to_vl::LID).then(|| request.lid());
    let input = has(sl_to_vl::INPUT_PORT_NUM).then(|| request.input_port_num());
    let output = has(sl_to_vl::OUTPUT_PORT_NUM).then(|| request.output_port_num());
    let _ = query.ports(requester, lid, output).try_for_each(|output| {
        found.step()?;
        let record = |input_port_num, output_port_num| {
            SlToVlMappingTableRecordRepr {
                lid: output.lid,
                input_port_num,
                output_port_num,
                sl_to_vl_mapping_table: mapping(output.node, input_port_num, output.port.num),
            }
            .to_bytes()
        };
        if !output.node.is_switch {
            return found.push(&record(PortNum(0), PortNum(0)));
        }
        let ports = output.node.node.ports.iter().map(|port| port.num);
        for input in ports.filter(|&num| input.is_none_or(|input| num == input)) {
            found.push(&record(input, output.port.num))?;
            found.step()?;
        }
        ControlFlow::Continue(())
    });
    Ok(())
}

/// The SL-to-VL table of a pair of ports. A channel adapter may have one for all ports.
fn mapping(node: &NodeRows, input: PortNum, output: PortNum) -> [u8; 8] {
    let table = |tables: &PortTables| {
        let find = |pair| tables.sl_to_vl.binary_search_by_key(&pair, |&(ports, _)| ports).ok();
        let common = || if node.is_switch { None } else { find((0, 0)) };
        let at = find((input.0, output.0)).or_else(common)?;
        tables.sl_to_vl_maps.get(usize::from(tables.sl_to_vl[at].1)).copied()
    };
    node.port_tables.as_deref().and_then(table).unwrap_or_default()
}
