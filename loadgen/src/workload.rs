//! What is asked: pairs of ports drawn by seed, and the requests made of them.
//!
//! All pairs are drawn before the storm begins, with what their answers must say, so that the
//! storm itself only copies and compares.

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

/// Pairs drawn at most: 16 bytes each.
pub const PAIRS_MAX: usize = 1 << 24;
/// Draws for a pair that has a path, before one without is taken.
const DRAWS_MAX: usize = 16;

/// How a query names the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By GIDs.
    Gid,
    /// By LIDs.
    Lid,
    /// As Linux's RDMA CM asks for an IPv4 connection: GIDs, Service ID, QoS class, P_Key.
    GidService,
}

impl Kind {
    /// The components that it fills in.
    pub fn component_mask(self) -> ComponentMask {
        let always = component::REVERSIBLE | component::NUMB_PATH;
        match self {
            Self::Gid => always | component::DGID | component::SGID,
            Self::Lid => always | component::DLID | component::SLID,
            Self::GidService => {
                always
                    | component::DGID
                    | component::SGID
                    | component::SERVICE_ID
                    | component::PKEY
                    | component::QOS_CLASS
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gid => "gid",
            Self::Lid => "lid",
            Self::GidService => "gid-service",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "gid" => Ok(Self::Gid),
            "lid" => Ok(Self::Lid),
            "gid-service" => Ok(Self::GidService),
            _ => Err("one of gid, lid, gid-service".to_owned()),
        }
    }
}

/// One pair to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Index of the source port.
    pub source: u32,
    /// Index of the destination port.
    pub destination: u32,
    /// What the answer must say; `None` if nothing is known.
    pub expected: Option<Expected>,
}

/// What to ask.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadOptions {
    /// How.
    pub kind: Kind,
    /// How many pairs to draw.
    pub pairs: usize,
    /// What to draw them by.
    pub seed: u64,
    /// Service ID, for kinds that have one.
    pub service_id: u64,
    /// P_Key, for kinds that have one.
    pub pkey: PKey,
}

/// A port list that does not have what the kind of query needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// A port without GID.
    #[error("port '{0}' has no GID in the list; give GIDs, or ask with --by lid")]
    NoGid(String),
    /// A port without LID.
    #[error("port '{0}' has no LID in the list; give LIDs, or ask with --by gid")]
    NoLid(String),
    /// No two ports.
    #[error("{0} active host ports are too few: paths run between two")]
    TooFew(usize),
}

/// Requests for drawn pairs, over and over.
pub struct Workload {
    kind: Kind,
    pkey: Option<PKey>,
    template: [u8; MAD_LEN],
    ports: Ports,
    pairs: Vec<Pair>,
}

impl Workload {
    /// Draws pairs of different ports, evenly; with a fabric rather such as have a path.
    pub fn draw(
        options: &WorkloadOptions,
        ports: Ports,
        fabric: Option<&Fabric>,
    ) -> Result<Self, WorkloadError> {
        if ports.len() < 2 {
            return Err(WorkloadError::TooFew(ports.len()));
        }
        for (index, end) in (0u32..).zip(ports.ends()) {
            match options.kind {
                Kind::Lid if end.lid == Lid::NONE => {
                    return Err(WorkloadError::NoLid(ports.name(index)));
                }
                Kind::Gid | Kind::GidService if end.gid == Gid::ZERO => {
                    return Err(WorkloadError::NoGid(ports.name(index)));
                }
                _ => {}
            }
        }
        let pkey = (options.kind == Kind::GidService).then_some(options.pkey);
        let mut random = SmallRng::seed_from_u64(options.seed);
        let count = ports.len() as u32;
        let mut draw = || {
            let source = random.random_range(0..count);
            // One of the others.
            let destination = (source + random.random_range(1..count)) % count;
            let expected = fabric.map(|fabric| fabric.expect(source, destination, pkey));
            Pair { source, destination, expected }
        };
        let pairs = (0..options.pairs.clamp(1, PAIRS_MAX))
            .map(|_| {
                let mut pair = draw();
                for _ in 1..DRAWS_MAX {
                    if pair.expected != Some(Expected::NoPath) {
                        break;
                    }
                    pair = draw();
                }
                pair
            })
            .collect();
        Ok(Self { kind: options.kind, pkey, template: template(options), ports, pairs })
    }

