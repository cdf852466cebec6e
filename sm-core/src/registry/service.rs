//! ServiceRecord: services and their leases (IBA 15.2.5.14).
//!
//! A service belongs to the port of its ServiceGID. That port, requesters with the ServiceKey, and
//! trusted requesters can change and delete it. A service at a multicast GID belongs to
//! requesters with its key. A newcomer changes what was registered at its GID as others do, but may
//! renew it as it is. The record is found by its RID bytes, regardless of the component mask,
//! and components outside the mask are stored as received.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;
use ib_mad::types::{Gid, Guid, PKey};
use ib_mad::wire::field::part;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::ServiceRecord;
use ib_mad::wire::record::service::{LEASE_INDEFINITE, component};
use sa_proto::snapshot::{Service, ServiceRid};

use super::quota::{NO_REQUESTER, Tally};
use super::{Answer, AnswerRecord, Core, EndPort, Ports, Refusal, Request, lapsed};

/// Length of ServiceRecord, bytes.
const LEN: usize = ServiceRecord::LEN;

/// Indices of the service rows.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Finite leases, by the last second in which they are valid.
    leases: BTreeSet<(u64, ServiceRid)>,
    /// Services by the lower half of their GID; at multicast GIDs by the requesting port.
    by_guid: Tally,
    /// The requesting port of services at multicast GIDs.
    asked_by: HashMap<ServiceRid, Guid, RandomState>,
}

impl Index {
    /// Adds a row that `port` requested.
    fn add(&mut self, row: &Service, port: Guid) {
        self.leases.extend(row.expires_s.map(|expires_s| (expires_s, row.rid)));
        if row.rid.service_gid.is_multicast() {
            self.asked_by.insert(row.rid, port);
        }
        self.by_guid.add(charged(row.rid.service_gid, port));
    }

    /// Removes a row.
    fn remove(&mut self, row: &Service) {
        self.end_lease(row);
        let port = match row.rid.service_gid.is_multicast() {
            true => self.asked_by.remove(&row.rid).unwrap_or(NO_REQUESTER),
            false => NO_REQUESTER,
        };
        self.by_guid.remove(charged(row.rid.service_gid, port));
    }

    /// Replaces a row by one with the same RID, which stays charged to the port that requested it
    /// first.
    fn replace(&mut self, old: &Service, new: &Service) {
        self.end_lease(old);
        self.leases.extend(new.expires_s.map(|expires_s| (expires_s, new.rid)));
    }

    fn end_lease(&mut self, row: &Service) {
        if let Some(expires_s) = row.expires_s {
            self.leases.remove(&(expires_s, row.rid));
        }
    }
}

/// The port GUID whose quota a service counts against.
fn charged(gid: Gid, asked_by: Guid) -> Guid {
    if gid.is_multicast() { asked_by } else { gid.guid() }
}

/// Builds the index of restored rows.
pub(super) fn restore(core: &mut Core) {
    let mut index = Index::default();
    core.services.rows().iter().for_each(|row| index.add(row, NO_REQUESTER));
    core.service = index;
}

/// Handles a Set() or Delete() of ServiceRecord.
pub(super) fn write(core: &mut Core, now_s: u64, ports: &Ports, request: &Request) -> Answer {
    let rid = rid_of(request);
    let requester = ports.by_lid(request.requester.slid).ok_or(Refusal::Silent)?;
    check_pkey(core, ports, requester, request, &rid)?;
    // An expired lease counts as gone, even if `expire` has not run yet.
    let old = core.services.get(rid).cloned();
    let known = old.as_deref().filter(|row| row.expires_s.is_none_or(|end| end > now_s));
    let allowed = may_write(core, ports, requester, request, known, rid.service_gid);
    match request.method {
        Method::SET => {
            let needed = component::SERVICE_ID | component::SERVICE_GID;
            if !request.component_mask.contains(needed) || !allowed {
                return Err(Status::SA_REQ_INVALID.into());
            }
            if old.is_none() {
                room_at_port(core, ports, request, charged(rid.service_gid, requester.guid))?;
                core.room_for(ports, request, 1)?;
            }
            Ok(set(core, now_s, request, rid, old.as_deref(), requester.guid))
        }
        Method::DELETE => {
            let known = known.filter(|_| allowed).ok_or(Status::SA_NO_RECORDS)?;
            remove(core, &rid);
            Ok(shown(known.record, request))
        }
        _ => Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE.into()),
    }
}

/// The sequence number of the change that ended the effect of a granted request, or a later one;
/// `None` if it lasts: the service is, or is not, registered as requested. A repeat does not extend
/// its lease.
pub(super) fn ended(core: &Core, now_s: u64, request: &Request) -> Option<u64> {
    let rid = rid_of(request);
    let row = core.services.get(rid).filter(|row| row.expires_s.is_none_or(|end| end > now_s));
    let lasts = match request.method {
        Method::DELETE => row.is_none(),
        _ => row.is_some_and(|row| row.record == record_of(request)),
    };
    (!lasts).then(|| core.services.changed_at(rid))
}

fn rid_of(request: &Request) -> ServiceRid {
    let record = ServiceRecord::of(&request.data);
    ServiceRid {
        service_id: record.service_id(),
        service_gid: record.service_gid(),
        service_pkey: record.service_pkey(),
    }
}

/// The record that a Set() stores.
fn record_of(request: &Request) -> [u8; LEN] {
    let mut record = *part::<0, LEN, _>(&request.data);
    if !request.component_mask.contains(component::SERVICE_LEASE) {
        ServiceRecord::of_mut(&mut record).set_service_lease(LEASE_INDEFINITE);
    }
    record
}

