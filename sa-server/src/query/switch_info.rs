//! SwitchInfoRecord: one per visible switch.

use ib_mad::wire::attribute::SwitchInfo;
use ib_mad::wire::record::switch_info::component as switch_info;
use ib_mad::wire::record::{SwitchInfoRecord, SwitchInfoRecordRepr};
use ib_mad::wire::sa::{ComponentMask, attribute};

use super::{Family, Found, Query, Refusal};
use ib_mad::wire::pattern::{Component, Pattern};

pub(super) const FAMILY: Family =
    Family::readable(attribute::SWITCH_INFO_RECORD, SwitchInfoRecord::LEN, find);

const SWITCH_INFO: usize = 4;

const COMPONENTS: &[Component] = &[
    of(switch_info::LINEAR_FDB_CAP, "linear_fdb_cap"),
    of(switch_info::RANDOM_FDB_CAP, "random_fdb_cap"),
    of(switch_info::MULTICAST_FDB_CAP, "multicast_fdb_cap"),
    of(switch_info::LINEAR_FDB_TOP, "linear_fdb_top"),
    of(switch_info::DEFAULT_PORT, "default_port"),
    of(switch_info::DEFAULT_MULTICAST_PRIMARY_PORT, "default_multicast_primary_port"),
    of(switch_info::DEFAULT_MULTICAST_NOT_PRIMARY_PORT, "default_multicast_not_primary_port"),
    of(switch_info::LIFE_TIME_VALUE, "life_time_value"),
    of(switch_info::PORT_STATE_CHANGE, "port_state_change"),
    of(
        switch_info::OPTIMIZED_SL_TO_VL_MAPPING_PROGRAMMING,
        "optimized_sl_to_vl_mapping_programming",
    ),
    of(switch_info::LIDS_PER_PORT, "lids_per_port"),
    of(switch_info::PARTITION_ENFORCEMENT_CAP, "partition_enforcement_cap"),
    of(switch_info::INBOUND_ENFORCEMENT_CAP, "inbound_enforcement_cap"),
    of(switch_info::OUTBOUND_ENFORCEMENT_CAP, "outbound_enforcement_cap"),
    of(switch_info::FILTER_RAW_INBOUND_CAP, "filter_raw_inbound_cap"),
    of(switch_info::FILTER_RAW_OUTBOUND_CAP, "filter_raw_outbound_cap"),
    of(switch_info::ENHANCED_PORT_0, "enhanced_port0"),
];

const fn of(mask: ComponentMask, field: &str) -> Component {
    Component::of(mask, SwitchInfo::FIELDS, field, SWITCH_INFO)
}

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let request = SwitchInfoRecord::of(query.record);
    let lid = query.mask.contains(switch_info::LID).then(|| request.lid());
    let pattern = Pattern::new(COMPONENTS, query.mask, query.record);
    let _ = query.switches(requester, lid).try_for_each(|switch| {
        if let Some(switch_info) = switch.node.node.switch_info {
            let record = SwitchInfoRecordRepr { lid: switch.lid, switch_info }.to_bytes();
            if pattern.matches(&record) {
                found.push(&record)?;
            }
        }
        found.step()
    });
    Ok(())
}
