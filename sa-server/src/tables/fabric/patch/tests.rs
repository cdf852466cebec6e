//! Patched tables are those that building them would give.

mod world;

use ib_mad::types::{Lid, PKey};
use proptest::prelude::*;
use sa_proto::snapshot::RegistryPlane;

use super::*;
use crate::tables::fabric::partition::{PAIRED_MAX, PKeySet};
use crate::tables::fabric::{EndClass, Owner};
use world::{Change, LIDS, change, host_lid, ring, sharing, world};

/// Columns and classes may have other numbers.
fn without_numbers(port: &EndPort) -> EndPort {
    EndPort { column: 0, class: 0, ..*port }
}

/// A port with its class and the P_Keys of that, for comparison.
fn described(tables: &Tables, port: &EndPort) -> (EndPort, EndClass, Vec<PKey>) {
    let class = *tables.end_class(port);
    let keys = tables.partitions.keys(class.pkeys);
    (without_numbers(port), EndClass { pkeys: PKeySet::default(), ..class }, keys)
}

/// LID and P_Keys of an owner.
type Described = (Lid, Vec<PKey>);

/// All records with their owners.
fn records_of(tables: &Tables) -> Vec<(Vec<u8>, Vec<Described>)> {
    let RecordTables { nodes, ports, links, .. } = &tables.records;
    let owner = |owner: &Owner| (owner.end_port, tables.partitions.keys(owner.pkeys));
    let all = 0..u32::MAX;
    let of_ports = [nodes, ports].into_iter().flat_map(|records| records.range(all.clone()));
    let of_ports = of_ports.map(|(record, own)| (record.to_vec(), vec![owner(own)]));
    let of_links = links
        .range(all.clone())
        .map(|(record, owners)| (record.to_vec(), vec![owner(&owners.from), owner(&owners.to)]));
    of_ports.chain(of_links).collect()
}

fn assert_same(patched: &Tables, built: &Tables) {
    // Destructured, so that no part is forgotten.
    let Tables {
        subnet,
        end_ports,
        partitions: _,
        paths,
        records,
        qos,
        plane,
        walked,
        sls: _,
        routers,
        alias_guids,
        end_classes,
        lmc,
        direct,
        planes,
        contradictions,
    } = patched;
    assert_eq!(*subnet, built.subnet);
    assert_eq!(**plane, *built.plane);
    let all = |tables: &Tables| {
        tables.end_ports.all().iter().map(|port| described(tables, port)).collect::<Vec<_>>()
    };
    assert_eq!(all(patched), all(built));
    for lid in (0..LIDS as u16).map(Lid) {
        let of = |tables: &Tables| tables.end_ports.by_lid(lid).map(|port| described(tables, port));
        assert_eq!(of(patched), of(built), "{lid:?}");
        assert_eq!(walked.columns.of(lid), built.walked.columns.of(lid), "{lid:?}");
        for source in built.end_ports.all() {
            let class = |tables: &Tables| {
                let source = tables.end_ports.by_guid(source.guid).unwrap();
                let own = tables.paths.row(source.row).map(<[u8]>::len);
                let to = tables.end_ports.by_lid(lid)?;
                assert!(own.is_none_or(|len| to.column == u16::MAX || len > to.column.into()));
                Some(tables.path_class(source, to, lid))
            };
            assert_eq!(class(patched), class(built), "{source:?} to {lid:?}");
        }
    }
    for port in built.end_ports.all() {
        let of_base = end_ports.by_lid(port.lid).unwrap();
        assert_eq!(end_ports.by_guid(port.guid), Some(of_base));
        assert_eq!(paths.is_complete(port.row), built.paths.is_complete(port.row));
    }
    assert_eq!(paths.are_complete(), built.paths.are_complete());
    assert_eq!(*walked.switches, *built.walked.switches);
    let debug = |it: &dyn std::fmt::Debug| format!("{it:?}");
    assert_eq!(records_of(patched), records_of(built));
    let RecordTables { nodes: _, ports: _, links: _, by_node, .. } = records;
    let RecordTables { node_of_lid, nodes_of_lid, by_guid, by_description, .. } = records;
    assert_eq!(debug(by_node), debug(&built.records.by_node));
    assert_eq!(*node_of_lid, built.records.node_of_lid);
    assert_eq!(*nodes_of_lid, built.records.nodes_of_lid);
    assert_eq!(debug(by_guid), debug(&built.records.by_guid));
    assert_eq!(*by_description, built.records.by_description);
    assert_same_keys(patched, built);
    assert!(end_classes.len() <= 2 * built.end_classes.len() + 1024);
    assert_eq!(debug(qos), debug(&built.qos));
    assert_eq!((routers, alias_guids), (&built.routers, &built.alias_guids));
    assert_eq!(*lmc, built.lmc);
    assert_eq!((direct, planes), (&built.direct, &built.planes));
    assert_eq!(*contradictions, built.contradictions);
}

