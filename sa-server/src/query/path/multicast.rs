//! PathRecord with a multicast destination: the parameters set by the group's creator.

use std::ops::ControlFlow;

use ib_mad::types::{Gid, Lid, Lifetime, Mtu, Rate};
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::{McMemberRecord, PathRecord, PathRecordRepr, Selector};
use sa_proto::snapshot::MulticastGroup;

use crate::query::{EndPort, Found, Query};

/// HopLimit of groups that reach beyond the subnet.
const HOP_LIMIT_GLOBAL: u8 = 255;

/// Finds the path to the group `mgid`, if there is such a group in a partition of `requester`, and
/// the request fits it.
pub(super) fn find(
    query: &Query<'_>,
    requester: &EndPort,
    mgid: Gid,
    found: &mut Found<'_>,
) -> ControlFlow<()> {
    let Some(group) = query.registry.groups.find(mgid) else {
        return ControlFlow::Continue(());
    };
    // As MCMemberRecord has it: the record shows MLID and P_Key, and by an SGID who has joined.
    if !query.may_see_partition(requester, McMemberRecord::of(&group.record).pkey()) {
        return ControlFlow::Continue(());
    }
    match answer(query, group, found.is_single()) {
        Some(record) => found.push(&record.to_bytes()),
        None => ControlFlow::Continue(()),
    }
}

fn answer(query: &Query<'_>, group: &MulticastGroup, single: bool) -> Option<PathRecordRepr> {
    let request = PathRecord::of(query.record);
    let terms = McMemberRecord::of(&group.record);
    let has = |component| query.mask.contains(component);
    let fits = (!has(path::DLID) || request.dlid() == terms.mlid())
        && (!has(path::SGID) || is_member(query, group.mgid, request.sgid()))
        && (!has(path::SLID) || is_member_by_lid(query, group.mgid, request.slid()))
        && (!has(path::PKEY) || request.pkey() == terms.pkey())
        && (!has(path::SL) || request.sl() == terms.sl())
        && (single || !has(path::NUMB_PATH) || request.numb_path() > 0)
        && (!has(path::FLOW_LABEL) || request.flow_label() == terms.flow_label())
        && (!has(path::HOP_LIMIT) || request.hop_limit() == terms.hop_limit())
        && (!has(path::TCLASS) || request.tclass() == terms.tclass());
    if !fits {
        return None;
    }
    let is_local = mgid_scope(group.mgid) == SCOPE_LINK_LOCAL;
    Some(PathRecordRepr {
        // Fields that the group does not define are returned as they were sent, selected or not, as
        // with OpenSM.
        service_id: request.service_id(),
        dgid: group.mgid,
        sgid: request.sgid(),
        dlid: terms.mlid(),
        slid: request.slid(),
        raw_traffic: false,
        flow_label: terms.flow_label(),
        hop_limit: if is_local { terms.hop_limit() } else { HOP_LIMIT_GLOBAL },
        tclass: terms.tclass(),
        // There is no reverse path from a group.
        reversible: false,
        numb_path: 1,
        pkey: terms.pkey(),
        qos_class: 0,
        sl: terms.sl(),
        mtu_selector: Selector::Exactly,
        mtu: Mtu::from_code(terms.mtu())?,
        rate_selector: Selector::Exactly,
        rate: Rate::from_code(terms.rate())?,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: Lifetime::from_low_bits(terms.packet_life_time().code()),
        preference: request.preference(),
    })
}

const SCOPE_LINK_LOCAL: u8 = 2;

fn mgid_scope(mgid: Gid) -> u8 {
    mgid.0[1] & 0xF
}

/// Whether the port with this GID has joined; it is known by its GUID.
fn is_member(query: &Query<'_>, mgid: Gid, gid: Gid) -> bool {
    query.index.is_member(gid.guid(), mgid)
}

fn is_member_by_lid(query: &Query<'_>, mgid: Gid, lid: Lid) -> bool {
    query
        .tables
        .end_ports
        .names_by_lid(lid)
        .iter()
        .any(|name| query.index.is_member(name.guid, mgid))
}
