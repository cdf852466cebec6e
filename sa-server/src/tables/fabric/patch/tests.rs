//! Patched tables are those that building them would give.

mod world;

use ib_mad::types::Lid;
use proptest::prelude::*;
use sa_proto::snapshot::RegistryPlane;

use super::*;
use world::{Change, LIDS, change, host_lid, ring, sharing, world};

/// Columns may have other numbers.
fn without_column(port: &EndPort) -> EndPort {
    EndPort { column: 0, ..*port }
}

fn assert_same(patched: &Tables, built: &Tables) {
    // Destructured, so that no part is forgotten.
    let Tables {
        subnet,
        end_ports,
        partitions,
        paths,
        records,
        qos,
        plane,
        walked,
        sls,
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
    let all = |ports: &[EndPort]| ports.iter().map(without_column).collect::<Vec<_>>();
    assert_eq!(all(end_ports.all()), all(built.end_ports.all()));
    for lid in (0..LIDS as u16).map(Lid) {
        let of = |tables: &Tables| tables.end_ports.by_lid(lid).map(without_column);
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
        let of_base = patched.end_ports.by_lid(port.lid).unwrap();
        assert_eq!(patched.end_ports.by_guid(port.guid), Some(of_base));
        assert_eq!(paths.is_complete(port.row), built.paths.is_complete(port.row));
    }
    assert_eq!(paths.are_complete(), built.paths.are_complete());
    assert_eq!(*walked.switches, *built.walked.switches);
    let debug = |it: &dyn std::fmt::Debug| format!("{it:?}");
    assert_eq!(debug(records), debug(&built.records));
    assert_eq!(debug(sls), debug(&built.sls));
    assert_eq!(debug(partitions), debug(&built.partitions));
    assert_eq!(debug(qos), debug(&built.qos));
    assert_eq!((routers, alias_guids), (&built.routers, &built.alias_guids));
    assert_eq!((end_classes, lmc), (&built.end_classes, &built.lmc));
    assert_eq!((direct, planes), (&built.direct, &built.planes));
    assert_eq!(*contradictions, built.contradictions);
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
                !matches!(change, Change::Host(_) | Change::Lmc(..) | Change::PKey(..))
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
    for change in [Change::Host(0), Change::Lmc(1, 2), Change::PKey(2, 2)] {
        world.apply(&change);
        let after = Arc::new(sharing(world.plane(), &before));
        assert!(tables.patched(&after).is_none(), "{change:?}");
        world = ring();
    }
}
