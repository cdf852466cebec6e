//! InformInfo: event subscriptions (IBA 13.4.8.3).
//!
//! A subscription belongs to one QP of one port and is identified by its selection: source,
//! type, number and producer. Its addressing (SL, path bits, P_Key, GRH) and response
//! time are not part of that; subscribing again updates them. Matching events against
//! subscriptions is done by the responders.

use std::collections::BTreeMap;

use ib_mad::types::{Gid, Lid};
use ib_mad::wire::attribute::{InformInfo, TrapNumber};
use ib_mad::wire::field::part;
use ib_mad::wire::mad::{Method, Status};
use sa_proto::snapshot::{Row, Subscription, SubscriptionRid};

use super::{Answer, AnswerRecord, Core, EndPort, Ports, Refusal, Request, lapsed};

/// Maximum number of subscriptions of a port; beyond it further ones are refused.
pub const SUBSCRIPTIONS_PER_PORT_MAX: usize = 1024;

/// Length of InformInfo, bytes.
const LEN: usize = InformInfo::LEN;
/// Offset of the Subscribe byte.
const SUBSCRIBE: usize = 23;

/// Handles a Set() of InformInfo or a Delete() of InformInfoRecord.
pub(super) fn write(core: &mut Core, ports: &Ports, request: &Request) -> Answer {
    if request.method != Method::SET {
        return Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE.into());
    }
    let wanted = *part::<0, LEN, _>(&request.data);
    let info = InformInfo::of(&wanted);
    let requester = ports.by_lid(request.requester.slid).ok_or(Refusal::Silent)?;
    if info.subscribe() > 1 || !request.trusted && needs_trust(&info) {
        return Err(Status::SA_REQ_INVALID.into());
    }
    let subscribes = info.subscribe() == 1;
    // A subscription is for the requesting QP; an unsubscription names the QP (IBA o13-2.1.1).
    let qpn = if subscribes { request.requester.qpn } else { info.qpn() };
    let rid = |enumeration| SubscriptionRid {
        subscriber_gid: Gid::new(ports.prefix, requester.guid),
        enumeration,
    };
    let mine = || core.subscriptions.range(rid(0)..=rid(u16::MAX)).map(|row| &**row);
    let old = mine().find(|row| row.qpn == qpn && same(&row.inform_info, &wanted));
    let old = old.map(|row| (row.rid, row.responder));
    if !subscribes {
        let (rid, _) = old.ok_or_else(|| not_subscribed(request))?;
        core.subscriptions.remove(rid);
        return Ok(AnswerRecord::new(&wanted));
    }
    if !may_hear_of(ports, requester, &info) {
        return Err(not_subscribed(request));
    }
    // A new subscription gets a responder before it is published: see `assign`.
    let (rid, responder) = match old {
        Some(old) => old,
        None => {
            let number = free_number(mine());
            core.room_for(ports, request, 1)?;
            let Some(number) = number else {
                core.counters.quota_refused += 1;
                return Err(Status::SA_NO_RESOURCES.into());
            };
            (rid(number), 0)
        }
    };
    core.subscriptions.put(row_of(request, rid, responder));
    // The answer repeats the request (IBA o13-12.1.1).
    Ok(AnswerRecord::new(&wanted))
}

/// The row of a subscription.
fn row_of(request: &Request, rid: SubscriptionRid, responder: u64) -> Subscription {
    let requester = &request.requester;
    let mut inform_info = *part::<0, LEN, _>(&request.data);
    InformInfo::of_mut(&mut inform_info).set_qpn(requester.qpn);
    Subscription {
        rid,
        inform_info,
        lid: requester.slid,
        qpn: requester.qpn,
        sl: requester.sl,
        pkey: requester.pkey,
        grh: requester.sgid.is_some(),
        trusted: request.trusted,
        responder,
    }
}

/// The sequence number of the change that ended the effect of a granted request, or a later one;
/// `None` if it lasts: the QP is, or is not, subscribed as requested.
pub(super) fn ended(core: &Core, ports: &Ports, request: &Request) -> Option<u64> {
    let wanted = part::<0, LEN, _>(&request.data);
    let info = InformInfo::of(wanted);
    // Without its port, it will be dropped.
    let Some(requester) = ports.by_lid(request.requester.slid) else { return Some(0) };
    let subscriber_gid = Gid::new(ports.prefix, requester.guid);
    let subscribes = info.subscribe() == 1;
    let qpn = if subscribes { request.requester.qpn } else { info.qpn() };
    let rid = |enumeration| SubscriptionRid { subscriber_gid, enumeration };
    let mut mine = core.subscriptions.range(rid(0)..=rid(u16::MAX)).map(|row| &**row);
    let row = mine.find(|row| row.qpn == qpn && same(&row.inform_info, wanted));
    let lasts = match row {
        Some(row) => subscribes && *row == row_of(request, row.rid, row.responder),
        None => !subscribes,
    };
    (!lasts).then(|| core.subscriptions.changed_at(subscriber_gid))
}

