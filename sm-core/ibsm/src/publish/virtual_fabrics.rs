//! Virtual fabrics of the published snapshot, as `ibsmctl` lists them.

use ib_mad::types::{Mtu, Rate};
use sa_proto::proto::admin;
use sa_proto::snapshot::{FabricPlane, IdMatch, Snapshot, VirtualFabric};

/// All virtual fabrics, by precedence.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ib_mad::types::{Gid, PKey, Sl};
    use sa_proto::snapshot::{PortGroup, RegistryPlane, Session};

    use super::*;

    #[test]
    fn rows_are_shown_with_the_names_of_their_groups() {
        let group = PortGroup { index: 7, name: "All".into(), node_types: 7, ports: vec![] };
        let row = VirtualFabric {
            index: 0,
            name: "Storage".into(),
            pkey: PKey(0x8005),
            base_sl: Sl::from_low_bits(3),
            multicast_sl: Sl::from_low_bits(4),
            mtu_max: Some(Mtu::B2048),
            rate_max: None,
            security: true,
            qos: true,
            standby: false,
            applications: vec!["Lustre".into()],
            service_ids: vec![
                IdMatch::Range(1, 9),
                IdMatch::Masked { value: 0x100, mask: u64::MAX << 8 },
            ],
            unmatched_service_ids: false,
            mgids: vec![(Gid([1; 16]), Gid([2; 16]))],
            unmatched_mgids: true,
            members: vec![7, 8],
            limited_members: vec![],
        };
        let plane = FabricPlane {
            port_groups: vec![Arc::new(group)],
            virtual_fabrics: vec![Arc::new(row)],
            ..FabricPlane::default()
        };
        let snapshot =
            Snapshot::build(Session::default(), 3, plane, RegistryPlane::default()).unwrap();
        let listed = list(&snapshot);
        assert_eq!(listed.fabric_generation, 3);
        let fabric = &listed.fabrics[0];
        assert_eq!((fabric.pkey, fabric.base_sl, fabric.multicast_sl), (5, 3, 4));
        assert_eq!((fabric.mtu_max, fabric.rate_max), (4, 0));
        assert_eq!(fabric.members, ["All"]);
        let ids: Vec<_> =
            fabric.service_ids.iter().map(|ids| (ids.first, ids.last, ids.mask)).collect();
        assert_eq!(ids, [(1, 9, None), (0x100, 0x1FF, Some(u64::MAX << 8))]);
        assert_eq!(fabric.mgids[0].value, [1; 16]);
    }
}
