//! Builds the tables of a fabric plane: scans its nodes, then walks the routes.

use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::{AliasGuid, FabricPlane, Port, RegistryPlane, find};

use super::end_port::{EndPort, EndPorts};
use super::partition::PartitionsBuilder;
use super::path::Paths;
use super::scan::{Fabric, Scanned};
use super::sl::Sls;
use super::virtual_ports::VirtualNames;
use super::walk::{Before, Switches, Topology, columns};
use super::{AliasPlace, Tables, Walked};
use crate::tables::qos_match::{GroupSets, QosMatcher};

/// Builds the tables of one snapshot; parts equal to those of the previous one are reused.
pub(super) fn build(
    plane: &FabricPlane,
    registry: &RegistryPlane,
    before: Option<&Tables>,
) -> Tables {
    let fabric = Fabric::scan(plane);
    let topology = topology(plane, fabric.switches());
    let mut partitions = PartitionsBuilder::new(plane.subnet.allow_both_pkeys);
    let mut groups = GroupSets::of(plane);
    let lids = fabric.lids();
    let before = before.map(|before| (topology_of(before), &*before.walked.columns));
    let before = before.as_ref().map(|(topology, columns)| Before { topology, columns });
    let (nodes, (columns, paths, column)) = rayon::join(
        || {
            let mut intern =
                |scanned: &Scanned<'_>, port: &Port| partitions.intern(scanned.keys(port));
            (fabric.records(plane, &mut intern), fabric.end_ports(&mut intern, &mut groups))
        },
        || {
            let columns = columns(&topology, &lids, before);
            let (paths, column) = Paths::build(fabric.host_rows, &columns);
            (columns, paths, column)
        },
    );
    let (mut records, (mut end_classes, mut ports)) = nodes;
    let column_of = |lid: Lid| column.get(lid.index()).copied().unwrap_or(EndPort::DETACHED);
    for port in &mut ports {
        port.column = column_of(port.lid);
    }

    let names = VirtualNames::of(plane, &ports, &mut end_classes, &mut partitions);
    let lmc_of = |port: &EndPort| end_classes[port.class()].lmc;
    let (mut end_ports, mut contradictions) = EndPorts::build(ports, lmc_of, column_of);
    if !names.names.is_empty() {
        let (named, [_, refused]) = end_ports.with_aliases(&[], &names.names);
        end_ports = named.with_lid_classes(&names.by_lid);
        contradictions += refused + names.left_out;
    }
    records.node_of_lid = fabric.node_of_lid(&lids);
    records.index(&end_ports);
    let partitions = partitions.finish();
    let tables = Tables {
        qos: QosMatcher::compile(plane, &groups, partitions.bases()),
        sls: Sls::of(plane, &partitions),
        routers: fabric.routers().into(),
        plane: Arc::new(plane.clone()),
        subnet: plane.subnet.clone(),
        end_ports,
        lmc: end_classes.iter().map(|class| class.lmc).max().unwrap_or(0).min(7),
        end_classes: end_classes.into(),
        partitions,
        paths,
        walked: Walked { switches: topology.switches, columns: Arc::new(columns) },
        records,
        alias_guids: Arc::default(),
        direct: fabric.direct_links().into(),
        planes: fabric.plane_rows().into(),
        contradictions,
    };
    with_alias_guids(&tables, &RegistryPlane::default(), registry)
}

/// Where packets go by a plane's tables.
pub(super) fn topology(plane: &FabricPlane, switches: impl Into<Arc<Switches>>) -> Topology<'_> {
    let switches = switches.into();
    let entries = |guid: &Guid| find(&plane.lfts, *guid).map_or(&[][..], |lft| &lft.ports[..]);
    let lfts = switches.guids.iter().map(entries).collect();
    let entries = |guid: &Guid| find(&plane.path_sls, *guid).map_or(&[][..], |row| &row.sls[..]);
    let sls = switches.guids.iter().map(entries).filter(|_| !plane.path_sls.is_empty()).collect();
    Topology { switches, lfts, sls }
}

/// Results of walking the routes of the plane.
pub(super) fn topology_of(tables: &Tables) -> Topology<'_> {
    topology(&tables.plane, tables.walked.switches.clone())
}

/// A record for an alias GUID: its port's, under another GUID.
fn alias_of(ports: &EndPorts, row: &AliasGuid) -> Option<EndPort> {
    Some(EndPort { guid: row.alias, ..*ports.by_own_guid(row.port_guid)? })
}

fn place_of(row: &AliasGuid) -> AliasPlace {
    (row.port_guid, row.index, row.alias)
}

/// Same tables with other aliases.
pub(super) fn with_alias_guids(
    tables: &Tables,
    old: &RegistryPlane,
    new: &RegistryPlane,
) -> Tables {
    let ports = &tables.end_ports;
    let (mut gone, mut come) = (Vec::new(), Vec::new());
    let (mut left, mut taken) = (Vec::new(), Vec::new());
    for (before, now) in new.alias_guids.differences(&old.alias_guids) {
        if let Some(row) = before {
            gone.extend(alias_of(ports, row));
            left.push(place_of(row));
        }
        if let Some(row) = now {
            come.extend(alias_of(ports, row));
            taken.push(place_of(row));
        }
    }
    left.sort_unstable();
    let mut places: Vec<AliasPlace> = Vec::with_capacity(tables.alias_guids.len() + taken.len());
    let stays = |place: &&AliasPlace| left.binary_search(place).is_err();
    places.extend(tables.alias_guids.iter().filter(stays));
    places.extend(taken);
    // Two runs, the first of them sorted.
    places.sort();
    let (end_ports, [released, refused]) = ports.with_aliases(&gone, &come);
    Tables {
        end_ports,
        alias_guids: places.into(),
        contradictions: (tables.contradictions + refused).saturating_sub(released),
        ..tables.clone()
    }
}
