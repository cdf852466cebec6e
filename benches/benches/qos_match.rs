//! What do QoS rules cost per answer, and does the number of rules matter?
//!
//! Nanoseconds per answer to Get(PathRecord) by GID pair with ServiceID and QoSClass, through the
//! responder's own entry point, on 10,000 hosts in 20 port groups, under 0, 1, 50 and 1,000 rules.
//! A level DEFAULT follows them all.
//!
//! Under [`Policy::Services`], half of the requests name ServiceID and QoSClass of one of the
//! rules.
//!
//! Batches of 64 under each number of rules alternate, so that other load of the machine affects
//! all of them equally; a figure is the median batch.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use benches::fabrics::{FAT_TREE_10000, Stated};
use benches::figures::{Runs, is_benchmark_run, is_wanted, report_figure, report_load};
use benches::policy::Policy;
use benches::requests::{Draw, Host, Kind, hosts};
use ib_mad::transport::Packet;
use sa_proto::snapshot::{FabricPlane, RegistryPlane, Version};
use sa_server::serve::responder::{Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};

/// Numbers of rules, without the default.
const RULES: [u32; 4] = [0, 1, 50, 1000];
/// Requests answered between two clock readings.
const BATCH: usize = 64;
/// Batches under each number of rules.
const ROUNDS: usize = 4000;

fn main() {
    if !is_benchmark_run() || !is_wanted(FAT_TREE_10000.name) {
        return;
    }
    measure(FAT_TREE_10000);
}

fn measure(fabric: Stated) {
    let plane = fabric.managed().plane();
    let hosts = hosts(&plane);
    for (name, policy) in [("services", Policy::Services), ("scattered", Policy::Scattered)] {
        compare(fabric, &plane, &hosts, name, policy);
    }
    report_load();
}

fn compare(fabric: Stated, plane: &FabricPlane, hosts: &[Host], name: &str, policy: Policy) {
    let site = |&rules: &u32| Site::new(plane, hosts, policy, rules);
    let mut sites: Vec<Site> = RULES.iter().map(site).collect();
    for round in 0..ROUNDS {
        for site in &mut sites {
            site.answer(round);
        }
    }
    let name = format!("qos_match/{name}/{}", fabric.name);
    let medians: Vec<f64> = sites.into_iter().map(|site| Runs::new(site.times).median()).collect();
    for (rules, median) in RULES.iter().zip(&medians) {
        report_figure(&format!("{name}/{rules}_rules"), format!("{median:.1}"), "ns");
    }
    report_figure(&format!("{name}/1000_to_1"), format!("{:.2}", medians[3] / medians[1]), "");
}

/// A responder with a number of rules, and requests to it.
struct Site {
    _publisher: Publisher,
    responder: Responder,
    requests: Vec<(Packet, Host)>,
    buffers: Vec<Packet>,
    /// Nanoseconds per answer, by batch.
    times: Vec<f64>,
}

impl Site {
    fn new(plane: &FabricPlane, hosts: &[Host], policy: Policy, rules: u32) -> Self {
        let mut plane = plane.clone();
        policy.write(&mut plane, hosts, rules);
        let registry = Arc::new(RegistryPlane::default());
        let tables = Arc::new(Tables::build(&plane, &registry));
        eprintln!("{rules} rules: {} KB of bit sets", tables.qos.bytes() / 1024);
        let mut publisher = Publisher::new();
        publisher.publish(Arc::new(Generation::new(Version::OFFLINE, tables, registry)));
        let stats = Arc::new(Stats::default());
        let mut draw = Draw::new();
        let requests = (0..BATCH * 64)
            .map(|tid| {
                let (source, destination) = (draw.host(hosts), draw.host(hosts));
                let mut packet = Packet::default();
                Kind::PathByGids.write(tid as u64, source, destination, &mut packet);
                policy.ask(tid as u32, rules, &mut packet);
                (packet, destination)
            })
            .collect();
        Self {
            responder: Responder::new(publisher.reader(), ResponderConfig::default(), stats),
            _publisher: publisher,
            requests,
            buffers: vec![Packet::default(); BATCH],
            times: Vec::with_capacity(ROUNDS),
        }
    }

    fn answer(&mut self, round: usize) {
        let start = round * BATCH % self.requests.len();
        let requests = &self.requests[start..start + BATCH];
        for (buffer, (request, _)) in self.buffers.iter_mut().zip(requests) {
            buffer.mad = request.mad;
            buffer.address = request.address;
        }
        let begin = Instant::now();
        self.responder.handle_batch(&mut self.buffers, begin, |_, outcome| {
            black_box(outcome);
        });
        self.times.push(begin.elapsed().as_nanos() as f64 / BATCH as f64);
        for (answer, (_, destination)) in self.buffers.iter().zip(requests) {
            assert!(Kind::PathByGids.is_answered(*destination, answer));
        }
    }
}
