//! InformInfo: event subscriptions (13.4.8.3).
//!
//! A subscription is one QP's of one port, and is told from its others by what it is for: source,
//! type, number and producer. How it came (SL, path bits, P_Key, GRH) and how long its reports may
//! take is not part of that; whoever subscribes again changes those. Matching events against
//! subscriptions is the responders' business.

use std::collections::BTreeMap;

use ib_mad::types::{Gid, Lid};
use ib_mad::wire::attribute::{InformInfo, TrapNumber};
use ib_mad::wire::mad::{Method, Status};
use sa_proto::snapshot::{Row, Subscription, SubscriptionRid};

use super::{Answer, AnswerRecord, Core, EndPort, Ports, Refusal, Request};

/// Most subscriptions of one port; beyond, nothing is added.
pub const SUBSCRIPTIONS_PER_PORT_MAX: usize = 1024;

/// Length of the attribute.
const LEN: usize = InformInfo::LEN;
/// Byte of Subscribe.
const SUBSCRIBE: usize = 23;

/// Decides on a Set() or Delete().
pub(super) fn write(core: &mut Core, ports: &Ports, request: &Request) -> Answer {
    if request.method != Method::SET {
        return Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE.into());
    }
    let mut wanted = [0; LEN];
    wanted.copy_from_slice(&request.data[..LEN]);
    let info = InformInfo::new(&wanted).expect("36 bytes");
    let requester = ports.by_lid(request.requester.slid).ok_or(Status::SA_REQ_INVALID)?;
    if info.subscribe() > 1 || !request.trusted && needs_trust(&info) {
        return Err(Status::SA_REQ_INVALID.into());
    }
    let subscribes = info.subscribe() == 1;
    // A subscription is for the QP that asks; who unsubscribes names it.
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
    // Whoever is new gets a responder before anybody hears of it: see `assign`.
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
    let mut inform_info = wanted;
    InformInfo::new(&mut inform_info[..]).expect("36 bytes").set_qpn(qpn);
    core.subscriptions.put(Subscription {
        rid,
        inform_info,
        lid: request.requester.slid,
        qpn,
        sl: request.requester.sl,
        pkey: request.requester.pkey,
        grh: request.requester.sgid.is_some(),
        trusted: request.trusted,
        responder,
    });
    Ok(AnswerRecord::new(&wanted))
}

/// The refusal that says so in its Subscribe, too (o13-13.1.1).
fn not_subscribed(request: &Request) -> Refusal {
    let mut data = request.data;
    data[SUBSCRIBE] = 0;
    Refusal::WithData(Status::SA_REQ_INVALID, AnswerRecord::new(&data))
}

/// Whether two subscriptions of a QP are one: alike in all that says what they are for.
pub(super) fn same(a: &[u8; LEN], b: &[u8; LEN]) -> bool {
    let [a, b] = [a, b].map(|info| InformInfo::new(info).expect("36 bytes"));
    // A GID leaves the LIDs without meaning.
    let lids = |info: &InformInfo<&[u8; LEN]>| (info.lid_range_begin(), info.lid_range_end());
    a.gid() == b.gid()
        && (a.gid() != Gid::ZERO || lids(&a) == lids(&b))
        && a.is_generic() == b.is_generic()
        && a.inform_type() == b.inform_type()
        && a.trap_number() == b.trap_number()
        && a.producer_type() == b.producer_type()
}

/// Whether it names one of the traps that are for trusted subscribers only, 256 to 259
/// (C15-0.2-1.16). One for every trap does not: whoever sends the reports leaves these out.
pub(super) fn needs_trust<T: AsRef<[u8]>>(info: &InformInfo<T>) -> bool {
    let trap = info.trap_number();
    info.is_generic() != 0 && trap >= TrapNumber(256) && trap <= TrapNumber(259)
}

/// The least number that none of a port's subscriptions, ascending, has; `None` if it has as many
/// as it may have.
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

/// Whether the requester shares a partition with every source that is named (o13-14.1.1).
fn may_hear_of<T: AsRef<[u8]>>(ports: &Ports, requester: &EndPort, info: &InformInfo<T>) -> bool {
    if info.gid() != Gid::ZERO {
        // Whatever its prefix; an alias is no source.
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

/// Takes out subscriptions of ports that are there no more, and follows those whose LIDs changed.
pub(super) fn fabric_changed(core: &mut Core, ports: &Ports) {
    let mut moved = BTreeMap::new();
    for row in core.subscriptions.rows().iter() {
        let port = ports.by_guid(row.rid.subscriber_gid.guid());
        let is_there = |port: &EndPort| ports.by_lid(row.lid).is_some_and(|at| at == port);
        if !port.is_some_and(is_there) {
            moved.insert(row.key(), port.map(|port| port.lid));
        }
    }
    for (rid, lid) in moved {
        let row = match lid {
            Some(_) => core.subscriptions.get(rid).cloned(),
            None => core.subscriptions.remove(rid).and(None),
        };
        if let (Some(row), Some(lid)) = (row, lid) {
            core.subscriptions.put(Subscription { lid, ..(*row).clone() });
        }
    }
}

#[cfg(test)]
mod tests;
