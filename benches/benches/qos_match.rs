//! What do QoS rules cost an answer, and does it matter how many there are?
//!
//! Nanoseconds an answer to Get(PathRecord) by GID pair with ServiceID and QoSClass, through the
//! responder's own entry, on 10,000 hosts in 20 port groups, under 0, 1, 50 and 1,000 rules. Behind them
//! all stands a level DEFAULT.
//!
//! - `services`: rules ask for a Service ID and a QoS class, a third of them for the source's group, a
//!   fifth for the destination's. Half of the requests name ServiceID and QoSClass of one of the rules.
//! - `scattered`: rules ask for groups and QoS class 0, in ways that hold in part for every request,
//!   so that every word of some bit set has rules, and few or none match.
//!
//! Batches of 64 under each number of rules follow each other in turn, so that what else the machine
//! does falls on all of them alike; a figure is the median batch.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use benches::fabrics::{FAT_TREE_10000, Stated};
use benches::figures::{Runs, is_benchmark_run, is_wanted, tell, tell_load};
use benches::requests::{Draw, Host, Kind, hosts};
use ib_mad::transport::Packet;
use ib_mad::types::{Mtu, Sl};
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{
    FabricPlane, IdMatch, PortGroup, QosLevel, QosRule, RegistryPlane, RuleOrigin, Version,
};
use sa_server::cell::{Generation, Publisher};
use sa_server::responder::{Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;

/// Numbers of rules, the default aside.
const RULES: [u32; 4] = [0, 1, 50, 1000];
/// Requests answered between two readings of the clock.
const BATCH: usize = 64;
/// Batches under each number of rules.
const ROUNDS: usize = 4000;
const GROUPS: u32 = 20;

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
    tell_load();
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
        tell(&format!("{name}/{rules}_rules"), format!("{median:.1}"), "ns");
    }
    tell(&format!("{name}/1000_to_1"), format!("{:.2}", medians[3] / medians[1]), "");
}

/// What rules ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Services,
    Scattered,
}

/// A responder under some rules, and requests to it.
struct Site {
    _publisher: Publisher,
    responder: Responder,
    requests: Vec<(Packet, Host)>,
    buffers: Vec<Packet>,
    /// Nanoseconds an answer, by batch.
    times: Vec<f64>,
}

impl Site {
    fn new(plane: &FabricPlane, hosts: &[Host], policy: Policy, rules: u32) -> Self {
        let mut plane = plane.clone();
        write_policy(&mut plane, hosts, policy, rules);
        let registry = Arc::new(RegistryPlane::default());
        let tables = Arc::new(Tables::build(&plane, &registry));
        eprintln!("{rules} rules: {} KB of bit sets", tables.qos.bytes() / 1024);
        let mut publisher = Publisher::new();
        publisher.publish(Arc::new(Generation::new(Version::NONE, tables, registry)));
        let stats = Arc::new(Stats::default());
        let mut draw = Draw::new();
        let requests = (0..BATCH * 64)
            .map(|tid| {
                let (source, destination) = (draw.host(hosts), draw.host(hosts));
                let mut packet = Packet::default();
                Kind::PathByGids.write(tid as u64, source, destination, &mut packet);
                let mut mad = SaMad::new(&mut packet.mad);
                let mut record = PathRecord::new(&mut mad.data_mut()[..]).expect("64 bytes of 200");
                // Rules of any position, and Service IDs of none.
                let rule = (tid as u32).wrapping_mul(0x9E37_79B1) % (2 * rules.max(1));
                let class = if policy == Policy::Services { qos_class(rule) } else { 0 };
                record.set_service_id(service_id(rule)).set_qos_class(class);
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
            buffer.address.clone_from(&request.address);
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

fn service_id(rule: u32) -> u64 {
    0x1000_0000 + u64::from(rule) * 0x100
}

fn qos_class(rule: u32) -> u16 {
    (rule % 64) as u16
}

fn write_policy(plane: &mut FabricPlane, hosts: &[Host], policy: Policy, rules: u32) {
    plane.subnet.qos = true;
    let members = |group: usize| {
        let of_group = hosts.iter().skip(group).step_by(GROUPS as usize);
        let mut ports: Vec<_> = of_group.map(|host| host.gid.guid()).collect();
        ports.sort_unstable();
        ports
    };
    plane.port_groups = (0..GROUPS)
        .map(|index| PortGroup {
            index,
            name: format!("group {index}"),
            node_types: 0,
            ports: members(index as usize),
        })
        .map(Arc::new)
        .collect();
    plane.qos_levels = (0..2)
        .map(|index| QosLevel {
            index,
            name: format!("level {index}"),
            sl: Some(Sl::from_low_bits(index as u16)),
            mtu_limit: (index == 1).then_some(Mtu::B2048),
            rate_limit: None,
            packet_life: None,
            pkeys: Vec::new(),
        })
        .map(Arc::new)
        .collect();
    let rule = |index: u32, origin| QosRule {
        index,
        name: format!("rule {index}"),
        origin,
        level: 0,
        sources: None,
        destinations: None,
        pkeys: None,
        qos_classes: None,
        service_ids: None,
    };
    let every = |index: u32, nth: u32| index.is_multiple_of(nth).then(|| vec![index % GROUPS]);
    let asks = |index: u32| match policy {
        Policy::Services => QosRule {
            sources: every(index, 3).filter(|_| rules > 1),
            destinations: every(index, 5).filter(|_| rules > 1),
            qos_classes: Some(vec![(qos_class(index), qos_class(index))]),
            service_ids: Some(vec![IdMatch::Range(service_id(index), service_id(index) + 0x80)]),
            ..rule(index, RuleOrigin::MatchRule)
        },
        // A source is in half of the groups that rules name, and a destination never in the next.
        Policy::Scattered => {
            let half = (0..GROUPS).filter(|group| group % 2 == index % 2).collect();
            let (source, other) = (index % GROUPS, GROUPS);
            QosRule {
                sources: Some(if index.is_multiple_of(2) { half } else { vec![source] }),
                destinations: Some(vec![if index.is_multiple_of(2) { other } else { source }]),
                qos_classes: Some(vec![(0, 0)]),
                ..rule(index, RuleOrigin::MatchRule)
            }
        }
    };
    let mut all: Vec<QosRule> =
        (0..rules).map(|index| QosRule { level: 1, ..asks(index) }).collect();
    if rules > 0 {
        all.push(rule(rules, RuleOrigin::Default));
    }
    plane.qos_rules = all.into_iter().map(Arc::new).collect();
}
