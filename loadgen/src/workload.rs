//! The workload: pairs of ports drawn by seed, and the path queries for them.
//!
//! All pairs are drawn before the storm, with the expected responses, so that the storm itself only
//! copies and compares.

use std::fmt;
use std::str::FromStr;

use ib_mad::types::{Gid, Lid, PKey};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::record::path::component;
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::fabric::{Expected, Fabric};
use crate::ports::Ports;

/// Limit of pairs, 16 bytes each.
pub const PAIRS_MAX: usize = 1 << 24;
/// Draws for a pair with a path, before one without is accepted.
const DRAWS_MAX: usize = 16;

/// How a PathRecord query names the path, after the program that does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum By {
    /// GIDs.
    Gid,
    /// LIDs.
    Lid,
    /// As Linux's RDMA CM for an IPv4 connection: GIDs, Service ID, QoS class, P_Key.
    GidService,
    /// As Linux's IPoIB for a neighbour: GIDs, traffic class, P_Key.
    Ipoib,
    /// As `ibacm` after it has resolved a destination by multicast: GIDs, P_Key.
    Acm,
    /// As `ibacm` when its client gives GIDs: also its own LID.
    AcmGid,
    /// As `ibacm` when its client gives a LID: LIDs, its own GID, P_Key.
    AcmLid,
    /// As `srp_daemon` to find the P_Keys shared with a target: LIDs, P_Key.
    Srp,
}

impl By {
    /// All forms, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Gid,
        Self::Lid,
        Self::GidService,
        Self::Ipoib,
        Self::Acm,
        Self::AcmGid,
        Self::AcmLid,
        Self::Srp,
    ];

    /// Its name in options and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gid => "gid",
            Self::Lid => "lid",
            Self::GidService => "gid-service",
            Self::Ipoib => "ipoib",
            Self::Acm => "acm",
            Self::AcmGid => "acm-gid",
            Self::AcmLid => "acm-lid",
            Self::Srp => "srp",
        }
    }

    /// The component mask. `ibacm` sets all components that are not zero (`acm_path_comp_mask`),
    /// which leaves out Reversible and NumbPath.
    pub fn component_mask(self) -> ComponentMask {
        use component::{
            DGID, DLID, NUMB_PATH, PKEY, QOS_CLASS, REVERSIBLE, SERVICE_ID, SGID, SLID, TCLASS,
        };
        match self {
            Self::Gid => REVERSIBLE | NUMB_PATH | DGID | SGID,
            Self::Lid => REVERSIBLE | NUMB_PATH | DLID | SLID,
            Self::GidService => {
                REVERSIBLE | NUMB_PATH | DGID | SGID | SERVICE_ID | PKEY | QOS_CLASS
            }
            Self::Ipoib => DGID | SGID | NUMB_PATH | TCLASS | PKEY,
            Self::Acm => DGID | SGID | PKEY,
            Self::AcmGid => DGID | SGID | SLID | PKEY,
            Self::AcmLid => DLID | SLID | SGID | PKEY,
            Self::Srp => DLID | SLID | PKEY,
        }
    }

    /// Whether the mask includes all of these.
    #[inline]
    pub fn names(self, components: ComponentMask) -> bool {
        self.component_mask().contains(components)
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|by| by.name() == text)
            .ok_or_else(|| format!("one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A pair of ports to query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Index of the source port.
    pub source: u32,
    /// Index of the destination port.
    pub destination: u32,
    /// The expected response; `None` if unknown.
    pub expected: Option<Expected>,
}

/// How pairs are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// This number of pairs of any two ports.
    Any(usize),
    /// For each port this number of destinations, or as many as there are.
    PerPort(usize, Pattern),
}

/// Selection of the destinations that a port queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Any.
    #[default]
    Random,
    /// The ports that follow it in the list.
    Ring,
}

/// Parameters of a workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadOptions {
    /// The form of the queries.
    pub by: By,
    /// How pairs are drawn.
    pub draw: Draw,
    /// Seed of the draw.
    pub seed: u64,
    /// Service ID, for queries with one.
    pub service_id: u64,
    /// P_Key, for queries with one.
    pub pkey: PKey,
    /// Share of the pairs, 0 to 1, whose paths are computed beforehand for comparison with the
    /// responses.
    pub sample: f64,
}