fn set(
    core: &mut Core,
    now_s: u64,
    request: &Request,
    rid: ServiceRid,
    old: Option<&Service>,
    asked_by: Guid,
) -> AnswerRecord {
    let mut record = record_of(request);
    let lease = ServiceRecord::of(&record).service_lease();
    // Registry time is rounded down to seconds here, so that a lease lasts up to a second longer.
    let expires_s = (lease != LEASE_INDEFINITE).then(|| now_s + u64::from(lease) + 1);
    let row = Service { rid, record, expires_s };
    match old {
        Some(old) => core.service.replace(old, &row),
        None => core.service.add(&row, asked_by),
    }
    core.services.put(row);
    if !request.component_mask.contains(component::SERVICE_PKEY) {
        // The answer differs from the stored record because clients expect what OpenSM answers.
        ServiceRecord::of_mut(&mut record).set_service_pkey(PKey::DEFAULT_FULL);
    }
    shown(record, request)
}

fn remove(core: &mut Core, rid: &ServiceRid) {
    if let Some(row) = core.services.remove(*rid) {
        core.service.remove(&row);
    }
}

/// The record as the requester may see it: only trusted requesters see ServiceKey.
fn shown(mut record: [u8; LEN], request: &Request) -> AnswerRecord {
    if !request.trusted {
        record[Service::KEY].fill(0);
    }
    AnswerRecord::new(&record)
}

/// A given ServiceP_Key must be a P_Key of both the requester and the service's port (IBA
/// C15-0.1.13).
fn check_pkey(
    core: &Core,
    ports: &Ports,
    requester: &EndPort,
    request: &Request,
    rid: &ServiceRid,
) -> Result<(), Refusal> {
    let mask = request.component_mask;
    if !mask.contains(component::SERVICE_PKEY) {
        return Ok(());
    }
    // 0 means that the service is bound to no partition; any port may use it.
    let has = |port: &EndPort| !rid.service_pkey.is_valid() || port.has_pkey(rid.service_pkey);
    let elsewhere = mask.contains(component::SERVICE_GID) && !rid.service_gid.is_multicast();
    let port = match elsewhere {
        true => core.owner(ports, rid.service_gid.guid()).ok_or(Status::SA_REQ_INVALID)?,
        false => requester,
    };
    if has(requester) && has(port) { Ok(()) } else { Err(Status::SA_REQ_INVALID.into()) }
}

/// Whether this requester may write the service at `gid`, or the stored one, `known` (IBA
/// C15-0.1.14).
fn may_write(
    core: &Core,
    ports: &Ports,
    requester: &EndPort,
    request: &Request,
    known: Option<&Service>,
    gid: Gid,
) -> bool {
    let owner = if gid.is_multicast() { None } else { core.owner(ports, gid.guid()) };
    let key = &request.data[Service::KEY];
    let named = request.component_mask.contains(component::SERVICE_KEY);
    let has_key = named && key.iter().any(|byte| *byte != 0);
    let is_unchanged =
        |row: &Service| request.method == Method::SET && row.record == record_of(request);
    let is_owner = owner.is_some_and(|port| port.guid == requester.guid)
        && (!ports.newcomers().contains(&gid.guid()) || known.is_none_or(is_unchanged));
    request.trusted
        || is_owner
        || has_key && known.is_some_and(|row| equal(&row.record[Service::KEY], key))
        || has_key && known.is_none() && gid.is_multicast()
}

/// Compares secrets in constant time.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// Refuses a service beyond the port's quota.
fn room_at_port(
    core: &mut Core,
    ports: &Ports,
    request: &Request,
    guid: Guid,
) -> Result<(), Refusal> {
    let port = core.owner(ports, guid).map_or(guid, |port| port.guid);
    let aliases = core.guid_info.aliases(port).chain([port, guid]).collect::<BTreeSet<_>>();
    let count = aliases.iter().map(|&guid| core.service.by_guid.of(guid)).sum();
    core.within_quota(request, count, ports.settings.services_per_port_max)
}

/// A service outlives its port: it remains until its lease expires, unless the site drops what
/// ports that left have registered.
pub(super) fn fabric_changed(core: &mut Core, ports: &Ports) {
    if !ports.settings.drop_event_subscriptions {
        return;
    }
    let rows = core.services.rows().iter().map(|row| row.rid);
    let gone = |rid: ServiceRid| {
        let asked = core.service.asked_by.get(&rid);
        let guid = asked.copied().unwrap_or(rid.service_gid.guid());
        core.is_gone(ports, guid).then_some((rid, guid))
    };
    let gone: Vec<(ServiceRid, Guid)> = rows.filter_map(gone).collect();
    for (rid, guid) in &gone {
        lapsed::lapse(core, *guid);
        remove(core, rid);
    }
}

/// Removes services whose lease expired by `now_s`.
pub(super) fn expire(core: &mut Core, now_s: u64) {
    while let Some((expires_s, rid)) = core.service.leases.first().copied() {
        if expires_s > now_s {
            break;
        }
        remove(core, &rid);
    }
}

/// Whether services are registered at this GUID.
pub(super) fn is_at(core: &Core, guid: Guid) -> bool {
    core.service.by_guid.of(guid) > 0
}

/// When the next lease ends, in seconds of registry time.
pub(super) fn next_expiry(core: &Core) -> Option<u64> {
    core.service.leases.first().map(|(expires_s, _)| *expires_s)
}

#[cfg(test)]
mod tests;
