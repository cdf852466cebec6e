//! What does it cost to answer a query, transport aside?
//!
//! Nanoseconds an answer, through the responder's own entry: a request of 256 bytes is checked,
//! looked up and answered in the buffer it came in. Requests are written into 64 buffers, which is
//! not timed, and then answered; a figure is the median of such batches.
//!
//! - `one_by_one`: each by a call of its own; tables stay in the caches.
//! - `batch`: all 64 by one call, as a worker does.
//! - `evicted`: the same after 6 MiB were read, which is more than the caches of a core hold.
//!
//! `get_table_one_source` is told by record: the time of a whole GetTable, from request to the
//! client's last acknowledgement, divided by the records in it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::fabrics::{FAT_TREE_10000, FAT_TREE_45000, Stated};
use benches::figures::{is_benchmark_run, is_wanted};
use benches::requests::{Draw, Host, Kind, hosts};
use criterion::{Bencher, BenchmarkId, Criterion};
use ib_mad::transport::Packet;
use ib_mad::wire::mad::Method;
use ib_mad::wire::rmpp::{RmppFlags, RmppType};
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{RegistryPlane, Version};
use sa_server::cell::{Generation, Publisher};
use sa_server::responder::{Outcome, Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;

/// Requests answered between two readings of the clock.
const BATCH: usize = 64;
/// Distinct requests: enough that neighbours in time have nothing in common.
const REQUESTS: usize = 1 << 16;
/// Bytes read to push the tables out of a core's own caches.
const EVICTION: usize = 6 << 20;

fn main() {
    if !is_benchmark_run() {
        return;
    }
    let mut criterion = Criterion::default()
        .without_plots()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
        .configure_from_args();
    for fabric in [FAT_TREE_10000, FAT_TREE_45000] {
        if is_wanted(fabric.name) {
            measure(&mut criterion, fabric);
        }
    }
    criterion.final_summary();
}

fn measure(criterion: &mut Criterion, fabric: Stated) {
    let mut bench = Bench::new(fabric);
    let kinds = [
        ("by_gid_pair", Kind::PathByGids),
        ("by_lid_pair", Kind::PathByLids),
        ("node_record_by_lid", Kind::NodeByLid),
    ];
    for (name, kind) in kinds {
        bench.load(kind);
        let mut group = criterion.benchmark_group(format!("path_query/{name}"));
        let modes: [(&str, Answer); 4] = [
            ("one_by_one", Bench::one_by_one),
            ("batch", Bench::batch),
            ("evicted_one_by_one", |bench| bench.evicted(Bench::one_by_one)),
            ("evicted_batch", |bench| bench.evicted(Bench::batch)),
        ];
        for (mode, answer) in modes {
            let id = BenchmarkId::new(mode, fabric.name);
            group.bench_function(id, |bencher| bench.run(bencher, kind, answer));
        }
        group.finish();
    }
    let mut group = criterion.benchmark_group("path_query/get_table_one_source");
    group.sample_size(10);
    group.bench_function(fabric.name, |bencher| bench.run_table(bencher));
    group.finish();
}

/// Answers what is in the buffers; returns how long that took.
type Answer = fn(&mut Bench) -> Duration;

struct Bench {
    /// Keeps the tables.
    _publisher: Publisher,
    responder: Responder,
    hosts: Vec<Host>,
    draw: Draw,
    requests: Vec<(Packet, Host)>,
    next: usize,
    buffers: Vec<Packet>,
    cold: Vec<u64>,
    times: Vec<Duration>,
    now: Instant,
}

impl Bench {
    fn new(fabric: Stated) -> Self {
        let plane = fabric.managed().plane();
        let registry = Arc::new(RegistryPlane::default());
        let tables = Arc::new(Tables::build(&plane, &registry));
        let (rows, columns) = tables.paths.host_size();
        eprintln!(
            "{}: tables of {} KB that queries by GID or LID read from, {rows} x {columns} path classes",
            fabric.name,
            tables.hot_bytes() / 1024
        );
        let mut publisher = Publisher::new();
        publisher.publish(Arc::new(Generation::new(Version::NONE, tables, registry)));
        let stats = Arc::new(Stats::default());
        Self {
            responder: Responder::new(publisher.reader(), ResponderConfig::default(), stats),
            _publisher: publisher,
            hosts: hosts(&plane),
            draw: Draw::new(),
            requests: Vec::new(),
            next: 0,
            buffers: vec![Packet::default(); BATCH],
            cold: vec![1; EVICTION / size_of::<u64>()],
            times: Vec::new(),
            now: Instant::now(),
        }
    }

    /// Draws requests of a kind.
    fn load(&mut self, kind: Kind) {
        self.requests = (0..REQUESTS)
            .map(|tid| {
                let (source, destination) =
                    (self.draw.host(&self.hosts), self.draw.host(&self.hosts));
                let mut packet = Packet::default();
                kind.write(tid as u64, source, destination, &mut packet);
                (packet, destination)
            })
            .collect();
        self.next = 0;
    }

    fn run(&mut self, bencher: &mut Bencher<'_>, kind: Kind, answer: Answer) {
        bencher.iter_custom(|iterations| {
            self.times.clear();
            for _ in 0..iterations.div_ceil(BATCH as u64) {
                self.refill();
                let time = answer(self);
                self.times.push(time);
                self.check(kind);
            }
            // The batch in the middle: those during which others had the CPU are not ours.
            let middle = self.times.len() / 2;
            let (_, &mut median, _) = self.times.select_nth_unstable(middle);
            median.mul_f64(iterations as f64 / BATCH as f64)
        });
    }

    fn refill(&mut self) {
        let requests = &self.requests[self.next..self.next + BATCH];
        for (buffer, (request, _)) in self.buffers.iter_mut().zip(requests) {
            buffer.mad = request.mad;
            buffer.address.clone_from(&request.address);
        }
    }

    fn one_by_one(&mut self) -> Duration {
        let start = Instant::now();
        for packet in &mut self.buffers {
            black_box(self.responder.handle(packet, self.now));
        }
        start.elapsed()
    }

    fn batch(&mut self) -> Duration {
        let start = Instant::now();
        self.responder.handle_batch(&mut self.buffers, self.now, |_, outcome| {
            black_box(outcome);
        });
        start.elapsed()
    }

    /// Answers after everything else has been pushed out of the core's caches.
    fn evicted(&mut self, answer: Answer) -> Duration {
        black_box(self.cold.iter().sum::<u64>());
        answer(self)
    }

    fn check(&mut self, kind: Kind) {
        let asked = &self.requests[self.next..self.next + BATCH];
        for (answer, (_, destination)) in self.buffers.iter().zip(asked) {
            assert!(kind.is_answered(*destination, answer), "{kind:?} of {destination:?}");
        }
        self.next = (self.next + BATCH) % REQUESTS;
    }

    fn run_table(&mut self, bencher: &mut Bencher<'_>) {
        let mut tid = 0;
        bencher.iter_custom(|iterations| {
            let (mut total, mut records) = (Duration::ZERO, 0);
            while records < iterations {
                tid += 1;
                let source = self.draw.host(&self.hosts);
                let mut request = Packet::default();
                Kind::PathsOfSource.write(tid, source, source, &mut request);
                let start = Instant::now();
                let bytes = self.fetch(&mut request);
                total += start.elapsed();
                let found = bytes / 64;
                assert!(found >= self.hosts.len(), "{found} paths");
                records += found as u64;
            }
            total.mul_f64(iterations as f64 / records as f64)
        });
    }

    /// Asks for a table and acknowledges as a kernel does; returns the bytes received.
    fn fetch(&mut self, request: &mut Packet) -> usize {
        /// Segments that a client lets the responder send ahead.
        const WINDOW: u32 = 64;
        let address = request.address.clone();
        assert_eq!(self.responder.handle(request, self.now), Outcome::Nothing, "a transfer");
        let (mut bytes, mut last, mut is_over) = (0, 0, false);
        let mut segment = Packet::default();
        while !is_over {
            while self.responder.poll_transmit(self.now, &mut segment) {
                let mad = SaMad::new(&segment.mad);
                last = mad.rmpp().segment();
                is_over = mad.rmpp().flags().contains(RmppFlags::LAST);
                bytes += black_box(mad.data()).len();
            }
            let mut ack = SaMad::new(&mut segment.mad);
            ack.header_mut().set_method(Method::GET_TABLE);
            ack.rmpp_mut()
                .set_rmpp_type(RmppType::ACK)
                .set_flags(RmppFlags::ACTIVE)
                .set_segment(last)
                .set_payload_len(last + WINDOW);
            segment.address.clone_from(&address);
            self.responder.handle(&mut segment, self.now);
        }
        bytes
    }
}
