//! SMInfoRecord: one per subnet manager behind a visible port.
//!
//! The tables contain no SM_Key, so answers never do, and the component selects nothing: otherwise
//! a requester could guess keys by comparison.

use ib_mad::types::Guid;
use ib_mad::wire::attribute::SmInfo;
use ib_mad::wire::record::sm_info::component as sm_info;
use ib_mad::wire::record::{SmInfoRecord, SmInfoRecordRepr};
use ib_mad::wire::sa::{ComponentMask, attribute};

use super::{Family, Found, Query, Refusal};
use ib_mad::wire::pattern::{Component, Pattern};

pub(super) const FAMILY: Family =
    Family::readable(attribute::SM_INFO_RECORD, SmInfoRecord::LEN, find);

const SM_INFO: usize = 4;

const COMPONENTS: &[Component] = &[
    of(sm_info::GUID, "guid"),
    of(sm_info::ACT_COUNT, "act_count"),
    of(sm_info::PRIORITY, "priority"),
    of(sm_info::SM_STATE, "sm_state"),
];

const fn of(mask: ComponentMask, field: &str) -> Component {
    Component::of(mask, SmInfo::FIELDS, field, SM_INFO)
}

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let tables = query.tables;
    let request = SmInfoRecord::of(query.record);
    let lid = query.mask.contains(sm_info::LID).then(|| request.lid());
    // Found by port GUID, of which a LID has one that is the port's own.
    let named = lid.map(|lid| tables.end_ports.by_lid(lid).map_or(Guid(0), |port| port.guid));
    let pattern = Pattern::new(COMPONENTS, query.mask, query.record);
    let managers = tables.plane.subnet_managers.iter();
    let _ =
        managers.filter(|sm| named.is_none_or(|guid| guid == sm.port_guid)).try_for_each(|sm| {
            let mut info = sm.info;
            SmInfo::of_mut(&mut info).set_sm_key(0);
            if let Some(port) = tables.end_ports.by_guid(sm.port_guid)
                && query.may_see_port(requester, port)
            {
                let record = SmInfoRecordRepr { lid: port.lid, sm_info: info }.to_bytes();
                if pattern.matches(&record) {
                    found.push(&record)?;
                }
            }
            found.step()
        });
    Ok(())
}
