//! What does it cost to send responders a fabric, and a change of it?
//!
//! Milliseconds for each step from planes to messages and back, and the bytes on the wire: for a
//! whole fabric, and for the delta after one cable between two switches is cut.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use benches::fabrics::{FAT_TREE_10000, FAT_TREE_45000, Stated, middle_cable, snapshot};
use benches::figures::{is_benchmark_run, is_wanted, report_figure};
use criterion::{BatchSize, BenchmarkId, Criterion};
use sa_proto::prost::Message as _;
use sa_proto::proto::snapshot::FromSm;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::snapshot::codec::{Decoder, Encoder};
use sa_proto::snapshot::{FabricPlane, RegistryPlane, Snapshot, Version, delta};

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
    let before = managed.plane();
    let old = Arc::new(snapshot(before.clone(), 1));
    managed.cut(middle_cable(&fabric.net()));
    let after = managed.plane();
    let new = snapshot(after.clone(), 2);
    let change = Arc::new(delta::construct(&old, &new));

    let full: Vec<FromSm> = Encoder::full(Arc::clone(&old)).collect();
    let part: Vec<FromSm> = Encoder::delta(Arc::clone(&change)).collect();
    let rows = (old.fabric().nodes.len(), old.fabric().lfts.len());
    let unit = format!("KB in {} messages, {} nodes and {} LFTs", full.len(), rows.0, rows.1);
    report_figure(&format!("snapshot/wire_bytes/full/{}", fabric.name), bytes(&full) / 1024, &unit);
    let unit = format!("KB in {} messages, {} rows", part.len(), change.changes());
    let kilobytes = bytes(&part) as f64 / 1024.0;
    let name = format!("snapshot/wire_bytes/one_link_cut/{}", fabric.name);
    report_figure(&name, format_args!("{kilobytes:.1}"), &unit);

    let checked = after.clone().checked().expect("a sweep leaves no contradictions");
    let version = Version { fabric_generation: 2, ..old.version() };
    let registry = RegistryPlane::default();
    let mut group = criterion.benchmark_group("snapshot");
    let mut bench = |name: &str, step: &mut dyn FnMut()| {
        let id = BenchmarkId::new(name, fabric.name);
        group.bench_function(id, |bencher| bencher.iter(&mut *step));
    };
    bench("encode_full", &mut || {
        black_box(Encoder::full(Arc::clone(&old)).map(|m| m.encoded_len()).sum::<usize>());
    });
    bench("decode_full", &mut || {
        black_box(decode(&full, &Snapshot::empty()));
    });
    bench("construct", &mut || {
        black_box(delta::construct(&old, &new));
    });
    bench("apply", &mut || {
        black_box(delta::apply(&old, &change)).expect("the delta fits");
    });
    bench("succeed", &mut || {
        black_box(old.succeed(version, &checked, &registry));
    });
    bench("encode_delta", &mut || {
        black_box(Encoder::delta(Arc::clone(&change)).map(|m| m.encoded_len()).sum::<usize>());
    });
    bench("decode_and_apply_delta", &mut || {
        black_box(decode(&part, &old));
    });
    group.bench_function(BenchmarkId::new("build_with_digest", fabric.name), |bencher| {
        let plane = || before.clone();
        bencher.iter_batched(plane, |plane| snapshot(plane, 1), BatchSize::PerIteration);
    });
    let plane = || after.clone();
    group.bench_function(BenchmarkId::new("check", fabric.name), |bencher| {
        let check = |plane: FabricPlane| plane.checked().expect("as before");
        bencher.iter_batched(plane, check, BatchSize::PerIteration);
    });
    // As in the publisher, which has the previous plane.
    group.bench_function(BenchmarkId::new("check_since", fabric.name), |bencher| {
        let check = |plane: FabricPlane| plane.checked_since(old.fabric()).expect("as before");
        bencher.iter_batched(plane, check, BatchSize::PerIteration);
    });
    group.bench_function(BenchmarkId::new("plane", fabric.name), |bencher| {
        bencher.iter_with_large_drop(|| managed.plane());
    });
    group.finish();
}

fn bytes(messages: &[FromSm]) -> usize {
    messages.iter().map(|message| message.encoded_len()).sum()
}

fn decode(messages: &[FromSm], held: &Snapshot) -> Snapshot {
    let mut decoder = None;
    for message in messages {
        match message.message.clone().expect("an encoder leaves none empty") {
            Message::Begin(begin) => decoder = Some(Decoder::new(begin).expect("our own message")),
            Message::Chunk(chunk) => {
                let decoder = decoder.as_mut().expect("begun");
                decoder.chunk(&chunk).expect("our own message");
            }
            Message::End(end) => {
                return decoder.expect("begun").finish(end, held).expect("our own message");
            }
            _ => panic!("not of an update"),
        }
    }
    unreachable!("an encoder ends what it begins")
}
