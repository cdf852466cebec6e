//! Virtual fabrics of the published snapshot, as `ibsmctl` lists them.

use ib_mad::types::{Mtu, Rate};
use ib_mad::wire::attribute::NodeType;
use sa_proto::proto::admin;
use sa_proto::snapshot::{FabricPlane, IdMatch, PortGroup, Snapshot, VirtualFabric};
use tonic::Status;

use super::port_name;

/// The virtual fabrics of an end port, by precedence; all if its name is empty.
///
/// # Errors
///
/// If not exactly one end port has the name.
pub(super) fn list(snapshot: &Snapshot, member: &str) -> Result<admin::VirtualFabrics, Status> {
    let plane = snapshot.fabric();
    let port = match member {
        "" => None,
        name => Some(port_name::find(plane, name)?),
    };
    let of_member = |row: &std::sync::Arc<VirtualFabric>| match port {
        None => Some(message(row, plane)),
        Some(port) => {
            let is_full_member = Some(is_full_member(row, plane, port)?);
            Some(admin::VirtualFabric { is_full_member, ..message(row, plane) })
        }
    };
    Ok(admin::VirtualFabrics {
        fabric_generation: snapshot.version().fabric_generation,
        fabrics: plane.virtual_fabrics.iter().filter_map(of_member).collect(),
    })
}

/// Whether a port is a full member; `None` if it is no member.
fn is_full_member(
    row: &VirtualFabric,
    plane: &FabricPlane,
    (node, port): port_name::Found<'_>,
) -> Option<bool> {
    let kind = match port_name::node_type(node) {
        Some(NodeType::Ca) => PortGroup::NODE_CA,
        Some(NodeType::Switch) => PortGroup::NODE_SWITCH,
        Some(NodeType::Router) => PortGroup::NODE_ROUTER,
        _ => 0,
    };
    let is_in = |index: &u32| {
        let group = plane.port_groups.iter().find(|group| group.index == *index);
        group.is_some_and(|group| {
            group.node_types & kind != 0 || group.ports.binary_search(&port.guid).is_ok()
        })
    };
    let is_full = row.members.iter().any(is_in);
    (is_full || row.limited_members.iter().any(is_in)).then_some(is_full)
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
        index: row.index,
        is_full_member: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ib_mad::types::Guid;
    use ib_mad::types::{Gid, PKey, Sl};
    use sa_proto::snapshot::{RegistryPlane, Session};

    use super::*;
    use crate::publish::port_name::tests::adapter;

    fn fabric(index: u32, members: &[u32], limited_members: &[u32]) -> Arc<VirtualFabric> {
        Arc::new(VirtualFabric {
            index,
            name: index.to_string(),
            pkey: PKey(0x8005),
            security: true,
            members: members.to_vec(),
            limited_members: limited_members.to_vec(),
            ..VirtualFabric::default()
        })
    }

    #[test]
    fn those_of_a_member_are_listed_with_its_membership() {
        let group = |index, node_types, ports: &[u64]| {
            let ports = ports.iter().copied().map(Guid).collect();
            Arc::new(PortGroup { index, name: String::new(), node_types, ports })
        };
        let plane = FabricPlane {
            nodes: vec![adapter(0xA_0000, "node1 HCA-1", 1), adapter(0xA_0010, "node2 HCA-1", 1)],
            port_groups: vec![
                group(0, PortGroup::NODE_CA, &[]),
                group(1, 0, &[0xA_0001]),
                group(2, PortGroup::NODE_SWITCH, &[]),
            ],
            virtual_fabrics: vec![
                fabric(0, &[1], &[0]),
                fabric(1, &[2], &[]),
                fabric(2, &[2], &[1]),
                fabric(3, &[0], &[]),
            ],
            ..FabricPlane::default()
        };
        let snapshot =
            Snapshot::build(Session::default(), 3, plane, RegistryPlane::default()).unwrap();
        let of = |member: &str| -> Vec<_> {
            let listed = list(&snapshot, member).unwrap().fabrics;
            listed.iter().map(|fabric| (fabric.index, fabric.is_full_member)).collect()
        };
        assert_eq!(of("node1"), [(0, Some(true)), (2, Some(false)), (3, Some(true))]);
        assert_eq!(of("0xA0011"), [(0, Some(false)), (3, Some(true))]);
        assert_eq!(of("").len(), 4);
        let unknown = list(&snapshot, "node3").unwrap_err();
        assert_eq!(unknown.message(), "no end port 'node3' is in the fabric");
    }

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
            security: true,
            qos: true,
            applications: vec!["Lustre".into()],
            service_ids: vec![
                IdMatch::Range(1, 9),
                IdMatch::Masked { value: 0x100, mask: u64::MAX << 8 },
            ],
            mgids: vec![(Gid([1; 16]), Gid([2; 16]))],
            unmatched_mgids: true,
            members: vec![7, 8],
            ..VirtualFabric::default()
        };
        let plane = FabricPlane {
            port_groups: vec![Arc::new(group)],
            virtual_fabrics: vec![Arc::new(row)],
            ..FabricPlane::default()
        };
        let snapshot =
            Snapshot::build(Session::default(), 3, plane, RegistryPlane::default()).unwrap();
        let listed = list(&snapshot, "").unwrap();
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
