//! SMInfoRecord: one a subnet manager behind a visible port.
//!
//! No SM_Key is in the tables, so nobody is told one, and the component selects nothing: what a
//! key is compared with could be guessed.

use ib_mad::types::Guid;
use ib_mad::wire::attribute::SmInfo;
use ib_mad::wire::record::sm_info::component as sm_info;
use ib_mad::wire::record::{SmInfoRecord, SmInfoRecordRepr};
use ib_mad::wire::sa::{ComponentMask, attribute};

use super::pattern::{Component, Pattern};
use super::{Family, Found, Query, Refusal};

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
    let request = SmInfoRecord::new(&query.record[..]).expect("25 bytes of 200");
    let lid = query.mask.contains(sm_info::LID).then(|| request.lid());
    // Found by port GUID, of which a LID has one that is the port's own.
    let named = lid.map(|lid| tables.end_ports.by_lid(lid).map_or(Guid(0), |port| port.guid));
    let pattern = Pattern::new(COMPONENTS, query.mask, query.record);
    let managers = tables.plane.subnet_managers.iter();
    let _ =
        managers.filter(|sm| named.is_none_or(|guid| guid == sm.port_guid)).try_for_each(|sm| {
            let mut info = sm.info;
            SmInfo::new(&mut info[..]).expect("21 bytes").set_sm_key(0);
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