    /// How ports are named.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The P_Key that queries ask for, if they do.
    pub fn pkey(&self) -> Option<PKey> {
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

    /// Whether there are no pairs; there always are.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// A pair by its index.
    #[inline]
    pub fn pair(&self, index: u32) -> &Pair {
        &self.pairs[index as usize]
    }

    /// Writes the request for a pair.
    #[inline]
    pub fn write_request(&self, pair: &Pair, tid: u64, mad: &mut [u8; MAD_LEN]) {
        *mad = self.template;
        let (source, destination) = (self.ports.get(pair.source), self.ports.get(pair.destination));
        let mut request = SaMad::new(mad);
        request.header_mut().set_tid(tid);
        let mut record = PathRecord::new(&mut request.data_mut()[..]).expect("64 bytes of 200");
        match self.kind {
            Kind::Lid => record.set_dlid(destination.lid).set_slid(source.lid),
            Kind::Gid | Kind::GidService => record.set_dgid(destination.gid).set_sgid(source.gid),
        };
    }
}

/// The request without its pair and transaction id.
fn template(options: &WorkloadOptions) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let mut request = SaMad::new(&mut mad);
    let mask = options.kind.component_mask();
    request.write_request(Method::GET, attribute::PATH_RECORD, 0, mask);
    let mut record = PathRecord::new(&mut request.data_mut()[..]).expect("64 bytes of 200");
    record.set_reversible(true).set_numb_path(1);
    if options.kind == Kind::GidService {
        record.set_service_id(options.service_id).set_pkey(options.pkey);
    }
    mad
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric;
    use std::sync::Arc;

    fn options(kind: Kind) -> WorkloadOptions {
        let (service_id, pkey) = (0x0106_1F90, PKey::DEFAULT_FULL);
        WorkloadOptions { kind, pairs: 300, seed: 1, service_id, pkey }
    }

    fn ports() -> Ports {
        Ports::parse("4 fe80::c42:a103:0:11\n5 fe80::c42:a103:0:21\n").unwrap()
    }

    /// The request that rdma_cm's kernel module sends, recorded at OpenSM.
    #[test]
    fn gid_service_is_what_rdma_cm_asks() {
        let workload = Workload::draw(&options(Kind::GidService), ports(), None).unwrap();
        let pair = Pair { source: 0, destination: 1, expected: None };
        let mut mad = [0xA5; MAD_LEN];
        workload.write_request(&pair, 0x0001_0000_0000_106D, &mut mad);
        let golden = include_bytes!("../tests/golden/rdma_cm_ipv4.bin");
        assert_eq!(mad, *golden);
    }

    #[test]
    fn pairs_are_drawn_evenly_by_seed_and_never_to_oneself() {
        let list: String = (1..=5).map(|lid| format!("{lid}\n")).collect();
        let draw = |seed| {
            let options = WorkloadOptions { seed, pairs: 20_000, ..options(Kind::Lid) };
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
            Workload::draw(&options(Kind::Gid), fabric.ports().clone(), Some(&fabric)).unwrap();
        let dead = |pair: &&Pair| pair.expected == Some(Expected::NoPath);
        assert_eq!(workload.pairs.iter().filter(dead).count(), 0);
    }

    #[test]
    fn a_list_must_have_what_the_query_names() {
        let error =
            Workload::draw(&options(Kind::Lid), Ports::parse("1\nfe80::1\n").unwrap(), None);
        assert_eq!(error.err(), Some(WorkloadError::NoLid("fe80::1".to_owned())));
        let error =
            Workload::draw(&options(Kind::Gid), Ports::parse("1\nfe80::1\n").unwrap(), None);
        assert_eq!(error.err(), Some(WorkloadError::NoGid("LID 1".to_owned())));
    }
}
