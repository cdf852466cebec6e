//! ServiceRecord: the services in the partitions of the requester, and those without a partition at
//! ports that it shares one with, or at groups of its partitions.
//!
//! Only trusted requesters see the ServiceKey; a requester that knows the key may search by it.

use std::ops::ControlFlow;

use ib_mad::types::{Gid, PKey, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::record::service::component as service;
use ib_mad::wire::record::{McMemberRecord, ServiceRecord};
use ib_mad::wire::sa::{ComponentMask, attribute};
use sa_proto::snapshot::{Service, ServiceRid};

use super::{EndPort, Family, Found, Query, Refusal};
use ib_mad::wire::pattern::{Component, Pattern};

pub(super) const FAMILY: Family =
    Family::readable(attribute::SERVICE_RECORD, ServiceRecord::LEN, find).writable().of_registry();

const DATA: usize = 28;

/// The words of ServiceData8 to ServiceData64 are separate components.
const COMPONENTS: &[Component; 6 + DATA + 2] = &{
    let mut all = [of(service::SERVICE_ID, "service_id"); 6 + DATA + 2];
    all[1] = of(service::SERVICE_GID, "service_gid");
    all[2] = of(service::SERVICE_PKEY, "service_pkey");
    all[3] = of(service::SERVICE_LEASE, "service_lease");
    all[4] = of(service::SERVICE_KEY, "service_key");
    all[5] = of(service::SERVICE_NAME, "service_name");
    // Bit of the first word's component, number of words, first bit in the record, width.
    let groups = [(7, 16, 896, 8), (23, 8, 1024, 16), (31, 4, 1152, 32), (35, 2, 1280, 64)];
    let mut at = 6;
    let mut group = 0;
    while group < groups.len() {
        let (number, words, bit, width) = groups[group];
        let mut word = 0;
        while word < words {
            let mask = ComponentMask::component(number + word);
            all[at] = Component::at(mask, bit + word as usize * width, width);
            at += 1;
            word += 1;
        }
        group += 1;
    }
    assert!(at == all.len());
    all
};

const fn of(mask: ComponentMask, field: &str) -> Component {
    Component::of(mask, ServiceRecord::FIELDS, field, 0)
}

/// Whether `requester` may see a service: it is a member of the service's partition, or, if that
/// has none, of that of the group whose GID the service has, or it can reach the service's port.
/// One whose port is absent is reached by no one: its partitions are not known, and only those that
/// see all see it, unless its GID is one of another subnet.
fn may_see(query: &Query<'_>, requester: &EndPort, service: &ServiceRid) -> bool {
    if service.service_pkey.is_valid() {
        return query.may_see_partition(requester, service.service_pkey);
    }
    if let Some(group) = query.registry.groups.find(service.service_gid) {
        return query.may_see_partition(requester, McMemberRecord::of(&group.record).pkey());
    }
    let port = query.tables.end_ports.by_guid(service.service_gid.guid());
    match port {
        Some(port) => query.may_see_port(requester, port),
        None => {
            let prefixes = [SUBNET_PREFIX_DEFAULT, query.tables.subnet.prefix];
            query.sees_all() || !prefixes.contains(&service.service_gid.prefix())
        }
    }
}

fn find(query: &Query<'_>, found: &mut Found<'_>) -> Result<(), Refusal> {
    let requester = query.requester()?;
    let request = ServiceRecord::of(query.record);
    let has = |component| query.mask.contains(component);
    let pattern = Pattern::new(COMPONENTS, query.mask, query.record);
    let mut offer = |row: &Service| {
        if pattern.matches(&row.record) && may_see(query, requester, &row.rid) {
            let mut record = row.record;
            if !query.trusted {
                record[Service::KEY].fill(0);
            }
            found.push(&record)?;
        }
        found.step()
    };
    let services = &query.registry.services;
    let service_id = request.service_id();
    let _: ControlFlow<()> = if has(service::SERVICE_ID) {
        // Further components of the RID, in its order, narrow the search too.
        let gid = has(service::SERVICE_GID).then(|| request.service_gid());
        let first =
            ServiceRid { service_id, service_gid: gid.unwrap_or(Gid::ZERO), service_pkey: PKey(0) };
        services
            .range(first..)
            .take_while(|row| {
                row.rid.service_id == service_id && gid.is_none_or(|gid| row.rid.service_gid == gid)
            })
            .try_for_each(|row| offer(row))
    } else if has(service::SERVICE_NAME) {
        let name = request.service_name();
        let named = query.index.services_named(&name);
        named.filter_map(|rid| services.find(rid)).try_for_each(|row| offer(row))
    } else if has(service::SERVICE_GID) {
        let offered = query.index.services_of(request.service_gid());
        offered.filter_map(|rid| services.find(rid)).try_for_each(|row| offer(row))
    } else {
        services.iter().try_for_each(|row| offer(row))
    };
    Ok(())
}
