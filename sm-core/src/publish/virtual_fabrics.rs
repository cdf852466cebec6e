//! Virtual fabrics as the administration tells of them, from the snapshot that is published.

use ib_mad::types::{Mtu, Rate};
use sa_proto::proto::admin;
use sa_proto::snapshot::{FabricPlane, IdMatch, Snapshot, VirtualFabric};

/// All of them, by precedence.
pub(super) fn list(snapshot: &Snapshot) -> admin::VirtualFabrics {
    let plane = snapshot.fabric();
    admin::VirtualFabrics {
        fabric_generation: snapshot.version().fabric_generation,
        fabrics: plane.virtual_fabrics.iter().map(|row| message(row, plane)).collect(),
    }
}

fn message(row: &VirtualFabric, plane: &FabricPlane) -> admin::VirtualFabric {
    let names = |groups: &[u32]| -> Vec<String> {
        let group = |index: &u32| plane.port_groups.iter().find(|group| group.index == *index);
        groups.iter().filter_map(group).map(|group| group.name.clone()).collect()
    };
    let service_ids = |id: &IdMatch| match *id {
        IdMatch::Range(first, last) => admin::ServiceIds { first, last, mask: None },
        IdMatch::Masked { value, mask } => {
            admin::ServiceIds { first: value, last: value | !mask, mask: Some(mask) }
        }
    };
    admin::VirtualFabric {
        name: row.name.clone(),
        pkey: row.pkey.base().into(),
        base_sl: row.base_sl.get().into(),
        multicast_sl: row.multicast_sl.get().into(),
        mtu_max: row.mtu_max.map_or(0, Mtu::code).into(),
        rate_max: row.rate_max.map_or(0, Rate::code).into(),
        security: row.security,
        qos: row.qos,
        standby: row.standby,
        applications: row.applications.clone(),
        service_ids: row.service_ids.iter().map(service_ids).collect(),
        unmatched_service_ids: row.unmatched_service_ids,
        mgids: row
            .mgids
            .iter()
            .map(|(value, mask)| admin::Mgids { value: value.0.to_vec(), mask: mask.0.to_vec() })
            .collect(),
        unmatched_mgids: row.unmatched_mgids,
        members: names(&row.members),
        limited_members: names(&row.limited_members),
    }
}
