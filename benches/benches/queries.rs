//! What does it cost to answer a query, without the transport?
//!
//! Nanoseconds per answer, or per record of a table, through the responder's own entry point: 64
//! requests of 256 bytes are checked, looked up and answered in the buffers in which they arrived,
//! which are written again before each batch. Only the answering is timed, and every answer is
//! checked.
//!
//! - `hot`: tables stay in the caches, as far as they fit.
//! - `evicted`: 8 MiB are read before every batch, more than the caches of a core hold.
//!
//! For a table the time is that of the whole transfer, from the request to the client's last
//! acknowledgement, divided by its records. A figure is the tenth percentile of the batches; slower
//! ones were delayed by other load of the machine.
//!
//! `cargo bench -p benches --bench queries -- path_by_gids/hot/fat_tree_10000` measures the rows
//! that match its regular expression; a fabric is brought up when the first row needs it.

use std::cell::OnceCell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use benches::fabrics::{FAT_TREE_1000, FAT_TREE_10000, FAT_TREE_45000, Stated};
use benches::figures::is_benchmark_run;
use benches::rows::{Ask, ROWS, Row, Stand};
use benches::subject::BATCH;
use criterion::{Bencher, Criterion};
use sa_proto::snapshot::FabricPlane;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Distinct requests: enough that consecutive ones share no cache lines.
const REQUESTS: usize = 1 << 15;
/// Bytes read to evict the tables from a core's own caches.
const EVICTION: usize = 8 << 20;

fn main() {
    if !is_benchmark_run() {
        return;
    }
    let mut criterion = Criterion::default()
        .without_plots()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(10)
        .configure_from_args();
    for fabric in [FAT_TREE_1000, FAT_TREE_10000, FAT_TREE_45000] {
        let plane = OnceCell::new();
        for row in &ROWS {
            measure(&mut criterion, fabric, &plane, row);
        }
    }
    criterion.final_summary();
}

fn bring_up(fabric: Stated) -> FabricPlane {
    let start = Instant::now();
    let plane = fabric.managed().plane();
    eprintln!("{}: up after {:.1} s", fabric.name, start.elapsed().as_secs_f64());
    plane
}

fn measure(criterion: &mut Criterion, fabric: Stated, plane: &OnceCell<FabricPlane>, row: &Row) {
    let mut stand = None;
    let mut ready = |run: &mut dyn FnMut(&mut Stand)| {
        let make = || Stand::new(plane.get_or_init(|| bring_up(fabric)), row, REQUESTS);
        run(stand.get_or_insert_with(make));
    };
    let name = |mode: &str| format!("{}/{mode}/{}", row.name, fabric.name);
    if let Ask::One(_) = row.ask {
        for (mode, eviction) in [("hot", 0), ("evicted", EVICTION)] {
            criterion.bench_function(&name(mode), |bencher| {
                ready(&mut |stand| batches(bencher, stand, eviction));
            });
        }
    } else {
        criterion.bench_function(&name("hot"), |bencher| {
            ready(&mut |stand| transfers(bencher, stand));
        });
    }
}

fn batches(bencher: &mut Bencher<'_>, stand: &mut Stand, eviction: usize) {
    let cold = vec![1u64; eviction / size_of::<u64>()];
    let mut batch = || {
        black_box(cold.iter().sum::<u64>());
        stand.refill();
        let start = Instant::now();
        stand.answer();
        let time = start.elapsed();
        stand.check();
        (time, BATCH)
    };
    bencher.iter_custom(|iterations| lower_decile(iterations, &mut batch));
}

fn transfers(bencher: &mut Bencher<'_>, stand: &mut Stand) {
    let mut transfer = || {
        let mut request = stand.next_request();
        let start = Instant::now();
        let units = stand.fetch(&mut request);
        (start.elapsed(), units)
    };
    bencher.iter_custom(|iterations| lower_decile(iterations, &mut transfer));
}

/// Measures until `iterations` units are done; returns their time at the rate of the fast batches.
fn lower_decile(iterations: u64, mut run: impl FnMut() -> (Duration, usize)) -> Duration {
    let (mut paces, mut done) = (Vec::new(), 0);
    while done < iterations {
        let (time, units) = run();
        paces.push(time.as_nanos() as f64 / units as f64);
        done += units as u64;
    }
    let at = paces.len() / 10;
    let (_, pace, _) = paces.select_nth_unstable_by(at, f64::total_cmp);
    Duration::from_nanos((*pace * iterations as f64) as u64)
}
