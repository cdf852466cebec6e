//! How long does a responder take to build new tables, and how much of them do queries read?
//!
//! Milliseconds to build all tables from a snapshot's planes on all cores and on one, to follow a
//! cut link and to add one alias GUID to a thousand (by patching the tables, and by rebuilding them
//! over the unchanged parts), and the bytes of the tables from which PathRecord queries by GID or
//! LID read.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use benches::fabrics::{FAT_TREE_10000, FAT_TREE_45000, Stated, middle_cable};
use benches::figures::{is_benchmark_run, is_wanted, report_figure};
use criterion::{BenchmarkId, Criterion};
use ib_mad::types::Guid;
use sa_proto::snapshot::{AliasGuid, FabricPlane, RegistryPlane};
use sa_server::tables::Tables;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    if !is_benchmark_run() {
        return;
    }
    let mut criterion = Criterion::default()
        .without_plots()
        .warm_up_time(Duration::from_secs(1))
        .sample_size(10)
        .configure_from_args();
    for fabric in [FAT_TREE_10000, FAT_TREE_45000] {
        if is_wanted(fabric.name) {
            measure(&mut criterion, fabric);
        }
    }
    criterion.final_summary();
}

fn measure(criterion: &mut Criterion, fabric: Stated) {
    let mut managed = fabric.managed();
    let whole = managed.plane();
    managed.cut(middle_cable(&fabric.net()));
    let cut = managed.plane();
    drop(managed);
    for (state, plane) in [("", &whole), ("_one_link_cut", &cut)] {
        let tables = Tables::build(plane, &RegistryPlane::default());
        let (rows, columns) = tables.paths.host_size();
        let name = format!("tables/hot_bytes/{}{state}", fabric.name);
        let unit = format!("KB, path classes {rows} x {columns} of them");
        report_figure(&name, tables.hot_bytes() / 1024, &unit);
    }
    let one_core = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    let mut group = criterion.benchmark_group("tables/build");
    let build = |plane: &FabricPlane| black_box(Tables::build(plane, &RegistryPlane::default()));
    group.bench_function(BenchmarkId::new("all_cores", fabric.name), |bencher| {
        bencher.iter_with_large_drop(|| build(&whole));
    });
    group.bench_function(BenchmarkId::new("one_core", fabric.name), |bencher| {
        one_core.install(|| bencher.iter_with_large_drop(|| build(&whole)));
    });
    group.finish();

    let tables = Tables::build(&whole, &RegistryPlane::default());
    let cut = Arc::new(cut);
    let mut group = criterion.benchmark_group("tables/one_link_cut");
    group.bench_function(BenchmarkId::new("patched", fabric.name), |bencher| {
        let patch = || tables.patched(&cut).expect("only a link differs");
        bencher.iter_with_large_drop(|| black_box(patch()));
    });
    group.bench_function(BenchmarkId::new("rebuilt", fabric.name), |bencher| {
        let rebuild = || tables.rebuild(&cut, &RegistryPlane::default());
        bencher.iter_with_large_drop(|| black_box(rebuild()));
    });
    group.finish();

    let before = aliases(&whole, 1000);
    let after = aliases(&whole, 1001);
    let tables = Tables::build(&whole, &before);
    let mut group = criterion.benchmark_group("tables/one_alias_guid");
    group.bench_function(BenchmarkId::new("patched", fabric.name), |bencher| {
        bencher.iter_with_large_drop(|| black_box(tables.with_alias_guids(&before, &after)));
    });
    group.bench_function(BenchmarkId::new("rebuilt", fabric.name), |bencher| {
        bencher.iter_with_large_drop(|| black_box(tables.rebuild(&whole, &after)));
    });
    group.finish();
}

/// A registry in which the first `count` ports of channel adapters have an alias GUID each.
fn aliases(plane: &FabricPlane, count: usize) -> RegistryPlane {
    let hosts = plane.nodes.iter().filter(|node| node.switch_info.is_none());
    let alias = |(number, port_guid)| AliasGuid { alias: Guid(number), port_guid, index: 1 };
    let ports = hosts.map(|node| node.ports[0].guid).take(count);
    let rows = (0x00A1_1A5E_0000_0001..).zip(ports).map(alias).map(Arc::new);
    RegistryPlane { alias_guids: rows.collect(), ..RegistryPlane::default() }
}
