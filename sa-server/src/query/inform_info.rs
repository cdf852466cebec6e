//! InformInfo (write only) and InformInfoRecord: one per subscription of a visible port.

use std::ops::ControlFlow;

use ib_mad::types::Qpn;
use ib_mad::wire::attribute::InformInfo;
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::record::inform_info::component as inform_info;
use ib_mad::wire::record::{InformInfoRecord, InformInfoRecordRepr};
use ib_mad::wire::sa::{ComponentMask, attribute};
use sa_proto::snapshot::{Subscription, SubscriptionRid};

use super::pattern::{Component, Pattern};
use super::{Family, Found, Query, Refusal};

/// Answers carry the AttributeOffset that OpenSM gives them: 36 bytes in whole units of 8.
pub(super) const INFORM_INFO: Family =
    Family { record_len: 32, ..Family::unserved(AttributeId::INFORM_INFO).settable() };

pub(super) const FAMILY: Family =
    Family::readable(attribute::INFORM_INFO_RECORD, InformInfoRecord::LEN, find).of_registry();

const INFORM_INFO_AT: usize = 24;

/// Compared with the value shown to the requester: an untrusted one finds QPN 0.
const COMPONENTS: &[Component] = &[
    Component::of(inform_info::SUBSCRIBER_GID, InformInfoRecord::FIELDS, "subscriber_gid", 0),
    Component::of(inform_info::ENUMERATION, InformInfoRecord::FIELDS, "enumeration", 0),
    of(inform_info::GID, "gid"),
    of(inform_info::LID_RANGE_BEGIN, "lid_range_begin"),
    of(inform_info::LID_RANGE_END, "lid_range_end"),
    of(inform_info::IS_GENERIC, "is_generic"),
    of(inform_info::SUBSCRIBE, "subscribe"),
    of(inform_info::TYPE, "inform_type"),
    of(inform_info::TRAP_NUMBER, "trap_number"),
    of(inform_info::QPN, "qpn"),
    of(inform_info::RESP_TIME_VALUE, "resp_time_value"),
    of(inform_info::PRODUCER_TYPE, "producer_type"),
];

const fn of(mask: ComponentMask, field: &str) -> Component {
    Component::of(mask, InformInfo::FIELDS, field, INFORM_INFO_AT)
}

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let tables = query.tables;
    let request = InformInfoRecord::of(query.record);
    let has = |component| query.mask.contains(component);
    let pattern = Pattern::new(COMPONENTS, query.mask, query.record);
    let mut offer = |row: &Subscription| {
        let record = shown(row, query.trusted);
        // The GUID identifies the subscriber; its prefix may be any.
        let subscriber = tables.end_ports.by_guid(row.rid.subscriber_gid.guid());
        if pattern.matches(&record)
            && subscriber.is_some_and(|port| query.may_see_port(requester, port))
        {
            found.push(&record)?;
        }
        found.step()
    };
    let subscriptions = &query.registry.subscriptions;
    let subscriber_gid = request.subscriber_gid();
    let _: ControlFlow<()> = if has(inform_info::SUBSCRIBER_GID | inform_info::ENUMERATION) {
        let rid = SubscriptionRid { subscriber_gid, enumeration: request.enumeration() };
        subscriptions.find(rid).map_or(ControlFlow::Continue(()), |row| offer(row))
    } else if has(inform_info::SUBSCRIBER_GID) {
        let first = SubscriptionRid { subscriber_gid, enumeration: 0 };
        subscriptions
            .range(first..)
            .take_while(|row| row.rid.subscriber_gid == subscriber_gid)
            .try_for_each(|row| offer(row))
    } else {
        subscriptions.iter().try_for_each(|row| offer(row))
    };
    Ok(())
}

/// A subscription as the requester may see it; the QPN is for the trusted (IBA C15-0.2-1.16,
/// C15-0.1.23.4).
fn shown(row: &Subscription, trusted: bool) -> [u8; InformInfoRecord::LEN] {
    let mut inform_info = row.inform_info;
    InformInfo::of_mut(&mut inform_info).set_qpn(if trusted { row.qpn } else { Qpn(0) });
    let SubscriptionRid { subscriber_gid, enumeration } = row.rid;
    InformInfoRecordRepr { subscriber_gid, enumeration, inform_info }.to_bytes()
}