/// Partitions may have other numbers, and some of them no members.
fn assert_same_keys(patched: &Tables, built: &Tables) {
    let of = |tables: &Tables, port: &EndPort| {
        tables.end_class(tables.end_ports.by_guid(port.guid).unwrap()).pkeys
    };
    for a in built.end_ports.all() {
        for b in built.end_ports.all() {
            let relation = |tables: &Tables| {
                let (partitions, a, b) = (&tables.partitions, of(tables, a), of(tables, b));
                (partitions.first_shared(a, b), partitions.visible(a, b))
            };
            assert_eq!(relation(patched), relation(built), "{a:?} and {b:?}");
        }
        for &base in patched.partitions.bases() {
            let is_member = |tables: &Tables| {
                let (partitions, set) = (&tables.partitions, of(tables, a));
                (partitions.is_member(set, PKey(base)), partitions.reaches(set, PKey(base)))
            };
            assert_eq!(is_member(patched), is_member(built), "{a:?} in {base:#x}");
        }
    }
    for &base in built.partitions.bases() {
        assert_eq!(patched.partition_sl(PKey(base)), built.partition_sl(PKey(base)));
    }
    assert_eq!(patched.all_sls_pass(), built.all_sls_pass());
    assert_eq!(patched.all_paths_pass_alike(), built.all_paths_pass_alike());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Step by step, several changes at a time; what no patch covers is built again.
    #[test]
    fn a_patched_table_is_one_built_from_scratch(
        mut world in world(),
        steps in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..12),
    ) {
        let registry = RegistryPlane::default();
        let mut plane = Arc::new(world.plane());
        let mut tables = Tables::build(&plane, &registry);
        for changes in steps {
            changes.iter().for_each(|change| world.apply(change));
            plane = Arc::new(sharing(world.plane(), &plane));
            let built = Tables::build(&plane, &registry);
            let is_covered = changes.iter().all(|change| {
                !matches!(change, Change::Host(_) | Change::Lmc(..))
            });
            let patched = tables.patched(&plane);
            prop_assert!(patched.is_some() || !is_covered, "not patched: {changes:?}");
            if let Some(patched) = &patched {
                assert_same(patched, &built);
            }
            tables = patched.unwrap_or_else(|| tables.rebuild(&plane, &registry));
            assert_same(&tables, &built);
        }
    }
}

#[test]
fn a_cut_cable_leaves_what_it_does_not_concern_shared() {
    let mut world = ring();
    let before = Arc::new(world.plane());
    let tables = Tables::build(&before, &RegistryPlane::default());
    world.apply(&Change::Cable(0));
    let after = Arc::new(sharing(world.plane(), &before));
    let patched = tables.patched(&after).expect("a cable between switches");
    assert!(Arc::ptr_eq(&patched.records.nodes, &tables.records.nodes));
    assert!(Arc::ptr_eq(&patched.end_classes, &tables.end_classes));
    assert!(!Arc::ptr_eq(&patched.records.links, &tables.records.links));
    assert_eq!(patched.records.links.len(), tables.records.links.len() - 2);
    let hops = |tables: &Tables| {
        let [from, to] = [0, 3].map(|host| *tables.end_ports.by_lid(host_lid(host)).unwrap());
        tables.path_class(&from, &to, to.lid).hops
    };
    assert_eq!((hops(&tables), hops(&patched)), (2, 4), "around the ring");
}

#[test]
fn hosts_that_come_or_change_are_not_patched() {
    let mut world = ring();
    let before = Arc::new(world.plane());
    let tables = Tables::build(&before, &RegistryPlane::default());
    for change in [Change::Host(0), Change::Lmc(1, 2)] {
        world.apply(&change);
        let after = Arc::new(sharing(world.plane(), &before));
        assert!(tables.patched(&after).is_none(), "{change:?}");
        world = ring();
    }
}

#[test]
fn a_host_that_joins_a_partition_is_patched_until_too_many_tables_remain_of_others() {
    let mut world = ring();
    let mut plane = Arc::new(world.plane());
    let mut tables = Tables::build(&plane, &RegistryPlane::default());
    let walked = Arc::clone(&tables.walked.switches);
    for number in 0..2 * PAIRED_MAX as u16 {
        world.apply(&Change::PKey(2, number + 10));
        plane = Arc::new(sharing(world.plane(), &plane));
        let Some(patched) = tables.patched(&plane) else { break };
        tables = patched;
        assert!(Arc::ptr_eq(&tables.walked.switches, &walked));
    }
    assert_eq!(tables.partitions.sets(), PAIRED_MAX);
    assert!(tables.patched(&plane).is_none(), "relations of more tables are not precomputed");
    let built = Tables::build(&plane, &RegistryPlane::default());
    assert_same(&tables.rebuild(&plane, &RegistryPlane::default()), &built);
    assert!(built.partitions.sets() < 4);
}
