//! ServiceRecord: services and their leases (15.2.5.14).
//!
//! A service belongs to the port of its ServiceGID. That port, whoever knows the ServiceKey, and
//! trusted requesters change and delete it; nobody else does. One at a multicast GID belongs to
//! whoever knows its key. The record is found by the bytes of its RID, whatever the component mask
//! says, and components that are not in the mask are stored as they came.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;
use ib_mad::types::{Gid, Guid, PKey};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::ServiceRecord;
use ib_mad::wire::record::service::{LEASE_INDEFINITE, component};
use sa_proto::snapshot::{Service, ServiceRid};

use super::quota::{NOBODY, Tally};
use super::{Answer, AnswerRecord, Core, EndPort, Ports, Refusal, Request};

/// Length of the record.
const LEN: usize = ServiceRecord::LEN;

/// What is kept beside the rows.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Leases that end, by the second after which they are over.
    leases: BTreeSet<(u64, ServiceRid)>,
    /// Services by the lower half of their GID; those at multicast GIDs by the port that asked.
    by_guid: Tally,
    /// Which port that was.
    asked_by: HashMap<ServiceRid, Guid, RandomState>,
}

impl Index {
    /// Takes in a row that `port` asked for.
    fn add(&mut self, row: &Service, port: Guid) {
        self.leases.extend(row.expires_s.map(|expires_s| (expires_s, row.rid)));
        if row.rid.service_gid.is_multicast() {
            self.asked_by.insert(row.rid, port);
        }
        self.by_guid.add(charged(row.rid.service_gid, port));
    }

    /// Takes out a row; the port that asked for it at first.
    fn remove(&mut self, row: &Service) -> Guid {
        if let Some(expires_s) = row.expires_s {
            self.leases.remove(&(expires_s, row.rid));
        }
        let port = self.asked_by.remove(&row.rid).unwrap_or(NOBODY);
        self.by_guid.remove(charged(row.rid.service_gid, port));
        port
    }
}

/// The GUID that a service is charged to.
fn charged(gid: Gid, asked_by: Guid) -> Guid {
    if gid.is_multicast() { asked_by } else { gid.guid() }
}

/// Builds the index of restored rows.
pub(super) fn restore(core: &mut Core) {
    let mut index = Index::default();
    core.services.rows().iter().for_each(|row| index.add(row, NOBODY));
    core.service = index;
}

/// Decides on a Set() or Delete().
pub(super) fn write(core: &mut Core, now_s: u64, ports: &Ports, request: &Request) -> Answer {
    let record = ServiceRecord::new(&request.data).expect("200 bytes");
    let rid = ServiceRid {
        service_id: record.service_id(),
        service_gid: record.service_gid(),
        service_pkey: record.service_pkey(),
    };
    let requester = ports.by_lid(request.requester.slid).ok_or(Status::SA_REQ_INVALID)?;
    check_pkey(core, ports, requester, request, &rid)?;
    // A lease that is over is over, even if nobody has swept up yet.
    let old = core.services.get(rid).cloned();
    let known = old.as_deref().filter(|row| row.expires_s.is_none_or(|end| end > now_s));
    let allowed = may_write(core, ports, requester, request, known, rid.service_gid);
    match request.method {
        Method::SET => {
            let needed = component::SERVICE_ID | component::SERVICE_GID;
            if !request.component_mask.contains(needed) || !allowed {
                return Err(Status::SA_REQ_INVALID.into());
            }
            let asked_by = if let Some(old) = &old {
                core.service.remove(old)
            } else {
                room_at_port(core, ports, request, charged(rid.service_gid, requester.guid))?;
                core.room_for(ports, request, 1)?;
                requester.guid
            };
            Ok(set(core, now_s, request, rid, asked_by))
        }
        Method::DELETE => {
            let known = known.filter(|_| allowed).ok_or(Status::SA_NO_RECORDS)?;
            remove(core, &rid);
            Ok(shown(known.record, request))
        }
        _ => Err(Status::UNSUPPORTED_METHOD_ATTRIBUTE.into()),
    }
}

fn set(
    core: &mut Core,
    now_s: u64,
    request: &Request,
    rid: ServiceRid,
    asked_by: Guid,
) -> AnswerRecord {
    let mut record = [0; LEN];
    record.copy_from_slice(&request.data[..LEN]);
    let mask = request.component_mask;
    let mut view = ServiceRecord::new(&mut record[..]).expect("176 bytes");
    if !mask.contains(component::SERVICE_LEASE) {
        view.set_service_lease(LEASE_INDEFINITE);
    }
    let lease = view.service_lease();
    let expires_s = (lease != LEASE_INDEFINITE).then(|| now_s + u64::from(lease));
    let row = Service { rid, record, expires_s };
    core.service.add(&row, asked_by);
    core.services.put(row);
    if !mask.contains(component::SERVICE_PKEY) {
        // Told, though it is not what is stored: clients have come to expect it of OpenSM.
        ServiceRecord::new(&mut record[..])
            .expect("176 bytes")
            .set_service_pkey(PKey::DEFAULT_FULL);
    }
    shown(record, request)
}

fn remove(core: &mut Core, rid: &ServiceRid) {
    if let Some(row) = core.services.remove(*rid) {
        core.service.remove(&row);
    }
}

/// The record as the requester may see it: ServiceKey is for the trusted.
fn shown(mut record: [u8; LEN], request: &Request) -> AnswerRecord {
    if !request.trusted {
        record[Service::KEY].fill(0);
    }
    AnswerRecord::new(&record)
}

/// A ServiceP_Key that is named must be one of the requester's, and one of the service's port.
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
    // 0 is every port's: it says that the service is in no partition of its own.
    let has = |port: &EndPort| !rid.service_pkey.is_valid() || port.has_pkey(rid.service_pkey);
    let elsewhere = mask.contains(component::SERVICE_GID) && !rid.service_gid.is_multicast();
    let port = match elsewhere {
        true => core.owner(ports, rid.service_gid.guid()).ok_or(Status::SA_REQ_INVALID)?,
        false => requester,
    };
    if has(requester) && has(port) { Ok(()) } else { Err(Status::SA_REQ_INVALID.into()) }
}

/// Whether the service at `gid`, or the one that is `known`, is for this requester to write.
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
    request.trusted
        || owner.is_some_and(|port| port.guid == requester.guid)
        || has_key && known.is_some_and(|row| equal(&row.record[Service::KEY], key))
        || has_key && known.is_none() && gid.is_multicast()
}

/// Compares secrets in a time that does not tell where they differ.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// Refuses what would give a port more services than it may have.
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

/// A service outlives its port: it is there for as long as its lease says.
pub(super) fn fabric_changed(_core: &mut Core, _ports: &Ports) {}

/// Takes out services whose lease has ended by `now_s`.
pub(super) fn expire(core: &mut Core, now_s: u64) {
    while let Some((expires_s, rid)) = core.service.leases.first().copied() {
        if expires_s > now_s {
            break;
        }
        remove(core, &rid);
    }
}

/// When the next lease ends, in seconds since 1970.
pub(super) fn next_expiry(core: &Core) -> Option<u64> {
    core.service.leases.first().map(|(expires_s, _)| *expires_s)
}

#[cfg(test)]
mod tests;