/// The ports lack an address that the queries need, or are too few or too many.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// A port without GID.
    #[error("port '{0}' has no GID in the list; add GIDs or use --by lid")]
    NoGid(String),
    /// A port without LID.
    #[error("port '{0}' has no LID in the list; add LIDs or use --by gid")]
    NoLid(String),
    /// Fewer than two ports.
    #[error("the snapshot has {0} active host ports, need at least 2")]
    TooFew(usize),
    /// More pairs than the limit.
    #[error("{0} ports with {1} peers each exceed the limit of {PAIRS_MAX} pairs")]
    TooMany(usize, usize),
}

/// Queries for drawn pairs, in cycles.
pub struct Workload {
    by: By,
    pkey: PKey,
    templates: [[u8; MAD_LEN]; By::ALL.len()],
    ports: Ports,
    pairs: Vec<Pair>,
    /// Pairs of each port, if drawn by port.
    each: usize,
}

impl Workload {
    /// Draws pairs of different ports.
    pub fn draw(
        options: &WorkloadOptions,
        ports: Ports,
        fabric: Option<&Fabric>,
    ) -> Result<Self, WorkloadError> {
        if ports.len() < 2 {
            return Err(WorkloadError::TooFew(ports.len()));
        }
        let needs = |components| options.by.component_mask().intersects(components);
        for (index, end) in (0u32..).zip(ports.ends()) {
            if needs(component::DLID | component::SLID) && end.lid == Lid::NONE {
                return Err(WorkloadError::NoLid(ports.name(index)));
            }
            if needs(component::DGID | component::SGID) && end.gid == Gid::ZERO {
                return Err(WorkloadError::NoGid(ports.name(index)));
            }
        }
        let mut random = SmallRng::seed_from_u64(options.seed);
        let walked = Walked {
            fabric,
            pkey: options.by.names(component::PKEY).then_some(options.pkey),
            sample: options.sample,
        };
        let (pairs, each) = match options.draw {
            Draw::Any(count) => (any_pairs(&ports, count, &walked, &mut random), 0),
            Draw::PerPort(each, pattern) => {
                let each = each.clamp(1, ports.len() - 1);
                if each.saturating_mul(ports.len()) > PAIRS_MAX {
                    return Err(WorkloadError::TooMany(ports.len(), each));
                }
                (pairs_per_port(&ports, each, pattern, &walked, &mut random), each)
            }
        };
        let templates = By::ALL.map(|by| template(by, options));
        Ok(Self { by: options.by, pkey: options.pkey, templates, ports, pairs, each })
    }

    /// Form of the queries, unless a scenario selects another.
    pub fn by(&self) -> By {
        self.by
    }

    /// P_Key of queries that have one.
    pub fn pkey(&self) -> PKey {
        self.pkey
    }

    /// The ports that pairs were drawn from.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are no pairs; never true.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Pairs per port: those of port n start at index n times this number; 0 if pairs were not
    /// drawn by port.
    pub fn each(&self) -> usize {
        self.each
    }

    /// A pair by its index.
    #[inline]
    pub fn pair(&self, index: u32) -> &Pair {
        &self.pairs[index as usize]
    }

    /// Writes the query for a pair.
    #[inline]
    pub fn write_request(&self, pair: &Pair, by: By, tid: u64, mad: &mut [u8; MAD_LEN]) {
        *mad = self.templates[by as usize];
        let (source, destination) = (self.ports.get(pair.source), self.ports.get(pair.destination));
        let mut request = SaMad::new(mad);
        request.header_mut().set_tid(tid);
        let mut record = PathRecord::of_mut(request.data_mut());
        if by.names(component::DGID) {
            record.set_dgid(destination.gid);
        }
        if by.names(component::SGID) {
            record.set_sgid(source.gid);
        }
        if by.names(component::DLID) {
            record.set_dlid(destination.lid);
        }
        if by.names(component::SLID) {
            record.set_slid(source.lid);
        }
    }
}

/// Computes expected responses.
struct Walked<'a> {
    fabric: Option<&'a Fabric>,
    pkey: Option<PKey>,
    sample: f64,
}

