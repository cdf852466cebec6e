//! What do metrics cost per query? Nanoseconds to count a request, its answer and its path.

use std::hint::black_box;

use benches::figures::is_benchmark_run;
use criterion::Criterion;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::sa::attribute;
use sa_server::stats::{Stats, Subject};
use sa_server::tables::qos_match::LevelSlot;

fn main() {
    if !is_benchmark_run() {
        return;
    }
    let mut criterion = Criterion::default().without_plots().configure_from_args();
    let stats = Stats::default();
    criterion.bench_function("counting/get_path", |bencher| {
        bencher.iter(|| {
            let subject = Subject::of(black_box(attribute::PATH_RECORD), black_box(Method::GET));
            stats.count_requests(subject, 1);
            stats.count_responses(subject, black_box(Status::OK), 1);
            stats.levels.increment(black_box(LevelSlot::NONE));
        });
    });
    criterion.final_summary();
}
