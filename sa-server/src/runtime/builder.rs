//! Builds tables from each snapshot, or patches those of the previous snapshot in its lane, and
//! passes them to the workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sa_proto::snapshot::{FabricPlane, Snapshot};

use crate::host::placement::Builders;
use crate::sm::replica::{Change, SESSIONS_MAX};
use crate::tables::Tables;
use crate::tables::cell::{Generation, Publisher};
use crate::tables::index::RegistryIndex;
use crate::watch::metrics::{Metrics, Serving};

/// How long building may take before workers yield CPU time to it.
const BUILD_PATIENCE: Duration = Duration::from_secs(1);

/// Builds tables from snapshots and passes them to the workers.
pub struct Builder {
    publisher: Arc<Mutex<Publisher>>,
    /// The threads of the pool.
    builders: Builders,
    metrics: Arc<Metrics>,
    /// What is served in each lane.
    lanes: [Lane; SESSIONS_MAX],
    /// The lane of the responder's own port.
    own: usize,
}

/// What is served of one session.
#[derive(Default)]
struct Lane {
    /// The last snapshot, its tables and its index.
    last: Option<(Arc<Snapshot>, Arc<Tables>, RegistryIndex)>,
    serving: Option<Arc<Serving>>,
}

impl Builder {
    /// Builds with these threads for the readers of `publisher`.
    pub fn new(
        publisher: Arc<Mutex<Publisher>>,
        builders: Builders,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { publisher, builders, metrics, lanes: Default::default(), own: 0 }
    }

    /// Has queries answered accordingly from now on.
    pub fn follow(&mut self, change: &Change) {
        match change {
            Change::Serve(lane, snapshot) => self.install(*lane, snapshot),
            Change::Drop(lane) => {
                self.publisher().set(*lane, None);
                self.lanes[*lane] = Lane::default();
            }
            Change::Own(lane) => {
                self.publisher().set_own(*lane);
                self.own = *lane;
            }
        }
        self.metrics.serving.store(self.lanes[self.own].serving.clone());
    }

    fn publisher(&self) -> MutexGuard<'_, Publisher> {
        self.publisher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&mut self, lane: usize, snapshot: &Arc<Snapshot>) {
        let start = Instant::now();
        let last = self.lanes[lane].last.take();
        let registry = Arc::clone(snapshot.registry());
        let index = match &last {
            Some((last, _, index)) => index.follow(last.registry(), &registry),
            None => RegistryIndex::new(&registry),
        };
        let step = last.as_ref().map_or(Step::Other, |(last, ..)| Step::between(last, snapshot));
        // Where little differs, that takes less time than to wait for CPU time that workers leave.
        let patched = last.as_ref().and_then(|(last, before, _)| {
            let mut tables = match step {
                Step::Same => Arc::clone(before),
                Step::Multicast => Arc::new(before.with_multicast(snapshot.fabric())),
                Step::Other => Arc::new(before.patched(snapshot.fabric())?),
            };
            if last.registry().alias_guids != registry.alias_guids {
                tables = Arc::new(tables.with_alias_guids(last.registry(), &registry));
            }
            Some(tables)
        });
        // In the pool all of it yields to the workers.
        let tables = patched.unwrap_or_else(|| {
            self.builders.finish_within(BUILD_PATIENCE, || {
                rayon::scope(|_| {
                    let mut tables = match last {
                        Some((_, before, _)) => before.rebuild(snapshot.fabric(), &registry),
                        None => Tables::build(snapshot.fabric(), &registry),
                    };
                    tables.qos.count_by(&self.metrics.levels);
                    Arc::new(tables)
                })
            })
        });
        let version = snapshot.version();
        let generation =
            Generation { version, tables: Arc::clone(&tables), registry, index: index.clone() };
        let built_in = start.elapsed();
        self.metrics.applied.record(built_in, 1);
        self.publisher().set(lane, Some(Arc::new(generation)));
        if step == Step::Other {
            log_installed(snapshot, &tables, built_in);
        }
        let serving = Serving {
            version,
            since: Instant::now(),
            built_in_s: built_in.as_secs_f64(),
            end_ports: tables.end_ports.all().len(),
            hot_bytes: tables.hot_bytes(),
        };
        let last = Some((Arc::clone(snapshot), tables, index));
        self.lanes[lane] = Lane { last, serving: Some(Arc::new(serving)) };
    }
}

/// How much the fabrics of two snapshots differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The rows that differ, if any, are in no table.
    Same,
    /// Switches forward multicast otherwise.
    Multicast,
    /// In anything else: the tables are patched if that is only routes and links between switches,
    /// and rebuilt otherwise.
    Other,
}

impl Step {
    fn between(last: &Snapshot, next: &Snapshot) -> Self {
        let (last, next) = (last.fabric(), next.fabric());
        if Arc::ptr_eq(last, next) {
            Self::Same
        } else if !last.is_same_but_multicast(next) {
            Self::Other
        } else if last.mfts != next.mfts {
            Self::Multicast
        } else {
            Self::Same
        }
    }
}

fn log_installed(snapshot: &Snapshot, tables: &Tables, built_in: Duration) {
    let plane: &FabricPlane = snapshot.fabric();
    let switches = plane.lfts.len();
    let version = snapshot.version();
    let (rows, columns) = tables.paths.host_size();
    tracing::info!(
        "serving generation {} of session {}: {} hosts, {switches} switches, {} links, {} end \
         ports, {} partitions; tables built in {:.1} ms, {rows} x {columns} path classes, {} KB \
         read by path queries",
        version.fabric_generation,
        version.session,
        plane.nodes.len().saturating_sub(switches),
        tables.records.links.len() / 2,
        tables.end_ports.all().len(),
        tables.partitions.len(),
        built_in.as_secs_f64() * 1e3,
        tables.hot_bytes() >> 10,
    );
    if tables.contradictions() > 0 {
        tracing::warn!(
            count = tables.contradictions(),
            "the snapshot assigns LIDs or GUIDs to more than one port; queries find the first \
             port only"
        );
    }
}