impl Walked<'_> {
    /// Whether the next pair belongs to the sample.
    fn draw(&self, random: &mut SmallRng) -> bool {
        self.sample >= 1.0 || random.random::<f64>() < self.sample
    }

    fn pair(&self, source: u32, destination: u32, is_sampled: bool) -> Pair {
        let fabric = self.fabric.filter(|_| is_sampled);
        let expected = fabric.map(|fabric| fabric.expect(source, destination, self.pkey));
        Pair { source, destination, expected }
    }
}

/// Pairs drawn evenly, preferring pairs known to have a path.
fn any_pairs(ports: &Ports, count: usize, walked: &Walked, random: &mut SmallRng) -> Vec<Pair> {
    let ports = ports.len() as u32;
    let draw = |is_sampled, random: &mut SmallRng| {
        let source = random.random_range(0..ports);
        // One of the other ports.
        let destination = (source + random.random_range(1..ports)) % ports;
        walked.pair(source, destination, is_sampled)
    };
    let has_path = |pair: &Pair| pair.expected != Some(Expected::NoPath);
    let draw_best = |_| {
        let is_sampled = walked.draw(random);
        let mut pair = draw(is_sampled, random);
        for _ in 1..DRAWS_MAX {
            if has_path(&pair) {
                break;
            }
            pair = draw(is_sampled, random);
        }
        pair
    };
    (0..count.clamp(1, PAIRS_MAX)).map(draw_best).collect()
}

/// Pairs of each port in turn, without repeated destinations.
fn pairs_per_port(
    ports: &Ports,
    each: usize,
    pattern: Pattern,
    walked: &Walked,
    random: &mut SmallRng,
) -> Vec<Pair> {
    let count = ports.len() as u32;
    let mut pairs = Vec::with_capacity(each * ports.len());
    let mut offsets: Vec<u32> = (1..count).collect();
    for source in 0..count {
        if pattern == Pattern::Random {
            // A partial Fisher-Yates shuffle: all choices are equally likely.
            for at in 0..each {
                let other = random.random_range(at..offsets.len());
                offsets.swap(at, other);
            }
        }
        for &offset in &offsets[..each] {
            let is_sampled = walked.draw(random);
            pairs.push(walked.pair(source, (source + offset) % count, is_sampled));
        }
    }
    pairs
}