/// The refusal, which also clears Subscribe (IBA o13-13.1.1).
fn not_subscribed(request: &Request) -> Refusal {
    let mut data = request.data;
    data[SUBSCRIBE] = 0;
    Refusal::WithData(Status::SA_REQ_INVALID, AnswerRecord::new(&data))
}

/// Whether two subscriptions of a QP are the same: they select the same events.
pub(super) fn same(a: &[u8; LEN], b: &[u8; LEN]) -> bool {
    let [a, b] = [a, b].map(InformInfo::of);
    // With a GID the LID range is ignored.
    let lids = |info: &InformInfo<&[u8; LEN]>| (info.lid_range_begin(), info.lid_range_end());
    a.gid() == b.gid()
        && (a.gid() != Gid::ZERO || lids(&a) == lids(&b))
        && a.is_generic() == b.is_generic()
        && a.inform_type() == b.inform_type()
        && a.trap_number() == b.trap_number()
        && a.producer_type() == b.producer_type()
}

/// Whether it names a trap restricted to trusted subscribers, 256 to 259
/// (IBA C15-0.2-1.16). A subscription for all traps does not: responders filter these from its
/// reports.
pub(super) fn needs_trust<T: AsRef<[u8]>>(info: &InformInfo<T>) -> bool {
    let trap = info.trap_number();
    info.is_generic() != 0 && trap >= TrapNumber(256) && trap <= TrapNumber(259)
}

/// The lowest number unused by a port's subscriptions, which are ascending; `None` if the port has
/// reached its limit.
pub(super) fn free_number<'a>(rows: impl Iterator<Item = &'a Subscription>) -> Option<u16> {
    let mut free = 0;
    let mut count = 0;
    for row in rows {
        count += 1;
        if row.rid.enumeration == free {
            free += 1;
        }
    }
    (count < SUBSCRIPTIONS_PER_PORT_MAX).then_some(free)
}

/// Whether the requester shares a partition with every named source (IBA o13-14.1.1).
fn may_hear_of<T: AsRef<[u8]>>(ports: &Ports, requester: &EndPort, info: &InformInfo<T>) -> bool {
    if info.gid() != Gid::ZERO {
        // The prefix is ignored; an alias is not a source.
        let source = ports.by_guid(info.gid().guid());
        return source.is_some_and(|source| source.shares_partition(requester));
    }
    let (begin, end) = (info.lid_range_begin(), info.lid_range_end());
    if begin == Lid::PERMISSIVE {
        return true;
    }
    let end = if end == Lid::NONE { begin } else { end };
    begin <= ports.lid_top() && ports.all_share_partition(requester, begin, end)
}

/// Updates subscriptions of ports whose LIDs changed. Those of ports that left the fabric have no
/// LID until the port is back at its place, or are removed, if the site drops them.
pub(super) fn fabric_changed(core: &mut Core, ports: &Ports) {
    let drops = ports.settings.drop_event_subscriptions;
    let mut moved = BTreeMap::new();
    for row in core.subscriptions.rows().iter() {
        let guid = row.rid.subscriber_gid.guid();
        // Reports of what a port subscribed to before are not for a newcomer with its GUID.
        let is_new = core.arrived.contains(&guid)
            || row.lid == Lid::NONE && ports.newcomers().contains(&guid);
        let port = ports.by_guid(guid).filter(|_| !is_new);
        let is_right = match port {
            Some(port) => ports.by_lid(row.lid).is_some_and(|at| at == port),
            None => row.lid == Lid::NONE && !drops,
        };
        if !is_right {
            moved.insert(row.key(), port.map_or(Lid::NONE, |port| port.lid));
        }
    }
    for (rid, lid) in moved {
        if lid == Lid::NONE && drops {
            lapsed::lapse(core, rid.subscriber_gid.guid());
            core.subscriptions.remove(rid);
        } else if let Some(row) = core.subscriptions.get(rid).cloned() {
            core.subscriptions.put(Subscription { lid, ..(*row).clone() });
        }
    }
}

#[cfg(test)]
mod tests;