/// The query without its pair and transaction id.
fn template(by: By, options: &WorkloadOptions) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let mut request = SaMad::new(&mut mad);
    request.write_request(Method::GET, attribute::PATH_RECORD, 0, by.component_mask());
    let mut record = PathRecord::of_mut(request.data_mut());
    if by.names(component::REVERSIBLE) {
        record.set_reversible(true);
    }
    if by.names(component::NUMB_PATH) {
        record.set_numb_path(1);
    }
    if by.names(component::SERVICE_ID) {
        record.set_service_id(options.service_id);
    }
    if by.names(component::PKEY) {
        record.set_pkey(options.pkey);
    }
    mad
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric;
    use std::sync::Arc;

    fn options(by: By) -> WorkloadOptions {
        let (service_id, pkey) = (0x0106_1F90, PKey::DEFAULT_FULL);
        WorkloadOptions { by, draw: Draw::Any(300), seed: 1, service_id, pkey, sample: 1.0 }
    }

    fn ports() -> Ports {
        Ports::parse("4 fe80::c42:a103:0:11\n5 fe80::c42:a103:0:21\n").unwrap()
    }

    /// The request that the rdma_cm kernel module sends, recorded at OpenSM.
    #[test]
    fn gid_service_is_what_rdma_cm_asks() {
        let workload = Workload::draw(&options(By::GidService), ports(), None).unwrap();
        let pair = Pair { source: 0, destination: 1, expected: None };
        let mut mad = [0xA5; MAD_LEN];
        workload.write_request(&pair, By::GidService, 0x0001_0000_0000_106D, &mut mad);
        let golden = include_bytes!("../tests/golden/rdma_cm_ipv4.bin");
        assert_eq!(mad, *golden);
    }

    #[test]
    fn pairs_are_drawn_evenly_by_seed_and_never_to_oneself() {
        let list: String = (1..=5).map(|lid| format!("{lid}\n")).collect();
        let draw = |seed| {
            let options = WorkloadOptions { seed, draw: Draw::Any(20_000), ..options(By::Lid) };
            Workload::draw(&options, Ports::parse(&list).unwrap(), None).unwrap().pairs
        };
        let pairs = draw(7);
        assert_eq!(pairs, draw(7));
        assert_ne!(pairs, draw(8));
        for source in 0..5 {
            for destination in 0..5 {
                let count = pairs
                    .iter()
                    .filter(|pair| (pair.source, pair.destination) == (source, destination))
                    .count();
                let expected = if source == destination { 0..=0 } else { 800..=1200 };
                assert!(expected.contains(&count), "{source} to {destination}: {count}");
            }
        }
    }

    #[test]
    fn pairs_without_a_path_are_avoided() {
        let fabric = Fabric::new(Arc::new(fabric::tests::plane()));
        let workload =
            Workload::draw(&options(By::Gid), fabric.ports().clone(), Some(&fabric)).unwrap();
        let dead = |pair: &&Pair| pair.expected == Some(Expected::NoPath);
        assert_eq!(workload.pairs.iter().filter(dead).count(), 0);
    }

    #[test]
    fn a_list_must_have_what_the_query_names() {
        let error = Workload::draw(&options(By::Lid), Ports::parse("1\nfe80::1\n").unwrap(), None);
        assert_eq!(error.err(), Some(WorkloadError::NoLid("fe80::1".to_owned())));
        let error = Workload::draw(&options(By::Gid), Ports::parse("1\nfe80::1\n").unwrap(), None);
        assert_eq!(error.err(), Some(WorkloadError::NoGid("LID 1".to_owned())));
    }

    /// `ib_sa_path_rec_get` in ipoib_main.c, `acm_path_comp_mask` with what acmp.c fills in, and
    /// `get_shared_pkeys` in srp_daemon.c.
    #[test]
    fn masks_are_those_of_the_clients() {
        let masks = By::ALL.map(|by| by.component_mask().0);
        assert_eq!(masks, [0x180C, 0x1830, 0x780F, 0x340C, 0x200C, 0x202C, 0x2038, 0x2030]);
        let workload = Workload::draw(&options(By::Gid), ports(), None).unwrap();
        let pair = Pair { source: 0, destination: 1, expected: None };
        let mut mad = [0; MAD_LEN];
        workload.write_request(&pair, By::AcmLid, 1, &mut mad);
        let request = SaMad::new(&mad);
        let record = PathRecord::new(&request.data()[..]).unwrap();
        assert_eq!((record.dlid(), record.slid(), record.dgid()), (Lid(5), Lid(4), Gid::ZERO));
        assert_eq!((record.sgid(), record.pkey()), (ports().get(0).gid, PKey::DEFAULT_FULL));
        assert_eq!((record.reversible(), record.numb_path()), (false, 0));
    }

    #[test]
    fn each_port_asks_for_others_of_its_own_and_never_twice() {
        let list: String = (1..=9).map(|lid| format!("{lid}\n")).collect();
        let draw = |each, pattern| {
            let draw = Draw::PerPort(each, pattern);
            let options = WorkloadOptions { draw, ..options(By::Lid) };
            Workload::draw(&options, Ports::parse(&list).unwrap(), None).unwrap()
        };
        for pattern in [Pattern::Random, Pattern::Ring] {
            let workload = draw(4, pattern);
            assert_eq!((workload.len(), workload.each()), (36, 4));
            for (source, pairs) in (0..).zip(workload.pairs.chunks(4)) {
                let mut seen: Vec<_> = pairs.iter().map(|pair| pair.destination).collect();
                assert!(pairs.iter().all(|pair| pair.source == source));
                seen.sort_unstable();
                seen.dedup();
                assert!(seen.len() == 4 && !seen.contains(&source), "{source}: {seen:?}");
            }
        }
        assert_eq!(draw(1, Pattern::Ring).pair(8).destination, 0);
        assert_eq!(draw(100, Pattern::Random).each(), 8, "there are no more");
    }

    #[test]
    fn a_sample_of_the_paths_is_walked() {
        let fabric = Fabric::new(Arc::new(fabric::tests::plane()));
        let options = WorkloadOptions { draw: Draw::Any(2000), sample: 0.25, ..options(By::Gid) };
        let workload = Workload::draw(&options, fabric.ports().clone(), Some(&fabric)).unwrap();
        let walked = workload.pairs.iter().filter(|pair| pair.expected.is_some()).count();
        assert!((400..600).contains(&walked), "{walked}");
    }
}
